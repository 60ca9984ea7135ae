"""Classify the end of one run of a bolt's Spark job, and decide what follows.  Pure."""

from __future__ import annotations

import re
import sys
from typing import Any, Literal, TypeAlias

import msgspec

from flowctl import errors
from flowctl.core.retry import RESTART, RESTART_KILLED, WELL_AFTER_S
from flowctl.errors import ConfigError, FlowctlError, JobError, UnrunnableError
from flowctl.ports import Endpoint

Kind: TypeAlias = Literal["ended", "lost", "load", "error", "crashed", "spark", "gone"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a bolt's job, by ``kind``.

    ``ended``: it received END. ``lost``: its spout disappeared without END. ``load``: flowctl or
    ``process`` can't be loaded on the worker.  ``error``: the bolt itself raised.  ``crashed``: its
    Python worker or executor died.  ``spark``: Spark refused or cancelled the job. ``gone``: there
    is no Spark session any more.
    """

    kind: Kind
    error: str = ""
    detail: str = ""
    module: str | None = None
    remedy: str = ""
    traceback: str = ""
    lived_s: float = 0.0


class Restart(msgspec.Struct, frozen=True):
    """Run the bolt again in ``after_s``."""

    after_s: float
    detail: str


class GiveUp(msgspec.Struct, frozen=True):
    """Don't run the bolt again; both texts are empty if the bolt has simply ended."""

    detail: str = ""
    remedy: str = ""


# Tolerated failures in a row by kind; for other kinds the bolt is always restarted.
REPEATS_MAX: dict[Kind, int] = {
    "gone": 1,
    "load": 2,  # one host may differ: the next worker may load it
    "error": 3,  # the bolt itself has already tried to connect for 6 s each time
    "spark": 5,  # 1.5 s with back-off: replacing an executor takes less
}
# Errors that don't pass by themselves.
_FINAL = ("AuthenticationError", "WireError")


# Kinds of errors whose message is complete by itself.
_VERSIONS = ("PythonVersion", "FlowctlVersion")


class RestartPolicy:
    """Decides after each run of a bolt whether to restart it.  Not thread-safe: one per bolt."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._failures = 0  # failures in a row of any kind, for the back-off
        self._repeats = 0  # failures in a row of the last kind
        self._kind: Kind | None = None

    def after(self, outcome: Outcome) -> Restart | GiveUp:
        """Return what to do next; a crash or a lost spout alone never gives up."""
        if outcome.kind == "ended":
            return GiveUp()
        self._count(outcome)
        if outcome.error in _FINAL or self._repeats >= REPEATS_MAX.get(outcome.kind, sys.maxsize):
            return GiveUp(describe(outcome), remedy_for(outcome, self._endpoint))
        pause = RESTART_KILLED if outcome.kind == "crashed" else RESTART
        return Restart(pause.after(self._failures), describe(outcome))

    def _count(self, outcome: Outcome) -> None:
        # A bolt that raised had never connected, however long it ran.
        if outcome.lived_s >= WELL_AFTER_S and outcome.kind not in ("load", "error"):
            self._failures = self._repeats = 0
        if outcome.kind != self._kind:
            self._repeats = 0
        self._kind = outcome.kind
        self._failures += 1
        self._repeats += 1


def describe(outcome: Outcome) -> str:
    """Return one or two lines about the failure, without a stack."""
    if outcome.kind == "lost":
        return f"the connection to the spout ended ({outcome.detail})"
    if outcome.kind == "crashed":
        return outcome.detail or "its Spark worker died"
    if outcome.error in _VERSIONS:
        return outcome.detail
    if outcome.kind == "load":
        return f"can't be loaded on the worker: {outcome.error}: {outcome.detail}"
    return f"{outcome.error}: {outcome.detail}" if outcome.error else outcome.detail


def remedy_for(outcome: Outcome, endpoint: Endpoint) -> str:
    """Return what the operator or the job's author can do."""
    if outcome.kind == "gone":
        return "Something stopped the Spark session; start the job again: it resumes."
    if outcome.error == "FlowctlVersion":
        return outcome.remedy
    if outcome.module is not None:
        return install_remedy(outcome.module)
    if outcome.error == "PythonVersion":
        return _PYTHON_REMEDY
    if outcome.kind == "load":
        return "Check that driver and workers have the same versions of what process uses."
    if outcome.error == "AuthenticationError":
        return f"Something else listens on {endpoint.host}:{endpoint.port}; start the job again."
    return outcome.remedy or "See the log of the Spark executors."


# Modules that Spark's own Python code needs for bolts on Spark Connect.
_OF_SPARK = ("grpc", "pandas", "py4j", "pyarrow", "pyspark")


def install_remedy(module: str) -> str:
    """Return the remedy for a module that workers lack."""
    top = module.partition(".")[0]
    if top in ("flowctl", "pyspark_flowctl") or top.startswith("flowctl_"):
        return (
            "Install flowctl on every Spark worker: pip install flowctl-spark. If it is installed,"
            " workers run another Python: name that one in PYSPARK_PYTHON."
        )
    if top in _OF_SPARK:
        return "Run on every Spark worker: pip install 'flowctl-spark[spark]'"
    return (
        f"Install {top!r} on every Spark worker, or ship it with spark.submit.pyFiles or "
        "addPyFile; a module of your own can also move into the job's file."
    )


# The end of a traceback with an error of flowctl, which may have several lines.
_OURS = re.compile(r"^flowctl\.errors\.(\w+): ", re.MULTILINE)
_AFTER_IT = ("\n\tat ", "\n\nJVM stacktrace:", "\n\nDriver stacktrace:")


def error_on_worker(error: BaseException) -> FlowctlError | None:
    """Return the flowctl error that failed a task, without Spark's traceback around it.

    ``error`` is Spark's exception; returns None if the task failed for another reason.
    """
    *_, name, said = ["", "", *_OURS.split(str(error))]
    for mark in _AFTER_IT:
        said = said.partition(mark)[0]
    kind = getattr(errors, name, None)
    if kind is None or not issubclass(kind, FlowctlError):
        return None
    if issubclass(kind, ConfigError):
        field, _, problem = said.strip().partition(": ")
        plain = kind if kind in (ConfigError, UnrunnableError) else ConfigError
        return plain(field, problem)
    plain = kind if kind.__init__ is FlowctlError.__init__ else JobError
    return plain(said.strip())


# The last line of a Python traceback: "package.SomeError: text".
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)
# Python's message, and Spark's message for a package that it needs.
_MISSING = re.compile(r"No module named '([\w.]+)'|(\w+)(?: >= [\w.]+)? must be installed")
_CRASHED = (
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    "Executor heartbeat timed out",
    "MetadataFetchFailedException",
    "Could not connect to Python worker",
)


# Spark's own check compares 3.11 with 3.11, but not 3.11.2 with 3.11.7.
_OTHER_PYTHON = re.compile(
    r"Python in worker has different version: ([\d.]+\d) than that in driver: ([\d.]+\d)"
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)".*No such file')
# Python's message if Spark should fork workers from flowctl's daemon but flowctl isn't installed.
_NO_FLOWCTL = re.compile(
    r"Error from python worker:\s+\S+: Error while finding module specification for"
    r" 'pyspark_flowctl\.daemon'"
)
_PLACE = re.compile(r"\(TID \d+\) \((\S+) executor")
_PYTHON_REMEDY = (
    "Install the driver's Python at the same path on every worker and name it in PYSPARK_PYTHON (or"
    " spark.pyspark.python); `flowctl doctor --spark` says what each worker has."
)


def from_spark(error: Any, *, gone: bool, lived_s: float) -> Outcome:
    """Return the outcome for an exception that Spark raised: the cause, not the Java stack."""
    text = str(error)
    if gone:
        return Outcome(kind="gone", detail="the Spark session was stopped", lived_s=lived_s)
    if any(mark in text for mark in _CRASHED):
        return Outcome(kind="crashed", lived_s=lived_s)
    if problem := _other_python(text):
        return Outcome(kind="load", error="PythonVersion", detail=problem, lived_s=lived_s)
    if _NO_FLOWCTL.search(text):
        detail = "there is no flowctl" + _where(text)
        return Outcome(
            kind="load",
            error="ModuleNotFoundError",
            detail=detail,
            module="flowctl",
            lived_s=lived_s,
        )
    if found := _PYTHON_ERROR.findall(text.partition("\n\tat ")[0]):
        name, detail = found[-1]
        return Outcome(
            kind="spark",
            error=name.rpartition(".")[2],
            detail=detail,
            module=_module_missing(detail),
            lived_s=lived_s,
        )
    return Outcome(kind="spark", detail=_first_lines(text), lived_s=lived_s)


def _where(text: str) -> str:
    place = _PLACE.search(text)
    return f" on {place[1]}" if place else ""


def _other_python(text: str) -> str:
    """Return the fault of a worker's Python, "" if the failure has another cause."""
    where = _where(text)
    if found := _OTHER_PYTHON.search(text):
        return f"workers{where} have Python {found[1]}, but the driver has {found[2]}."
    if found := _NO_PYTHON.search(text):
        return f"there is no {found[1]}{where}, which is the Python that workers are told to use."
    return ""


def _module_missing(detail: str) -> str | None:
    found = _MISSING.search(detail)
    return None if found is None else (found[1] or found[2]).lower()


def _first_lines(text: str) -> str:
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith(("at ", "An error occurred"))]
    return " ".join(wanted[:2])[:400]  # one to five lines of a terminal; the rest is in Spark's log

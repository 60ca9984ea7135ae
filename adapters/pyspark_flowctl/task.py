"""The code that runs on a Spark worker for one bolt.  Spark ships these functions by value.

This code must be able to report that flowctl is missing on a worker, and to extend ``sys.path``
before anything of flowctl is imported.  So it uses only the standard library at module level, and
has no state.  The outcome is *returned*, as JSON: a raised error would be retried by Spark at once,
and be reported as a hundred lines of Java.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class BoltTask(NamedTuple):
    """A bolt's job, of builtin types only (it is shipped as a plain tuple).

    ``endpoint``, ``process``, ``refusal`` and ``reader`` are pickles (the last two b"": none);
    ``paths`` is the driver's ``sys.path`` where the workers share its disk, else empty; ``version``
    is the version of the driver's flowctl; ``job`` is for people who look at Spark's UI.
    """

    bolt: str
    slots: int
    endpoint: bytes
    process: bytes
    paths: tuple[str, ...]
    refusal: bytes = b""
    reader: bytes = b""
    version: str = ""
    job: str = ""


def run_task(*task: Any) -> str:
    """Run one bolt, a :class:`BoltTask`, until its spout ends it.

    Returns the outcome as JSON (see ``outcome.py``).
    """
    bolt, slots, endpoint, process, paths, refusal, reader, version, _ = task
    began_s = time.monotonic()
    kind = "load"
    try:
        if paths:  # so that modules are found as in the driver
            sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
        import msgspec

        from flowctl.bolts.worker import run_bolt

        spout = pickle.loads(endpoint)
        if reader:
            spout = msgspec.structs.replace(spout, reader=pickle.loads(reader))
        arguments = spout, bolt, pickle.loads(process)
        rule = pickle.loads(refusal) if refusal else None
        kind = "error"
        end = functools.partial(end_process, bolt)
        summary = run_bolt(*arguments, slots=slots, refusal=rule, end_process=end)
        kind = "ended" if summary.ended == "end" else "lost"
        outcome: dict[str, Any] = {"kind": kind, "detail": summary.ended}
    except Exception as error:
        outcome = {
            "kind": kind,
            "error": type(error).__name__,
            "detail": getattr(error, "problem", None) or str(error) or repr(error),
            "remedy": getattr(error, "remedy", ""),
            "module": getattr(error, "name", None) if isinstance(error, ImportError) else None,
            "traceback": traceback.format_exc(limit=-8),  # the innermost frames show the fault
        } | _other_version(version, error)
    outcome["lived_s"] = time.monotonic() - began_s
    return json.dumps(outcome)


def end_process(bolt: str, why: str) -> None:
    """End this worker process, and so a call that does not return; Spark starts another."""
    sys.stderr.write(f"flowctl: bolt {bolt} ends its worker process {os.getpid()}: {why}\n")
    sys.stderr.flush()
    os._exit(1)


def _other_version(version: str, error: Exception) -> dict[str, str]:
    """Report that the worker's flowctl differs from the driver's, if that may be the cause.

    Errors of flowctl itself, and missing packages of others, are reported unchanged.
    """
    found = str(getattr(sys.modules.get("flowctl"), "__version__", version))
    missing = (error.name or "") if isinstance(error, ImportError) else "flowctl"
    if not version or found == version or hasattr(error, "problem") or "flowctl" not in missing:
        return {}
    return {
        "error": "FlowctlVersion",
        "detail": f"the worker has flowctl {found}, the driver {version}"
        f" ({type(error).__name__}: {error}).",
        "remedy": f"Run on every Spark worker: pip install flowctl-spark=={version}",
    }


def run_partition(task: tuple[Any, ...], rows: Iterable[Any]) -> Iterator[str]:
    """Run the bolt as a partition of an RDD."""
    for _ in rows:  # Spark reuses a worker that has read all of its input
        pass
    yield run_task(*task)


def run_arrow(task: tuple[Any, ...], batches: Iterable[Any]) -> Iterator[Any]:
    """Run the bolt as a partition of ``mapInArrow``: one row with the column ``outcome``."""
    pyarrow: Any = importlib.import_module("pyarrow")  # untyped
    for _ in batches:
        pass
    yield pyarrow.RecordBatch.from_pydict({"outcome": [run_task(*task)]})

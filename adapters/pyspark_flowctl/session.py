"""The Spark session that bolts run on: the user's, or one that flowctl starts and stops."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import site
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowctl.errors import ConfigError, InfrastructureError, MissingExtraError
from flowctl.instrumentation.text import printable_block
from flowctl.logs import ModuleLogger
from pyspark_flowctl.daemon import ALSO, VARIABLE
from pyspark_flowctl.features import is_connect
from pyspark_flowctl.jobs import ClassicJobs, ConnectJobs, SparkJobs, is_local
from pyspark_flowctl.worker_python import check_worker_python

# -- Start the JVM of a session of our own so that what it prints can be shown properly --------


# The JVM's warning at each start about a module that Spark 4 always requires.
_NOISE = ("WARNING: Using incubator modules",)


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the process-wide JVM unless there is one.

    Its stderr, which local Python workers share, is copied line by line to this process's
    ``sys.stderr``, so that a live view on the terminal can print it above itself.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    launcher: Any = java_gateway  # untyped
    gateway = launcher.launch_gateway(conf, popen_kwargs={"stderr": subprocess.PIPE})
    SparkContext._ensure_initialized(gateway=gateway)
    process: Any = getattr(gateway, "proc", None)  # None under spark-submit
    if process is not None and process.stderr is not None:
        threading.Thread(
            target=_show, args=(process.stderr,), name="flowctl-spark-stderr", daemon=True
        ).start()


def _show(lines: Iterable[bytes]) -> None:
    for line in lines:
        text = line.decode(errors="replace")
        if not text.startswith(_NOISE):
            # Keep reading even without a stderr: the JVM would block on a full pipe.
            with suppress(OSError, ValueError):
                sys.stderr.write(printable_block(text, prefix="") + "\n")


# -- Services where bolts can't work, recognised before anything waits for them ----------------


_DATABRICKS = "Databricks serverless, or Databricks Connect from another network"
# Ends of host names of Spark Connect services whose executors can't reach the client.
_HOSTS = {
    ".databricks.com": _DATABRICKS,
    ".azuredatabricks.net": _DATABRICKS,
    ".snowflakecomputing.com": "Snowpark Connect",
    ".googleapis.com": "Dataproc Serverless",
}


def unsupported(master: str | None, environment: Mapping[str, str]) -> str:
    """Return the unsupported service that ``master`` or the environment belongs to, or "".

    Its executors run in a network of their own and can't connect to the driver, so bolts would be
    waited for in vain until ``start.bolts_timeout_s``.
    """
    # The runtime is client.<version> in a serverless notebook, <version> on a cluster.
    is_serverless = environment.get("IS_SERVERLESS", "").upper() == "TRUE"
    if is_serverless or environment.get("DATABRICKS_RUNTIME_VERSION", "").startswith("client."):
        return "Databricks serverless"
    if environment.get("DATABRICKS_SERVERLESS_COMPUTE_ID"):
        return "Databricks serverless"
    if master is None or not master.startswith("sc://"):
        return ""
    host = urlsplit(master).hostname or ""
    return next((name for end, name in _HOSTS.items() if host.endswith(end)), "")


def refuse_unsupported(master: str | None, environment: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` for a service where bolts can't work."""
    if name := unsupported(master, environment):
        raise ConfigError(
            "master",
            f"{name} is not supported: its executors can't connect to this driver.",
            remedy="Use a classic cluster whose driver runs flowctl (deploy/README.md), or"
            " LocalBolts.",
        )


# -- The Spark session that bolts run on -------------------------------------------------------


_log = ModuleLogger("pyspark_flowctl")

# Restarts of a killed bolt's task by Spark within one job: each takes 0.25 s, while a new job takes
# 0.5 s.  It exceeds the kills of any real run; after them a new job is started.
LOCAL_FAILURES_MAX = 1000

# Number of bolts from which workers of a cluster, too, are forked from flowctl's daemon.  A bolt's
# imports take 0.3 to 0.8 s of CPU time, and all bolts of an executor import at once: 200 bolts on
# two hosts with a core each had not connected after two minutes.  With fewer bolts the gain doesn't
# outweigh that a worker without flowctl can't start at all.
FORK_FROM_BOLTS = 24

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# The JVMs only start Python here and pass no data: the quick compiler and the smallest collector
# save 40 % of the start's CPU time.
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SessionHolder:
    """Finds, opens and closes the session.  Thread-safe.

    Never stops a session that it did not start.
    """

    def __init__(self, *, spark: Any | None, master: str | None, slots_wanted: int) -> None:
        self._lock = threading.Lock()
        self._given = spark
        self._master = master
        self._slots_wanted = slots_wanted
        self._jobs: SparkJobs | None = None
        self._owned: Any | None = None

    def find(self) -> SparkJobs | None:
        """Return the given or active session's jobs; None if a session has to be started.

        Call it from the user's thread: Spark's active session is thread-local.  Raises
        :class:`ConfigError` if ``master`` contradicts the session, or for a service where bolts
        can't work.
        """
        refuse_unsupported(self._master, os.environ)
        with self._lock:
            if self._jobs is None:
                found = self._given or _active_session()
                if found is not None:
                    check_worker_python(getattr(found, "sparkContext", None))
                    self._jobs = jobs_of(found)
                    self._refuse_other_master(self._jobs)
            return self._jobs

    def will_be_local(self) -> bool:
        """Whether the bolts run, or will run, on this machine."""
        if self._jobs is not None:
            return self._jobs.local
        return is_local(self._master or "local")

    def open(self) -> SparkJobs:
        """Return the session's jobs; start a session if necessary (5–9 s).

        Raises :class:`InfrastructureError` if Spark does not start.
        """
        found = self.find()
        if found is not None:
            return found
        with self._lock:
            if self._jobs is None:
                with _sigint_kept():
                    self._owned = _start(self._master, self._slots_wanted)
                self._jobs = jobs_of(self._owned)
            return self._jobs

    @property
    def is_ours(self) -> bool:
        """Whether the session was started here, so that only flowctl runs in it."""
        return self._owned is not None

    def close(self) -> None:
        """Stop the session if it was started here, and forget it."""
        with self._lock:
            owned, self._owned, self._jobs = self._owned, None, None
            if owned is not None:
                with contextlib.suppress(Exception):  # its JVM may be dead already
                    owned.stop()

    def _refuse_other_master(self, jobs: SparkJobs) -> None:
        if self._master is not None and self._master != jobs.master:
            raise ConfigError(
                "master",
                f"{self._master} was asked for, but a Spark session on {jobs.master} is active.",
                remedy="Leave master out to use that session, or stop it first.",
            )


def _active_session() -> Any | None:
    from pyspark.sql import SparkSession

    try:
        active = SparkSession.getActiveSession()
    except Exception:  # Connect without grpc, or a JVM that is gone
        active = None
    if active is not None:
        return active
    # A session is active only in its own thread; one of another thread is the user's, too.
    made = getattr(SparkSession, "_instantiatedSession", None)
    if made is not None and made.sparkContext._jsc is not None:
        return made
    return _active_context()


def _active_context() -> Any | None:
    """Return the process's SparkContext, even if it has no session; None if there is none."""
    from pyspark import SparkContext

    return _ContextOnly(context) if (context := SparkContext._active_spark_context) else None


class _ContextOnly:
    """A SparkContext in place of a session.

    It suffices for bolts, and making the session would take as much CPU time (2 s) as the context.
    """

    def __init__(self, context: Any) -> None:
        self.sparkContext = context

    def stop(self) -> None:
        self.sparkContext.stop()


def jobs_of(spark: Any) -> SparkJobs:
    """Return the :class:`SparkJobs` of a session, classic or Connect."""
    return ConnectJobs(spark) if is_connect(spark) else ClassicJobs(spark)


def _start(master: str | None, slots_wanted: int) -> Any:
    if master is not None and master.startswith("sc://"):
        from pyspark.sql import SparkSession

        try:
            return SparkSession.builder.remote(master).getOrCreate()
        except ImportError as error:  # pandas, pyarrow or grpc is missing for Connect
            raise _not_installed(error) from error
    from pyspark_flowctl.java import ensure_java

    ensure_java()
    try:
        with _workers_use_this_python():
            start_jvm(settings := _settings(master, slots_wanted))
            from pyspark import SparkConf, SparkContext

            conf = SparkConf().setAll(list(settings.items()))
            return _ContextOnly(SparkContext.getOrCreate(conf))
    except ImportError as error:
        raise _not_installed(error) from error
    except Exception as error:
        raise InfrastructureError(
            f"Spark did not start on {master or 'this machine'}: {_cause(str(error))}",
            remedy="Run `flowctl doctor`; the lines above may say more.",
        ) from error


def _cause(text: str) -> str:
    """Return the line with the cause: py4j's first line only names the constructor that failed."""
    lines = text.splitlines() or [""]
    java = (line[2:] for line in lines if line.startswith(": "))
    return next(java, lines[0])


def _not_installed(error: ImportError) -> MissingExtraError:
    return MissingExtraError("spark", f"what Spark needs ({error})", "spark")


def _settings(master: str | None, slots_wanted: int) -> dict[str, str]:
    """Return the settings of a session to start, besides those in ``spark-defaults.conf``.

    Settings in that file are kept, except for the master and the name, which are the run's.
    """
    # One slot more than bolts, so that a job of the user can run too.
    chosen = master or f"local[{slots_wanted + 1},{LOCAL_FAILURES_MAX}]"
    preferred = {
        "spark.ui.enabled": "false",  # saves a second at the start, and a port
        "spark.ui.showConsoleProgress": "false",  # a bolt's job has no progress to show
        "spark.driver.extraJavaOptions": f"{_QUICK_JVM} "
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        "spark.executor.extraJavaOptions": _QUICK_JVM,
    }
    if is_local(chosen):  # works even if the host name doesn't resolve, or with a VPN
        preferred |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        preferred |= _forked_from_ours() | _path_to_ours()
    elif slots_wanted >= FORK_FROM_BOLTS:
        preferred |= _forked_from_ours()
    given = _names_in_defaults()
    kept = {name: value for name, value in preferred.items() if name not in given}
    return {"spark.master": chosen, "spark.app.name": "flowctl", **kept}


def _forked_from_ours() -> dict[str, str]:
    """Return the settings that make Spark fork workers from ``pyspark_flowctl.daemon``."""
    used = [name for name in ALSO if name in sys.modules]
    return {
        "spark.python.daemon.module": "pyspark_flowctl.daemon",
        f"spark.executorEnv.{VARIABLE}": ",".join(used),
    }


def _path_to_ours() -> dict[str, str]:
    """Return the setting by which workers on this machine find this process's flowctl."""
    found = (importlib.util.find_spec(name) for name in ("flowctl", "pyspark_flowctl"))
    files = (spec.origin for spec in found if spec is not None and spec.origin is not None)
    roots = dict.fromkeys(str(Path(file).absolute().parent.parent) for file in files)
    # Installed packages are found anyway, and PYTHONPATH would put them before the standard
    # library.
    installed = {
        *site.getsitepackages(),
        site.getusersitepackages(),
        *sysconfig.get_paths().values(),
    }
    elsewhere = [root for root in roots if root not in installed]
    if not elsewhere:
        return {}
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*elsewhere, *([before] if before else [])])
    return {"spark.executorEnv.PYTHONPATH": path}


def _names_in_defaults() -> set[str]:
    """Return the names that ``spark-defaults.conf`` sets; the file is found by Spark's own rule."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    directory = os.environ.get("SPARK_CONF_DIR") or Path(home, "conf")
    try:
        text = Path(directory, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    # Java's properties: a name ends at a space, "=" or ":".
    found = (re.match(r"\s*([^#!\s=:]+)", line) for line in text.splitlines())
    return {match[1] for match in found if match is not None}


@contextlib.contextmanager
def _workers_use_this_python() -> Iterator[None]:
    """Set PYSPARK_PYTHON to this Python: without it workers use the ``python3`` on PATH."""
    if "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]


@contextlib.contextmanager
def _sigint_kept() -> Iterator[None]:
    """Keep flowctl's handler of Ctrl-C, which saves first: Spark's would cancel all jobs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Spark sets no handler outside the main thread
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

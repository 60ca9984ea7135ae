"""``flowctl doctor --spark``: a row for each executor, and what to change."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import click

import flowctl
from flowctl.config import Settings
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError
from flowctl.instrumentation.text import printable

if TYPE_CHECKING:
    from flowctl.relay_ports import RelayingStore
    from flowctl.runtime.parts import RunnableJob
    from pyspark_flowctl.checkup import Examined, Seen

_PORTS = {
    "redis": 6379,
    "rediss": 6379,
    "postgresql": 5432,
    "mysql": 3306,
    "http": 80,
    "https": 443,
}


def check_spark(
    master: str | None,
    overrides: Mapping[str, str],
    places: dict[str, str],
    *,
    job: str | None,
    paths: Sequence[str] = (),
    timeout_s: float,
) -> int:
    """Examine the executors of ``master``, print the findings; return the exit code.

    ``overrides``: settings besides the job's own; ``places``: addresses that executors try to
    connect to, by name; ``paths``: files that they try to read.  With ``listen.via=redis`` they
    connect to the driver through the place that is called "redis".
    """
    from flowctl.adapters import load_adapter

    load_adapter("pyspark_flowctl.session", "spark").refuse_unsupported(master, os.environ)
    spout = None if job is None else _load(job)
    settings = (Settings() if spout is None else spout.settings).with_overrides(overrides)
    relaying = _relaying(settings, places, spout)
    checkup: Any = load_adapter("pyspark_flowctl.checkup", "spark")
    targets = [checkup.Target(name, *place_of(name, text)) for name, text in places.items()]
    examined = checkup.examine(
        master,
        settings.listen,
        targets,
        process=_process_of(spout),
        paths=paths,
        relaying=relaying,
        timeout_s=timeout_s,
    )
    for line in matrix(examined, list(places)):
        click.echo(printable(line))
    problems = list(dict.fromkeys(problems_of(examined)))
    for problem, remedy in problems:
        click.echo(f"\n{printable(problem)}\n    {printable(remedy)}")
    if not problems:
        click.echo("\nAll executors can run bolts.")
    return EXIT_FAILED if problems else EXIT_FINISHED


def place_of(field: str, text: str) -> tuple[str, int]:
    """Return host and port of a URL or of HOST:PORT."""
    parts = urlsplit(text if "://" in text else f"//{text}")
    try:
        port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise ConfigError(
            f"--{field.partition(' ')[0]}",
            "it names no host and port.",
            remedy="Write HOST:PORT or a URL.",
        )
    return parts.hostname, port


def matrix(examined: Examined, names: Sequence[str]) -> Iterator[str]:
    """Return the rows to print: a head, the driver, and each executor."""
    head = ["where", "python", "flowctl", f"listener {examined.listener}", *names]
    reached = [examined.driver.targets.get(name, "") or "ok" for name in names]
    here = ["driver", platform.python_version(), flowctl.__version__, "listens", *reached]
    rows = [head, here, *(_row(seen, names) for seen in examined.executors)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def _row(seen: Seen, names: Sequence[str]) -> list[str]:
    if seen.failed:
        return [seen.host, "no task runs", "", "", *("" for _ in names)]
    version = "missing" if ":" in seen.flowctl else seen.flowctl
    reached = [seen.targets.get(name, "") or "ok" for name in ("listener", *names)]
    return [f"{seen.host} ({seen.executor})", seen.python, version, *reached]


def problems_of(examined: Examined) -> Iterator[tuple[str, str]]:
    """Return the problems, each with the setting to change."""
    for name, why in examined.driver.targets.items():
        if why:
            yield f"driver: can't reach {_called(name)}: {why}.", "Start it, or check its address."
    for seen in examined.executors:
        if seen.failed:
            yield _failed(seen)
            continue
        if seen.python.split(".")[:2] != platform.python_version().split(".")[:2]:
            yield _other_python(seen.host, seen.python)
        yield from _packages(seen)
        yield from _unreachable(seen, examined)
    yield from _unread(examined)


def _unreachable(seen: Seen, examined: Examined) -> Iterator[tuple[str, str]]:
    """Return the addresses that an executor can't connect to; of a relay, only the first
    obstacle.
    """
    is_cut = examined.is_relayed and (bool(seen.targets.get("redis")) or ":" in seen.flowctl)
    for name, why in seen.targets.items():
        if not why or (name == "listener" and is_cut):
            continue
        if examined.is_relayed and name in {"listener", "redis"}:
            yield _unrelayed(seen.host, name, why, examined.listener)
        else:
            yield _unreached(seen.host, name, why, examined.listener)


def _called(target: str) -> str:
    return "Redis" if target == "redis" else f"the {target}"


def _unrelayed(host: str, name: str, why: str, listener: str) -> tuple[str, str]:
    if name == "redis":
        return (
            f"{host}: can't reach Redis: {why}.",
            "Bolts connect through it (listen.via=redis): open its port for the workers, or give"
            " --redis a name that they can resolve (not localhost).",
        )
    remedy = (
        "They must use Redis as the driver does: see its user's permissions (docs/security.md), and"
        " the certificates on that worker for rediss://."
    )
    if "is not installed" in why:
        remedy = "For that worker's Python: pip install 'flowctl-spark[redis]'"
    return f"{host}: can't reach the listener {listener}: {why.rstrip('.')}.", remedy


def _unread(examined: Examined) -> Iterator[tuple[str, str]]:
    """Return the paths that are not the same file everywhere."""
    ours = examined.driver.paths
    for seen in (examined.driver, *examined.executors):
        for path, found in seen.paths.items():
            if not found.startswith("="):
                yield f"{seen.host}: can't read {path}: {found}.", _path_remedy(path, found)
            elif ours.get(path, "").startswith("=") and found != ours[path]:
                yield (
                    f"{seen.host}: {path} is not the same file there as on the driver.",
                    "Mount the same disk on all workers, or read it from an object store (s3://…).",
                )


def _path_remedy(path: str, why: str) -> str:
    if why.endswith("is not installed"):
        return "Install it for that worker's Python: pip install 'flowctl-spark[parquet]'"
    if "://" in path:
        return (
            "That machine needs credentials of its own (its environment or role), and a way to the"
            " store: sources by reference are read on the workers."
        )
    return (
        "Mount the disk there under the same path and let that worker's user read it, as sources by"
        " reference are read on the workers; or read by value (TextLines)."
    )


def _failed(seen: Seen) -> tuple[str, str]:
    if "PYTHON_VERSION_MISMATCH" in seen.failed:
        return f"{seen.host}: {seen.failed}", _PYTHON_REMEDY
    if "Cannot run program" in seen.failed:
        return f"{seen.host}: {seen.failed}", _PYTHON_REMEDY
    return f"{seen.host}: no task runs there: {seen.failed}", "See the log of that executor."


_PYTHON_REMEDY = (
    f"Install Python {platform.python_version()} there, the driver's, and name its path in"
    " PYSPARK_PYTHON (or spark.pyspark.python); it must be the same path on every worker."
)


def _other_python(host: str, version: str) -> tuple[str, str]:
    return (
        f"{host}: Python {version}, but the driver has {platform.python_version()}.",
        _PYTHON_REMEDY,
    )


def _packages(seen: Seen) -> Iterable[tuple[str, str]]:
    if ":" in seen.flowctl:
        yield (
            f"{seen.host}: flowctl can't be imported ({seen.flowctl}).",
            f"For that worker's Python: pip install flowctl-spark=={flowctl.__version__}",
        )
    elif seen.flowctl != flowctl.__version__:
        yield (
            f"{seen.host}: flowctl {seen.flowctl}, but the driver has {flowctl.__version__}.",
            f"pip install flowctl-spark=={flowctl.__version__} on that worker.",
        )
    elif seen.load:
        yield (
            f"{seen.host}: the job's process can't be loaded ({seen.load}).",
            "Install what it imports on that worker, or ship it with spark.submit.pyFiles.",
        )


def _unreached(host: str, name: str, why: str, listener: str) -> tuple[str, str]:
    if name != "listener":
        return (
            f"{host}: can't reach {_called(name)}: {why}.",
            "Open the way from the workers to it, or use a name that they can resolve."
            if name != "redis"
            else "Bolts don't need Redis, only the driver does; `process` may.",
        )
    remedies = {
        "unknown host": "Set listen.advertise (or spark.driver.host) to a name or address of the"
        " driver that workers can resolve.",
        "no answer": "Open the port in the firewall (a fixed one: listen.port, listen.port_range),"
        " or set listen.advertise to an address of the driver that workers can reach.",
        "refused": "The name leads to another machine, or a firewall rejects: set listen.advertise"
        " to an address of this driver, and open listen.port.",
        "something else answers": "The name leads to another machine: set listen.advertise to an"
        " address of this driver.",
    }
    remedy = remedies.get(why, "Set listen.advertise to an address that workers can reach.")
    return f"{host}: can't reach the listener at {listener}: {why}.", remedy


def _load(job: str) -> RunnableJob:
    from flowctl.cli.find_job import load_spout

    return load_spout(job)


def _process_of(spout: RunnableJob | None) -> bytes:
    if spout is None:
        return b""
    from flowctl.adapters import load_adapter

    bolts: Any = spout.bolts
    if not hasattr(bolts, "process"):
        raise ConfigError(
            "JOB",
            f"{type(bolts).__name__} do not run on Spark.",
            remedy="Use SparkBolts in the job.",
        )
    shipped: bytes = load_adapter("pyspark_flowctl.shipping", "spark").ship(bolts.process)
    return shipped


def _relaying(
    settings: Settings, places: dict[str, str], spout: RunnableJob | None
) -> RelayingStore | None:
    """Return the store whose server bolts connect through; None if they connect to the driver
    directly.

    Adds the address in FLOWCTL_REDIS_URL to ``places`` if they name no other.
    """
    if settings.listen.via == "tcp":
        return None
    from flowctl.adapters import load_adapter
    from flowctl.runtime.listening import check_via

    url = places.setdefault("redis", os.environ.get("FLOWCTL_REDIS_URL", ""))
    if not url:
        raise ConfigError(
            "--redis",
            "is missing, and with listen.via=redis bolts connect through it.",
            remedy="Give --redis URL, as `flowctl run` gets it, or set FLOWCTL_REDIS_URL.",
        )
    store: Any = load_adapter("flowctl_redis", "redis").RedisCheckpointStore(url)
    if spout is not None:
        check_via(settings, spout.producer, store)
    return cast("RelayingStore", store)

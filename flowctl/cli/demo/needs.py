"""What the demo needs installed, looked for before it makes its input."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Final

from flowctl.cli import doctor
from flowctl.errors import ConfigError

_EXTRAS: Final = {"pyspark": "spark", "java": "java", "redis": "redis", "server": "valkey"}


def check_installed(*, on_spark: bool, by_ranges: bool) -> None:
    """Raise :class:`ConfigError` that names all that is missing, and one command that installs it.

    ``by_ranges``: the demo of rows, which needs pyarrow in place of Redis.
    """
    missing = dict(_missing(on_spark=on_spark, by_ranges=by_ranges))
    if missing:
        raise ConfigError(
            "demo",
            "; ".join(missing.values()) + ".",
            remedy=f"Run: pip install 'flowctl-spark[{','.join(missing)}]'",
        )


def _missing(*, on_spark: bool, by_ranges: bool) -> Iterator[tuple[str, str]]:
    if by_ranges:
        if importlib.util.find_spec("pyarrow") is None:
            yield "parquet", "pyarrow: not installed"
        checks = []
    else:
        checks = [doctor.check_redis_client, doctor.check_server]
    if on_spark:
        checks += [doctor.check_pyspark, doctor.check_java]
    for check in checks:
        found = check()
        if not found.ok:
            yield _EXTRAS[found.name], f"{found.name}: {found.seen.rstrip('.')}"

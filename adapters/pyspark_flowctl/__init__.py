"""flowctl on Spark: ``from pyspark_flowctl import SparkBolts``.

Spark imports every installed module named ``pyspark_*`` when it looks up a data source, on the
driver and in workers: this file imports nothing and cannot fail.  Names are loaded on first use,
also ``DefaultSource``, by which Spark finds ``format("flowctl")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_flowctl.apply_rows import apply
    from pyspark_flowctl.bolts import SparkBolts
    from pyspark_flowctl.failed_rows import failures, redrive
    from pyspark_flowctl.java import JavaHome, ensure_java
    from pyspark_flowctl.sinks import flow_batch, flow_sink

__all__ = [
    "JavaHome",
    "SparkBolts",
    "apply",
    "ensure_java",
    "failures",
    "flow_batch",
    "flow_sink",
    "redrive",
]

_ELSEWHERE = {
    "DefaultSource": "pyspark_flowctl.data_source",  # the name that Spark looks for in each package
    "JavaHome": "pyspark_flowctl.java",
    "SparkBolts": "pyspark_flowctl.bolts",
    "apply": "pyspark_flowctl.apply_rows",
    "ensure_java": "pyspark_flowctl.java",
    "failures": "pyspark_flowctl.failed_rows",
    "flow_batch": "pyspark_flowctl.sinks",
    "flow_sink": "pyspark_flowctl.sinks",
    "redrive": "pyspark_flowctl.failed_rows",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use and keep it."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "DefaultSource":
        return _default_source()
    try:
        value = getattr(import_module(_ELSEWHERE[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        from flowctl.errors import MissingExtraError

        raise MissingExtraError(name, "pyspark", "spark") from None
    globals()[name] = value
    return value


def _default_source() -> Any:
    """Return the class of ``format("flowctl")``; raise AttributeError if it can't be loaded.

    Spark asks for it whatever format a query uses: any other error here would break all queries.
    """
    from importlib import import_module

    try:
        return import_module("pyspark_flowctl.data_source").FlowctlSource
    except Exception as error:
        raise AttributeError(f"format('flowctl') can't be loaded: {error}") from error


def __dir__() -> list[str]:
    return sorted(__all__)

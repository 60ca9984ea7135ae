"""The features of the installed Spark, checked in this module only, when a feature is used.

Spark 3.5 to 4.3 are checked for what they have, not by version number: a missing feature is
reported in one line, with an alternative.  docs/versions.md has the table.
"""

from __future__ import annotations

import importlib.util
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from flowctl.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Javas(NamedTuple):
    """The versions of Java that a Spark runs on; ``newest`` None means no known bound.

    ``asks_for_vector`` tells whether it starts every JVM with the module ``jdk.incubator.vector``.
    """

    oldest: int
    newest: int | None
    asks_for_vector: bool

    def __str__(self) -> str:
        return "8, 11 or 17" if self.oldest < 17 else "17 or 21"


def javas() -> Javas:
    """Return the Java versions for the installed Spark; without one, for the newest Spark.

    Spark's Python code doesn't tell them, so this goes by its version number.
    """
    if spark_version().startswith("3."):
        return Javas(8, 17, asks_for_vector=False)
    return Javas(17, None, asks_for_vector=True)


def spark_version() -> str:
    """Return the version of the Spark that this Python imports, "" if there is none."""
    try:
        import pyspark
    except ImportError:
        return ""
    return str(pyspark.__version__)


def is_connect(given: Any) -> bool:
    """Whether a session or a DataFrame is one of Spark Connect."""
    return type(given).__module__.startswith("pyspark.sql.connect")


def converts_arrow() -> bool:
    """Whether workers of a classic session can make Rows of Arrow batches (Spark 4.0)."""
    return importlib.util.find_spec("pyspark.sql.conversion") is not None


def arrow_converter() -> Any:
    """Return Spark's converter from Arrow to Rows; before Spark 4.0 it is part of Spark Connect."""
    if converts_arrow():
        from pyspark.sql.conversion import ArrowTableToRowsConversion
    else:
        from pyspark.sql.connect.conversion import (  # type: ignore[no-redef,attr-defined,unused-ignore]
            ArrowTableToRowsConversion,
        )
    return ArrowTableToRowsConversion


def arrow_of_rows(rows: list[Any], kind: StructType) -> Any:
    """Return ``rows`` as a ``pyarrow.Table``, as Spark makes one; its errors pass through.

    Raises ``ImportError`` before Spark 4.0.
    """
    from pyspark.sql.conversion import LocalDataToArrowConversion

    return LocalDataToArrowConversion.convert(rows, kind, False)


def arrow_stream_writer() -> Any:
    """Return the class of writers of streams that get columns; None before Spark 4.1."""
    from pyspark.sql import datasource

    return getattr(datasource, "DataSourceStreamArrowWriter", None)


def arrow_schema(struct: StructType) -> Any:
    """Return ``struct`` as Arrow's schema, timestamps as instants in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    make: Any = to_arrow_schema
    # Earlier versions of Spark have no other zone than UTC.
    has_zone = "timezone" in inspect.signature(make).parameters
    return make(struct, timezone="UTC") if has_zone else make(struct)


def struct_of(spark: Any, ddl: str) -> Any:
    """Return the type of ``ddl`` ("id long, label string"); Spark's errors pass through."""
    from pyspark.sql.types import StructType

    if hasattr(StructType, "fromDDL"):
        return StructType.fromDDL(ddl)
    return spark.createDataFrame([], ddl).schema


def check_reads_streams() -> None:
    """Raise :class:`ConfigError` if streams can't choose their batch size (before Spark 4.2)."""
    try:
        from pyspark.sql.streaming.datasource import ReadLimit  # noqa: F401
    except ImportError:
        raise ConfigError(
            "format",
            f"readStream.format('flowctl') needs Spark 4.2 or later; this is {spark_version()}.",
            remedy="Run the same producer with FlowControlSpout and SparkBolts, or read with"
            " Spark's own source and write with foreachBatch(flow_batch(…)).",
        ) from None

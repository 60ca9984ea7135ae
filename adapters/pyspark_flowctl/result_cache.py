"""Results by key that jobs of ``apply`` keep for each other, in a directory.

Each job adds its results as a *part*: a directory of Parquet, and then a marker beside it, which
makes it count.  Parts are merged when there are many, when they have become too old, or too large.
A function, its values, and the columns of key and result each have a directory of their own.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowctl.adapters import load_adapter
from pyspark_flowctl.dataframes import as_it_is, instants, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AT: Final = "_flowctl_at"  # unix milliseconds when a result was added
_MARKER: Final = ".added"
_DAY_MS: Final = 86_400_000
_GB: Final = 1_000_000_000
# A look-up opens each part; so many cost it less than a merge costs a job.
_PARTS_MAX: Final = 16
# Tries to read: another job may merge the parts meanwhile, each time into a newer one.
_READS_MAX: Final = 5
_DIGEST_CHARS: Final = 16


class Bounds(NamedTuple):
    """How long a result counts, and how large the results of one function may be; None: any."""

    days: float | None = None
    gb: float | None = None


class _Part(NamedTuple):
    name: str
    at_unix_ms: int


class ResultCache:
    """The results at ``url`` of the function of ``job``.  For one thread.

    ``whole`` are the columns of key and result.
    """

    def __init__(self, spark: SparkSession, url: str, job: Any, whole: Any, bounds: Bounds) -> None:
        self._spark = spark
        self._place = load_adapter("flowctl_apply._places", "parquet").place_at(url)
        self._job = job
        self._key: list[str] = job.key
        self._whole = whole
        self._bounds = bounds
        self._now_ms = int(time.time() * 1000)
        told = (job.code, sorted(job.uses.items()), job.key, str(job.schema))
        self._directory = hashlib.sha256(repr(told).encode()).hexdigest()[:_DIGEST_CHARS]

    def read(self, use: Callable[[DataFrame], None]) -> None:
        """Call ``use`` with the results that count, one for each key; again if files went away."""
        for tries_left in reversed(range(_READS_MAX)):
            parts = self._parts()
            try:
                return use(self._newest(parts))
            except Exception:  # Spark's errors of files have many types
                if not tries_left or self._parts() == parts:
                    raise
        return None

    def add(self, results: DataFrame, known: Any) -> None:
        """Keep the ``results`` of the job's round ``known``, unless that was done before.

        Another function's are not kept: of a job that went on with ``keep_results``.
        """
        if known.is_mixed or self._job.is_another(known):
            return
        told = hashlib.sha256(f"{known.run} {known.round}".encode()).hexdigest()
        parts = self._parts()
        if any(part.name.endswith(told[:_DIGEST_CHARS]) for part in parts):
            return
        from pyspark.sql import functions as F

        self._put(results.withColumn(_AT, F.lit(self._now_ms)), told)
        self._tidy()

    def _newest(self, parts: list[_Part]) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType, StructType

        kept = StructType(list(self._whole)).add(_AT, LongType())
        if not parts:
            return self._spark.createDataFrame([], kept)
        found = self._spark.read.schema(kept).parquet(*(self._url(part.name) for part in parts))
        if self._bounds.days is not None:
            found = found.where(F.col(_AT) >= self._now_ms - int(self._bounds.days * _DAY_MS))
        newest = Window.partitionBy(*map(quoted, self._key)).orderBy(F.desc(_AT))
        ranked = found.withColumn("_flowctl_rank", F.row_number().over(newest))
        return ranked.where("_flowctl_rank = 1").drop("_flowctl_rank")

    def _put(self, frame: DataFrame, mark: str) -> None:
        name = f"{self._now_ms:013d}-{secrets.token_hex(4)}-{mark[:_DIGEST_CHARS]}"
        with instants(self._spark):
            frame.write.parquet(self._place.path(f"{self._directory}/{name}"))
        self._place.put(f"{self._directory}/{name}{_MARKER}", b"")

    def _tidy(self) -> None:
        """Merge the parts if there is a reason; leave out what is too old, or too much."""
        parts, bounds = self._parts(), self._bounds
        files = self._place.names(self._directory, recursive=True)
        size_bytes = sum(file.size_bytes for file in files)
        room_bytes = None if bounds.gb is None else bounds.gb * _GB
        oldest_ms = min(part.at_unix_ms for part in parts)
        is_old = bounds.days is not None and oldest_ms < self._now_ms - bounds.days * _DAY_MS
        is_large = room_bytes is not None and size_bytes > room_bytes
        if len(parts) <= _PARTS_MAX and not is_old and not is_large:
            return
        from pyspark.sql import functions as F

        found = self._newest(parts)
        if room_bytes is not None and is_large:
            share = 0.8 * room_bytes / size_bytes  # or the next job would have to do it again
            found = found.orderBy(F.desc(_AT)).limit(int(found.count() * share))
        self._put(found, f"merged{secrets.token_hex(5)}")
        for part in parts:  # the marker first: then nobody begins to read it
            self._place.delete([f"{self._directory}/{part.name}{_MARKER}"])
            self._place.delete_directory(f"{self._directory}/{part.name}")

    def _parts(self) -> list[_Part]:
        names = [file.name.rpartition("/")[2] for file in self._place.names(self._directory)]
        found = [name.removesuffix(_MARKER) for name in names if name.endswith(_MARKER)]
        return [_Part(name, int(name.partition("-")[0])) for name in found]

    def _url(self, name: str) -> str:
        return as_it_is(self._place.path(f"{self._directory}/{name}"))

"""Dead letters as a DataFrame: the rows that were not written, with their own columns and types."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowctl.adapters import dead_letter_of
from flowctl.arguments import check_arguments
from flowctl.core.letters import Letter
from flowctl.delivery.tally import Tally
from flowctl.errors import ConfigError, SourceError
from flowctl.failure.texts import error_text
from flowctl.logs import ModuleLogger
from flowctl.ports import ReadableDeadLetter
from pyspark_flowctl.arrow_rows import row_of
from pyspark_flowctl.dataframes import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    class AppliedFrame(DataFrame):
        """What ``apply`` returns: a DataFrame of results, and the rows that have none."""

        @property
        def failures(self) -> DataFrame:
            """The rows that became dead letters, as :func:`failures` gives them; read when asked.

            Raises :class:`ConfigError` without a dead letter that can be read.
            """


_log = ModuleLogger("pyspark_flowctl")
_WHY: Final = 4  # columns of :func:`why_of`
# How a reason begins that is an exception: its class.
_ERROR: Final = re.compile(r"(?:rejected: )?([A-Z]\w*)(?=:|$)")
_GIVE: Final = "Give dead_letter=DIRECTORY, one that the driver and all workers see"


class Written(Tally, kw_only=True, dict=True):
    """The counts of a ``write(df)``, and the rows of it that are not written."""

    @classmethod
    def into(cls, failures: Callable[[int], DataFrame]) -> Written:
        """Return counts of nothing; ``failures`` gets how many rows became letters."""
        made = cls()
        made.__dict__["failures"] = failures
        return made

    @property
    def failures(self) -> DataFrame:
        """The rows that became dead letters in this write, as :func:`failures` gives them.

        They are read each time this is asked: those that were sent again or dropped since are no
        longer there.  With ``run=``, those that an earlier write of this run left out belong to it.
        Raises :class:`ConfigError` without a dead letter that can be read.
        """
        read = self.__dict__.get("failures")
        if read is None:
            raise ConfigError(
                "failures",
                "a copy of the counts does not know them.",
                remedy="Ask what write(df) returned, or failures(df, name=…, dead_letter=…).",
            )
        found: DataFrame = read(self.kept)
        return found


@check_arguments("name")
def failures(
    df: DataFrame, *, name: str, dead_letter: str | Path | ReadableDeadLetter
) -> DataFrame:
    """Return the open dead letters of the job ``name`` as a DataFrame.

    ``df`` is the DataFrame whose rows were written, or given to ``apply`` (with the columns that it
    read); only its schema and session are used.  The result has its columns, then ``reason``,
    ``error`` (the class of the exception, null if there was none), ``attempts`` and ``at`` (when
    the row was left out last).  A column of ``df`` by such a name keeps it, and ours begins with
    ``_``.  Letters are read now, on the driver.  Raises :class:`ConfigError`, and
    :class:`SourceError` if letters can't be read.
    """
    check_frame(df)
    return _frame(df, name, _read(_readable(dead_letter), name))


@check_arguments("name")
def redrive(rows: DataFrame, *, name: str, dead_letter: str | Path | ReadableDeadLetter) -> int:
    """Mark letters of the job ``name``, so that its next run does them again; return their number.

    ``rows`` are failures as :func:`failures` or ``.failures`` gives them, or some of them, with all
    columns.  The next ``write`` or ``apply`` with this name and dead letter does them, and removes
    the letters.  Raises :class:`ConfigError` for rows that are no letters, such as corrected ones:
    write these under a name of their own.
    """
    check_frame(rows, "rows")
    port = _readable(dead_letter)
    if not hasattr(port, "file_of"):
        raise ConfigError(
            "dead_letter",
            f"letters of {type(port).__name__} can't be marked here.",
            remedy=f"{_GIVE}.",
        )
    letters = [letter for letter in _read(port, name) if letter.is_exact]
    given, found = _comparable(rows, letters)
    if strange := given.difference(found):
        raise ConfigError(
            "rows",
            f"{len(strange)} of them are no letters of {name!r}, such as {min(strange)[:200]}.",
            remedy="Give failures as they are. Rows that you have corrected are new ones: write"
            " them under a name of their own.",
        )
    chosen = {one.id for one, row in zip(letters, found, strict=True) if row in given}
    marked: int = port.file_of(name).redrive(name, chosen)[0]
    return marked


def _comparable(rows: DataFrame, letters: Sequence[Letter]) -> tuple[set[str], list[str]]:
    """Return ``rows`` and ``letters`` as texts of what both have, which are equal if they are.

    Letters of keys have the columns of the key alone.
    """
    from pyspark.sql.types import IntegerType, StructType

    fields = list(rows.schema)
    why = fields[-_WHY:]
    if [one.dataType for one in why] != [one.dataType for one in why_of([])]:
        raise ConfigError(
            "rows",
            "they do not end with the columns reason, error, attempts and at.",
            remedy="Give failures(df, name=…, dead_letter=…), or some of its rows.",
        )
    known = {name for one in letters if isinstance(one.value, dict) for name in one.value}
    own = [one for one in fields[:-_WHY] if one.name in known]
    names = [one.name for one in (*own, *why)]
    given = {repr(tuple(row)) for row in rows.select(*map(quoted, names)).collect()}
    numbered = StructType([*own, *why]).add("_flowctl_n", IntegerType())
    made = [(*_row(one, StructType(own)), n) for n, one in enumerate(letters)]
    frame = rows.sparkSession.createDataFrame(made, numbered).orderBy("_flowctl_n")
    return given, [repr(tuple(row)) for row in frame.drop("_flowctl_n").collect()]


def check_frame(df: Any, field: str = "df") -> None:
    """Raise :class:`ConfigError` if ``df`` is no DataFrame of Spark."""
    if not hasattr(df, "mapInArrow"):
        raise ConfigError(
            field,
            f"it is not a DataFrame of Spark, but a {type(df).__name__} of {type(df).__module__}.",
            remedy="Make one of it: spark.createDataFrame(…).",
        )


def failures_of_write(
    df: DataFrame, job: str, dead_letter: Any, partitions: Collection[str], kept: int
) -> DataFrame:
    """Return letters of ``job`` in ``partitions``; ``kept`` is how many there were at least."""
    letters = [one for one in _read(_readable(dead_letter), job) if one.partition in partitions]
    if len(letters) < kept:
        _log.warning(
            "letters_gone",
            job=job,
            kept=kept,
            found=len(letters),
            remedy="The others were sent again or dropped since; if not, the driver does not see"
            " the directory into which the workers write.",
        )
    return _frame(df, job, letters)


def failures_in(job: Any, df: DataFrame, options: Mapping[str, Any]) -> DataFrame:
    """Return the letters of what the ``job`` of ``apply`` reads; ``df`` has its columns."""
    port = _readable(options["dead_letter"])
    description = job.results.description()
    read = set(description.files) if description else set()
    letters = [one for one in _read(port, job.name) if one.partition in read]
    return _frame(df, job.name, letters)


def _readable(given: Any) -> ReadableDeadLetter:
    port = dead_letter_of(given)
    if port is None:
        raise ConfigError("dead_letter", "rows that failed are kept nowhere.", remedy=f"{_GIVE}.")
    if not isinstance(port, ReadableDeadLetter):
        raise ConfigError(
            "dead_letter",
            f"letters of {type(port).__name__} can't be read: it has no letters(job).",
            remedy=f"{_GIVE}, or add that method.",
        )
    return port


def _read(port: ReadableDeadLetter, job: str) -> Sequence[Letter]:
    try:
        return port.letters(job)
    except OSError as error:
        raise SourceError(
            f"the letters of {job} can't be read: {error_text(error)}.", remedy=f"{_GIVE}."
        ) from error


def _frame(df: DataFrame, job: str, letters: Sequence[Letter]) -> DataFrame:
    from pyspark.sql.types import StructType

    if shown := sum(not letter.is_exact for letter in letters):
        raise SourceError(
            f"{shown} of the letters of {job} are kept as text only, which can't be made rows.",
            remedy=f"Look at them: flowctl dlq show {job}. Drop them, then the others can be read.",
        )

    schema = StructType([*df.schema, *why_of(df.columns)])
    return df.sparkSession.createDataFrame([_row(one, df.schema) for one in letters], schema)


def why_of(taken: Sequence[str]) -> StructType:
    """Return the columns that say why a row failed; their names are not ``taken``."""
    from pyspark.sql.types import IntegerType, StringType, StructType, TimestampType

    names, made = {name.lower() for name in taken}, StructType()
    made.add(_free("reason", names), StringType(), nullable=False)
    made.add(_free("error", names), StringType(), nullable=True)
    made.add(_free("attempts", names), IntegerType(), nullable=False)
    return made.add(_free("at", names), TimestampType(), nullable=False)


def _error_in(reason: str) -> str | None:
    found = _ERROR.match(reason)
    return found[1] if found else None


def with_failures(frame: DataFrame, read: Callable[[], DataFrame]) -> AppliedFrame:
    """Return ``frame`` itself, with the property ``failures``, which calls ``read``."""
    kind: Any = type("AppliedFrame", (type(frame),), {"failures": property(lambda _: read())})
    made: Any = frame
    made.__class__ = kind
    applied: AppliedFrame = made
    return applied


def _free(name: str, taken: Collection[str]) -> str:
    return name if name not in taken else _free(f"_{name}", taken)


def _row(letter: Letter, schema: StructType) -> tuple[Any, ...]:
    value = letter.value
    if not isinstance(value, dict) or set(value) != set(schema.names):
        columns = ", ".join(map(repr, value)) if isinstance(value, dict) else "none"
        raise ConfigError(
            "df",
            f"a row of {letter.job} that failed has other columns: {columns}.",
            remedy="Give the DataFrame that was written, with these columns.",
        )
    # A run that reads rows itself gives moments in UTC, a task of Spark those of its process.
    zone = None if letter.epoch is None else timezone.utc
    own = (row_of(value[field.name], field.dataType, zone=zone) for field in schema)
    at = datetime.fromtimestamp(letter.at_unix_ms / 1000, timezone.utc)
    return *own, letter.reason, _error_in(letter.reason), letter.attempts, at

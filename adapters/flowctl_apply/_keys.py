"""Pay once: a job over different keys, each of which is a row, and has one row as its result.

Each round does the keys that no round before has had; which these are, Spark finds out
(:mod:`pyspark_flowctl.keyed_rows`).  A key and its result stand in one row of a file of results.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowctl.errors import ConfigError, UnrunnableError
from flowctl.instrumentation.numbers import counted
from flowctl_apply._job import Input, Job, described, next_round
from flowctl_apply._results import Description, ResultFile
from flowctl_apply._row_writer import Rows
from flowctl_apply._rows import arrow, table_of

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch

_SHAPE: Final = "keys"  # of the input, for which every DataFrame is one that has grown
_OF_KEY: Final = "Return, or yield, one row for each key, in their order; or reject the key."


class KeyedRows(Rows):
    """The rows of a result file: keys, with what ``fn`` made of them.  For one thread at a time.

    ``key`` and ``result`` are Arrow schemas; ``hidden`` are the columns that ``fn`` does not see.
    """

    def __init__(self, key: Any, result: Any, hidden: Sequence[str]) -> None:
        super().__init__(arrow().schema([*key, *result]))
        self._key = key
        self._result = result
        self._hidden = frozenset(hidden)
        self._has_worked = False

    def table(self, made: Any, batch: Batch) -> Any:
        """Return the result ``made`` of ``batch`` beside its keys, but for rejected ones."""
        result = table_of(made, self._result)
        taken = [index for index in range(len(batch)) if index not in batch.rejected]
        if result.num_rows != len(taken):
            raise UnrunnableError(
                "fn",
                f"it returned {counted(result.num_rows, 'row')} for {counted(len(taken), 'key')}"
                " that it did not reject.",
                remedy=_OF_KEY,
            )
        keys = arrow().Table.from_batches([batch.to_arrow()]).select(self._key.names)
        keys = table_of(keys.take(arrow().array(taken, arrow().int64())), self._key)
        self._has_worked = True
        columns = [*keys.columns, *result.columns]
        return arrow().Table.from_arrays(columns, schema=self.schema)

    @contextmanager
    def explained(self, field: str = "fn") -> Iterator[None]:
        """Say of a column that the function ``field`` does not see why that is so."""
        try:
            yield
        except (AttributeError, KeyError, ValueError) as error:
            asked = error.__cause__ if isinstance(error, ValueError) else error
            hidden = next((name for name in self._hidden if _asks_for(asked, name)), None)
            # Once it has worked, something else of the user's has no such key.
            if hidden is None or self._has_worked:
                raise
            seen = ", ".join(map(repr, self._key.names))
            raise UnrunnableError(
                field,
                f"it asked for the column {hidden!r}, and with key= it sees those of the key alone:"
                f" {seen}.",
                remedy="Rows with the same key get the same result. If it depends on this column,"
                " add it to the key.",
            ) from error


def _asks_for(error: BaseException | None, name: str) -> bool:
    if not isinstance(error, AttributeError | KeyError):
        return False
    said = str(error)
    return error.args[:1] == (name,) or repr(name) in said or f'"{name}"' in said


class KeyedJob(Job):
    """A job over keys.  ``key`` and ``schema`` are Arrow schemas; ``hidden`` as in KeyedRows."""

    columns_are = "key"

    def __init__(self, fn: Any, schema: Any, key: Any, hidden: Sequence[str], **how: Any) -> None:
        rows = KeyedRows(key, schema, hidden)
        super().__init__(fn, rows.schema, **how)
        self._rows = rows
        self.key: list[str] = list(key.names)

    def rows(self) -> KeyedRows:
        """See :class:`Job`."""
        return self._rows

    def known(self) -> Description | None:
        """Return the description of the newest round; raise :class:`ConfigError` if it is another.

        That is: of another job.
        """
        known = self.results.description()
        if known is not None:
            if known.shape != _SHAPE:
                raise ConfigError(
                    "key",
                    f"{self.name!r} in {self.results.place.url} was begun without a key.",
                    remedy="Give another name or out.",
                )
            self._check_same(known, self.given(known))
        return known

    def given(self, known: Description) -> Input:
        """Return the keys of all rounds as the job's input."""
        return Input(known.source, known.paths, None, self.key, shape=_SHAPE)

    def new_round(self, known: Description | None) -> str:
        """Return the name of a new directory for what the next round reads.

        Until the round is begun, no sweep of another driver removes it.
        """
        number = 0 if known is None else known.round + 1
        return f"round-{number}-{secrets.token_hex(8)}"

    def add(
        self, known: Description | None, copy: str, had: Sequence[ResultFile] = ()
    ) -> Description:
        """Begin a round over the files in the directory ``keys`` of ``copy``.

        ``known`` is the finished round before (None: there is none); ``had`` are results that need
        no work.  Returns another driver's round if that was first.
        """
        place = self.results.place
        found = place.names(f"{self.results.directory}/{copy}/keys")
        paths = [place.own_path(one.name) for one in found if one.name.endswith(".parquet")]
        if known is None:
            begun = described(self, Input(_SHAPE, paths, None, self.key, shape=_SHAPE))
            begun = msgspec.structs.replace(begun, copies=[copy])
        else:
            finished = self.results.finished()
            if finished is None:  # another driver has begun it
                return self.results.description() or known
            begun = next_round(known, finished, paths=paths, copy=copy)
        return self.results.begin(msgspec.structs.replace(begun, settled=[*begun.settled, *had]))

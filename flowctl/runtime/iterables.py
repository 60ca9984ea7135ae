"""Records: the values of any iterable as a source."""

from __future__ import annotations

import hashlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from typing import Any, Final, NamedTuple

import msgspec

from flowctl.arguments import check_arguments
from flowctl.core.records import Checkpoint, Record
from flowctl.errors import ConfigError, SourceError, with_article
from flowctl.ports import SourceChunk, SourceProgress

# A poll has some 100 ms: a slow generator returns what it has produced by then.
_POLL_S: Final = 0.05
_NEW_ITERATOR: Final = "Give a list, or a function that returns a new iterator: Records(read_rows)."


_OTHER_SOURCE: Final = (
    "Another source used this job's name: choose another name or clear the checkpoint."
)
_OTHER_VALUES: Final = (
    "A job continues after the values that are done, so it would skip these. For other values give"
    " the job another name, or clear its checkpoint (flowctl checkpoint clear JOB, with --sink"
    " FILE.py:SINK if an SqlSink writes them). If values differ from run to run, such as times, use"
    " Records(values, compare=False)."
)
# Length of a digest: enough to tell two values apart, short enough to be saved with each
# checkpoint.
_MARK_BYTES: Final = 8


class _Known(NamedTuple):
    """What an earlier run saved of the values: how many it had read, and digests of two of them."""

    values: int
    first: str
    last: str


class Records:
    """The values of an iterable, one record each: a :class:`flowctl.ports.FlowProducer`.

    ``values`` is a list or anything else that can be iterated more than once, or a function
    without arguments, such as a generator function, that returns an iterator.  There is one
    partition; the position of a record is its place in ``values``, from 0.

    A resumed run skips the values that were processed, so ``values`` must give the same values in
    the same order; more may follow at the end.  A generator is read again up to there.  An iterator
    that can be read only once serves one run; a second run is refused.

    A digest of the first value and of the last one that was read is saved with the checkpoint.  A
    later run that gives other values in their places, or fewer, is refused with
    :class:`SourceError`, because it would skip new values as done.  ``compare=False`` turns that
    off, for values that differ in each run.

    If ``values`` has a length, ``progress`` reports how much of it was read.
    """

    @check_arguments("partition", "compare")
    def __init__(
        self,
        values: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        partition: str = "records",
        compare: bool = True,
    ) -> None:
        _check(values)
        if not partition:
            raise ConfigError("partition", "is empty.", remedy="Give a name, or leave it out.")
        self._values = values
        self._partition = partition
        self._rest: Iterator[Any] = iter(())
        self._read_from: Iterator[Any] | None = None  # the iterator that was read last
        self._error: BaseException | None = None  # raised by ``values``; kept for the next poll
        # positions: of the next value, and of the first that is not done
        self._next = self._start = 0
        self._compare = compare
        # From an earlier run: how many values it had read, digests of the first and of the last.
        self._known: _Known | None = None
        self._known_is_end = False
        self._first_mark = self._last_mark = ""
        # The last value, and its digest if the same object came twice.
        self._object: Any = None
        self._object_mark = ""
        if isinstance(values, Sized):
            self.progress: Callable[[], SourceProgress] = self._progress

    def partitions(self) -> Sequence[str]:
        """The one partition."""
        return [self._partition]

    def open(self, checkpoint: Checkpoint) -> None:
        """Prepare to read on; :class:`SourceError` for an iterator that was read before."""
        self.close()
        self._error = None
        self._start = self._first_undone(checkpoint)
        self._known = self._known_values(checkpoint)
        self._first_mark = self._last_mark = ""
        self._next = 0
        values = self._values
        if isinstance(values, list | tuple | range):  # no need to iterate over what is done
            self._next = self._start
            self._check_count(len(values))
            for place in self._known_places():
                self._recognise(place, values[place])
            self._rest = (values[place] for place in range(self._next, len(values)))
            return
        self._rest = iter(values if isinstance(values, Iterable) else values())
        if self._rest is self._read_from:
            raise SourceError(
                f"the producer's {type(self._rest).__name__} can be read once, and an earlier run"
                " read from it.",
                remedy=_NEW_ITERATOR,
            )

    def _known_values(self, checkpoint: Checkpoint) -> _Known | None:
        """Return what to compare with; None if no values are done, so none would be skipped."""
        saved = checkpoint.partitions.get(self._partition)
        if saved is None or not self._compare or not saved.records_done:
            return None
        self._known_is_end = saved.end is not None
        known = saved.end if self._known_is_end else saved.mark
        if not isinstance(known, tuple) or len(known) != 3 or not isinstance(known[0], int):
            return None
        # After a rewind the end is not where the job goes on.
        if known[0] < self._start or (self._known_is_end and known[0] != self._start):
            return None
        return _Known(known[0], str(known[1]), str(known[2]))

    def _known_places(self) -> set[int]:
        """Return the positions of the values that are compared, or by which the end is
        recognised.
        """
        places = {0, self._start - 1} if self._start else set()
        return places | {0, self._known.values - 1} if self._known else places

    def _recognise(self, place: int, value: Any) -> None:
        """Note the first and the last done value; raise if an earlier run had other values
        there.
        """
        mark, known = _mark_of(value), self._known
        if place == 0:
            self._first_mark = mark
        if place == self._start - 1:
            self._last_mark = mark
        if known is not None and (
            (place == 0 and mark != known.first)
            or (place == known.values - 1 and mark != known.last)
        ):
            raise SourceError(
                f"{self._partition}: the value at position {place} is not the one that an earlier"
                " run read there.",
                remedy=_OTHER_VALUES,
            )

    def _check_count(self, there: int) -> None:
        """Raise if there are fewer values than an earlier run read."""
        if self._known is not None and there < self._known.values:
            raise SourceError(
                f"{self._partition}: there are {there} values, but an earlier run, which did some"
                f" of them, read {self._known.values}.",
                remedy=_OTHER_VALUES,
            )

    def _first_undone(self, checkpoint: Checkpoint) -> int:
        saved = checkpoint.partitions.get(self._partition)
        position = saved.position if saved is not None else None
        if position is None:
            return 0
        if not isinstance(position, int):
            raise SourceError(
                f"{self._partition}: the checkpoint's position {position!r} is not a place in an"
                " iterable.",
                remedy=_OTHER_SOURCE,
            )
        if isinstance(self._values, Sized) and position >= len(self._values):
            raise self._too_few(len(self._values), position + 1)
        return position + 1

    def _too_few(self, there: int, done: int) -> SourceError:
        return SourceError(
            f"{self._partition}: there are {there} values, but the checkpoint counts {done} done.",
            remedy=_OTHER_SOURCE,
        )

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next values; see :class:`flowctl.ports.FlowProducer`."""
        records: list[Record] = []
        known_places = self._known_places()
        until_s = time.monotonic() + _POLL_S
        while len(records) < max_records and self._error is None:
            try:
                self._read_from = self._rest
                value = next(self._rest)
            except StopIteration:
                if self._next < self._start:
                    raise self._too_few(self._next, self._start) from None
                self._check_count(self._next)
                return self._chunk(records) if records else self._at_end()
            # Kept for the next call too, which would otherwise see the end.  SystemExit as well:
            # the values before it are processed.
            except (Exception, SystemExit, GeneratorExit) as error:
                self._error = error
                break
            self._check_new(value)
            if self._next in known_places:
                self._recognise(self._next, value)
            if self._next >= self._start:
                records.append(Record(self._next, value))
            self._next += 1
            if time.monotonic() > until_s:
                break
        if self._error is not None and not records:
            raise self._error
        return self._chunk(records)

    def _check_new(self, value: Any) -> None:
        """Raise :class:`SourceError` if ``value`` is the object that came before, filled anew.

        Otherwise all records that wait would have the contents of the last one.
        """
        if value is not self._object or not isinstance(value, dict | list):
            self._object, self._object_mark = value, ""
            return
        mark = _mark_of(value)
        if self._object_mark not in ("", mark):
            raise SourceError(
                f"{self._partition}: the value at position {self._next} is the same"
                f" {type(value).__name__} as the one before, with other contents, so records that"
                " wait would change too.",
                remedy="Yield a new one each time, such as dict(row) or list(row).",
            )
        self._object_mark = mark

    def _chunk(self, records: list[Record]) -> SourceChunk:
        if not records or not self._compare:
            return SourceChunk(self._partition, records)
        # Now: a process in this interpreter may change the values.
        if records[0].position == 0:
            self._first_mark = _mark_of(records[0].value)
        self._last_mark = _mark_of(records[-1].value)
        mark = (self._next, self._first_mark, self._last_mark)
        return SourceChunk(self._partition, records, mark=mark)

    def _at_end(self) -> SourceChunk | None:
        """Return once what these values are recognised by, unless that is saved already."""
        end = (self._next, self._first_mark, self._last_mark)
        is_saved = self._known_is_end and end == self._known
        if not self._compare or not self._next or is_saved:
            return None
        self._known, self._known_is_end = _Known(*end), True
        return SourceChunk(self._partition, (), end=end)

    def close(self) -> None:
        """Release the iterator; a generator's ``finally`` runs."""
        rest, self._rest = self._rest, iter(())
        # Do not close an iterator that was passed in: its owner may want to go on with it.
        if rest is not self._values and inspect.isgenerator(rest):
            rest.close()

    def _progress(self) -> SourceProgress:
        """Return how many values were read, and how many there are; from any thread."""
        assert isinstance(self._values, Sized)
        done = max(self._next, self._start)
        return SourceProgress(done, max(len(self._values), done), "records")


def _mark_of(value: Any) -> str:
    """Return a digest that is the same in each process; "" for a value that can't be written
    down.
    """
    try:
        data = msgspec.msgpack.encode(value, order="deterministic")
    except Exception:  # a value of any class: it is refused later, by name
        return ""
    return hashlib.blake2b(data, digest_size=_MARK_BYTES).hexdigest()


def _check(values: Any) -> None:
    """Raise :class:`ConfigError` for values that would not give the intended records."""
    problem, remedy = _problem(values)
    if problem:
        raise ConfigError("values", problem, remedy=remedy)


def _problem(values: Any) -> tuple[str, str]:
    kind = type(values).__name__
    if (remedy := remedy_for_frame(values)) is not None:
        return f"a {remedy[0]} is not read as records.", remedy[1]
    if isinstance(values, str | bytes | bytearray | os.PathLike):
        return (
            f"{with_article(kind)} is one value.",
            "For the lines of a file: flowctl_files.TextLines(path). For one record: [value].",
        )
    if isinstance(values, Mapping):
        return (
            f"{with_article(kind)} gives only its keys.",
            "Give list(values.items()) or list(values).",
        )
    if isinstance(values, Set) and not hasattr(values, "mapping"):  # views of a dict have an order
        return (
            f"{with_article(kind)} has no order that a resumed run could rely on.",
            "Give sorted(values).",
        )
    if inspect.isasyncgenfunction(values) or inspect.iscoroutinefunction(values):
        return f"{values.__qualname__} is async, and nothing would await it.", _NEW_ITERATOR
    if isinstance(values, Iterable):
        return "", ""
    if not callable(values) or isinstance(values, type):
        return f"{with_article(kind)} can't be iterated.", _NEW_ITERATOR
    try:
        inspect.signature(values).bind()
    except TypeError as error:
        name = getattr(values, "__qualname__", kind)
        return f"{name} can't be called without arguments: {error}.", _NEW_ITERATOR
    except ValueError:  # some builtins have no signature
        pass
    return "", ""


_FRAMES: Final = {
    "pandas": ("pandas DataFrame", 'Give df.to_dict("records"): one dict per row.'),
    "pyarrow": ("pyarrow Table", "Give table.to_pylist(): one dict per row."),
    "polars": ("polars DataFrame", "Give df.to_dicts(): one dict per row."),
    "pyspark": (
        "Spark DataFrame",
        "For a function over its rows: pyspark_flowctl.apply(df, fn, …). Or write it with"
        ' df.write.parquet("DIR") and read it with flowctl_files.ParquetRanges("DIR").',
    ),
}


def remedy_for_frame(value: Any) -> tuple[str, str] | None:
    """Return what kind of table ``value`` is and what to give instead; None if it is none.

    It is recognised by the name of its class: none of these libraries is imported for this.
    """
    for kind in type(value).__mro__:
        if kind.__name__ in ("DataFrame", "LazyFrame", "Table"):
            found = _FRAMES.get(kind.__module__.partition(".")[0])
            if found is not None:
                return found
    return None

"""Redrive: dead letters that are processed again, before the records of the producer.

Each redrive is a separate partition: in the source's partition these positions count as done, and a
sink may remember them as written.  A letter is deleted only once the saved checkpoint covers it, so
a kill at any moment loses none; the next run resumes from the checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter, lt
from typing import Any, Final

from flowctl.core.letters import Letter, redrive_partition, without_redrives
from flowctl.core.positions import encode
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import InfrastructureError, JobError, SourceError
from flowctl.instrumentation.numbers import counted
from flowctl.ports import (
    DeadLetter,
    FlowProducer,
    PrefixingProducer,
    RedrivableDeadLetter,
    SharingProducer,
    SourceChunk,
    SourceHost,
)

# -- What a producer returned: refused by name before any of it is taken, if it can't be right -
#
# A source that does not rise would be worse than an error: after a kill it is read on behind the
# last position that is done, and smaller ones that were not would be left out.


_position_of: Final = attrgetter("position")
_RISE: Final = (
    "Positions must rise from record to record, and all must have the same shape: order what you"
    " read by them, and give each record a position of its own."
)
_RETURN: Final = (
    "Return SourceChunk(partition, [Record(position, value), …]), without records if there is"
    " nothing yet, or None at the end."
)


def checked(chunk: Any, name: str) -> SourceChunk | None:
    """Return ``chunk``, which the producer of class ``name`` returned from ``poll``.

    Raises :class:`SourceError` if it is no chunk, or its positions don't rise.
    """
    if chunk is None:
        return None
    if not isinstance(chunk, SourceChunk):
        raise _wrong(name, f"a {type(chunk).__name__}")
    records: Any = chunk.records
    if not isinstance(chunk.partition, str):
        raise _wrong(name, f"a chunk whose partition is a {type(chunk.partition).__name__}")
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise _wrong(name, f"a chunk whose records are a {type(records).__name__}")
    for field, value in (("mark", chunk.mark), ("end", chunk.end)):
        if value is not None:
            _check_encodable(chunk.partition, field, value)
    if records:
        _check_positions(chunk.partition, records, name)
    return chunk


def _check_positions(partition: str, records: Any, name: str) -> None:
    try:
        positions: list[Any] = list(map(_position_of, records))
    except AttributeError:
        odd = next(each for each in records if not isinstance(each, Record))
        raise _wrong(name, f"a chunk with a {type(odd).__name__} as a record") from None
    try:
        is_risen = all(map(lt, positions, positions[1:]))
    except TypeError:
        is_risen = False
    first, last = type(positions[0]), type(positions[-1])
    if is_risen and first is last is not bool:
        _check_encodable(partition, "position", positions[0])
        _check_encodable(partition, "position", positions[-1])
        return
    before, after = next(filter(_falls, pairwise(positions)), (None, positions[0]))
    raise SourceError(
        f"partition {partition!r}: position {after!r} came after {before!r}.", remedy=_RISE
    )


def _falls(pair: tuple[Any, Any]) -> bool:
    before, after = pair
    try:
        return type(before) is not type(after) or isinstance(after, bool) or not before < after
    except TypeError:
        return True


def _check_encodable(partition: str, field: str, value: Any) -> None:
    try:
        encode(value)
    except JobError as error:
        raise SourceError(
            f"partition {partition!r}: the {field} {value!r} can't be saved: {error.problem}",
            remedy=error.remedy,
        ) from None


def _wrong(name: str, what: str) -> SourceError:
    return SourceError(f"the producer {name} returned {what} from poll.", remedy=_RETURN)


# -- Dead letters to be processed again come before what the producer reads --------------------


class Redriven:
    """A producer that returns letters first, then the records of ``inner``.

    Used by the reader's thread, except :meth:`settle`, which is for one other.  ``waiting`` counts
    the letters that this run processes; ``problem`` says why letters that are done could not be
    deleted, "" if all is well.
    """

    def __init__(
        self,
        inner: FlowProducer,
        port: RedrivableDeadLetter | None,
        *,
        job: str,
        restored: Checkpoint,
    ) -> None:
        self.inner = inner
        self.problem: str = ""
        self.left_waiting: int = 0  # letters of spouts that the topology no longer has
        # flowctl's own producers pass the conformance suite: their records need no check each.
        self._is_own = type(inner).__module__.partition(".")[0].startswith("flowctl")
        self._port = port
        self._job = job
        self._seen: dict[str, PartitionCheckpoint] = {}  # state of each redrive, as last settled
        self._letters = self._by_partition(_letters_of(port, job) if port is not None else ())
        self.settle(restored)
        self._chunks = deque(
            SourceChunk(partition, [Record(n, letter.value) for n, letter in letters.items()])
            for partition, letters in self._letters.items()
        )
        self.waiting: int = sum(len(chunk.records) for chunk in self._chunks)

    def _by_partition(self, letters: Sequence[Letter]) -> dict[str, dict[int, Letter]]:
        """Return the letters by the partition and position under which they are processed, in
        order.
        """
        found: dict[str, dict[int, Letter]] = {}
        for letter in sorted(letters, key=lambda letter: letter.redrive or (0, 0)):
            prefix = self._prefix_of(letter.partition)
            if prefix is None or letter.redrive is None:
                self.left_waiting += 1
                continue
            number, position = letter.redrive
            found.setdefault(redrive_partition(number, prefix), {})[position] = letter
        return found

    def _prefix_of(self, partition: str) -> str | None:
        inner = self.inner
        return inner.prefix_of(partition) if isinstance(inner, PrefixingProducer) else ""

    def settle(self, saved: Checkpoint) -> None:
        """Delete the letters that the checkpoint ``saved``, which is in the store, covers."""
        for partition, letters in list(self._letters.items()):
            state = saved.partitions.get(partition)
            if state is None or state == self._seen.get(partition) or self.problem:
                continue
            self._seen[partition] = state
            covered = list(_covered(state, letters))
            if covered and self._forget([letters[position] for position in covered]):
                for position in covered:
                    del letters[position]
                if not letters:
                    del self._letters[partition]

    def _forget(self, letters: Sequence[Letter]) -> bool:
        assert self._port is not None
        try:
            self._port.on_redriven(self._job, letters)
        except Exception as error:
            # No harm is done: the next run finds that the checkpoint covers them.
            self.problem = (
                f"processed letters could not be removed from the dead letter"
                f" ({type(error).__name__}: {error}); the next run tries again"
            )
            return False
        return True

    def headline(self) -> str:
        """Return what is processed first, and what can't be, as text; "" if there are no such
        letters.
        """
        facts = []
        if self.waiting:
            facts.append(f"{counted(self.waiting, 'dead letter')} to process again first")
        if self.left_waiting:
            facts.append(f"{counted(self.left_waiting, 'dead letter')} of spouts that are gone")
        return ", ".join(facts)

    # -- as a producer -------------------------------------------------------------------

    def partitions(self) -> Sequence[str]:
        """See :class:`flowctl.ports.FlowProducer`."""
        return [*self._letters, *self.inner.partitions()]

    def open(self, checkpoint: Checkpoint) -> None:
        """See :class:`flowctl.ports.FlowProducer`; ``inner`` is given its own partitions only."""
        self.inner.open(without_redrives(checkpoint))

    def poll(self, max_records: int) -> SourceChunk | None:
        """See :class:`flowctl.ports.FlowProducer`."""
        if not self._chunks or max_records <= 0:
            polled = self.inner.poll(max_records)
            return polled if self._is_own else checked(polled, type(self.inner).__name__)
        chunk = self._chunks.popleft()
        rest = chunk.records[max_records:]
        if rest:
            self._chunks.appendleft(SourceChunk(chunk.partition, rest))
        return SourceChunk(chunk.partition, chunk.records[:max_records])

    def close(self) -> None:
        """See :class:`flowctl.ports.FlowProducer`."""
        self.inner.close()


class SharingRedriven(Redriven):
    """Like :class:`Redriven`, if ``inner`` shares its partitions; letters always belong to this
    run.
    """

    inner: FlowProducer
    _polled_letters = False

    def attach(self, host: SourceHost) -> None:
        """See :class:`flowctl.ports.SharingProducer`."""
        assert isinstance(self.inner, SharingProducer)
        self.inner.attach(host)

    def keep(self) -> bool:
        """See :class:`flowctl.ports.SharingProducer`."""
        assert isinstance(self.inner, SharingProducer)
        return self.inner.keep() or self._polled_letters

    def poll(self, max_records: int) -> SourceChunk | None:
        """See :class:`flowctl.ports.FlowProducer`."""
        self._polled_letters = bool(self._chunks)
        return super().poll(max_records)


def with_letters_first(
    producer: FlowProducer, dead_letter: DeadLetter | None, *, job: str, restored: Checkpoint
) -> Redriven:
    """Return ``producer`` with the letters marked for redrive before its records.

    Raises :class:`InfrastructureError` when the letters can't be read.
    """
    port = dead_letter if isinstance(dead_letter, RedrivableDeadLetter) else None
    kind = SharingRedriven if isinstance(producer, SharingProducer) else Redriven
    return kind(producer, port, job=job, restored=restored)


def _letters_of(port: RedrivableDeadLetter, job: str) -> Sequence[Letter]:
    try:
        return port.to_redrive(job)
    except Exception as error:
        raise InfrastructureError(
            f"the dead letter {type(port).__name__} can't be read:"
            f" {type(error).__name__}: {error}.",
            remedy="Fix it, or name another: it may hold letters that are marked for redrive.",
        ) from error


def _covered(state: PartitionCheckpoint, positions: dict[int, Letter]) -> Iterator[int]:
    """Return those of the ascending ``positions`` that are done according to ``state``."""
    ranges = deque(state.acked)
    for position in positions:
        if isinstance(state.position, int) and position <= state.position:
            yield position
            continue
        while ranges and ranges[0].last < position:  # type: ignore[operator]
            ranges.popleft()
        if ranges and ranges[0].first <= position:  # type: ignore[operator]
            yield position

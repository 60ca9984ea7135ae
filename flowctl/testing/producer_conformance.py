"""What every :class:`flowctl.ports.FlowProducer` must do, as tests for adapter authors to inherit.

.. code-block:: python

    class TestMyProducer(ProducerConformance):
        @pytest.fixture(autouse=True)
        def source(self, tmp_path):
            self.path = make_a_source(tmp_path)

        def producer(self):
            return MyProducer(self.path)

The source is small (the tests resume from each of its positions), ends, and does not change while
the tests run.  It should hold at least two partitions, and one partition with a single record.  The
suite itself needs no test framework; any runner that collects ``test_*`` methods will do.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

import msgspec

from flowctl.core.positions import encode
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.ports import FlowProducer, MeasuredProducer

# A working producer returns something long before this many empty chunks in a row.
_EMPTY_POLLS_MAX = 10_000

Contents = dict[str, list[Record]]


class ProducerConformance(ABC):
    """Inherit, and define how a producer over the test source is made."""

    # Large enough to take everything in a few calls, so that this limit is not what is tested.
    chunk_records = 1000

    @abstractmethod
    def producer(self) -> FlowProducer:
        """Return a new, unopened producer over the same source."""

    def test_is_a_producer(self) -> None:
        assert isinstance(self.producer(), FlowProducer)

    def test_partitions_are_stable_and_unique(self) -> None:
        names = list(self.producer().partitions())
        assert names == list(self.producer().partitions())
        assert len(names) == len(set(names))

    def test_the_source_has_something_to_test(self) -> None:
        assert sum(len(records) for records in self._all().values()) >= 3

    def test_two_readings_are_equal(self) -> None:
        assert self._all() == self._all()

    def test_chunks_are_bounded_and_their_size_changes_nothing(self) -> None:
        for chunk_records in (1, 2, 3):
            assert self._read(Checkpoint(), chunk_records=chunk_records) == self._all()

    def test_chunks_belong_to_known_partitions(self) -> None:
        assert set(self._all()) <= set(self.producer().partitions())

    def test_positions_rise(self) -> None:
        for records in self._all().values():
            for before, after in itertools.pairwise(record.position for record in records):
                assert encode(before) < encode(after), f"{after!r} does not follow {before!r}"

    def test_records_survive_the_wire(self) -> None:
        for records in self._all().values():
            there = msgspec.msgpack.encode(records)
            assert msgspec.msgpack.decode(there, type=list[Record]) == records

    def test_resuming_at_each_position_gives_exactly_the_rest(self) -> None:
        everything = self._all()
        for partition, records in everything.items():
            for done, record in enumerate(records, 1):
                rest = self._read(_done({partition: record.position}))
                expected = everything | {partition: records[done:]}
                assert rest == {name: left for name, left in expected.items() if left}

    def test_resuming_all_partitions_at_once(self) -> None:
        everything = self._all()
        middle = {name: records[len(records) // 2] for name, records in everything.items()}
        rest = self._read(_done({name: record.position for name, record in middle.items()}))
        assert rest == {
            name: records[len(records) // 2 + 1 :]
            for name, records in everything.items()
            if len(records) > len(records) // 2 + 1
        }

    def test_resuming_at_the_end_gives_nothing(self) -> None:
        ends = {name: records[-1].position for name, records in self._all().items()}
        assert self._read(_done(ends)) == {}

    def test_ends_come_once_and_last_and_are_recognised(self) -> None:
        producer = self.producer()
        producer.open(Checkpoint())
        done: dict[str, PartitionCheckpoint] = {}
        while (chunk := producer.poll(self.chunk_records)) is not None:
            before = done.get(chunk.partition, PartitionCheckpoint())
            assert before.end is None, f"{chunk.partition} goes on after its end"
            if chunk.records or chunk.end is not None:
                position = chunk.records[-1].position if chunk.records else before.position
                done[chunk.partition] = PartitionCheckpoint(position, end=chunk.end)
                assert chunk.end is None or encode(chunk.end)
        producer.close()
        assert self._read(Checkpoint(done)) == {}

    def test_a_checkpoint_of_other_partitions_is_no_hindrance(self) -> None:
        other = Checkpoint(partitions={"no-such-partition": PartitionCheckpoint()})
        assert self._read(other) == self._all()

    def test_the_end_stays_the_end(self) -> None:
        producer = self.producer()
        producer.open(Checkpoint())
        self._drain(producer, self.chunk_records)
        assert producer.poll(1) is None
        producer.close()

    def test_close_may_come_at_any_time_and_twice(self) -> None:
        self.producer().close()
        producer = self.producer()
        producer.open(Checkpoint())
        producer.poll(1)
        producer.close()
        producer.close()

    def test_progress_rises_to_the_total(self) -> None:
        producer = self.producer()
        if not isinstance(producer, MeasuredProducer):
            return
        producer.open(Checkpoint())
        seen = [producer.progress()]
        while producer.poll(1) is not None:
            seen.append(producer.progress())
        producer.close()
        assert all(a.done <= b.done <= b.total for a, b in itertools.pairwise(seen))
        assert seen[-1].done == seen[-1].total

    def _all(self) -> Contents:
        return self._read(Checkpoint())

    def _read(self, checkpoint: Checkpoint, *, chunk_records: int | None = None) -> Contents:
        producer = self.producer()
        producer.open(checkpoint)
        try:
            return self._drain(producer, chunk_records or self.chunk_records)
        finally:
            producer.close()

    def _drain(self, producer: FlowProducer, chunk_records: int) -> Contents:
        contents: Contents = {}
        empty = 0
        while (chunk := producer.poll(chunk_records)) is not None:
            assert len(chunk.records) <= chunk_records
            empty = 0 if chunk.records else empty + 1
            assert empty < _EMPTY_POLLS_MAX, "poll gives nothing and does not end"
            if chunk.records:
                contents.setdefault(chunk.partition, []).extend(chunk.records)
        return contents


def _done(positions: dict[str, Position]) -> Checkpoint:
    return Checkpoint(
        partitions={
            name: PartitionCheckpoint(position=position) for name, position in positions.items()
        }
    )

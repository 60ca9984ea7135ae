"""What every :class:`flowctl.range_ports.RangeProducer` must do, as tests for adapter authors to
inherit.

.. code-block:: python

    class TestMyRanges(RangeConformance):
        @pytest.fixture(autouse=True)
        def source(self, tmp_path):
            self.path = make_a_source(tmp_path)

        def producer(self):
            return MyRanges(self.path)

The source is small (each partition is cut at each of its records) and does not change while the
tests run.  It should hold at least two partitions, and one partition with a single record.  The
suite itself needs no test framework; any runner that collects ``test_*`` methods will do.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import pairwise

from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import SourceError
from flowctl.range_ports import Block, RangeProducer, RangeReader
from flowctl.wire.values import carry


class RangeConformance(ABC):
    """Inherit, and define how a producer over the test source is made."""

    #: Set to False for a source that can't tell whether it is still what the driver saw.
    has_identity = True

    @abstractmethod
    def producer(self) -> RangeProducer:
        """Return a new producer over the same source, every time."""

    def test_extents_are_the_same_each_time(self) -> None:
        assert self._extents() == self._extents()
        assert self._extents(), "the source has no partition"

    def test_all_records_have_rising_positions_within_the_extent(self) -> None:
        for name, extent in self._extents().items():
            positions = [_position(record) for record in self._all(name, extent)]
            assert positions == sorted(set(positions))
            assert not positions or extent.start <= positions[0] <= positions[-1] < extent.stop

    def test_values_can_be_sent_back(self) -> None:
        for name, extent in self._extents().items():
            for record in self._all(name, extent):
                carry(record.value)

    def test_blocks_keep_their_promises(self) -> None:
        reader = self._reader()
        for name, extent in self._extents().items():
            below = extent.start
            for block in reader.open(name, extent.start, extent.stop, extent.identity):
                _check_block(block, below)
                below = block.stop
            assert below == extent.stop, "the last block must end where the range does"

    def test_two_parts_are_the_whole_wherever_it_is_cut(self) -> None:
        for name, extent in self._extents().items():
            whole = self._all(name, extent)
            for cut in self._cuts(extent, whole):
                first = self._read(name, extent, extent.start, cut)
                assert first + self._read(name, extent, cut, extent.stop) == whole, cut

    def test_many_small_ranges_are_the_whole(self) -> None:
        for name, extent in self._extents().items():
            whole = self._all(name, extent)
            cuts = sorted({extent.start, *self._cuts(extent, whole), extent.stop})
            parts = [self._read(name, extent, *ends) for ends in pairwise(cuts)]
            assert [record for part in parts for record in part] == whole

    def test_a_part_is_what_begins_in_it(self) -> None:
        for name, extent in self._extents().items():
            whole = self._all(name, extent)
            for record in whole:
                at = _position(record)
                assert self._read(name, extent, at, at + 1) == [record]
            if whole:  # records that are done are not read again
                last = _position(whole[-1])
                assert self._read(name, extent, last + 1, extent.stop) == []

    def test_ranges_are_read_at_once_by_one_reader(self) -> None:
        reader = self._reader()
        extents = self._extents()
        open_ranges = {
            name: reader.open(name, extent.start, extent.stop, extent.identity)
            for name, extent in extents.items()
            for _ in range(2)
        }
        found: dict[str, list[Record]] = {name: [] for name in extents}
        while open_ranges:
            for name, blocks in list(open_ranges.items()):
                block = next(blocks, None)
                if block is None:
                    del open_ranges[name]
                else:
                    found[name] += block.batch_records(0, len(block))
        assert found == {name: self._all(name, extent) for name, extent in extents.items()}

    def test_a_range_may_be_left_in_the_middle(self) -> None:
        reader = self._reader()
        for name, extent in self._extents().items():
            blocks = reader.open(name, extent.start, extent.stop, extent.identity)
            next(blocks, None)
            _close(blocks)
            _close(blocks)
            assert self._all(name, extent) == self._all(name, extent)

    def test_another_identity_is_refused_by_name(self) -> None:
        if not self.has_identity:
            return
        reader = self._reader()
        for name, extent in self._extents().items():
            assert extent.identity
            try:
                list(reader.open(name, extent.start, extent.stop, extent.identity + "?"))
            except SourceError as error:
                assert name in error.problem
                assert error.remedy
            else:
                raise AssertionError(f"{name}: a source that changed was read")

    def test_a_partition_that_is_gone_is_a_source_error(self) -> None:
        identity = next(iter(self._extents().values())).identity
        try:
            list(self._reader().open("no-such-partition", 0, 1, identity))
        except SourceError as error:
            assert error.remedy
        else:
            raise AssertionError("a partition that does not exist was read")

    def test_a_resumed_run_has_the_same_extents(self) -> None:
        done: dict[str, PartitionCheckpoint] = {}
        for name, extent in self._extents().items():
            whole = self._all(name, extent)
            if whole:
                done[name] = PartitionCheckpoint(_position(whole[len(whole) // 2]))
        checkpoint = Checkpoint({**done, "no-such-partition": PartitionCheckpoint(7)})
        producer = self.producer()
        assert dict(producer.extents(checkpoint)) == self._extents()
        producer.close()

    def test_close_may_come_at_any_time_and_twice(self) -> None:
        producer = self.producer()
        producer.close()
        producer.close()

    def _extents(self) -> Mapping[str, Extent]:
        producer = self.producer()
        try:
            return dict(producer.extents(Checkpoint()))
        finally:
            producer.close()

    def _reader(self) -> RangeReader:
        """Return the reader as a worker gets it: pickled, while the producer is elsewhere."""
        producer = self.producer()
        reader = copy.deepcopy(producer.reader())  # by the same methods as pickle
        producer.close()
        return reader

    def _all(self, name: str, extent: Extent) -> list[Record]:
        return self._read(name, extent, extent.start, extent.stop)

    def _read(self, name: str, extent: Extent, start: int, stop: int) -> list[Record]:
        blocks = self._reader().open(name, start, stop, extent.identity)
        return [record for block in blocks for record in block.batch_records(0, len(block))]

    def _cuts(self, extent: Extent, whole: list[Record]) -> list[int]:
        """Return positions to cut at: at each record, beside it, and between."""
        near = {_position(record) + beside for record in whole for beside in (-1, 0, 1)}
        near.add((extent.start + extent.stop) // 2)
        return sorted(cut for cut in near if extent.start < cut < extent.stop)


def _position(record: Record) -> int:
    assert isinstance(record.position, int), "the positions of ranges are ints"
    return record.position


def _check_block(block: Block, below: int) -> None:
    records = block.batch_records(0, len(block))
    assert len(records) == len(block)
    positions = [_position(record) for record in records]
    assert [block.position(i) for i in range(len(block) + 1)] == [*positions, block.stop]
    assert all(below <= position < block.stop for position in positions)
    assert block.size_bytes >= 0
    for i in range(len(block)):
        assert list(block.batch_records(i, i + 1)) == [records[i]]


def _close(blocks: Iterator[Block]) -> None:
    close = getattr(blocks, "close", None)
    assert close is not None, "open must return a generator, which can be closed"
    close()

"""Sources by reference for tests: numbers, read in blocks, as slow as a test wants them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from flowctl.core.messages import Progress, RangeFail
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Record


class NumberBlock:
    """The numbers from ``start`` below ``stop`` that are multiples of ``step``."""

    def __init__(self, start: int, stop: int, step: int = 1) -> None:
        self.start = -(-start // step) * step
        self.stop = stop
        self.step = step
        self.size_bytes = 8 * (stop - start)

    def __len__(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def position(self, i: int) -> int:
        return self.stop if i == len(self) else self.start + i * self.step

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        return [Record(self.position(k), f"n{self.position(k)}") for k in range(i, j)]


class NumberReader:
    """Counts the blocks that were begun; ``before`` is called with the start of each."""

    def __init__(
        self, block: int = 10, step: int = 1, before: Callable[[int], None] = lambda start: None
    ) -> None:
        self.block = block
        self.step = step
        self.before = before
        self.begun: list[int] = []
        self.closed = threading.Event()

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[NumberBlock]:
        try:
            for begin in range(start, stop, self.block):
                self.begun.append(begin)
                self.before(begin)
                yield NumberBlock(begin, min(begin + self.block, stop), self.step)
        finally:
            self.closed.set()


class NumberRanges:
    """Partitions of numbers: a RangeProducer."""

    def __init__(self, **stops: int) -> None:
        self.stops = stops

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        return {name: Extent(0, stop, size_bytes=8 * stop) for name, stop in self.stops.items()}

    def reader(self) -> NumberReader:
        return NumberReader()

    def close(self) -> None:
        pass


class Told(msgspec.Struct):
    """What a bolt reported of one range: it must cover it, without gaps and repeats."""

    progress: list[Progress]
    fails: list[RangeFail]

    def spans(self) -> list[tuple[int, int]]:
        told = [(frame.start, frame.done_through) for frame in self.progress]
        return sorted(told + [(frame.start, frame.stop) for frame in self.fails])

    def covers(self, start: int, stop: int) -> bool:
        at = start
        for begin, end in self.spans():
            if begin != at:
                return False
            at = end
        return at == stop

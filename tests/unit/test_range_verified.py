"""Blocks are handed on only after the source that they were read from was found unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from flowctl.errors import SourceError
from flowctl.range_ports import verified


class Read(NamedTuple):
    """A block of which only its end and its size matter."""

    stop: int
    size_bytes: int = 1


class Source:
    """Writes down what is read and checked; from ``changes_at`` on it is another one."""

    def __init__(self, *stops: int, changes_at: int = 1 << 30) -> None:
        self.stops = stops
        self.changes_at = changes_at
        self.read = 0
        self.log: list[str] = []

    def __iter__(self) -> Iterator[Read]:
        for stop in self.stops:
            self.read = stop
            self.log.append(f"read {stop}")
            yield Read(stop)

    def check(self) -> None:
        self.log.append("check")
        if self.read >= self.changes_at:
            raise SourceError("a: it changed.", remedy="Read again.")

    def taken(self, every_bytes: int = 0) -> Iterator[int]:
        for block in verified(self, self.check, every_bytes=every_bytes):  # type: ignore[type-var]
            self.log.append(f"take {block.stop}")
            yield block.stop


def test_each_block_is_compared_after_it_was_read_and_before_it_is_taken() -> None:
    source = Source(1, 2)
    assert list(source.taken()) == [1, 2]
    assert source.log == ["read 1", "check", "take 1", "read 2", "check", "take 2"]


@pytest.mark.parametrize("every_bytes", [0, 2, 3, 99])
@pytest.mark.parametrize("changes_at", range(1, 8))
def test_nothing_that_was_read_since_the_change_is_taken(every_bytes: int, changes_at: int) -> None:
    source = Source(*range(1, 8), changes_at=changes_at)
    taken: list[int] = []
    with pytest.raises(SourceError):
        for stop in source.taken(every_bytes):
            taken.append(stop)
    assert taken == list(range(1, len(taken) + 1))
    assert len(taken) < changes_at


def test_where_a_check_costs_a_request_there_is_one_for_many_blocks() -> None:
    source = Source(*range(1, 8))
    assert list(source.taken(3)) == list(range(1, 8))
    assert source.log.count("check") == 3


def test_blocks_do_not_wait_while_there_is_nothing_to_read() -> None:
    source = Source(1, 1, 1, 2)
    taking = source.taken(99)
    assert [next(taking), next(taking), next(taking)] == [1, 1, 1]
    assert source.log.count("check") == 1, "an idle source is not asked again and again"


class Damaged(Source):
    def __iter__(self) -> Iterator[Read]:
        yield from super().__iter__()
        raise OSError("bad from here on")


def test_what_was_read_before_an_error_is_taken_first() -> None:
    source, taken = Damaged(1, 2), []
    with pytest.raises(OSError, match="bad"):
        for stop in source.taken(99):
            taken.append(stop)
    assert taken == [1, 2]


def test_what_was_read_before_an_error_is_not_taken_from_another_source() -> None:
    source = Damaged(1, 2, changes_at=1)
    with pytest.raises(SourceError, match="changed"):
        list(source.taken(99))

"""A core of ranges that a test drives step by step."""

from __future__ import annotations

from typing import Any

from flowctl.core.messages import (
    Fail,
    Heartbeat,
    Processed,
    Progress,
    RangeEmission,
    RangeFail,
    Split,
)
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import AckOutcome, PartitionCheckpoint
from flowctl.testing.clock import ManualClock
from flowctl.testing.range_invariants import check_ranges
from tests.core_driver import core_settings

MB = 1 << 20


class Ranges:
    """A core of ranges, a clock, and short words; checks after each."""

    def __init__(self, *bolts: str, stop: int = 100 * MB, **how: Any) -> None:
        extent = how.pop("extent", Extent(0, stop, "v1", size_bytes=stop))
        settings = core_settings(window_policy="just_full", **how.pop("settings", {}))
        self.core = RangeCore(settings, **how)
        self.clock = ManualClock()
        self.core.offer_extents({"p": extent})
        for bolt in bolts:
            self.core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0, in_order=True)

    def end(self) -> None:
        self.core.end_of_input(now_s=self.clock())

    def emit(self) -> list[RangeEmission]:
        sent = []
        while (emission := self.core.poll_emit(now_s=self.clock())) is not None:
            assert isinstance(emission, RangeEmission)
            sent.append(emission)
        check_ranges(self.core)
        return sent

    def did(self, e: RangeEmission, start: int, stop: int, **how: Any) -> AckOutcome:
        bolt, attempt = how.pop("bolt", e.bolt), how.pop("attempt", e.attempt)
        records, service_s = (stop - start) // 100, (stop - start) * 1e-7
        did = Processed(**{"records": records, "service_s": service_s, **how})
        told = Progress(e.tuple_id, attempt, start, stop, 0.0, did)
        outcome = self.core.on_progress(bolt, 1, told, now_s=self.clock())
        check_ranges(self.core)
        return outcome

    def failed(self, e: RangeEmission, start: int, stop: int, **how: Any) -> AckOutcome:
        bolt = how.pop("bolt", e.bolt)
        part = {n: how.pop(n) for n in ("records", "record_at", "record") if n in how}
        fail = Fail(e.tuple_id, e.attempt, **{"error": "boom", **how})
        said = RangeFail(fail, start, stop, **{"records": 5, **part})
        outcome = self.core.on_range_fail(bolt, 1, said, now_s=self.clock())
        check_ranges(self.core)
        return outcome

    def questions(self) -> list[Split]:
        orders = iter(self.core.poll_order, None)
        return [order for order in orders if isinstance(order, Split)]

    def wait(self, by_s: float, *speaking: str) -> None:
        self.clock.advance(by_s)
        for bolt in speaking:
            busy = min(1, len(self.core.bolts[bolt].flight))
            self.core.on_heartbeat(bolt, 1, Heartbeat(busy, 0), now_s=self.clock())
        self.core.on_deadline(now_s=self.clock())

    @property
    def state(self) -> PartitionCheckpoint:
        return self.core.checkpoint().partitions["p"]


def split_scene(**how: Any) -> tuple[Ranges, RangeEmission]:
    """``a`` has a range, ``b`` has nothing to do."""
    ranges = Ranges("a", "b", stop=2 * MB, **how)
    ours, theirs = ranges.emit()
    ranges.end()
    ranges.wait(0.1, "a", "b")
    ranges.did(theirs, theirs.start, theirs.stop)
    ranges.did(ours, 0, 100_000, service_s=0.1)  # a tenth of the other's speed
    ranges.emit()
    return ranges, ours

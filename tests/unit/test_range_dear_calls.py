"""Calls that cost time whatever their size, by reference: how long ranges are, and what is said."""

from __future__ import annotations

from flowctl.bolts.range_pace import BatchPace
from flowctl.core.messages import Processed
from flowctl.instrumentation.call_lines import dear_call
from flowctl.runtime.meter import dear_batches
from tests.range_driver import MB, Ranges


def worked(call_s: float) -> Ranges:
    """One bolt that does 1 MB a second in batches of .5 s, and tells ``call_s``."""
    ranges = Ranges("a", stop=1_000 * MB)
    for _ in range(60):
        for emission in ranges.emit():
            for start in range(emission.start, emission.stop, MB // 2):
                stop = min(start + MB // 2, emission.stop)
                service_s = (stop - start) / MB
                ranges.clock.advance(service_s)
                ranges.did(emission, start, stop, service_s=service_s, call_s=call_s)
    return ranges


def test_a_range_holds_a_batch_of_ten_calls() -> None:
    lengths = {}
    for call_s in (0.0, 0.1, 1.0):
        (*_, last) = worked(call_s).emit()
        lengths[call_s] = (last.stop - last.start) / MB
    assert 1.9 < lengths[0.0] < 2.1
    assert lengths[0.1] == lengths[0.0]
    assert 9 < lengths[1.0] < 11


def test_views_say_what_a_call_costs_and_how_many_records_batches_hold() -> None:
    ranges = worked(0.05)
    core = ranges.core
    told = dear_batches(core.bolts.values(), core.measure(), None)
    assert told is not None
    (text,) = dear_call(told)
    assert text.startswith("a call costs 0.05 s whatever its size: batches hold about ")
    assert 4_500 < told.records < 5_500  # one for a hundred positions
    core.remove_bolt("a", now_s=ranges.clock())
    assert dear_batches(core.bolts.values(), core.measure(), told) == told


def test_where_calls_cost_nothing_nothing_is_said() -> None:
    core = worked(0.0).core
    assert dear_batches(core.bolts.values(), core.measure(), None) is None


def test_a_bolt_tells_it_only_where_it_makes_batches_longer() -> None:
    for call_s, longest_s, is_dear in ((0.3, 0.15, True), (0.005, 0.15, False), (0.3, 9.0, False)):
        pace = BatchPace(longest_s)
        for _ in range(600):
            records = pace.next_records
            pace.took(records, call_s + 0.001 * records)
        assert bool(pace.dear_s) == is_dear, (call_s, longest_s)
        assert pace.dear_s in (0.0, pace.call_s)


def test_a_report_of_several_batches_has_what_is_known_by_the_last() -> None:
    assert Processed(call_s=0.2).plus(Processed(call_s=0.3)).call_s == 0.3
    assert Processed(call_s=0.2).plus(Processed()).call_s == 0.0

"""A bolt stands still with a range: what it has not claimed is the others' to have."""

from __future__ import annotations

import pytest

from flowctl.core.messages import Revoked, SplitAnswer
from tests.range_driver import MB, Ranges, split_scene


@pytest.mark.req("S20")
def test_all_of_a_small_source_goes_to_who_comes_first_and_half_of_it_to_the_next() -> None:
    """Nobody has told anything yet, and may not for long: the first may stand still."""
    ranges = Ranges("a", stop=MB // 2)
    (whole,) = ranges.emit()
    assert (whole.start, whole.stop) == (0, MB // 2)
    ranges.end()
    ranges.core.add_bolt("b", slots=1, epoch=1, now_s=ranges.clock(), in_order=True)
    ranges.emit()
    assert not ranges.questions(), "its first report would say more"
    ranges.wait(0.6, "a", "b")
    ranges.emit()
    (question,) = ranges.questions()
    assert (question.bolt, question.keep) == ("a", pytest.approx(0.5, abs=0.01))


def test_what_a_bolt_could_not_do_in_time_is_its_own_if_all_others_stand_still() -> None:
    ranges, ours = split_scene()
    (question,) = ranges.questions()
    core, clock = ranges.core, ranges.clock
    answer = SplitAnswer(ours.tuple_id, question.request, 100_001)
    core.on_split("a", 1, answer, now_s=clock())
    done = 0
    for _ in range(40):  # "a" tells nothing of its one position for 20 s
        unbegun = []
        for emission in ranges.emit():
            if emission.bolt == "b":
                ranges.did(emission, emission.start, emission.stop, service_s=4.0)
                done += emission.stop - emission.start
            else:
                unbegun.append(emission.tuple_id)
        ranges.wait(0.5, "a", "b")
        # As it is asked to, once it is overdue.
        core.on_revoked("a", 1, Revoked(unbegun), now_s=clock())
    assert done == ours.stop - 100_001, "nothing waits for a bolt that may never go on"

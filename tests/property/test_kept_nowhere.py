"""Records that are rejected and kept nowhere, under kills, rewinds and clears, against a model.

The model knows of each record whether what was done with it last was to reject it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowctl.core.lost import PLACES
from flowctl.core.messages import DetailedAck, Emission, Rejected
from flowctl.core.stored_job import StoredJob, cleared, rewound, saved
from tests.core_driver import Driver
from tests.thorough import IS_THOROUGH

RECORDS = 2 * PLACES - 4  # as many places as the checkpoint keeps apart, so that counts are exact


class KeptNowhere(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stored = StoredJob(job="j", epoch=1)
        self.kept: dict[int, bool] = {}  # what is saved of the model
        self.begin()

    def begin(self) -> None:
        """A driver begins, and reads from the beginning what it is not to skip."""
        self.driver = Driver(
            "a", "b", slots=4, checkpoint=self.stored.checkpoint, tuple_records_max=5
        )
        self.rejected = dict(self.kept)  # of each record that is done
        self.out: list[Emission] = []
        self.read_so_far = 0

    @rule(count=st.integers(1, 30))
    def read(self, count: int) -> None:
        if count := min(count, RECORDS - self.read_so_far):
            self.read_so_far += self.driver.offer(count)
        self.out += self.driver.emit()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        """Bolts answer in any order, and reject some of the records."""
        emission = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        indices = range(len(emission.records))
        bad = data.draw(st.sets(st.sampled_from(indices)))
        ack = DetailedAck(
            emission.tuple_id, emission.attempt, rejected=[Rejected(i, "no") for i in sorted(bad)]
        )
        core, clock = self.driver.core, self.driver.clock
        core.on_ack(emission.bolt, 1, ack, now_s=clock())
        self.rejected |= {emission.records[i].position: i in bad for i in indices}
        self.out += self.driver.emit()

    @rule()
    def save(self) -> None:
        checkpoint = self.driver.core.checkpoint()
        self.stored = saved(self.stored, checkpoint, epoch=self.stored.epoch, now_unix_ms=1)
        self.kept = dict(self.rejected)

    @rule()
    def kill(self) -> None:
        self.begin()

    @precondition(lambda self: self.stored.checkpoint.partitions)
    @rule(data=st.data())
    def rewind(self, data: Any) -> None:
        through = self.stored.checkpoint.partitions["p"].position
        position = data.draw(st.none() | st.integers(1, through)) if through else None
        self.stored = rewound(self.stored, "p", position)
        self.kept = {at: bad for at, bad in self.kept.items() if at <= (position or 0)}
        self.begin()

    @rule()
    def clear(self) -> None:
        self.stored, self.kept = cleared(self.stored), {}
        self.begin()

    @invariant()
    def their_number_is_exact(self) -> None:
        core, number = self.driver.core, sum(self.rejected.values())
        assert core.intake.records_kept_nowhere == number
        assert core.checkpoint().records_kept_nowhere == number
        assert self.stored.checkpoint.records_kept_nowhere == sum(self.kept.values())

    @invariant()
    def no_sink_may_take_one_for_written(self) -> None:
        for emission in self.out:
            through, unsure = emission.acked_through or 0, emission.given_up or 0
            assert not any(bad and unsure < at <= through for at, bad in self.rejected.items())


TestKeptNowhere = KeptNowhere.TestCase
TestKeptNowhere.settings = settings(
    max_examples=2_000 if IS_THOROUGH else 60, stateful_step_count=40, deadline=None
)

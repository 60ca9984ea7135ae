"""The machine of test_core_machine with bolts that tell: times in each ack, and acks in order.

So the rules of ``just_full`` decide, loss shows by overtaking, and copies are made once the input
has ended.  What they tell is drawn, not true, and heartbeats may overtake acks: no answer of a
bolt may break the core.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core_world import Bolt
from tests.property.test_core_machine import PICK, CoreMachine, Sent

pytestmark = pytest.mark.on_change()

DURATIONS = st.sampled_from([0.0, 0.001, 0.02, 0.5])


class TellingMachine(CoreMachine):
    """Each bolt's acks arrive in their order, each once or never."""

    OVERRIDES: ClassVar[dict[str, Any]] = {"hedge_enabled": True}
    IN_ORDER = True
    TELLS_TRUTH = False  # by times that are not true the core takes for lost what a bolt still has

    def _boot(self) -> None:
        super()._boot()
        self.under_way: list[Sent] = []
        self.times = (0.0, 0.001, 0.0)
        self.idle_s = 0.0

    @rule(wait_s=DURATIONS, service_s=DURATIONS, idle_s=DURATIONS)
    def tell(self, wait_s: float, service_s: float, idle_s: float) -> None:
        """What acks say from now on."""
        self.times = (wait_s, service_s, idle_s)

    @precondition(lambda self: any(b.held for b in self.bolts.values()))
    @rule(pick=PICK, index=PICK, answer=st.booleans())
    def process(self, pick: int, index: int, answer: bool = True) -> None:
        """A bolt is through with a tuple; its ack comes now, or some time."""
        bolt = self._bolt(pick)
        if bolt.mode != "healthy" or not bolt.held:
            return
        wait_s, service_s, idle_s = self.times
        self.idle_s += idle_s
        sent = self._process(bolt, index % min(bolt.slots, len(bolt.held)))
        told = {"wait_s": wait_s, "service_s": service_s, "idle_total_s": self.idle_s}
        self.under_way.append(sent._replace(ack=msgspec.structs.replace(sent.ack, **told)))
        if answer:
            self._deliver_of(bolt)

    @precondition(lambda self: self.under_way and self.bolts)
    @rule(pick=PICK)
    def deliver(self, pick: int) -> None:
        """What a bolt has said arrives."""
        self._deliver_of(self._bolt(pick))

    def _deliver_of(self, bolt: Bolt) -> None:
        arrived = [sent for sent in self.under_way if sent.bolt == bolt.name]
        self.under_way = [sent for sent in self.under_way if sent.bolt != bolt.name]
        for sent in arrived:
            self._deliver(sent)

    @rule()
    def end(self) -> None:
        """The source ends, if all of it was read."""
        self._end_if_read()


TestTellingCore = pytest.mark.req("S11", "S14", "S7", "S10", "S13", "S48")(TellingMachine.TestCase)
TestTellingCore.settings = settings(max_examples=200, stateful_step_count=50)

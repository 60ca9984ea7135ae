"""Bolts come and go; what one held when it went goes to others, or is dropped."""

from __future__ import annotations

from collections import deque

import msgspec

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.dispatch import Dispatcher
from flowctl.core.events import BoltAdded, BoltRemoved, FlowEvent
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import Checkpoint
from flowctl.core.recovery import Recovery
from flowctl.core.service import ServicePool
from flowctl.core.settings import CoreSettings


class Roster:
    """``bolts`` by name, and what those that went had learned and done.

    Part of ``SpoutCore``, which alone writes to it; not thread-safe.
    """

    def __init__(
        self,
        settings: CoreSettings,
        restored: Checkpoint,
        counters: Counters,
        events: deque[FlowEvent],
    ) -> None:
        self.bolts: dict[str, AdaptiveFlowConsumer] = {}
        self._settings = settings
        self._counters = counters
        self._events = events
        self._windows = dict(restored.windows)
        # What a bolt had done before it went: (acked, records acked, moved away).
        self._former: dict[str, tuple[int, int, int]] = {}

    @property
    def windows(self) -> dict[str, float]:
        """The windows of all bolts, of those that went their last ones."""
        return {**self._windows, **{b: c.policy.window for b, c in self.bolts.items()}}

    def add(
        self,
        bolt: str,
        *,
        slots: int,
        epoch: int,
        now_s: float,
        in_order: bool,
        pool: ServicePool,
    ) -> AdaptiveFlowConsumer:
        """A bolt came."""
        consumer = AdaptiveFlowConsumer(
            bolt,
            slots=slots,
            epoch=epoch,
            now_s=now_s,
            settings=_settings_of(self._settings, slots),
            events=self._events,
            pool=pool,
            learned=self._windows.get(bolt),
            in_order=in_order,
        )
        former = self._former.get(bolt, (0, 0, 0))
        consumer.acked, consumer.records_acked, consumer.moved_away = former
        self.bolts[bolt] = consumer
        self._events.append(BoltAdded(at_s=now_s, bolt=bolt, epoch=epoch, slots=slots))
        return consumer

    def remove(
        self,
        bolt: str,
        *,
        now_s: float,
        reason: str,
        lost: bool,
        dispatcher: Dispatcher,
        recovery: Recovery,
        guarantee: ProcessingGuarantee,
    ) -> None:
        """A bolt that is there went; ``lost`` as in ``SpoutCore.remove_bolt``."""
        consumer = self.bolts.pop(bolt)
        consumer.is_gone = True
        consumer.has_room = False
        dispatcher.forget(consumer)
        self._windows[bolt] = consumer.policy.window
        self._former[bolt] = (consumer.acked, consumer.records_acked, consumer.moved_away)
        held = consumer.take_all()
        consumer.strays.clear()
        consumer.service.leave()
        self._counters.bolts_lost += lost
        self._events.append(
            BoltRemoved(at_s=now_s, bolt=bolt, epoch=consumer.epoch, moved=len(held), reason=reason)
        )
        for index, flow_tuple in enumerate(held):
            if not guarantee.sends_again:
                recovery.drop(flow_tuple, bolt, f"bolt {bolt} went: {reason}", now_s)
            elif lost and index < consumer.slots:
                recovery.fault(flow_tuple, bolt, f"bolt {bolt} died: {reason}", now_s)
            else:
                recovery.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)


def _settings_of(settings: CoreSettings, slots: int) -> CoreSettings:
    """With ``window.advertised`` what the bolt tells of itself bounds its window (S28).

    A window of min(window, slots) leaves room only while a slot is free: the spout counts what the
    bolt holds, so no message has to tell which are.
    """
    window = settings.window
    if not window.advertised:
        return settings
    bounded = msgspec.structs.replace(window, max=min(window.max, slots))
    return msgspec.structs.replace(settings, window=bounded)

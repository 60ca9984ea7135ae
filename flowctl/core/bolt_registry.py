"""Bolts come and go; what one held when it went goes to others, or is dropped."""

from __future__ import annotations

import msgspec

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer, NewBolt
from flowctl.core.events import BoltAdded, BoltRemoved
from flowctl.core.failures import Failures
from flowctl.core.settings import CoreSettings


class BoltRegistry:
    """Adds bolts to the book and removes them; remembers the windows and counts of those that went.

    Part of ``TupleCore``; not thread-safe.
    """

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._failures = failures
        self._windows: dict[str, float] = {}  # of bolts that went
        # What a bolt had done before it went, as in NewBolt.
        self._counts: dict[str, tuple[int, int, int]] = {}

    def add(self, new: NewBolt) -> AdaptiveFlowConsumer:
        """A bolt came."""
        bolt, slots, epoch, now_s, *_ = new
        consumer = self._book.consumer_type(
            new._replace(counts=self._counts.get(bolt, new.counts)),
            _settings_of(self._book.settings, slots),
            self._book.events,
            pool=self._book.pool,
            learned=self._windows.get(bolt),
        )
        self._book.add_bolt(consumer)
        self._book.events.append(BoltAdded(at_s=now_s, bolt=bolt, epoch=epoch, slots=slots))
        return consumer

    def remove(self, bolt: str, *, now_s: float, reason: str, lost: bool) -> None:
        """A bolt that is there went; ``lost`` as in ``TupleCore.remove_bolt``."""
        book, failures = self._book, self._failures
        consumer = book.remove_bolt(bolt)
        self._windows[bolt] = consumer.policy.window
        self._counts[bolt] = (consumer.acked, consumer.records_acked, consumer.moved_away)
        held = consumer.take_all()
        failures.stop_doubting(bolt, now_s)
        book.counters.bolts_lost += lost
        book.events.append(
            BoltRemoved(at_s=now_s, bolt=bolt, epoch=consumer.epoch, moved=len(held), reason=reason)
        )
        for index, flow_tuple in enumerate(held):
            if not book.guarantee.sends_again:
                failures.drop(flow_tuple, bolt, f"bolt {bolt} went: {reason}", now_s)
            elif lost and index < consumer.slots:
                why = f"bolt {bolt} died: {reason}"
                failures.fault(flow_tuple, bolt, why, now_s, may_be_target=False)
            else:
                failures.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)


def _settings_of(settings: CoreSettings, slots: int) -> CoreSettings:
    """With ``window.advertised``, the slots that the bolt reports bound its window (S28).

    A window of min(window, slots) leaves room only while a slot is free: the spout counts what the
    bolt holds, so no message has to tell which are.
    """
    window = settings.window
    if not window.advertised:
        return settings
    bounded = msgspec.structs.replace(window, max=min(window.max, slots))
    return msgspec.structs.replace(settings, window=bounded)

"""The end of the input: small shares first, then what was not begun is taken back, then copies.

One face for the other modules of this package: shares, stealing and hedging.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import is_by_completion
from flowctl.core.end_of_input.hedging import Hedging
from flowctl.core.end_of_input.shares import Shares
from flowctl.core.end_of_input.stealing import WorkStealing
from flowctl.core.service import ServicePool
from flowctl.core.settings import HedgeSettings
from flowctl.core.tuples import FlowTuple


class EndOfInput:
    """What changes once the input has ended.  Part of ``TupleCore``, not thread-safe."""

    def __init__(self, book: Book) -> None:
        settings = book.settings
        self._book = book
        self._bolts = book.bolts
        # Blindly in turn is a baseline: what is dealt out stays there, however late.
        self._is_blind = settings.dispatch.choice == "in_turn"
        # Before the end of the input there is nothing to share out where tuples are single records.
        self._is_adaptive = is_by_completion(settings)
        self.cuts_before: bool = self._is_adaptive and settings.tuple.records_max > 1
        self._counters = book.counters
        self._shares = Shares(book)
        self._stealing = WorkStealing(book.bolts, book.revoke)
        hedge = settings.hedge
        if not book.guarantee.sends_again:  # a copy is a second time
            hedge = HedgeSettings(enabled=False)
        self._hedging = Hedging(hedge, book.bolts, book.pending)
        book.idle_listener = self

    def size_of_next(
        self, consumer: AdaptiveFlowConsumer, records: int, left: int, now_s: float
    ) -> int:
        """How many of the ``left`` records ``consumer`` gets, at most ``records``; 0: none now.

        Asked once the input has ended; before that, if ``cuts_before``.
        """
        if self._is_blind:
            return records
        if consumer.service.samples < 2:
            if self._shares.awaits_first(consumer):
                return 0
            records = self._shares.first_of_all(consumer, records)
        if self._shares.is_plenty(consumer, records, left):
            return records
        return self._shares.records_for(consumer, records, left, now_s)

    @property
    def shares(self) -> Shares:
        """How the rest of the input is shared out."""
        return self._shares

    def pick_copy(
        self, pool: ServicePool, now_s: float
    ) -> tuple[FlowTuple, AdaptiveFlowConsumer] | None:
        """Nothing is left to send: ask for what was not begun; return a tuple to run twice."""
        if self._is_blind or not self._is_near:
            return None
        if not self._book.is_all_out:
            self._book.is_all_out = True
            self._stealing.start()
            tuples = self._counters.tuples_emitted
            self._hedging.start(now_s, tuples=tuples, work_s=tuples * pool.mean_s)
        self._stealing.steal()
        return self._hedging.pick(self._stealing.idle, now_s)

    @property
    def _is_near(self) -> bool:
        """Whether what bolts hold is all that is left, as far as is known.

        Most sources tell their end when they are asked again, which may be long after that.
        """
        book = self._book
        if book.input_ended:
            return True
        return self._is_adaptive and bool(book.pending) and book.supply.holds_rest

    def on_more(self) -> None:
        """Something is left after all; once the input has ended that is known not to last."""
        if not self._book.input_ended:
            self._book.is_all_out = False
            self._stealing.stop()
            self._hedging.stop()

    def pick_idle(self, avoid: Set[str]) -> AdaptiveFlowConsumer | None:
        """Return an idle bolt that is not in ``avoid``, for a tuple that goes again."""
        return self._stealing.pick_idle(avoid)

    def next_s(self) -> float | None:
        """When :meth:`pick_copy` should be asked although nothing has happened, or None."""
        if self._book.supply.buffer.records:
            return self._shares.first_look.next_s()
        if not self._is_near:
            return None  # it would not be asked
        return self._hedging.next_s()

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        self._shares.first_look.on_deadline(now_s)

    def note_sent(self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer) -> None:
        """``consumer`` was sent ``flow_tuple`` while all is out."""
        self._stealing.note_given(consumer)
        self._hedging.note_sent(flow_tuple, consumer)

    def note_idle(self, consumer: AdaptiveFlowConsumer) -> None:
        """``consumer`` has nothing to do while all is out."""
        self._stealing.note_idle(consumer)

    def on_answer(self, consumer: AdaptiveFlowConsumer, *, given: bool) -> None:
        """``consumer`` gave back what it could."""
        self._stealing.on_answer(consumer, given=given)

    @property
    def idle_bolts(self) -> Sequence[str]:
        """Bolts that have nothing to do, the longest idle first."""
        return tuple(self._stealing.idle)

    @property
    def questions(self) -> int:
        """How many bolts were asked for what they have not begun, and have not answered yet."""
        return self._stealing.questions

    def forget(self, bolt: str) -> None:
        """``bolt`` went."""
        self._stealing.forget(bolt)

"""The shared sink guard: a global cap on tuples in flight where all bolts wait for one sink.

A bolt that waits in a sink looks busy, so its own window never learns that twelve of them queue
there.  Off unless acks tell that the sink has become slow under load.  Then the smallest cap
that keeps the goodput is searched: by bisection, each cap tried for an epoch, what was tried
before remembered.  Goodput decides, never the sink time alone: that only says where to look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from flowctl.core.events import FlowEvent, SinkCapChanged
from flowctl.core.sink_guard.epoch import Epoch, WindowedMinimum

if TYPE_CHECKING:
    from flowctl.core.pacing.sample import Sample

# On: the sink takes this many times its least of 30 s.  Less is noise or sizes of tuples.
_SLOW_RATIO = 1.5
# A cap holds with this much of the best goodput: what is lost is less than what a queue of a
# fifth of all tuples costs when one of them is late.
_KEPT_SHARE = 0.985
# A larger cap is kept if it gains twice what a smaller one may lose, so that they don't chase
# each other.
_GAIN_SHARE = 1.03
# A cap at which the goodput stays below this share of the best may have been kept by luck: then
# a larger one is kept for less.
_STARVED_SHARE = 0.975
_LITTLE_GAIN_SHARE = 1.005
_DOWN, _UP = 0.8, 1.25
_DOWN_MOST = 0.5  # the first guess may be wrong: never more than halve
_GUESS_ROOM = 1.25  # over the tuples that keep a sink busy if nobody ever met there
# The first step is from two tuples a bolt to one: it costs each bolt a round trip, and a sink that
# gets worse with each caller may be no better yet. Nearly as good is good enough to look further.
_NEAR_SHARE = 0.95
# Neighbours this close need no further step between them.
_CLOSE = 0.1
# A try ends as soon as its goodput is so many standard errors off the mark; below it sooner, as
# a try that fails costs goodput and one given up too early only a larger cap.
_ABOVE_ERRORS, _BELOW_ERRORS = 3.0, 1.5
# More tuples that give this part of what they would give without any sink: it is none.
_FREE_SHARE = 0.5
# What is kept in the end is a little more than the least that does: a sink that runs dry now and
# then costs more than one tuple that waits.
_ROOM = 1.1
# A cap protects the sink if at least this part of what more tuples take longer, they take there.
_PROTECTED_SHARE = 0.1
# The first search must have bought something, or the sink was not the cause: shorter sink calls
# or more goodput.
_QUICKER_SHARE = 0.8
_MORE_SHARE = 1.02
# What the goodput at an unchanged cap is allowed to move, in shares of it and in its own usual
# deviations, before it is another regime.
_CHANGED_SHARE = 0.1
_CHANGED_DEVIATIONS = 4.0
_CHANGED_SINK = 1.2
_FORGET = 0.25  # of the best goodput that is not seen any more, per probe: it may have been noise
_HELD_GAIN = 0.25  # the last four epochs decide what is usual (TCP's gain for deviations)
# Pauses between probes, in units of a second, or of some epochs where those are long: a probe
# that fails costs some 10 % of one epoch, so a fortieth at most at first, then less and less.
_PAUSE_UNIT_S = 1.0
_PAUSE_UNIT_EPOCHS = 2
_PAUSE_MAX = 64
# Where the sink was not the cause at all, be slower to blame it again.
_PAUSE_IN_VAIN = 4
# So many epochs in which the cap was not reached, before it goes: a second.
_UNUSED_EPOCHS = 4


class SinkGuard:
    """Part of ``TupleCore``; not thread-safe.  O(1) per ack; ``cap`` is infinite while off."""

    __slots__ = (
        "_before",
        "_best",
        "_deviation",
        "_epoch",
        "_events",
        "_failed_below",
        "_good",
        "_good_sink",
        "_held",
        "_is_bound",
        "_least",
        "_looks_up",
        "_mark",
        "_must_be_certain",
        "_on_epoch",
        "_pause",
        "_probe_at_s",
        "_probed",
        "_seen_at_s",
        "_unused",
        "cap",
        "in_use",
    )  # fmt: skip

    def __init__(self, events: deque[FlowEvent]) -> None:
        self.cap: float = inf
        self._events = events
        self.in_use: bool = False  # any ack told its sink time
        self._least = WindowedMinimum()
        self._epoch = Epoch()
        self._on_epoch: Callable[[float], None] = self._watch
        self._must_be_certain = False  # this epoch decides on a cap
        self._mark = 0.0  # the goodput that a try must reach [records/s]; 0: not a try
        self._seen_at_s = -inf
        self._is_bound = False
        self._good = 0  # the smallest cap that keeps the goodput, so far
        self._good_sink = 0.0  # sink time per record there [s]
        self._held = 0.0  # goodput there [records/s], smoothed
        self._deviation = 0.0  # how that moves
        self._best = 0.0  # the best goodput of this regime
        self._failed_below = 0  # the largest cap that did not keep it; 0: none
        self._before: tuple[float, float] | None = None  # goodput and sink time without a cap
        self._probed = 0  # the cap that a probe set out from
        self._looks_up = False  # so did the last probe
        self._pause = 1  # until the next probe, in units
        self._probe_at_s = -inf
        self._unused = 0  # epochs in which the cap was not reached

    def has_room(self, in_flight: int) -> bool:
        """Whether one more tuple may be sent."""
        return in_flight < self.cap

    def on_ack(
        self,
        now_s: float,
        *,
        sent_at_s: float,
        records: int,
        sink_s: float | None,
        wait_s: float | None,
        in_flight: int,
        was_limited: bool,
    ) -> None:
        """A tuple is done; ``in_flight`` counts it still, ``was_limited``: windows were full."""
        if sink_s is not None:
            self.in_use = True
            self._least.add(now_s, sink_s, records)
        elif not self.in_use:
            return
        if now_s != self._seen_at_s:  # of acks that come together only the first sees all
            self._seen_at_s = now_s
            self._is_bound = was_limited or in_flight >= self.cap
        epoch = self._epoch
        epoch.add(
            now_s,
            records,
            sent_at_s=sent_at_s,
            sink_s=sink_s,
            wait_s=wait_s,
            in_flight=in_flight,
            is_bound=self._is_bound,
        )
        self._decide(now_s)

    def on_sample(self, now_s: float, sample: Sample, *, sent_at_s: float) -> None:
        """Many calls of a target at once, in place of acks: see :mod:`flowctl.core.pacing`.

        ``sent_at_s``: none of them began before.
        """
        if sample.calls:
            self.in_use = True
            self._least.add_many(now_s, sample.call_s, sample.cost, sample.calls)
        self._epoch.add_many(now_s, sample, sent_at_s=sent_at_s)
        self._decide(now_s)

    def _decide(self, now_s: float) -> None:
        epoch = self._epoch
        if not self._is_decided():
            return
        if epoch.is_bound or self.cap == inf:
            self._on_epoch(now_s)
        else:  # the source was the limit: no cap can be judged by that
            self._note_unused(now_s)

    def _is_decided(self) -> bool:
        epoch = self._epoch
        mark = self._mark
        if mark and epoch.is_telling:
            off, error = epoch.goodput - mark, epoch.error * mark
            if off < -_BELOW_ERRORS * error or (epoch.is_over and off > _ABOVE_ERRORS * error):
                return True
        return epoch.is_over and (not self._must_be_certain or epoch.is_certain)

    # -- the end of an epoch, by what it was for -------------------------------------------

    def _watch(self, now_s: float) -> None:
        """Off: does the sink take much longer than it could, with a backlog?"""
        epoch = self._epoch
        is_due = self._is_slow() and epoch.is_bound and now_s >= self._probe_at_s
        if not is_due or not self._must_be_certain:
            self._must_be_certain = is_due  # the first may hold what a start brought
            epoch.restart(now_s)
            return
        self._before = (epoch.goodput, epoch.sink)
        self._best = 0.0
        self._take(epoch.in_flight)
        self._probed = self._good
        self._failed_below = 0
        self._go_down(now_s, "the sink is slow")

    def _on_less(self, now_s: float) -> None:
        """A smaller cap was tried."""
        epoch = self._epoch
        if epoch.goodput >= self._mark:
            self._take(int(self.cap))
            self._go_down(now_s, "goodput kept")
            return
        further = self._guess(int(self.cap))
        is_first = self._before is not None and self._good == self._probed
        is_near = epoch.goodput >= _NEAR_SHARE * self._best
        if is_first and is_near and further <= _DOWN * self.cap:
            self._set_cap(further, now_s, "the sink is still slow")
            self._enter(self._on_less, now_s, mark=self._mark)
            return
        self._failed_below = int(self.cap)
        self._go_down(now_s, "goodput lost")

    def _guess(self, above: int) -> int:
        """About how many tuples would keep the sink busy if nobody ever met there (Little)."""
        guess = _GUESS_ROOM * self._epoch.needed(self._least.value)
        return max(1, int(max(_DOWN_MOST * above, min(_DOWN * above, guess))))

    def _on_more(self, now_s: float) -> None:
        """A larger cap was tried."""
        epoch = self._epoch
        if epoch.goodput <= self._mark:
            if self._protects():
                self._hold(now_s, "nothing gained")
            else:
                self._stop_in_vain(now_s)
        elif epoch.goodput > (1 + _FREE_SHARE * (self.cap / self._good - 1)) * self._held:
            self._probe_at_s = -inf
            self._stop(now_s, "the sink is not the limit")
        else:
            self._take(int(self.cap))
            self._failed_below = 0
            self._go_up(now_s, "goodput gained")

    def _protects(self) -> bool:
        """Whether the tuples that were more than is good have waited in the sink, not elsewhere."""
        epoch = self._epoch
        more = epoch.in_flight - self._good
        if more <= 0:
            return True  # they were not more
        longer_s = more * epoch.per_tuple / epoch.goodput
        return (epoch.sink - self._good_sink) * epoch.per_tuple >= _PROTECTED_SHARE * longer_s

    def _look_again(self, now_s: float) -> None:
        """The first whole epoch after goodput changed at an unchanged cap."""
        sink = self._epoch.sink
        if _CHANGED_SINK * sink < self._good_sink:
            self._probe_at_s = -inf
            self._stop(now_s, "the sink became faster")
            return
        is_slower = sink > _CHANGED_SINK * self._good_sink
        self._best = 0.0
        self._take(self._good)
        self._failed_below = self._probed = 0
        if is_slower:
            self._go_down(now_s, "the sink became slower")
        else:
            self._go_up(now_s, "goodput changed")

    def _keep(self, now_s: float) -> None:
        """The search is over: see whether the goodput stays, try another cap now and then."""
        epoch = self._epoch
        if epoch.in_flight < self.cap:  # windows are the limit
            self._note_unused(now_s)
            return
        self._unused = 0
        goodput = epoch.goodput
        off = abs(goodput - self._held) if self._held else 0.0
        if off > max(_CHANGED_SHARE * self._held, _CHANGED_DEVIATIONS * self._deviation):
            self._enter(self._look_again, now_s)
            return
        if self._held:
            self._held += _HELD_GAIN * (goodput - self._held)
            self._deviation += _HELD_GAIN * (off - self._deviation)
            self._good_sink += _HELD_GAIN * (epoch.sink - self._good_sink)
        else:
            self._held, self._good_sink = goodput, epoch.sink
            self._deviation = epoch.error * goodput
        if now_s >= self._probe_at_s:
            self._probe(now_s)
        else:
            epoch.restart(now_s)

    def _note_unused(self, now_s: float) -> None:
        self._unused += 1
        if self._unused >= _UNUSED_EPOCHS and not self._is_slow():
            self._pause = 1
            self._probe_at_s = -inf
            self._stop(now_s, "not needed any more")
        else:
            self._epoch.begin(now_s)

    def _is_slow(self) -> bool:
        return self._epoch.sink > _SLOW_RATIO * self._least.value

    # -- steps ---------------------------------------------------------------------------

    def _take(self, cap: int) -> None:
        """``cap`` is good: its epoch is what others are compared with."""
        epoch = self._epoch
        self._good, self._good_sink, self._held = cap, epoch.sink, epoch.goodput
        self._best = max(self._best, epoch.goodput)

    def _go_down(self, now_s: float, reason: str) -> None:
        cap = self._next_below()
        if cap is None:
            self._hold(now_s, reason)
        else:
            self._set_cap(cap, now_s, reason)
            self._enter(self._on_less, now_s, mark=_KEPT_SHARE * self._best)

    def _next_below(self) -> int | None:
        """The next cap to try below the one that is good; None: there is none worth it."""
        good, failed = self._good, self._failed_below
        if failed and good == self._probed:
            return None  # nothing gained at the first step
        if good - failed <= max(1.0, _CLOSE * good):
            return None
        if failed:
            return (good + failed) // 2
        return self._guess(good)

    def _go_up(self, now_s: float, reason: str, *, gain: float = _GAIN_SHARE) -> None:
        self._set_cap(max(self._good + 1, int(_UP * self._good)), now_s, reason)
        self._enter(self._on_more, now_s, mark=gain * self._held)

    def _probe(self, now_s: float) -> None:
        self._probed = self._good
        self._best += _FORGET * (self._held - self._best)
        self._best = max(self._best, self._held)
        self._failed_below = 0
        is_starved = self._held < _STARVED_SHARE * self._best
        self._looks_up = is_starved or not self._looks_up
        if is_starved:
            self._go_up(now_s, "goodput was better", gain=_LITTLE_GAIN_SHARE)
        elif self._looks_up:
            self._go_up(now_s, "probe")
        else:
            self._go_down(now_s, "probe")

    def _hold(self, now_s: float, reason: str) -> None:
        """The search ends: stay at what is good, unless it was for nothing."""
        if self._before is not None:
            goodput, sink = self._before
            self._before = None
            if self._good_sink > _QUICKER_SHARE * sink and self._best < _MORE_SHARE * goodput:
                self._stop_in_vain(now_s)
                return
        if self._good < self._probed or not self._probed:
            self._good = max(self._good + 1, round(_ROOM * self._good))
        is_new = self._good != self._probed
        self._wait(now_s, 1 if is_new else 2 * self._pause)
        self._set_cap(self._good, now_s, reason)
        self._held = 0.0
        self._enter(self._keep, now_s)

    def _wait(self, now_s: float, pause: int) -> None:
        """The next probe comes after so many units; later and later while they find nothing."""
        self._pause = min(_PAUSE_MAX, pause)
        unit_s = max(_PAUSE_UNIT_S, _PAUSE_UNIT_EPOCHS * self._epoch.spent_s)
        self._probe_at_s = now_s + self._pause * unit_s

    def _stop_in_vain(self, now_s: float) -> None:
        self._wait(now_s, max(_PAUSE_IN_VAIN, 2 * self._pause))
        self._stop(now_s, "a cap does not help")

    def _stop(self, now_s: float, reason: str) -> None:
        self._set_cap(inf, now_s, reason)
        self._enter(self._watch, now_s)

    def _enter(self, on_epoch: Callable[[float], None], now_s: float, *, mark: float = 0.0) -> None:
        """The next epoch is for this."""
        self._on_epoch = on_epoch
        self._mark = mark
        self._must_be_certain = on_epoch not in (self._watch, self._keep)
        self._unused = 0
        self._epoch.begin(now_s)

    def _set_cap(self, cap: float, now_s: float, reason: str) -> None:
        before, self.cap = self.cap, cap
        if before != cap:
            shown = [None if c == inf else int(c) for c in (before, cap)]
            self._events.append(
                SinkCapChanged(at_s=now_s, before=shown[0], after=shown[1], reason=reason)
            )

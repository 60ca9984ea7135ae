"""The shared sink guard: a global cap on tuples in flight where all bolts wait for one sink.

A bolt that waits in a sink looks busy, so its own window can't learn that twelve bolts queue there.
The guard is off until acks show that the sink has become slow under load.  Then it searches for the
smallest cap that keeps the goodput (records a second): by bisection, with one epoch for each cap.
Goodput decides; the time in the sink only says when to look.
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

# The search begins when a record takes this many times the shortest sink time of the last 30 s.
# Smaller differences are noise, or come from the sizes of tuples.
_SLOW_RATIO = 1.5
# A smaller cap is kept if it reaches this share of the best goodput.  The 1.5 % that it may lose is
# less than what a queue of a fifth of all tuples costs when one of them is late.
_KEPT_SHARE = 0.985
# A larger cap is kept if it gains this: twice what a smaller one may lose, so that the search does
# not swing between the two.
_GAIN_SHARE = 1.03
# If goodput stays below this share of the best, the cap may have been kept by luck.  Then a gain of
# half a per cent is enough for a larger one.
_STARVED_SHARE = 0.975
_LITTLE_GAIN_SHARE = 1.005
_DOWN, _UP = 0.8, 1.25
_DOWN_MOST = 0.5  # a step at most halves the cap: the first guess may be wrong
_GUESS_ROOM = 1.25  # times the tuples that would keep the sink busy without any queue
# The first step, from two tuples a bolt to one, costs each bolt a round trip, and may not be enough
# for a sink that gets slower with each caller.  This share of the best goodput is reason enough to
# try a still smaller cap.
_NEAR_SHARE = 0.95
# The search ends when the cap that is kept and the one that failed are this close.
_CLOSE = 0.1
# An epoch ends early once its goodput is so many standard errors above or below its mark.  Below it
# fewer are enough: a cap that fails costs goodput, one that is given up too early only leaves the
# cap larger.
_ABOVE_ERRORS, _BELOW_ERRORS = 3.0, 1.5
# If a larger cap gains this share of the linear gain, the sink is not the bottleneck.
_FREE_SHARE = 0.5
# In the end the cap is this much above the smallest one that keeps the goodput: a sink that runs
# dry now and then costs more than a tuple that waits.
_ROOM = 1.1
# A cap protects the sink if at least this share of the added latency is spent in the sink.
_PROTECTED_SHARE = 0.1
# The first search must bring shorter sink calls (this share of the time before) or more goodput
# (this times as much).  Otherwise the sink was not the cause, and the cap goes.
_QUICKER_SHARE = 0.8
_MORE_SHARE = 1.02
# The sink counts as changed if goodput at the same cap moves by more than this share and by more
# than so many of its usual deviations, or if a record takes this many times as long in the sink.
_CHANGED_SHARE = 0.1
_CHANGED_DEVIATIONS = 4.0
_CHANGED_SINK = 1.2
# At each probe the best goodput moves this far to what is seen now: it may have been noise.
_FORGET = 0.25
_HELD_GAIN = 0.25  # the last four epochs decide what is usual (TCP's gain for deviations)
# Pauses between probes grow from one unit to _PAUSE_MAX; a unit is a second, or two epochs if they
# are longer.  A probe that fails costs some 10 % of an epoch: a fortieth of the time at first.
_PAUSE_UNIT_S = 1.0
_PAUSE_UNIT_EPOCHS = 2
_PAUSE_MAX = 64
# In units: before the sink is blamed again after it was not the cause.
_PAUSE_IN_VAIN = 4
# The cap goes after so many epochs in a row that did not reach it: about a second.
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
        self._must_be_certain = False  # a cap is kept or given up by this epoch
        self._mark = 0.0  # goodput that the cap under trial must reach [records/s]; 0: no trial
        self._seen_at_s = -inf
        self._is_bound = False
        self._good = 0  # the smallest cap that keeps the goodput, so far
        self._good_sink = 0.0  # sink time per record there [s]
        self._held = 0.0  # goodput there [records/s], smoothed
        self._deviation = 0.0  # of that, smoothed
        self._best = 0.0  # best goodput since the sink last changed
        self._failed_below = 0  # the largest cap that did not keep the goodput; 0: none
        self._before: tuple[float, float] | None = None  # goodput and sink time without a cap
        self._probed = 0  # the cap from which the current search started
        self._looks_up = False  # whether the last probe tried a larger cap
        self._pause = 1  # until the next probe, in units
        self._probe_at_s = -inf
        self._unused = 0  # epochs in a row that did not reach the cap

    @property
    def variance(self) -> float:
        """How widely the calls of samples differ, see :class:`.epoch.Scatter`."""
        return self._least.scatter.variance

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
        """Take the ack of a tuple, which ``in_flight`` still counts.

        ``was_limited``: windows were full, so the source was not the limit.
        """
        if sink_s is not None:
            self.in_use = True
            self._least.add(now_s, sink_s, records)
        elif not self.in_use:
            return
        # Of acks that arrive together, only the first sees all that were in flight.
        if now_s != self._seen_at_s:
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

        All of these calls began at ``sent_at_s`` or later.
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
        else:  # the source was the limit, which says nothing about the cap
            self._note_unused(now_s)

    def _is_decided(self) -> bool:
        epoch = self._epoch
        mark = self._mark
        if mark and epoch.is_telling:
            off, error = epoch.goodput - mark, epoch.error * mark
            if off < -_BELOW_ERRORS * error or (epoch.is_over and off > _ABOVE_ERRORS * error):
                return True
        return epoch.is_over and (not self._must_be_certain or epoch.is_certain)

    # -- what happens at the end of an epoch -----------------------------------------------

    def _watch(self, now_s: float) -> None:
        """While off: begin a search if the sink is slow and tuples wait for it."""
        epoch = self._epoch
        is_due = self._is_slow() and epoch.is_bound and now_s >= self._probe_at_s
        if not is_due or not self._must_be_certain:
            self._must_be_certain = is_due  # look twice: the first epoch may hold a slow start
            epoch.restart(now_s)
            return
        self._before = (epoch.goodput, epoch.sink)
        self._best = 0.0
        self._take(epoch.in_flight)
        self._probed = self._good
        self._failed_below = 0
        self._go_down(now_s, "the sink is slow")

    def _on_less(self, now_s: float) -> None:
        """A smaller cap was tried: keep it, try a still smaller one, or go back."""
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
        """Return about how many tuples keep the sink busy without a queue (Little's law)."""
        guess = _GUESS_ROOM * self._epoch.needed(self._least.value)
        return max(1, int(max(_DOWN_MOST * above, min(_DOWN * above, guess))))

    def _on_more(self, now_s: float) -> None:
        """A larger cap was tried: keep it and go on, go back, or end the search."""
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
        """Whether the tuples above the good cap waited in the sink, and not elsewhere."""
        epoch = self._epoch
        more = epoch.in_flight - self._good
        if more <= 0:
            return True  # there were none
        longer_s = more * epoch.per_tuple / epoch.goodput
        return (epoch.sink - self._good_sink) * epoch.per_tuple >= _PROTECTED_SHARE * longer_s

    def _look_again(self, now_s: float) -> None:
        """Goodput changed at the same cap, and this is the first whole epoch since: search anew."""
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
        """The search is over: watch whether goodput stays, and probe another cap now and then."""
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
        """Keep ``cap``, and compare others with the epoch that has just ended."""
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
        """Return the next smaller cap to try, or None if none is worth it."""
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
        """End the search at the good cap; without a cap if the search brought nothing."""
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
        """Put the next probe off by ``pause`` units."""
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
        """Begin an epoch, at the end of which ``on_epoch`` is called."""
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
                SinkCapChanged(
                    at_s=now_s,
                    before=shown[0],
                    after=shown[1],
                    reason=reason,
                    goodput=self._held,
                    best=self._best,
                )
            )

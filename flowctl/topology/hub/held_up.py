"""What a topology waits for when nothing makes progress: which stage holds what, since when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from flowctl.core.events import FlowEvent, TreesHeldUp
from flowctl.instrumentation.numbers import clock, count, counted
from flowctl.topology.hub.roots import Roots
from flowctl.topology.hub.stage import Stage

# Reported when no root was done for this long: longer than any tuple should take, and soon enough
# that somebody is still watching.
_TELL_AFTER_S: Final = 10.0
_TELL_EVERY_S: Final = 60.0  # at most this far apart, after reports at 10, 20 and 40 s
_BOLTS_TOLD: Final = 3  # per stage; the others as a number


class HeldUp:
    """Watches whether roots make progress.  Part of ``TopologyCore``, not thread-safe.

    If none was done for long it reports, at growing intervals, who holds what
    (:class:`TreesHeldUp`).
    """

    def __init__(self, stages: Sequence[Stage], roots: Roots, events: deque[FlowEvent]) -> None:
        self._stages = stages
        self._roots = roots
        self._events = events
        self._progress = -1  # rises with what is done
        self._now_s = 0.0
        self._since_s: float | None = None  # None: there is nothing to do
        self._tell_at_s = 0.0
        self._is_at_limit = False

    def look(self, *, is_idle: bool, is_at_limit: bool, now_s: float) -> None:
        """Report, if it is time.  ``is_idle``: there is nothing to do."""
        self._now_s = now_s
        self._is_at_limit = is_at_limit
        if is_idle:
            self._since_s = None
            return
        roots = self._roots
        # What is in no tree is done when its stage has finished it.
        if roots.pending:
            # No root ends while a bolt collects until the end; what it receives counts as progress.
            collecting = sum(stage.done for stage in self._stages if stage.plan.has_end)
            progress = roots.ended + collecting
        else:
            progress = sum(stage.done for stage in self._stages)
        if self._since_s is None or progress != self._progress:
            self._progress = progress
            self._since_s = now_s
            self._tell_at_s = now_s + _TELL_AFTER_S
        elif now_s >= self._tell_at_s:
            self._tell(now_s, now_s - self._since_s)

    def _tell(self, now_s: float, quiet_s: float) -> None:
        self._tell_at_s = now_s + min(_TELL_EVERY_S, quiet_s)
        self._events.append(
            TreesHeldUp(at_s=now_s, quiet_s=quiet_s, roots=self._roots.pending, held=self.held())
        )

    @property
    def is_stuck(self) -> bool:
        """Whether nothing was done for so long that it was reported."""
        return self._since_s is not None and self._now_s - self._since_s >= _TELL_AFTER_S

    def next_s(self) -> float | None:
        """When :meth:`look` wants to be called, or None."""
        return self._tell_at_s if self._since_s is not None else None

    def held(self) -> tuple[str, ...]:
        """Who holds what, as of the last look."""
        roots = self._roots
        found = [line for stage in self._stages for line in holdings(stage, self._now_s)]
        if roots.to_go_again:
            wait = "waits" if roots.to_go_again == 1 else "wait"
            found.append(f"{counted(roots.to_go_again, 'root')} {wait} to be sent again")
        waiting = roots.intake.buffer.records
        if waiting and self._is_at_limit:
            found.append(f"max_pending holds back {counted(waiting, 'record')}")
        return tuple(found)


def holdings(stage: Stage, now_s: float) -> Iterator[str]:
    """Describe what ``stage`` has that is not done."""
    held = [(bolt, len(of), min(of.values())) for bolt, of in stage.held.items() if of]
    if held:
        yield f"stage {stage.name!r} holds {_at_bolts(held, now_s)}"
    begun = [
        (bolt.bolt, bolt.records_held, next(iter(bolt.flight.values())).sent_at_s)
        for core in stage.cores
        for bolt in core.bolts.values()
        if bolt.flight
    ]
    if begun:
        yield f"stage {stage.name!r} works on {_at_bolts(begun, now_s)}"
    if stage.waiting:
        nobody = "" if stage.is_served else ", and a bolt is missing"
        yield f"stage {stage.name!r} has {_inputs(stage.waiting)} waiting{nobody}"
    if stage.refused_now:
        yield f"stage {stage.name!r} has {_inputs(stage.refused_now)} that its target refused"


def _at_bolts(found: list[tuple[str, int, float]], now_s: float) -> str:
    """Those that have the oldest come first."""
    found.sort(key=lambda each: each[2])
    told = [
        f"{count(inputs) if index else _inputs(inputs)} at {bolt} since {_since(now_s - since_s)}"
        for index, (bolt, inputs, since_s) in enumerate(found[:_BOLTS_TOLD])
    ]
    rest = found[_BOLTS_TOLD:]
    if rest:
        told.append(f"and {count(sum(inputs for _, inputs, _ in rest))} at {len(rest)} more")
    return ", ".join(told)


def _inputs(number: int) -> str:
    return counted(number, "input")


def _since(seconds: float) -> str:
    return f"{round(seconds)} s" if seconds < 59.5 else clock(round(seconds))

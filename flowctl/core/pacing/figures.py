"""What the processes of a job report about the targets that they pace, summed up for display."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from flowctl.core.pacing.leases import Claim, Sums

# -- Reports of all that share a target, from the shared store, for display ----------------


class StoredUse(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of a quota in the window that is now: ``amount`` of it may be.

    ``quota``: unit and window, ``calls/day``; ``reset_s``: in how long the window ends, None:
    never.  ``by_job`` has what each job used.
    """

    quota: str
    amount: float
    used: float
    reset_s: float | None
    by_job: Mapping[str, float]

    @property
    def left(self) -> float:
        """What nobody has used."""
        return max(0.0, self.amount - self.used)


class StoredTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one target.

    A worker used it ``seen_s`` ago.  ``recent``: the sums of the last ``recent_s`` seconds of its
    use; ``jobs``: all sums, by job.  ``leased``: permits that workers hold.  ``operator``: bounds
    set by hand.  ``rate``: the rate it takes [cost/s], as far as that was learned.  ``quotas``: in
    the order of their names.
    """

    target: str
    limit: int
    reason: str
    budget: float | None
    leased: int
    seen_s: float
    recent: Sums
    recent_s: float
    jobs: Mapping[str, Sums]
    claims: tuple[Claim, ...]
    operator: Mapping[str, float]
    rate: float | None = None
    quotas: tuple[StoredUse, ...] = ()

    @property
    def used(self) -> float:
        """Calls in flight, on average over ``recent_s``, counting calls that ended (Little's
        law).
        """
        return self.recent.call_s / self.recent_s if self.recent_s else 0.0

    @property
    def calls_per_s(self) -> float:
        """Calls a second that succeeded."""
        return self.recent.calls / self.recent_s if self.recent_s else 0.0

    @property
    def cost_per_s(self) -> float:
        """Cost a second of calls that succeeded."""
        return self.recent.cost / self.recent_s if self.recent_s else 0.0


# -- What the processes of a job report about the targets that they pace, summed up for peopl --


# Averages are over this time: as far back as `flowctl targets` looks, at least.
OVER_S: Final = 10.0
# Targets that a process reports at once; a view shows fewer.
TARGETS_MAX: Final = 16
# A process reports once a second; one that is silent for this long [s] has ended, or calls no
# target.
SILENT_S: Final = 5.0
# A process with several bolts reports more than once a second; more would add nothing.
_STEP_S: Final = 0.9


class TargetFigures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one process knows of a target that it calls.

    ``process`` is the same in all reports of a process.  ``is_shared``: the limit is for all
    processes that share the target together; False: this process has learned it alone.  The sums
    are as in :class:`flowctl.core.pacing.leases.Sums`, since the process began.
    """

    process: str
    target: str
    job: str
    limit: int
    reason: str
    is_shared: bool
    calls: int = 0
    call_s: float = 0.0
    refused: int = 0
    waited_s: float = 0.0

    @property
    def sums(self) -> Sums:
        """The same sums; figures that were not reported are 0."""
        return Sums(
            calls=self.calls, call_s=self.call_s, refused=self.refused, waited_s=self.waited_s
        )


class TargetView(msgspec.Struct, frozen=True, kw_only=True):
    """A target that a run's processes call: its limit, and what this run uses of it.

    ``limit``: calls at once of all processes that share the target, ``reason`` says why.
    ``alone``: how many processes have learned a separate limit; ``limit`` is the sum of these.
    ``used``: this run's calls in flight, on average over the last :data:`OVER_S` seconds, as are
    ``calls_per_s`` and ``refused_share``, 0 to 1.  ``waited_s``: how long its calls waited so far,
    all together.
    """

    target: str
    limit: int
    reason: str
    used: float
    calls_per_s: float
    refused_share: float
    waited_s: float
    alone: int = 0


class _Told(NamedTuple):
    at_s: float
    figures: TargetFigures


class SeenTargets:
    """What processes reported.  Pure; not thread-safe; O(1) per report."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, str], deque[_Told]] = {}
        self._silent: dict[tuple[str, str, str], float] = {}  # how long their calls had waited

    def take(self, figures: TargetFigures, now_s: float) -> None:
        """Take the report of a process.  Several of its bolts may report the same."""
        key = figures.process, figures.target, figures.job
        told = self._told.setdefault(key, deque())
        self._silent.pop(key, None)
        if told and now_s - told[-1].at_s < _STEP_S:
            return
        told.append(_Told(now_s, figures))
        while now_s - told[0].at_s > OVER_S and len(told) > 2:
            told.popleft()

    def views(self, now_s: float) -> tuple[TargetView, ...]:
        """Return the targets that are called now, by name."""
        self._forget(now_s)
        by_target: dict[str, list[deque[_Told]]] = {}
        for (_, target, _), told in self._told.items():
            by_target.setdefault(target, []).append(told)
        return tuple(self._view(name, by_target[name]) for name in sorted(by_target))

    def _forget(self, now_s: float) -> None:
        for key, told in list(self._told.items()):
            if now_s - told[-1].at_s > SILENT_S:
                self._silent[key] = told[-1].figures.waited_s
                del self._told[key]

    def _view(self, target: str, all_told: list[deque[_Told]]) -> TargetView:
        used = calls_per_s = 0.0
        lately = Sums()
        for told in all_told:
            done, span_s = _lately(told)
            lately = lately.plus(done)
            if span_s > 0:
                used += done.call_s / span_s
                calls_per_s += done.calls / span_s
        newest = sorted(all_told, key=lambda told: told[-1].at_s)
        figures = [told[-1].figures for told in newest]
        shared = [each for each in figures if each.is_shared]
        alone = [each for each in figures if not each.is_shared]
        waited_s = sum(each.waited_s for each in figures)
        waited_s += sum(each_s for key, each_s in self._silent.items() if key[1] == target)
        return TargetView(
            target=target,
            limit=(shared[-1].limit if shared else 0) + sum(each.limit for each in alone),
            reason=(shared or figures)[-1].reason,
            used=used,
            calls_per_s=calls_per_s,
            refused_share=lately.refused_share,
            waited_s=waited_s,
            alone=len({each.process for each in alone}),
        )


def _lately(told: deque[_Told]) -> tuple[Sums, float]:
    """Return the sums since the oldest report kept, and over how many seconds."""
    first, last = told[0], told[-1]
    return last.figures.sums.minus(first.figures.sums), last.at_s - first.at_s

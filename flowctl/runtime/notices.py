"""Notices of the bolts' supervisor: shown, kept, and used to end a run for lack of bolts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from flowctl.errors import BoltsUnavailableError
from flowctl.instrumentation.numbers import counted
from flowctl.ports import BoltNotice, Bolts
from flowctl.runtime.control import RunControl


@runtime_checkable
class FollowingBolts(Protocol):
    """Bolts that may be as many as there is room for, ``count`` at most."""

    @property
    def follows_slots(self) -> bool:
        """Whether they are."""


def expected_of(bolts: Bolts) -> str:
    """Return how many there will be, for people: ``4 bolts``."""
    if isinstance(bolts, FollowingBolts) and bolts.follows_slots:
        return "bolts for all slots"
    return counted(bolts.count, "bolt")


class Notices:
    """Notices of one run.  :meth:`put` is for any thread, the rest for one.

    ``bolts`` are those that are expected; ``say`` shows a line; ``on_notice`` gets each notice.
    """

    def __init__(
        self,
        control: RunControl,
        *,
        bolts: Bolts,
        say: Callable[[str], None],
        on_notice: Callable[[BoltNotice], None] | None,
    ) -> None:
        self._control = control
        self._count = bolts.count
        self._expected = expected_of(bolts)
        self._say = say
        self._on_notice = on_notice
        self._new: deque[BoltNotice] = deque()
        self._fatal: dict[str, BoltNotice] = {}
        self._waiting: dict[str, BoltNotice] = {}
        self._starting = ""  # what has to start before the bolts: Spark

    def put(self, notice: BoltNotice) -> None:
        """A notice came."""
        self._new.append(notice)

    def take(self) -> None:
        """Show what is new, and drop "waiting" notices of bolts that have connected since."""
        while self._new:
            notice = self._new.popleft()
            if self._on_notice is not None:
                self._on_notice(notice)
            self._take(notice)
        for bolt in list(self._waiting):
            if bolt in self._control.core.bolts:
                del self._waiting[bolt]

    def _take(self, notice: BoltNotice) -> None:
        if notice.kind == "fatal":
            self._fatal[notice.bolt] = notice
            self._say(f"{notice.bolt or 'bolts'}: {notice.detail} {notice.remedy}")
        elif notice.kind == "waiting":
            if not self._waiting:
                self._say(self._waits(notice))
            self._waiting[notice.bolt] = notice
        elif notice.kind == "warning":
            self._say(f"{notice.detail} {notice.remedy}")
        elif notice.kind == "starting":
            self._starting = notice.detail
        elif notice.kind == "restarting":
            self._say(f"{notice.bolt} restarts: {notice.detail}")

    def note(self) -> str:
        """Return what the run is waiting for, "" if nothing is missing."""
        if self._waiting:
            return self._waits(next(iter(self._waiting.values())))
        if not self._control.core.bolts:
            what = f"starting {self._starting}, " if self._starting else ""
            return f"{what}waiting for {self._expected}"
        return ""

    def _waits(self, notice: BoltNotice) -> str:
        return f"{notice.detail}: {len(self._control.core.bolts)} of {self._expected} run"

    def check(self, absent_s: float, timeout_s: float) -> None:
        """No bolt was heard for ``absent_s``: end the run if none will come, or if that is too
        long."""
        if len(self._fatal) >= self._count or "" in self._fatal:
            notice = next(iter(self._fatal.values()))
            self._control.fail(BoltsUnavailableError(notice.detail, remedy=notice.remedy))
        elif absent_s > timeout_s:
            self._control.fail(
                BoltsUnavailableError(
                    f"no bolt has been heard from for {absent_s:.0f} s. {self.note()}",
                    remedy="Check the workers' logs; raise start.bolts_timeout_s if they are"
                    " slow to start.",
                )
            )

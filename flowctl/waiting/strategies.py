"""How a loop waits when it has nothing to do: by situation, in steps, and never past a stop.

:class:`Blocking`, the default, waits until it is woken: the sender by messages from bolts or by the
core's next deadline, a bolt by a tuple, both by the end of the run. :class:`Progressive` and
:class:`Park` check again after a while even if they are not woken; they are for users who want the
waits of Storm, at the cost that docs/adr/0011-waits.md gives.

What a wait costs (Python 3.11 on Linux, two cores; median):

=======================  =====================  =============================================
asked for                alone                  beside a thread that computes in Python
=======================  =====================  =============================================
no wait                  0.2 us                 0.2 us; the interpreter is kept, so the other
                                                one gets it every 5 ms only
park 1 ns                80 us                  5.2 ms: the other one keeps the interpreter
                                                for its switch interval
park 100 us              190 us                 5.3 ms
sleep 1 ms               1.1 ms                 6.2 ms
=======================  =====================  =============================================

So Python has no park of 1 ns: level 2 of :class:`Progressive` is the shortest wait that lets others
run.  The counters count turns; 1000 such turns take 80 ms, not 50.  If the wait is for a socket
(the sender, a bolt that can't send) the system counts in milliseconds: level 2 takes 1 ms there
too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

from flowctl.config import WaitSettings, WaitStrategyName
from flowctl.errors import UnknownNameError

# Wait for at most this many seconds (0: not at all), or until woken; raise WaitInterrupted when
# told to stop.
Parking: TypeAlias = Callable[[float], None]

# level 2 as in the requirements; the table above says how long it really takes
_SHORTEST_S: Final = 1e-9
SYSTEM_PARK_US: Final = 5000  # no caller waits for a metrics task
# The longest wait [s]: a wake-up that a defect loses costs this time and not a hang, and two
# wake-ups a second cost nothing (a bolt sends heartbeats twice as often).
BLOCKING_MAX_S: Final = 0.5


class WaitInterrupted(Exception):
    """The loop was told to stop while it waited, or before: its normal end, not an error."""


class WaitSituation(enum.Enum):
    """Why a loop waits."""

    SPOUT_WAIT = "spout"  # the sender has nothing to send, or has reached the limit of pending
    BOLT_WAIT = "bolt"  # a bolt has nothing to take
    BACK_PRESSURE_WAIT = "backpressure"  # windows are full; or a bolt's connection takes no more

    @classmethod
    def _missing_(cls, value: object) -> WaitSituation:
        known = ", ".join(repr(situation.value) for situation in cls)
        raise UnknownNameError(
            "situation",
            f"{value!r} is not a situation.",
            remedy=f"Use a WaitSituation, or one of {known}.",
        )


class WaitStrategy(Protocol):
    """What a loop does once when it finds nothing to do.

    :meth:`idle` keeps no state and may be called from several threads.  The counter belongs to the
    caller, who resets it to 0 when work appears.
    """

    def prepare(self, settings: WaitSettings, situation: WaitSituation) -> None:
        """Take the numbers of ``situation``; call it before the first :meth:`idle`.

        Raises :class:`flowctl.errors.UnknownNameError` (a ``ValueError``) for an unknown situation.
        """

    def idle(self, counter: int) -> int:
        """Wait, or not; return the counter for the next call.  Raises :class:`WaitInterrupted`."""


class _Numbers(NamedTuple):
    strategy: WaitStrategyName
    level1_count: int
    level2_count: int
    level3_sleep_ms: int
    park_us: int


def _numbers(s: WaitSettings, situation: WaitSituation) -> _Numbers:
    match WaitSituation(situation):
        case WaitSituation.SPOUT_WAIT:
            return _Numbers(
                s.spout_strategy,
                s.spout_level1_count,
                s.spout_level2_count,
                s.spout_level3_sleep_ms,
                s.spout_park_us,
            )
        case WaitSituation.BOLT_WAIT:
            return _Numbers(
                s.bolt_strategy,
                s.bolt_level1_count,
                s.bolt_level2_count,
                s.bolt_level3_sleep_ms,
                s.bolt_park_us,
            )
        case WaitSituation.BACK_PRESSURE_WAIT:
            return _Numbers(
                s.backpressure_strategy,
                s.backpressure_level1_count,
                s.backpressure_level2_count,
                s.backpressure_level3_sleep_ms,
                s.backpressure_park_us,
            )


class Blocking:
    """Waits until woken, :data:`BLOCKING_MAX_S` at most."""

    __slots__ = ("_park",)

    def __init__(self, park: Parking) -> None:
        self._park = park

    def prepare(self, settings: WaitSettings, situation: WaitSituation) -> None:
        _numbers(settings, situation)  # it uses no numbers, but the situation must be valid

    def idle(self, counter: int) -> int:
        self._park(BLOCKING_MAX_S)
        return counter + 1


class Progressive:
    """First no wait, then the shortest possible one, then sleeps of constant length.

    The counter stops growing at the third level, so that a long wait never starts over.  Cheap
    while work is expected soon, and without load when it is not.
    """

    __slots__ = ("_level1_until", "_level2_until", "_park", "_sleep_s")

    def __init__(self, park: Parking) -> None:
        self._park = park

    def prepare(self, settings: WaitSettings, situation: WaitSituation) -> None:
        numbers = _numbers(settings, situation)
        self._level1_until = numbers.level1_count
        self._level2_until = numbers.level1_count + numbers.level2_count
        self._sleep_s = numbers.level3_sleep_ms / 1e3

    def idle(self, counter: int) -> int:
        if counter < self._level1_until:
            self._park(0.0)
            return counter + 1
        if counter < self._level2_until:
            self._park(_SHORTEST_S)
            return counter + 1
        self._park(self._sleep_s)
        return counter


class Park:
    """Waits always for the same time; 0 means to spin, and returns 1."""

    __slots__ = ("_park", "_park_s")

    def __init__(self, park: Parking) -> None:
        self._park = park

    @classmethod
    def of(cls, park_us: int, park: Parking) -> Park:
        """Return a prepared strategy, whatever the settings."""
        strategy = cls(park)
        strategy._park_s = park_us / 1e6
        return strategy

    def prepare(self, settings: WaitSettings, situation: WaitSituation) -> None:
        self._park_s = _numbers(settings, situation).park_us / 1e6

    def idle(self, counter: int) -> int:
        self._park(self._park_s)
        return counter + 1 if self._park_s else 1


_STRATEGIES: Final[dict[WaitStrategyName, Callable[[Parking], WaitStrategy]]] = {
    "blocking": Blocking,
    "progressive": Progressive,
    "park": Park,
}


def make_wait_strategy(
    settings: WaitSettings, situation: WaitSituation, *, park: Parking, is_system: bool = False
) -> WaitStrategy:
    """Return the prepared strategy that ``settings`` name for ``situation``.

    The requirements make :class:`Progressive` the default of all three; here it is
    :class:`Blocking`, because all our loops can be woken, and polling costs an idle job a quarter
    of a core for nothing (ADR 11). If chosen, :class:`Progressive` uses the numbers of the
    requirements.

    ``is_system``: for a part of flowctl itself (acker, metrics), which parks 5 ms whatever the
    settings say.  Raises :class:`flowctl.errors.UnknownNameError`, a ``ValueError``, for
    an unknown situation.
    """
    situation = WaitSituation(situation)
    if is_system:
        return Park.of(SYSTEM_PARK_US, park)
    strategy = _STRATEGIES[_numbers(settings, situation).strategy](park)
    strategy.prepare(settings, situation)
    return strategy

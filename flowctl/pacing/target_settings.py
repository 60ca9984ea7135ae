"""The arguments of ``paced`` for a target, checked once."""

from __future__ import annotations

import math
import reprlib
from functools import lru_cache
from numbers import Integral
from typing import Any, TypeAlias

import msgspec

from flowctl.core.pacing.law import Bounds
from flowctl.core.pacing.quotas import Quota
from flowctl.errors import ConfigError, with_article
from flowctl.pacing.budgets import bounds_of, is_number

# No process has more threads or tasks than this in calls; far above any limit that is learned.
_IN_FLIGHT_MOST = 100_000


# Leave, limits, budget and spend_max, as they were given.
Shared: TypeAlias = tuple[Any, Any, Any, Any]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds for the limit that is learned for a target; all have defaults.

    ``in_flight_min`` and ``in_flight_max`` bound the calls at once, over all callers of the target.
    ``in_flight_start`` is the limit before anything is known.  ``give_up_after_s``: a call that is
    refused for this long [s] raises the last refusal; ``math.inf``: it never gives up.
    """

    in_flight_min: int = 1
    # What a thousand workers do at once. A target without any limit needs none from us.
    in_flight_max: int = 1000
    # Even a small database takes four; doubling while that helps, 64 is only four steps away.
    in_flight_start: int = 4
    # As retry.give_up_after_s: longer than the failover of a managed database.
    give_up_after_s: float = 600.0

    @property
    def bounds(self) -> Bounds:
        """Return these limits in the form that the control law takes."""
        return Bounds(self.in_flight_min, self.in_flight_max, self.in_flight_start)


class PaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all calls of a process to one target have in common.

    ``redis``: a URL, None: this process alone.  ``weight``: the share of ``job`` beside others.
    ``leave``: the part of what was learned that is left to others, 0 to below 1.  ``budget``: cost
    a second over all that share the target; ``quotas``: what is left of theirs after ``leave``.
    """

    target: str
    redis: str | None = None
    job: str = ""
    weight: float = 1.0
    leave: float = 0.0
    limits: Limits = Limits()
    budget: float | None = None
    quotas: tuple[Quota, ...] = ()

    @property
    def rate(self) -> float:
        """The cost per second that may be used; infinite without a budget."""
        return math.inf if self.budget is None else self.budget * (1 - self.leave)


def settings_of(
    target: str,
    redis: str | None,
    job: str,
    weight: float,
    shared: Shared,
) -> PaceSettings:
    """Return the checked settings; ``shared`` is leave, limits, budget and spend_max.

    Raises :class:`ConfigError` that names the parameter.
    """
    try:
        return _known(target, redis, job, weight, shared)
    except TypeError:  # a list or a dict, which no field takes: the checks report which one it is
        return _checked(target, redis, job, weight, shared)


def _checked(
    target: str,
    redis: str | None,
    job: str,
    weight: float,
    shared: Shared,
) -> PaceSettings:
    leave, limits, budget, spend_max = shared
    _check_names(target, redis, job)
    _check_number("weight", weight, above=0)
    if not is_number(leave) or not 0 <= leave < 1:
        shown = reprlib.repr(leave)
        raise ConfigError("leave", f"must be 0 or more and below 1, got {shown}.", remedy=_LEAVE)
    bounds = bounds_of(budget, spend_max, leave=leave, job=job)
    return PaceSettings(
        target=target,
        redis=redis,
        job=job,
        weight=float(weight),
        leave=float(leave),
        limits=checked_limits(limits),
        budget=bounds.rate,
        quotas=bounds.quotas,
    )


def _check_names(target: Any, redis: Any, job: Any) -> None:
    if callable(target):
        raise ConfigError(
            "target",
            "is a function.",
            remedy="Write @paced('pg-main'). Of a row, flow_sink(…) and apply(…) take a function.",
        )
    if not isinstance(target, str) or not target or set(target) & set("{}\n"):
        raise ConfigError(
            "target",
            f"{target!r} can't be the name of a target.",
            remedy="Give a name without braces and line breaks, such as 'pg-main'.",
        )
    if not isinstance(job, str):
        raise ConfigError(
            "name",
            f"is {with_article(type(job).__name__)}.",
            remedy="Give text, or leave it out.",
        )
    if redis is not None and not isinstance(redis, str):
        raise ConfigError(
            "redis",
            f"is {with_article(type(redis).__name__)}.",
            remedy="Give a URL: redis://host:6379/0.",
        )


# A ``with paced(…)`` per call must not check the same arguments each time.
_known = lru_cache(maxsize=1024)(_checked)
_LEAVE = "Give the part of the target that is left to others: leave=0.2."


def checked_limits(limits: Limits | None) -> Limits:
    """Return ``limits``, or the defaults; raise :class:`ConfigError` for limits that can't be
    met.
    """
    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        raise ConfigError(
            "limits", f"is {with_article(type(limits).__name__)}.", remedy="Give flowctl.Limits(…)."
        )
    least, most, start = limits.in_flight_min, limits.in_flight_max, limits.in_flight_start
    for name in ("in_flight_min", "in_flight_max", "in_flight_start"):
        value = getattr(limits, name)
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise ConfigError(
                "limits",
                f"{name} must be a whole number, got {reprlib.repr(value)}.",
                remedy="Give one.",
            )
    if not 1 <= least <= most <= _IN_FLIGHT_MOST:
        raise ConfigError(
            "limits",
            f"in_flight_min={least} and in_flight_max={most} can't both be met.",
            remedy=f"Give 1 <= in_flight_min <= in_flight_max <= {_IN_FLIGHT_MOST}.",
        )
    if start < 1:
        raise ConfigError(
            "limits", f"in_flight_start must be 1 or more, got {start}.", remedy="Leave it out."
        )
    if not is_number(limits.give_up_after_s) or not limits.give_up_after_s > 0:  # may be endless
        raise ConfigError(
            "limits",
            f"give_up_after_s must be greater than 0, got {reprlib.repr(limits.give_up_after_s)}.",
            remedy="Give seconds.",
        )
    return limits


def _check_number(field: str, value: Any, *, above: float) -> None:
    if not is_number(value) or not above < value < math.inf:
        raise ConfigError(
            field, f"must be greater than {above}, got {reprlib.repr(value)}.", remedy=_NUMBER
        )


_NUMBER = "Give a number."


def checked_seconds(seconds: Any) -> None:
    """Raise :class:`ConfigError` unless ``seconds`` are a number, 0 or more."""
    if not is_number(seconds) or not seconds >= 0:  # nan is refused
        raise ConfigError(
            "retry_after_s",
            f"must be 0 or more, got {reprlib.repr(seconds)}.",
            remedy="Give seconds; or pass the error to call.failed, which reads the header.",
        )

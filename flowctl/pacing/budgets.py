"""What people write for the quotas of a target: ``["500/min", "90k tokens/min", "10k/day"]``.

The only place where they are read, for all doors.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from math import inf
from numbers import Real
from typing import Any, Final, NamedTuple, TypeAlias

from flowctl.core.pacing.quotas import CALLS, DAY_S, HOUR_S, Quota
from flowctl.errors import ConfigError, QuotaUsedUpError, SpentError

#: A cost per second, a quota, or several of them.
Budget: TypeAlias = "float | str | Sequence[float | str]"
#: What a call takes: of the only unit that is no call, or by unit.
Cost: TypeAlias = "float | Mapping[str, float]"

_UNIT = r"[A-Za-z][A-Za-z_]*|[$€£]"
_QUOTA: Final = re.compile(
    rf"(?P<money>[$€£])?\s*(?P<amount>\d[\d_,]*(?:\.\d+)?|\.\d+)\s?(?P<scale>[kKMG](?![A-Za-z]))?"
    rf"\s*(?P<unit>{_UNIT})??\s*(?:/|\bper\b)\s*(?P<times>\d+)?\s*(?P<window>[A-Za-z]+)"
    r"(?:\s+(?P<zone>[A-Za-z_]+(?:/[A-Za-z_+\-0-9]+)*))?"
)
_MONEY: Final = re.compile(
    r"(?P<money>[$€£])?\s*(?P<amount>\d[\d_,]*(?:\.\d+)?)\s*(?P<unit>[$€£])?"
)
# Not the comma of 10,000.
_COMMA: Final = re.compile(r"(?<!\d),|,(?!\d{3}(?!\d))")
_SCALES: Final = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_WINDOWS: Final = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("s", 1.0)),
    **dict.fromkeys(("min", "minute", "minutes"), ("min", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("hour", HOUR_S)),
    **dict.fromkeys(("d", "day"), ("day", DAY_S)),
    "month": ("month", 31 * DAY_S),
}
_CALLS: Final = ("", "call", "calls", "request", "requests", "req")
_HOW: Final = (
    'Write it as "500/min", "90k tokens/min", "10k/day" or "$20/day": windows are s, min, hour, day'
    ' and month, or 10s, 5min; a day may have a zone: "10k/day America/Los_Angeles".'
)


class Bounds(NamedTuple):
    """What a budget means: ``rate`` [cost/s], None without one, and quotas."""

    rate: float | None
    quotas: tuple[Quota, ...]


def bounds_of(budget: Any, spend_max: Any = None, *, leave: float = 0.0, job: str = "") -> Bounds:
    """Return what ``budget`` and ``spend_max`` mean; raise :class:`ConfigError` for others.

    ``leave`` of each quota is left to others.
    """
    given = _parts(budget)
    rates = [each for each in given if not isinstance(each, str)]
    if len(rates) > 1:
        raise ConfigError("budget", f"has {len(rates)} numbers.", remedy=_HOW)
    quotas = [_quota(each) for each in given if isinstance(each, str)]
    if spend_max is not None:
        quotas.append(_spend(spend_max, job))
    names = [quota.key for quota in quotas]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("budget", f"has {name} twice.", remedy="Give the smaller one.")
    kept = tuple(q._replace(amount=q.amount * (1 - leave)) for q in quotas)
    return Bounds(_rate(rates[0]) if rates else None, kept)


def _parts(budget: Any) -> list[Any]:
    if budget is None:
        return []
    if isinstance(budget, str):
        return [_plain(each) for each in _COMMA.split(budget)]
    if isinstance(budget, Iterable) and not isinstance(budget, Mapping):
        return [each for one in budget for each in _parts(one)]
    return [budget]


def _plain(text: str) -> Any:
    """Return a number for text that is one, as an option of Spark is always text."""
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _rate(rate: Any) -> float:
    if not is_number(rate) or not 0 < rate < inf:
        shown = reprlib.repr(rate)
        raise ConfigError("budget", f"must be greater than 0, got {shown}.", remedy=_HOW)
    return float(rate)


def _quota(text: str) -> Quota:
    found = _QUOTA.fullmatch(text)
    window = _WINDOWS.get(found["window"]) if found else None
    if found is None or window is None or (found["money"] and found["unit"]):
        raise ConfigError("budget", f"{text!r} is not a quota.", remedy=_HOW)
    name, window_s = window
    if times := int(found["times"] or 1) - 1:
        name, window_s = f"{times + 1}{name}", (times + 1) * window_s
    if window_s > HOUR_S and times:
        raise ConfigError("budget", f"{text!r}: a window of several hours.", remedy=_HOW)
    amount = _amount("budget", text, found["amount"], found["scale"])
    unit = found["money"] or found["unit"] or ""
    unit = CALLS if unit in _CALLS else unit
    return Quota(amount, unit, name, window_s, _zone(text, found["zone"], window_s))


def _amount(field: str, text: str, amount: str, scale: str | None = None) -> float:
    number = float(re.sub("[_,]", "", amount)) * _SCALES[scale or ""]
    if not 0 < number < inf:
        raise ConfigError(field, f"{text!r} allows nothing.", remedy="Give more than 0.")
    return number


def _zone(text: str, zone: str | None, window_s: float) -> str:
    if zone is None or zone == "UTC":
        return "UTC"
    from zoneinfo import ZoneInfo

    try:
        if window_s < DAY_S:
            raise ValueError(zone)
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            "budget", f"{text!r}: {zone} is no time zone that counts here.", remedy=_HOW
        ) from None
    return zone


def _spend(given: Any, job: str) -> Quota:
    text = f"{given:g} $" if is_number(given) else given
    found = _MONEY.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or bool(found["money"]) == bool(found["unit"]):
        raise ConfigError("spend_max", f"{given!r} is no sum of money.", remedy='Write "$20".')
    amount = _amount("spend_max", text, found["amount"])
    return Quota(amount, found["money"] or found["unit"], "ever", inf, job=" ".join(job.split()))


def is_number(value: Any) -> bool:
    """Whether ``value`` can be a float; numpy's numbers are fine, as sums over columns are some."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


# -- What a call takes ---------------------------------------------------------------------------


def check_cost(cost: Any) -> Any:
    """Return ``cost`` in floats; raise :class:`ConfigError` unless it is a number above 0, or a
    mapping of numbers of 0 or more by unit.
    """
    if isinstance(cost, Mapping):
        for unit, number in cost.items():
            if not isinstance(unit, str) or not is_number(number) or not 0 <= number < inf:
                shown = f"{reprlib.repr(unit)}: {reprlib.repr(number)}"
                raise ConfigError("cost", f"{shown} is not a cost.", remedy=_HOW_COST)
        return {unit: float(number) for unit, number in cost.items()}
    if not is_number(cost) or not 0 < cost < inf:
        shown = reprlib.repr(cost)
        raise ConfigError(
            "cost", f"must be a number greater than 0, got {shown}.",
            remedy="Leave it out, or give a size.",
        )  # fmt: skip
    return float(cost)


_HOW_COST: Final = 'Give a number, or numbers by unit: {"tokens": 812, "$": .002}.'


def total_of(cost: Cost | None) -> float:
    """Return the cost that counts for a rate: the number, or that of the first unit that is no
    money and no call; a call without one costs 1.
    """
    if cost is None:
        return 1
    if not isinstance(cost, Mapping):
        return cost
    sizes = [cost[unit] for unit in cost if unit not in (*_CALLS, "$", "€", "£") and cost[unit]]
    return sizes[0] if sizes else 1


def costs_of(quotas: Sequence[Quota], cost: Cost | None) -> tuple[float, ...]:
    """Return what a call takes of each quota.

    Raises :class:`ConfigError` if ``cost`` does not say it, or if it is more than a whole quota:
    such a call could never begin.
    """
    costs = tuple(takes(quotas, quota.unit, cost) for quota in quotas)
    for quota, each in zip(quotas, costs, strict=True):
        if each > quota.amount:
            raise ConfigError(
                "cost",
                f"one call takes {each:g} {quota.unit}, but the quota is {quota.text}.",
                remedy="Make smaller calls, or give a larger budget.",
            )
    return costs


def check_units(quotas: Sequence[Quota], cost: Any) -> None:
    """Raise :class:`ConfigError` if a unit of ``quotas`` needs a cost, and there is none."""
    if cost is None and quotas:
        costs_of(quotas, None)


def takes(quotas: Sequence[Quota], unit: str, cost: Cost | None) -> float:
    """Return what a call takes of the quotas in ``unit``; raise :class:`ConfigError` if ``cost``
    does not say it.
    """
    if isinstance(cost, Mapping):
        if unit == CALLS:
            return float(cost.get(CALLS, 1))
        if unit in cost:
            return float(cost[unit])
        given = ", ".join(map(repr, cost)) or "nothing"
        raise ConfigError("cost", f"has no {unit!r}, only {given}.", remedy=_HOW_COST)
    if unit == CALLS:
        return 1.0
    units = {quota.unit for quota in quotas} - {CALLS}
    if cost is None or len(units) > 1:
        raise ConfigError(
            "cost",
            f"the budget is in {' and '.join(sorted(units))}, and cost does not say how many a call"
            " takes.",
            remedy=_HOW_COST,
        )
    return float(cost)


CostOf: TypeAlias = "Cost | Callable[..., Cost]"


# -- When windows begin and end, by the calendar ---------------------------------------------------


def span_of(quota: Quota, wall_s: float) -> tuple[float, float]:
    """Return begin and end of the window that ``wall_s`` is in (Unix seconds)."""
    if quota.window == "ever":
        return 0.0, inf
    if quota.is_spread or (quota.window == "day" and quota.zone == "UTC"):
        begin_s = wall_s - wall_s % quota.window_s
        return begin_s, begin_s + quota.window_s
    return _calendar(quota.window, quota.zone, int(wall_s // _ZONES_S))


# Offsets of zones are multiples of this, so a day begins with one.
_ZONES_S = HOUR_S / 4


@lru_cache(maxsize=64)
def _calendar(window: str, zone: str, quarter: int) -> tuple[float, float]:
    from zoneinfo import ZoneInfo

    place = timezone.utc if zone == "UTC" else ZoneInfo(zone)
    at = datetime.fromtimestamp(quarter * _ZONES_S, place)
    begin = at.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if window == "day":
        end = (begin + timedelta(hours=36)).replace(hour=0)  # a day has 23 to 25 hours
    else:
        begin = begin.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    return begin.timestamp(), end.timestamp()


def used_up_error(target: str, quota: Quota, until_s: float) -> QuotaUsedUpError:
    """Return the error for ``quota``, used up until ``until_s`` (Unix seconds)."""
    if until_s == inf:
        return SpentError(
            f"{target}: {quota.text} are spent (spend_max).",
            remedy="What is done is kept. To go on, raise spend_max and run again.",
        )
    at = datetime.fromtimestamp(until_s, timezone.utc) + timedelta(seconds=0.999)  # not too early
    return QuotaUsedUpError(
        f"{target}: the quota {quota.text} is used up until {at:%Y-%m-%d %H:%M:%S} UTC.",
        remedy="What is done is kept: run again then.",
    )

"""Limits in the headers of a response: how long to wait, and how much is left until when."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

# A limit's reset is either in seconds from now or a Unix time (GitHub), perhaps in ms.
_UNIX_S_MIN: Final = 1e9
_UNIX_MS_MIN: Final = 1e12
_RESETS: Final = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
_REMAINING: Final = ("ratelimit-remaining", "x-ratelimit-remaining", "x-rate-limit-remaining")
# RateLimit: "default";r=0;t=30, the newest form (draft-ietf-httpapi-ratelimit-headers).
_REST: Final = re.compile(r";\s*r=(\d+)")
_RESET: Final = re.compile(r";\s*t=(\d+)")
# Headers that report a limit: which service has which form.  ``what``: limit, remaining or reset.
_FAMILIES: Final = (
    # X-RateLimit-Remaining (GitHub and many), …-requests and …-tokens (OpenAI, Azure)
    re.compile(r"(?:x-)?rate-?limit-(?P<what>limit|remaining|reset)(?:-(?P<unit>[a-z-]+))?"),
    re.compile(r"anthropic-ratelimit-(?P<unit>[a-z-]+)-(?P<what>limit|remaining|reset)"),
    re.compile(r"x-ms-ratelimit-(?P<what>limit|remaining|reset)-(?P<unit>[a-z-]+)"),
)
# 6m0s, 1.5s, 120ms: OpenAI's spans of time.
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SPAN_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Told(NamedTuple):
    """What is left of one limit.  ``unit``: "requests", "tokens", …; "" if it has none.

    ``limit``: None if the response does not give it; ``reset_s``: seconds until ``remaining`` is
    renewed.
    """

    unit: str
    limit: float | None
    remaining: float
    reset_s: float


def told_of(headers: Any, wall_clock: Callable[[], float]) -> tuple[Told, ...]:
    """Return the limits that ``headers`` report with a remaining amount and a reset time."""
    said = _lower(headers)
    date_s = _date(said.get("date"))
    parts: dict[str, dict[str, str]] = {}
    for name, value in said.items():
        for family in _FAMILIES:
            if (found := family.fullmatch(name)) is not None:
                parts.setdefault(found["unit"] or "", {})[found["what"]] = value
    newest = said.get("ratelimit", "")  # all in one header
    if (rest := _REST.search(newest)) and (reset := _RESET.search(newest)):
        parts[""] = {"remaining": rest[1], "reset": reset[1]}
    told = []
    for unit, part in parts.items():
        remaining = _number(part.get("remaining"))
        until_s = _reset_in(part.get("reset"), date_s, wall_clock)
        if remaining is not None and until_s is not None and until_s > 0:
            told.append(Told(unit, _number(part.get("limit")), max(0.0, remaining), until_s))
    return tuple(told)


def _reset_in(
    value: str | None, date_s: float | None, wall_clock: Callable[[], float]
) -> float | None:
    """Return seconds from now for a number, a Unix time, a span of time, or a moment (RFC 3339)."""

    def now_s() -> float:
        return wall_clock() if date_s is None else date_s

    if value is None or _number(value) is not None:
        return _until(value, now_s)
    spans = _SPAN.findall(value)
    if spans and "".join(map("".join, spans)) == value:
        return sum(float(number) * _SPAN_S[unit] for number, unit in spans)
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at.timestamp() - now_s() if at.tzinfo is not None else None


class Wait(NamedTuple):
    """``is_limit``: the headers say that a limit was reached.  ``after_s`` may be any number."""

    after_s: float | None
    is_limit: bool


def wait_of(headers: Any, wall_clock: Callable[[], float], *, is_limit: bool) -> Wait:
    """Return the wait that ``headers`` ask for; ``is_limit``: the status may mean a rate limit.

    A limit's reset counts only then, or if nothing is left of the limit: services send it with
    every response.
    """
    said = _lower(headers)
    date_s = _date(said.get("date"))

    def now_s() -> float:
        # by the clock of the server that set the time
        return wall_clock() if date_s is None else date_s

    after_s = _retry_after(said, now_s)
    if after_s is not None:
        return Wait(after_s, True)
    newest = said.get("ratelimit", "")
    rest, reset = _REST.search(newest), _RESET.search(newest)
    remaining = rest.group(1) if rest else _first(said, _REMAINING)
    is_empty = _number(remaining) == 0
    if is_empty or (is_limit and remaining is None):
        after_s = _until(reset.group(1) if reset else _first(said, _RESETS), now_s)
    return Wait(after_s, is_empty)


def _retry_after(said: dict[str, str], now_s: Callable[[], float]) -> float | None:
    after_ms = _number(_first(said, ("retry-after-ms", "x-ms-retry-after-ms")))  # Azure, Cosmos
    if after_ms is not None:
        return after_ms / 1000
    value = said.get("retry-after")
    after_s = _number(value)
    if after_s is not None:
        return after_s
    at_s = _date(value)
    return None if at_s is None else at_s - now_s()


def _until(value: str | None, now_s: Callable[[], float]) -> float | None:
    reset = _number(value)
    if reset is None:
        return None
    if reset >= _UNIX_MS_MIN:
        return reset / 1000 - now_s()
    return reset - now_s() if reset >= _UNIX_S_MIN else reset


def _lower(headers: Any) -> dict[str, str]:
    """Return the headers with names in lower case: some clients keep them as received."""
    try:
        return {_str(name).lower(): _str(value) for name, value in headers.items()}
    except Exception:  # not a mapping: the library uses that name for something else
        return {}


def _str(text: Any) -> str:
    return text.decode("latin-1") if isinstance(text, bytes) else str(text)


def _first(said: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((said[name] for name in names if name in said), None)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str | None) -> float | None:
    """Return the Unix seconds of an HTTP date."""
    if not text:
        return None
    from email.utils import mktime_tz, parsedate_tz  # takes 10 ms to load, and is rarely needed

    try:
        parts = parsedate_tz(text)
        # A date without a zone is UTC, not local time.
        return None if parts is None else float(mktime_tz((*parts[:9], parts[9] or 0)))
    except (TypeError, ValueError, OverflowError):
        return None

"""How numbers look on screen: the one place that formats them.

Thousands are separated by a space (``142 000``), units follow a space (``41 ms``), unknown is
``-``.
"""

from __future__ import annotations

UNKNOWN = "-"
_FULL, _HOLE = "█", "░"
_MINUTE_S = 60
_HOUR_S = 3600


def count(value: int) -> str:
    """Return ``142000`` as ``142 000``."""
    return f"{value:,}".replace(",", " ")


def counted(value: int, noun: str) -> str:
    """Return ``1 tuple``, ``2 tuples``."""
    return f"{count(value)} {noun}" + ("" if value == 1 else "s")


def percent(fraction: float | None, *, digits: int = 0) -> str:
    """Return ``0.712`` as ``71 %``; rounds down at the top, so that 100 % means all of it."""
    if fraction is None:
        return UNKNOWN
    scale: int = 10**digits
    value = round(fraction * 100 * scale) / scale
    if fraction < 1 <= value / 100:
        value = 100 - 1 / scale
    return f"{value:.{digits}f} %"


def rate(per_s: float) -> str:
    """Return ``4210.3`` as ``4 210/s``; small rates keep a digit."""
    return f"{per_s:.1f}/s" if 0 < per_s < 10 else f"{count(round(per_s))}/s"


def clock(seconds: float | None, *, tenths: bool = False) -> str:
    """Return a length of time as ``0:14``, ``0:14.2`` or ``1:02:03``."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    minutes, rest = divmod(whole, _MINUTE_S)
    text = f"{minutes}:{rest:02d}"
    if whole >= _HOUR_S:
        text = f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    return f"{text}.{int((seconds - whole) * 10)}" if tenths else text


def duration(seconds: float | None) -> str:
    """Return a short time as ``0.4 ms``, ``41 ms`` or ``1.2 s``."""
    if seconds is None:
        return UNKNOWN
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.001 else f"{seconds * 1000:.0f} ms"


def bar(value: float, of: float, width: int) -> str:
    """Return a bar of at most ``width`` cells; anything above zero shows at least one."""
    if of <= 0 or value <= 0 or width <= 0:
        return ""
    return _FULL * max(1, min(width, round(value / of * width)))


def holes_bar(parts: list[tuple[bool, float]], width: int) -> str:
    """Return runs of acked (True, ``█``) and missing (False, ``░``) drawn to scale.

    Every part gets at least one cell, so that a small hole is seen; when there are more parts
    than cells, the last ones are left out.
    """
    total = sum(size for _, size in parts) or 1.0
    free = max(0, width - len(parts))
    cells = "".join(
        (_FULL if acked else _HOLE) * (1 + int(size / total * free)) for acked, size in parts
    )
    return cells[:width]

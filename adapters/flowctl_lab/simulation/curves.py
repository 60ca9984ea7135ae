"""A run over time: windows as rows of text for snapshots; speeds and shares as SVG for people."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import TypeAlias

from flowctl_lab.simulation.engine import Outcome, windows_of

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _PANEL, _LEFT, _TOP, _GAP = 900, 170, 60, 50, 50  # pixels; a screen's width is enough
_WINDOWS_FLAT = 3  # fewer different sizes are just steps at the start
# A time [s] and a value for each bolt.
_Curve: TypeAlias = Sequence[tuple[float, Sequence[float]]]
_SMOOTHED = 4  # samples averaged for a speed, as few tuples fall into one


def sparklines(outcome: Outcome, *, columns: int = 50) -> str:
    """Return a row per bolt: its window over time, scaled to the largest window of the run."""
    bolts = len(outcome.curve[0][1])
    most = max(max(windows) for _, windows in outcome.curve)
    head = f"{outcome.scenario} {outcome.policy} seed {outcome.seed}: windows, █ = {most:g}"
    rows = [head]
    for bolt in range(bolts):
        values = _thin(windows_of(outcome, bolt), columns)
        bars = "".join(_BARS[min(7, int(8 * value / most)) if value else 0] for value in values)
        rows.append(f"b{bolt + 1:<3} {bars} {min(values):g}-{max(values):g}")
    return "\n".join(rows) + "\n"


def _thin(values: Sequence[float], columns: int) -> list[float]:
    """Return at most ``columns`` of the values, evenly spread."""
    if len(values) <= columns:
        return list(values)
    return [values[int(column * len(values) / columns)] for column in range(columns)]


def svg(outcome: Outcome) -> str:
    """Return each bolt's speed, share, capacity in use, and window (if windows moved) as SVG."""
    end_s = outcome.curve[-1][0] or 1.0
    rates = _rates(outcome)
    shares = _shares(rates)
    steps = len(outcome.in_use)
    use = [((step + 0.5) * end_s / steps, (share,)) for step, share in enumerate(outcome.in_use)]
    panels: list[tuple[str, _Curve]] = [
        ("speed: acked [tuples/s], a line for each bolt", rates),
        ("share: part of all that was acked [%]", shares),
        ("capacity in use", use),
    ]
    if len({window for _, windows in outcome.curve for window in windows}) > _WINDOWS_FLAT:
        panels.append(("window [tuples]", outcome.curve))
    height = _TOP + len(panels) * (_PANEL + _GAP)
    title = (
        f"{outcome.scenario} · {outcome.policy} · seed {outcome.seed}"
        f" · E {outcome.efficiency:.3f} · {outcome.makespan_s:.1f} s"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="25" font-size="16">{escape(title)}</text>',
    ]
    for number, (label, curve) in enumerate(panels):
        top = _TOP + number * (_PANEL + _GAP)
        most = 1.0 if curve is use else max((max(v) for _, v in curve), default=0.0) or 1.0
        parts += [*_frame(top, end_s, label, most), *_lines(top, curve, end_s, most)]
    return "\n".join([*parts, "</svg>", ""])


def _shares(rates: _Curve) -> _Curve:
    """Return each bolt's share of all acked tuples over time [%]."""
    return [
        (at_s, tuple(100 * speed / total for speed in speeds))
        for at_s, speeds in rates
        if (total := sum(speeds))
    ]


def _rates(outcome: Outcome) -> _Curve:
    """Return the tuples that each bolt acked per second, over time."""
    samples = [(at_s, acked) for (at_s, _), acked in zip(outcome.curve, outcome.acked, strict=True)]
    rates: list[tuple[float, Sequence[float]]] = []
    for (from_s, before), (until_s, after) in pairwise(samples[::_SMOOTHED]):
        spent_s = until_s - from_s
        speeds = tuple((b - a) / spent_s for a, b in zip(before, after, strict=True))
        rates.append(((from_s + until_s) / 2, speeds))
    return rates


def _lines(top: float, curve: _Curve, end_s: float, most: float) -> list[str]:
    """Return a line per bolt, each in another colour."""
    bolts = len(curve[0][1]) if curve else 0
    lines = []
    for bolt in range(bolts):
        points = [(at_s / end_s, values[bolt] / most) for at_s, values in curve]
        colour = f"hsl({360 * bolt // bolts},65%,45%)" if bolts > 1 else "#333"
        lines.append(_line(top, points, colour, f"b{bolt + 1}"))
    return lines


def _frame(top: float, end_s: float, label: str, most: float) -> list[str]:
    right, bottom = _WIDTH - 20, top + _PANEL
    return [
        f'<path d="M{_LEFT} {top}V{bottom}H{right}" fill="none" stroke="#999"/>',
        f'<text x="{_LEFT}" y="{top - 6}">{escape(label)}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most:.4g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{end_s:.1f} s</text>',
    ]


def _line(top: float, points: Sequence[tuple[float, float]], colour: str, name: str) -> str:
    """Return a line through points of [0, 1] x [0, 1]."""
    width = _WIDTH - 20 - _LEFT
    path = " ".join(f"{_LEFT + x * width:.1f},{top + _PANEL * (1 - y):.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5">'
        f"<title>{escape(name)}</title></polyline>"
    )

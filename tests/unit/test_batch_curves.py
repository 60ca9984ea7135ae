"""How many rows a batch and a call get, one after the other, compared with what is committed.

After a change of the law look at the difference, then renew it:
``FLOWCTL_SNAPSHOTS=write pytest tests/unit/test_batch_curves.py``.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

from flowctl.bolts.range_pace import BatchPace
from flowctl.delivery.batch_rows import BatchRows
from flowctl.delivery.pieces import RowsPerCall

CURVES = Path(__file__).with_name("batch_curves.txt")
# What a batch costs [s]: whatever its size, and for each row; then three times as much of each.
COSTS = [(0.0, 0.0025), (0.5, 0.01), (2.0, 0.0001), (6.0, 0.002), (12.0, 0.001), (0.01, 2.0)]


def batches(fixed_s: float, row_s: float, noise: float, most: int) -> Iterator[int]:
    """Sizes of 60 batches; the rows become dearer, then all does; some ends are only bounds."""
    chance = random.Random(f"{fixed_s} {row_s} {noise}")
    sizes = BatchRows(target_s=8.0, rows=200, rows_max=most)
    for batch in range(60):
        dearer = 3.0 if 20 <= batch < 40 else 1.0
        fixed = fixed_s * (3.0 if 30 <= batch < 50 else 1.0)
        took_s = (fixed + dearer * row_s * sizes.rows) * math.exp(chance.gauss(0, noise))
        rows = sizes.rows if batch % 17 != 16 else max(1, sizes.rows // 3)  # the input ended
        is_bound = batch % 13 == 12
        sizes.took(rows, max(took_s, 8.0) if is_bound else took_s, is_bound=is_bound)
        sizes.took(0, 1.0)  # nothing was there: tells nothing
        yield sizes.rows


def calls(call_s: float, row_s: float, most_s: float) -> Iterator[int]:
    chance = random.Random(f"{call_s} {row_s}")
    sizes = RowsPerCall(500, most_s)
    for call in range(40):
        rows = sizes.next()
        took_s = (call_s + row_s * rows * (4 if call >= 20 else 1)) * chance.uniform(0.9, 1.1)
        sizes.took(took_s, rows, 0.0)
        yield rows


def range_batches(call_s: float, row_s: float, longest_s: float, noise: float) -> Iterator[str]:
    """What a slot cuts from blocks of 40,000 and of 700 records; later a call costs a tenth."""
    chance = random.Random(f"{call_s} {row_s} {noise}")
    pace = BatchPace(longest_s)
    left = 0
    for batch in range(60):
        left = left or (40_000 if batch < 30 else 700)
        short, long = pace.is_next_short(left), pace.is_long_in(700)
        rows = pace.next_of(left)
        left -= rows
        call = call_s if batch < 45 else call_s / 10
        pace.took(rows, (call + row_s * rows) * math.exp(chance.gauss(0, noise)))
        pace.took(0, 1.0)
        said = f"{rows}{'s' * short}{'l' * long}"
        yield said if not pace.dear_s else f"{said}({pace.dear_s:.4g})"


def test_the_sizes_of_batches_and_calls_are_the_committed_ones() -> None:
    """A change of the law that no figure shows is noticed too."""
    lines = []
    for fixed_s, row_s in COSTS:
        for noise in (0.0, 0.15):
            for most in (1_000_000, 900):
                given = batches(fixed_s, row_s, noise, most)
                head = f"batch of {fixed_s} s and {row_s} s a row, noise {noise}, {most} at most:"
                lines.append(" ".join([head, *map(str, given)]))
    for call_s, row_s in ((0.001, 0.0001), (0.2, 0.0001), (0.05, 0.01), (0.0, 0.7), (2.0, 0.001)):
        for most_s in (0.5, 5.0):
            head = f"call of {call_s} s and {row_s} s a row, {most_s} s at most:"
            lines.append(" ".join([head, *map(str, calls(call_s, row_s, most_s))]))
    for call_s, row_s in ((0.0001, 0.0001), (0.2, 0.0001), (0.05, 0.01), (0.0, 0.7), (2.0, 0.001)):
        for longest_s in (0.15, 5.0):
            for noise in (0.0, 0.3):
                head = f"range: {call_s} s, {row_s} s a record, {longest_s} s, noise {noise}:"
                lines.append(" ".join([head, *range_batches(call_s, row_s, longest_s, noise)]))
    curves = "\n".join(lines) + "\n"
    if os.environ.get("FLOWCTL_SNAPSHOTS") == "write":
        CURVES.write_text(curves, encoding="utf-8")
    assert curves == CURVES.read_text(encoding="utf-8")

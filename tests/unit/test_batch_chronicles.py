"""The sizes of batches, one after the other: what no bound on a curve shows is noticed too."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from flowctl.delivery.batch_rows import BatchRows

CHRONICLES = Path(__file__).with_name("batch_chronicles.txt")
BATCHES = 260

#: (batch, rows) → seconds: Spark's own work and the target's.
MODELS: dict[str, Callable[[int, int], float]] = {
    "rows take the time": lambda n, rows: 0.3 + 0.004 * rows,
    "each takes long": lambda n, rows: 0.2 + 0.7 * rows,
    "Spark takes the time": lambda n, rows: 2.4 + 0.000_02 * rows,
    "Spark takes more than that": lambda n, rows: 7.0 + 0.01 * rows,
    "five times slower for a while": lambda n, rows: 0.3 + (0.02 if 90 < n < 150 else 0.004) * rows,
    "Spark ten times slower at last": lambda n, rows: (2.5 if n > 60 else 0.25) + 0.002 * rows,
}
#: How many of the rows that were asked for there are, and whether their time is a bound.
SUPPLIES: dict[str, Callable[[int, int], tuple[int, bool]]] = {
    "all": lambda n, rows: (rows, False),
    "few now and then": lambda n, rows: (max(1, rows // 3) if n % 7 == 3 else rows, False),
    "ticks": lambda n, rows: (rows // 2 if n % 5 else rows, n % 3 > 0),
    "nothing now and then": lambda n, rows: (0 if n % 11 == 5 else rows, n % 11 == 7),
}


def chronicle(model: str, supply: str, rows: int, rows_max: int) -> str:
    """The sizes of the first batches, and a digest of all; with a noise of 15 %, or none."""
    chance = Random(f"{model} {supply} {rows}")
    sizes = BatchRows(target_s=2.0, rows=rows, rows_max=rows_max)
    found = []
    for n in range(BATCHES):
        found.append(sizes.rows)
        there, is_bound = SUPPLIES[supply](n, sizes.rows)
        noise = 1.0 if rows == 200 else chance.uniform(0.85, 1.15)
        sizes.took(there, MODELS[model](n, there) * noise if there else 0.0, is_bound=is_bound)
    all_sizes = " ".join(map(str, found))
    digest = hashlib.sha256(all_sizes.encode()).hexdigest()[:16]
    return f"{' '.join(map(str, found[:12]))} … {digest}"


@pytest.mark.parametrize("model", MODELS)
def test_each_size_is_the_committed_one(model: str) -> None:
    """After a change of what is decided look at the difference, then renew them:
    ``FLOWCTL_SNAPSHOTS=write pytest tests/unit/test_batch_chronicles.py``."""
    found = {
        f"{model}, {supply}, {rows} of {rows_max}": chronicle(model, supply, rows, rows_max)
        for supply in SUPPLIES
        for rows, rows_max in ((200, 20_000), (3, 20_000), (3_000, 100_000), (50, 40))
    }
    lines = CHRONICLES.read_text(encoding="utf-8").splitlines() if CHRONICLES.exists() else []
    committed = dict(line.split(": ") for line in lines)
    if os.environ.get("FLOWCTL_SNAPSHOTS") == "write":
        committed |= found
        CHRONICLES.write_text("".join(f"{n}: {sizes}\n" for n, sizes in sorted(committed.items())))
    assert found == {name: sizes for name, sizes in committed.items() if name in found}


def test_the_first_batch_has_a_row_at_least_and_the_most_at_most() -> None:
    def first(rows: int, rows_max: int) -> int:
        return BatchRows(target_s=2.0, rows=rows, rows_max=rows_max).rows

    assert [first(0, 9), first(1, 9), first(9, 9), first(50, 9)] == [1, 1, 9, 9]


def test_a_batch_that_had_fewer_rows_than_were_asked_for_makes_none_smaller() -> None:
    """Where nothing was measured, as a trigger waited for its tick."""
    sizes = BatchRows(target_s=2.0, rows=200, rows_max=10_000)
    sizes.took(10, 1.0, is_bound=True)
    assert sizes.rows == 200
    sizes.took(150, 1.0, is_bound=True)
    assert sizes.rows == 300


def test_a_batch_of_no_rows_or_no_time_tells_nothing() -> None:
    sizes = BatchRows(target_s=2.0, rows=200, rows_max=10_000)
    for rows, batch_s in ((0, 1.0), (-1, 1.0), (5, 0.0), (5, -1.0)):
        sizes.took(rows, batch_s)
        assert sizes.rows == 200

"""Rows in, rows out, on threads: ``python apply_rows.py INPUT OUT RUN``.

Notes which rows it was given in the file RUN, beside OUT.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow

from flowctl.bolts.batch import Batch
from flowctl_apply import apply_parquet

ROW_S = 0.0005


def score(batch: Batch) -> list[tuple[int, str]]:
    """Each row gives none, one or two."""
    with (Path(sys.argv[2]).parent / sys.argv[3]).open("a") as journal:
        journal.write("".join(f"{record.value['id']}\n" for record in batch))
    time.sleep(ROW_S * len(batch))
    values = [record.value["id"] for record in batch]
    return [(value, f"#{value}") for value in values for _ in range(value % 3)]


if __name__ == "__main__":
    made = apply_parquet(
        sys.argv[1],
        score,
        schema=pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())]),
        name="scores",
        out=sys.argv[2],
        bolts=3,
        view="plain",
    )
    print(f"was done: {made.was_done}, {made.rows} rows")

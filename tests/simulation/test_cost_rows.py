"""What the sizes of batches and calls are worth: figures for three doors, as they are committed.

``test_batch_curves.py`` and its like notice that a size has changed.  These rows say whether that
was for the better: how much of the time is work, how long the longest batch was, what was sent
twice.  All in virtual time, from drawn costs, each row over the same seeds.  After a change of the
law look at the difference, then renew them:
``FLOWCTL_SNAPSHOTS=write pytest tests/simulation/test_cost_rows.py``.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from flowctl.bolts.batch import Batch
from flowctl.bolts.range_pace import TARGET_S, BatchPace
from flowctl.delivery.batch_rows import START_ROWS, BatchRows
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.plan import Plan, Where
from flowctl.errors import RetryLater
from tests.delivery_parts import Clock, PatientPacer
from tests.listener_parts import Letters

ROWS = Path(__file__).parent / "snapshots" / "cost_rows.md"
_SEEDS: Final = range(5)
_NOISE: Final = 0.15  # the times of equal batches differ by this; measured, see core/cost.py


class Cost(NamedTuple):
    """A call takes ``call_s``, whatever its size, and ``row_s`` for each row [s]."""

    call_s: float
    row_s: float

    def of(self, rows: int, chance: random.Random, dearer: float = 1.0) -> float:
        """How long a call of ``rows`` takes; ``dearer``: so many times as long for each row."""
        mean_s = self.call_s + dearer * self.row_s * rows
        return mean_s * math.exp(chance.gauss(0, _NOISE))


def table(title: str, columns: str, rows: Sequence[str]) -> str:
    head = f"| {' | '.join(columns.split(', '))} |"
    rule = "|" + "---|" * (columns.count(", ") + 1)
    return "\n".join([f"## {title}", head, rule, *rows, ""])


def row(*cells: object) -> str:
    shown = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"| {' | '.join(shown)} |"


# -- the pace of ranges ----------------------------------------------------------------------

# A claim and a report of each batch (range_pace.py).
_BATCH_S: Final = 0.0001
_RANGE_RECORDS: Final = 120_000
_RANGE_WORK_S: Final = 120.0


def ranges() -> Iterator[str]:
    """A slot's way through its ranges: most of the time should be records, no batch too long."""
    costs = [Cost(0.0, 1e-4), Cost(0.001, 1e-3), Cost(0.05, 1e-3), Cost(0.3, 1e-3),
             Cost(0.3, 0.05), Cost(0.0, 0.7), Cost(2.0, 1e-3)]  # fmt: skip
    for cost in costs:
        for change, dearer in (("", 1.0), ("5x dearer", 5.0), ("5x cheaper", 0.2)):
            for block, longest_s in ((40_000, TARGET_S), (700, TARGET_S), (40_000, 5.0)):
                told = [_slot(cost, dearer, block, longest_s, seed) for seed in _SEEDS]
                work, longest, batches = (mean(each) for each in zip(*told, strict=True))
                yield row(*cost, change, block, longest_s, work, longest, round(batches))


def _slot(
    cost: Cost, dearer: float, block: int, longest_s: float, seed: int
) -> tuple[float, float, int]:
    chance, pace = random.Random(seed), BatchPace(longest_s)
    records = int(min(_RANGE_RECORDS, _RANGE_WORK_S / cost.row_s))
    done = batches = left = 0
    spent_s = work_s = longest = 0.0
    while done < records:
        left = left or min(block, records - done)
        batch = pace.next_of(left)
        factor = dearer if done > records / 2 else 1.0
        took_s = cost.of(batch, chance, factor)
        pace.took(batch, took_s)
        work_s += took_s * factor * cost.row_s * batch / (cost.call_s + factor * cost.row_s * batch)
        spent_s, longest = spent_s + took_s + _BATCH_S, max(longest, took_s)
        done, left, batches = done + batch, left - batch, batches + 1
    return work_s / spent_s, longest, batches


# -- the sizing of streams -------------------------------------------------------------------

_TRIGGER_S: Final = 8.0
_BATCHES: Final = 120


def streams() -> Iterator[str]:
    """A backlog is read in batches that should take 8 s; the target may change on the way."""
    costs = [Cost(0.3, 1e-4), Cost(0.5, 0.01), Cost(2.0, 1e-4), Cost(2.0, 0.01), Cost(6.0, 0.002),
             Cost(12.0, 0.001), Cost(0.3, 2.0)]  # fmt: skip
    for cost in costs:
        for change, dearer in (("", 1.0), ("5x slower for a third", 5.0), ("5x quicker", 0.2)):
            told = [_stream(cost, dearer, seed) for seed in _SEEDS]
            speed, longest, late = (mean(each) for each in zip(*told, strict=True))
            yield row(*cost, change, speed, longest, round(late, 1))


def _stream(cost: Cost, dearer: float, seed: int) -> tuple[float, float, int]:
    """The speed as a share of the best, the longest batch, and how many took half as long again."""
    chance = random.Random(seed)
    sizes = BatchRows(target_s=_TRIGGER_S, rows=START_ROWS, rows_max=1_000_000)
    spent_s = best_s = longest = 0.0
    late = 0
    for batch in range(_BATCHES):
        factor = dearer if _BATCHES // 3 <= batch < 2 * _BATCHES // 3 else 1.0
        rows = sizes.rows
        took_s = cost.of(rows, chance, factor)
        sizes.took(rows, took_s)
        # Where Spark's own work alone takes most of the time, rows get half as much besides.
        row_s = factor * cost.row_s
        best = max(_TRIGGER_S - cost.call_s, cost.call_s / 2) / row_s
        best = max(1.0, min(best, 1_000_000.0))
        best_s += rows * (cost.call_s + row_s * best) / best
        spent_s, longest = spent_s + took_s, max(longest, took_s)
        late += took_s > 1.5 * max(_TRIGGER_S, 1.5 * cost.call_s)
    return best_s / spent_s, longest, late


# -- the splitting of flow_sink --------------------------------------------------------------

_SINK_ROWS: Final = 20_000


class Service:
    """Takes rows at a cost, in virtual time; some rows are bad, and ``when`` may raise first."""

    def __init__(self, cost: Cost, bad: frozenset[int], when: Callable[[float, int], None]) -> None:
        self.clock = Clock()
        self.taken: set[int] = set()
        self.sent = 0
        self._cost, self._bad, self._when = cost, bad, when

    def __call__(self, batch: Batch) -> None:
        values = [record.value for record in batch]
        self.sent += len(values)
        self.clock.sleep(self._cost.call_s + self._cost.row_s * len(values))
        self._when(self.clock.now_s, len(values))
        if self._bad & set(values):
            raise ValueError("no number")
        self.taken.update(values)


def _well(now_s: float, rows: int) -> None:
    """It takes all."""


def _full(now_s: float, rows: int) -> None:
    if 2.0 < now_s < 12.0:
        raise RetryLater("429", after_s=1.0)


def _away(now_s: float, rows: int) -> None:
    if 2.0 < now_s < 6.0:
        raise RuntimeError("connection closed")


def _slow(now_s: float, rows: int) -> None:
    if rows > 60:
        raise TimeoutError("after 30 s")


TARGETS: Final = {"well": _well, "full for 10 s": _full, "away for 4 s": _away,
                  "times out above 60 rows": _slow}  # fmt: skip
BAD: Final[dict[str, frozenset[int]]] = {
    "none": frozenset(),
    "one": frozenset({7_777}),
    "8 in a row": frozenset(range(9_000, 9_008)),
    "1 in 500": frozenset(range(3, _SINK_ROWS, 500)),
}
# Whether a cut falls among bad rows is chance, so each row is the mean of so many places for them.
_MOVED: Final = (0, 125, 250, 375)


def sinks() -> Iterator[str]:
    """Calls, and what is sent more than once; no good row may be lost, no bad one written."""
    for cost in (Cost(0.005, 1e-4), Cost(0.05, 1e-3), Cost(0.2, 0.02)):
        for target, when in TARGETS.items():
            for how_many, bad in BAD.items():
                told = [_deliver(cost, bad, moved, when) for moved in (_MOVED if bad else (0,))]
                yield row(*cost, target, how_many, *map(mean, zip(*told, strict=True)))


def _deliver(
    cost: Cost, bad: frozenset[int], moved: int, when: Callable[[float, int], None]
) -> list[Any]:
    bad = frozenset(number + moved for number in bad)
    service, letters = Service(cost, bad, when), Letters()
    clock = service.clock
    plan = Plan(process=service, dead_letter=letters)
    made = Delivery(
        plan, Where("j", "7"), PatientPacer(clock), clock=clock, sleep=clock.sleep, chance=None
    )
    tally = made.run(range(_SINK_ROWS))
    assert tally.written == len(service.taken)
    good_lost = _SINK_ROWS - len(bad) - len(service.taken)
    again = service.sent / _SINK_ROWS - 1
    return [tally.calls, 100 * again, clock.now_s, tally.kept, good_lost]


# -- all of it -------------------------------------------------------------------------------


def test_each_row_is_the_committed_one() -> None:
    text = "\n".join(
        [
            table(
                "Ranges: a slot's batches",
                "call s, record s, half way, block, at most s, work share, longest s, batches",
                list(ranges()),
            ),
            table(
                "Streams: batches that should take 8 s",
                "Spark's s, row s, then, speed of best, longest s, late batches",
                list(streams()),
            ),
            table(
                "flow_sink: 20,000 rows of a partition",
                "call s, row s, target, bad rows, calls, sent again %, took s, letters, good lost",
                list(sinks()),
            ),
        ]
    )
    if os.environ.get("FLOWCTL_SNAPSHOTS") == "write":
        ROWS.write_text(text, encoding="utf-8")
    assert text == ROWS.read_text(encoding="utf-8")

"""The data: the arrival and the cost of each record, drawn from the seed alone.

The cost of a tuple depends on its records and on the number of the sending, never on the policy, so
that policies are compared on exactly the same data.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from random import Random

from msgspec.structs import replace

from flowctl.core.records import Record
from flowctl_lab.simulation.scenario import Scenario

# Number of factors in stock: more than any scenario has tuples, and a prime, so that the step below
# reaches each factor before any is repeated.
_STOCK = 65_521
_STEP_SENDING = 7_919  # far from the next tuple's factor; any number coprime to the stock works
# Bytes of a tuple whose size the data decides: its records fill exactly this.
TUPLE_BYTES = 100_000
_OFFER_RECORDS = 1_000  # about what a producer polls at once


def lognormal(rng: Random, cv: float) -> float:
    """Return a lognormal factor with mean 1 and this coefficient of variation."""
    sigma2 = math.log1p(cv * cv)
    return math.exp(rng.gauss(0.0, 1.0) * math.sqrt(sigma2) - sigma2 / 2)


@lru_cache(maxsize=8)
def _noise(cv: float, seed: str) -> list[float]:
    rng = Random(f"noise {seed}")
    return [lognormal(rng, cv) for _ in range(_STOCK)] if cv else [1.0] * _STOCK


class Workload:
    """The records of one spout, numbered from 0, in blocks, which are the scenario's tuples."""

    def __init__(self, scenario: Scenario, seed: int, spout: int) -> None:
        self._tuple_s, self._record_s = scenario.tuple_s, scenario.record_s
        self._noise = _noise(scenario.service_cv, f"{seed} {spout}")
        rng = Random(f"data {seed} {spout}")
        self._even = scenario.sizes[0] if len(scenario.sizes) == 1 else 0
        blocks = scenario.tuples if scenario.until_s is None else 0
        self._starts: list[int] = []  # begins of blocks of uneven size, and the end
        if not self._even:
            sizes = [rng.choice(scenario.sizes) for _ in range(blocks)]
            self._starts = [0, *accumulate(sizes)]
        self._factors: list[float] = []
        self._factor_sums: list[float] = []
        if scenario.data_cv:
            self._factors = [lognormal(rng, scenario.data_cv) for _ in range(blocks)]
            self._factor_sums = [0.0, *accumulate(self._factors)]
        self.blocks = blocks
        # None: the input never ends.
        self.records: int | None = (
            None if not blocks else self._even * blocks if self._even else self._starts[-1]
        )
        self._next = 0
        self.arrivals_s: list[float] | None = None  # of each block, if it is no scenario's

    def cost_s(self, first: int, count: int, attempt: int) -> float:
        """Return the service time at speed 1 of these records in their ``attempt``-th sending."""
        noise = self._noise[(first + attempt * _STEP_SENDING) % _STOCK]
        cost_s = (self._tuple_s + self._record_s * count) * noise
        return cost_s * self._skew(first, count) if self._factors else cost_s

    def plain_s(self, first: int, count: int) -> float:
        """Return :meth:`cost_s` without the noise of single sendings."""
        cost_s = self._tuple_s + self._record_s * count
        return cost_s * self._skew(first, count) if self._factors else cost_s

    def _skew(self, first: int, count: int) -> float:
        """Return the mean factor of the records."""
        block, offset = divmod(first, self._even)
        if count == self._even and not offset:
            return self._factors[block]
        return (self._skew_sum(first + count) - self._skew_sum(first)) / count

    def _skew_sum(self, stop: int) -> float:
        block, offset = divmod(stop, self._even)
        rest = self._factors[block] * offset if offset else 0.0
        return self._factor_sums[block] * self._even + rest

    def block(self, index: int) -> tuple[int, int]:
        """Return the first record and the size of a block."""
        if self._even:
            return index * self._even, self._even
        return self._starts[index], self._starts[index + 1] - self._starts[index]

    def block_of(self, first: int) -> int:
        """Return the block of a record."""
        return first // self._even if self._even else bisect_right(self._starts, first) - 1

    def read(self, stop: int | None) -> list[Record]:
        """Return the next records, below ``stop`` (None: no bound); empty if there are none."""
        first = self._next
        if not self._even:
            return self._read_block(first, stop)
        last = first + max(_OFFER_RECORDS, self._even)
        for bound in (stop, self.records):
            if bound is not None:
                last = min(last, bound)
        self._next = last
        return [Record(number, None) for number in range(first, last)]

    @property
    def is_read(self) -> bool:
        """Whether all records were read."""
        return self._next == self.records

    def _read_block(self, first: int, stop: int | None) -> list[Record]:
        """Return one block, whose records' sizes fill one tuple."""
        if first == self.records or (stop is not None and first >= stop):
            return []
        start, size = self.block(self.block_of(first))
        self._next = start + size
        value = _padding(TUPLE_BYTES // size)
        return [Record(number, value) for number in range(start, start + size)]


class RecordWorkload(Workload):
    """The records of one spout of a job as shipped, each with a cost of its own.

    A record's factor repeats after the stock; the mean over the job, or the stock, is 1.
    """

    def __init__(self, scenario: Scenario, seed: int, spout: int) -> None:
        super().__init__(replace(scenario, tuples=1, sizes=(1,), data_cv=0.0), seed, spout)
        self.blocks: int = scenario.records
        self.records: int = scenario.records
        self._cycle = min(_STOCK, scenario.records)
        factors = _skew_factors(scenario, self._cycle, Random(f"records {seed} {spout}"))
        self._sums = [0.0, *accumulate(factors)]
        self.dearest_s: float = self._record_s * max(factors)

    def cost_s(self, first: int, count: int, attempt: int) -> float:
        noise = self._noise[(first + attempt * _STEP_SENDING) % _STOCK]
        return noise * self.plain_s(first, count)

    def plain_s(self, first: int, count: int) -> float:
        return self._tuple_s + self._record_s * (self._sum(first + count) - self._sum(first))

    def _sum(self, stop: int) -> float:
        rounds, rest = divmod(stop, self._cycle)
        return rounds * self._sums[-1] + self._sums[rest]


def _skew_factors(scenario: Scenario, count: int, rng: Random) -> list[float]:
    if scenario.pareto:
        drawn = [rng.paretovariate(scenario.pareto) for _ in range(count)]
    elif scenario.data_cv:
        drawn = [lognormal(rng, scenario.data_cv) for _ in range(count)]
    else:
        return [1.0] * count
    mean = sum(drawn) / count
    return [factor / mean for factor in drawn]


def workload_of(scenario: Scenario, seed: int, spout: int) -> Workload:
    """Return the data of one spout."""
    kind = RecordWorkload if scenario.is_as_shipped else Workload
    return kind(scenario, seed, spout)


@lru_cache(maxsize=64)
def _padding(size: int) -> bytes:
    return b"x" * size

"""What the tests of dead letters and of losses share: a target that refuses, a job, its letters."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter
from tests.runtime_parts import ListProducer

FAST = {
    "tuple.records_max": 1,
    "retry.attempts_max": 2,
    "retry.backoff_first_s": 0.01,
    "hedge.enabled": False,  # what is counted is what the dead letters do
}


class Target:
    """Counts what was processed; refuses what is poison."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.done: Counter[Any] = Counter()
        self.partitions: set[str] = set()
        self.cost_s = 0.0

    def __call__(self, batch: Batch) -> None:
        time.sleep(self.cost_s)
        for record in batch:
            if record.value in {f"record {n}" for n in self.poison}:
                raise ValueError(f"bad {record.value}")
        self.done.update(record.value for record in batch)
        self.partitions.add(batch.span.partition)


def spout(target: Any, **how: Any) -> FlowControlSpout:
    """A job of 60 records, one a tuple, that gives up after two attempts; ``how`` changes it."""
    settings = {**FAST, **how.pop("settings", {})}
    return FlowControlSpout(
        name="job",
        producer=how.pop("producer", None) or ListProducer(60),
        bolts=LocalBolts(target, count=2),
        checkpoint=how.pop("store", None) or MemoryCheckpointStore(),
        settings=Settings().with_overrides(settings),
        **how,
    )


def letters_left(letters: FileDeadLetter) -> list[Any]:
    """The positions of the records that the dead letter keeps."""
    return sorted(letter.position for letter in letters.file_of("job").read().of("job"))

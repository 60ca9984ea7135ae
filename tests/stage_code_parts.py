"""Runs the code of a topology's stage on one tuple, with no hub and no bolt around it."""

from __future__ import annotations

from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.core.trees.settlement import Settlement
from flowctl_storm.plan import input_id_of
from flowctl_storm.worker.tasks import StageCode


def batch(*values: Any) -> Batch:
    """A tuple of inputs from one source, numbered from 0."""
    records = [Record(input_id_of(n, 0), value) for n, value in enumerate(values)]
    return Batch(records, Span("t", "a", 0, len(values), 1), bolt="a.1", attempt=1)


def run(code: Any, *values: Any, isolates: bool = True) -> Settlement:
    """What ``code`` says of a tuple of ``values``; ``isolates``: it may look for the bad one."""
    return StageCode(code, ["s"], isolates=isolates).for_connection("a.1")(batch(*values))


def failed_of(said: Settlement) -> list[int]:
    """The numbers of the inputs that failed or were refused."""
    return [failed.input_id >> 8 for failed in said.failed]

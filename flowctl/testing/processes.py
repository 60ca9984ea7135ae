"""For tests of your own ``process``: a batch made by hand, and a small job in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowctl.arguments import check_arguments
from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.letters import REJECTED_PREFIX
from flowctl.core.messages import Emission
from flowctl.core.positions import encode
from flowctl.core.records import Checkpoint, Position, Record, Span
from flowctl.errors import ConfigError
from flowctl.failure.classify import RefusalRule
from flowctl.instrumentation.snapshot import Report
from flowctl.ports import FlowProducer, Process
from flowctl.range_ports import RangeProducer
from flowctl.runtime.faults import refused_error
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.wire.values import carry_records

# Short time-outs, so that a failure shows in a second, not in minutes.
QUICK: Final[Mapping[str, Any]] = {
    # The second attempt shows whether a failed batch can be processed again; more attempts show
    # nothing new.
    "retry.attempts_max": 2,
    # No other caller uses the target in a test, so there is nothing to wait for.
    "retry.backoff_first_s": 0.01,
    "retry.backoff_max_s": 0.05,
    # For a target that accepts nothing: one wait of a refused bolt is 0.5 s.
    "retry.give_up_after_s": 2.0,
    # Threads start at once.
    "start.bolts_timeout_s": 10.0,
}


@check_arguments("values", "job", "partition", "bolt", "attempt", "epoch")
def batch(
    values: Iterable[Any],
    *,
    job: str = "test",
    partition: str = "records",
    bolt: str = "b1",
    attempt: int = 1,
    epoch: int = 1,
) -> Batch:
    """Return what ``process`` gets: one record per value, at the positions 0, 1, …

    A :class:`flowctl.Record` among ``values`` is used as it is, with its own position. ``attempt``
    above 1 means that the batch failed before.  Raises :class:`flowctl.errors.SourceError` for a
    value that would not reach a bolt as it is, and :class:`ConfigError` if there are no values.
    """
    records = [
        value if isinstance(value, Record) else Record(place, value)
        for place, value in enumerate(values)
    ]
    if not records:
        raise ConfigError("values", "a batch holds at least one record.", remedy="Give a value.")
    carried, _, refused = carry_records(records)
    if refused is not None:
        raise refused_error(partition, records[len(carried)], refused)
    span = Span(job, partition, records[0].position, records[-1].position, epoch)
    return Batch(records, span, bolt=bolt, attempt=attempt, clock=time.monotonic)


class LostRecord(msgspec.Struct, frozen=True):
    """A record that was rejected or given up, and why."""

    partition: str
    position: Position
    value: Any
    attempts: int
    reason: str


class LocalRun(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a job's records.

    ``done`` are the values that were processed, ``rejected`` the records that ``process`` rejected,
    ``dead_letters`` those on which it failed until their attempts ran out; each sorted by partition
    name and position.
    """

    report: Report
    done: list[Any]
    rejected: list[LostRecord]
    dead_letters: list[LostRecord]


@check_arguments("settings")
def run_local(
    process: Process,
    records: FlowProducer | Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    count: int = 2,
    slots: int = 1,
    refusal: RefusalRule | None = None,
    settings: Mapping[str, Any] | None = None,
) -> LocalRun:
    """Run ``process`` over ``records`` in ``count`` bolts, as threads; return the outcome.

    ``records`` is a list of values or a producer by value.  Nothing remains afterwards: checkpoint
    and dead letters are in memory.  A record that ``process`` fails on twice becomes a dead letter,
    and the run goes on.  ``settings`` replaces settings by name, such as
    ``{"tuple.records_max": 10}``; those of :data:`QUICK` apply otherwise.  Raises whatever a run
    raises, such as :class:`flowctl.TargetDownError` when ``process`` is refused for 2 s.
    """
    _check_tells_values(records)
    witness = _Witness()
    spout = FlowControlSpout(
        name="test",
        producer=records,
        bolts=LocalBolts(process, count=count, slots=slots, refusal=refusal),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides({**QUICK, **(settings or {})}),
        dead_letter=witness,
        listener=witness,
    )
    report = spout.run(view="quiet")
    lost = [witness.lost[place] for place in sorted(witness.lost, key=_in_order)]
    return LocalRun(
        report=report,
        done=[
            witness.acked[place]
            for place in sorted(witness.acked, key=_in_order)
            if place not in witness.lost
        ],
        rejected=[record for record in lost if record.reason.startswith(REJECTED_PREFIX)],
        dead_letters=[record for record in lost if not record.reason.startswith(REJECTED_PREFIX)],
    )


def _check_tells_values(records: object) -> None:
    if isinstance(records, RangeProducer):  # only its bolts see the values: nothing would be done
        raise ConfigError(
            "records",
            f"{type(records).__name__} is a source by reference, whose values nobody here sees.",
            remedy="Give the values in a list, or a source by value (TextLines, ParquetRows).",
        )


def _in_order(place: tuple[str, Position]) -> tuple[str, bytes]:
    return place[0], encode(place[1])  # a part of a position may be None


class _Witness:
    """Listener and dead letter of one run; both are called from one thread each."""

    def __init__(self) -> None:
        self.acked: dict[tuple[str, Position], Any] = {}
        self.lost: dict[tuple[str, Position], LostRecord] = {}

    def dead_letter(
        self, job: str, partition: str, records: Sequence[Record], *, attempts: int, reason: str
    ) -> None:
        del job
        for record in records:
            lost = LostRecord(partition, record.position, record.value, attempts, reason)
            self.lost[partition, record.position] = lost

    def close(self) -> None:
        """Nothing to open."""

    def on_open(self, job: str, restored: Checkpoint) -> None:
        """Nothing to record."""

    def on_emit(self, emission: Emission) -> None:
        """Nothing to record."""

    def on_ack(self, emission: Emission) -> None:
        for record in emission.records:
            self.acked[emission.partition, record.position] = record.value

    def on_retry(self, emission: Emission, reason: str) -> None:
        """Nothing to record."""

    def on_max_retry_reached(self, emission: Emission, reason: str) -> None:
        """Recorded in :meth:`dead_letter`."""

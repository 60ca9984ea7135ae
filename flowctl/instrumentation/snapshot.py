"""The state of a run, and how it ended: plain values for views, reports and tests."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from flowctl.compat import StrEnum
from flowctl.core.counters import Counters
from flowctl.core.events import BoltState, FlowEvent
from flowctl.core.pacing.figures import TargetView
from flowctl.core.records import AckedRange, Position
from flowctl.core.times import BOUNDS_S


class BoltView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One bolt.  ``window`` and ``in_flight`` in tuples; ``share`` of all acked records, 0…1.

    Counts continue over restarts of the bolt.  ``records_per_s`` is the rate of the last few
    seconds.
    """

    name: str
    state: BoltState
    up: bool
    window: int
    in_flight: int
    ack_rtt_p50_s: float | None
    service_p50_s: float | None
    acked: int
    share: float
    records_acked: int = 0
    moved_away: int = 0  # tuples it held that went to others
    records_per_s: float = 0.0
    refused: bool = False  # the target refused it, and it rests


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """One source partition: ``records`` up to the cumulative ack, then the ranges above it."""

    name: str
    position: Position | None
    records: int
    acked_above: tuple[AckedRange, ...] = ()


class WaitReason(StrEnum):
    """What a spout waits for; the values name the fields of :class:`Waits`."""

    NOTHING = ""  # it has work
    BACKPRESSURE = "backpressure"  # windows are full, or the cap of a sink that all bolts share
    MAX_PENDING = "max_pending"  # the limit of tuples in flight, or of uncommitted records
    NO_INPUT = "no_input"  # the source is slow; or its position is not saved yet
    LAST_TUPLES = "last_tuples"  # all input is at bolts, and not all of it is done yet


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the spout waited, by reason [s]; the rest of the time it was at work.

    ``backpressure_s``: all windows full, so the bolts (or their sink) set the pace.
    ``max_pending_s``: the limit of pending is reached (``dispatch.in_flight_max``,
    ``buffer.uncommitted_max``).  ``no_input_s``: the source is slow.
    ``last_tuples_s``: all that is left is at bolts; of ranges that may be most of the input.
    ``empty_emit_streak``: how many waits of the last three kinds since the last emission.
    Waits before all bolts are connected, or after the stop, do not count.
    """

    backpressure_s: float = 0.0
    max_pending_s: float = 0.0
    no_input_s: float = 0.0
    last_tuples_s: float = 0.0
    empty_emit_streak: int = 0

    def waited_s(self, reason: WaitReason) -> float:
        """How long the spout waited for ``reason``, which is not NOTHING [s]."""
        waited_s: float = getattr(self, f"{reason.value}_s")
        return waited_s


class TimesView(msgspec.Struct, frozen=True):
    """A distribution of seconds: how many fell into each bucket, and their sum.

    The bounds are :data:`flowctl.core.times.BOUNDS_S`; the last count is of what is above them.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    total_s: float = 0.0


class AckTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Times of every fourth ack; ``wait`` and ``service`` only of bolts that report times."""

    rtt: TimesView = TimesView()
    wait: TimesView = TimesView()
    service: TimesView = TimesView()


class DearCall(msgspec.Struct, frozen=True):
    """A call costs ``call_s`` [s] whatever its size, so tuples (or the batches of a range, see
    ``unit``) are large: they hold ``records`` on average."""

    call_s: float
    records: int
    unit: Literal["tuples", "batches"] = "tuples"


class LongCallView(msgspec.Struct, frozen=True, kw_only=True):
    """A call of ``process`` that takes long: for ``for_s`` by now [s], or when the run ended.

    It works on a record from ``first`` to ``last`` of ``partition``; both are the same if it is
    known which.
    """

    bolt: str
    partition: str
    first: Position
    last: Position
    for_s: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment; immutable.  Counts are of this run unless said otherwise.

    Names end in their unit: ``_s`` is seconds.
    """

    job: str
    elapsed_s: float
    phase: Literal["starting", "running", "draining", "stopping"]
    bolts: tuple[BoltView, ...]
    # A screenful, those with something above the cumulative ack first.
    partitions: tuple[PartitionView, ...]
    records_acked: int
    records_per_s: float  # over the last few seconds
    records_buffered: int
    records_skipped: int  # acked by an earlier run, read again and skipped
    tuples_acked: int
    tuples_expired: int
    tuples_moved: int
    # Fraction of the source read, 0…1, and seconds to go; None if the producer can't tell.
    progress: float | None
    eta_s: float | None
    records_saved: int  # in the saved checkpoint, all runs together
    kill_reruns: int  # records that a kill now would run again
    kill_reruns_cumulative_only: int  # the same without selective acks
    # Of ranges: at most so many batches are at work.  A kill runs them again too; how many records
    # they hold is known to the bolts only, so ``kill_reruns`` is without them.
    batches_begun: int = 0
    # False: the checkpoint is lost with the process, and everything would run again.
    store_survives: bool = True
    store_away_s: float | None = None  # how long the checkpoint store has been unavailable
    target_down_s: float | None = None  # how long the target has been down
    target_down_reason: str = ""  # the newest failure during that time
    sink_cap: int | None = None  # the most tuples in flight, to protect the target
    records_rejected: int = 0
    records_dead_lettered: int = 0
    records_left_out: int = 0
    waits: Waits = Waits()
    # What the spout mostly waited for in the last few seconds, and the share of that time, 0…1.
    held_up_by: WaitReason = WaitReason.NOTHING
    held_up_share: float = 0.0
    note: str = ""  # e.g. "waiting for 4 of 12 bolts: no free Spark slot"
    counters: Counters = msgspec.field(default_factory=Counters)  # a copy
    times: AckTimesView = AckTimesView()
    # How long ago everything acked was in the store; None: nothing was saved yet.
    checkpoint_age_s: float | None = None
    holes: int = 0  # acked ranges that wait for a record below them, of ``partitions``
    dear_call: DearCall | None = None  # None: the cost of records decides the size of tuples
    targets: tuple[TargetView, ...] = ()  # that bolts call by ``paced``
    long_calls: tuple[LongCallView, ...] = ()  # of 30 s and more, the longest first


class LossReason(msgspec.Struct, frozen=True):
    """Why records were rejected or dead-lettered, with numbers and quoted parts folded."""

    reason: str
    records: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended; immutable.  ``flowctl run --report`` writes it as JSON.

    ``records_total`` counts the records that all runs of the job have done so far;
    ``records_saved`` is how many of them are in the checkpoint.  Names end in their unit.
    """

    job: str
    outcome: Literal["finished", "failed", "interrupted"]
    error: str | None
    elapsed_s: float
    resumed: bool
    resumed_records: int  # done by earlier runs, according to the checkpoint at the start
    records_acked: int
    records_skipped: int
    records_total: int
    records_saved: int
    tuples_emitted: int
    tuples_acked: int
    tuples_expired: int
    tuples_moved: int
    tuples_failed: int
    acks_late: int
    acks_duplicate: int
    bolts: tuple[BoltView, ...]
    bolts_lost: int  # connections that ended before the run did
    checkpoint_saves: int
    checkpoint_survives: bool = True  # False: what was saved ended with the process
    peers_dropped: int = 0  # connections that broke the protocol; among those lost
    tuples_dropped: int = 0  # in modes without retries: failed, expired or lost
    records_dropped: int = 0
    tuples_dead_lettered: int = 0  # given up and kept elsewhere; among the acked ones
    records_dead_lettered: int = 0
    records_rejected: int = 0  # by process, one by one; among the acked ones
    records_left_out: int = 0  # among the acked ones; the sink had their effect already
    calls_refused: int = 0  # the target had no room or was away
    target_down_total_s: float = 0.0  # how long (nearly) nothing succeeded
    max_in_flight_records: int  # the most that was emitted and not acked at one moment
    tuples_lost: int = 0  # proved lost on the way
    tuples_hedged: int = 0  # given to a second bolt at the end of the input
    dear_call: DearCall | None = None  # as in the snapshot
    calls_overdue: int = 0  # took longer than call.timeout_s
    long_calls: tuple[LongCallView, ...] = ()  # had not returned when the run ended
    waits: Waits = Waits()
    loss_reasons: tuple[LossReason, ...] = ()  # of what was rejected or dead-lettered, most first
    dead_letters_hint: str = ""  # the command that shows them; "" if there is none
    records_kept_nowhere: int = 0  # rejected without a dead letter
    letters_open: int = 0  # of all runs: neither dropped nor processed again
    records_per_s: float = 0.0  # acked by this run, over its whole time
    started_at: str = ""  # wall clock, ISO 8601 in UTC; "": the run did not begin
    ended_at: str = ""
    versions: dict[str, str] = {}  # of flowctl, Python, and Spark where it was used
    settings: dict[str, Any] = {}  # those that differ from the defaults, without secrets

    def __repr__(self) -> str:
        # A notebook shows what run() returned: a line, not all fields.
        return (
            f"{type(self).__name__}({self.outcome}: {self.records_acked} records in"
            f" {self.elapsed_s:.1f} s, {self.records_total} in all runs)"
        )

    @property
    def letters_of_earlier_runs(self) -> int:
        """How many of the open letters were not written by this run."""
        return max(0, self.letters_open - self.records_rejected - self.records_dead_lettered)

    def first(self) -> list[str]:
        """What has to be known before all else, below the outcome in the summary."""
        return []

    def more(self) -> list[str]:
        """Lines of the summary that only this kind of run has."""
        return []


class View(Protocol):
    """Shows a run to a person.  Called from one thread; must not block for long."""

    def start(self, job: str, headline: str) -> None:
        """A run of ``job`` begins; ``headline`` says with which bolts and which policy."""

    def update(self, snapshot: Snapshot) -> None:
        """Show ``snapshot``; called several times a second."""

    def event(self, event: FlowEvent) -> None:
        """Show something that has happened, such as a bolt that was lost."""

    def message(self, text: str) -> None:
        """Show a line for the user."""

    def stop(self, report: Report) -> None:
        """The run has ended, however it did: show the summary."""

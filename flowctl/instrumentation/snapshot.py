"""The state of a run, and how it ended: plain values for views, reports and tests."""

from __future__ import annotations

from datetime import datetime, timezone
from math import inf
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from flowctl.compat import StrEnum
from flowctl.core.counters import Counters
from flowctl.core.events import BoltState, FlowEvent
from flowctl.core.pacing.figures import TargetView
from flowctl.core.records import AckedRange, Position
from flowctl.core.times import BOUNDS_S
from flowctl.errors import PAUSES, QuotaUsedUpError


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
    refused: bool = False  # the target refused its tuple, and it rests
    slots: int = 1  # tuples it works on at once
    paused_s: float = 0.0  # how long its whole process stood still so far: no heartbeat came


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """One source partition: ``records`` up to the cumulative ack, then the ranges above it."""

    name: str
    position: Position | None
    records: int
    acked_above: tuple[AckedRange, ...] = ()


class WaitReason(StrEnum):
    """A reason for which a spout waits; the values name the fields of :class:`Waits`."""

    NOTHING = ""  # it has work
    BACKPRESSURE = "backpressure"  # windows are full, or the cap of a sink that all bolts share
    MAX_PENDING = "max_pending"  # the limit of tuples in flight, or of uncommitted records
    NO_INPUT = "no_input"  # the source is slow; or its position is not saved yet
    LAST_TUPLES = "last_tuples"  # all input is at bolts, and not all of it is done yet


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the spout waited, by reason [s]; the rest of the time it was working.

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
        """Return how long the spout waited for ``reason``, which is not NOTHING [s]."""
        waited_s: float = getattr(self, f"{reason.value}_s")
        return waited_s


class TimesView(msgspec.Struct, frozen=True):
    """A distribution of seconds: how many fell into each bucket, and their sum.

    The bounds are :data:`flowctl.core.times.BOUNDS_S`; the last count is of values above them.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    total_s: float = 0.0


class AckTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Times of every fourth ack; ``wait`` and ``service`` only of bolts that report times.

    ``sink_s``: the part of all service in which a sink was waited for, where ``process`` tells it.
    """

    rtt: TimesView = TimesView()
    wait: TimesView = TimesView()
    service: TimesView = TimesView()
    sink_s: float = 0.0


class Limit(StrEnum):
    """What keeps a run from being faster."""

    NOTHING = "nothing"  # all is well: the bolts work, or all input is processed as it comes
    STARTING = "starting"  # no bolt is connected, or nothing was sent yet
    SOURCE = "source"  # the bolts wait for input
    DRIVER = "driver"  # the driver can't send, or read acks, as fast as the bolts work
    PENDING = "pending"  # a bound of the job's own: tuples in flight, or uncommitted records
    STORE = "store"  # the checkpoint store is away, so nothing more is read
    PATH = "path"  # tuples and acks are under way while the bolts have nothing to do
    TARGET = "target"  # it answers slowly, or takes only so much at once
    TARGET_REFUSES = "target_refuses"  # it refuses calls, or calls wait for its rate
    TARGET_DOWN = "target_down"  # (nearly) nothing succeeds
    ONE_BOLT = "one_bolt"  # one or a few bolts are much slower than the others
    ONE_STAGE = "one_stage"  # of a topology: its bolts are busy, those of others are not
    TOO_FEW_BOLTS = "too_few_bolts"  # bolts are missing, or all are busy and more would help
    PAUSES = "pauses"  # the bolts' processes stand still now and then
    CALL_HANGS = "call_hangs"  # a call takes many times longer than others
    LAST_TUPLES = "last_tuples"  # all input was sent; bolts work on what is left


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of the bolts' slots went: fractions of 1, which add up to 1 (or all are 0).

    Slots work in ``process`` (``service``), wait there for a sink (``sink``), stand still with
    their whole process (``pauses``), or rest as the target refused them (``refused``).  Those
    without work wait for input (``source``), for the driver (``driver``), for a tuple that is under
    way (``path``), or for the windows and limits that hold it back (``window``); in ``ending`` all
    input was sent.
    """

    service: float = 0.0
    sink: float = 0.0
    pauses: float = 0.0
    refused: float = 0.0
    source: float = 0.0
    driver: float = 0.0
    path: float = 0.0
    window: float = 0.0
    ending: float = 0.0

    @property
    def busy(self) -> float:
        """The share in which calls of ``process`` ran."""
        return self.service + self.sink


class TupleTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a mean tuple goes, from sending it to its ack [s]; 0: unknown.

    ``path_s``: there and back; ``queue_s``: it waits in its bolt; ``service_s``: in ``process``,
    ``sink_s`` of it for a sink.
    """

    path_s: float = 0.0
    queue_s: float = 0.0
    service_s: float = 0.0
    sink_s: float = 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why the run is not faster, as views, log, report and page tell it.

    ``headline`` and ``why`` make :attr:`sentence`; ``remedy``: what to change, "" if nothing.
    ``since_s``: when it began [s], counted as ``elapsed_s``.  ``shares`` and ``tuple_time`` are of
    the last few seconds; in a report, of the whole run.  ``names``: the bolts or targets that it is
    about.
    """

    limit: Limit = Limit.STARTING
    headline: str = "nothing was sent yet"
    why: str = ""
    remedy: str = ""
    since_s: float = 0.0
    shares: Shares = Shares()
    tuple_time: TupleTime = TupleTime()
    names: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """One plain sentence, without the time: ``the target is the limit: …``."""
        return self.said()

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing to look after."""
        return self.limit in (Limit.NOTHING, Limit.STARTING, Limit.LAST_TUPLES)

    def said(self, since: str = "") -> str:
        """Return the sentence with ``since``, a time of day, in it: ``the target is the limit since
        10:32:07: …``.
        """
        when = f" since {since}" if since else ""
        return f"{self.headline}{when}" + (f": {self.why}" if self.why else "")


class DearCall(msgspec.Struct, frozen=True):
    """A call costs ``call_s`` [s] whatever its size, so tuples (or the batches of a range, see
    ``unit``) are large: they hold ``records`` on average."""

    call_s: float
    records: int
    unit: Literal["tuples", "batches"] = "tuples"


class LongCallView(msgspec.Struct, frozen=True, kw_only=True):
    """A call of ``process`` that has been running for ``for_s`` [s], or had when the run ended.

    It is working on a record between ``first`` and ``last`` of ``partition``; the two are equal if
    the record is known.
    """

    bolt: str
    partition: str
    first: Position
    last: Position
    for_s: float


# Type checkers treat these as dataclasses, where a frozen class may not inherit from one that is
# not.
class RunNumbers(Counters, frozen=True, kw_only=True, gc=True):  # type: ignore[misc]
    """The numbers that snapshots and the report share, beside the core's counters.

    Counts are of this run unless said otherwise.
    """

    job: str
    elapsed_s: float
    bolts: tuple[BoltView, ...] = ()
    records_per_s: float = 0.0
    records_skipped: int = 0  # acked by an earlier run, read again and skipped
    records_saved: int = 0  # records in the saved checkpoint, of all runs
    waits: Waits = Waits()
    dear_call: DearCall | None = None  # None: the cost of records decides the size of tuples
    long_calls: tuple[LongCallView, ...] = ()  # of 30 s and more, the longest first
    verdict: Verdict = Verdict()  # why it is not faster; in a report, for most of the run


class Snapshot(RunNumbers, frozen=True, kw_only=True):  # type: ignore[misc]
    """A run at one moment; immutable.  ``records_per_s`` is over the last few seconds."""

    phase: Literal["starting", "running", "draining", "stopping"]
    # A screenful, those with something above the cumulative ack first.
    partitions: tuple[PartitionView, ...] = ()
    records_buffered: int = 0
    # Fraction of the source read, 0…1, and seconds to go; None if the producer can't tell.
    progress: float | None = None
    eta_s: float | None = None
    kill_reruns: int = 0  # records that a kill now would run again
    kill_reruns_cumulative_only: int = 0  # the same without selective acks
    # Of ranges: the most batches that can be in progress.  A kill runs them again too; only the
    # bolts know how many records they hold, so ``kill_reruns`` is without them.
    batches_begun: int = 0
    # False: the checkpoint is lost with the process, and everything would run again.
    store_survives: bool = True
    store_away_s: float | None = None  # how long the checkpoint store has been unavailable
    target_down_s: float | None = None  # how long the target has been down
    target_down_reason: str = ""  # the newest failure during that time
    sink_cap: int | None = None  # the most tuples in flight, to protect the target
    # The share of the best goodput that was seen which that many give; None: refusals set it.
    sink_cap_keeps: float | None = None
    # What the spout mostly waited for in the last few seconds, and the share of that time, 0…1.
    held_up_by: WaitReason = WaitReason.NOTHING
    held_up_share: float = 0.0
    note: str = ""  # e.g. "waiting for 4 of 12 bolts: no free Spark slot"
    times: AckTimesView = AckTimesView()
    # Seconds since everything acked was in the store; None: nothing was saved yet.
    checkpoint_age_s: float | None = None
    targets: tuple[TargetView, ...] = ()  # targets that bolts call by ``paced``
    bolts_wanted: int = 0  # 0: as many as there is room for
    # Whether there is room for more bolts: free slots, or an interpreter that is not busy; None: it
    # is not known.
    more_bolts_help: bool | None = None
    shares_interpreter: bool = False  # the bolts are threads of the driver's process

    @property
    def holes(self) -> int:
        """Acked ranges of ``partitions`` that wait for a record below them."""
        return sum(len(part.acked_above) for part in self.partitions)

    @property
    def bolts_up(self) -> int:
        """Bolts that are connected and not silent."""
        return sum(bolt.up for bolt in self.bolts)

    @property
    def tuples_in_flight(self) -> int:
        """Tuples that bolts hold."""
        return sum(bolt.in_flight for bolt in self.bolts)


class LossReason(msgspec.Struct, frozen=True):
    """Why records were rejected or dead-lettered, with numbers and quoted parts folded."""

    reason: str
    records: int


#: Paused: a quota is used up or the deadline has come; all is saved, and another run goes on.
Outcome: TypeAlias = Literal["finished", "failed", "interrupted", "paused"]


def outcome_of(error: BaseException | None) -> Outcome:
    """Return how a run ended that ``error`` ended."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "paused" if isinstance(error, PAUSES) else "failed"


def paused_until(error: BaseException | None) -> str:
    """Return :attr:`Report.paused_until` of a run that ``error`` ended."""
    if not isinstance(error, QuotaUsedUpError) or error.until_s == inf:
        return ""
    return datetime.fromtimestamp(error.until_s, timezone.utc).isoformat()


class Report(RunNumbers, frozen=True, kw_only=True):  # type: ignore[misc]
    """How a run ended; immutable.  ``flowctl run --report`` writes it as JSON.

    ``records_total`` counts the records that all runs of the job have done so far;
    ``records_saved`` is how many of them are in the checkpoint.  ``records_per_s``: acked by this
    run, over its whole time.
    """

    outcome: Outcome
    error: str | None
    paused_until: str = ""  # ISO 8601 in UTC: when a used-up quota begins anew; "": any time
    resumed: bool = False
    resumed_records: int = 0  # done by earlier runs, according to the checkpoint at the start
    records_total: int = 0
    checkpoint_saves: int = 0
    checkpoint_survives: bool = True  # False: what was saved ended with the process
    began_with: str = ""  # what the job's last run learned of costs; "": nothing
    calls_overdue: int = 0  # calls that took longer than call.timeout_s
    loss_reasons: tuple[LossReason, ...] = ()  # most frequent first
    dead_letters_hint: str = ""  # the command that shows them; "" if there is none
    records_kept_nowhere: int = 0  # rejected by this run, without a dead letter
    # The same of earlier runs: until a rewind or a clear has them done again.
    records_kept_nowhere_before: int = 0
    letters_open: int = 0  # letters of all runs, neither dropped nor redriven
    started_at: str = ""  # wall clock, ISO 8601 in UTC; "": the run did not begin
    ended_at: str = ""
    # Versions of flowctl, Python, and Spark if it was used.
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    # Settings that differ from the defaults, without secrets.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        # A notebook shows what run() returned: a line, not all fields.
        return (
            f"{type(self).__name__}({self.outcome}: {self.records_acked} records in"
            f" {self.elapsed_s:.1f} s, {self.records_total} in all runs)"
        )

    @property
    def letters_of_earlier_runs(self) -> int:
        """How many of the open letters were not written by this run."""
        return max(0, self.letters_open - self.records_lost)

    def first(self) -> list[str]:
        """Lines on top of the summary, just below the outcome."""
        return []

    def more(self) -> list[str]:
        """Lines of the summary that only this kind of run has."""
        return []


class View(Protocol):
    """Shows a run to a person.  Called from one thread; must not block for long."""

    def start(self, job: str, headline: str) -> None:
        """Show that a run of ``job`` begins; ``headline`` names its bolts and its policy."""

    def update(self, snapshot: Snapshot) -> None:
        """Show ``snapshot``; called several times a second."""

    def event(self, event: FlowEvent) -> None:
        """Show an event, such as a bolt that was lost."""

    def message(self, text: str) -> None:
        """Show a line for the user."""

    def stop(self, report: Report) -> None:
        """Show the summary: the run has ended, successfully or not."""

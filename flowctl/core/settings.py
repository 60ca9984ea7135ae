"""The numbers that the core works with.  Each has its reason beside it; none needs tuning.

Those that only experiments change are :data:`Lab`: their names begin with ``lab.``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from flowctl.core.guarantee import GuaranteeName, ProcessingGuarantee

Count = Annotated[int, msgspec.Meta(ge=1)]
# An hour: far above any use of what is bounded so.  Without a bound, or with inf, a wait of one of
# our threads is an OverflowError: poll(2) takes 24 days.
SECONDS_MAX = 3600
Seconds = Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)]
# Two weeks, for what may wait for other people: a call of process that takes days, a target that is
# down over the holidays, a queue for a place on the cluster.  Still below poll's 24 days.
LONG_SECONDS_MAX = 14 * 24 * 3600
LongSeconds = Annotated[float, msgspec.Meta(gt=0, le=LONG_SECONDS_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

T = TypeVar("T")
IS_LAB = "is_lab"
# A setting that nobody's job needs: the simulator and tests try other values, and what flowctl is
# compared with needs them.  Its name is ``lab.SECTION.FIELD`` (docs/dev/lab.md).
Lab: TypeAlias = Annotated[T, msgspec.Meta(extra={IS_LAB: True})]

PolicyName = Literal["just_full", "rtt_only", "aiad", "fixed", "aimd", "vegas", "gradient2", "arc"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings; unknown names are refused so that a typo is seen."""


class WindowSettings(Section, frozen=True, kw_only=True):
    """How the window of each bolt changes: the most tuples that it may hold.

    ``policy`` is the rule; ``initial`` and ``max`` are in tuples, ``bytes_max`` in bytes.  The
    other fields belong to single policies: docs/dev/lab.md says what each of them means.
    """

    # just_full needs no number and keeps queues short; see docs/adr/0008-just-full.md.
    policy: Lab[PolicyName] = "just_full"
    # One tuple in service and one under way: keeps a local bolt busy, cannot flood a new one.
    initial: Lab[Count] = 2
    # Of the same order as TCP's bound: far above any useful window, a limit in case of defects.
    max: Lab[Count] = 256
    # The most bytes that a bolt holds; a single tuple is sent whatever its size.  Eight of the
    # largest tuples: two in service and on their way, and enough to fill a path of 8 ms at 1 GB/s,
    # which is more than a bolt can process.
    bytes_max: Lab[Count] = 8 << 20
    # True: a bolt never holds more tuples than the slots that it reports when it connects, so
    # nothing waits there.  Off by default: just_full keeps queues as short, and does not let a bolt
    # go idle while the next tuple is on its way.
    advertised: Lab[bool] = False
    step: Lab[Count] = 1  # what one change adds or takes [tuples]
    # "round": at most one change per round trip, linear in time; "ack": a change with each ack, as
    # the original document says, which doubles a window in each round trip.
    growth: Lab[Literal["round", "ack"]] = "round"
    # From when on an ack is slow [s]; None: by what it takes without a queue, which follows the
    # bolt (window/aiad.py).
    threshold_s: Lab[Seconds | None] = None


class TupleSettings(Section, frozen=True, kw_only=True):
    """How many records one tuple carries: as many as their cost allows, within these bounds.

    ``records_max`` is in records, ``bytes_max`` in bytes, ``service_max_s`` in seconds of
    ``process``.
    """

    # As many records of 100 B as bytes_max allows.  2,000 are enough for the driver (2.8 M/s, make
    # bench), but a call of 20 ms with records of 20 us needs more.  service_max_s bounds how much a
    # kill repeats.
    records_max: Count = 10_000
    # Larger tuples make acks rare and retries expensive.  A larger record gets its own tuple.
    bytes_max: Lab[Count] = 1 << 20
    # No tuple should take longer: what a bolt holds when it dies is done again, and at the end of
    # the input the other bolts wait for it.  If a call alone costs more than a 25th of this, a
    # tuple may take 25 times as long as the call (core/sizing.py).
    service_max_s: Seconds = 0.25


# A heartbeat costs the driver some 10 us; so heartbeats take 1 % of a core, however many bolts
# there are.  Up to 250 bolts this changes nothing.
_BEAT_EVERY_S = 0.001
# A report on a range costs the driver some 50 us; so reports take a quarter of a core at most, up
# to 10,000 bolts.  Up to 500 bolts this changes nothing.
_REPORT_EVERY_S = 0.0002
# A kill repeats what was not reported: never more than this [s], and two batches.
_REPORT_MAX_S = 2.0


class TimeoutSettings(Section, frozen=True, kw_only=True):
    """When a tuple without an ack expires, and when a silent bolt is suspect.  In seconds."""

    # "signs": each bolt's oldest tuple has a timer; when it fires, heartbeats and later acks decide
    # what it means.  "clock": each tuple expires after its RTO whatever else is known, as the
    # original document says.
    rule: Lab[Literal["signs", "clock"]] = "signs"
    # RFC 6298 2.1 begins with 1 s; the first call on a worker imports and connects: 3 s.
    rto_first_s: Lab[LongSeconds] = 3.0
    # RFC 6298 2.4 says 1 s, for the coarse clocks of its time; Linux' TCP_RTO_MIN is this.
    rto_min_s: Lab[LongSeconds] = 0.2
    rto_max_s: Lab[LongSeconds] = 60.0  # RFC 6298 2.5
    heartbeat_s: Lab[Seconds] = 0.25
    # How often a bolt reports on a range (bolts/range_claims.py).
    report_s: Lab[Seconds] = 0.1
    # Three heartbeats missing: a scheduler hiccup of two still counts as alive.
    silence_s: Lab[Seconds] = 0.75
    # A bolt that was heard before and is silent for this long is suspect, whatever its RTO: twelve
    # heartbeats, far longer than any pause of a garbage collector.
    silence_max_s: Lab[Seconds] = 3.0
    # A bolt that is silent for this long is ended by whoever runs it, because it may hold a lock
    # that others wait for.  Ending it takes up to 4 s (if only Spark can do it), so the others
    # continue within 10 s.  Never before silence_max_s; None: never.
    end_after_s: Seconds | None = 5.0

    @property
    def suspect_s(self) -> float:
        """A suspect that is still silent so much later is down, and what it holds goes to others:
        the next heartbeat did not come either."""
        return self.heartbeat_s

    def for_bolts(self, count: int) -> TimeoutSettings:
        """Return these settings for a run of ``count`` bolts: of many, each sends fewer heartbeats
        and reports.

        Silence still has to last for as many heartbeats as with few bolts.
        """
        report_s = max(self.report_s, min(count * _REPORT_EVERY_S, _REPORT_MAX_S))
        beat_s = count * _BEAT_EVERY_S
        if beat_s <= self.heartbeat_s:
            return msgspec.structs.replace(self, report_s=report_s)
        return msgspec.structs.replace(
            self,
            report_s=report_s,
            heartbeat_s=beat_s,
            silence_s=max(self.silence_s, 3 * beat_s),
            silence_max_s=max(self.silence_max_s, 4 * beat_s),
        )


class DispatchSettings(Section, frozen=True, kw_only=True):
    """Which bolt gets the next tuple, and how many tuples may be in flight at all bolts."""

    # "auto": the bolt that would finish it first, if windows are in seconds of work (just_full);
    # else in turn.  "in_turn" waits for the next bolt of the ring even if others have room.
    choice: Lab[Literal["auto", "least_completion", "round_robin", "in_turn"]] = "auto"
    # Tuples in flight at all bolts together; None: only the windows limit them.
    in_flight_max: Count | None = None
    # Bytes in flight at all bolts together: as much as is read ahead (buffer.bytes_max), so that a
    # driver holds 128 MB at most.  Windows grow by time alone: 12 bolts that do nothing would get
    # 200 MB of records of 64 KB.
    bytes_max: Lab[Count] = 64 << 20
    # Does nothing until process reports the time that it waits for a sink, then only under load.
    sink_guard: Lab[bool] = True


class HedgeSettings(Section, frozen=True, kw_only=True):
    """At the end of the input, an idle bolt may run a copy of a tuple that another bolt has begun
    and is late with.  The first ack counts."""

    # Set it to False if a tuple must not be processed twice without a fault.
    enabled: bool = True
    # Copies take at most this share of the tuples (or one per slot), and at most this share of the
    # work (Dean & Barroso 2013 report 2 % more load for their hedged requests) plus half of the
    # time for which bolts are idle.
    share_max: Lab[Share] = 0.02


class RetrySettings(Section, frozen=True, kw_only=True):
    """What happens to a tuple that failed."""

    # Sent at most this often when process raises or its worker dies; expiry alone never gives up.
    attempts_max: Count = 5
    # Exponential: first wait, factor 2.
    backoff_first_s: LongSeconds = 0.1
    backoff_max_s: LongSeconds = 10.0
    # While the target is down no attempt is counted; after this long the run ends.  Longer than
    # the restart or failover of a managed database (1 to 2 minutes, some 10 for a minor upgrade).
    give_up_after_s: LongSeconds = 600.0


class BufferSettings(Section, frozen=True, kw_only=True):
    """Bounds on what the spout has read but not sent: records, bytes."""

    # Some 40 MB of small records.  The producer is polled again when half of them are left; that is
    # nearly one of the largest tuples for each of twelve bolts.
    records_max: Lab[Count] = 200_000
    bytes_max: Count = 64 << 20
    # The most records that are read and not covered by the cumulative ack.  Above a hole, reading
    # stops here; retries continue.  None: only the number of records that are not done is bounded
    # (core/intake.py), not how far others get beyond a slow one: at 480,000 records a second, a
    # million records are 2 s.
    uncommitted_max: Count | None = None


class GuaranteeSettings(Section, frozen=True, kw_only=True):
    """How often a record may have its effect, and so what may be saved when."""

    # The one mode that loses nothing.
    mode: GuaranteeName = "at_least_once"

    @property
    def processing(self) -> ProcessingGuarantee:
        """The mode, with what it means."""
        return ProcessingGuarantee(self.mode)


class CoreSettings(Section, frozen=True, kw_only=True):
    """All settings of the core."""

    window: WindowSettings = WindowSettings()
    tuple: TupleSettings = TupleSettings()
    dispatch: DispatchSettings = DispatchSettings()
    hedge: HedgeSettings = HedgeSettings()
    timeout: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    buffer: BufferSettings = BufferSettings()
    guarantee: GuaranteeSettings = GuaranteeSettings()

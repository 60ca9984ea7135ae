"""The numbers that the core works with.  Each has its reason beside it; none needs tuning."""

from __future__ import annotations

from typing import Annotated, Literal

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
Ratio = Annotated[float, msgspec.Meta(gt=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

PolicyName = Literal["just_full", "rtt_only", "aiad", "fixed", "aimd", "vegas", "gradient2", "arc"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings; unknown names are refused so that a typo is seen."""


class WindowSettings(_Section, frozen=True, kw_only=True):
    """How a bolt's send window moves."""

    # just_full needs no number and keeps queues short; see docs/adr/0008-just-full.md.
    policy: PolicyName = "just_full"
    # One tuple in service and one under way: keeps a local bolt busy, cannot flood a new one.
    initial: Count = 2
    # Two bounds of the same order as TCP's: far above any useful window, a stop for defects.
    max: Count = 256
    # Bytes as a bound too; one tuple goes whatever its size.  Eight of the largest: two in service
    # and on their way, and room for a path of 8 ms at 1 GB/s, which is more than a bolt takes.
    bytes_max: Count = 8 << 20
    # The receiver's word as a bound too: never more than the slots that a bolt tells when it
    # connects, so nothing waits there.  Off: just_full keeps queues as short without letting a
    # bolt go idle while the next tuple is on its way.
    advertised: bool = False
    step: Count = 1  # additive
    # "round": at most one change per round trip, linear in time; "ack": the document's letter,
    # which doubles a window each round trip.
    growth: Literal["round", "ack"] = "round"
    # SLOW when an ack took more than this many times what it takes without a queue: at 2, about
    # one tuple waits for each one in service.
    threshold_ratio: Ratio = 2.0
    # An absolute threshold instead [s]; None: the ratio above, which follows the bolt.
    threshold_s: Seconds | None = None


class TupleSettings(_Section, frozen=True, kw_only=True):
    """How many records ride in one tuple."""

    # A bound on the size that is found: as many as bytes_max holds of records of 100 B.  For the
    # driver 2,000 are enough (2.8 M/s, make bench); a call of 20 ms with records of 20 us needs
    # more.  How much a kill repeats is bounded by service_max_s.
    records_max: Count = 10_000
    # Larger tuples make acks rare and retries dear; one record larger than this rides alone.
    bytes_max: Count = 1 << 20
    # None should take longer than this: what a bolt holds when it dies is done again, and what it
    # holds when the input ends is what the others wait for.  A tuple whose call alone costs a tenth
    # of it or more may take ten times as long as the call (core/sizing.py).
    service_max_s: Seconds = 0.25


# A heartbeat costs the driver some 10 us: it spends 1 % of a core on those of however many bolts.
# Up to 250 bolts this changes nothing.
_BEAT_EVERY_S = 0.001


class TimeoutSettings(_Section, frozen=True, kw_only=True):
    """When a tuple without an ack expires, and when a silent bolt is suspect."""

    # "signs": a timer on each bolt's oldest tuple, judged by heartbeats and later acks; "clock":
    # each tuple expires after its RTO whatever else is seen, the document's letter.
    rule: Literal["signs", "clock"] = "signs"
    # RFC 6298 2.1 begins with 1 s; the first call on a worker imports and connects: 3 s.
    rto_first_s: LongSeconds = 3.0
    # RFC 6298 2.4 says 1 s, for the coarse clocks of its time; Linux' TCP_RTO_MIN is this.
    rto_min_s: LongSeconds = 0.2
    rto_max_s: LongSeconds = 60.0  # RFC 6298 2.5
    heartbeat_s: Seconds = 0.25
    # Three heartbeats missing: a scheduler hiccup of two still counts as alive.
    silence_s: Seconds = 0.75
    # A bolt that was heard before and is silent this long is suspect whatever its RTO: twelve
    # heartbeats, far above any pause of a collector.
    silence_max_s: Seconds = 3.0
    # A suspect that is still silent a heartbeat later is down: all it holds goes to others.
    suspect_s: Seconds = 0.25
    # A bolt that is silent this long is ended by who runs it, as it may hold a lock that others
    # wait for; with the end itself (4 s where only Spark can do it) they go on within 10 s.  Never
    # before silence_max_s; None: never.
    end_after_s: Seconds | None = 5.0

    def for_bolts(self, count: int) -> TimeoutSettings:
        """Return these for a run of ``count`` bolts: many say less often that they are alive.

        What is concluded from silence waits as many heartbeats as with few.
        """
        beat_s = count * _BEAT_EVERY_S
        if beat_s <= self.heartbeat_s:
            return self
        return msgspec.structs.replace(
            self,
            heartbeat_s=beat_s,
            silence_s=max(self.silence_s, 3 * beat_s),
            silence_max_s=max(self.silence_max_s, 4 * beat_s),
            suspect_s=max(self.suspect_s, beat_s),
        )


class DispatchSettings(_Section, frozen=True, kw_only=True):
    """Which bolt gets the next tuple, and how many may be under way in all."""

    # "auto": least completion time where the window is counted in work (just_full), else in turn.
    # "in_turn" waits for the next bolt of the ring even if others have room.
    choice: Literal["auto", "least_completion", "round_robin", "in_turn"] = "auto"
    # Tuples in flight at all bolts together; None: only the windows count.
    in_flight_max: Count | None = None
    # Bytes in flight at all bolts together: as much as is read ahead (buffer.bytes_max), so that a
    # driver holds 128 MB at most.  Windows grow by time alone: 12 bolts that do nothing would get
    # 200 MB of records of 64 KB.
    bytes_max: Count = 64 << 20
    # Does nothing until process tells the time it waits for a sink, and then only under load.
    sink_guard: bool = True


class HedgeSettings(_Section, frozen=True, kw_only=True):
    """At the end of the input: an idle bolt runs what another has begun and is late with."""

    # False where processing a tuple twice does harm, and it must not happen without a fault.
    enabled: bool = True
    # At most this share of the tuples, or one a slot, and this share of the work (Dean & Barroso
    # 2013 report 2 % more load for their hedged requests), beside half of what bolts are idle for.
    share_max: Share = 0.02


class RetrySettings(_Section, frozen=True, kw_only=True):
    """What happens to a tuple that failed."""

    # Sent at most this often when process raises or its worker dies; expiry alone never gives up.
    attempts_max: Count = 5
    # Exponential: first wait, factor 2.
    backoff_first_s: LongSeconds = 0.1
    backoff_max_s: LongSeconds = 10.0
    # While (nearly) nothing succeeds no attempt is counted; after this long the run ends. Longer
    # than the restart or failover of a managed database (1 to 2 minutes, a minor upgrade some 10).
    give_up_after_s: LongSeconds = 600.0
    # Up to half of the wait is left out at random, so that tuples which failed together (a database
    # that went away) do not all come back at the same moment.
    jitter_share: Share = 0.5


class BufferSettings(_Section, frozen=True, kw_only=True):
    """Bounds on what the spout holds."""

    # Half of it, which is there when the producer is polled again, is most of one of the largest
    # tuples for each of twelve bolts; some 40 MB of small records.
    records_max: Count = 200_000
    bytes_max: Count = 64 << 20
    # Records read and not below the cumulative ack.  A hole stops intake here; retries go on.
    # None: how many of them are not done is bounded (core/intake.py), not how far the others go
    # beyond one that takes long: at 480,000 records a second a million are 2 s.
    uncommitted_max: Count | None = None


class GuaranteeSettings(_Section, frozen=True, kw_only=True):
    """How often a record may have its effect, so what may be committed when."""

    # The one mode that loses nothing.
    mode: GuaranteeName = "at_least_once"

    @property
    def processing(self) -> ProcessingGuarantee:
        """The mode, with what it means."""
        return ProcessingGuarantee(self.mode)


class CoreSettings(_Section, frozen=True, kw_only=True):
    """All settings of the core."""

    window: WindowSettings = WindowSettings()
    tuple: TupleSettings = TupleSettings()
    dispatch: DispatchSettings = DispatchSettings()
    hedge: HedgeSettings = HedgeSettings()
    timeout: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    buffer: BufferSettings = BufferSettings()
    guarantee: GuaranteeSettings = GuaranteeSettings()

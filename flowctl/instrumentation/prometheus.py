"""Snapshots, and paced targets, as metrics of Prometheus.

Labels are bounded: bolts are labels, partitions and reasons are not.  There is no label for the
job, as a scraped process runs only one: ``flowctl_run_info`` has its name.  Paced targets are those
of all programs that share a Redis, with the figures of each of their jobs.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import flowctl
from flowctl.core.counters import Counters
from flowctl.core.events import BoltState
from flowctl.core.pacing.figures import StoredTarget
from flowctl.core.times import BOUNDS_S
from flowctl.errors import FlowctlError
from flowctl.instrumentation.snapshot import BoltView, Snapshot, TimesView, WaitReason

if TYPE_CHECKING:
    from prometheus_client import Metric


PHASES: Final = ("starting", "running", "draining", "stopping")
# Each of the core's counters, except these, is a metric of the same name.
NO_METRIC: Final = {
    "records_pending_now": "kill_reruns_records has them, and those that are acked and not saved",
    "max_in_flight_records": "a server that scrapes keeps the most of what it has seen by itself",
    "target_down_total_s": "the sum over target_down_seconds, which says when that was, too",
}
_MEANINGS: Final = Counters.meanings()
# Name without its prefix, help, and the field of the snapshot; None counts as 0: nothing is wrong.
_GAUGES: Final = (
    ("elapsed_seconds", "Time since the run began.", "elapsed_s"),
    ("records_buffered", "Records read and not sent yet.", "records_buffered"),
    ("records_saved", "Records in the saved checkpoint, of all runs together.", "records_saved"),
    ("kill_reruns_records", "Records that a kill now would run again.", "kill_reruns"),
    (
        "kill_reruns_batches",
        "Of ranges: at most so many begun batches would run again as well.",
        "batches_begun",
    ),
    ("checkpoint_holes", "Acked ranges above an unacked record, of 20 partitions.", "holes"),
    ("store_away_seconds", "How long the checkpoint store has been unavailable.", "store_away_s"),
    ("target_down_seconds", "How long the target has been down.", "target_down_s"),
)
# The same, but without a sample while the value is None: it is unknown.
_ABSENT_IF_NONE: Final = (
    ("source_done_ratio", "Fraction of the source that is acked.", "progress"),
    ("eta_seconds", "Estimated time left at the present rate.", "eta_s"),
    ("sink_cap_tuples", "The most tuples in flight, to protect the target.", "sink_cap"),
    (
        "checkpoint_age_seconds",
        "Time since the checkpoint store last had everything that was acked.",
        "checkpoint_age_s",
    ),
)
_TIMES: Final = (
    ("ack_rtt_seconds", "From sending a tuple to its ack; every fourth ack.", "rtt"),
    ("wait_seconds", "Time of a tuple in its bolt's queue; every fourth ack.", "wait"),
    ("service_seconds", "Time of a tuple in process; every fourth ack.", "service"),
)
# Of each bolt: type, name, help, and its value, a whole number or a bool.
_OF_BOLTS: Final = (
    ("gauge", "bolt_up", "1: connected and not silent.", "up"),
    ("gauge", "bolt_window_tuples", "The most tuples that it may hold.", "window"),
    ("gauge", "bolt_in_flight_tuples", "The tuples that it holds.", "in_flight"),
    ("gauge", "bolt_resting", "1: the target refused it, and it rests.", "refused"),
    ("counter", "bolt_records_acked_total", "Records that it acked.", "records_acked"),
    ("counter", "bolt_tuples_moved_total", "Tuples it held that went to others.", "moved_away"),
)
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of the run as a whole; needs prometheus-client.  Takes no lock."""
    yield from _run(snapshot)
    yield _states(snapshot.bolts)
    yield from _times(snapshot)


def bolt_lines(bolts: tuple[BoltView, ...]) -> str:
    """Return the metrics of each bolt in Prometheus' text format, version 0.0.4.

    Written here, as prometheus-client takes five times as long for a line (``python -m
    tests.benchmarks metrics``), and makes objects that set off the garbage collector: with 1,000
    bolts a scrape has 6,000 lines.
    """
    labels = [f'{{bolt="{bolt.name.translate(_ESCAPES)}"}}' for bolt in bolts]
    lines = []
    for kind, name, told, field in _OF_BOLTS:
        lines.append(f"# HELP flowctl_{name} {told}\n# TYPE flowctl_{name} {kind}\n")
        lines += [
            f"flowctl_{name}{label} {getattr(bolt, field):d}\n"
            for label, bolt in zip(labels, bolts, strict=True)
        ]
    return "".join(lines)


def _run(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

    info = {
        "name": snapshot.job,
        "version": flowctl.__version__,
        "python": platform.python_version(),
    }
    yield InfoMetricFamily("flowctl_run", "The job of this process.", info)
    yield _one_of("phase", "1 for the phase of the run.", PHASES, snapshot.phase)
    for name in Counters.__struct_fields__:
        if name not in NO_METRIC:
            yield _counter(name, _MEANINGS[name], getattr(snapshot, name))
    yield _counter(
        "records_skipped", "Records of earlier runs, read again.", snapshot.records_skipped
    )
    for name, told, field in _GAUGES:
        yield _gauge(name, told, getattr(snapshot, field) or 0)
    for name, told, field in _ABSENT_IF_NONE:
        yield _gauge(name, told, getattr(snapshot, field))
    yield _waits(snapshot)


def _waits(snapshot: Snapshot) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    told = "How long the spout waited, by reason."
    family = CounterMetricFamily("flowctl_spout_wait_seconds", told, labels=["reason"])
    for reason in WaitReason:
        if reason:
            family.add_metric([reason.value], snapshot.waits.waited_s(reason))
    return family


def _states(bolts: tuple[BoltView, ...]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    told = "How many bolts are in this state; those that are down are BUSY."
    states = GaugeMetricFamily("flowctl_bolts", told, labels=["state"])
    for state in BoltState:
        states.add_metric([state.name.lower()], sum(bolt.state is state for bolt in bolts))
    return states


def _times(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, told, field in _TIMES:
        view: TimesView = getattr(snapshot.times, field)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        buckets: Any = list(zip(bounds, accumulate(view.counts), strict=True))
        yield HistogramMetricFamily(f"flowctl_{name}", told, buckets, sum_value=view.total_s)


def _counter(name: str, told: str, value: float) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"flowctl_{name}", told, value=value)


def _gauge(name: str, told: str, value: float | None) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"flowctl_{name}", told, value=value)


def _one_of(name: str, told: str, values: tuple[str, ...], now: str) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"flowctl_{name}", told, labels=[name])
    for value in values:
        family.add_metric([value], value == now)
    return family


# -- paced targets -----------------------------------------------------------------------------

# Of each job: name, help, and the field of Sums.
_OF_JOBS: Final = (
    ("calls", "Calls that succeeded.", "calls"),
    ("cost", "Cost of the calls that succeeded.", "cost"),
    ("call_seconds", "Time in calls that succeeded.", "call_s"),
    ("refused", "Calls that the target refused.", "refused"),
    ("failed", "Calls that ended in another way.", "failed"),
    ("waited_seconds", "Time that calls waited for a permit or for budget.", "waited_s"),
)


_OF_TARGETS: Final[tuple[tuple[str, str, Callable[[StoredTarget], float]], ...]] = (
    ("limit_calls", "How many calls at once the target may get.", lambda t: t.limit),
    ("used_calls", "Calls in flight, on average over the last 10 to 20 s.", lambda t: t.used),
    ("leased_permits", "Permits that workers hold.", lambda t: t.leased),
    ("workers", "Processes that call the target.", lambda t: len(t.claims)),
    ("seen_seconds", "Time since a worker last reported.", lambda t: t.seen_s),
)


class ScrapedTargets:
    """Asks ``read`` at each scrape; for :class:`MetricsServer`.  As thread-safe as ``read`` is."""

    def __init__(self, read: Callable[[], Sequence[StoredTarget]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; Prometheus gets an error of the server if Redis can't be read."""
        yield from target_families(self._read())

    def lines(self) -> str:
        """Return nothing: there are no metrics of bolts."""
        return ""

    def unhealthy(self) -> str:
        """Return "": it holds no state, so there is no reason to restart it."""
        return ""

    def unready(self) -> str:
        """Return why nothing can be read; "" if all is well."""
        try:
            self._read()
        except FlowctlError as error:
            return error.problem
        return ""


def target_families(targets: Sequence[StoredTarget]) -> Iterator[Metric]:
    """Yield the metrics of ``targets``; needs prometheus-client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    of_target = ["target"]
    for name, told, value in _OF_TARGETS:
        gauge = GaugeMetricFamily(f"flowctl_target_{name}", told, labels=of_target)
        for each in targets:
            gauge.add_metric([each.target], value(each))
        yield gauge
    told = "The cost per second that is allowed, if it is bounded."
    budget = GaugeMetricFamily("flowctl_target_budget", told, labels=of_target)
    for each in targets:
        if each.budget is not None:
            budget.add_metric([each.target], each.budget)
    yield budget
    for name, told, field in _OF_JOBS:
        counter = CounterMetricFamily(f"flowctl_target_{name}", told, labels=["target", "job"])
        for each in targets:
            for job, sums in each.jobs.items():
                counter.add_metric([each.target, job], getattr(sums, field))
        yield counter

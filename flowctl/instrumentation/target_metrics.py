"""Paced targets as metrics of Prometheus: what all programs that share a Redis reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from flowctl.core.pacing.stored import StoredTarget
from flowctl.errors import FlowctlError

if TYPE_CHECKING:
    from prometheus_client import Metric

# Of each job: name, help, and the field of Sums.
_COUNTS: Final = (
    ("calls", "Calls that succeeded.", "calls"),
    ("cost", "Cost of the calls that succeeded.", "cost"),
    ("call_seconds", "Time in calls that succeeded.", "call_s"),
    ("refused", "Calls that the target refused.", "refused"),
    ("failed", "Calls that ended in another way.", "failed"),
    ("waited_seconds", "Time that calls waited for a permit or for budget.", "waited_s"),
)


_GAUGES: Final[tuple[tuple[str, str, Callable[[StoredTarget], float]], ...]] = (
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
        yield from families(self._read())

    def lines(self) -> str:
        """There are no metrics of bolts."""
        return ""

    def unhealthy(self) -> str:
        """It holds nothing, so there is no reason to start it again."""
        return ""

    def unready(self) -> str:
        """Return why nothing can be read; "" if all is well."""
        try:
            self._read()
        except FlowctlError as error:
            return error.problem
        return ""


def families(targets: Sequence[StoredTarget]) -> Iterator[Metric]:
    """Yield the metrics of ``targets``; needs prometheus-client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    of_target = ["target"]
    for name, told, value in _GAUGES:
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
    for name, told, field in _COUNTS:
        counter = CounterMetricFamily(f"flowctl_target_{name}", told, labels=["target", "job"])
        for each in targets:
            for job, sums in each.jobs.items():
                counter.add_metric([each.target, job], getattr(sums, field))
        yield counter

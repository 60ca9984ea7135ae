"""The demo's spout, built of the adapters that any job would use, and a run of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from flowctl.adapters import load_adapter
from flowctl.core.events import FlowEvent, StateChanged
from flowctl.instrumentation.numbers import duration
from flowctl.instrumentation.snapshot import Report, View
from flowctl.instrumentation.views import Beside, Page, ViewMode, make_view
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.launch import Interrupted
from flowctl_lab.demo import journal
from flowctl_lab.demo.plan import JOB, SLOW_FACTOR, Places, Plan
from flowctl_lab.demo.work import SCHEMA, Work

# Just before the end of the slow phase, so that rates are of this phase alone.
_DRAWN_AT = 0.95


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run: its report, and the number of each bolt's changes of state."""

    report: Report
    state_changes: dict[str, int]

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> Outcome:
        return msgspec.json.decode(path.read_bytes(), type=cls)


class DemoView(Beside):
    """Counts changes of state and has its own headline, beside the view that shows the run."""

    def __init__(self, inner: View, headline: str) -> None:
        super().__init__(inner)
        self._headline = headline
        self.state_changes: Counter[str] = Counter()

    def start(self, job: str, headline: str) -> None:
        super().start(job, self._headline)

    def event(self, event: FlowEvent) -> None:
        if isinstance(event, StateChanged):
            self.state_changes[event.bolt] += 1
        super().event(event)


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """The display of a run; its live view is drawn to the file ``svg``, ``columns`` wide."""

    mode: ViewMode
    svg: Path | None = None
    columns: tuple[int, ...] = ()
    page: Page | None = None

    def view(self, plan: Plan, resume: str) -> View:
        """Return the view; the picture is taken late in the slow phase."""
        inner: View = make_view(self.mode)
        if self.page is not None:
            from flowctl.instrumentation.page import PageState, PageView

            inner = PageView(inner, PageState(resume=resume), self.page)
        if self.svg is None:
            return inner
        from flowctl.instrumentation.live import Picture

        at_s = plan.slow_to_s * _DRAWN_AT
        return Picture(inner, self.svg, at_s=at_s, columns=self.columns, title="flowctl demo")


def headline(plan: Plan) -> str:
    """Return the first line on screen."""
    where = "threads" if plan.local else "Spark local"
    slow_for = duration(plan.slow_to_s - plan.slow_from_s)
    return (
        f"flowctl demo · {plan.bolts} bolts on {where} · "
        f"{plan.slow_bolt} is {SLOW_FACTOR}x slower for {slow_for} · seed {plan.seed}"
    )


def build_spout(plan: Plan, places: Places, redis_url: str) -> FlowControlSpout:
    """Return the demo's job, of the same parts as the job in the README."""
    sink = load_adapter("flowctl_sql", "sql").SqlSink(
        f"sqlite:///{places.database}", table="access", schema=SCHEMA
    )
    return FlowControlSpout(
        name=JOB,
        producer=load_adapter("flowctl_files", "files").TextLines(places.logs / "*.log"),
        bolts=_bolts(Work(plan, places.journal, sink), plan),
        checkpoint=load_adapter("flowctl_redis", "redis").RedisCheckpointStore(redis_url),
    )


def _bolts(work: Work, plan: Plan) -> Any:
    if plan.local:
        from flowctl.bolts.local import LocalBolts

        return LocalBolts(work, count=plan.bolts)
    return load_adapter("pyspark_flowctl", "spark").SparkBolts(work, count=plan.bolts)


def run_once(plan: Plan, places: Places, redis_url: str, *, show: Show, resume: str) -> Outcome:
    """Run the job until it is finished and return the outcome, which is also saved.

    Raises the errors of ``FlowControlSpout.run``; the outcome is saved after an interruption too.
    """
    shown = DemoView(show.view(plan, resume), headline(plan))
    spout = build_spout(plan, places, redis_url)
    try:
        report = spout.run(view=shown, resume_hint=resume)
    except Interrupted as stopped:
        Outcome(report=stopped.report, state_changes=dict(shown.state_changes)).save(places.outcome)
        raise
    finally:
        spout.checkpoint.close()
    outcome = Outcome(report=report, state_changes=dict(shown.state_changes))
    outcome.save(places.outcome)
    return outcome


def last_epoch(places: Places) -> int | None:
    """Return the newest run that began a tuple; None if none did."""
    found = journal.epochs(places.journal)
    return found[-1] if found else None

"""A topology and where it runs: what ``flowctl run`` takes."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from flowctl.compat import add_note
from flowctl.config import Settings
from flowctl.core.records import Checkpoint
from flowctl.core.trees.anchors import NextId
from flowctl.errors import FlowctlError, without_secrets
from flowctl.instrumentation.snapshot import Report
from flowctl.instrumentation.task_metrics import EvenSampler
from flowctl.ports import (
    BoltNotice,
    Bolts,
    CheckpointStore,
    DeadLetter,
    FlowProducer,
    SpoutListener,
)
from flowctl.runtime.launch import Interrupted, Launch, ViewChoice
from flowctl.runtime.parts import RunnableJob, check_listener, check_name, check_parts
from flowctl.runtime.run_plan import RunPlan
from flowctl.topology.callbacks import CallbackThread, SpoutCallbacks, Told, telling_slow
from flowctl.topology.figures import TopologyReport
from flowctl.topology.hub.core import HubPlan, TopologyCore
from flowctl.topology.hub.news import RootEmitted, RootEnd, RootStep, TaskWatched, Wanted
from flowctl.topology.hub.roots import TreeRules
from flowctl.topology.hub.routing import Translate
from flowctl.topology.local_stages import Stages
from flowctl.topology.metrics import Consumer
from flowctl.topology.plan import StagePlan
from flowctl.topology.root_notifier import RootNotifier
from flowctl.topology.sources import Sources, sources_of


class Declared(Protocol):
    """What a job needs from a :class:`flowctl.topology.Topology`; keys are names of spouts."""

    name: str
    tree_timeout_s: float
    max_pending: int | None
    ackers: int
    is_debug: bool
    producers: dict[str, FlowProducer]
    translations: dict[str, Translate]
    callbacks: dict[str, SpoutCallbacks]
    consumers: list[Consumer]

    def plans(self, settings: Settings | None = None) -> list[StagePlan]: ...


def random_ids() -> NextId:
    """Return a source of random ids of 64 bits, never 0, seeded by the system."""
    draw = random.Random(secrets.randbits(256)).getrandbits

    def next_id() -> int:
        while not (drawn := draw(64)):
            pass
        return drawn

    return next_id


class TopologyJob(RunnableJob):
    """A topology and where it runs.  :attr:`core` shows how it stands.

    It is active from the start; :meth:`deactivate` and :meth:`activate` may be called from any
    thread, even before :meth:`run`, which then opens nothing until it is active.  ``next_id`` gives
    the ids of trees; tests replace it.  An object runs once.
    """

    def __init__(
        self,
        topology: Declared,
        stages: Stages,
        checkpoint: CheckpointStore,
        settings: Settings,
        *,
        dead_letter: DeadLetter | None = None,
        listener: SpoutListener | None = None,
    ) -> None:
        check_name(topology.name)
        check_listener(listener)
        self.topology = topology
        self.plans: list[StagePlan] = topology.plans(settings)
        self.name: str = topology.name
        self.producer: Sources = sources_of(topology.producers)
        self.bolts: Bolts = stages.bolts(self.plans)
        self.checkpoint = checkpoint
        self.settings = settings
        self.dead_letter = dead_letter
        self.core: TopologyCore | None = None
        self.next_id: NextId = random_ids()
        self.chance: Callable[[], float] = random.random  # of the jitter of back-offs
        self.is_active: bool = True
        self._activated = threading.Event()
        self._activated.set()
        self._launch: Launch | None = None
        self._teller = CallbackThread(
            Told(topology.callbacks, topology.consumers, topology.is_debug),
            settings.metrics,
            on_death=self._thread_died,
        )
        # The run's own notifier is for tuples; here a listener is notified of roots.
        self._root_notifier = None
        if listener is not None:
            self._root_notifier = RootNotifier(listener, on_death=self._thread_died)
        check_parts(self)

    def run(
        self,
        *,
        view: ViewChoice = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
    ) -> TopologyReport:
        """As :meth:`flowctl.FlowControlSpout.run`; the report also has stages and trees."""
        self._activated.wait()
        check_parts(self)  # they may have been replaced
        launch = self._launch = Launch(
            self._plan(), view=view, resume_hint=resume_hint, report_path=report_path
        )
        tellers = [t for t in (self._teller, self._root_notifier) if t is not None]
        for teller in tellers:
            teller.start()
        try:
            report = launch.run()
        except Interrupted as interrupted:
            told = interrupted.report
            if isinstance(told, TopologyReport) and told.held_up:
                add_note(interrupted, f"It waited for: {'; '.join(told.held_up)}.")
            raise
        finally:
            for teller in tellers:
                teller.close()
        if launch.failure is not None:  # a thread died on the last items
            raise launch.failure
        assert isinstance(report, TopologyReport)
        return report

    def _plan(self) -> RunPlan:
        return RunPlan(
            job=self.name,
            producer=self.producer,
            bolts=self.bolts,
            store=self.checkpoint,
            settings=self.settings,
            make_core=self._make_core,
            dead_letter=self.dead_letter,
            on_notice=self._on_notice,
            on_news=self._tell,
            extend=self._extended,
        )

    def _thread_died(self, error: FlowctlError) -> None:
        """A thread beside the run died: end the run."""
        if self._launch is not None:
            self._launch.fail(error)

    def activate(self) -> None:
        """Let the spouts emit, within half a second; repeats are ignored."""
        self._set_active(True)

    def deactivate(self) -> None:
        """Stop emitting new roots and retries; what is under way is finished, acked and saved."""
        self._set_active(False)

    def _set_active(self, is_active: bool) -> None:
        self.is_active = is_active
        if self.core is not None:
            self.core.is_active = is_active
        if is_active:
            self._activated.set()
        else:
            self._activated.clear()

    def _on_notice(self, notice: BoltNotice) -> None:
        if notice.kind in ("restarting", "fatal"):
            self._teller.died(notice.bolt, without_secrets(notice.detail))

    def _extended(self, report: Report) -> TopologyReport:
        core = self.core
        is_interrupted = report.outcome == "interrupted"
        self._teller.close()  # all reports of tasks have arrived
        return TopologyReport(
            **msgspec.structs.asdict(report),
            stages=tuple(core.stage_figures()) if core is not None else (),
            trees=core.tree_figures() if core is not None else None,
            errors=tuple(self._teller.errors()),
            held_up=core.held_up() if core is not None and is_interrupted else (),
        )

    def _make_core(self, settings: Settings, checkpoint: Checkpoint) -> TopologyCore:
        topology = self.topology
        if self._root_notifier is not None:
            self._root_notifier.opened(self.name, checkpoint)
        trees = TreeRules(
            self.next_id,
            ackers=topology.ackers,
            timeout_s=topology.tree_timeout_s,
            max_pending=topology.max_pending,
            chance=self.chance,
        )
        translate = {
            name: telling_slow(f"translate of {name}", call)
            for name, call in topology.translations.items()
        }
        self.core = TopologyCore(
            HubPlan(self.plans, trees, translate),
            settings,
            checkpoint=checkpoint,
            wanted=self._wanted(),
            has_dead_letter=self.dead_letter is not None,
        )
        self.core.is_active = self.is_active
        return self.core

    def _wanted(self) -> Wanted:
        """Which news anybody needs; unused sampling would cost the hub time."""
        callbacks = self.topology.callbacks.values()
        metrics = self.settings.metrics
        samples = None
        has_hooks = any(spout.hooks for spout in callbacks)
        if has_hooks or metrics.interval_s is not None:
            samples = EvenSampler(metrics.sample_one_in, chance=random.Random())
        return Wanted(
            ends=self.topology.is_debug or not all(spout.is_empty for spout in callbacks),
            emits=has_hooks,
            steps=self._root_notifier is not None,
            tasks=True,
            samples=samples,
        )

    def _tell(self, news: object) -> None:
        """Pass on the hub's news; it only queues, so it never waits."""
        if isinstance(news, RootEnd):
            self._teller.ended(news)
        elif isinstance(news, TaskWatched):
            self._teller.watched(news.bolt, news.watched)
        elif isinstance(news, RootEmitted):
            self._teller.emitted(news.spout, news.value)
        elif isinstance(news, RootStep) and self._root_notifier is not None:
            self._root_notifier.took(news)

"""FlowControlSpout: a producer, bolts and a checkpoint, put together and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flowctl.adapters import dead_letter_of
from flowctl.config import Settings, settings_of
from flowctl.core.ranges.core import RangeCore, for_ranges
from flowctl.core.records import Checkpoint
from flowctl.core.spout import SpoutCore
from flowctl.instrumentation.snapshot import Report
from flowctl.ports import Bolts, CheckpointStore, DeadLetter, FlowProducer, SpoutListener
from flowctl.range_ports import RangeProducer, ReceiptLog
from flowctl.runtime.launch import Launch, ViewChoice
from flowctl.runtime.parts import (
    RunnableJob,
    bolts_of,
    check_listener,
    check_name,
    check_parts,
    source_of,
    store_of,
)
from flowctl.runtime.run_plan import RunPlan


class FlowControlSpout(RunnableJob):
    """Reads ``producer``, hands tuples to ``bolts``, keeps the position in ``checkpoint``.

    ``producer`` may also be a list or another iterable (:class:`flowctl.Records`), or a source that
    the bolts read themselves (:class:`flowctl.RangeProducer`).  ``checkpoint`` may be the URL of a
    Redis server; None: the one of FLOWCTL_REDIS_URL, else :class:`flowctl.FileCheckpointStore`,
    files below the current directory.
    ``name`` is the checkpoint's key: a run with the same name resumes where the last one ended, and
    of two at once the newer fences the older, which stops.  ``dead_letter`` keeps what can't be
    processed: a directory, or a store; without one the run fails there.  ``listener`` is notified
    of what happens to tuples.
    The attributes may be replaced before :meth:`run`; one object runs once at a time.

    For a loop and bolts of your own use :class:`flowctl.ManualSpout`.
    """

    def __init__(
        self,
        *,
        name: str,
        producer: FlowProducer | RangeProducer | Iterable[Any] | Callable[[], Iterable[Any]],
        bolts: Bolts,
        checkpoint: CheckpointStore | str | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        dead_letter: DeadLetter | str | Path | None = None,
        listener: SpoutListener | None = None,
    ) -> None:
        check_name(name)
        self.name: str = name
        self.producer: FlowProducer | RangeProducer = source_of(producer)
        self.bolts: Bolts = bolts_of(bolts)
        self.checkpoint: CheckpointStore = store_of(checkpoint)
        self.settings: Settings = settings_of(settings)
        self.dead_letter: DeadLetter | None = dead_letter_of(dead_letter)
        self.listener = listener
        self.receipts: ReceiptLog | None = None  # the log that keeps receipts of ranges
        self._check()

    def run(
        self,
        *,
        view: ViewChoice = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
        deadline_s: float | None = None,
    ) -> Report:
        """Run to the end of the input; return the report.

        ``view`` shows progress: live on a terminal, plain lines elsewhere; ``"page"`` or a
        :class:`flowctl.Page` shows it in a browser, too.  Ctrl-C and SIGTERM stop sending, wait
        some seconds for what is in flight, save, say how to resume (``resume_hint``)
        and raise :class:`flowctl.Interrupted`.  Errors are raised after everything acked was saved,
        with the report as their attribute ``report``.  The report is written to ``report_path``,
        however the run ends: as the page if its name ends in .html, else as JSON.  After
        ``deadline_s`` the run saves, says what is left and raises :class:`flowctl.DeadlineError`.
        """
        self._check()  # parts may have been replaced
        plan = RunPlan(
            job=self.name,
            producer=self.producer,
            bolts=self.bolts,
            store=self.checkpoint,
            settings=self.settings,
            make_core=self._make_core,
            dead_letter=self.dead_letter,
            listener=self.listener,
            receipts=self.receipts,
        )
        return Launch(
            plan,
            view=view,
            resume_hint=resume_hint,
            report_path=report_path,
            deadline_s=deadline_s,
        ).run()

    def _check(self) -> None:
        check_parts(self)
        check_listener(self.listener)
        if isinstance(self.producer, RangeProducer):
            for_ranges(self.settings)

    def _make_core(
        self, settings: Settings, checkpoint: Checkpoint, chance: Callable[[], float]
    ) -> SpoutCore | RangeCore:
        if isinstance(self.producer, RangeProducer):
            return RangeCore(
                settings,
                checkpoint=checkpoint,
                has_dead_letter=self.dead_letter is not None,
                chance=chance,
                keeps_receipts=self.receipts is not None,
            )
        core = SpoutCore(
            settings,
            checkpoint=checkpoint,
            has_dead_letter=self.dead_letter is not None,
            chance=chance,
        )
        core.expect_bolts(self.bolts.count)
        return core

"""FlowControlSpout: a producer, bolts and a checkpoint, put together and run."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from flowctl.bolts.callables import refuse_async
from flowctl.config import Settings
from flowctl.core.driver import DriverCore
from flowctl.core.records import Checkpoint
from flowctl.core.spout import SpoutCore
from flowctl.errors import ConfigError, FlowctlError, without_secrets
from flowctl.instrumentation.run_events import RunEvents
from flowctl.instrumentation.snapshot import Report, View
from flowctl.instrumentation.text import shown_command
from flowctl.ports import (
    BoltNotice,
    Bolts,
    CheckpointStore,
    DeadLetter,
    FlowProducer,
    SpoutListener,
)
from flowctl.runtime.interrupts import Interrupts
from flowctl.runtime.manual import HandDriven
from flowctl.runtime.parts import bolts_of, producer_of, store_of
from flowctl.runtime.run import Run

_DEAD_LETTER_CALLS = ("dead_letter", "dead_letter_many", "open_letters", "close")
_LISTENER_CALLS = ("on_open", "on_emit", "on_ack", "on_retry", "on_max_retry_reached")
_NAME_MAX = 200  # as a file name or a Redis key it should still be readable


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: everything acked is saved, or the message says that it is not.

    ``report`` says how far the run came.
    """

    report: Report


class FlowControlSpout(HandDriven):
    """Reads ``producer``, hands tuples to ``bolts``, keeps the position in ``checkpoint``.

    ``producer`` may also be a list or another iterable (:class:`flowctl.Records`), ``checkpoint``
    the URL of a Redis server; without one a new process starts over.
    ``name`` is the checkpoint's key: a run with the same name goes on where the last one ended,
    and two at once fence each other (the older stops).  ``dead_letter`` keeps what can't be
    processed; without one the run fails there.  ``listener`` is told what becomes of tuples.  The
    attributes may be replaced before :meth:`run`; one object runs once at a time.

    Either :meth:`run` does everything, or the caller drives by hand as in Storm:
    ``open, activate, next_tuple, ack, fail, deactivate, close`` (see :class:`HandDriven`).
    """

    def __init__(
        self,
        *,
        name: str,
        producer: FlowProducer | Iterable[Any] | Callable[[], Iterable[Any]],
        bolts: Bolts,
        checkpoint: CheckpointStore | str | None = None,
        settings: Settings | None = None,
        dead_letter: DeadLetter | None = None,
        listener: SpoutListener | None = None,
    ) -> None:
        if not name or len(name) > _NAME_MAX or not name.isprintable():
            raise ConfigError(
                "name", f"{name!r} can't name a job.", remedy="Use 1 to 200 printable characters."
            )
        super().__init__()
        self.name = name
        self.producer = producer_of(producer)
        self.bolts: Bolts = bolts_of(bolts)
        self.checkpoint = store_of(checkpoint)
        self.settings = settings or Settings()
        self.dead_letter = dead_letter
        self.listener = listener
        self._check_parts()
        self._end_run: Callable[[FlowctlError], None] = lambda error: None
        self._death: FlowctlError | None = None

    def _check_parts(self) -> None:
        """Raise :class:`ConfigError` for parts that can't be used; take a list, a URL."""
        self.producer = producer_of(self.producer)
        self.bolts = bolts_of(self.bolts)
        self.checkpoint = store_of(self.checkpoint)
        refuse_async(self.dead_letter, _DEAD_LETTER_CALLS, "dead_letter")
        refuse_async(self.listener, _LISTENER_CALLS, "listener")

    def run(
        self,
        *,
        view: View | Literal["auto", "live", "plain", "off"] = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
    ) -> Report:
        """Run to the end of the input; return the report.

        ``view`` shows progress: live on a terminal, plain lines elsewhere.  Ctrl-C and SIGTERM
        stop sending, wait some seconds for what is in flight, save, say how to resume
        (``resume_hint``) and raise :class:`Interrupted`.  Errors are raised after everything
        acked was saved, with the report as their attribute ``report``.  ``report_path`` gets the
        report as JSON, however the run ends.
        """
        self._check_parts()  # they may have been replaced
        shown = _view(view)
        run: Run | None = None
        interrupts = Interrupts()
        try:
            with interrupts.taken():
                run = Run(
                    job=self.name,
                    producer=self.producer,
                    bolts=self.bolts,
                    store=self.checkpoint,
                    settings=self.settings.checked(),
                    view=shown,
                    interrupts=interrupts,
                    make_core=self._make_core,
                    dead_letter=self.dead_letter,
                    listener=self.listener,
                    on_notice=self._on_notice,
                    extend=self._extended,
                )
                self._end_run = run.control.fail
                if self._death is not None:
                    self._end_run(self._death)
                report = run.conduct()
        except BaseException as error:
            if run is None:
                no_run = _report_of_no_run(self.name, error)
                no_run = RunEvents(self.name, self.settings).finished(no_run)
                _write_report(no_run, report_path)
            if hasattr(error, "report"):
                _write_report(error.report, report_path)
            if isinstance(error, KeyboardInterrupt) and hasattr(error, "report"):
                saved = "saved" if run is None or run.save_error is None else "NOT all saved"
                hint = resume_hint or shown_command(["python", *sys.argv])
                said = f"{saved}{self._where()}; resume with: {hint}"
                with suppress(OSError):  # the terminal is gone
                    shown.message(said)
                interrupted = Interrupted(said)
                interrupted.report = error.report
                raise interrupted from None
            raise
        _write_report(report, report_path)
        return report

    def _thread_died(self, error: FlowctlError) -> None:
        """End the run: a thread that a topology runs beside it died."""
        self._death = error
        self._end_run(error)

    def _where(self) -> str:
        """What to know of a checkpoint that ends with the process."""
        if getattr(self.checkpoint, "survives", True):
            return ""
        return " in memory only, so a new process starts over"

    def _extended(self, report: Report) -> Report:
        """What is told at the end of a run; a topology has more to tell."""
        return report

    def _make_core(self, checkpoint: Checkpoint) -> DriverCore:
        """What decides; a topology has another."""
        return SpoutCore(
            self.settings,
            checkpoint=checkpoint,
            has_dead_letter=self.dead_letter is not None,
            chance=random.random,
        )

    def _on_notice(self, notice: BoltNotice) -> None:
        """Hear what is said of a bolt; a topology tells of what it died of."""


def _view(view: View | Literal["auto", "live", "plain", "off"]) -> View:
    if not isinstance(view, str):
        return view
    from flowctl.instrumentation.views import make_view

    return make_view(view)


def _write_report(report: Report, path: str | Path | None) -> None:
    if path is not None:
        # Not msgspec's JSON: half a character, as in a file's name, is an error there, and what is
        # no ASCII (C1, bidi controls) would reach who prints the file.
        text = json.dumps(msgspec.to_builtins(report), indent=2)
        Path(path).write_text(text, encoding="ascii")


def _report_of_no_run(job: str, error: BaseException) -> Report:
    """The report of a run that did not begin: the store could not be reached, or not be read."""
    return Report(
        job=job,
        outcome="interrupted" if isinstance(error, KeyboardInterrupt) else "failed",
        error=without_secrets(str(error)),
        elapsed_s=0.0,
        resumed=False,
        resumed_records=0,
        records_acked=0,
        records_skipped=0,
        records_total=0,
        records_saved=0,
        tuples_emitted=0,
        tuples_acked=0,
        tuples_expired=0,
        tuples_moved=0,
        tuples_failed=0,
        acks_late=0,
        acks_duplicate=0,
        bolts=(),
        bolts_lost=0,
        checkpoint_saves=0,
        max_in_flight_records=0,
    )

"""One run from start to end: take the epoch, start the threads, watch, save, stop the bolts."""

from __future__ import annotations

import threading
from contextlib import suppress
from math import inf
from random import Random, getrandbits

import msgspec

from flowctl.core.driver import MeasuringCore
from flowctl.core.messages import End
from flowctl.errors import PAUSES, DeadlineError, FencedError, FlowctlError
from flowctl.instrumentation.event_log import EventLog, place_of
from flowctl.instrumentation.run_events import RunEvents
from flowctl.instrumentation.snapshot import View, outcome_of
from flowctl.instrumentation.summary import IN_MEMORY, place_lines, resume_line
from flowctl.logs import ModuleLogger
from flowctl.ports import SharingProducer
from flowctl.runtime.bolt_watch import Departures, Endings, Notices, Reach, expected_of
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.control import RunControl
from flowctl.runtime.dead_letters import dead_letters_for
from flowctl.runtime.faults import deadline_error, emptied_store_error
from flowctl.runtime.interrupts import Interrupts
from flowctl.runtime.last_run import Learning
from flowctl.runtime.listening import Listening, check_via
from flowctl.runtime.losses import Losses
from flowctl.runtime.meter import Meter, Phase, snapshot_pause_s
from flowctl.runtime.notifier import ListenerNotifier
from flowctl.runtime.reader import asked
from flowctl.runtime.recording import RunOf, recorder_of
from flowctl.runtime.run_intake import endpoint_of, intake_of
from flowctl.runtime.run_plan import Ending, RunPlan
from flowctl.runtime.sender import Outlets, Sender
from flowctl.runtime.sharing import Host
from flowctl.threads import guarded
from flowctl.wire.server import Joined, SpoutServer

_log = ModuleLogger("flowctl")
_FIRST_RECORD_POLL_S = 0.01  # far below the start of any bolt
VIEW_EVERY_S = 0.25  # four times a second looks live
# When stopping early, tuples in flight are awaited for this long: a tuple takes up to
# tuple.service_max_s, so nearly all of them finish and need not run again.
STOP_GRACE_S = 3.0
# The last save waits this long for an unavailable store: a failover or restart takes less.
FINAL_SAVE_TIMEOUT_S = 60.0
BOLTS_STOP_TIMEOUT_S = 10.0  # a tuple in process ends, a task leaves; after that Spark cancels
# A frozen bolt would never leave, so if there is one, no bolt is awaited for that long; a live bolt
# with nothing to do leaves within a second.
FROZEN_STOP_TIMEOUT_S = 2.0
HURRIED_STOP_TIMEOUT_S = 0.5  # after a second Ctrl-C: idle bolts leave within this
# What ends a run that has more to do.
_POLL_S = 0.05  # how late a second Ctrl-C, or the end of the loop that watches, may be noticed


class Run:
    """The parts of one run.  Built, run and closed by one thread."""

    def __init__(self, plan: RunPlan, view: View, interrupts: Interrupts | None = None) -> None:
        """Acquire the job's epoch and its checkpoint; nothing else is opened or started yet."""
        self._plan = plan
        self._settings = settings = plan.settings.checked().for_bolts(plan.bolts.count)
        check_via(settings, plan.producer, plan.store)
        self._view = view
        self._bolts_are_gone = False
        self._is_one_frozen = False  # a bolt was silent, or stuck in a call, when the run ended
        self._deadline_s = plan.deadline_s or inf
        self._ends_at_s = inf
        self._show_at_s = 0.0  # when the view is due
        self._interrupts = interrupts or Interrupts()
        self.save_error: BaseException | None = None  # why not everything acked is saved
        self._epoch = plan.store.acquire(plan.job)
        self._run_events = RunEvents(plan.job, settings, log=self._event_log())
        self._restored = restored = plan.store.load(plan.job)
        seed = getrandbits(64)
        core = plan.make_core(settings, restored, Random(seed).random)
        self.control: RunControl = RunControl(core, restored=restored)
        self._learning = Learning(self.control, plan.store, plan.job, settings.checkpoint.learned)
        self._recorder = recorder_of(
            self.control, settings.record, RunOf(plan.job, self._epoch, restored, seed)
        )
        self.control.store_survives = getattr(plan.store, "survives", True)
        self.checkpointer: Checkpointer = Checkpointer(
            self.control,
            plan.store,
            job=plan.job,
            epoch=self._epoch,
            interval_s=settings.checkpoint.interval_s,
        )
        self.checkpointer.on_saved = self._learning.keep
        self._endings = Endings(self.control, plan.bolts, settings.timeout)
        self._departures = Departures(self.control, plan.bolts)
        self._notices = Notices(
            self.control, bolts=plan.bolts, say=view.message, on_notice=plan.on_notice
        )
        self._notifier = ListenerNotifier(plan.listener) if plan.listener is not None else None
        self._listening: Listening | None = None
        self._server: SpoutServer | None = None
        self._reach = Reach(self.control)
        self._sender: Sender | None = None
        self._set_up_intake()

    def _event_log(self) -> EventLog | None:
        """Return where decisions are kept; None: nowhere."""
        events, job = self._settings.events, self._plan.job
        place = events.file or place_of(self._plan.store, job)
        if not place or not events.bytes_max:
            return None
        return EventLog(place, run=self._epoch, bytes_max=events.bytes_max)

    def _set_up_intake(self) -> None:
        """Set up the reader, and the handling of records that can't be processed."""
        job, dead_letter = self._plan.job, self._plan.dead_letter
        restored, limit = self._restored, self._settings.loss.fail_over
        self._losses = Losses(limit, dead_letter, job=job, records_before=restored.records)
        self._dead_letters = dead_letters_for(self.control, dead_letter, job, self._epoch)
        self.reader, self._letters_first = intake_of(
            self._plan, self.control, restored, self.checkpointer.save_first
        )

    def conduct(self) -> Ending:
        """Run to the end; return the report and what ended it."""
        error: BaseException | None = None
        job = self._plan.job
        meter = Meter(
            self.control,
            self._plan.producer,
            job=job,
            restored=self._restored,
            bolts=self._plan.bolts,
        )
        self._ends_at_s = self.control.clock() + self._deadline_s
        self._interrupts.hold()  # who sees the view may press Ctrl-C: it has to be told of its end
        self._view.start(job, self._headline())
        self._run_events.started(began_with=self._learning.began_with)
        try:
            self._interrupts.let_in()
            self._open(meter)
            if self._await_work(meter):
                self._start_bolts()
                self._watch(meter)
            self._interrupts.hold()
        except BaseException as caught:  # also KeyboardInterrupt: everything is saved and stopped
            error = caught
        error = self._finish(meter, error)
        if not isinstance(error, FencedError):  # then it is another's, or was cleared
            self._learning.keep(is_last=True)
        if isinstance(error, DeadlineError):  # now it is known what is left
            snapshot = meter.snapshot("stopping", "")
            error = deadline_error(self._deadline_s, self.control.records_saved, snapshot)
        self._complete_remedy(error)
        outcome = outcome_of(error)
        told = self.save_error if outcome == "interrupted" else error
        report = meter.report(outcome, told, self.checkpointer.saves)
        report = msgspec.structs.replace(report, began_with=self._learning.began_with)
        report = self._run_events.finished(self._plan.extend(self._losses.completed(report)))
        try:
            self._view.stop(report)
        except Exception as caught:
            error = error or caught
        self._plan.store.close()
        if self._recorder is not None:
            self._recorder.close()
        return Ending(report, error)

    def _complete_remedy(self, error: BaseException | None) -> None:
        """Correct the remedy of ``error``: it promises that done work is kept, but not every
        checkpoint keeps it.
        """
        if not isinstance(error, FlowctlError):
            return
        error.name_job(self._plan.job)
        if not self.control.store_survives and self.control.core.counters.records_acked:
            error.add_remedy(
                f"The checkpoint is {IN_MEMORY};"
                " checkpoint=flowctl.FileCheckpointStore(DIRECTORY), or --redis URL, keeps it."
            )

    def _headline(self) -> str:
        bolts = self._plan.bolts
        kind = type(bolts).__name__
        return f"{expected_of(bolts)} · {kind} · {self._settings.window.policy}"

    def _open(self, meter: Meter) -> None:
        if self._restored.partitions:
            self._view.message(resume_line(self._restored))
        if self._learning.began_with:
            self._view.message(f"as in the last run: {self._learning.began_with}")
        for line in place_lines(self._plan.store):
            self._view.message(line)
        if self._notifier is not None:
            self._notifier.opened(self._plan.job, self._restored)
        job, producer = self._plan.job, self._plan.producer
        if isinstance(producer, SharingProducer):
            producer.attach(Host(self.control, self.checkpointer.save, job=job))
        asked(lambda: self._letters_first.open(self._restored), type(producer).__name__)
        if headline := self._letters_first.headline():
            self._view.message(headline)
        meter.begin()
        self.reader.start()

    def _await_work(self, meter: Meter) -> bool:
        """Wait for the first record; False if the input ends without one.

        So that a job with nothing left to do does not start Spark to find that out.  Records that
        can't be sent are work as well: they go to the dead letter.
        """
        control = self.control
        shown_at_s = control.clock()
        while not control.core.intake.buffer:
            if control.reader_done.wait(_FIRST_RECORD_POLL_S):
                return bool(control.core.intake.buffer) or not control.core.is_drained
            self._check_deadline()
            if control.stopping.is_set():
                return False
            if control.clock() - shown_at_s >= VIEW_EVERY_S:
                shown_at_s = control.clock()
                self._view.update(meter.snapshot("starting", "waiting for the first record"))
        return True

    def _start_bolts(self) -> None:
        self._listening = Listening(self._plan, self._settings, self._epoch)
        self._server = self._listening.server
        self._sender = Sender(
            self.control,
            self._server,
            wait=self._settings.wait,
            outlets=Outlets(
                dead_letters=self._dead_letters,
                notifier=self._notifier,
                losses=self._losses,
                news=self._plan.on_news,
            ),
        )
        endpoint = endpoint_of(self._listening.endpoint, self.reader, self._settings)
        self._plan.bolts.start(endpoint, self._notices.put)
        self._sender.start()
        if self._dead_letters is not None:
            self._dead_letters.start()
        if self.control.core.guarantee.commits_on_interval:
            self.checkpointer.start()

    def _watch(self, meter: Meter) -> None:
        """Show the run until it is over; check four times a second that bolts are there."""
        control = self.control
        absent_since_s: float | None = control.clock()
        stop_by_s: float | None = None
        while not control.finished.wait(VIEW_EVERY_S):
            self._show(meter)
            self._notices.take()
            self._letters_first.settle(control.saved)
            self._losses.enforce(control)
            self._check_deadline()
            self._reach.look(self._server)
            is_deaf = self._listening is not None and self._listening.is_deaf
            ended = [ending.text for ending in self._endings.look(is_deaf=is_deaf)]
            for text in (*ended, *self._departures.look()):
                self._view.message(text)
            now_s = control.clock()
            if control.stopping.is_set():
                stop_by_s = stop_by_s or now_s + STOP_GRACE_S
                if now_s > stop_by_s:
                    control.finished.set()
                continue
            if control.core.is_served or self._is_idle():
                absent_since_s = None
            elif absent_since_s is None:
                absent_since_s = now_s
            else:
                self._notices.check(now_s - absent_since_s, self._settings.start.bolts_timeout_s)
        self._show(meter, is_last=True)
        self._notices.take()

    def _check_deadline(self) -> None:
        if self.control.clock() >= self._ends_at_s and not self.control.stopping.is_set():
            self.control.fail(DeadlineError("the deadline was reached."))

    def _is_idle(self) -> bool:
        """Whether there is nothing to do yet, or no more: bolts are not needed."""
        core = self.control.core
        return core.is_drained and self.reader.is_alive()

    def _show(self, meter: Meter, *, is_last: bool = False) -> None:
        """Show the news, and the state of the run if that is due."""
        if self._sender is not None:
            while self._sender.events:
                event = self._sender.events.popleft()
                self._losses.take(event)
                meter.take(event)
                self._run_events.happened(event)
                self._view.event(event)
        self._record()
        now_s = self.control.clock()
        if now_s < self._show_at_s and not is_last:
            return
        self._show_at_s = now_s + snapshot_pause_s(len(self.control.core.bolts))
        snapshot = meter.snapshot(self._phase(), self._notices.note())
        self._view.update(snapshot)
        self._run_events.look(snapshot)

    def _record(self) -> None:
        """Write what was recorded; log it, once, if no more is."""
        recorder = self._recorder
        if recorder is not None and recorder.flush():
            _log.warning("recording_lost", error=recorder.problem)

    def _phase(self) -> Phase:
        if self.control.stopping.is_set():
            return "stopping"
        core = self.control.core
        if not core.counters.tuples_emitted:
            return "starting"  # also where the input is read to its end before Spark has started
        # What is read by reference is not at its end when all of it is listed, or at bolts; nor is
        # what was read and waits here.
        if isinstance(core, MeasuringCore) or core.intake.buffer.records:
            return "running"
        return "draining" if self.control.reader_done.is_set() else "running"

    def _finish(self, meter: Meter, error: BaseException | None) -> BaseException | None:
        """Wait for what is in flight, save, stop everything; return what ended the run.

        A second Ctrl-C skips the waiting, not the save.
        """
        self._interrupts.hold()
        if isinstance(error, KeyboardInterrupt) and not self.control.is_all_done():
            self._say("interrupted: finishing what is in flight, then saving (again: save at once)")
        self.control.stopping.set()
        steps = (self._settle, self._save, self._stop_parts)
        for step in steps:
            try:
                step()
            except BaseException as caught:
                error = error or self.control.error or caught
        self._interrupts.hold()
        if isinstance(error, KeyboardInterrupt) and self.control.is_all_done():
            error = self.save_error  # it came too late to interrupt anything
        error = error or self.control.error or self.reader.source_error
        if isinstance(error, PAUSES) and (self.save_error or self.control.is_input_done()):
            error = self.save_error  # it is not saved, or there was nothing left to end
        try:
            self._drain_events(meter)
        except Exception as caught:
            error = error or caught
        self._letters_first.settle(self.control.saved)
        if self._letters_first.problem:
            self._say(self._letters_first.problem)
        core = self.control.core
        error = self._losses.verdict(error, core.counters, core.intake.records_kept_nowhere)
        if self.save_error not in (None, error):
            self._say(f"the last save failed: {self.save_error}")
        return error

    def _say(self, text: str) -> None:
        """Show ``text`` if possible: without a terminal the rest still has to be done."""
        with suppress(Exception):
            self._view.message(text)

    def _settle(self) -> None:
        """Wait for tuples in flight (a finished run has none)."""
        self.control.stop()
        if self._sender is not None and self._sender.is_alive():
            settle_by_s = self.control.clock() + STOP_GRACE_S
            while not self.control.finished.wait(_POLL_S):
                if self._interrupts.is_hurried or self.control.clock() > settle_by_s:
                    break
        silence_s = self._settings.timeout.silence_max_s
        heard_s = [bolt.heard_at_s for bolt in list(self.control.core.bolts.values())]
        self._is_one_frozen = any(self.control.clock() - at_s > silence_s for at_s in heard_s)
        self._is_one_frozen |= self.control.long_calls.is_one_stuck
        self.control.finished.set()
        self.control.wake()

    def _save(self) -> None:
        if self._dead_letters is not None:  # letters that it keeps count as done
            self._dead_letters.stop(STOP_GRACE_S)
        if self._sender is None or not self._sender.ident:
            return
        self._sender.join()
        core = self.control.core
        if not core.guarantee.commits_on_interval and (
            core.intake.is_held or not core.counters.records_rejected
        ):
            return  # all that was sent was saved before, but not its outcome
        if isinstance(self.control.error, FencedError):
            self._rise_above(self.control.error)
            return  # the newer driver's checkpoint stays
        if self.control.store_away_since_s is not None:
            self._say(
                f"saving: waiting up to {FINAL_SAVE_TIMEOUT_S:.0f} s for the checkpoint store"
            )
        try:
            self.checkpointer.save_finally(
                timeout_s=FINAL_SAVE_TIMEOUT_S, is_hurried=lambda: self._interrupts.is_hurried
            )
        except BaseException as error:
            self.save_error = error
            raise

    def _rise_above(self, error: FencedError) -> None:
        """Make the next run begin above a newer driver that the sink knows, unless the store knows
        one.
        """
        newest = error.newest_epoch
        if newest is None or newest <= self._epoch:
            return
        try:
            self.checkpointer.rise_above(newest)
        # there is a newer driver, or the store is unavailable: the first error stands
        except FlowctlError:
            return
        self.control.error = emptied_store_error(error.problem, newest=newest, known=self._epoch)

    def _stop_parts(self) -> None:
        """END to the bolts first, so that they leave by themselves; then cancel the rest."""
        timeout_s = self._stop_timeout_s()
        self._interrupts.release()
        try:
            if self._listening is not None:
                self._stop_bolts(self._listening, timeout_s)
        finally:
            if self.reader.ident:
                # A read that takes longer would not end within ten seconds either.
                self.reader.join(timeout=min(timeout_s, FROZEN_STOP_TIMEOUT_S))
            self._plan.producer.close()

    def _stop_timeout_s(self) -> float:
        if self._interrupts.is_hurried:
            return HURRIED_STOP_TIMEOUT_S
        return FROZEN_STOP_TIMEOUT_S if self._is_one_frozen else BOLTS_STOP_TIMEOUT_S

    def _stop_bolts(self, listening: Listening, timeout_s: float) -> None:
        for bolt in list(self.control.core.bolts):
            self._send_end(bolt)
        name = "flowctl-ends"
        flush = guarded(self._flush_ends, name=name, on_death=self.control.fail)
        closer = threading.Thread(target=flush, name=name, daemon=True)
        closer.start()
        try:
            self._plan.bolts.stop(timeout_s=timeout_s)
        finally:
            self._bolts_are_gone = True
            closer.join(timeout=1)
            listening.close()

    def _flush_ends(self) -> None:
        """Drive the sockets until the bolts are gone: the sender has ended by now."""
        while not self._bolts_are_gone and self._server is not None:
            for item in self._server.poll(_POLL_S):
                if isinstance(item, Joined):  # came too late: it waits for its own END
                    self._send_end(item.bolt)

    def _send_end(self, bolt: str) -> None:
        if self._server is not None:
            self._server.send(bolt, End(bolt))
            self._server.close_bolt(bolt)

    def _drain_events(self, meter: Meter) -> None:
        if self._sender is not None:
            self._sender.take_rest()
            self._show(meter, is_last=True)

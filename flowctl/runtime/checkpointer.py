"""The checkpointer: saves what is acked, on an interval and at the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable

from flowctl.bolts.range_claims import PROGRESS_EVERY_S
from flowctl.core.ranges.core import RangeCore
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Receipts
from flowctl.core.retry import pause_of_store
from flowctl.errors import CheckpointUnavailableError
from flowctl.logs import ModuleLogger
from flowctl.ports import CheckpointStore
from flowctl.runtime.control import RunControl
from flowctl.threads import GuardedThread

# A bolt of ranges reports each .15 s of work, and shorter batches at the end of a block: saved each
# .05 s, a tenth of the default interval, a kill of the driver repeats the batch in progress, and at
# times one more.  A save to Redis takes .3 ms of CPU.
_RANGES_OFTEN = 10
# Batches of ranges end no more often than this [s].  If saves are further apart than that, hurrying
# one for a short batch changes nothing.
_HURRY_BELOW_S = PROGRESS_EVERY_S
# If a save takes long, as in an object store, saves take at most this share of the time.  Not less:
# on a busy machine a save to Redis takes 20 ms.  If bolts wait for saves, and these take no longer
# than a batch, they may take twice that share: half of the time.
_SAVE_SHARE = 0.2
_NOT_BEGUN = PartitionCheckpoint()  # like a partition that is not saved
_HURRY_POLL_S = 0.05  # how late a second Ctrl-C may be noticed


class Checkpointer(GuardedThread):
    """Saves every ``interval_s`` if something changed; keeps trying while the store is unavailable.

    Ranges are saved up to ten times as often, if saves are quick.

    Nothing is reported as saved that was not.  A store that fences us, or whose answer makes no
    sense, ends the run.
    """

    def __init__(
        self,
        control: RunControl,
        store: CheckpointStore,
        *,
        job: str,
        epoch: int,
        interval_s: float,
    ) -> None:
        super().__init__("flowctl-checkpointer", on_death=control.fail)
        self.saves: int = 0
        self._control = control
        self._store = store
        self._job = job
        self._epoch = epoch
        self._interval_s = interval_s
        self._away = pause_of_store(interval_s)
        self.closing = threading.Event()
        self.woken = threading.Event()  # set to hurry a save, or to close
        control.save_soon = self.woken.set
        self._saving = threading.Lock()  # an older checkpoint must not be saved after a newer
        self.on_saved: Callable[[], None] = lambda: None  # called after each save, by its thread
        self._receipts: list[Receipts] = []  # receipts not written yet
        self._logger = ModuleLogger("flowctl.checkpoint")

    def start(self) -> None:
        """Begin to save; from now on bolts of ranges may wait for saves, if these are frequent."""
        is_soon = self._least_s <= _HURRY_BELOW_S
        core = self._control.core
        if isinstance(core, RangeCore):
            with self._control.lock:
                core.tell_saved(is_told=self._is_often and is_soon)
        super().start()

    def work(self) -> None:
        wait_s, least_s = self.pauses_s(0.0)
        before_s = math.inf
        waits = self._away.waits()
        while not self._is_closed_within(wait_s, least_s):
            try:
                began_s = self._control.clock()
                self.save()
                took_s = self._control.clock() - began_s
                # One slow save, on a busy machine, does not make a slow store.
                wait_s, least_s = self.pauses_s(min(took_s, before_s))
                before_s = took_s
                waits = self._away.waits()
            except CheckpointUnavailableError as error:
                self._note_away(error)
                least_s = wait_s = next(waits)
            except BaseException as error:  # whatever the error: a run that can't save must end
                self._control.fail(error)
                return

    def pauses_s(self, took_s: float) -> tuple[float, float]:
        """Return how long to wait after a save that took ``took_s``, and how long before a hurried
        one.

        A log of receipts would grow with each save, all of which a restart reads.
        """
        interval_s = self._interval_s
        if not self._is_often:
            return interval_s, interval_s
        is_awaited = self._control.saves_told.is_awaited and took_s <= _HURRY_BELOW_S
        pause_s = took_s if is_awaited else took_s / _SAVE_SHARE
        wait_s = min(interval_s, max(self._least_s, pause_s))
        return wait_s, min(wait_s, took_s) if wait_s <= _HURRY_BELOW_S else wait_s

    @property
    def _is_often(self) -> bool:
        control = self._control
        return isinstance(control.core, RangeCore) and control.receipt_log is None

    @property
    def _least_s(self) -> float:
        """The least time between two saves of ranges [s]: half of that between two reports."""
        report_s = self._control.core.settings.timeout.report_s
        return self._interval_s / _RANGES_OFTEN * max(1.0, report_s / PROGRESS_EVERY_S)

    def _is_closed_within(self, wait_s: float, least_s: float) -> bool:
        """Wait until the next save is due: after ``wait_s``, or at least ``least_s`` if hurried.

        Returns True if there will be none, because the checkpointer closes.
        """
        if self.closing.wait(least_s):
            return True
        if least_s < wait_s:
            self.woken.wait(wait_s - least_s)
            self.woken.clear()
        return self.closing.is_set()

    def _close(self) -> None:
        self.closing.set()
        self.woken.set()
        if self.ident:  # without a commit timer it never ran
            self.join()

    def save_first(self) -> bool:
        """Save the records that are about to be sent, waiting for an unavailable store; False:
        don't send.

        Called by the reader's thread; the checkpointer's own is not started in that mode.  Saves
        once even if the run is stopping: offered records that are not saved hold back earlier ones.
        """
        for wait_s in self._away.waits():
            try:
                self.save()
                return True
            except CheckpointUnavailableError as error:
                self._note_away(error)
                if self._control.stopping.wait(wait_s):
                    break
            except BaseException as error:
                self._control.fail(error)
                break
        return False

    def save(self) -> None:
        """Save now if something changed since the last save; raises what the store raises.

        From any thread.
        """
        with self._saving:
            self._save_one()

    def _save_one(self) -> None:
        control = self._control
        with control.lock:
            now_s = control.clock()
            moved = control.core.intake.take_moved()
            if isinstance(control.core, RangeCore):
                self._receipts.extend(iter(control.core.poll_receipts, None))
            records = control.records_before + control.core.counters.records_acked
            covered = control.saves_told.covered()
        self._keep_receipts(moved)
        saved = control.saved.partitions
        changed = {n: state for n, state in moved.items() if state != saved.get(n, _NOT_BEGUN)}
        if changed:
            self._save_changed(changed)
            self.saves += 1
            if not control.core.guarantee.commits_acked:
                records = control.records_saved + self._newly_done(changed)  # reads count as done
            control.note_saved(changed)
            control.records_saved = records
        control.saved_until_s = now_s
        self._note_back()
        self.on_saved()
        if covered:
            with control.lock:
                control.saves_told.saved(covered)
            control.wake()

    def _keep_receipts(self, moved: Iterable[str]) -> None:
        """Keep receipts before the checkpoint that covers them: after a kill in between, the log
        counts.
        """
        log = self._control.receipt_log
        if self._receipts and log is not None:
            try:
                log.append(self._receipts)
            except BaseException:
                with self._control.lock:
                    self._control.core.intake.touch(moved)
                raise
        self._receipts = []

    def _save_changed(self, changed: dict[str, PartitionCheckpoint]) -> None:
        try:
            self._store.save(self._job, Checkpoint(changed), epoch=self._epoch)
        except BaseException:
            # Whether the save arrived is unknown.  Not recorded: a partition may belong to another
            # driver by now.
            with self._control.lock:
                self._control.core.intake.touch(changed)
            raise

    def _newly_done(self, changed: dict[str, PartitionCheckpoint]) -> int:
        saved = self._control.saved.partitions
        return sum(
            state.records_done - saved.get(name, _NOT_BEGUN).records_done
            for name, state in changed.items()
        )

    def save_finally(
        self, *, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """End the interval saves and save once more, waiting for an unavailable store.

        Raises :class:`CheckpointUnavailableError` after ``timeout_s`` without success, or when
        ``is_hurried`` becomes true.
        """
        self._close()
        deadline_s = self._control.clock() + timeout_s
        for pause_s in self._away.waits():
            try:
                self.save()
                return
            except CheckpointUnavailableError as error:
                self._note_away(error)
                try_at_s = self._control.clock() + pause_s
                while not is_hurried() and self._control.clock() < try_at_s <= deadline_s:
                    threading.Event().wait(_HURRY_POLL_S)
                if is_hurried() or try_at_s > deadline_s:
                    raise

    def rise_above(self, epoch: int) -> None:
        """End the interval saves; save once more, and leave ``epoch`` as the newest one in the
        store.

        For a sink that knows a newer driver than the store does: the next ``acquire`` then returns
        an epoch above both.  Raises :class:`FencedError`, without any change, if the store does
        know a newer one.
        """
        self._close()
        with self._saving:
            with self._control.lock:
                checkpoint = self._control.core.checkpoint()
            # First with our own epoch: if the store has another owner by now, it is left unchanged.
            self._store.save(self._job, checkpoint, epoch=self._epoch)
            self._store.save(self._job, checkpoint, epoch=epoch)
            self.saves += 1
            self._control.note_saved(checkpoint.partitions)

    def _note_away(self, error: CheckpointUnavailableError) -> None:
        """Log one line per episode."""
        if self._control.store_away_since_s is None:
            self._control.store_away_since_s = self._control.clock()
            self._logger.warning("checkpoint_store_away", job=self._job, reason=error.problem)

    def _note_back(self) -> None:
        since_s = self._control.store_away_since_s
        if since_s is not None:
            self._control.store_away_since_s = None
            away_s = round(self._control.clock() - since_s, 3)
            self._logger.warning("checkpoint_store_back", job=self._job, away_s=away_s)

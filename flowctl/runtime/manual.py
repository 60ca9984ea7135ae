"""ManualSpout: a spout that the caller drives, with its own loop, threads and bolts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flowctl.adapters import dead_letter_of
from flowctl.config import Settings, settings_of
from flowctl.core.driver import pump
from flowctl.core.messages import Ack, Emission, Fail
from flowctl.core.records import AckOutcome, Checkpoint
from flowctl.core.spout import SpoutCore
from flowctl.errors import CheckpointUnavailableError, ConfigError, SourceError
from flowctl.logs import ModuleLogger
from flowctl.ports import SharingProducer
from flowctl.runtime.control import RunControl
from flowctl.runtime.dead_letters import keep
from flowctl.runtime.faults import refused_error
from flowctl.runtime.notifier import ListenerNotifier
from flowctl.runtime.parts import (
    check_dead_letter,
    check_listener,
    check_name,
    load_policy,
    producer_of,
    repr_of,
    store_of,
)
from flowctl.runtime.redrive import Redriven, with_letters_first
from flowctl.runtime.sharing import Host
from flowctl.wire.values import carry_records

if TYPE_CHECKING:
    from flowctl.ports import (
        CheckpointStore,
        DeadLetter,
        FlowProducer,
        SourceChunk,
        SpoutListener,
    )

_MANUAL_EPOCH = 1  # hand-driven bolts do not reconnect; their epoch never changes


class ManualSpout:
    """``open → activate → next_tuple / ack / fail … → deactivate → close``, as in Storm.

    For callers with their own transport and bolts; the parts are those of
    :class:`flowctl.FlowControlSpout`.  Not thread-safe: all calls come from one thread, and none of
    them blocks except where the producer or the store does.  The producer is opened at the first
    :meth:`activate`, and records flow only from then on.  The attributes may be replaced before
    :meth:`open`.
    """

    def __init__(
        self,
        *,
        name: str,
        producer: FlowProducer | Iterable[Any] | Callable[[], Iterable[Any]],
        checkpoint: CheckpointStore | str | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        dead_letter: DeadLetter | str | Path | None = None,
        listener: SpoutListener | None = None,
    ) -> None:
        check_name(name)
        self.name = name
        self.producer: FlowProducer = producer_of(producer)
        self.checkpoint: CheckpointStore = store_of(checkpoint)
        self.settings: Settings = settings_of(settings)
        self.dead_letter: DeadLetter | None = dead_letter_of(dead_letter)
        self.listener = listener
        check_dead_letter(self.dead_letter)
        check_listener(listener)
        self.open_was_called: bool = False
        self.is_active: bool = False
        self._clock: Callable[[], float] = time.monotonic
        self._core: SpoutCore | None = None
        self._epoch = 0
        self._rest: SourceChunk | None = None  # records polled, not yet taken by the core
        self._refused: SourceError | None = None  # the error of the record after them
        self._producer_is_open = False
        self._saved_at_s = 0.0  # when it last saved, or tried to
        self._store_is_away = False
        self._notifier: ListenerNotifier | None = None
        self._control: RunControl
        self._source: Redriven
        self._logger = ModuleLogger("flowctl.checkpoint")

    def __repr__(self) -> str:
        return repr_of(self, self.producer, self.checkpoint)

    def open(
        self, bolts: Mapping[str, int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Acquire the job's epoch and checkpoint; ``bolts`` maps each bolt's name to its slots.

        ``clock`` gives monotonic seconds.  The spout starts inactive.
        """
        if self.open_was_called:
            raise ConfigError("open", "was called before.", remedy="Call close() first.")
        self.settings.checked()
        load_policy(self.settings)
        self._clock = clock
        self._rest = self._refused = None
        self._epoch = self.checkpoint.acquire(self.name)
        restored = self.checkpoint.load(self.name)
        self._core = SpoutCore(
            self.settings,
            checkpoint=restored,
            has_dead_letter=self.dead_letter is not None,
            chance=random.random,
        )
        self._control = RunControl(self._core, clock=clock, restored=restored)
        if nowhere := restored.records_kept_nowhere:  # nothing else reports it here
            self._logger.warning("records_kept_nowhere", job=self.name, records=nowhere)
        if self.listener is not None:
            self._notifier = ListenerNotifier(self.listener)
            self._notifier.opened(self.name, restored)
        for bolt, slots in bolts.items():
            self._core.add_bolt(bolt, slots=slots, epoch=_MANUAL_EPOCH, now_s=clock())
        self.open_was_called = True

    def activate(self) -> None:
        """Let records flow; once per transition, repeats are ignored."""
        if self.is_active:
            return
        core = self._opened()
        if not self._producer_is_open:
            if isinstance(self.producer, SharingProducer):
                # Acks come through this same thread, so there is nothing to wait for when a
                # partition goes.
                host = Host(self._control, self.save, job=self.name, finish_s=0.0)
                self.producer.attach(host)
            restored = core.checkpoint()
            self._source = with_letters_first(
                self.producer, self.dead_letter, job=self.name, restored=restored
            )
            self._source.open(restored)
            self._producer_is_open = True
        self._saved_at_s = self._clock()
        self.is_active = True

    def deactivate(self) -> None:
        """Emit no more, and save; acks are still taken."""
        if self.is_active:
            self.is_active = False
            self.save()

    def next_tuple(self) -> Emission | None:
        """Return the next tuple and the bolt to send it to; None: nothing now, or inactive."""
        core = self._opened()
        if not self.is_active:
            return None
        now_s = self._clock()
        is_due = now_s - self._saved_at_s >= self.settings.checkpoint.interval_s
        if is_due and core.guarantee.commits_on_interval:
            self._save_if_there(now_s)
        # An empty buffer would look as if the producer were the limit, and windows would not grow.
        is_read = not core.intake.buffer and self._refused is None
        if is_read:
            self._read(core)
        emission = self._turn(core, now_s)
        if emission is None and not is_read:
            self._read(core)
            emission = self._turn(core, now_s)
        return emission

    def _read(self, core: SpoutCore) -> None:
        """Fill the buffer; records that were done before do not count."""
        while self._fill(core):
            pass

    def _turn(self, core: SpoutCore, now_s: float, emits_max: int = 1) -> Emission | None:
        """Take one turn of the core, for at most one emission; orders to bolts can't be carried out
        here.
        """
        turn = pump(core, now_s, emits_max=emits_max)
        for dead in turn.dead:
            assert self.dead_letter is not None
            keep(self.dead_letter, self.name, dead, epoch=self._epoch)
            core.on_dead_lettered(dead.gave_up.tuple_id, now_s=now_s)
        emission = turn.emissions[0] if turn.emissions else None
        if self._notifier is not None:
            if emission is not None:
                self._notifier.emitted(emission)
            for event in turn.events:
                self._notifier.happened(event)
            self._notifier.flush()
        return emission

    def _fill(self, core: SpoutCore) -> bool:
        """Poll if all that was polled before has been taken.

        Returns True if polling again may help: no record of this poll has to be sent.
        """
        chunk = self._rest or self._poll()
        now_s = self._clock()
        if chunk is None:
            core.end_of_input(now_s=now_s)
            return False
        if chunk.mark is not None:
            core.intake.note_mark(chunk.partition, chunk.mark)
        taken = core.offer(chunk.partition, chunk.records, now_s=now_s)
        if core.intake.is_held:
            self.save()
            core.on_committed()
        left = chunk.records[taken:]
        self._rest = type(chunk)(chunk.partition, left, end=chunk.end) if left else None
        end = None if left else chunk.end
        if end is not None and not isinstance(self.producer, SharingProducer):
            core.intake.finish(
                chunk.partition, end
            )  # the rest of a shared partition may have been read by others
        return (taken > 0 or end is not None or chunk.is_busy) and not core.intake.buffer

    def _poll(self) -> SourceChunk | None:
        """Poll: return the records before the first value that can't arrive unchanged; raise its
        error next time.
        """
        if self._refused is not None:
            raise self._refused
        chunk = self._source.poll(self.settings.tuple.records_max)
        if chunk is None:
            return None
        records, _, refused = carry_records(chunk.records)
        if refused is not None:
            bad = chunk.records[len(records)]
            self._refused = refused_error(chunk.partition, bad, refused)
            if not records:
                raise self._refused
            return type(chunk)(chunk.partition, records, mark=chunk.mark)
        return msgspec.structs.replace(chunk, records=records)

    def ack(self, emission: Emission) -> AckOutcome:
        """Note that the emission was processed."""
        ack = Ack(emission.tuple_id, emission.attempt)
        core, now_s = self._opened(), self._clock()
        outcome = core.on_ack(emission.bolt, _MANUAL_EPOCH, ack, now_s=now_s)
        if self._notifier is not None:
            self._notifier.acked(emission.tuple_id)
            self._notifier.flush()
        return outcome

    def fail(self, emission: Emission, *, reason: str = "failed") -> AckOutcome:
        """Note that the emission failed: it is sent again after a back-off, to another bolt."""
        core, now_s = self._opened(), self._clock()
        fail = Fail(emission.tuple_id, emission.attempt, reason)
        outcome = core.on_fail(emission.bolt, _MANUAL_EPOCH, fail, now_s=now_s)
        self._turn(core, now_s, emits_max=0)
        return outcome

    @property
    def is_drained(self) -> bool:
        """Whether everything read so far is acked."""
        return self._rest is None and self._opened().is_drained

    def save(self) -> None:
        """Save the checkpoint now; raises what the store raises."""
        intake = self._opened().intake
        moved = intake.take_moved()
        try:
            self.checkpoint.save(self.name, Checkpoint(moved), epoch=self._epoch)
        except BaseException:
            intake.touch(moved)
            raise
        self._control.note_saved(moved)
        if self._producer_is_open:
            self._source.settle(self._control.saved)
        self._saved_at_s = self._clock()
        if self._store_is_away:
            self._store_is_away = False
            self._logger.warning("checkpoint_store_back", job=self.name)

    def _save_if_there(self, now_s: float) -> None:
        """Save; if the store is unavailable go on, and try again after an interval."""
        self._saved_at_s = now_s
        try:
            self.save()
        except CheckpointUnavailableError as error:
            if not self._store_is_away:
                self._store_is_away = True
                self._logger.warning("checkpoint_store_away", job=self.name, reason=error.problem)

    def close(self) -> None:
        """Save and close the producer; the spout may be opened again."""
        if not self.open_was_called:
            return
        self.is_active = False
        try:
            self.save()
        finally:
            if self._producer_is_open:
                self._source.close()
            self._producer_is_open = self.open_was_called = False
            self._core = None

    def _opened(self) -> SpoutCore:
        if self._core is None:
            raise ConfigError("open", "was not called yet.", remedy="Call open() first.")
        return self._core

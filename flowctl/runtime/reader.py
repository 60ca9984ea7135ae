"""The reader: polls the producer and offers its records to the core, as fast as they are taken."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from flowctl.core.driver import CollectingCore
from flowctl.core.records import Position, Record
from flowctl.errors import FlowctlError, SourceError
from flowctl.ports import FlowProducer, SharingProducer
from flowctl.runtime.control import RunControl
from flowctl.runtime.faults import refused_error
from flowctl.runtime.redrive import Redriven
from flowctl.threads import GuardedThread, death_of
from flowctl.wire.values import carry_records

_Result = TypeVar("_Result")

# A quarter of the default buffer: it is refilled in a few large steps, none of which takes long.
POLL_RECORDS_MAX = 5_000
# A source with nothing to read is asked again after this; too short for a person to notice.
_EMPTY_WAIT_S = 0.05
# After a record that can't be sent, this many are checked together; one by one, a chunk full of
# such records would be checked once for each.
_AHEAD_OF_BAD = 64
# The sender signals when there is room; this only bounds how late a stop is noticed.
_ROOM_WAIT_S = 0.2


class Reader(GuardedThread):
    """Runs until the input ends, the run stops, or the source fails.

    What was read before a source error is still processed and saved: the error is kept for the
    end of the run.
    """

    def __init__(
        self,
        control: RunControl,
        producer: FlowProducer,
        *,
        unsaved_max: int,
        save_first: Callable[[], bool] = lambda: True,
        has_dead_letter: bool = False,
    ) -> None:
        """``save_first`` saves the checkpoint if that has to come before any emit.

        It returns False if it could not save and the run stops.  ``has_dead_letter``: a record that
        can't be sent is kept there, and the job goes on.
        """
        super().__init__("flowctl-reader", on_death=control.fail)
        self._save_first = save_first
        # If reads are saved first, nothing is kept elsewhere: a record is sent once or dropped.
        sends_again = control.core.guarantee.sends_again
        self._keeps_refused = has_dead_letter and sends_again
        self._sharing = producer if isinstance(producer, SharingProducer) else None
        self._commits_first = control.core.guarantee.commits_before_emit
        self._control = control
        self._producer = producer
        self._source_name = type(
            producer.inner if isinstance(producer, Redriven) else producer
        ).__name__
        self._unsaved_max = unsaved_max
        self.source_error: BaseException | None = None

    def work(self) -> None:
        try:
            self._read()
        except FlowctlError as error:
            self.source_error = error
            core = self._control.core
            if isinstance(core, CollectingCore) and core.collects:
                # Inputs that bolts hold until the end are not complete without it.
                self._control.fail(error)
        except BaseException as error:  # before reader_done is set, which looks like the end
            self._control.fail(death_of(self.name, error))
        finally:
            self._control.reader_done.set()
            self._control.wake()

    def _read(self) -> None:
        control = self._control
        records_max = POLL_RECORDS_MAX
        if self._commits_first:  # a kill loses records read and not sent: keep those few
            records_max = min(records_max, control.core.settings.tuple.records_max)
        while not control.stopping.is_set():
            if self._commits_first:
                self._await_sent()
            chunk = self._asked(lambda: self._producer.poll(records_max))
            if chunk is None:
                with control.lock:
                    control.core.end_of_input(now_s=control.clock())
                control.has_read_all = True
                return
            if chunk.mark is not None:  # first: a save must not see the records without it
                with control.lock:
                    control.core.intake.note_mark(chunk.partition, chunk.mark)
            if chunk.records:
                self._offer(chunk.partition, chunk.records)
            if chunk.end is not None:
                self._finish(chunk.partition, chunk.end)
            elif not chunk.records and not chunk.is_busy:
                control.stopping.wait(_EMPTY_WAIT_S)

    def _asked(self, call: Callable[[], _Result]) -> _Result:
        return asked(call, self._source_name)

    def _offer(self, partition: str, records: Sequence[Record]) -> None:
        """Offer all records; a record that can't be sent goes to the dead letter store, if there is
        one.
        """
        ahead = len(records)
        while records:
            given = records[:ahead]
            ready, sizes, refused = carry_records(given)
            if not self._offer_ready(partition, ready, sizes):
                return
            if refused is None:
                records = records[len(given) :]
                continue
            bad = given[len(ready)]
            if not self._keeps_refused:
                raise refused_error(partition, bad, refused)
            self._set_aside(partition, bad, refused.problem)
            records = records[len(ready) + 1 :]
            ahead = _AHEAD_OF_BAD  # bad records come together: don't check all of them each time

    def _set_aside(self, partition: str, record: Record, reason: str) -> None:
        """Give a record to the core, which passes it to the dead letter store; wait for room."""
        control = self._control
        while not control.stopping.is_set():
            with control.lock:
                now_s = control.clock()
                if control.core.set_aside(partition, record, reason=reason, now_s=now_s):
                    break
                self._await_room()
            if self._sharing is not None and not self._asked(self._sharing.keep):
                return  # another driver reads the partition now
        control.wake()

    def _await_room(self) -> None:
        """Wait until the sender signals that there is room, or for a moment.  Holding the lock."""
        self._control.reader_waits = True
        self._control.room.wait(_ROOM_WAIT_S)
        self._control.reader_waits = False

    def _offer_ready(self, partition: str, records: Sequence[Record], sizes: Sequence[int]) -> bool:
        """Offer until all are taken; False: the rest must not be offered, which is not an error."""
        while records and not self._control.stopping.is_set():
            taken = self._offer_once(partition, records, sizes)
            records, sizes = records[taken:], sizes[taken:]
            if taken and self._commits_first:
                self._commit()
            if not taken and self._sharing is not None and not self._asked(self._sharing.keep):
                return False  # another driver reads the partition now
        return not self._control.stopping.is_set()

    def _offer_once(self, partition: str, records: Sequence[Record], sizes: Sequence[int]) -> int:
        """Return how many were taken; waits for room after a refusal."""
        control = self._control
        with control.lock:
            taken = 0
            was_empty = not control.core.intake.buffer
            if self._may_go_on():
                now_s = control.clock()
                taken = control.core.offer(partition, records, now_s=now_s, sizes=sizes)
            if taken < len(records):
                self._await_room()
        if taken and was_empty:
            control.wake()
        return taken

    def _finish(self, partition: str, end: Position) -> None:
        """Note that all of ``partition`` was polled, though if the run is stopping not all was
        offered.
        """
        if self._control.stopping.is_set() or self._sharing is not None:
            return  # the rest of a shared partition may have been read by others
        with self._control.lock:
            self._control.core.intake.finish(partition, end)

    def _await_sent(self) -> None:
        """Do not poll while polled records still wait to be sent."""
        control = self._control
        with control.lock:
            while not control.core.intake.has_room and not control.stopping.is_set():
                self._await_room()

    def _commit(self) -> None:
        """Save the offered records, and only then let them be sent."""
        if self._save_first():
            with self._control.lock:
                self._control.core.on_committed()
            self._control.wake()

    def _may_go_on(self) -> bool:
        """Whether reading may go on: if the store is unavailable, up to ``uncommitted_max`` unsaved
        records.
        """
        control = self._control
        if control.store_away_since_s is None:
            return True
        done = control.records_before + control.core.counters.records_acked
        return done - control.records_saved < self._unsaved_max


def asked(call: Callable[[], _Result], name: str) -> _Result:
    """Return what the producer's ``call`` returns; its exceptions are its own errors, not defects
    of flowctl.

    ``name`` is the name of its class.
    """
    try:
        return call()
    except (FlowctlError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit: the input was not read to its end
        raise SourceError(
            f"the producer {name} raised {type(error).__name__}: {error}{_place_of(error)}.",
            remedy="Fix it and run again: what it returned before that is processed and saved.",
        ) from error


def _place_of(error: BaseException) -> str:
    """Return where in the producer's own code ``error`` was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""

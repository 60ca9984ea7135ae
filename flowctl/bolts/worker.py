"""FlowControlBolt: takes tuples from a spout, runs ``process`` on each, acks or fails it."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Final

import msgspec

from flowctl.bolts.link import Link, Outcome, Work
from flowctl.core.records import Batch, Span
from flowctl.core.settlement import Settlement
from flowctl.errors import EnvironmentFault, FencedError, without_secrets
from flowctl.ports import Endpoint, PerConnection, Process
from flowctl.wire.frames import AckFrame, FailFrame, SettledFrame, TupleFrame, Welcome
from flowctl.wire.handshake import hello_of, join_spout
from flowctl.wire.stream import stream_of

# The spout listens before it starts bolts, so what fails is a full door or a short break of the
# net: eight tries over some 6 s.
_CONNECT_TRIES: Final = 8
_CONNECT_PAUSE_FIRST_S: Final = 0.05  # doubled each time
# An exception can quote a whole record: enough to know it by, and a traceback's innermost calls.
_ERROR_CHARS_MAX: Final = 1_000
_TRACEBACK_CHARS_MAX: Final = 4_000


class BoltSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a bolt did in one connection.

    ``ended``: "end" when the spout said so, "cancelled" by :meth:`FlowControlBolt.cancel`, else
    it begins with "eof" (the spout is gone) or "broken" (it spoke nonsense).  ``acked`` and
    ``failed`` count what was reported, whether or not the spout still heard it; ``service_s``
    is the time in ``process``, all slots together.
    """

    bolt: str
    epoch: int
    ended: str
    acked: int
    failed: int
    revoked: int
    records: int
    service_s: float


def run_bolt(endpoint: Endpoint, bolt: str, process: Process, *, slots: int = 1) -> BoltSummary:
    """Be the bolt named ``bolt`` until the spout ends it or is gone.

    ``process`` runs in the calling thread, and in ``slots - 1`` more.  Its return value is
    ignored; an exception (also SystemExit) fails the tuple.  Raises
    :class:`flowctl.errors.AuthenticationError` or :class:`flowctl.errors.WireError` when the
    spout is not ours, :class:`flowctl.errors.EnvironmentFault` when it can't be reached.
    KeyboardInterrupt ends the bolt and passes through.
    """
    return FlowControlBolt(endpoint, bolt, process, slots=slots).run()


class FlowControlBolt:
    """One bolt for one connection; :func:`run_bolt` for those who need :meth:`cancel`."""

    def __init__(self, endpoint: Endpoint, bolt: str, process: Process, *, slots: int = 1) -> None:
        self._endpoint = endpoint
        self._bolt = bolt
        self._process = process
        self._slots = slots
        self._cancelled = threading.Event()
        self._link: Link | None = None
        self._tallies: list[_Tally] = []
        self._interrupt: BaseException | None = None

    def run(self) -> BoltSummary:
        """As :func:`run_bolt`; once."""
        welcome, link = self._connect()
        self._link = link
        if isinstance(self._process, PerConnection):
            self._process = self._process.for_connection(self._bolt)
        link.start()
        try:
            if self._cancelled.is_set():
                link.close("cancelled")
            self._work_in_all_slots(link, welcome)
        finally:
            link.close("cancelled")
            link.join()
        if self._interrupt is not None:
            raise self._interrupt
        return self._summary(link, welcome)

    def cancel(self) -> None:
        """Make :meth:`run` return after the current call of ``process``.  Thread-safe."""
        self._cancelled.set()
        if self._link is not None:
            self._link.close("cancelled")

    def _connect(self) -> tuple[Welcome, Link]:
        hello = hello_of(self._bolt, self._slots)
        pause_s = _CONNECT_PAUSE_FIRST_S
        for tries_left in range(_CONNECT_TRIES - 1, -1, -1):
            try:
                sock, welcome = join_spout(self._endpoint, hello)
            except OSError as error:
                if not tries_left or self._cancelled.wait(pause_s):
                    raise self._unreachable(error) from None
                pause_s *= 2
            else:
                stream = stream_of(sock, tls=self._endpoint.certificate_pem is not None)
                return welcome, Link(stream, self._endpoint, bolt=self._bolt, slots=self._slots)
        raise AssertionError("not reached")

    def _unreachable(self, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"Bolt {self._bolt} can't reach the spout at {self._endpoint.host}:"
            f"{self._endpoint.port}: {error.strerror or error}.",
            remedy="Set listen.advertise to a name of the driver that the workers can reach.",
        )

    def _work_in_all_slots(self, link: Link, welcome: Welcome) -> None:
        threads = [
            threading.Thread(
                target=self._work_and_tell,
                args=(link, welcome),
                name=f"flowctl-process-{self._bolt}-{slot}",
                daemon=True,
            )
            for slot in range(1, self._slots)
        ]
        for thread in threads:
            thread.start()
        self._work(link, welcome)
        for thread in threads:
            thread.join()

    def _work_and_tell(self, link: Link, welcome: Welcome) -> None:
        """In a thread of ours: an interrupt raised there belongs to the caller of run."""
        try:
            self._work(link, welcome)
        except BaseException as error:
            self._interrupt = error
            link.close("cancelled")

    def _work(self, link: Link, welcome: Welcome) -> None:
        tally = _Tally()
        self._tallies.append(tally)
        idling = link.new_idling()
        work = link.take(idling)
        while work is not None:
            work = link.report_and_take(self._outcome(work, welcome, tally), idling)

    def _outcome(self, work: Work, welcome: Welcome, tally: _Tally) -> Outcome:
        """Call ``process`` on one tuple."""
        frame = work.frame
        batch = self._batch(frame, welcome)
        started_at_s = time.monotonic()
        try:
            made = self._process(batch)
        except (Exception, SystemExit) as error:
            tally.failed += 1
            return _failure(frame, error, batch.reading_index)
        service_s = time.monotonic() - started_at_s
        tally.acked += 1
        tally.records += len(frame.records)
        tally.service_s += service_s
        wait_s = started_at_s - work.received_at_s
        said = (frame.tuple_id, frame.attempt, wait_s, service_s, work.idle_total_s, batch.sink_s)
        return SettledFrame(*said, made) if isinstance(made, Settlement) else AckFrame(*said)

    def _batch(self, frame: TupleFrame, welcome: Welcome) -> Batch:
        records = frame.records
        span = Span(
            self._endpoint.job,
            frame.partition,
            records[0].position,
            records[-1].position,
            welcome.job_epoch,
            frame.acked_through,
        )
        batch = Batch(records, span, bolt=self._bolt, attempt=frame.attempt, clock=time.monotonic)
        if self._link is not None:
            batch.tell_prolonged = self._link.prolong
        return batch

    def _summary(self, link: Link, welcome: Welcome) -> BoltSummary:
        return BoltSummary(
            bolt=self._bolt,
            epoch=welcome.epoch,
            ended=link.ended or "eof",
            acked=sum(tally.acked for tally in self._tallies),
            failed=sum(tally.failed for tally in self._tallies),
            revoked=link.revoked,
            records=sum(tally.records for tally in self._tallies),
            service_s=sum(tally.service_s for tally in self._tallies),
        )


class _Tally:
    """Counts of one process thread: no lock needed."""

    __slots__ = ("acked", "failed", "records", "service_s")

    def __init__(self) -> None:
        self.acked = 0
        self.failed = 0
        self.records = 0
        self.service_s = 0.0


def _failure(frame: TupleFrame, error: BaseException, record_index: int | None) -> FailFrame:
    return FailFrame(
        tuple_id=frame.tuple_id,
        attempt=frame.attempt,
        error=_error_text(error),
        traceback=_traceback_text(error),
        record_index=record_index,
        fenced=isinstance(error, FencedError),
    )


def _error_text(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # user code again: an exception whose __str__ raises
        text = type(error).__name__
    return _sendable(text)[:_ERROR_CHARS_MAX]


def _traceback_text(error: BaseException) -> str:
    try:
        # Without our own frame; with those of the errors that led to this one.
        below_us = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, below_us))
    except Exception:
        return ""
    return _sendable(text)[-_TRACEBACK_CHARS_MAX:]


def _sendable(text: str) -> str:
    """No passwords in URLs, and no half characters, which UTF-8 can't hold."""
    return without_secrets(text).encode("utf-8", "replace").decode()

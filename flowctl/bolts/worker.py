"""FlowControlBolt: takes tuples from a spout, runs ``process`` on each, acks or fails it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import msgspec

from flowctl.bolts.link import Link
from flowctl.bolts.outcomes import dying_of
from flowctl.bolts.range_pace import TARGET_S, BatchPace
from flowctl.bolts.range_turns import RangeTurn
from flowctl.bolts.turns import Turns
from flowctl.bolts.work import Outcome, Work
from flowctl.core.messages import RangeEmission
from flowctl.core.retry import CONNECT, CONNECT_TRIES
from flowctl.errors import InfrastructureError
from flowctl.failure.callables import check_returned, is_async
from flowctl.failure.classify import RefusalRule
from flowctl.ports import Endpoint, PerConnection, Process
from flowctl.wire.frames import Welcome
from flowctl.wire.handshake import hello_of, join_spout
from flowctl.wire.stream import waiting_stream_of


class BoltSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a bolt did in one connection.

    ``ended``: "end" if the spout said so, "cancelled" by :meth:`FlowControlBolt.cancel`, else it
    begins with "eof" (the spout is gone), "broken" (it broke the protocol) or "overdue" (a call
    took longer than it may, and every slot is stuck).  ``acked`` and
    ``failed`` count what was reported, whether or not the spout received it; refusals are included
    in ``failed``; ``service_s`` is the time in ``process``, all slots together.
    """

    bolt: str
    epoch: int
    ended: str
    acked: int
    failed: int
    revoked: int
    records: int
    service_s: float


def run_bolt(
    endpoint: Endpoint,
    bolt: str,
    process: Process,
    *,
    slots: int = 1,
    refusal: RefusalRule | None = None,
    end_process: Callable[[str], object] | None = None,
) -> BoltSummary:
    """Run the bolt named ``bolt`` until the spout ends it or is gone.

    ``process`` runs in the calling thread, and in ``slots - 1`` more; an ``async def`` runs in an
    event loop, up to ``slots`` times at once.  Its return value is used only for a range, where
    bytes are a receipt (docs/ranges.md).  An exception (also SystemExit, or a panic of a library in
    Rust) fails the tuple, or says that the target refused it (``refusal``, then
    :func:`flowctl.failure.classify.refusal_of` decide).  KeyboardInterrupt ends the bolt and passes
    through.  A call that takes longer than ``endpoint.call_timeout_s`` counts as failed;
    ``end_process`` then ends this process, and gets the reason.  Without it the bolt leaves if it
    has no slot left, and this returns when the call does.

    Raises :class:`flowctl.errors.AuthenticationError` or :class:`flowctl.errors.WireError` if the
    spout does not hold this run's key, :class:`flowctl.errors.InfrastructureError` if it can't be
    reached.
    """
    return FlowControlBolt(
        endpoint, bolt, process, slots=slots, refusal=refusal, end_process=end_process
    ).run()


class FlowControlBolt:
    """One bolt for one connection, like :func:`run_bolt`; for callers that need :meth:`cancel`."""

    def __init__(
        self,
        endpoint: Endpoint,
        bolt: str,
        process: Process,
        *,
        slots: int = 1,
        refusal: RefusalRule | None = None,
        end_process: Callable[[str], object] | None = None,
    ) -> None:
        self._end_process = end_process
        self._endpoint = endpoint
        self._bolt = bolt
        self._process = process
        self._slots = slots
        self._refusal = refusal
        self._cancelled = threading.Event()
        self._link: Link | None = None
        self._tallies: list[Turns] = []  # per thread
        self._interrupt: BaseException | None = None
        # Called once, by another thread, if calls that took too long hold all slots: :meth:`run`
        # returns only when they do.
        self.when_stuck: Callable[[], object] = lambda: None

    def run(self) -> BoltSummary:
        """Run the bolt like :func:`run_bolt`; may be called once."""
        welcome, link = self._connect()
        self._link = link
        link.end_process = self._end_process
        if isinstance(self._process, PerConnection):
            self._process = self._process.for_connection(self._bolt)
        try:
            if self._cancelled.is_set():
                link.close("cancelled")
            if is_async(self._process):
                self._work_in_loop(link, welcome)
            else:
                link.on_stuck = self.when_stuck
                link.start()
                self._work_in_all_slots(link, welcome)
        finally:
            link.close("cancelled")
            link.join()
        if self._interrupt is not None:
            raise self._interrupt
        return self._summary(link, welcome)

    def cancel(self) -> None:
        """Make :meth:`run` return after the current call of ``process``.  Thread-safe.

        An ``async`` one is cancelled.
        """
        self._cancelled.set()
        if self._link is not None:
            self._link.close("cancelled")

    def _connect(self) -> tuple[Welcome, Link]:
        hello = hello_of(self._bolt, self._slots)
        pauses = CONNECT.waits()
        for tries_left in range(CONNECT_TRIES - 1, -1, -1):
            try:
                sock, welcome = join_spout(self._endpoint, hello)
            except OSError as error:
                if not tries_left or self._cancelled.wait(next(pauses)):
                    raise self._unreachable(error) from None
            else:
                uses_tls = self._endpoint.certificate_pem is not None
                stream = waiting_stream_of(sock, tls=uses_tls)
                return welcome, Link(stream, self._endpoint, bolt=self._bolt, slots=self._slots)
        raise AssertionError("not reached")

    def _unreachable(self, error: OSError) -> InfrastructureError:
        why, relay = error.strerror or error, self._endpoint.relay
        if relay is not None:
            return InfrastructureError(
                f"Bolt {self._bolt} can't reach the spout through {relay.address}: {why}.",
                remedy="Check that the workers reach Redis by the name that the driver uses.",
            )
        return InfrastructureError(
            f"Bolt {self._bolt} can't reach the spout at {self._endpoint.host}:"
            f"{self._endpoint.port}: {why}.",
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
        """Run in our own threads: an interrupt raised there belongs to the caller of run."""
        try:
            self._work(link, welcome)
        except BaseException as error:
            self._interrupt = error
            link.close("cancelled")

    def _work_in_loop(self, link: Link, welcome: Welcome) -> None:
        from flowctl.bolts.coroutines import AsyncProcess, work_in_loop

        process = cast("AsyncProcess", self._process)
        work_in_loop(link, process, self._turns(link, welcome), self._slots)

    def _work(self, link: Link, welcome: Welcome) -> None:
        turns = self._turns(link, welcome)
        idling = link.new_idling()
        work = link.take(idling)
        while work is not None:
            if type(work.frame) is RangeEmission:
                self._work_on_range(turns, turns.begin_range(work, idling), link)
                work = link.take(idling)
            else:
                work = link.report_and_take(self._outcome(work, turns, link), idling)

    def _work_on_range(self, turns: Turns, turn: RangeTurn, link: Link) -> None:
        """Call ``process`` on the batches of the range, one after the other."""
        with turn:
            while (batch := turn.next_batch()) is not None:
                try:
                    made = turns.fit.call(self._process, batch)
                    check_returned(made)
                except KeyboardInterrupt as error:
                    link.flush(dying_of(error))
                    raise
                except BaseException as error:
                    turn.raised(error)
                else:
                    turn.returned(made)

    def _outcome(self, work: Work, turns: Turns, link: Link) -> Outcome:
        """Call ``process`` on one tuple."""
        turn = turns.begin(work)
        try:
            made = turns.fit.call(self._process, turn.batch)
            if made is not None:
                check_returned(made)
        except KeyboardInterrupt as error:
            link.flush(dying_of(error))
            raise
        except BaseException as error:  # SystemExit, or a panic in a library written in Rust
            return turn.raised(error)
        return turn.returned(made)

    def _turns(self, link: Link, welcome: Welcome) -> Turns:
        # Only for ranges: how long a batch of this process may take, if the process says so.
        pace = BatchPace(getattr(self._process, "batch_s", TARGET_S))
        turns = Turns(self._endpoint, self._bolt, welcome, link, self._refusal, pace=pace)
        self._tallies.append(turns)
        return turns

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

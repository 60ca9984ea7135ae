"""How the work of a run comes in: a reader of records, or a source that bolts read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from flowctl.config import Settings
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.errors import FlowctlError
from flowctl.instrumentation.numbers import counted
from flowctl.ports import DeadLetter, Endpoint, RedrivableDeadLetter
from flowctl.range_ports import RangeProducer, RangeReader, ReceiptLog
from flowctl.runtime.control import RunControl
from flowctl.runtime.reader import Reader, asked
from flowctl.runtime.redrive import Redriven, with_letters_first
from flowctl.runtime.run_plan import RunPlan
from flowctl.threads import GuardedThread, death_of

# -- Extents, for bolts that read the source themselves ---------------------------------------
#
# The source of a run whose bolts read it themselves: asks it now and then how far it reaches.


_T = TypeVar("_T")

# A source that grows is looked at again after this [s]: new records are late by half of it on
# average.
_LOOK_EVERY_S = 1.0


class RangeSource(GuardedThread):
    """Offers the extents of ``producer`` to the core, in the place of a reader of records.

    Runs until no extent grows any more, the run stops, or the source fails.  ``reader`` is what
    bolts read with, once there is anything to read.
    """

    def __init__(
        self,
        control: RunControl,
        producer: RangeProducer,
        *,
        restored: Checkpoint,
        receipts: ReceiptLog | None = None,
    ) -> None:
        super().__init__("flowctl-range-source", on_death=control.fail)
        assert isinstance(control.core, RangeCore)
        self._core = control.core
        self._control = control
        self._producer = producer
        self._restored = restored
        self._receipts = receipts
        self.reader: RangeReader | None = None
        self.source_error: BaseException | None = None

    def work(self) -> None:
        try:
            self._look()
        except FlowctlError as error:
            self.source_error = error
        except BaseException as error:  # before reader_done is set, which looks like the end
            self._control.fail(death_of(self.name, error))
        finally:
            self._control.reader_done.set()
            self._control.wake()

    def _look(self) -> None:
        control = self._control
        checkpoint = self._restored
        while not control.stopping.is_set():
            extents = self._ask(partial(self._producer.extents, checkpoint))
            if self.reader is None:  # its reads may depend on where the job stands
                self.reader = self._ask(self._producer.reader)
            if self._offer(extents):
                return
            control.stopping.wait(_LOOK_EVERY_S)
            with control.lock:
                checkpoint = self._core.checkpoint()

    def _ask(self, call: Callable[[], _T]) -> _T:
        return asked(call, type(self._producer).__name__)

    def _offer(self, extents: Mapping[str, Extent]) -> bool:
        """Offer the extents; return whether no more will come."""
        control, core = self._control, self._core
        kept = []
        if self._receipts is not None:
            kept, self._receipts = list(self._receipts.entries()), None
        with control.lock:
            now_s = control.clock()
            core.offer_extents(extents)
            for entry in kept:
                core.adopt(entry, now_s=now_s)
            is_final = core.intake.is_final
            if is_final:
                core.end_of_input(now_s=now_s)
        control.has_read_all = is_final
        control.wake()
        return is_final


class NoLetters:
    """Dead letters of a job of ranges: they are records by value, and are not processed again."""

    problem: str = ""

    def __init__(self, dead_letter: DeadLetter | None, job: str) -> None:
        waiting = 0
        if isinstance(dead_letter, RedrivableDeadLetter):
            waiting = len(list(dead_letter.to_redrive(job)))
        self._waiting = waiting

    def open(self, restored: Checkpoint) -> None:
        """Do nothing: there are no letters to read."""

    def headline(self) -> str:
        """Return how many letters are left waiting, as text; "" if there are none."""
        if not self._waiting:
            return ""
        letters = counted(self._waiting, "dead letter")
        return (
            f"{letters} wait to be processed again, which a job of ranges can't do: see Letters of"
            " ranges in docs/dead-letters.md"
        )

    def settle(self, saved: Checkpoint) -> None:
        """Do nothing: no letter is deleted."""


# -- What brings in the work of a run ----------------------------------------------------------


# Bounds what a kill would repeat while the store is away: some seconds of a fast job.
_UNSAVED_MAX = 1_000_000


def intake_of(
    plan: RunPlan, control: RunControl, restored: Checkpoint, save_first: Callable[[], bool]
) -> tuple[Reader | RangeSource, Redriven | NoLetters]:
    """Return the thread that brings in work, and the dead letters that come before it."""
    producer, dead_letter = plan.producer, plan.dead_letter
    if isinstance(producer, RangeProducer):
        control.receipt_log = plan.receipts
        source = RangeSource(control, producer, restored=restored, receipts=plan.receipts)
        # Who keeps receipts sees to letters itself: `apply` reads their rows again.
        return source, NoLetters(None if plan.receipts else dead_letter, plan.job)
    letters = with_letters_first(producer, dead_letter, job=plan.job, restored=restored)
    reader = Reader(
        control,
        letters,
        unsaved_max=plan.settings.buffer.uncommitted_max or _UNSAVED_MAX,
        save_first=save_first,
        has_dead_letter=dead_letter is not None,
    )
    return reader, letters


def endpoint_of(endpoint: Endpoint, source: Reader | RangeSource, settings: Settings) -> Endpoint:
    """Return ``endpoint`` with the time-out of a call, and what bolts need to read the source and
    to report on it, if they do.
    """
    reader = source.reader if isinstance(source, RangeSource) else None
    return msgspec.structs.replace(
        endpoint,
        reader=reader,
        call_timeout_s=settings.call.timeout_s,
        report_s=settings.timeout.report_s,
    )

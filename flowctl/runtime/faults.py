"""What to say when ``process`` failed: which record, what, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.events import TupleGaveUp
from flowctl.core.positions import show
from flowctl.core.records import Record
from flowctl.errors import ProcessError
from flowctl.wire.frames import FailFrame


def describe_fail(records: Sequence[Record], frame: FailFrame) -> str:
    """Return the error and, where it is known, the record that was being worked on."""
    if frame.record_index is None or frame.record_index >= len(records):
        return frame.error
    return f"{frame.error}, at record {show(records[frame.record_index].position)}"


def gave_up_error(gave_up: TupleGaveUp, frame: FailFrame | None) -> ProcessError:
    """Return the error that ends the run; ``frame`` is the last fail, if it was one."""
    bolts = ", ".join(gave_up.bolts)
    traceback = f"\n{frame.traceback.rstrip()}\n" if frame and frame.traceback else ""
    return ProcessError(
        f"{gave_up.partition}, records {show(gave_up.first)} to {show(gave_up.last)}:"
        f" process failed {gave_up.attempts} times, on {bolts}: {gave_up.reason}.{traceback}",
        remedy=(
            "Mend process or the record and run again: the checkpoint stands before this record,"
            " and nothing that was done is redone."
        ),
    )

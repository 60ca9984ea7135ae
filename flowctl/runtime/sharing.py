"""The host that a run offers to a producer whose partitions come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError
from flowctl.runtime.control import RunControl

# How long to wait for tuples in flight when a partition goes [s]: most tuples take at most
# tuple.service_max_s, and a group waits for its members some 45 s (Kafka's session.timeout.ms).
FINISH_S = 2.0
_POLL_S = 0.02  # far below a tuple's time in process


class Host:
    """A :class:`flowctl.ports.SourceHost`.  Used by the reader's thread.

    ``finish_s``: how long a departing partition may hold up the reader for what is in flight.
    """

    def __init__(
        self,
        control: RunControl,
        save: Callable[[], None],
        *,
        job: str,
        finish_s: float = FINISH_S,
    ) -> None:
        self.job = job
        self._finish_s = finish_s
        self.guarantee: ProcessingGuarantee = control.core.guarantee
        self._control = control
        self._save = save

    def saved(self) -> Checkpoint:
        """See :class:`flowctl.ports.SourceHost`."""
        return self._control.all_saved()

    def uncommitted(self, partition: str) -> int:
        """See :class:`flowctl.ports.SourceHost`."""
        with self._control.lock:
            return self._control.core.intake.uncommitted_of(partition)

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        """See :class:`flowctl.ports.SourceHost`."""
        control = self._control
        with control.lock:
            control.core.handover.give(partition, state, now_s=control.clock())
        if state.position is not None and state != control.saved.partitions.get(partition):
            # Its starting point ("at the end, as it was") must outlive a driver that reads nothing.
            with suppress(CheckpointUnavailableError):
                self._save()

    def take_away(self, partitions: Sequence[str]) -> Checkpoint:
        """See :class:`flowctl.ports.SourceHost`."""
        control = self._control
        self._finish(partitions)
        with suppress(CheckpointUnavailableError):  # nothing is reported as saved that is not
            self._save()
        with control.lock:
            for partition in partitions:
                control.core.handover.take_away(partition, now_s=control.clock())
        control.wake()
        return control.all_saved()

    def _finish(self, partitions: Sequence[str]) -> None:
        control = self._control
        until_s = control.clock() + self._finish_s
        while control.clock() < until_s and not control.finished.is_set():
            with control.lock:
                left = [control.core.handover.hold_back(name) for name in partitions]
            if not any(left):
                return
            control.finished.wait(_POLL_S)

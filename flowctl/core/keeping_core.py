"""KeepingCore: a :class:`TupleCore` whose tuples may be given up for a dead letter."""

from __future__ import annotations

from flowctl.core.events import TupleGaveUp
from flowctl.core.failures import DeadTuple
from flowctl.core.tuple_core import TupleCore


class KeepingCore(TupleCore):
    """What the core of a run's one stage does with tuples whose attempts ran out.

    Pure; not thread-safe.
    """

    @property
    def gave_up(self) -> TupleGaveUp | None:
        """The first tuple whose attempts ran out, if there is one: the run has to fail."""
        return self._failures.gave_up

    @property
    def has_dead_letter(self) -> bool:
        """Whether what is given up waits for :meth:`poll_dead_letter`."""
        return self._failures.has_dead_letter

    def poll_dead_letter(self) -> DeadTuple | None:
        """Return the next tuple whose attempts ran out, to be kept elsewhere, or None.

        It counts as acked only after :meth:`on_dead_lettered` (S109).
        """
        return self._failures.poll_dead_letter()

    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None:
        """What :meth:`poll_dead_letter` gave is safe; one that was acked meanwhile is ignored."""
        flow_tuple = self.book.pending.get(tuple_id)
        if flow_tuple is None:
            return
        self._completion.complete(flow_tuple, now_s)
        self._failures.note_dead_lettered(flow_tuple, now_s)

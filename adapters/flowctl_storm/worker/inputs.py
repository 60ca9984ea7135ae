"""The arguments of a topology's bolts: inputs, and the collector for emits, acks and fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.trees.settlement import Emitted, FailedInput, Settlement, Watched
from flowctl.errors import JobError
from flowctl_storm.plan import component_of, stream_of
from flowctl_storm.worker.notes import Notes


class Input:
    """One value that a bolt receives, emitted by ``component`` on ``stream``.

    Values arrive with the types that they were emitted with (:mod:`flowctl.wire.values`).
    ``input["user"]`` is short for ``input.value["user"]``.
    """

    # Both times are set by the watch, if there is one.
    __slots__ = ("_is_settled", "came_at_s", "execute_at_s", "input_id", "source", "value")

    came_at_s: float | None
    execute_at_s: float | None

    def __init__(self, input_id: int, value: Any, source: str) -> None:
        self.input_id: int = input_id
        self.value: Any = value
        self.source = source
        self._is_settled = False  # the collector's

    def __getitem__(self, field: Any) -> Any:
        return self.value[field]

    def __repr__(self) -> str:
        return f"Input({self.value!r} from {self.source})"

    @property
    def component(self) -> str:
        """The name of the spout or bolt that emitted the value."""
        return component_of(self.source)

    @property
    def stream(self) -> str:
        """The name of the stream on which the value was emitted."""
        return stream_of(self.source)


class Collector:
    """The collector of an auto-ack bolt: each emit is anchored to the processed input or inputs.

    Emits are sent after the bolt has finished the whole tuple; emits of an input that then fails
    are withdrawn.  Owned by one call; not thread-safe.
    """

    # The task that calls the bolt sets and reads these.
    __slots__ = ("anchors", "batch", "emits", "notes")

    def __init__(self) -> None:
        self.emits: list[Emitted] = []
        self.anchors: list[int] = []
        self.batch: Batch | None = None
        self.notes: Notes | None = None

    def __call__(
        self,
        value: Any,
        *,
        stream: str | None = None,
        task: int | None = None,
        anchored: bool = True,
        anchors: Input | Iterable[Input] | None = None,
    ) -> None:
        """Emit ``value``; ``task`` (from 0) selects one task of those that use a direct grouping.

        ``anchors`` are the inputs from which the value results; None stands for all inputs being
        processed.  In a :class:`flowctl_storm.Batched` bolt name them unless the value results from
        all: n emits of n inputs each are n x n edges.  If not ``anchored``, the value belongs to no
        tree, so it is neither waited for nor sent again.
        """
        ids = self.anchors if anchored else []
        if anchors is not None:
            ids = _ids_of(anchors)
        self.emits.append(Emitted(value, ids, stream, task))

    def prolong(self, given: Input) -> None:
        """Restart the timers of the trees of ``given``, which takes longer than expected.

        Call it from ``execute``.  The hub gets the request with the bolt's next heartbeat, after
        0.25 s at most, so calling it more often has no further effect.  The other inputs of the
        same tuple are prolonged as well: none of them is acked before all are.
        """
        batch = self.batch
        if batch is not None and batch.tell_prolonged is not None:
            batch.tell_prolonged(given.input_id, batch)

    def in_sink(self) -> AbstractContextManager[None]:
        """Mark calls that wait for a sink, as :meth:`flowctl.Batch.in_sink` does."""
        if self.batch is None:
            raise JobError(
                "in_sink: no tuple is being processed.", remedy="Use it while executing."
            )
        return self.batch.in_sink()

    def count(self, name: str, by: int = 1) -> None:
        """Add ``by`` to a metric of yours, reported with the task's others.

        Raises :class:`JobError` for the name of another metric, TypeError for a value that is not
        an integer.
        """
        self._noting().count(name, by)

    def measure(self, name: str, value: float) -> None:
        """Add ``value`` to a mean of yours; raises as :meth:`count` does."""
        self._noting().measure(name, value)

    def report_error(self, error: BaseException) -> None:
        """Add ``error`` to the driver's log and report; no input fails because of it."""
        self._noting().report_error(error)

    def _noting(self) -> Notes:
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    @property
    def bolt(self) -> str:
        """The name of the bolt, ``stage.number`` from 1."""
        return self.batch.bolt if self.batch is not None else ""


def _ids_of(anchors: Input | Iterable[Input]) -> list[int]:
    given = (anchors,) if isinstance(anchors, Input) else tuple(anchors)
    if any(anchor._is_settled for anchor in given):
        raise JobError(
            "emit: an anchor was acked or failed already.", remedy="Emit first, then ack."
        )
    return [anchor.input_id for anchor in given]


class ManualCollector(Collector):
    """The collector of a manual-ack bolt, for emits, acks and fails; one per task.

    An input that is neither acked nor failed when ``execute`` returns is held: its tree waits for
    it until it expires.  Acks and fails of an input that is already settled are ignored.
    """

    __slots__ = ("_acked", "_failed", "_prolonged", "_settled")

    def __init__(self) -> None:
        super().__init__()
        self._acked: list[Input] = []
        self._failed: list[FailedInput] = []
        self._prolonged: dict[int, None] = {}  # each once, however often it is repeated
        # inputs settled since the last mark, and whether by an ack
        self._settled: list[tuple[Input, bool]] = []

    def emit(
        self,
        value: Any,
        anchors: Input | Iterable[Input] = (),
        *,
        stream: str | None = None,
        task: int | None = None,
    ) -> None:
        """Emit ``value`` into the trees of all ``anchors``; without anchors into none.

        Raises :class:`JobError` for an anchor that was acked or failed: emit first, then ack.
        """
        self.emits.append(Emitted(value, _ids_of(anchors), stream, task))

    def ack(self, given: Input) -> None:
        """Ack ``given``, which the bolt has finished."""
        if self._settle(given, is_ack=True):
            self._acked.append(given)

    def fail(self, given: Input, reason: str = "failed by the bolt") -> None:
        """Fail ``given``, which could not be processed: its roots are sent again."""
        if self._settle(given, is_ack=False):
            self._failed.append(FailedInput(given.input_id, reason))

    def prolong(self, given: Input) -> None:
        """As in an auto-ack bolt; for held inputs it is repeated when this tuple is acked."""
        if not given._is_settled:
            self._prolonged[given.input_id] = None
            super().prolong(given)

    def _settle(self, given: Input, *, is_ack: bool) -> bool:
        if given._is_settled:
            return False
        given._is_settled = True
        self._settled.append((given, is_ack))
        return True

    # -- for the task --------------------------------------------------------------------

    def mark(self) -> tuple[int, int, int, int]:
        """Return the state to restore if ``execute``, which is about to begin, raises."""
        self._settled.clear()
        return len(self.emits), len(self._acked), len(self._failed), len(self._prolonged)

    def settled(self) -> Sequence[tuple[Input, bool]]:
        """The inputs settled since the mark, in order, and whether they were acked."""
        return self._settled

    def note_failed(self, failed: FailedInput, given: Input) -> None:
        """``execute`` raised for ``given``."""
        if self._settle(given, is_ack=False):
            self._failed.append(failed)

    def refuse(self, given: Input, reason: str, after_s: float | None) -> None:
        """Return ``given`` to be sent again, without a fault, as its target refused it."""
        if self._settle(given, is_ack=False):
            self._failed.append(FailedInput(given.input_id, reason, True, after_s))

    def take_back(self, mark: tuple[int, int, int, int]) -> None:
        """Withdraw everything that ``execute``, which raised, has reported."""
        lists: Sequence[list[Any]] = (self.emits, self._acked, self._failed)
        for said, length in zip(lists, mark[:3], strict=True):
            del said[length:]
        while len(self._prolonged) > mark[3]:
            self._prolonged.popitem()
        for given, _ in self._settled:
            given._is_settled = False

    def settlement(self, inputs: Sequence[Input], watched: Watched | None = None) -> Settlement:
        """Return everything reported since the last settlement; ``inputs`` are the tuple's."""
        ours = {given.input_id for given in inputs}
        made = Settlement(
            emits=self.emits,
            failed=self._failed,
            held=[given.input_id for given in inputs if not given._is_settled],
            acked=[given.input_id for given in self._acked if given.input_id not in ours],
            prolonged=list(self._prolonged),
            watched=watched,
        )
        self.emits, self._acked, self._failed, self._prolonged = [], [], [], {}
        self.notes = None
        return made

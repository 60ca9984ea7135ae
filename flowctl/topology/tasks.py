"""What runs on a worker for a bolt of a topology: users' code around, ``Settlement`` out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from flowctl.bolts.callables import check_plain, check_returned, refuse_async
from flowctl.core.buffer import size_of
from flowctl.core.records import Batch, Record
from flowctl.core.settlement import Emitted, FailedInput, Settlement
from flowctl.errors import ConfigError, FencedError, RetryLater, UnrunnableError
from flowctl.ports import Process
from flowctl.topology.inputs import Collector, Input, ManualCollector
from flowctl.topology.isolate import isolate
from flowctl.topology.notes import problem_of
from flowctl.topology.plan import source_of, task_of
from flowctl.topology.watch import BoltWatch, Watches, WatchPlan, take

# Called with each input; returning is its ack, raising its fail.
Execute: TypeAlias = Callable[[Input, Collector], Any]
# Called with all inputs of a tuple: they are acked, or failed, together.
ExecuteBatch: TypeAlias = Callable[[Sequence[Input], Collector], Any]

_REASON_CHARS_MAX: Final = 1_000  # an exception can quote a whole record
_NO_WATCH: Final = WatchPlan()
_FAILS: Final = (Exception, SystemExit)  # what fails an input; all else ends the bolt
_encode = msgspec.msgpack.Encoder().encode


@runtime_checkable
class ManualBolt(Protocol):
    """A bolt with a state of its own that acks, fails and holds its inputs itself.

    Give the class, or a function that makes one: each task makes its own, anew at each connection.
    What the last one held is given to it again.
    """

    def execute(self, given: Input, out: ManualCollector) -> Any:
        """Work on one input; what it returns is ignored."""


class Batched:
    """Marks a function as one of whole tuples: ``topology.bolt("store", Batched(store))``.

    An emit is anchored to all inputs of the tuple, unless it names its ``anchors``; for a sink that
    writes many rows at once, or for work that is cheaper together.
    """

    def __init__(self, execute: ExecuteBatch) -> None:
        self.execute = execute
        self.__wrapped__ = execute  # as functools does: whose module has to travel


class StageCode:
    """A stage's code as it travels; :meth:`for_connection` makes what a bolt calls.

    ``isolates``: a :class:`Batched` function that raised is called again with parts of the tuple,
    until it is known which inputs it can't take (``topology/isolate.py``).
    Pickled by Spark's own cloudpickle, so code and hooks may be a job file's own.
    """

    def __init__(
        self,
        code: Any,
        sources: Sequence[str],
        watch: WatchPlan = _NO_WATCH,
        *,
        isolates: bool = False,
    ) -> None:
        self.code = code
        self.isolates = isolates
        self.sources = list(sources)
        self.watch = watch
        self.is_manual = is_manual(code)
        self.__wrapped__ = code  # as functools does: whose module has to travel

    @property
    def companions(self) -> Sequence[Any]:
        """What else of the user's travels with it, from modules of its own perhaps."""
        return self.watch.hooks

    def __call__(self, batch: Batch) -> Settlement:
        raise AssertionError("a bolt calls what for_connection returns")

    def for_connection(self, bolt: str) -> Process:
        """Return the process of one bolt, with a state of its own."""
        watches = None if self.watch.is_empty else Watches(self.watch, task_of(bolt))
        if self.is_manual:
            return _Manual(self.code(), self.sources, watches)
        if isinstance(self.code, Batched):
            run: Callable[..., Settlement] = functools.partial(_run_batch, isolates=self.isolates)
            execute: Any = self.code.execute
        else:
            run, execute = _run_each, self.code
        if watches is None:
            return functools.partial(run, execute, self.sources, None)
        return lambda batch: run(execute, self.sources, watches.mine, batch)


def is_manual(code: Any) -> bool:
    """Whether ``code`` makes manual-ack bolts: a class, or a partial of one, with ``execute``."""
    inner = code.func if isinstance(code, functools.partial) else code
    return isinstance(inner, type) and hasattr(inner, "execute")


def check_code(stage: str, code: Any, slots: int) -> None:
    """Raise :class:`ConfigError` for what can't be a bolt."""
    if not isinstance(code, Batched) and not callable(code):
        raise ConfigError(
            stage,
            f"a {type(code).__name__} can't be a bolt.",
            remedy="Give a function of an input and a collector, Batched(f), or a class with"
            " execute.",
        )
    if is_manual(code):
        made = code.func if isinstance(code, functools.partial) else code
        refuse_async(made, ("execute",), stage)
    else:
        check_plain(code.execute if isinstance(code, Batched) else code, stage)
    if is_manual(code) and slots > 1:
        raise ConfigError(
            stage, "a manual bolt has one thread.", remedy="Raise count instead of slots."
        )


def _inputs(sources: Sequence[str], batch: Batch) -> list[Input]:
    return [_input(sources, record) for record in batch]


def _input(sources: Sequence[str], record: Record) -> Input:
    input_id: Any = record.position
    return Input(input_id, record.value, sources[source_of(input_id)])


def _run_each(
    execute: Execute, sources: Sequence[str], watch: BoltWatch | None, batch: Batch
) -> Settlement:
    """Auto-ack: what raises fails alone, and has emitted nothing.

    Once one is refused, the rest is not tried: a target that has no room is left alone.
    """
    out = Collector()
    out._batch = batch
    emits = out._emits
    failed: list[FailedInput] = []
    for index, record in enumerate(batch):
        given = _input(sources, record)
        out._anchors = [given.input_id]
        before = len(emits)
        try:
            if watch is not None:
                watch.begin(given)
            check_returned(execute(given, out))
            _check_sendable(emits, before)
            if watch is not None:
                watch.executed(given, emits, before)
                watch.acked(given)
        except (FencedError, UnrunnableError):
            raise
        except RetryLater as refusal:
            if not index:
                raise  # nothing is settled yet: the whole tuple is refused
            del emits[before:]
            failed += _refused([each.position for each in batch[index:]], refusal)
            break
        except _FAILS as error:
            del emits[before:]
            failed.append(FailedInput(given.input_id, _reason(error)))
            if watch is not None:
                watch.failed(given, out.report_error)
    return Settlement(emits, failed, watched=take(watch, emits, out._notes))


def _refused(input_ids: Iterable[Any], refusal: RetryLater) -> list[FailedInput]:
    reason = _reason(refusal)
    return [FailedInput(input_id, reason, True, refusal.after_s) for input_id in input_ids]


def _run_batch(
    execute: ExecuteBatch,
    sources: Sequence[str],
    watch: BoltWatch | None,
    batch: Batch,
    *,
    isolates: bool,
) -> Settlement:
    """Auto-ack of a whole tuple; ``isolates``: if it raises, of as much of it as can be done."""
    out = Collector()
    out._batch = batch
    failed: list[FailedInput] = []

    def run(inputs: Sequence[Input]) -> BaseException | None:
        return _run_part(execute, inputs, watch, out)

    def fail(inputs: Sequence[Input], error: BaseException) -> None:
        if isinstance(error, RetryLater):
            failed.extend(_refused([given.input_id for given in inputs], error))
            return
        reason = _reason(error)
        failed.extend(FailedInput(given.input_id, reason) for given in inputs)
        if watch is not None:
            for given in inputs:
                watch.failed(given, out.report_error)

    inputs = _inputs(sources, batch)
    error = run(inputs)
    if isinstance(error, RetryLater):
        raise error
    # A connection that is lost is the fault of no record.
    is_poisoned = isolates and len(inputs) > 1 and not isinstance(error, OSError)
    if error is not None and is_poisoned:
        isolate(inputs, error, run, fail)
    elif error is not None:
        fail(inputs, error)
    return Settlement(out._emits, failed, watched=take(watch, out._emits, out._notes))


def _run_part(
    execute: ExecuteBatch, inputs: Sequence[Input], watch: BoltWatch | None, out: Collector
) -> BaseException | None:
    """Call it with ``inputs``; return what it raised, when nothing of it was emitted."""
    before = len(out._emits)
    out._anchors = [given.input_id for given in inputs]
    try:
        if watch is not None:
            for given in inputs:
                watch.begin(given)
        check_returned(execute(inputs, out))
        _check_sendable(out._emits, before)
        if watch is not None:
            _watch_batch(watch, inputs, out, before)
    except (FencedError, UnrunnableError):
        raise
    except _FAILS as error:
        del out._emits[before:]
        return error
    return None


def _watch_batch(watch: BoltWatch, inputs: Sequence[Input], out: Collector, before: int) -> None:
    """The emits, from ``before`` on, are of all inputs: they are told once, with the first."""
    for index, given in enumerate(inputs):
        watch.executed(given, out._emits, len(out._emits) if index else before)
    for given in inputs:
        watch.acked(given)


class _Manual:
    """One manual bolt's task."""

    def __init__(self, bolt: ManualBolt, sources: Sequence[str], watches: Watches | None) -> None:
        self._bolt = bolt
        self._sources = sources
        self._watches = watches
        self._out = ManualCollector()

    def __call__(self, batch: Batch) -> Settlement:
        out = self._out
        out._batch = batch
        watch = self._watches.mine if self._watches is not None else None
        inputs = _inputs(self._sources, batch)
        for index, given in enumerate(inputs):
            mark = out.mark()
            try:
                if watch is not None:
                    watch.begin(given)
                execute: Callable[..., Any] = self._bolt.execute
                check_returned(execute(given, out))
                _check_sendable(out._emits, mark[0])
                if watch is not None:
                    watch.executed(given, out._emits, mark[0])
                    _watch_settled(watch, out)
            except (FencedError, UnrunnableError):
                raise
            except RetryLater as refusal:
                out.take_back(mark)
                if not index:
                    raise  # nothing is settled yet: the whole tuple is refused
                for each in inputs[index:]:
                    out.refuse(each, _reason(refusal), refusal.after_s)
                break
            except _FAILS as error:
                out.take_back(mark)
                out.fail(given, _reason(error))
                if watch is not None:
                    watch.failed(given, out.report_error)
        return out.settlement(inputs, take(watch, out._emits, out._notes))


def _watch_settled(watch: BoltWatch, out: ManualCollector) -> None:
    """Tell what the call of ``execute`` acked and failed, in its order."""
    for given, is_ack in out.settled():
        if is_ack:
            watch.acked(given)
        else:
            watch.failed(given, out.report_error)


def _check_sendable(emits: Sequence[Emitted], start: int) -> None:
    """Raise for a value that could not go out: here its input fails, there the bolt would."""
    for index in range(start, len(emits)):
        value = emits[index].value
        size_of(value)
        _encode(value)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {problem_of(error)}"[:_REASON_CHARS_MAX]

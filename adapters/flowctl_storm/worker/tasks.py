"""Run a bolt of a topology on a worker: call the user's code, return a ``Settlement``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record
from flowctl.core.trees.settlement import FailedInput, Settlement
from flowctl.errors import (
    ConfigError,
    FencedError,
    QuotaUsedUpError,
    UnrunnableError,
    with_article,
)
from flowctl.failure.callables import check_arguments, check_plain, check_returned, refuse_async
from flowctl.failure.classify import Meaning, is_data_error, refusal_of
from flowctl.failure.job_fault import job_fault_of
from flowctl.failure.texts import error_text, refused_text
from flowctl.ports import Process
from flowctl.wire.values import carry_emits
from flowctl_storm.plan import END_CALL, TICK_CALL, source_of, task_of
from flowctl_storm.worker.inputs import Collector, Input, ManualCollector
from flowctl_storm.worker.watch import BoltWatch, Watches, WatchPlan, take

# -- Finds the inputs that a function of whole tuples can't process, in few calls --------------


# A function that processes some inputs; returns the exception, or None if they are done.
Run: TypeAlias = Callable[[Sequence[Input]], BaseException | None]
# A function that takes inputs that are not done, and the reason.
Fail: TypeAlias = Callable[[Sequence[Input], BaseException], None]


def isolate(inputs: Sequence[Input], error: BaseException, run: Run, fail: Fail) -> None:
    """Process good inputs by halving, after ``run(inputs)`` gave ``error``; ``fail`` the others.

    A bad input is found with one failing call per halving; each call that succeeds processes inputs
    that had to be processed anyway.  If nothing succeeds, as when a database is unavailable, the
    search stops after a few calls more than the halvings, and all remaining inputs fail; a refusal
    ends the search too.
    """
    failures_max = (len(inputs) - 1).bit_length() + 2
    failures = 1  # in a row; the first was of all inputs
    parts = [_Part(inputs, is_first=False, is_bad=True)]
    while parts:
        part = parts.pop()
        if part.is_bad and len(part.inputs) > 1:
            parts += part.halves()
            continue
        found = run(part.inputs)
        if found is None:
            failures = 0
            if part.is_first:  # the other half follows, and one of both must be to blame
                parts[-1] = parts[-1]._replace(is_bad=True)
            continue
        error = found
        failures += 1
        if refusal_of(error) is not None or failures > failures_max:
            parts.append(part)
            break
        if len(part.inputs) == 1:
            fail(part.inputs, error)
        else:
            parts += part.halves()
    for part in reversed(parts):
        fail(part.inputs, error)


class _Part(NamedTuple):
    """A part of the inputs; ``is_bad``: these are known to fail together."""

    inputs: Sequence[Input]
    is_first: bool  # of two halves
    is_bad: bool = False

    def halves(self) -> list[_Part]:
        """Return both halves, the first one last, as it is taken next."""
        middle = len(self.inputs) // 2
        return [_Part(self.inputs[middle:], False), _Part(self.inputs[:middle], True)]


# -- What runs on a worker for a bolt of a topology --------------------------------------------


# A function of one input: returning acks the input, raising fails it.
Execute: TypeAlias = Callable[[Input, Collector], Any]
# A function of all inputs of a tuple: they are acked or failed together.
ExecuteBatch: TypeAlias = Callable[[Sequence[Input], Collector], Any]

_NO_WATCH: Final = WatchPlan()
_CALLS: Final = (TICK_CALL, END_CALL)
# Exceptions that end the bolt or the run.  Any other one fails an input, including SystemExit and
# the panics of a library in Rust.
_ENDS: Final = (FencedError, QuotaUsedUpError, UnrunnableError, KeyboardInterrupt)


@runtime_checkable
class ManualBolt(Protocol):
    """A bolt that has its own state, and acks, fails and holds its inputs itself.

    Give the class, or a function that makes an instance: each task makes its own, once per
    connection.  Inputs that the last instance held are given to the next.

    It may also have ``on_end(out)``, called when all input of its stage is done, and
    ``on_tick(out)``, called every ``tick_s`` seconds, for what it collects.  Both are called in the
    thread of ``execute``, between its calls.
    """

    def execute(self, given: Input, out: ManualCollector) -> Any:
        """Process one input; the return value is ignored."""


class Batched:
    """Marks a function that takes whole tuples: ``topology.bolt("store", Batched(store))``.

    An emit is anchored to all inputs of the tuple, unless it names its ``anchors``; for a sink that
    writes many rows at once, or for work that is cheaper in batches.
    """

    def __init__(self, execute: ExecuteBatch) -> None:
        self.execute = execute
        self.__wrapped__ = execute  # as in functools: tells whose module has to travel


class StageCode:
    """A stage's code as it travels; :meth:`for_connection` makes what a bolt calls.

    With ``isolates`` a :class:`Batched` function that raised is called again with parts of the
    tuple, until the bad inputs are known (``worker/tasks.py``).  Pickled by Spark's own
    cloudpickle, so code and hooks may be a job file's own.
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
        self.sources: list[str] = list(sources)
        self.watch = watch
        self.is_manual: bool = is_manual(code)
        self.__wrapped__ = code  # as in functools: tells whose module has to travel

    @property
    def companions(self) -> Sequence[Any]:
        """The user's other code that travels with it, perhaps from other modules."""
        return self.watch.hooks

    def __call__(self, batch: Batch) -> Settlement:
        raise AssertionError("a bolt calls what for_connection returns")

    def for_connection(self, bolt: str) -> Process:
        """Return the process of one bolt, with its own state."""
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


def has_call(code: Any, name: str) -> bool:
    """Whether ``code`` makes manual-ack bolts with a method ``name``."""
    inner = code.func if isinstance(code, functools.partial) else code
    return is_manual(code) and hasattr(inner, name)


def check_ticks(stage: str, code: Any, tick_s: float | None) -> None:
    """Raise :class:`ConfigError` unless ``on_tick`` and ``tick_s`` come together."""
    has_tick = has_call(code, "on_tick")
    if tick_s is None and has_tick:
        raise ConfigError(stage, "has on_tick, but no interval.", remedy="Give tick_s=1.0 or so.")
    if tick_s is None:
        return
    if not has_tick:
        raise ConfigError(
            stage,
            "tick_s is given, but there is no on_tick to call.",
            remedy="Give the bolt, a class with execute, a method on_tick(self, out).",
        )
    if not 0 < tick_s < math.inf:
        raise ConfigError(
            stage, f"tick_s must be greater than 0, got {tick_s!r}.", remedy="Give seconds."
        )


def check_code(stage: str, code: Any, slots: int) -> None:
    """Raise :class:`ConfigError` for code that can't be a bolt."""
    if not isinstance(code, Batched) and not callable(code):
        raise ConfigError(
            stage,
            f"{with_article(type(code).__name__)} can't be a bolt.",
            remedy="Give a function of an input and a collector, Batched(f), or a class with"
            " execute.",
        )
    if is_manual(code):
        made = code.func if isinstance(code, functools.partial) else code
        refuse_async(made, ("execute", "on_tick", "on_end"), stage)
    else:
        call = code.execute if isinstance(code, Batched) else code
        check_plain(call, stage)
        check_arguments(call, stage, ("an input", "a collector"))
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
    """Process inputs one by one with auto-ack: one that raises fails alone, without its emits.

    After a refusal the remaining inputs are not tried, as the target has no room.
    """
    out = Collector()
    out.batch = batch
    emits = out.emits
    failed: list[FailedInput] = []
    for index, record in enumerate(batch):
        given = _input(sources, record)
        out.anchors = [given.input_id]
        before = len(emits)
        try:
            if watch is not None:
                watch.begin(given)
            check_returned(execute(given, out))
            carry_emits(emits, before)  # here only its input fails, when sending the bolt would
            if watch is not None:
                watch.executed(given, emits, before)
                watch.acked(given)
        except _ENDS:
            raise
        except BaseException as error:
            del emits[before:]
            refusal = refusal_of(error)
            if refusal is not None:
                if not index:
                    raise  # nothing is settled so far: the whole tuple is refused
                failed += _refused([each.position for each in batch[index:]], error, refusal)
                break
            failed.append(_failed(given, error))
            if watch is not None:
                watch.failed(given, out.report_error)
    return Settlement(emits, failed, watched=take(watch, emits, out.notes))


def _refused(input_ids: Iterable[Any], error: BaseException, refusal: Meaning) -> list[FailedInput]:
    reason = refused_text(error, refusal.said)
    return [FailedInput(input_id, reason, True, refusal.after_s) for input_id in input_ids]


def _run_batch(
    execute: ExecuteBatch,
    sources: Sequence[str],
    watch: BoltWatch | None,
    batch: Batch,
    *,
    isolates: bool,
) -> Settlement:
    """Process a whole tuple with auto-ack; ``isolates``: after an error, its good parts."""
    out = Collector()
    out.batch = batch
    failed: list[FailedInput] = []

    def run(inputs: Sequence[Input]) -> BaseException | None:
        return _run_part(execute, inputs, watch, out)

    def fail(inputs: Sequence[Input], error: BaseException) -> None:
        refusal = refusal_of(error)
        if refusal is not None:
            failed.extend(_refused([given.input_id for given in inputs], error, refusal))
            return
        failed.extend(_failed(given, error) for given in inputs)
        if watch is not None:
            for given in inputs:
                watch.failed(given, out.report_error)

    inputs = _inputs(sources, batch)
    error = run(inputs)
    if error is not None and refusal_of(error) is not None:
        raise error
    # A full disk is no record's fault.
    is_poisoned = isolates and len(inputs) > 1 and not isinstance(error, OSError)
    if error is not None and is_poisoned:
        isolate(inputs, error, run, fail)
    elif error is not None:
        fail(inputs, error)
    return Settlement(out.emits, failed, watched=take(watch, out.emits, out.notes))


def _run_part(
    execute: ExecuteBatch, inputs: Sequence[Input], watch: BoltWatch | None, out: Collector
) -> BaseException | None:
    """Call ``execute`` with ``inputs``; return its exception, after withdrawing its emits."""
    before = len(out.emits)
    out.anchors = [given.input_id for given in inputs]
    try:
        if watch is not None:
            for given in inputs:
                watch.begin(given)
        check_returned(execute(inputs, out))
        carry_emits(out.emits, before)
        if watch is not None:
            _watch_batch(watch, inputs, out, before)
    except _ENDS:
        raise
    except BaseException as error:
        del out.emits[before:]
        if (ending := job_fault_of(error)) is not None:  # parts of them would fail too
            raise ending from error
        return error
    return None


def _watch_batch(watch: BoltWatch, inputs: Sequence[Input], out: Collector, before: int) -> None:
    """Watch emits from ``before`` on: they result from all inputs but are sent once."""
    for index, given in enumerate(inputs):
        watch.executed(given, out.emits, len(out.emits) if index else before)
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
        self._out.batch = batch
        watch = self._watches.mine if self._watches is not None else None
        kind = batch.span.partition
        return self._call(kind, watch) if kind in _CALLS else self._execute(batch, watch)

    def _execute(self, batch: Batch, watch: BoltWatch | None) -> Settlement:
        out = self._out
        inputs = _inputs(self._sources, batch)
        for index, given in enumerate(inputs):
            mark = out.mark()
            try:
                if watch is not None:
                    watch.begin(given)
                execute: Callable[..., Any] = self._bolt.execute
                check_returned(execute(given, out))
                carry_emits(out.emits, mark[0])
                if watch is not None:
                    watch.executed(given, out.emits, mark[0])
                    _watch_settled(watch, out)
            except _ENDS:
                raise
            except BaseException as error:
                out.take_back(mark)
                refusal = refusal_of(error)
                if refusal is not None:
                    if not index:
                        raise  # nothing is settled so far: the whole tuple is refused
                    for each in inputs[index:]:
                        out.refuse(each, refused_text(error, refusal.said), refusal.after_s)
                    break
                out.note_failed(_failed(given, error), given)
                if watch is not None:
                    watch.failed(given, out.report_error)
        return out.settlement(inputs, take(watch, out.emits, out.notes))

    def _call(self, kind: str, watch: BoltWatch | None) -> Settlement:
        """Call ``on_tick`` or ``on_end``; if the call raises, its reports are withdrawn.

        A tick that raised is reported, and the next one comes as scheduled; a failed end is
        reported to the hub, which repeats the call.
        """
        out = self._out
        mark = out.mark()
        bolt: Any = self._bolt
        try:
            check_returned(bolt.on_end(out) if kind == END_CALL else bolt.on_tick(out))
            carry_emits(out.emits, mark[0])
            if watch is not None:
                watch.called(out.emits, mark[0])
                _watch_settled(watch, out)
        except _ENDS:
            raise
        except BaseException as error:
            out.take_back(mark)
            if kind == END_CALL:
                raise
            if (ending := job_fault_of(error)) is not None:
                raise ending from error
            if refusal_of(error) is None:
                out.report_error(error)
        return out.settlement((), take(watch, out.emits, out.notes))


def _watch_settled(watch: BoltWatch, out: ManualCollector) -> None:
    """Report the acks and fails of a call of ``execute``, in order."""
    for given, is_ack in out.settled():
        if is_ack:
            watch.acked(given)
        else:
            watch.failed(given, out.report_error)


def _failed(given: Input, error: BaseException) -> FailedInput:
    if (ending := job_fault_of(error)) is not None:
        raise ending from error
    return FailedInput(given.input_id, error_text(error), is_data_error=is_data_error(error))

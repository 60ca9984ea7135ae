"""What runs on a worker for a bolt of a topology: users' code around, ``Settlement`` out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from flowctl.core.buffer import size_of
from flowctl.core.records import Batch, Record
from flowctl.core.settlement import Emitted, FailedInput, Settlement
from flowctl.errors import ConfigError, FencedError, without_secrets
from flowctl.ports import Process
from flowctl.topology.inputs import Collector, Input, ManualCollector
from flowctl.topology.plan import source_of

# Called with each input; returning is its ack, raising its fail.
Execute: TypeAlias = Callable[[Input, Collector], Any]
# Called with all inputs of a tuple: they are acked, or failed, together.
ExecuteBatch: TypeAlias = Callable[[Sequence[Input], Collector], Any]

_REASON_CHARS_MAX: Final = 1_000  # an exception can quote a whole record
_encode = msgspec.msgpack.Encoder().encode


@runtime_checkable
class ManualBolt(Protocol):
    """A bolt with a state of its own that acks, fails and holds its inputs itself.

    Give the class, or a function that makes one: each task makes its own, anew at each connection.
    What the last one held is given to it again.
    """

    def execute(self, given: Input, out: ManualCollector) -> None:
        """Work on one input."""


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

    Pickled by Spark's own cloudpickle, so the code may be a job file's own.
    """

    def __init__(self, code: Any, sources: Sequence[str]) -> None:
        self.code = code
        self.sources = list(sources)
        self.is_manual = is_manual(code)
        self.__wrapped__ = code  # as functools does: whose module has to travel

    def __call__(self, batch: Batch) -> Settlement:
        raise AssertionError("a bolt calls what for_connection returns")

    def for_connection(self, bolt: str) -> Process:
        """Return the process of one bolt, with a state of its own."""
        del bolt
        if self.is_manual:
            return _Manual(self.code(), self.sources)
        if isinstance(self.code, Batched):
            return functools.partial(_run_batch, self.code.execute, self.sources)
        return functools.partial(_run_each, self.code, self.sources)


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
    if is_manual(code) and slots > 1:
        raise ConfigError(
            stage, "a manual bolt has one thread.", remedy="Raise count instead of slots."
        )


def _inputs(sources: Sequence[str], batch: Batch) -> list[Input]:
    return [_input(sources, record) for record in batch]


def _input(sources: Sequence[str], record: Record) -> Input:
    input_id: Any = record.position
    return Input(input_id, record.value, sources[source_of(input_id)])


def _run_each(execute: Execute, sources: Sequence[str], batch: Batch) -> Settlement:
    """Auto-ack: what raises fails alone, and has emitted nothing."""
    out = Collector()
    out._batch = batch
    emits = out._emits
    failed: list[FailedInput] = []
    for record in batch:
        given = _input(sources, record)
        out._anchors = [given.input_id]
        before = len(emits)
        try:
            execute(given, out)
            _check_sendable(emits, before)
        except FencedError:
            raise
        except Exception as error:
            del emits[before:]
            failed.append(FailedInput(given.input_id, _reason(error)))
    return Settlement(emits, failed)


def _run_batch(execute: ExecuteBatch, sources: Sequence[str], batch: Batch) -> Settlement:
    """Auto-ack of a whole tuple."""
    inputs = _inputs(sources, batch)
    out = Collector()
    out._batch = batch
    out._anchors = [given.input_id for given in inputs]
    try:
        execute(inputs, out)
        _check_sendable(out._emits, 0)
    except FencedError:
        raise
    except Exception as error:
        reason = _reason(error)
        return Settlement(failed=[FailedInput(i, reason) for i in out._anchors])
    return Settlement(out._emits)


class _Manual:
    """One manual bolt's task."""

    def __init__(self, bolt: ManualBolt, sources: Sequence[str]) -> None:
        self._bolt = bolt
        self._sources = sources
        self._out = ManualCollector()

    def __call__(self, batch: Batch) -> Settlement:
        out = self._out
        out._batch = batch
        inputs = _inputs(self._sources, batch)
        for given in inputs:
            mark = out.mark()
            try:
                self._bolt.execute(given, out)
                _check_sendable(out._emits, mark[0])
            except FencedError:
                raise
            except Exception as error:
                out.take_back(mark)
                out.fail(given, _reason(error))
        return out.settlement(inputs)


def _check_sendable(emits: Sequence[Emitted], start: int) -> None:
    """Raise for a value that could not go out: here its input fails, there the bolt would."""
    for index in range(start, len(emits)):
        value = emits[index].value
        size_of(value)
        _encode(value)


def _reason(error: Exception) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # user code again: an exception whose __str__ raises
        text = type(error).__name__
    return without_secrets(text).encode("utf-8", "replace").decode()[:_REASON_CHARS_MAX]

"""Checks of what can be run, and what only seems so: coroutines and generators that are never
driven.

Calling an ``async def`` or a generator function runs none of its body.  A ``process`` like that
would have every record acked and none processed, so it is refused by name: before the first tuple
if that can be seen, else when the first call returns.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from flowctl.errors import ConfigError, UnrunnableError, with_article

_WRAPPERS_MAX: Final = 50  # a chain of wrappers that refers to itself must end somewhere
_LOOP_OVER: Final = "Do the work in a loop and return, without yield."
_PLAIN: Final = "Write it as a plain def."
_ARGUMENTS: Final = {1: "one argument", 2: "two arguments"}
_COLLECTIONS: Final = frozenset({list, tuple, set, frozenset, dict})
_FINISHED: Final = frozenset({type(None), bool, int, float, str, bytes})
_LAZY: Final = (map, filter, zip, enumerate)


def check_process(process: Any, field: str = "process", *, given: str = "the batch") -> None:
    """Raise :class:`ConfigError` if calling ``process`` could never process anything.

    ``async def`` is allowed here: see :func:`is_async`.  ``given``: its one argument in words, for
    the error.
    """
    if not callable(process):
        raise ConfigError(
            field,
            f"{_name_of(process)} can't be called.",
            remedy=f"Give a function of one argument, {given}.",
        )
    if (kind := _generator_kind(process)) is not None:
        raise ConfigError(
            field,
            f"{_name_of(process)} is {kind}: calling it runs none of its body.",
            remedy=_LOOP_OVER,
        )
    check_arguments(process, field, (given,))


def check_plain(call: Any, field: str) -> None:
    """Raise :class:`ConfigError` for an ``async def`` or a generator if a plain call is made."""
    kind = "async" if _is_coroutine_function(call) else _generator_kind(call)
    if kind is not None:
        raise ConfigError(
            field,
            f"{_name_of(call)} is {kind}, and nothing would await or iterate it.",
            remedy=_PLAIN,
        )


def refuse_async(part: object, methods: Iterable[str], field: str) -> None:
    """Raise :class:`ConfigError` if one of ``methods`` of ``part`` is async or a generator.

    Methods that ``part`` does not have are ignored.
    """
    for name in methods:
        # Look at the class, not the instance: a property must not run, and a mock has every name.
        found = inspect.getattr_static(part, name, None)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if found is not None and not isinstance(found, property):
            check_plain(found, f"{field}.{name}")


def is_async(process: Any) -> bool:
    """Whether ``process`` is an ``async def``: a function, method, partial, or ``__call__``.

    A plain decorator around one is not: it may be what runs it (``asyncio.run``).  If it returns
    the coroutine, :func:`check_returned` refuses that.
    """
    return _is_coroutine_function(process)


def check_returned(made: Any) -> None:
    """Raise :class:`UnrunnableError` if ``made`` is work that would never run.

    A coroutine is closed first so that Python does not also warn that it was never awaited.
    """
    # Nearly always None: check that first, as this runs once per tuple.
    if made is None or (kind := _unfinished(made)) is None:
        return
    if inspect.iscoroutine(made) or inspect.isgenerator(made):
        with suppress(Exception):  # never started; but a subclass may raise
            made.close()
    what, remedy = kind
    raise UnrunnableError("process", f"returned {what}, so its work is not done.", remedy=remedy)


def _unfinished(made: Any) -> tuple[str, str] | None:
    """Return what ``made`` is and what to do about it, or None for an ordinary result."""
    if inspect.iscoroutine(made):
        name = getattr(made, "__qualname__", "?")
        return (
            f"a coroutine ({name})",
            f"Give the `async def` itself as process, or await {name} in one; a decorator around"
            " it has to be async too.",
        )
    if inspect.isasyncgen(made) or inspect.isgenerator(made):
        kind = "a generator" if inspect.isgenerator(made) else "an async generator"
        return f"{kind} ({getattr(made, '__qualname__', '?')})", _LOOP_OVER
    if type(made) in _COLLECTIONS and made:
        return _unfinished_of(made.values() if type(made) is dict else made, type(made))
    if isinstance(made, _LAZY) or type(made).__module__ == "itertools":
        kind = with_article(_name_with_module(type(made)))
        return f"{kind} object, which is lazy", "Write a for loop."
    if inspect.isawaitable(made):
        return (
            f"an awaitable ({type(made).__name__})",
            "Write process as `async def` and await it there.",
        )
    # if the module is not loaded, it can't be one
    futures = sys.modules.get("concurrent.futures._base")
    if futures is not None and isinstance(made, futures.Future):
        return "a Future", "Wait for its result() in process."
    pools = sys.modules.get("multiprocessing.pool")
    if pools is not None and isinstance(made, pools.ApplyResult | pools.IMapIterator):
        kind = with_article(type(made).__name__)
        return kind, "Wait for its result in process: get(), or a for loop."
    return None


def _unfinished_of(parts: Collection[Any], kind: type) -> tuple[str, str] | None:
    """Like :func:`_unfinished`, for a collection: its first part of each type stands for the
    others.

    The first part alone is not enough: ``[send(r) if wanted(r) else None for r in batch]``.
    """
    one = _first_unfinished(parts)
    if one is None:
        return None
    part, (what, remedy) = one
    for other in parts:
        if inspect.iscoroutine(other):
            other.close()
    if inspect.isawaitable(part):
        remedy = "Await all of them: `await asyncio.gather(*them)` in an `async def process`."
    is_first = part is next(iter(parts))
    return f"a {kind.__name__} of which {'the first' if is_first else 'one'} is {what}", remedy


def _first_unfinished(parts: Collection[Any]) -> tuple[Any, tuple[str, str]] | None:
    """Return the first unfinished part, and what it is; most often only types are looked at."""
    kinds = set(map(type, parts)) - _FINISHED
    for part in parts if kinds else ():
        if type(part) in kinds:
            kinds.discard(type(part))
            found = _unfinished(part)
            if found is not None:
                return part, found
    return None


def _name_with_module(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_coroutine_function(call: Any) -> bool:
    return _any_form(call, inspect.iscoroutinefunction)


def _generator_kind(call: Any) -> str | None:
    if _any_form(call, inspect.isasyncgenfunction):
        return "an async generator function"
    if _any_form(call, inspect.isgeneratorfunction):
        return "a generator function"
    return None


def _any_form(call: Any, is_kind: Callable[[Any], bool]) -> bool:
    """Whether ``is_kind`` holds for a function, method, partial, or the ``__call__`` of an
    object.
    """
    call = _without_partial(call)
    if is_kind(call):
        return True
    if inspect.isclass(call) or inspect.isroutine(call):
        return False
    own_call = inspect.getattr_static(type(call), "__call__", None)
    return own_call is not None and is_kind(_without_partial(own_call))


def _without_partial(call: Any) -> Any:
    for _ in range(_WRAPPERS_MAX):
        if isinstance(call, functools.partial | functools.partialmethod):
            call = call.func
        else:
            break
    return call


def check_arguments(process: Any, field: str, given: Sequence[str]) -> None:
    """Raise :class:`ConfigError` unless ``process`` can be called with the ``given`` arguments."""
    try:
        # Not the signature of the function that a decorator wraps: the decorator may fill in
        # arguments.
        signature = inspect.signature(process, follow_wrapped=False)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise ConfigError(
            field,
            f"{_name_of(process)}{signature} can't be called with {' and '.join(given)}: {error}.",
            remedy=f"Let it take {_ARGUMENTS[len(given)]}, {' and '.join(given)}.",
        ) from None


def _name_of(call: Any) -> str:
    call = _without_partial(call)
    name = getattr(call, "__qualname__", None)
    return name if isinstance(name, str) else type(call).__qualname__

"""Arguments of public functions, checked against the annotations that the docs show.

An adapter that is given a number for a name would fail far from the mistake: in a worker, in a
thread, in the middle of a run.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from flowctl.errors import ConfigError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_WORDS: Final[dict[Any, str]] = {
    bool: "True or False",
    float: "a number",
    int: "a whole number",
    NoneType: "None",
    os.PathLike: "a path",
    str: "text",
}


def check_arguments(*names: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a public function: a call raises :class:`ConfigError` if an argument in ``names``
    has a wrong type.

    The annotation decides; types that it names only for the type checker are not checked.  A whole
    number is a number, True is neither.
    """

    def decorate(fn: Callable[_P, _T]) -> Callable[_P, _T]:
        signature = inspect.signature(fn)
        assert set(names) <= set(signature.parameters), "a name that is no argument"
        kinds = functools.cache(lambda: {name: _kind_of(fn, name) for name in names})

        @functools.wraps(fn)
        def checking(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return fn(*args, **kwargs)  # Python says which argument is missing or unknown
            for name, kind in kinds().items():
                if name in given and not _fits(given[name], kind):
                    raise ConfigError(
                        name,
                        f"is of type {type(given[name]).__name__}.",
                        remedy=f"Give {_said(kind)}.",
                    )
            try:
                return fn(*args, **kwargs)
            except ConfigError as error:
                # The mistake is in the caller's line; our own frames would only hide it.
                raise error.with_traceback(None) from error.__cause__

        return checking

    return decorate


def check_numbers(**given: Any) -> None:
    """Raise :class:`ConfigError` for a number that is not finite and greater than 0."""
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not isfinite(value) or value <= 0:
            raise ConfigError(
                name,
                f"must be finite and greater than 0, got {value!r}.",
                remedy="Give a number, or leave it out.",
            )


def check_whole(**given: Any) -> None:
    """Raise :class:`ConfigError` for a number that is not a whole number of 1 or more."""
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                name, f"{value!r} is not a count.", remedy="Give a whole number, 1 or more."
            )


def _kind_of(fn: Callable[..., Any], name: str) -> Any:
    annotation = fn.__annotations__[name]
    try:
        return eval(annotation, fn.__globals__) if isinstance(annotation, str) else annotation
    except NameError:
        return Any


def _fits(value: object, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    base = origin or (NoneType if kind is None else kind)
    if not isinstance(base, type) or getattr(base, "_is_protocol", False):
        return True
    if issubclass(base, Iterable) and not issubclass(base, str | bytes | Mapping):
        return _fits_each(value, inner)
    return isinstance(value, base)


def _fits_each(values: object, inner: tuple[Any, ...]) -> bool:
    """Whether each value fits; any iterable will do for a sequence, and none is taken from an
    iterator.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        return False
    return not isinstance(values, list | tuple) or all(_fits(v, k) for v in values for k in inner)


def _said(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_said(each) for each in inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Callable:
        return "a function"
    base = origin or kind
    if isinstance(base, type) and issubclass(base, Mapping):
        return "a dictionary"
    if inner and isinstance(base, type) and issubclass(base, Iterable):
        return f"a list of {_said(inner[0])}"
    return _WORDS.get(base, getattr(base, "__name__", str(base)))

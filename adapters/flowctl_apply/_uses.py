"""Find what a function uses, as far as visible: its code, and the values and functions it names.

All results of a job must be of one function.  Functions are distinguished by the source text of the
project's own code (not of packages), and by plain values: numbers, texts, dates, and containers of
them.  Of other objects only the type counts.  A value that the code itself changes, such as a cache
or a list that it appends to, doesn't count.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import inspect
import pathlib
import re
import sys
import textwrap
import types
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from flowctl.bolts.captured import codes_in, is_installed, parts_of, variables_of

_Known = dict[int, tuple[object, bytes]]
_DIGEST_CHARS: Final = 16
_DEPTH_MAX: Final = 50  # of nested containers: deeper ones count by their type
# File names that all executed texts share, so Python 3.13 may keep another text's source under
# them.
_SHARED_NAMES: Final = ("<string>", "<stdin>")
_PLAIN: Final = (
    *(int, float, complex, str, type(None), range, pathlib.PurePath, decimal.Decimal, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone, re.Pattern),
)
_CHANGING: Final = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "popleft"}
    | {"remove", "discard", "clear", "appendleft", "sort", "reverse", "put", "put_nowait"}
)


def fingerprint(fn: Callable[..., Any]) -> str:
    """Return a fingerprint of the code of ``fn``, without the functions that it calls."""
    while hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    if not inspect.isroutine(fn) and not inspect.isclass(fn):
        fn = type(fn)
    code = getattr(fn, "__code__", None)
    text = _source(fn)
    if text is None:
        text = repr(fn.__qualname__) if code is None else _code_text(code)
    return _digest(text.encode())


def uses_of(fn: Callable[..., Any]) -> dict[str, str]:
    """Return a digest of each thing that ``fn`` uses, by its name in the source."""
    uses = _Uses(getattr(_function_of(fn), "__module__", ""))
    uses.add(fn)
    return uses.found


class _Uses:
    """Walks from a function to everything that it names.  For one thread."""

    def __init__(self, module: str) -> None:
        self.found: dict[str, str] = {}
        self._module = module
        self._seen: set[object] = set()

    def add(self, fn: Any) -> None:
        """Note the values that ``fn`` carries, and the code of the functions that it names."""
        changed = _changed_in(_class_or_function(fn))
        for label, value in parts_of(fn).items():
            if label.startswith("variable") or label in changed:
                continue  # variables: below
            self._note(label, value)
        while isinstance(fn, functools.partial):
            fn = fn.func
        for part in {id(one): one for one in (fn, getattr(fn, "__wrapped__", None))}.values():
            function = _function_of(part)
            if isinstance(function, types.FunctionType):
                self._function(function)
        owner = getattr(fn, "__self__", fn)
        if not isinstance(owner, types.FunctionType | type | types.ModuleType):
            self._class(type(owner))

    def _function(self, function: types.FunctionType) -> None:
        if function.__code__ in self._seen:
            return
        self._seen.add(function.__code__)
        for name, value in _defaults(function).items():
            self._note(self._label("default", name, function), value)
        changed, variables = _changed_in(function), variables_of(function)
        attributes = {name for code in codes_in(function.__code__) for name in code.co_names}
        for name, value in variables.items():
            if f"variable {name!r}" in changed:
                continue
            if not isinstance(value, types.ModuleType):
                self._note(self._label("variable", name, function), value)
            elif not is_installed(value):
                for inner in sorted(attributes & vars(value).keys()):
                    self._note(f"variable '{name}.{inner}'", vars(value)[inner])

    def _label(self, what: str, name: str, named_in: types.FunctionType | type) -> str:
        module = named_in.__module__
        return f"{what} {name if module == self._module else f'{module}.{name}'!r}"

    def _note(self, label: str, value: Any) -> None:
        if inspect.isfunction(value) and _is_ours(value):
            self.found[label.replace("variable", "function")] = fingerprint(value)
            self._function(value)
        elif inspect.isclass(value):
            if _is_ours(value) and not issubclass(value, enum.Enum):
                self.found[label.replace("variable", "class")] = fingerprint(value)
                self._class(value)
        elif not inspect.isroutine(value):
            self.found[label] = _digest_of(value)
            kind = type(value)
            if _is_ours(kind) and not isinstance(value, enum.Enum):
                self._note(self._label("variable", kind.__qualname__, kind), kind)

    def _class(self, kind: type) -> None:
        if kind in self._seen or not _is_ours(kind):
            return
        self._seen.add(kind)
        for name, given in vars(kind).items():
            value = getattr(given, "__func__", given)  # a static or class method
            if isinstance(value, types.FunctionType):
                self._function(value)
            elif not name.startswith("__") and isinstance(value, (*_PLAIN, list, tuple, dict)):
                self.found[f"attribute '{kind.__qualname__}.{name}'"] = _digest_of(value)


def _function_of(fn: Any) -> Any:
    """Return the function that runs when ``fn`` is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    return fn if inspect.isroutine(fn) else inspect.getattr_static(type(fn), "__call__", fn)


def _class_or_function(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__self__", fn)
    return fn if inspect.isroutine(fn) or inspect.isclass(fn) else type(fn)


def _is_ours(thing: Any) -> bool:
    """Whether ``thing`` is defined in the user's project, not in a package."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return module is not None and not is_installed(module)


def _defaults(function: types.FunctionType) -> Mapping[str, Any]:
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    last = dict(zip(names[len(names) - len(given) :], given, strict=True))
    return last | (function.__kwdefaults__ or {})


@functools.lru_cache(maxsize=256)
def _changed_in(thing: Any) -> set[str]:
    """Return labels of the variables and attributes that the code of ``thing`` itself changes."""
    text = _source(thing)
    with suppress(SyntaxError, ValueError):
        return _changed_by(ast.parse(text)) if text is not None else set()
    # The source of a lambda inside an expression doesn't parse alone.
    code = getattr(thing, "__code__", None)
    names = {name for one in codes_in(code) for name in one.co_names} if code else set()
    if not names & _CHANGING:
        return set()
    named = variables_of(thing)
    return {f"variable {n!r}" for n, v in named.items() if isinstance(v, list | dict | set)}


def _changed_by(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= {f"variable {name!r}" for name in node.names}
            continue
        changed: ast.AST | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = node.value
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = node.func.value if node.func.attr in _CHANGING else None
        if isinstance(changed, ast.Name):
            found.add(f"variable {changed.id!r}")
        elif isinstance(changed, ast.Attribute) and not _is_made(tree, node):
            found.add(f"attribute {changed.attr!r}")
    return found


def _is_made(tree: ast.AST, node: ast.AST) -> bool:
    """Whether ``node`` is in a constructor, which sets attributes to the values it was given."""
    return any(
        isinstance(one, ast.FunctionDef) and one.name == "__init__" and node in ast.walk(one)
        for one in ast.walk(tree)
    )


def _source(thing: Any) -> str | None:
    code = getattr(thing, "__code__", None)
    if code is not None and code.co_filename in _SHARED_NAMES:
        return None
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):  # typed at a prompt, or not Python
        return None


def _code_text(code: Any) -> str:
    inner = [_code_text(one) if hasattr(one, "co_code") else repr(one) for one in code.co_consts]
    return repr((code.co_code, code.co_names, inner))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


def _digest_of(value: Any) -> str:
    try:
        return _digest(_text(value, {}, 0))
    except Exception:  # the user's code raised, such as a property: then the type must do
        return _digest(type(value).__qualname__.encode())


def _text(value: Any, known: _Known, depth: int) -> bytes:
    """Return bytes that are the same for equal values in each process; for objects, their type.

    ``known`` has the objects met before by identity, since objects may refer to each other.  It
    keeps them alive, so that no other object gets the same identity.
    """
    kind = type(value)
    if kind is str:  # the bulk of a large table
        text: str = value
        return b"str:" + text.encode("utf-8", "surrogatepass")
    if kind in (int, float, bool):
        return f"{kind.__name__}:{value!r}".encode()
    name = f"{kind.__module__}.{kind.__qualname__}:".encode()
    if isinstance(value, enum.Enum):
        return name + value.name.encode()
    if isinstance(value, bytes | bytearray):
        return name + _digest(bytes(value)).encode()
    if isinstance(value, _PLAIN):
        return name + repr(value).encode("utf-8", "surrogatepass")
    if id(value) not in known:
        known[id(value)] = value, name  # the text for a circular reference, or at too deep a level
        if depth < _DEPTH_MAX and (inner := _inner(value, known, depth + 1)) is not None:
            whole = b"".join(b"%d:%b" % (len(one), one) for one in inner)
            known[id(value)] = value, name + _digest(whole).encode()
    return known[id(value)][1]


def _inner(value: Any, known: _Known, depth: int) -> list[bytes] | None:
    """Return the texts of the values inside ``value``; None if these don't count."""
    if isinstance(value, list | tuple):
        return [_text(one, known, depth) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(_text(one, known, depth) for one in value)
    held = value if isinstance(value, dict | types.MappingProxyType) else _fields(value)
    if held is None:
        return None
    pairs = held.items()
    return sorted(_text(key, known, depth) + _text(one, known, depth) for key, one in pairs)


def _fields(value: Any) -> Mapping[str, Any] | None:
    """Return an object's fields, if its class is the project's own or merely holds fields."""
    held = getattr(value, "__dict__", None)
    kind: Any = type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        held = {name: getattr(value, name, None) for name in names}
    elif held is None or not (
        isinstance(value, types.SimpleNamespace) or kind.__name__ == "Namespace" or _is_ours(kind)
    ):
        return None
    changed = _changed_in(kind)
    return {name: one for name, one in held.items() if f"attribute {name!r}" not in changed}

"""Pickle ``process`` for the workers once, in the driver, where an error can be explained."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pyspark import cloudpickle as _cloudpickle

from flowctl.bolts.captured import is_installed, parts_of
from flowctl.errors import ConfigError

cloudpickle: Any = _cloudpickle  # untyped
_DEPTH_MAX = 3  # levels named in an error: a function, one it calls, its object
_REGISTRY = threading.Lock()  # cloudpickle's list of modules to pickle by value is global


def ship(process: Any, *, field: str | None = None) -> bytes:
    """Return ``process`` pickled by Spark's own cloudpickle; ``field`` names it in errors.

    A function of a job's file can't be imported on workers, so its module is pickled by value, and
    so are the modules of its ``companions`` (hooks).  If that is impossible (a lock in the module),
    it is pickled by name, which works if the module is installed on the workers.  Raises
    :class:`ConfigError` that names the object that can't be pickled.
    """
    travellers = (process, *getattr(process, "companions", ()))
    modules = {module for each in travellers if (module := _local_module(each)) is not None}
    try:
        with _by_value(modules):
            return _dumps(process)
    except Exception as error:
        if modules and (by_name := _dumps_or_none(process)) is not None:
            return by_name
        with _by_value(modules):
            problem = _problem(process, error)
        known_as = field or getattr(process, "known_as", "process")
        raise ConfigError(str(known_as), problem, remedy=_REMEDY) from error


_REMEDY = (
    "Create it inside the function or in a function that it calls: it runs on the worker. "
    "Connections, locks, files and the Spark session can't travel."
)


@contextmanager
def _by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    with _REGISTRY:
        known = cloudpickle.list_registry_pickle_by_value()
        ours = [module for module in modules if module.__name__ not in known]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)


def _dumps(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value)
    return data


def _dumps_or_none(value: Any) -> bytes | None:
    try:
        return _dumps(value)
    except Exception:
        return None


def _local_module(process: Any) -> ModuleType | None:
    """Return the module of a process or a companion if workers may not have it."""
    inner = _unwrapped(process)
    name = getattr(inner, "__module__", None) or type(inner).__module__
    module = sys.modules.get(name)
    if module is None or name == "__main__" or is_installed(module):
        return None  # cloudpickle pickles __main__ by value anyway
    return module


def _unwrapped(process: Any) -> Any:
    while True:
        if isinstance(process, functools.partial):
            process = process.func
        elif hasattr(process, "__wrapped__"):  # wrappers that only carry a job's own code
            process = process.__wrapped__
        else:
            return getattr(process, "__func__", process)


def _problem(process: Any, error: Exception) -> str:
    name = getattr(_unwrapped(process), "__qualname__", type(process).__qualname__)
    why = str(error).rstrip(".")
    if offender := _offender(process):
        return f"{name} can't be sent to the workers because of {offender}: {why}."
    return f"{name} can't be sent to the workers: {why}."


def _offender(carrier: Any, depth: int = 0) -> str:
    """Return the path to the part of ``carrier`` that can't be pickled; "" if none is found."""
    for label, value in parts_of(carrier).items():
        if _dumps_or_none(value) is None:
            found = f"{label} ({type(value).__name__})"
            inner = _offender(value, depth + 1) if depth < _DEPTH_MAX else ""
            return f"{found}: {inner}" if inner else found
    return ""

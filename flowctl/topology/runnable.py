"""Code that is only made and never run: ``async def`` and generators, found before they are lost.

Calling one makes a coroutine or a generator; nobody runs it, and an input that it was called with
would count as done although not a line of it was executed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

from flowctl.errors import ConfigError, JobError


def check_runs(field: str, what: str, code: Any) -> None:
    """Raise :class:`ConfigError` if calling ``code`` would not run its body."""
    problem = _problem(code)
    if problem:
        raise ConfigError(
            field, f"{what} {problem}, so its body would never run.", remedy="Make it a plain def."
        )


def _problem(code: Any) -> str:
    while isinstance(code, functools.partial):
        code = code.func
    called = code if inspect.isroutine(code) else vars(type(code)).get("__call__", code)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        return "is async"
    return "yields" if inspect.isgeneratorfunction(called) else ""


def check_returned(result: Any) -> None:
    """Raise :class:`JobError` for what a call returned if that still has to be run."""
    if result is None:
        return  # nearly always
    if isinstance(result, Coroutine | Generator):
        result.close()  # or Python warns that it was never awaited
    elif not isinstance(result, AsyncGenerator) and not hasattr(result, "__await__"):
        return
    raise JobError(
        f"it returned a {type(result).__name__}, which nobody ran.",
        remedy="Do the work in the call itself, in a plain def.",
    )

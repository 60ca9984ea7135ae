"""Finds the inputs that a function of whole tuples can't process, in few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from flowctl.failure.classify import refusal_of
from flowctl.topology.worker.inputs import Input

# Calls it with some inputs; returns what it raised, or None: they are done.
Run: TypeAlias = Callable[[Sequence[Input]], BaseException | None]
# These are not done, because of that.
Fail: TypeAlias = Callable[[Sequence[Input], BaseException], None]


def isolate(inputs: Sequence[Input], error: BaseException, run: Run, fail: Fail) -> None:
    """``run(inputs)`` gave ``error``: process what succeeds, by halving, and ``fail`` the rest.

    A bad input is found with one failing call per halving; each call that succeeds processes inputs
    that had to be processed anyway.  If nothing succeeds, as when a database is unavailable, it
    stops after that many calls and a few more, and all that is left fails; a refusal ends the
    search too.
    """
    failures_max = (len(inputs) - 1).bit_length() + 2
    failures = 1  # one after the other; the first was the whole
    parts = [_Part(inputs, is_first=False, is_bad=True)]
    while parts:
        part = parts.pop()
        if part.is_bad and len(part.inputs) > 1:
            parts += part.halves()
            continue
        found = run(part.inputs)
        if found is None:
            failures = 0
            if part.is_first:  # its other half follows, and one of both must be to blame
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
    """Some of the inputs.  ``is_bad``: they are known not to work together."""

    inputs: Sequence[Input]
    is_first: bool  # of two halves
    is_bad: bool = False

    def halves(self) -> list[_Part]:
        """Return both, the first one last, as that is taken next."""
        middle = len(self.inputs) // 2
        return [_Part(self.inputs[middle:], False), _Part(self.inputs[:middle], True)]

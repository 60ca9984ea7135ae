"""Pacers decide when a call may begin, and wait after a refusal; which target a row is for; and who
sees what a task does.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from msgspec.structs import asdict

from flowctl.adapters import load_adapter
from flowctl.delivery.tally import Tally
from flowctl.errors import ConfigError, TargetDownError
from flowctl.failure.classify import RefusalRule, refusal_of
from flowctl.failure.texts import refused_text
from flowctl.instrumentation.task_part import KeepsParts, part_of, showing
from flowctl.pacing.api import Paced, paced
from flowctl.pacing.budgets import Cost
from flowctl.pacing.gates import renew_gate

T = TypeVar("T")

# -- Which target a row is for -----------------------------------------------------------------

#: The group of rows of which nobody knows what they are for.
NAMELESS: Final = ""


class RowTargets:
    """``target=`` as a function ``of`` a row: the name of what the row is for, such as a tenant.

    ``options`` are those of ``paced``, the same for each name.  A row for which ``of`` raises, or
    returns no name, has an error of its own content.  Immutable and thread-safe; can be pickled if
    ``of`` can.
    """

    def __init__(self, of: Callable[[Any], Any], **options: Any) -> None:
        self._of = of
        self._options = options

    def name(self, row: Any) -> str:
        """Return the name of the target of ``row``; raises ``ValueError`` if it has none."""
        try:
            name = self._of(row)
            if isinstance(name, str):
                return self.paced(name).settings.target
        except ConfigError:
            pass
        except Exception as error:
            raise ValueError(
                f"target= raised {type(error).__name__} for this row: {error}"
            ) from error
        raise ValueError(
            f"target= returned {reprlib.repr(name)} for this row, which is no name of a target:"
            " return text without braces and line breaks, such as f'crm-{row[\"tenant\"]}'"
        )

    def groups(self, rows: Iterable[Any]) -> dict[str, list[int]]:
        """Return the indices of ``rows`` by the names of their targets; :data:`NAMELESS` holds the
        rest.
        """
        found: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            try:
                name = self.name(row)
            except ValueError:
                name = NAMELESS
            found.setdefault(name, []).append(index)
        return found

    def paced(self, name: str) -> Paced:
        """Return :func:`flowctl.paced` for one of them."""
        return paced(name, **self._options)


# -- When a call may begin ---------------------------------------------------------------------


@contextmanager
def showing_part(
    redis: str | None, job: str, target: str, place: tuple[str, str], tally: Tally
) -> Iterator[None]:
    """Show what a partition does, by ``tally``, to those who watch the job in ``redis``.

    ``place``: which write or batch it is of, and its name there.  Without ``redis`` nobody can see.
    """
    if redis is None:
        yield
        return
    action, name = place
    with showing(
        _kept_in(redis), part_of(job, target, action=action, name=name), lambda: asdict(tally)
    ):
        yield


@cache
def _kept_in(redis: str) -> KeepsParts:
    kept: KeepsParts = load_adapter("flowctl_redis.targets", "redis").RedisTargets(redis)
    return kept


class Pacer(Protocol):
    """Runs calls to one target, each when it may begin; for one thread."""

    def run(self, call: Callable[[], T], cost: Cost | None) -> T:
        """Run ``call`` until it is not refused, and return what it returns.

        ``cost``: what it takes of the target's budget; None: one call.  Raises what
        ``call`` raises, if it is not a refusal, and :class:`TargetDownError` if nothing was taken
        for too long.
        """

    def of(self, target: str) -> Pacer:
        """Return the pacer of one of several targets, where each row names its own."""


class TargetPacer:
    """Shares the target's limit with all callers that name it (:func:`flowctl.paced`).

    ``classify`` is the user's own rule; ``options`` are those of ``paced``.  Raises
    :class:`flowctl.errors.ConfigError` if this process is calling the target with other options.
    """

    def __init__(self, target: str, *, classify: RefusalRule | None = None, **options: Any) -> None:
        self._target = target
        self._classify = classify
        self._options = options
        self._others: dict[str, TargetPacer] = {}
        renew_gate(paced(target, **options).settings)

    def of(self, target: str) -> TargetPacer:
        """See :class:`Pacer`; the options are the same.  Thread-safe."""
        found = self._others.get(target)
        if found is None:
            made = TargetPacer(target, classify=self._classify, **self._options)
            found = self._others.setdefault(target, made)
        return found

    def run(self, call: Callable[[], T], cost: Cost | None) -> T:
        """See :class:`Pacer`."""
        block = paced(
            self._target,
            cost=cost,
            refusal=self._classify,
            **self._options,
        )
        try:
            with block as permit:
                return permit.run(call)
        except Exception as error:
            refusal = refusal_of(error, self._classify)
            if refusal is None:
                raise
            raise TargetDownError(
                f"{self._target} refused every call for too long, or asked for a longer wait than"
                f" {block.settings.limits.give_up_after_s:g} s. The last call was"
                f" {refused_text(error, refusal.said).rstrip('.')}.",
                remedy="What was written stays. Find out why it takes nothing, then run again;"
                " limits=Limits(give_up_after_s=…) waits longer.",
            ) from error

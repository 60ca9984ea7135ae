"""Pacers decide when a call may begin, and wait after a refusal; and who sees what a task does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

from msgspec.structs import asdict

from flowctl.adapters import load_adapter
from flowctl.delivery.tally import Tally
from flowctl.errors import TargetDownError
from flowctl.failure.classify import RefusalRule, refusal_of
from flowctl.instrumentation.task_part import KeepsParts, part_of, showing
from flowctl.pacing.api import paced
from flowctl.pacing.budgets import Cost
from flowctl.pacing.gates import renew_gate

T = TypeVar("T")


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


class TargetPacer:
    """Shares the target's limit with all callers that name it (:func:`flowctl.paced`).

    ``classify`` is the user's own rule; ``options`` are those of ``paced``.  Raises
    :class:`flowctl.errors.ConfigError` if this process is calling the target with other options.
    """

    def __init__(self, target: str, *, classify: RefusalRule | None = None, **options: Any) -> None:
        self._target = target
        self._classify = classify
        self._options = options
        renew_gate(paced(target, **options).settings)

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
                f" {block.settings.limits.give_up_after_s:g} s ({refusal.said}).",
                remedy="What was written stays. Find out why it takes nothing, then run again;"
                " limits=Limits(give_up_after_s=…) waits longer.",
            ) from error

"""``paced``: the one line around a call of a fragile target."""

from __future__ import annotations

import functools
import reprlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from flowctl.errors import ConfigError
from flowctl.failure.callables import check_plain, is_async
from flowctl.failure.classify import RefusalRule, check_rule
from flowctl.pacing.budgets import Budget, Cost, CostOf, check_cost
from flowctl.pacing.call import AsyncCall, Call
from flowctl.pacing.gates import gate_of
from flowctl.pacing.hard import HardPermits, hard_permits
from flowctl.pacing.target_settings import Limits, PaceSettings, settings_of

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", Call, AsyncCall)


def paced(
    target: str,
    *,
    redis: str | None = None,
    cost: CostOf | None = None,
    weight: float = 1,
    leave: float = 0.0,
    name: str = "",
    limits: Limits | None = None,
    budget: Budget | None = None,
    spend_max: str | float | None = None,
    refusal: RefusalRule | None = None,
    hard: bool = False,
) -> Paced:
    """Pace the calls to ``target``: make as many at once as its answers show that it can take.

    Use it around a call, sync or ``async``, or as a decorator::

        with paced("pg-main", redis=URL) as call:
            call.run(client.insert, rows)

    All callers that name the same ``target`` share one limit: in one process, or, with ``redis`` (a
    URL), over all processes and jobs.  A refusal (429, "too many connections", ``RetryLater``, …)
    makes the limit smaller; :meth:`Call.run` and the decorator wait after it and call again.  Any
    other exception passes through.

    ``budget``: quotas of all callers together, ``["500/min", "90k tokens/min", "10k/day"]``, or a
    number: the cost per second.  A call takes from all of them or waits; for more than
    ``give_up_after_s``, as at the end of a day's: :class:`flowctl.errors.QuotaUsedUpError`.
    ``spend_max``: what the job spends in all, ``"$20"``; then :class:`flowctl.errors.SpentError`.
    ``cost``: what a call takes: a number of the only unit that is no call, or numbers by unit,
    ``{"tokens": 812, "$": .002}``; in a decorator it may be a function of the call's arguments.
    ``weight``: the share of this job (``name``).  ``leave``: the part of limit and quotas that is
    left to callers which flowctl doesn't know, below 1.  ``limits``: bounds for what is learned.
    ``refusal``: a function that gets an exception before flowctl's own rules do, and returns True
    or seconds for a refusal, False for a failure, or None to let flowctl decide.  ``hard``:
    PostgreSQL holds a permit for each call as well (:mod:`flowctl.pacing.hard`), not for
    coroutines.

    Thread-safe, survives a fork and can be pickled.  A block inside another block of the same
    target can wait for ever if the limit is 1.  Raises :class:`flowctl.errors.ConfigError`.
    """
    if cost is not None and not callable(cost):
        cost = check_cost(cost)
    check_rule(refusal)
    if isinstance(budget, list):
        budget = tuple(budget)  # can be looked up, as a block is made for each call
    settings = settings_of(target, redis, name, weight, (leave, limits, budget, spend_max))
    return Paced(settings, cost, refusal, _hard_permits(hard, target, limits))


def _hard_permits(hard: Any, target: str, limits: Limits | None) -> HardPermits | None:
    if not isinstance(hard, bool):
        shown = reprlib.repr(hard)
        raise ConfigError("hard", f"must be True or False, got {shown}.", remedy="Give one.")
    return hard_permits(target, limits) if hard else None


class Paced:
    """What :func:`paced` returns; may be kept and used again, by many threads at once."""

    __slots__ = ("_classify", "_cost", "_hard", "_open", "_settings")

    def __init__(
        self,
        settings: PaceSettings,
        cost: CostOf | None,
        classify: RefusalRule | None,
        hard: HardPermits | None = None,
    ) -> None:
        self._settings = settings
        self._cost = cost
        self._classify = classify
        self._hard = hard
        # Blocks by thread or task, as several may use one object: the innermost block is the last.
        self._open: dict[int, list[Call | AsyncCall]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Paced, (self._settings, self._cost, self._classify, self._hard)

    def __repr__(self) -> str:
        return f"paced({self._settings.target!r})"

    @property
    def settings(self) -> PaceSettings:
        """The arguments of :func:`paced`, except ``cost`` and ``refusal``."""
        return self._settings

    def __enter__(self) -> Call:
        call = self._call(Call, self._fixed_cost())
        call.enter()
        self._open.setdefault(threading.get_ident(), []).append(call)
        return call

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(threading.get_ident(), error)

    async def __aenter__(self) -> AsyncCall:
        call = self._call(AsyncCall, self._fixed_cost())
        await call.enter()
        self._open.setdefault(_task(), []).append(call)
        return call

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(_task(), error)

    def __call__(self, fn: _F) -> _F:
        """Return ``fn``, paced: each call of it is a call to the target."""
        if is_async(fn):
            return self._paced_coroutine(fn)
        check_plain(fn, "fn")  # the body of a generator runs after the call

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            call = self._call(Call, self._cost_of(args, kwargs))
            try:
                result = call.run(fn, *args, **kwargs)
            except BaseException as error:
                call.ended(error)
                raise
            return result

        return run  # type: ignore[return-value]

    def _paced_coroutine(self, fn: _F) -> _F:
        @functools.wraps(fn)
        async def run(*args: Any, **kwargs: Any) -> Any:
            call = self._call(AsyncCall, self._cost_of(args, kwargs))
            try:
                result = await call.run(fn, *args, **kwargs)
            except BaseException as error:
                call.ended(error)
                raise
            return result

        return run  # type: ignore[return-value]

    def _call(self, kind: type[_C], cost: Cost | None) -> _C:
        settings = self._settings
        gate = gate_of(settings)
        if self._hard is not None and kind is AsyncCall:
            raise ConfigError(
                "hard", "is not for coroutines.", remedy="Call from threads, or leave it out."
            )
        return kind(gate, cost, self._classify, settings, self._hard)

    def _fixed_cost(self) -> Cost | None:
        if callable(self._cost):
            raise ConfigError(
                "cost", "is a function, but a block has no arguments.", remedy="Give a number."
            )
        return self._cost

    def _cost_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cost | None:
        if not callable(self._cost):
            return self._cost
        found: Cost = check_cost(self._cost(*args, **kwargs))
        return found

    def _close(self, who: int, error: BaseException | None) -> None:
        mine = self._open[who]
        call = mine.pop()
        if not mine:
            del self._open[who]
        call.ended(error)


def _task() -> int:
    """Return the task or thread that opens a block; numbers of threads are above 0."""
    import asyncio

    return -id(asyncio.current_task())

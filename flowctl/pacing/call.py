"""One call, or several in a row, of a paced target."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from flowctl.compat import add_note
from flowctl.core.pacing.quotas import CALLS, Costs, Quota
from flowctl.errors import ConfigError
from flowctl.failure.classify import Meaning, RefusalRule, refusal_of, told_by
from flowctl.pacing.budgets import Cost, check_cost, costs_of, takes, total_of
from flowctl.pacing.gate import Gate
from flowctl.pacing.hard import HardPermits
from flowctl.pacing.target_settings import PaceSettings, checked_seconds

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Call:
    """The parts that sync and async calls share.  Used by one thread or task."""

    __slots__ = (
        "_began_s", "_classify", "_cost", "_costs", "_gate", "_give_up_after_s", "_hard", "_holds",
        "_is_counted", "_quotas", "_refused_by", "_total",
    )  # fmt: skip

    def __init__(
        self,
        gate: Gate,
        cost: Cost | None,
        classify: RefusalRule | None,
        settings: PaceSettings,
        hard: HardPermits | None = None,
    ) -> None:
        self._gate = gate
        self._quotas = settings.quotas
        self._cost = 1 if cost is None else cost
        self._total = total_of(cost)
        self._costs = costs_of(settings.quotas, cost) if settings.quotas else ()
        self._classify = classify
        self._give_up_after_s = settings.limits.give_up_after_s
        self._hard = hard
        self._began_s = 0.0
        self._holds = False
        self._is_counted = False  # the target's counters include its cost by now
        self._refused_by = ""

    @property
    def cost(self) -> Cost:
        """The cost that the call counts against the budget; correct it once the answer shows the
        cost.  Of a mapping, units that are not named stay as they are.
        """
        return self._cost

    @cost.setter
    def cost(self, cost: Cost) -> None:
        cost = check_cost(cost)
        if isinstance(cost, Mapping) and isinstance(self._cost, Mapping):
            cost = {**self._cost, **cost}
        more = total_of(cost) - self._total
        costs = tuple(takes(self._quotas, quota.unit, cost) for quota in self._quotas)
        self._gate.correct(more, [new - old for new, old in zip(costs, self._costs, strict=True)])
        if self._is_counted:
            with self._gate.lock:
                self._gate.counters.cost += more
        self._cost, self._total, self._costs = cost, self._total + more, costs

    def throttled(self, retry_after_s: float | None = None) -> None:
        """Report a refusal of the target that the program has noticed: less is sent to the target.

        ``retry_after_s``: how long it asked to be left alone; None: it didn't say.  This method
        does not wait: the permit rests, and the next call waits for it.
        """
        if retry_after_s is not None:
            checked_seconds(retry_after_s)
        if self._holds:
            self._leave_refused(retry_after_s)

    def tell(self, response: Any) -> None:
        """Report the limits in the headers of ``response``: what is left, and until when.

        Until then the remaining amount is spread evenly over the time, so that no call has to be
        refused.  Takes the responses of httpx, requests, aiohttp, openai and anthropic
        (``with_raw_response``), a dictionary of botocore, or headers.  The headers of an exception
        are read without this.  Limits of tokens count if ``cost`` is in tokens; a response without
        such headers says nothing.
        """
        told = told_by(response)
        if told:
            self._gate.tell(told)

    def failed(self, error: BaseException) -> None:
        """Report an ``error`` that the program has handled; a refusal counts as one."""
        self.tell(error)
        refusal = self._refusal(error)
        if refusal is not None:
            self.throttled(refusal.after_s)
        elif self._holds:
            self._holds = False
            self._gate.leave_failed()

    def _refusal(self, error: BaseException) -> Meaning | None:
        return refusal_of(error, self._classify) if isinstance(error, Exception) else None

    def _each(self) -> Iterator[tuple[Quota, float]]:
        return zip(self._quotas, self._costs, strict=True)

    def _leave_refused(self, after_s: float | None) -> float:
        self._holds = False
        if self._quotas:  # it was a call, but what it asked for was not done
            back = [0 if q.unit == CALLS else -c for q, c in self._each()]
            self._gate.correct(0, back)
        return self._gate.leave_refused(after_s)

    def _entered(self) -> None:
        self._began_s = self._gate.clock()
        self._holds = True
        self._is_counted = False

    def _done(self) -> None:
        if self._holds:
            self._holds = False
            self._is_counted = True
            self._gate.leave_done(self._began_s, self._total)

    def ended(self, error: BaseException | None) -> None:
        """Note that the block was left."""
        if error is None:
            if self._hard is not None and self._holds:
                self._done()
                raise ConfigError(
                    "hard",
                    "the block made its call without call.run, so no lock bounded it.",
                    remedy="Write call.run(fn, connection, …).",
                )
            self._done()
        elif self._holds:
            self.failed(error)

    def _pause_s(self, error: Exception, since_s: float, given: tuple[Any, ...]) -> float:
        """Return how long to wait before the next attempt; raise ``error`` if there is to be none.

        ``given``: the function and its arguments.
        """
        self.tell(error)
        refusal = self._refusal(error)
        if refusal is None:
            if self._refused_by:
                add_note(error, f"flowctl called again after a refusal: {self._refused_by}")
            raise error
        wait_s = self._leave_refused(refusal.after_s)
        if self._gate.clock() + wait_s - since_s > self._give_up_after_s:
            raise error
        if has_closed(given):
            add_note(error, "flowctl does not call again with a connection that is closed")
            raise error
        self._refused_by = f"{type(error).__name__}: {error}"
        return wait_s


class Call(_Call):
    """What ``with paced(…) as call`` gives.  For one thread.

    The block holds one permit from its first line.  Either the block is the call, or it makes its
    calls with :meth:`run`, each with a permit of its own.
    """

    __slots__ = ()

    def run(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call ``fn``; where the target refuses, wait as long as it asks and call it again.

        A refusal does not count as an attempt, and less is sent to the target meanwhile; after
        ``limits.give_up_after_s`` of nothing else the last one is raised.  Any other exception
        passes through at once.  A refusal is raised too if ``fn``, or one of its arguments, is of a
        connection that is closed now: calling again can't succeed.
        """
        since_s = self._gate.clock()
        while True:
            if not self._holds:
                self.enter()
            try:
                if self._hard is None:
                    result = fn(*args, **kwargs)
                else:
                    result = self._hard.run(fn, *args, **kwargs)
                refuse_coroutine(result)
            except Exception as error:
                wait_s = self._pause_s(error, since_s, (fn, *args))
            else:
                self._done()
                return result
            time.sleep(wait_s)

    def enter(self) -> None:
        """Wait for a permit."""
        self._gate.enter(self._total, self._costs)
        self._entered()


class AsyncCall(_Call):
    """What ``async with paced(…) as call`` gives: as :class:`Call`, for one task."""

    __slots__ = ()

    async def run(
        self, fn: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """As :meth:`Call.run`, for a coroutine function."""
        import asyncio

        since_s = self._gate.clock()
        while True:
            if not self._holds:
                await self.enter()
            try:
                result = await awaitable_of(fn(*args, **kwargs))
            except Exception as error:
                wait_s = self._pause_s(error, since_s, (fn, *args))
            else:
                self._done()
                return result
            await asyncio.sleep(wait_s)

    async def enter(self) -> None:
        """Wait for a permit."""
        if not self._gate.try_enter(self._total, self._costs):
            await _in_line(self._gate, self._total, self._costs)
        self._entered()


def refuse_coroutine(result: object) -> None:
    """Raise :class:`ConfigError` for a coroutine, which would only begin after its permit is
    returned.
    """
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python also warns that it was never awaited
        raise ConfigError(
            "fn",
            f"{result.__qualname__} is a coroutine function, so nothing was called.",
            remedy="Use `async with paced(…) as call` and `await call.run(fn)`.",
        )


def has_closed(given: tuple[Any, ...]) -> bool:
    """Return whether a call with these can't succeed any more, as one of them is a closed
    connection.

    Connections of cursors, and of methods that are called, count as well.
    """
    for each in given:
        owner = getattr(each, "__self__", each)
        if _is_closed(owner) or _is_closed(getattr(owner, "connection", None)):
            return True
    return False


def _is_closed(thing: object) -> bool:
    """Whether ``thing`` says so in the way of psycopg, psycopg2 (a number), SQLAlchemy or
    pymysql.
    """
    closed = getattr(thing, "closed", None)
    return closed is True or (type(closed) is int and closed > 0) or _is_shut(thing)


def _is_shut(thing: object) -> bool:
    return getattr(thing, "open", None) is False


def awaitable_of(made: Awaitable[_T]) -> Awaitable[_T]:
    """Return ``made``; raise :class:`ConfigError` if it can't be awaited: then the call is over
    already.
    """
    if not inspect.isawaitable(made):
        raise ConfigError(
            "fn",
            f"returned a {type(made).__name__}, which can't be awaited.",
            remedy="Give a coroutine function, or use `with paced(…) as call` for a plain one.",
        )
    return made


async def _in_line(gate: Gate, cost: float, costs: Costs) -> None:
    import asyncio

    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    waiter, since_s = gate.queue(wake), gate.clock()
    try:
        while (wait_s := gate.next_turn(waiter, cost, since_s, costs)) is not None:
            timer = loop.call_later(wait_s, woken.set)
            await woken.wait()
            timer.cancel()
            woken.clear()
    except BaseException:
        gate.give_up(waiter)
        raise

"""The order in which a spout's and a bolt's loop do things, one step at a time.

A loop is driven by :func:`run_until_interrupted` in a thread of its own, or step by step by a
test.  All that it touches is injected (:class:`flowctl.runtime.tasks.Ports`).

===============================  ===========================  ============================
asks for more output only when   spout                        bolt
===============================  ===========================  ============================
no emit waits                    yes                          yes
less than max_pending pending    yes                          no: it has no limit (S43)
===============================  ===========================  ============================

A spout takes acks whatever else waits, so a ring of full queues always comes loose (S53).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence, Sized
from typing import Final, Generic, TypeVar

from flowctl.runtime.stretches import SlowCalls, Stretch
from flowctl.runtime.tasks import BoltTask, Ports, SpoutTask, Task
from flowctl.runtime.wait import Parking, WaitInterrupted, WaitSituation

# How late an activation is seen where nobody wakes the loop (S55).
INACTIVE_POLL_S: Final = 0.1

M = TypeVar("M")


class Idling:
    """One situation of one loop: its strategy, its counter and its stretch."""

    __slots__ = ("_clock", "_counter", "_strategy", "stretch")

    def __init__(self, ports: Ports[M], situation: WaitSituation, *, started: str, ended: str):
        self._strategy = ports.strategy(situation)
        self._clock = ports.clock
        self._counter = 0
        self.stretch = Stretch(started, ended, logger=ports.logger)

    def wait(self) -> float:
        """Wait once; return how long it took [s]."""
        began_s = self._clock()
        self.stretch.begin(began_s)
        self._counter = self._strategy.idle(self._counter)
        time_s = self._clock() - began_s
        self.stretch.waited(time_s)
        return time_s

    def over(self) -> None:
        """There is work: the next wait begins anew."""
        if self.stretch.is_under_way:  # the counter may be 0 all along, as a spout's is
            self._counter = 0
            self.stretch.end(self._clock())


def _backpressure(ports: Ports[M]) -> Idling:
    return Idling(
        ports,
        WaitSituation.BACK_PRESSURE_WAIT,
        started="backpressure_began",
        ended="backpressure_ended",
    )


def max_pending_of(per_task: int | None, tasks: int) -> int:
    """Return what a loop with ``tasks`` tasks may have pending; 0: no limit (S37)."""
    return (per_task or 0) * tasks


class Loop(abc.ABC):
    """Opening and closing, which spouts and bolts have in common."""

    _idlings: Sequence[Idling] = ()

    def __init__(self, tasks: Sequence[Task], is_active: Callable[[], bool], park: Parking) -> None:
        self._is_active = is_active
        self._park = park
        self._unopened = list(tasks)
        self._opened: list[Task] = []
        self.open_was_called = False  # of all tasks: no message is taken before (S123)

    @abc.abstractmethod
    def step(self) -> None:
        """Do one turn.  Raises what a task raises, and ``WaitInterrupted`` from a wait."""

    def close(self) -> None:
        """Close the tasks that were opened, all of them even where one raises."""
        self._end_stretches()
        while self._opened:
            try:
                self._opened.pop().close()
            except BaseException:
                self.close()
                raise

    def _end_stretches(self) -> None:
        for idling in self._idlings:
            idling.over()

    def _is_ready(self) -> bool:
        """Open the tasks when active for the first time; until then wait (S55)."""
        if self.open_was_called:
            return True
        if not self._is_active():
            self._park(INACTIVE_POLL_S)
            return False
        while self._unopened:
            task = self._unopened.pop(0)
            self._opened.append(task)  # before: an open that raises may have taken something
            task.open()
        self.open_was_called = True
        return True


class SpoutLoop(Loop, Generic[M]):
    """A spout's turns (S36).  For one thread.

    The inbox brings acks, fails and ticks, and is drained at every ``drain_every``-th step:
    1, so that acks never wait; more, where nothing is acked and they would be looked for in
    vain.  ``pending`` holds the roots whose trees are not done; ``max_pending`` is per task,
    None: no limit.  ``on_empty_emit`` hears the growing count of waits without an emission.
    """

    def __init__(
        self,
        tasks: Sequence[SpoutTask],
        ports: Ports[M],
        *,
        pending: Sized,
        max_pending: int | None = None,
        drain_every: int = 1,
        on_empty_emit: Callable[[int], None] = lambda streak: None,
    ) -> None:
        super().__init__(tasks, ports.is_active, ports.park)
        self._tasks = tasks
        self._ports = ports
        self._emits = ports.emits
        self._pending = pending
        self._max_pending = max_pending_of(max_pending, len(tasks))
        self._drain_every = drain_every
        self._on_empty_emit = on_empty_emit
        self._undrained = 0  # steps since the inbox was drained
        self._turn = 0  # the task that is asked next
        self._slow_calls = SlowCalls(logger=ports.logger)
        self._backpressure = _backpressure(ports)
        self._spout_wait = Idling(
            ports,
            WaitSituation.SPOUT_WAIT,
            started="spout_wait_began",
            ended="spout_wait_ended",
        )
        self._idlings = (self._backpressure, self._spout_wait)
        self.backpressure = self._backpressure.stretch
        self.max_pending = Stretch("max_pending_reached", "max_pending_ended", logger=ports.logger)
        self.empty_emit_streak = 0
        self.was_active = False

    @property
    def skipped_backpressure_s(self) -> float:
        """Time waited because an emit was refused [s]."""
        return self.backpressure.skipped_s

    @property
    def skipped_max_pending_s(self) -> float:
        """Time waited because too much was pending [s]."""
        return self.max_pending.skipped_s

    def step(self) -> None:
        if not self._is_ready():
            return
        received = self._drain()
        if not self._is_active():
            self._stay_inactive()
            return
        if not self.was_active:
            self.was_active = True
            for task in self._tasks:
                task.activate()
        emitted_before = self._emits.emitted_count
        reached = self._has_max_pending()
        if self._emits.flush() and not reached:
            self._next_tuples()
        self._tell_max_pending(reached)
        if received <= 1:  # more: the next step finds work without a wait (S38)
            self._idle(reached, is_empty=self._emits.emitted_count == emitted_before)

    def close(self) -> None:
        """Deactivate if active, then close."""
        try:
            self._deactivate()
        finally:
            super().close()

    def _drain(self) -> int:
        self._undrained += 1
        if self._undrained < self._drain_every:
            return 0
        self._undrained = 0
        began_s = self._ports.clock()
        received = self._ports.inbox.consume(self._ports.handle)
        if received:
            self._slow_calls.took("ack", self._ports.clock() - began_s)
        return received

    def _stay_inactive(self) -> None:
        self._deactivate()
        self._park(INACTIVE_POLL_S)

    def _deactivate(self) -> None:
        if self.was_active:
            self.was_active = False
            self._end_stretches()
            self.max_pending.end(self._ports.clock())
            for task in self._tasks:
                task.deactivate()

    def _has_max_pending(self) -> bool:
        return 0 < self._max_pending <= len(self._pending)

    def _next_tuples(self) -> None:
        """Ask every task once, or until an emit is refused or the limit reached (S52, S59).

        The next round goes on with the task after the last one, so none starves.
        """
        began_s = self._ports.clock()
        for _ in self._tasks:
            task = self._tasks[self._turn]
            self._turn = (self._turn + 1) % len(self._tasks)
            task.next_tuple()
            if self._emits.has_pending() or self._has_max_pending():
                break
        self._slow_calls.took("next_tuple", self._ports.clock() - began_s)

    def _tell_max_pending(self, reached: bool) -> None:
        if reached:
            self.max_pending.begin(self._ports.clock())
        elif self.max_pending.is_under_way:
            self.max_pending.end(self._ports.clock())

    def _idle(self, reached: bool, *, is_empty: bool) -> None:
        """Wait if an emit is refused, or if nothing was emitted; exactly then (S39, S40, S60)."""
        if not is_empty:
            self.empty_emit_streak = 0
            self._spout_wait.over()
        if self._emits.has_pending():
            self._backpressure.wait()
            return
        self._backpressure.over()
        if is_empty:
            self.empty_emit_streak += 1
            self._on_empty_emit(self.empty_emit_streak)
            time_s = self._spout_wait.wait()
            if reached:
                self.max_pending.waited(time_s)


class BoltLoop(Loop, Generic[M]):
    """A bolt's turns (S42).  For one thread.

    Inactive, it still works on what comes: only its start waits for the first activation.
    """

    def __init__(self, tasks: Sequence[BoltTask], ports: Ports[M]) -> None:
        super().__init__(tasks, ports.is_active, ports.park)
        self._ports = ports
        self._emits = ports.emits
        self._backpressure = _backpressure(ports)
        self._consume_wait = Idling(
            ports,
            WaitSituation.BOLT_WAIT,
            started="consume_wait_began",
            ended="consume_wait_ended",
        )
        self._idlings = (self._backpressure, self._consume_wait)
        self.backpressure = self._backpressure.stretch
        self.idle = self._consume_wait.stretch

    @property
    def skipped_backpressure_s(self) -> float:
        """Time waited because an emit was refused [s]."""
        return self.backpressure.skipped_s

    def step(self) -> None:
        if not self._is_ready():
            return
        if not self._emits.flush():
            self._backpressure.wait()
            return
        self._backpressure.over()
        if self._ports.inbox.consume(self._ports.handle, self._emits.has_pending):
            self._consume_wait.over()
        else:
            self._consume_wait.wait()


def run_until_interrupted(
    loop: Loop, *, park: Parking, report_error: Callable[[BaseException], None]
) -> None:
    """Step until the loop's ``park`` is interrupted, then close it; for a thread of its own.

    An error is reported and raised: the loop dies, and whoever started it starts a new one (S68).
    """
    try:
        while True:
            park(0.0)  # a loop that always finds work never waits, yet it must hear the stop
            loop.step()
    except WaitInterrupted:
        pass
    except BaseException as error:
        report_error(error)
        raise
    finally:
        loop.close()

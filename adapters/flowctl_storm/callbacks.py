"""Notify users of a topology's events, in a separate thread: the hub never waits for them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from flowctl.config import MetricsSettings
from flowctl.core.trees.settlement import DEFAULT_STREAM, Watched
from flowctl.errors import ConfigError
from flowctl.instrumentation.event_text import EventLogger
from flowctl.instrumentation.hooks import EmitInfo, Hooks, SpoutAckInfo, SpoutFailInfo
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.task_metrics import ErrorReporter, Point, TaskInfo
from flowctl.threads import OnDeath, guarded
from flowctl.waiting.idling import SlowCalls
from flowctl_storm.figures import TaskErrors
from flowctl_storm.hub.news import RootEnd
from flowctl_storm.metrics import Consumer, TopologyMetrics

P = ParamSpec("P")
R = TypeVar("R")
# Longest delay of reported errors, and the most settlements whose figures may wait.  So many
# settlements share a wake-up, and the garbage collector has few objects to visit.
_LOOK_S: Final = 1.0
_LOOK_AT: Final = 256
_TASK: Final = 0  # the number of a spout's only task


class SpoutCallbacks(NamedTuple):
    """Calls for a spout's roots: ``on_ack`` when a tree is complete, ``on_fail`` at each failure.

    A tree also fails when it expires.  Both functions get the root's value too.  A root that failed
    is sent again, so it may fail several times, but is acked once.  ``hooks`` are called after
    them.
    """

    on_ack: Callable[[RootEnd], None] | None = None
    on_fail: Callable[[RootEnd], None] | None = None
    hooks: Hooks = Hooks()

    @property
    def is_empty(self) -> bool:
        """Whether no callback or hook is called for each root."""
        return self.on_ack is None and self.on_fail is None and not self.hooks


class Told(NamedTuple):
    """The receivers of the callback thread's news: callbacks and hooks by spout, metrics consumers.

    With ``is_debug`` each ack and fail of a root is logged.
    """

    spouts: Mapping[str, SpoutCallbacks]
    consumers: Sequence[Consumer] = ()
    is_debug: bool = False


Message: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


class CallbackThread:
    """One thread for callbacks, spouts' hooks and metrics consumers: one after the other.

    Exceptions are logged and change nothing: the record is done, or sent again, regardless.  A slow
    call is logged too, since all others wait for it.  Methods that take messages may be called from
    any thread, and never block.
    """

    def __init__(
        self,
        told: Told,
        settings: MetricsSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        logger: EventLogger | None = None,
        on_death: OnDeath = lambda error: None,
    ) -> None:
        self._spouts = told.spouts
        self._consumers = told.consumers
        self._is_debug = told.is_debug
        self._clock = clock
        self._logger = logger or get_logger()
        self._slow = SlowCalls(logger=self._logger)
        self._errors: dict[str, ErrorReporter] = {}
        self._metrics = TopologyMetrics(
            list(told.spouts), settings, tell=self._tell_figures, clock=clock, logger=self._logger
        )
        self.messages: SimpleQueue[Message | None] = SimpleQueue()
        # These figures come with each tuple and can wait, so they don't wake the thread.
        self._watched: deque[tuple[str, Watched]] = deque()
        self._look_at_s = clock()
        name = "flowctl-callbacks"
        run = guarded(self.run, name=name, on_death=on_death)
        self._thread = Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Wait until everything queued and the last figures are delivered; may be repeated."""
        self.messages.put(None)
        self._thread.join()

    # -- messages ------------------------------------------------------------------------

    def ended(self, end: RootEnd) -> None:
        """Take the end of a root, or a failure after which it is sent again."""
        callbacks = self._spouts[end.spout]
        if end.age_s is not None or self._is_debug or not callbacks.is_empty:
            self.messages.put((self._tell_end, (end, callbacks)))

    def emitted(self, spout: str, value: Any) -> None:
        """A root was emitted."""
        hooks = self._spouts[spout].hooks
        if hooks:
            info = EmitInfo(value, DEFAULT_STREAM, _TASK, None)
            self.messages.put((self._call, (f"emit of {spout}", hooks.emit, info)))

    def watched(self, bolt: str, watched: Watched) -> None:
        """Take the figures that came with a settlement of ``bolt``."""
        self._watched.append((bolt, watched))
        if len(self._watched) == _LOOK_AT:  # only the sender calls this method
            self.messages.put((self._look, ()))

    def died(self, task: str, problem: str) -> None:
        """Note that ``bolt``'s task ended because of an error; "" stands for all tasks."""
        self.messages.put((self._report, (task, "died", problem)))

    # -- the thread ----------------------------------------------------------------------

    def run(self) -> None:
        while True:
            try:
                message = self.messages.get(timeout=max(0.0, self._look_at_s - self._clock()))
            except Empty:
                self._look()
                continue
            if message is None:
                break
            handle, arguments = message
            handle(*arguments)
            if self._clock() >= self._look_at_s:
                self._look()
        self._look()
        self._metrics.finish(self._clock())

    def _look(self) -> None:
        """Collect figures, tick if it is time, and return when to check again."""
        while self._watched:
            self._take_watched(*self._watched.popleft())
        now_s = self._clock()
        self._metrics.on_time(now_s)
        due_s = self._metrics.next_deadline_s()
        self._look_at_s = now_s + _LOOK_S if due_s is None else min(due_s, now_s + _LOOK_S)

    def _tell_end(self, end: RootEnd, callbacks: SpoutCallbacks) -> None:
        """Call the callback, then hooks, then metrics for the end of a root."""
        on_ack, on_fail, hooks = callbacks
        is_ack = end.reason is None
        if self._is_debug:
            event = "acking_message" if is_ack else "failing_message"
            self._logger.log(logging.DEBUG, event, spout=end.spout, position=end.position)
        call = on_ack if is_ack else on_fail
        if call is not None:
            self._call(f"{'on_ack' if is_ack else 'on_fail'} of {end.spout}", call, end)
        if hooks and end.reason is None:
            info = SpoutAckInfo(end, _TASK, end.age_s)
            self._call(f"spout_ack of {end.spout}", hooks.spout_ack, info)
        elif hooks:
            failed = SpoutFailInfo(end, _TASK, end.age_s, str(end.reason))
            self._call(f"spout_fail of {end.spout}", hooks.spout_fail, failed)
        self._metrics.ended(end)

    def _tell_figures(self, info: TaskInfo, points: list[Point]) -> None:
        for consumer in self._consumers:
            self._call("metrics", consumer, info, points)

    def _take_watched(self, bolt: str, watched: Watched) -> None:
        for error in watched.errors:
            self._report(bolt, error.kind, error.problem)
        if watched.errors_left_out:
            self._reporter(bolt).left_out(watched.errors_left_out)
        try:
            self._metrics.took(bolt, watched)
        except ConfigError as error:  # the user has metrics of two kinds with one name
            self._report(bolt, type(error).__name__, error.problem)

    def _call(self, what: str, call: Callable[..., Any], *arguments: Any) -> None:
        began_s = self._clock()
        try:
            call(*arguments)
        except Exception as error:
            self._logger.log(logging.ERROR, "callback_failed", call=what, error=repr(error))
        self._slow.took(what, self._clock() - began_s)

    # -- errors that tasks report --------------------------------------------------------

    def _report(self, task: str, kind: str, problem: str) -> None:
        self._reporter(task).report(kind, problem)

    def _reporter(self, task: str) -> ErrorReporter:
        if task not in self._errors:
            self._errors[task] = ErrorReporter(task, clock=self._clock, logger=self._logger)
        return self._errors[task]

    def errors(self) -> Iterable[TaskErrors]:
        """The errors that tasks reported, complete once the thread has ended."""
        for task, reporter in sorted(self._errors.items()):
            yield TaskErrors(task=task, count=reporter.count, latest=tuple(reporter.latest))


def telling_slow(
    what: str, call: Callable[P, R], *, clock: Callable[[], float] = time.monotonic
) -> Callable[P, R]:
    """Wrap a user's ``call`` that runs in the hub, to log when it holds up the hub."""
    slow = SlowCalls()

    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        began_s = clock()
        try:
            return call(*args, **kwargs)
        finally:
            slow.took(what, clock() - began_s)

    return timed

"""Watch a bolt's task on its worker: hooks, counts, times, reported errors.

Figures travel with the next settlement (:class:`Watched`), not separately.  So they count exactly
the settled inputs, and nothing is left to send when the run ends.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from flowctl.core.trees.settlement import DEFAULT_STREAM, Emitted, Sum, Watched
from flowctl.instrumentation.hooks import (
    BoltAckInfo,
    BoltExecuteInfo,
    BoltFailInfo,
    EmitInfo,
    HookLike,
    make_hooks,
)
from flowctl.instrumentation.task_metrics import EvenSampler
from flowctl_storm.worker.inputs import Input
from flowctl_storm.worker.notes import Notes, add_to

_NO_NOTES: Final = Notes()


class WatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to watch of a stage's tasks; travels with its code.

    ``is_counting`` tells that figures are wanted.  One in ``one_in`` inputs is timed.
    """

    hooks: Sequence[HookLike] = ()
    is_counting: bool = False
    one_in: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether a task needs no :class:`BoltWatch`."""
        return not self.hooks and not self.is_counting


class BoltWatch:
    """The watch of one process thread of a bolt: its executed, acked and failed inputs by source.

    Counts are exact.  Times are of sampled inputs: process latency (from ``execute`` until the ack)
    and execute latency (the call alone) have a sampler each.  :meth:`executed` and :meth:`acked`
    pass on exceptions of hooks, which should fail the input.
    """

    def __init__(
        self,
        plan: WatchPlan,
        task_id: int,
        *,
        chance: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hooks = make_hooks(plan.hooks) or None
        self._task_id = task_id
        self._is_counting = plan.is_counting
        self._clock = clock
        chance = chance or random.Random()
        self._samples_process = EvenSampler(plan.one_in, chance=chance)
        self._samples_execute = EvenSampler(plan.one_in, chance=chance)
        self._is_new = True
        self._start_anew()

    def _start_anew(self) -> None:
        self._executed: defaultdict[str, int] = defaultdict(int)
        self._acked: defaultdict[str, int] = defaultdict(int)
        self._failed: defaultdict[str, int] = defaultdict(int)
        self._execute_s: dict[str, Sum] = {}
        self._process_s: dict[str, Sum] = {}

    def begin(self, given: Input) -> None:
        """Note that ``execute`` is about to be called with ``given``."""
        # Called for each input, like the next two methods, so it makes no unnecessary call or
        # dictionary.
        given.came_at_s = self._clock() if self._samples_process() else None
        given.execute_at_s = self._clock() if self._samples_execute() else None

    def executed(self, given: Input, emits: Sequence[Emitted] = (), start: int = 0) -> None:
        """Note the end of ``execute``; its emits are ``emits`` from ``start`` on."""
        source, began_s, delta_s = given.source, given.execute_at_s, None
        if began_s is not None:
            delta_s = self._clock() - began_s
            add_to(self._execute_s, source, delta_s)
        if self._hooks is not None:
            self._tell_emits(emits, start)
            self._hooks.bolt_execute(BoltExecuteInfo(given, self._task_id, delta_s))
        self._executed[source] += 1

    def called(self, emits: Sequence[Emitted], start: int) -> None:
        """Note the end of ``on_tick`` or ``on_end``; its emits are ``emits`` from ``start`` on."""
        if self._hooks is not None:
            self._tell_emits(emits, start)

    def acked(self, given: Input) -> None:
        """``given`` was acked."""
        source, came_s, delta_s = given.source, given.came_at_s, None
        if came_s is not None:
            delta_s = self._clock() - came_s
            add_to(self._process_s, source, delta_s)
        if self._hooks is not None:
            self._hooks.bolt_ack(BoltAckInfo(given, self._task_id, delta_s))
        self._acked[source] += 1

    def failed(self, given: Input, report: Callable[[BaseException], None]) -> None:
        """Note that ``given`` failed; ``report`` gets hooks' exceptions, as it can't fail twice."""
        self._failed[given.source] += 1
        if self._hooks is not None:
            came_s = given.came_at_s
            delta_s = None if came_s is None else self._clock() - came_s
            try:
                self._hooks.bolt_fail(BoltFailInfo(given, self._task_id, delta_s))
            except Exception as error:
                report(error)

    def take(self, emits: Sequence[Emitted], notes: Notes | None) -> Watched | None:
        """Return the figures for a settlement that has these ``emits``, and reset the counts."""
        if not self._is_counting:
            return notes.watched() if notes is not None else None
        emitted: dict[str, int] = {}
        for emit in emits:
            stream = emit.stream or DEFAULT_STREAM
            emitted[stream] = emitted.get(stream, 0) + 1
        said = notes or _NO_NOTES
        watched = Watched(
            executed=self._executed,
            acked=self._acked,
            failed=self._failed,
            emitted=emitted,
            execute_s=self._execute_s,
            process_s=self._process_s,
            counts=said.counts,
            means=said.means,
            errors=said.errors,
            errors_left_out=said.errors_left_out,
            host=socket.gethostname() if self._is_new else "",
            pid=os.getpid() if self._is_new else 0,
        )
        self._is_new = False
        self._start_anew()
        return watched

    def _tell_emits(self, emits: Sequence[Emitted], start: int) -> None:
        assert self._hooks is not None
        for index in range(start, len(emits)):
            emit = emits[index]
            stream = emit.stream or DEFAULT_STREAM
            self._hooks.emit(EmitInfo(emit.value, stream, self._task_id, emit.task))


class Watches(threading.local):
    """A :class:`BoltWatch` per process thread, made at its first request."""

    def __init__(self, plan: WatchPlan, task_id: int) -> None:
        self.mine: BoltWatch = BoltWatch(plan, task_id)


def take(watch: BoltWatch | None, emits: Sequence[Emitted], notes: Notes | None) -> Watched | None:
    """Like :meth:`BoltWatch.take`; without a watch there may still be notes."""
    if watch is not None:
        return watch.take(emits, notes)
    return notes.watched() if notes is not None else None

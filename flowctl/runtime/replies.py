"""What becomes of a root's end: the spout's own callback, then hooks, then metrics (S51)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from flowctl.instrumentation.events import EventLogger
from flowctl.instrumentation.hooks import Hooks, SpoutAckInfo, SpoutFailInfo
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.task_metrics import SpoutMetrics
from flowctl.runtime.tasks import SpoutTask


class EndedRoot(NamedTuple):
    """A root that was taken out of pending.  ``started_at_s`` None: not sampled (S62)."""

    message_id: Any
    stream: str
    values: Any
    started_at_s: float | None


class SpoutReplies:
    """One spout task's acks and fails.  Take the root out of pending first (S49).

    ``on_failed`` is the failure stream: it gets every root that failed, after the spout's own
    ``fail`` (S124).  ``is_debug`` logs each ack and fail.
    """

    def __init__(
        self,
        task: SpoutTask,
        *,
        hooks: Hooks,
        metrics: SpoutMetrics,
        clock: Callable[[], float],
        on_failed: Callable[[EndedRoot], None] | None = None,
        is_debug: bool = False,
        logger: EventLogger | None = None,
    ) -> None:
        self._task = task
        self._hooks = hooks
        self._metrics = metrics
        self._clock = clock
        self._on_failed = on_failed
        self._is_debug = is_debug
        self._logger = logger or get_logger()

    def ack(self, root: EndedRoot) -> None:
        """The root's tree is done."""
        self._tell("acking_message", root)
        self._task.ack(root.message_id)
        delta_s = self._delta_s(root)
        if self._hooks:
            self._hooks.spout_ack(SpoutAckInfo(root.message_id, self._task.task_id, delta_s))
        if delta_s is not None:
            self._metrics.acked(root.stream, delta_s)

    def fail(self, root: EndedRoot, *, reason: str) -> None:
        """The root failed or expired."""
        self._tell("failing_message", root)
        self._task.fail(root.message_id)
        delta_s = self._delta_s(root)
        if self._hooks:
            self._hooks.spout_fail(
                SpoutFailInfo(root.message_id, self._task.task_id, delta_s, reason)
            )
        if delta_s is not None:
            self._metrics.failed(root.stream)
        if self._on_failed is not None:
            self._on_failed(root)

    def _delta_s(self, root: EndedRoot) -> float | None:
        return None if root.started_at_s is None else self._clock() - root.started_at_s

    def _tell(self, event: str, root: EndedRoot) -> None:
        if self._is_debug:
            self._logger.log(
                logging.DEBUG, event, task=self._task.task_id, message_id=root.message_id
            )

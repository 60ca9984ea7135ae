"""Tuples that a bolt may still hold though nobody waits for them any more."""

from __future__ import annotations

from math import inf


class Strays(dict[int, float]):
    """Tuple id → when we stopped waiting for it, oldest first.

    They take room in the bolt's window until it is known that they are gone, so that a bolt never
    holds more than its window.  ``are_told``: the bolt's heartbeats tell what it holds, so that
    time alone means nothing.  Part of ``AdaptiveFlowConsumer``; not thread-safe.
    """

    __slots__ = ("are_told",)

    def __init__(self) -> None:
        self.are_told: bool = False

    def end(self, tuple_id: int) -> bool:
        """The bolt is rid of it; return whether it was one."""
        return self.pop(tuple_id, None) is not None

    def forget_before(self, sent_at_s: float) -> None:
        """The bolt acked a tuple that was sent then: it must be rid of what was given up before.

        It takes tuples in order, so such a stray was lost or is in a slot of its own.
        """
        for tuple_id, since_s in list(self.items()):
            if since_s < sent_at_s:
                del self[tuple_id]

    def keep_at_most(self, holds: int, *, before_s: float) -> None:
        """The bolt says that it holds ``holds`` tuples: strays beyond those are gone.

        One given up after ``before_s`` may have been on its way when the bolt said so.
        """
        for tuple_id, since_s in list(self.items())[: max(0, len(self) - holds)]:
            if since_s <= before_s:
                del self[tuple_id]

    def drop_due(self, rto_s: float, now_s: float) -> None:
        """Give up those whose time has come by :meth:`due_s`."""
        while self.due_s(rto_s) <= now_s:  # the same sum, or an alarm would ring for ever
            del self[next(iter(self))]

    def renew(self, now_s: float) -> None:
        """Wait for them from now on, as if they had just been given up."""
        for tuple_id in self:
            self[tuple_id] = now_s

    def due_s(self, rto_s: float) -> float:
        """When to give up the oldest one, if the bolt does not report what it holds.

        Without that, one lost tuple would take its place in the window for ever (S48).
        """
        return next(iter(self.values())) + rto_s if self and not self.are_told else inf

    def is_unheard(self, heard_at_s: float) -> bool:
        """Whether the bolt, last heard then, said nothing since the oldest was given up."""
        return bool(self) and not self.are_told and heard_at_s <= next(iter(self.values()))

"""Where a loop's messages come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Inbox(Protocol[T_co]):
    """Messages, a batch at a time."""

    def consume(
        self, handle: Callable[[T_co], None], until: Callable[[], bool] | None = None
    ) -> int:
        """Give a batch of messages to ``handle``, in order; return how many.

        Ends early, before it takes another, when ``until()`` is true.
        """

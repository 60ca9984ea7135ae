"""When a slot waits for a save, so that a kill of the driver repeats at most two batches.  Pure.

The driver tells a bolt how many of its reports are saved.  A slot begins a batch once the batch
before the last one is: then only the last one and the new one may have to be done again.  Nearly
always it is by then, as a batch takes longer than a save and what leads to it.  Only after a short
batch, or while saves are slow, the slot waits, and never for long: a store that is away must not
stop the work.
"""

from __future__ import annotations

from typing import Final

# So long may a slot wait in all [s]: while costs are learned it has three short batches, and on a
# busy machine a save takes .05 s, and at times more than .1 s.
PATIENCE_S: Final = 0.5
# What was used of that comes back as this share of the time of batches that did not have to wait.
# So waits cost at most a twentieth of the work, and with a store that is always slow only the half
# second; on a machine that is not busy a wait takes some milliseconds, after short batches only.
SHARE: Final = 0.05


class SlotSaves:
    """What is known to be saved of one slot's batches.  Not thread-safe.

    Reports are numbered from 1, by connection.
    """

    __slots__ = ("_batch_s", "_before", "_last", "_patience_s", "_waits_since_s")

    def __init__(self) -> None:
        # With which report the last batch went, and the one before; None: with none so far.
        self._last: int | None = 0
        self._before: int | None = 0
        self._batch_s = 0.0
        self._patience_s = PATIENCE_S
        self._waits_since_s: float | None = None

    @property
    def must_tell(self) -> bool:
        """Whether two batches are done and not reported: no save could have them."""
        return self._before is None

    @property
    def is_waiting(self) -> bool:
        """Whether the next batch waits for a save."""
        return self._waits_since_s is not None

    def done(self, batch_s: float) -> None:
        """A batch is done, and took so long."""
        self._before, self._last = self._last, None
        self._batch_s = batch_s

    def reported(self, number: int, *, is_awaited: bool) -> None:
        """What is done went with this report; ``is_awaited``: the driver tells of its save."""
        number = number if is_awaited else 0
        if self._before is None:
            self._before = number
        if self._last is None:
            self._last = number

    def wait_s(self, saved: int, now_s: float) -> float:
        """How long the next batch may wait to begin [s]; 0: it begins now.

        ``saved``: so many reports are known to be saved.
        """
        if self._before is None or self._before <= saved:
            self._begin(now_s)
            return 0.0
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        left_s = self._patience_s - (now_s - self._waits_since_s)
        if left_s > 0:
            return left_s
        self._patience_s, self._waits_since_s, self._batch_s = 0.0, None, 0.0
        return 0.0

    def _begin(self, now_s: float) -> None:
        if self._waits_since_s is None:
            back_s = SHARE * self._batch_s
        else:
            back_s = self._waits_since_s - now_s
            self._waits_since_s = None
        self._patience_s = min(PATIENCE_S, max(0.0, self._patience_s + back_s))
        self._batch_s = 0.0

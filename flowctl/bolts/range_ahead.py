"""Reads a range ahead of its processing, in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

from flowctl.core.messages import RangeEmission
from flowctl.range_ports import Block, RangeReader


class Sign:
    """NOT_YET: the next block is being read.  OVER: there are no more blocks."""


NOT_YET: Final = Sign()
OVER: Final = Sign()


class ReadAhead:
    """Reads one block while the one before is being processed, and no further.

    ``stop`` returns the current end of the range, where reading ends.  ``on_ready`` is called from
    the reading thread when the result of :meth:`take` has changed; set it before the first
    :meth:`take`.  The thread is a daemon: a read that hangs does not keep the process alive.
    """

    def __init__(
        self,
        reader: RangeReader,
        frame: RangeEmission,
        *,
        stop: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._frame = frame
        self._stop = stop
        self.on_ready: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._next: Block | BaseException | Sign = NOT_YET
        self._closed = False
        name = f"flowctl-read-{frame.tuple_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def take(self) -> Block | Sign:
        """Return the next block, NOT_YET, or OVER; raise what reading raised."""
        with self._changed:
            taken = self._next
            if self._closed:
                return OVER
            if isinstance(taken, BaseException):
                raise taken
            if not isinstance(taken, Sign):
                self._next = NOT_YET
                self._changed.notify_all()
            return taken

    def wait(self) -> None:
        """Wait until :meth:`take` returns something other than NOT_YET."""
        with self._changed:
            while self._next is NOT_YET and not self._closed:
                self._changed.wait()

    def close(self) -> None:
        """Stop reading after the current block; does not wait for it.  From any thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.on_ready()

    def _run(self) -> None:
        frame = self._frame
        blocks: Iterator[Block] | None = None
        try:
            blocks = self._reader.open(frame.partition, frame.start, frame.stop, frame.identity)
            self._read(blocks)
            self._give(OVER)
        except BaseException as error:  # take() raises it
            self._give(error)
        finally:
            close = getattr(blocks, "close", None)
            if close is not None:
                close()

    def _read(self, blocks: Iterator[Block]) -> None:
        while self._has_room() and (block := next(blocks, None)) is not None:
            stop = block.stop
            self._give(block)
            del block  # it may be large, and the next one is about to be read
            if stop >= self._stop():
                return

    def _has_room(self) -> bool:
        """Wait until the last block was taken; return False if no more is wanted."""
        with self._changed:
            while self._next is not NOT_YET and not self._closed:
                self._changed.wait()
            return not self._closed

    def _give(self, what: Block | BaseException | Sign) -> None:
        with self._changed:
            while self._next is not NOT_YET and not self._closed:
                self._changed.wait()
            self._next = what
            self._changed.notify_all()
        self.on_ready()

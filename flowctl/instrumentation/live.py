"""The live view: one screen that is redrawn in place, with rich."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flowctl.core.events import FlowEvent
from flowctl.instrumentation import summary
from flowctl.instrumentation.base import BaseView
from flowctl.instrumentation.events import EventLogger, repeated, sentence
from flowctl.instrumentation.live_parts import bolt_table, checkpoint_lines, progress_line
from flowctl.instrumentation.long_calls import call_lines
from flowctl.instrumentation.pace import claim, dear_call, slow_bolts
from flowctl.instrumentation.paced_lines import target_lines
from flowctl.instrumentation.plain import is_routine, left_out, store_away, target_down
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.instrumentation.text import printable, printable_problem

EVENTS_SHOWN = 5  # the newest; what is above them must stay on the screen
# Headline, table head, checkpoint (2), progress, note, and the cursor: 12 bolts fit 24 lines.
_OTHER_LINES = 7


class Screen:
    """What is drawn: the headline, how the run stands, and the last few events.

    :meth:`render` needs no terminal, so pictures are drawn by it too.
    """

    def __init__(self, headline: str = "") -> None:
        self.headline = headline
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)

    def event(self, at: str, event: FlowEvent) -> None:
        """Note ``event`` if it is of interest to a person; ``at`` is the time to show."""
        text = sentence(event)
        if text and not is_routine(event):
            self._events.append(f"{at}  {text}")

    def note(self, at: str, text: str) -> None:
        """Note a line among the events."""
        self._events.append(f"{at}  {text}")

    def render(self, snapshot: Snapshot, *, width: int, height: int) -> Group:
        """Return the whole screen for ``snapshot`` on ``width`` columns and ``height`` lines."""
        lost, slow = "  ".join(left_out(snapshot)), claim(slow_bolts(snapshot))
        dear = dear_call(snapshot.dear_call)
        paced, stuck = target_lines(snapshot), call_lines(snapshot.long_calls)
        extra = bool(lost) + bool(slow) + len(dear) + len(paced) + len(stuck)
        rows = max(3, height - _OTHER_LINES - EVENTS_SHOWN - extra)
        parts = [
            _line(self.headline, "bold"),
            *bolt_table(snapshot, rows_max=rows, width=width),
            *checkpoint_lines(snapshot, width=width),
            progress_line(snapshot),
        ]
        if slow:
            parts.append(_line(slow, "yellow"))
        parts += [_line(text, "yellow") for text in stuck]
        parts += [_line(text, "") for text in paced]
        parts += [_line(text, "dim") for text in dear]
        if lost:
            parts.append(_line(lost, "yellow"))
        if snapshot.note:
            parts.append(_line(snapshot.note, "yellow"))
        if snapshot.target_down_s is not None:
            parts.append(_line(target_down(snapshot), "bold red"))
        if snapshot.store_away_s is not None:
            parts.append(_line(store_away(snapshot), "bold red"))
        parts += [_line(text, "dim") for text in self._events]
        return Group(*parts)


class LiveView(BaseView):
    """Redraws on every :meth:`update`; keeps the last few events with their reasons."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        logger: EventLogger | None = None,
    ) -> None:
        super().__init__(clock=clock, logger=logger)
        self._console = console or Console(file=stream, highlight=False)
        self._screen = Screen()
        self._last: Snapshot | None = None
        self._live: Live | None = None

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        self._screen.headline = headline
        # Redrawn only by update(): a refresh thread of rich's would race with the caller.
        live = self._live = Live(
            Text(printable(headline)),
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
        )
        self._show(lambda: live.start(refresh=True))

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        self._last = snapshot
        self._draw()

    def show_event(self, event: FlowEvent) -> None:
        self._screen.event(self.now(), event)

    def show_repeats(self, event: FlowEvent, count: int) -> None:
        self._screen.note(self.now(), repeated(event, count))

    def message(self, text: str) -> None:
        # As Text: markup and emoji codes in foreign text have no effect.
        shown = Text(printable_problem(text))
        self._show(lambda: self._console.print(shown, highlight=False))

    def stop(self, report: Report) -> None:
        super().stop(report)
        if self._live is not None:
            self._draw()
            self._end()
        for text in summary.lines(report):
            self.message(text)

    def render(self, snapshot: Snapshot) -> Group:
        """Return the whole screen for ``snapshot``."""
        size = self._console.size
        return self._screen.render(snapshot, width=size.width, height=size.height)

    def _draw(self) -> None:
        live, last = self._live, self._last
        if live is not None and last is not None:
            self._show(lambda: live.update(self.render(last), refresh=True))
        if self._is_lost:
            self._end()

    def _end(self) -> None:
        """Give the terminal back, and the standard streams, whether it is still there or not."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()


def _line(text: str, style: str) -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")

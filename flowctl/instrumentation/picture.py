"""The live view at one moment of a run as SVG files: for a page, or to show it to somebody."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from flowctl.core.events import FlowEvent
from flowctl.instrumentation.live import Screen
from flowctl.instrumentation.numbers import clock
from flowctl.instrumentation.snapshot import Report, Snapshot, View

# The usual widths of a terminal: an old one, half a screen, a whole one.
COLUMNS: Final = (80, 108, 160)
_LINES = 40
# The fonts that rich's pictures load from the web: a stored picture should need no network.
_WEB_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Picture:
    """A view that passes everything on to ``inner`` and draws one moment of the run.

    ``at_s``: how long after the first ack [s]; if the run ends before, its last moment.  With
    several ``columns``, each width has a file of its own: ``view-80.svg`` beside ``view-108.svg``.
    """

    def __init__(
        self, inner: View, path: Path, *, at_s: float, columns: Sequence[int], title: str
    ) -> None:
        self._inner = inner
        self._files = {
            width: path if len(columns) == 1 else path.with_stem(f"{path.stem}-{width}")
            for width in columns
        }
        self._at_s = at_s
        self._title = title
        self._screen = Screen()
        self._first_ack_s: float | None = None
        self._last: Snapshot | None = None
        self._is_drawn = False

    def start(self, job: str, headline: str) -> None:
        self._screen.headline = headline
        self._inner.start(job, headline)

    def update(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        if self._first_ack_s is None and snapshot.records_acked:
            self._first_ack_s = snapshot.elapsed_s
        if self._first_ack_s is not None and snapshot.elapsed_s - self._first_ack_s >= self._at_s:
            self._draw()
        self._inner.update(snapshot)

    def event(self, event: FlowEvent) -> None:
        at_s = self._last.elapsed_s if self._last is not None else 0.0
        self._screen.event(clock(at_s, tenths=True), event)
        self._inner.event(event)

    def message(self, text: str) -> None:
        self._inner.message(text)

    def stop(self, report: Report) -> None:
        self._draw()
        self._inner.stop(report)

    def _draw(self) -> None:
        if self._is_drawn or self._last is None:
            return
        self._is_drawn = True
        for width, path in self._files.items():
            path.write_text(self._svg(self._last, width), encoding="utf-8")

    def _svg(self, snapshot: Snapshot, width: int) -> str:
        console = Console(
            width=width,
            height=_LINES,
            record=True,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
        )
        console.print(self._screen.render(snapshot, width=width, height=_LINES))
        svg = console.export_svg(title=self._title, unique_id="flowctl")
        return _WEB_FONTS.sub("", svg)

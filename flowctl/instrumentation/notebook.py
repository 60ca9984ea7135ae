"""The view below a notebook's cell: the first third of the page, as plain HTML that is replaced.

It needs no extension and no script: the notebook keeps what was shown last, and so does an export.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final, TextIO, cast

from flowctl.core import events as ev
from flowctl.instrumentation import page_parts
from flowctl.instrumentation.plain import PlainView
from flowctl.instrumentation.snapshot import Report, Snapshot

# A person sees no more, and each state goes through the notebook's server.
EVERY_S: Final = 1.0
LINES_MAX: Final = 12  # of what the plain view says: the newest, so that the cell stays small

# Inline, as a notebook has a style sheet of its own; colours are seen on light and dark.
_BOX: Final = "font:13px/1.5 system-ui,sans-serif;max-width:64em"
_TONES: Final = {"calm": "#2f7ed8", "good": "#2e9e5b", "warn": "#c77700", "bad": "#d33c3c"}
_BARS: Final = ("#2e9e5b", "#2f7ed8", "#c77700", "#8a63d2", "#5f8a8b", "#d33c3c", "#999999")


class _Lines:
    """A stream that keeps the last lines written to it."""

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=LINES_MAX)

    def write(self, text: str) -> int:
        """Keep the lines of ``text``, which has whole lines, or an end of one."""
        self.kept.extend(line for line in text.splitlines() if line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: all is kept at once."""


class NotebookView(PlainView):
    """Shows a run by ``show``, which gets the HTML of its newest state; for one thread."""

    def __init__(self, show: Callable[[str], object], *,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._lines = _Lines()
        super().__init__(cast("TextIO", self._lines), clock=clock)
        self._show_html = show
        self._next_s = 0.0
        self._head = ""  # the HTML above the lines

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        self._head = f"<b>{escape(job)}</b>"
        self._draw()

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + EVERY_S
        told = page_parts.verdict(snapshot, time.time())
        self._head = _head(told, page_parts.tiles(snapshot), snapshot.progress)
        self._draw()

    def message(self, text: str) -> None:
        super().message(text)
        self._draw()

    def show_event(self, event: ev.FlowEvent) -> None:
        super().show_event(event)
        self._next_s = min(self._next_s, self._clock())  # with the next state

    def stop(self, report: Report) -> None:
        super().stop(report)
        progress = 1.0 if report.outcome == "finished" else None
        self._head = _head(page_parts.ended(report), page_parts.tiles_of(report), progress)
        self._draw()

    def _draw(self) -> None:
        lines = escape("\n".join(self._lines.kept))
        html = f'<div style="{_BOX}">{self._head}<pre style="font-size:11px">{lines}</pre></div>'
        self._show(lambda: self._show_html(html))


def _head(told: Mapping[str, Any], tiles: list[list[str]], progress: float | None) -> str:
    """Return the verdict, what to change, the figures, and where the time of the bolts went."""
    since = f" <small>{escape(told['since'])}</small>" if told["since"] else ""
    parts = [
        f'<div style="border-left:4px solid {_TONES[told["tone"]]};padding-left:8px">'
        f"<b>{escape(told['sentence'])}</b>{since}<br>{escape(told['remedy'])}</div>"
    ]
    if progress is not None:
        parts.append(f'<progress max="1" value="{progress:.4f}" style="width:100%"></progress>')
    parts.append('<div style="display:flex;flex-wrap:wrap;gap:4px 28px">')
    for label, value, more in tiles:
        parts.append(
            f"<div><small>{escape(label)}</small><br><b>{escape(value)}</b>"
            f"<br><small>{escape(more)}</small></div>"
        )
    parts.append("</div>")
    return "".join([*parts, _bar(told["shares"])])


def _bar(shares: list[tuple[str, float, str, str]]) -> str:
    if not shares:
        return ""
    bar, words = [], []
    for number, (name, share, text, meaning) in enumerate(shares):
        colour = _BARS[number % len(_BARS)]
        style = f"display:inline-block;height:8px;width:{100 * share:.1f}%;background:{colour}"
        bar.append(f'<span title="{escape(meaning)}" style="{style}"></span>')
        words.append(f'<span style="color:{colour}">■</span> {escape(name)} {escape(text)}')
    return f'<div style="margin-top:6px">{"".join(bar)}<br><small>{" ".join(words)}</small></div>'


def notebook_view() -> NotebookView | None:
    """Return the view of the notebook that this process is the kernel of; None: it is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:  # IPython in a terminal has none
        return None
    from importlib import import_module

    display: Any = import_module("IPython.display")
    handle: Any = None

    def show(html: str) -> None:
        nonlocal handle
        shown = display.HTML(html)
        if handle is None:
            handle = display.display(shown, display_id=True)
        else:
            handle.update(shown)

    return NotebookView(show)

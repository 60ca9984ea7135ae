"""The common part of all views, and the choice of one: ``live`` on a terminal, below the cell in a
notebook, ``plain`` lines elsewhere.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, TextIO

import msgspec

from flowctl.core.events import FlowEvent
from flowctl.errors import ConfigError
from flowctl.instrumentation import numbers
from flowctl.instrumentation.event_text import EventLogger, log_event, log_repeats
from flowctl.instrumentation.failure_groups import Repeats
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.snapshot import Report, Snapshot, View


class BaseView:
    """Shows nothing; logs each event.  Also the view of mode ``quiet``.

    The first failure of a kind is logged and shown at once.  Further ones are logged at level
    debug, and summed up every few seconds, and at the end, as one ``failures_repeated`` event.

    For one thread.  Times on screen are counted from :meth:`start` by ``clock`` [s]: the core's own
    ``at_s`` has an arbitrary origin.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        logger: EventLogger | None = None,
    ) -> None:
        self._clock = clock
        self._logger = logger or get_logger()
        self._started_s = clock()
        self._repeats = Repeats(clock)
        self._is_lost = False  # it is not visible any more

    def start(self, job: str, headline: str) -> None:
        self._started_s = self._clock()

    def update(self, snapshot: Snapshot) -> None:
        """Show the state of the run."""
        self._tell_repeats()

    def event(self, event: FlowEvent) -> None:
        if self._repeats.is_news(event):
            log_event(self._logger, event)
            self.show_event(event)
        else:
            log_event(self._logger, event, level=logging.DEBUG)

    def _tell_repeats(self, *, is_end: bool = False) -> None:
        for event, count in self._repeats.due(is_end=is_end):
            log_repeats(self._logger, event, count)
            self.show_repeats(event, count)

    def show_event(self, event: FlowEvent) -> None:
        """Show ``event`` if it is of interest to a person."""

    def show_repeats(self, event: FlowEvent, count: int) -> None:
        """Show that there were ``count`` more like ``event``, which is the last of them."""

    def message(self, text: str) -> None:
        """Show a line."""

    def stop(self, report: Report) -> None:
        """Show how the run ended and give the terminal back."""
        self._tell_repeats(is_end=True)

    def join(self, elapsed_s: float) -> None:
        """The run that is shown began ``elapsed_s`` ago [s]; to be called after :meth:`start`."""
        self._started_s = self._clock() - elapsed_s

    def leave(self) -> None:
        """Give the terminal back; the run that was shown goes on."""

    def _show(self, draw: Callable[[], object]) -> None:
        """Call ``draw`` unless the terminal or the reader is gone; if it just went, log that.

        After ``| head``, a closed terminal or a full disk the run goes on without output.
        """
        if self._is_lost:
            return
        try:
            draw()
        except OSError as error:
            self._is_lost = True
            with suppress(OSError):  # the log may be gone the same way
                self._logger.log(logging.WARNING, "view_lost", error=str(error))

    def now(self) -> str:
        """Return the time since the start as ``0:14.2``."""
        return numbers.clock(self._clock() - self._started_s, tenths=True)


class Beside:
    """Shows nothing itself and passes everything on to ``inner``, another view.

    Base of what listens to a run beside the view that a person sees.
    """

    def __init__(self, inner: View) -> None:
        self._inner = inner

    def start(self, job: str, headline: str) -> None:
        self._inner.start(job, headline)

    def update(self, snapshot: Snapshot) -> None:
        """Pass on the state of the run."""
        self._inner.update(snapshot)

    def event(self, event: FlowEvent) -> None:
        self._inner.event(event)

    def message(self, text: str) -> None:
        """Pass on a line."""
        self._inner.message(text)

    def stop(self, report: Report) -> None:
        """Pass on how the run ended."""
        self._inner.stop(report)


_PORT_MAX: Final = 65_535

# "off" is the old name of "quiet".
ViewMode = Literal["auto", "live", "plain", "quiet", "off"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The page of a run in a browser, beside another view: ``view=flowctl.Page(port=8080)``.

    ``port``: 0 is any free one, which the view beside it names.  ``host``: on another address than
    loopback the page asks for a token, which stands in the address that is shown.
    """

    port: int = 0
    host: str = "127.0.0.1"
    beside: ViewMode = "auto"

    @classmethod
    def at(cls, place: str, *, name: str) -> Page:
        """Return the page at ``[HOST:]PORT``; a :class:`ConfigError` for another text is about
        ``name``.
        """
        host, _, port = place.rpartition(":")
        if not port.isascii() or not port.isdecimal() or int(port) > _PORT_MAX:
            raise ConfigError(
                name, f"{place!r} is not [HOST:]PORT.", remedy="Example: --page 8080, or --page 0."
            )
        return cls(port=int(port), host=host.strip("[]")) if host else cls(port=int(port))

    @property
    def place(self) -> str:
        """``HOST:PORT``, as :meth:`at` takes it."""
        return f"{self.host}:{self.port}"


def make_view(mode: ViewMode, *, stream: TextIO | None = None) -> BaseView:
    """Return the view for ``mode``; ``stream`` defaults to the terminal, else to stderr.

    In a notebook ``auto`` is a view below the cell.  Raises :class:`ConfigError` for an unknown
    mode.  rich is imported only for ``live`` and in notebooks.
    """
    if mode == "auto" and stream is None and "IPython" in sys.modules:
        from flowctl.instrumentation.notebook import notebook_view

        if (view := notebook_view()) is not None:
            return view
    stream = stream or _default_stream()
    if mode == "auto":
        mode = "live" if suits_live(stream) else "plain"
    if mode == "live":
        from flowctl.instrumentation.live import LiveView

        return LiveView(stream)
    if mode == "plain":
        from flowctl.instrumentation.plain import PlainView

        return PlainView(stream)
    if mode in ("quiet", "off"):
        return BaseView()
    raise ConfigError(
        "view", f"{mode!r} is not a view.", remedy="Use auto, live, plain, quiet or page."
    )


def suits_live(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that understands cursor control and that a person sees."""
    env = os.environ
    return stream.isatty() and env.get("TERM", "dumb") != "dumb" and not env.get("CI")


def _default_stream() -> TextIO:
    # stderr first: stdout may carry a job's own output, as in ``job.py > rows.csv``.
    # Either is None in a program whose caller closed it.
    for stream in (sys.stderr, sys.stdout):
        if stream is not None and stream.isatty():
            return stream
    return sys.stderr or sys.stdout or open(os.devnull, "w", encoding="utf-8")

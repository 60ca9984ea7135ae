"""Which view to use: ``live`` on a terminal, ``plain`` lines elsewhere, or ``quiet``."""

from __future__ import annotations

import os
import sys
from typing import Literal, TextIO

from flowctl.errors import ConfigError
from flowctl.instrumentation.snapshot import View

# "off" is what "quiet" was called.
ViewMode = Literal["auto", "live", "plain", "quiet", "off"]


def make_view(mode: ViewMode, *, stream: TextIO | None = None) -> View:
    """Return the view for ``mode``; ``stream`` defaults to the terminal, else to stderr.

    Raises :class:`ConfigError` for an unknown mode.  rich is imported only for ``live``.
    """
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
        from flowctl.instrumentation.base import BaseView

        return BaseView()
    raise ConfigError("view", f"{mode!r} is not a view.", remedy="Use auto, live, plain or quiet.")


def suits_live(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that understands cursor control and is seen by a person."""
    env = os.environ
    return stream.isatty() and env.get("TERM", "dumb") != "dumb" and not env.get("CI")


def _default_stream() -> TextIO:
    # stderr first: stdout may carry a job's own output, as in ``job.py > rows.csv``.
    # Either is None in a program whose caller closed it.
    for stream in (sys.stderr, sys.stdout):
        if stream is not None and stream.isatty():
            return stream
    return sys.stderr or sys.stdout or open(os.devnull, "w", encoding="utf-8")

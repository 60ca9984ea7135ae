"""Threads that can't die silently: a run without one of them would continue and be wrong."""

from __future__ import annotations

import errno
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from flowctl.errors import FlowctlError, InfrastructureError, InternalError

OnDeath: TypeAlias = Callable[[FlowctlError], None]


def death_of(thread: str, error: BaseException) -> FlowctlError:
    """Return the error that ends the run when ``thread`` died of ``error``.

    flowctl's own errors say who must act; any other is a defect, and says where it happened.
    """
    if isinstance(error, FlowctlError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return InfrastructureError(
            f"the thread {thread} could open no more files or connections ({error.strerror}).",
            remedy="Raise the limit (ulimit -n), or use fewer bolts; what was acked is saved.",
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    death = InternalError(
        f"the thread {thread} died of {type(error).__name__}: {error}{where}.",
        remedy="Please report this; what was acked is saved, and a new run resumes from there.",
    )
    death.__cause__ = error
    return death


def guarded(work: Callable[..., None], *, name: str, on_death: OnDeath) -> Callable[..., None]:
    """Return ``work`` for the thread ``name``: whatever it raises goes to ``on_death``."""

    def run(*arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # also SystemExit: it would end the thread silently
            on_death(death_of(name, error))

    return run


class GuardedThread(threading.Thread):
    """A daemon thread; an exception of :meth:`work` is passed to ``on_death``, and never lost."""

    def __init__(self, name: str, *, on_death: OnDeath) -> None:
        super().__init__(name=name, daemon=True)
        self._on_death = on_death

    def work(self) -> None:
        """Do the work of the thread."""
        raise NotImplementedError

    def run(self) -> None:
        guarded(self.work, name=self.name, on_death=self._on_death)()

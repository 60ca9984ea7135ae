"""Bolts leave a place that is about to go (a decommissioned executor) before it does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from flowctl.core.leaving import dismiss, retire
from flowctl.core.tuple_core import TupleCore
from flowctl.ports import Bolts
from flowctl.runtime.control import RunControl


@runtime_checkable
class MovingBolts(Protocol):
    """Bolts (:class:`flowctl.ports.Bolts`) that know when their place is about to go."""

    def leaving(self) -> Collection[str]:
        """Names of the bolts that should leave soon, as a Spark executor is decommissioned.

        Each is ended (END) once it holds nothing, and then has to be run again at another place.
        Called a few times a second, from one thread.
        """


class Departures:
    """Checks the bolts of one run now and then; for one thread.

    Not for topologies, whose bolts may hold inputs for as long as they like: those go on until
    their place is gone.
    """

    def __init__(self, control: RunControl, bolts: Bolts) -> None:
        self._control = control
        self._bolts = bolts if isinstance(bolts, MovingBolts) else None
        self._retired: dict[str, int] = {}  # the epoch of the connection that is to end

    def look(self) -> list[str]:
        """Retire bolts, and end those that hold nothing any more; return the messages."""
        control, core = self._control, self._control.core
        if self._bolts is None or not isinstance(core, TupleCore):
            return []
        leaving = self._bolts.leaving()
        if not leaving:
            return []
        messages: list[str] = []
        with control.lock:
            for bolt in leaving:
                consumer = core.bolts.get(bolt)
                if consumer is None:
                    continue
                if self._retired.get(bolt) == consumer.epoch:
                    dismiss(core, bolt, control.clock(), "its place is about to go")
                    continue
                self._retired[bolt] = consumer.epoch
                retire(core, bolt, control.clock())
                messages.append(self._message(bolt))
        control.wake()
        return messages

    def _message(self, bolt: str) -> str:
        host, _ = self._control.places.get(bolt, ("", 0))
        where = f"{bolt}{f' on {host}' if host else ''}"
        return f"{where} is about to lose its place: it finishes what it has begun and moves"

"""A driver in waiting: it runs a job only while no other driver holds the job's lease.

The lease keeps two drivers from working at once; it is not what makes that safe.  That is the epoch
(:meth:`flowctl.ports.CheckpointStore.acquire`): a driver that was only cut off and comes back finds
itself fenced in the store and in the sink.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, runtime_checkable

from flowctl.errors import CheckpointUnavailableError, ConfigError, FlowctlError
from flowctl.logs import ModuleLogger
from flowctl.ports import CheckpointStore
from flowctl.runtime.interrupts import Interrupts

# Renewed three times in this time: two tries may fail, and a driver that is gone is missed for
# 3 seconds at most.
LEASE_S: Final = 3.0
_RENEW_S: Final = LEASE_S / 3
# How late a free lease may be noticed, at four requests a second.
_LOOK_S: Final = 0.25
_LOOKS_OF_A_LEASE: Final = round(LEASE_S / _LOOK_S)

_log = ModuleLogger("flowctl.standby")


@runtime_checkable
class LeasingStore(Protocol):
    """A checkpoint store that knows which driver works on a job, until that driver is silent."""

    def lease(self, job: str, owner: str, for_s: float) -> str:
        """Give ``owner`` the lease of ``job`` for ``for_s`` if it is free or already its own.

        Returns the holder, "" if there is none.  ``for_s`` 0 gives the lease up, and with the owner
        "" only asks.  The store's clock decides, and the lease does not fence: epochs do.
        """


class Standby:
    """Waits for the lease of ``job`` in ``store``, then holds it.  For one thread.

    ``say`` gets lines to show.  Raises :class:`ConfigError` for a store that has no leases.
    """

    def __init__(
        self,
        store: CheckpointStore,
        job: str,
        *,
        say: Callable[[str], None],
        pause: Callable[[float], object] | None = None,
    ) -> None:
        if not isinstance(store, LeasingStore):
            raise ConfigError(
                "--standby",
                "the drivers have no checkpoint store in common.",
                remedy="Give both the same one: --redis URL.",
            )
        self._store = store
        self._job = job
        self._say = say
        self._pause = pause or threading.Event().wait
        # A readable name; the number distinguishes two processes of one name (containers).
        self._owner = f"{socket.gethostname()} (process {os.getpid()}) {secrets.token_hex(4)}"

    def wait(self) -> None:
        """Return when the lease is ours.

        After an outage of the store, the earlier holder gets the length of one lease to take it
        again: it may have gone on working all the time.
        """
        told = ""
        patience = 0  # looks during which a free lease is left to its earlier holder
        while True:
            news = told
            try:
                holder = self._store.lease(self._job, "", 0.0) if patience else self.take()
            except CheckpointUnavailableError as error:
                patience = _LOOKS_OF_A_LEASE
                news = f"standby: {error.problem}"
            else:
                if holder == self._owner:
                    break
                patience = max(0, patience - 1)
                if holder:
                    news = f"standby: waiting while {_shown(holder)} runs {self._job}"
            if news != told:
                self._say(news)
                told = news
            self._pause(_LOOK_S)
        if told:
            self._say(f"standby: taking over {self._job}")

    def take(self) -> str:
        """Take or renew the lease; return its holder."""
        return self._store.lease(self._job, self._owner, LEASE_S)

    def release(self) -> None:
        """Give the lease up, if it is ours, so that another driver need not wait until it ends."""
        with suppress(FlowctlError):  # if that fails, the lease ends by itself
            self._store.lease(self._job, self._owner, 0.0)

    def keep(self, closing: threading.Event) -> None:
        """Renew the lease until ``closing`` is set.  For a thread of its own."""
        is_ours = True
        while not closing.wait(_RENEW_S):
            try:
                holder = self.take()
            except FlowctlError:  # the checkpointer reports it; the run itself may be fine
                continue
            if is_ours and holder != self._owner:
                # Not an error here: the next save is refused, and that ends the run.
                _log.warning("lease_lost", job=self._job, holder=_shown(holder))
            is_ours = holder == self._owner


@contextmanager
def standing_by(store: CheckpointStore, job: str, *, say: Callable[[str], None]) -> Iterator[None]:
    """Wait for the lease of ``job``; hold it while the block runs, then give it up.

    SIGINT and SIGTERM end the waiting with KeyboardInterrupt.
    """
    standby = Standby(store, job, say=say)
    with Interrupts().taken():
        standby.wait()
    closing = threading.Event()
    keeper = threading.Thread(
        target=standby.keep, args=(closing,), name="flowctl-lease", daemon=True
    )
    keeper.start()
    try:
        yield
    finally:
        closing.set()
        keeper.join()
        standby.release()


def _shown(holder: str) -> str:
    """Return the holder without the number, which is only for our own use."""
    return holder.rpartition(" ")[0]

"""Batch APIs, as a protocol: many requests are handed in at once and answered within hours.

:func:`pyspark_flowctl.apply` takes such a service in place of a function.  ``flowctl_http`` has
those of OpenAI and Anthropic.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flowctl.compat import StrEnum
from flowctl.failure.kinds import Kind


class BatchState(StrEnum):
    """What became of a batch that was submitted."""

    WORKING = "working"
    ENDED = "ended"
    """Its answers can be fetched, as far as there are any."""
    REFUSED = "refused"
    """The service has no room for it now: nothing was done, and it may be submitted again."""


class Found(NamedTuple):
    """What a search for a batch gave: its ``id``, or "" if it is not there.

    ``is_sure``: whether it is known by now; else the search has to be repeated.
    """

    id: str
    is_sure: bool = True


class Answer(NamedTuple):
    """The answer to the request ``key``: its ``body``, or ``error`` and what kind of error that is.

    ``body`` is JSON.
    """

    key: str
    body: bytes = b""
    error: str = ""
    kind: Kind = Kind.FAULT


@runtime_checkable
class BatchService(Protocol):
    """A service that answers requests in batches.  All calls come from one thread of the driver.

    A batch has at most ``rows_max`` requests and ``bytes_max`` bytes; at most ``at_once`` are under
    way (None: any number).  The service is asked every ``poll_s`` whether one has ended.  A submit
    whose answer was lost is looked for until ``settle_s`` after it was begun; only then, if it was
    not found, the batch is submitted again.

    Errors of calls are judged as those of any target: where it refuses, the call is made again.
    """

    rows_max: int
    bytes_max: int
    at_once: int | None
    poll_s: float
    settle_s: float

    @property
    def request(self) -> Callable[[Any], Any]:
        """The user's function that makes a request of a row; None: this row has no request."""

    @property
    def result(self) -> Callable[[Any, Any], Any]:
        """The user's function of a row and the answer's body: a row, a list of rows, or None."""

    def line(self, key: str, request: Any) -> bytes:
        """Return a request as a line of a batch.

        ``key`` is unique, and has at most 64 letters, digits, "-" and "_".  It begins with the mark
        of its batch.
        """

    def submit(self, lines: Sequence[bytes], mark: str) -> str:
        """Submit a batch, so that :meth:`find` finds it by ``mark``; return its id."""

    def find(self, mark: str, requests: int, *, since_s: float, known: Container[str]) -> Found:
        """Look for the batch that was submitted with ``mark`` at ``since_s`` (Unix time) or later.

        It has so many ``requests``.  Batches with ``known`` ids are others.
        """

    def poll(self, id: str) -> BatchState:
        """Return the state of the batch; raise a :class:`flowctl.errors.JobError` if the whole of
        it can't be done.
        """

    def fetch(self, id: str) -> Iterator[Answer]:
        """Yield the answers of a batch that has ended, in any order; it may be called again."""

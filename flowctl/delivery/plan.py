"""How the rows of a partition are delivered: one value object for all of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.blame import GIVEN_UP_FIRST_MAX
from flowctl.core.settings import RetrySettings
from flowctl.delivery.pacers import RowTargets
from flowctl.failure.classify import RefusalRule
from flowctl.pacing.budgets import Cost
from flowctl.ports import DeadLetter, Process

# A bulk request of a search engine or an INSERT of 500 rows: more gain little, and what is refused
# or fails comes again as a whole.
ROWS_MAX = 500
# A call that takes longer than this says late how the target is; see the epoch of the law (.25 s).
CALL_MAX_S = 0.5


class Where(msgspec.Struct, frozen=True):
    """The name of what is delivered: ``job`` and ``partition`` of spans and dead letters.

    ``attempt``: how often it was begun, this time included.  ``place`` gives a row number the form
    of a position.  ``rest``: how many of the rows that come next are in the section of the one that
    was read last; a call has rows of one section (:mod:`flowctl.delivery.sections`).
    ``section_of`` a position: the lowest and highest of its section; None: there are no sections.
    ``before``: the position up to which nothing of the partition is to be written any more; above
    it others may be at work, or rows may be missing.  None: all positions are this delivery's.
    """

    job: str
    partition: str
    attempt: int = 1
    place: Callable[[int], Any] = lambda number: number
    rest: Callable[[], int] = lambda: sys.maxsize
    section_of: Callable[[Any], tuple[Any, Any]] | None = None
    before: Any = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to deliver.  ``fail_over``, ``dead_letter`` and ``refusal`` as ``flow_sink`` has them.

    ``bytes_max``: of the rows of a call, as :class:`flowctl.core.limit.BytesPerCall` counts.
    ``cost``: what a batch takes of the target's budget.  ``letter_value`` turns a row into what the
    dead letter keeps.  ``at_end``: a share of ``fail_over`` counts at the partition's end too.
    ``gave_up_in_a_row_max``: so many rows may be given up, and kept, while no call succeeds; more,
    and it is the target or fn that fails.
    ``release`` gives back what the target counts, such as a connection; the next call takes it
    again.  ``call_timeout_s``: a call that takes longer is a failure of its rows; None: it may take
    as long as it likes.  ``keep`` gets what a call returned, if it returned in time.  ``calls``: so
    many may be made at once, in any order; 1: one after the other, in the order of the rows.
    ``target``: which of several targets each row is for; None: all are for one.
    """

    process: Process
    rows_max: int = ROWS_MAX
    bytes_max: int | None = None
    call_max_s: float = CALL_MAX_S
    attempts_max: int = RetrySettings().attempts_max
    refusal: RefusalRule | None = None
    dead_letter: DeadLetter | None = None
    fail_over: str | None = None
    cost: Callable[[Batch], Cost] | None = None
    letter_value: Callable[[Any], Any] | None = None
    at_end: bool = True
    gave_up_in_a_row_max: float = GIVEN_UP_FIRST_MAX
    release: Callable[[], object] | None = None
    call_timeout_s: float | None = None
    keep: Callable[[Any], object] | None = None
    calls: int = 1
    target: RowTargets | None = None

"""What a run promises about each record, and so what may be committed when (S86–S89).

==================  ==========================  ===============  ==============================
mode                what is committed           when             a tuple that fails or expires
==================  ==========================  ===============  ==============================
AT_LEAST_ONCE       what is acked               on the interval  goes again (core/retry.py)
AT_MOST_ONCE        what was read               before any emit  is dropped, counted and told
NO_GUARANTEE        what was read               on the interval  is dropped, counted and told
==================  ==========================  ===============  ==============================

In the last two modes nothing is kept of single acks: windows still count what is
under way, for back-pressure, as Storm does with ``tupleTrackingEnforced`` (S105).
"""

from __future__ import annotations

import enum
from typing import Literal

GuaranteeName = Literal["at_least_once", "at_most_once", "no_guarantee"]


class ProcessingGuarantee(enum.Enum):
    """How often each record may have its effect.  The values are those of ``guarantee.mode``."""

    AT_LEAST_ONCE = "at_least_once"  # once or more
    AT_MOST_ONCE = "at_most_once"  # once or not at all
    NO_GUARANTEE = "no_guarantee"  # any number of times; may vanish without a word

    @property
    def commits_acked(self) -> bool:
        """Only what is acked may be committed; otherwise what was read is."""
        return self is ProcessingGuarantee.AT_LEAST_ONCE

    @property
    def commits_before_emit(self) -> bool:
        """Right after the poll, synchronously; the interval is ignored (S88)."""
        return self is ProcessingGuarantee.AT_MOST_ONCE

    @property
    def commits_on_interval(self) -> bool:
        """A timer commits; without it there is none at all."""
        return not self.commits_before_emit

    @property
    def sends_again(self) -> bool:
        """What failed, expired or got lost is sent again.

        What a bolt gave back without having begun it goes to another in every mode: it had no
        effect, so that is its first time.
        """
        return self is ProcessingGuarantee.AT_LEAST_ONCE

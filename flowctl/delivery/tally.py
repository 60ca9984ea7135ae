"""The outcomes of the delivered rows: every row is in exactly one count."""

from __future__ import annotations

from typing import Annotated, Any

from flowctl.core.counters import Numbers


class Tally(Numbers, kw_only=True, forbid_unknown_fields=True):
    """Counts of one partition, or the sum of several.  Not thread-safe.

    ``rows`` were read.  Of these ``written`` were taken by the target (``left_out`` of them it had
    already), ``rejected`` were refused for good by ``fn`` (``batch.reject``), and ``gave_up``
    failed in every attempt; ``kept`` of the last two are in the dead letter.  ``calls`` of ``fn``;
    ``refused`` of them the target refused, ``failed`` of them raised something else.  ``called_s``
    was spent in ``fn``; ``waited_s`` was spent waiting for the target: for a place, and after
    refusals.  ``redriven`` letters of earlier runs were written beside these rows.
    """

    rows: int = 0
    written: int = 0
    left_out: Annotated[int, "of them already there"] = 0
    rejected: Annotated[int, "rejected"] = 0
    gave_up: Annotated[int, "given up"] = 0
    kept: Annotated[int, "kept in the dead letter"] = 0
    redriven: Annotated[int, "letters redriven"] = 0
    calls: int = 0
    refused: Annotated[int, "calls refused"] = 0
    failed: Annotated[int, "calls failed"] = 0
    called_s: float = 0.0
    waited_s: float = 0.0

    @property
    def lost(self) -> int:
        """Rows that the target does not have: rejected or given up."""
        return self.rejected + self.gave_up

    def fields(self) -> dict[str, Any]:
        """Return the counts for a line in a log; zeros are left out."""
        shown = {
            name: round(value, 3)
            for name in self.__struct_fields__
            if (value := getattr(self, name))
        }
        return {"rows": self.rows, "written": self.written, **shown}

    def __str__(self) -> str:
        parts = [f"{self.rows} rows: {self.written} written"]
        for name, words in self.meanings().items():
            if count := getattr(self, name):
                parts.append(f"{count} {words}")
        waited = f", waited {self.waited_s:.1f} s" if self.waited_s >= _WAITED_SHOWN_S else ""
        return f"{', '.join(parts)}; {self.calls} calls{waited}"


_WAITED_SHOWN_S = 0.1  # less [s] is the time of the requests themselves

"""Adopt finished results of a killed driver's bolts that its manifest does not name yet.

A result file appears as a whole, and its name tells which rows it covers.  So the next driver may
adopt it instead of processing these rows again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flowctl_apply._results import ResultFile, Results, partition_in_name, prefix_of, run_in_name

if TYPE_CHECKING:
    from flowctl.runtime.receipts import Entry

# The part of a name after the prefix, as new_name makes it for batches without rejected rows.
_WHOLE = re.compile(
    r"(?P<epoch>\d+)\.[^.]+\.(?P<partition>[0-9a-f]+)\.(?P<first>\d+)-(?P<last>\d+)"
    r"\.(?P<records>\d+)-(?P<rows>\d+)\.(?P<run>[0-9a-f]+)-[0-9a-f]+\.parquet"
)


class _Found(NamedTuple):
    partition: str
    first: int
    last: int
    records: int
    receipt: bytes


class Unnamed:
    """Finds unnamed results of one job."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def __call__(self, epoch: int) -> list[Entry]:
        """Return entries for files that bolts of the driver of ``epoch`` wrote; they may overlap.

        That driver must be the newest with a base, since ``gc`` may remove older files.  The
        longest entries come first, as only one of two that overlap can count.
        """
        from flowctl.runtime.receipts import Entry

        found = sorted(self._found(epoch), key=lambda one: (one.first - one.last, one))
        return [
            Entry(one.partition, one.first, one.last + 1, one.records, (one.receipt,))
            for one in found
        ]

    def _found(self, epoch: int) -> list[_Found]:
        results = self._results
        description = results.description()
        if description is None:
            return []
        by_mark: dict[str, list[str]] = {}
        for partition in description.files:
            by_mark.setdefault(partition_in_name(partition), []).append(partition)
        prefix, run, found = prefix_of(results.job), run_in_name(description.run), []
        for file in results.place.names():
            if not file.name.startswith(prefix):
                continue
            match = _WHOLE.fullmatch(file.name, len(prefix))
            if match is None or int(match["epoch"]) != epoch or match["run"] != run:
                continue
            partitions = by_mark.get(match["partition"], [])
            if len(partitions) == 1:  # otherwise the name doesn't tell its partition
                receipt = ResultFile(file.name, int(match["rows"]), file.size_bytes)
                first, last, records = (int(match[k]) for k in ("first", "last", "records"))
                data = msgspec.json.encode(receipt)
                found.append(_Found(partitions[0], first, last, records, data))
        return found

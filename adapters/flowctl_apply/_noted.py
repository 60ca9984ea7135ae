"""A source whose files must be the same as when the job began."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, FencedError
from flowctl.range_ports import RangeProducer, RangeReader
from flowctl_apply._results import Results


class Noted:
    """A :class:`flowctl.range_ports.RangeProducer` that remembers the extents of its files.

    Raises :class:`ConfigError` if a file differs from an earlier run's, or if there are results of
    files that it does not read; :class:`FencedError` if the job is no longer the one that began
    with ``run``.
    """

    def __init__(self, inner: RangeProducer, results: Results, *, run: str, may_grow: bool) -> None:
        self._inner = inner
        self._results = results
        self._run = run
        self._may_grow = may_grow
        self.seen: Mapping[str, Extent] = {}

    def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
        """See the port."""
        self.seen = self._inner.extents(checkpoint)
        description = self._results.description()
        if description is None or description.run != self._run:
            raise FencedError(
                f"another driver has begun {self._results.job!r} in {self._results.place.url}.",
                remedy="Let it work; or, to keep both, give one another name and out.",
            )
        now = {name: f"{extent.identity} {extent.stop}" for name, extent in self.seen.items()}
        known = description.files
        if known:
            self._check(known, now)
        if strangers := checkpoint.partitions.keys() - now.keys():
            raise ConfigError(
                "name",
                f"there are results of {min(strangers)}, which this job does not read: another one"
                " has begun under its name.",
                remedy="Give another name or out.",
            )
        if known != now:
            self._results.describe(msgspec.structs.replace(description, files=now))
        return self.seen

    def _check(self, known: Mapping[str, str], now: Mapping[str, str]) -> None:
        for name, identity in known.items():
            if now.get(name) != identity:
                what = "is gone" if name not in now else "is not the file of the first run"
                raise ConfigError(
                    "df",
                    f"{name} {what}, but the job has results of it.",
                    remedy="Restore it, or give another name.",
                )
        new = next((name for name in now if name not in known), None)
        if new is not None and not self._may_grow:
            raise ConfigError(
                "df",
                f"{new} was not there when the job began.",
                remedy="Give another name; or keep_results=True, to process it too.",
            )

    def reader(self) -> RangeReader:
        """See the port."""
        return self._inner.reader()

    def close(self) -> None:
        """See the port."""
        self._inner.close()

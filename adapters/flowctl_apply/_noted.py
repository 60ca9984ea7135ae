"""A source whose files must be the same as when the job began."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, FencedError
from flowctl.range_ports import RangeProducer, RangeReader
from flowctl_apply._results import Description, Results


def identities(extents: Mapping[str, Extent]) -> dict[str, str]:
    """Return as which each file was found."""
    return {name: f"{extent.identity} {extent.stop}" for name, extent in extents.items()}


def check_kept(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` if a file of ``known`` is gone or another one; there may be more.

    Both are :func:`identities`.
    """
    for name, identity in known.items():
        if now.get(name) != identity:
            what = "is gone" if name not in now else "is not the file of the first run"
            raise ConfigError(
                "df",
                f"{name} {what}, but the job has results of it.",
                remedy="Restore it, or give another name.",
            )


def added_to(known: Mapping[str, str], found: Mapping[str, Extent]) -> Mapping[str, Extent]:
    """Return what was ``found`` and is not ``known``, whose files must then be as they were."""
    added = {name: extent for name, extent in found.items() if name not in known}
    if added:
        check_kept(known, identities(found))
    return added


class Noted:
    """A :class:`flowctl.range_ports.RangeProducer` that remembers the extents of its files.

    Raises :class:`ConfigError` if a file differs from an earlier run's, or if there are results of
    files that it does not read; :class:`FencedError` if the job is no longer the one, or in the
    round, that it was at its ``begin``.
    """

    def __init__(self, inner: RangeProducer, results: Results, begin: Description) -> None:
        self._inner = inner
        self._results = results
        self._begin = begin.run, begin.round
        self.seen: Mapping[str, Extent] = {}

    def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
        """See the port."""
        self.seen = self._inner.extents(checkpoint)
        description = self._results.description()
        if description is None or (description.run, description.round) != self._begin:
            raise FencedError(
                f"another driver has begun {self._results.job!r} in {self._results.place.url}.",
                remedy="Let it work; or, to keep both, give one another name and out.",
            )
        known, now = description.files, identities(self.seen)
        check_kept(known, now)
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

    def reader(self) -> RangeReader:
        """See the port."""
        return self._inner.reader()

    def close(self) -> None:
        """See the port."""
        self._inner.close()

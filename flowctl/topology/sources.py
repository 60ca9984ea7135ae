"""Several producers as one: a topology may have several spouts, but a run has one reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.ports import (
    FlowProducer,
    MeasuredProducer,
    SharingProducer,
    SourceChunk,
    SourceHost,
    SourceProgress,
)

_NOTHING_YET = SourceChunk("", ())


def partition_of(spout: str, partition: str) -> str:
    """Return the name of a spout's partition in the topology's checkpoint."""
    return f"{spout}:{partition}"


def part_of(spout: str, checkpoint: Checkpoint) -> Checkpoint:
    """Return the spout's part of the topology's checkpoint, with the spout's own names."""
    prefix = partition_of(spout, "")
    return Checkpoint(
        {
            name.removeprefix(prefix): done
            for name, done in checkpoint.partitions.items()
            if name.startswith(prefix)
        }
    )


class SpoutHost:
    """What a run offers the producer of one spout (:class:`flowctl.ports.SourceHost`).

    As ``host``, with the spout's own names; its job name is also the spout's own, as two spouts of
    one topology are two readers to those they share partitions with.
    """

    def __init__(self, host: SourceHost, spout: str) -> None:
        self.job: str = partition_of(host.job, spout)
        self.guarantee: ProcessingGuarantee = host.guarantee
        self._host = host
        self._spout = spout

    def saved(self) -> Checkpoint:
        """See :class:`flowctl.ports.SourceHost`."""
        return part_of(self._spout, self._host.saved())

    def uncommitted(self, partition: str) -> int:
        """See :class:`flowctl.ports.SourceHost`."""
        return self._host.uncommitted(partition_of(self._spout, partition))

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        """See :class:`flowctl.ports.SourceHost`."""
        self._host.give(partition_of(self._spout, partition), state)

    def take_away(self, partitions: Sequence[str]) -> Checkpoint:
        """See :class:`flowctl.ports.SourceHost`."""
        named = [partition_of(self._spout, partition) for partition in partitions]
        return part_of(self._spout, self._host.take_away(named))


class Sources:
    """The producers of all spouts, polled in turn (:class:`flowctl.ports.FlowProducer`).

    Partitions are named ``spout:partition``, so that a spout may be added later.  Those of a
    producer that shares them come and go (:class:`flowctl.ports.SharingProducer`).
    """

    def __init__(self, producers: Mapping[str, FlowProducer]) -> None:
        self._producers = dict(producers)
        self._open: list[str] = []
        self._sharing = {n: p for n, p in producers.items() if isinstance(p, SharingProducer)}
        self._ended: list[str] = []  # those that share and have finished what they have
        self._polled = ""  # whose records were polled last

    def prefix_of(self, partition: str) -> str | None:
        """See :class:`flowctl.ports.PrefixingProducer`: the name of the spout."""
        spout = partition.partition(":")[0]
        return partition_of(spout, "") if spout in self._producers else None

    def attach(self, host: SourceHost) -> None:
        """See :class:`flowctl.ports.SharingProducer`."""
        for spout, producer in self._sharing.items():
            producer.attach(SpoutHost(host, spout))

    def keep(self) -> bool:
        """See :class:`flowctl.ports.SharingProducer`; what one loses does not affect another's
        chunk."""
        kept = {
            spout: self._sharing[spout].keep() for spout in self._open if spout in self._sharing
        }
        return kept.get(self._polled, True)

    def partitions(self) -> Sequence[str]:
        """See :class:`flowctl.ports.FlowProducer`."""
        return [
            partition_of(spout, partition)
            for spout, producer in self._producers.items()
            for partition in producer.partitions()
        ]

    def open(self, checkpoint: Checkpoint) -> None:
        """See :class:`flowctl.ports.FlowProducer`; each producer gets its own part."""
        for spout, producer in self._producers.items():
            producer.open(part_of(spout, checkpoint))
            self._open.append(spout)

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next records of one of them; None when all are read to their ends."""
        self._serve_ended()
        for _ in range(len(self._open)):
            spout = self._open.pop(0)
            chunk = self._producers[spout].poll(max_records)
            if chunk is None:
                if spout in self._sharing:
                    self._ended.append(spout)
                continue
            self._open.append(spout)
            if chunk.records or chunk.end is not None or chunk.is_busy:
                self._polled = spout
                named = partition_of(spout, chunk.partition)
                return msgspec.structs.replace(chunk, partition=named)
        return _NOTHING_YET if self._open else None

    def _serve_ended(self) -> None:
        """Producers that share must keep polling, or all others of their group wait at a
        rebalance."""
        for spout in self._ended[:] if self._open else ():
            if not self._sharing[spout].keep():  # it may have been given other partitions
                self._ended.remove(spout)
                self._open.append(spout)

    def close(self) -> None:
        """Close all, even if one raises."""
        producers = list(self._producers.values())
        while producers:
            try:
                producers.pop().close()
            except BaseException:
                Sources({str(n): p for n, p in enumerate(producers)}).close()
                raise


class MeasuredSources(Sources):
    """As :class:`Sources`, if every producer knows how much there is to read."""

    def __init__(self, producers: Mapping[str, FlowProducer]) -> None:
        super().__init__(producers)
        self._measured = [p for p in producers.values() if isinstance(p, MeasuredProducer)]

    def progress(self) -> SourceProgress:
        """See :class:`flowctl.ports.MeasuredProducer`."""
        parts = [producer.progress() for producer in self._measured]
        done, total = sum(part.done for part in parts), sum(part.total for part in parts)
        return SourceProgress(done, total, parts[0].unit)


def sources_of(producers: Mapping[str, FlowProducer]) -> Sources:
    """Return them as one, measured if all are, in one unit."""
    parts = [p for p in producers.values() if isinstance(p, MeasuredProducer)]
    if len(parts) == len(producers) == 1:
        return MeasuredSources(producers)
    return Sources(producers)

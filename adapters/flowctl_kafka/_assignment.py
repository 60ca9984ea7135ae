"""The partitions that this driver reads, and the offsets at which it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError
from flowctl.logs import ModuleLogger
from flowctl.ports import SourceHost
from flowctl_kafka._client import TIMEOUT_S, name_of, split_name, unreachable
from flowctl_kafka._commits import GroupCommits
from flowctl_kafka._start import (
    FirstPoll,
    first_position,
    next_offset,
    seek_forward,
    where_to_start,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition


class Reading:
    """The state of a partition read here: the next offset, and the stop of ``until_end``."""

    __slots__ = ("end", "gap_max", "name", "next")

    def __init__(self, name: str, next_: int, end: int) -> None:
        self.name = name
        self.next = next_
        self.end = end
        self.gap_max = 0  # the largest gap between offsets so far


class Assignment:
    """Determines where to begin, and assigns partitions to the client.  Not thread-safe.

    ``own`` is the saved progress of the job itself, by partition.  ``commits`` is None without a
    group.
    """

    def __init__(
        self,
        consumer: Consumer,
        commits: GroupCommits | None,
        checkpoint: Checkpoint,
        *,
        host: SourceHost | None,
        first_poll: FirstPoll,
        servers: str,
    ) -> None:
        self.own = dict(checkpoint.partitions)
        self.reading: dict[str, Reading] = {}
        self._consumer = consumer
        self._commits = commits
        self._host = host
        self._first_poll: FirstPoll = first_poll
        self._servers = servers
        self._first: frozenset[str] = frozenset()
        self._logger = ModuleLogger("flowctl.kafka")

    def note_first(self, names: Sequence[str]) -> None:
        """Apply ``first_poll`` to ``names`` only; read later partitions from their beginning.

        A later partition holds nothing older than the job.  Without a group, an unknown partition
        of a topic that the job knows has appeared since its last run.
        """
        known = set(map(_topic_of, self.own)) if self._commits is None else set()
        self._first = frozenset(name for name in names if _topic_of(name) not in known)

    def begin(self, names: Sequence[str]) -> None:
        """Read ``names`` too, each from where it was left off."""
        from confluent_kafka import TopicPartition

        committed = self._commits.load(names) if self._commits is not None else {}
        job = self._host.job if self._host is not None else ""
        for name in names:
            low, high = self._bounds(TopicPartition(*split_name(name)))
            state = where_to_start(
                self.own.get(name), committed.get(name), job=job, first_poll=self._first_poll
            ) or first_position(
                self._first_poll if name in self._first else "earliest", low=low, high=high
            )
            at = next_offset(state, low=low)
            if at > high:
                raise cut_off(name, at, high)
            self.own[name] = state
            if self._host is not None:  # even if none is new: one may have been taken away before
                self._host.give(name, state)
            self.reading[name] = Reading(name, self._jump(name, at, low), high)
        self.assign()

    def _jump(self, name: str, at: int, low: int) -> int:
        """Return where to read on if the next records are no longer kept by Kafka."""
        forward = seek_forward(at, low)
        if forward is None:
            return at
        self._logger.warning("kafka_offsets_vanished", partition=name, first=at, last=low - 1)
        return forward

    def look_at_gap(self, reading: Reading, found: int) -> SourceError | None:
        """Check why offset ``found`` came where another one was next; log what retention removed.

        Returns an error if the partition now ends before that offset: then it isn't the one that
        was read.  Transaction markers and compaction leave gaps too, so only gaps larger than any
        before are looked into.
        """
        from confluent_kafka import TopicPartition

        at, gap = reading.next, found - reading.next
        if 0 < gap <= reading.gap_max:
            return None
        reading.gap_max = max(reading.gap_max, gap)
        try:
            low, high = self._bounds(TopicPartition(*split_name(reading.name)))
        except SourceError:
            return None  # no answer: nothing speaks against the gap
        if at > high:
            return cut_off(reading.name, at, high)
        self._jump(reading.name, at, min(low, found))
        return None

    def all(self) -> list[TopicPartition]:
        """Return the partitions read here, in the client's form."""
        from confluent_kafka import TopicPartition

        return [TopicPartition(*split_name(name)) for name in self.reading]

    def pause(self, may_not: Callable[[str], bool]) -> list[TopicPartition]:
        """Pause the partitions that must not be polled; return them."""
        paused = [partition for partition in self.all() if may_not(name_of(partition))]
        if paused:
            self._consumer.pause(paused)
        return paused

    def resume(self, paused: Iterable[TopicPartition]) -> None:
        """Undo a pause of partitions that are still read here."""
        still = [partition for partition in paused if name_of(partition) in self.reading]
        if still:
            self._consumer.resume(still)

    def drop(self, names: Iterable[str]) -> None:
        """Drop partitions that other drivers read now.

        None may stay paused: the client keeps a pause beyond a rebalance, and would return nothing
        from the partition if it came back.
        """
        from confluent_kafka import TopicPartition

        gone = [name for name in names if self.reading.pop(name, None) is not None]
        if gone:
            self._consumer.resume([TopicPartition(*split_name(name)) for name in gone])

    def assign(self) -> None:
        """Let the client read each partition from its next offset."""
        from confluent_kafka import TopicPartition

        self._consumer.assign(
            [TopicPartition(*split_name(r.name), r.next) for r in self.reading.values()]
        )

    def _bounds(self, partition: TopicPartition) -> tuple[int, int]:
        from confluent_kafka import KafkaException

        try:
            found = self._consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(self._servers, error.args[0]) from error
        if found is None:
            raise SourceError(
                f"Kafka at {self._servers}: no answer about {name_of(partition)}.",
                remedy="Check that it runs.",
            )
        return found


def cut_off(name: str, at: int, high: int) -> SourceError:
    """Return the error for a partition that ends before the offset that is to be read next."""
    return SourceError(
        f"{name}: the checkpoint stands at offset {at - 1}, but the topic ends at {high - 1}: it"
        " was deleted and created again, or truncated.",
        remedy="Clear the checkpoint, or choose another name for the job.",
    )


def _topic_of(name: str) -> str:
    """Return the topic in any name: a checkpoint may have partitions of another source."""
    return name.rpartition("-")[0]

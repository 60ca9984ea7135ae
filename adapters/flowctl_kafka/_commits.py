"""Commits to the consumer group, which show other drivers the progress of this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from flowctl.core.records import PartitionCheckpoint
from flowctl.logs import ModuleLogger
from flowctl_kafka._client import TIMEOUT_S, is_passing, name_of, split_name, unreachable
from flowctl_kafka._start import GroupCommit, Note, read_note

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition


class GroupCommits:
    """Commits only progress that the checkpoint store holds.  Not thread-safe."""

    def __init__(self, consumer: Consumer, *, job: str, servers: str) -> None:
        self._consumer = consumer
        self._job = job
        self._servers = servers
        self._known: dict[str, PartitionCheckpoint] = {}  # as last committed
        self._logger = ModuleLogger("flowctl.kafka")

    def load(self, names: Iterable[str]) -> dict[str, GroupCommit]:
        """Return the group's commits for the partitions that have one."""
        from confluent_kafka import KafkaException, TopicPartition

        wanted = [TopicPartition(*split_name(name)) for name in names]
        if not wanted:
            return {}
        try:
            found = self._consumer.committed(wanted, timeout=TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(self._servers, error.args[0]) from error
        for partition in found:
            if partition.error is not None:  # a failed look-up must not pass for "no commit"
                raise unreachable(self._servers, partition.error)
        return {
            name_of(partition): GroupCommit(partition.offset, read_note(partition.metadata))
            for partition in found
            if partition.offset >= 0
        }

    def save(self, states: Mapping[str, PartitionCheckpoint], *, wait: bool) -> bool:
        """Commit those of ``states`` that have changed; without changes make no call.

        Returns False if the commit failed: it can wait, as the checkpoint store is authoritative.
        """
        news = {
            name: state
            for name, state in states.items()
            if isinstance(state.position, int) and self._known.get(name) != state
        }
        if not news:
            return True
        offsets = [self._offset(name, state) for name, state in news.items()]
        if not self._commit(offsets, wait=wait):
            return False
        self._known.update(news)
        return True

    def save_read(self, next_offsets: Mapping[str, int]) -> bool:
        """Commit records that were read but not sent yet; wait for the result."""
        states = {name: PartitionCheckpoint(n - 1) for name, n in next_offsets.items()}
        return self.save(states, wait=True)

    def forget(self, names: Iterable[str]) -> None:
        """Forget the last commits of ``names``, which other drivers read now."""
        for name in names:
            self._known.pop(name, None)

    def _offset(self, name: str, state: PartitionCheckpoint) -> TopicPartition:
        from confluent_kafka import TopicPartition

        topic, number = split_name(name)
        note = Note(flowctl=1, job=self._job, acked=state.acked)
        assert isinstance(state.position, int)
        return TopicPartition(topic, number, state.position + 1, note.to_text())

    def _commit(self, offsets: list[TopicPartition], *, wait: bool) -> bool:
        from confluent_kafka import KafkaException

        try:
            if not wait:
                self._consumer.commit(offsets=offsets, asynchronous=True)
                return True
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
            errors = [answer.error for answer in answers or [] if answer.error is not None]
        except KafkaException as error:
            errors = [error.args[0]]
        for found in errors:
            self._note_failed(found)
        return not errors

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take the result of a commit from the client; the next commit repeats failed ones.

        A group refuses commits for a moment while it rebalances.
        """
        for partition in partitions:
            failed = error or partition.error
            if failed is not None:
                self._known.pop(name_of(partition), None)
                self._note_failed(failed)

    def _note_failed(self, error: KafkaError) -> None:
        if not is_passing(error):
            self._logger.warning("kafka_commit_failed", reason=error.str())

"""Topics of Kafka as a source."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowctl.arguments import check_arguments
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import Checkpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.logs import ModuleLogger
from flowctl.ports import SourceChunk, SourceHost
from flowctl_kafka._assignment import Assignment
from flowctl_kafka._client import (
    is_passing,
    list_partitions,
    make_consumer,
    name_of,
    unreachable,
)
from flowctl_kafka._commits import GroupCommits
from flowctl_kafka._start import FirstPoll
from flowctl_kafka.translate import Translate, translated, value_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


# -- Timers that are polled: they have no thread and no clock of their own ---------------------


# Delays timers that start at the same time, so that not all are due at once (Storm's value).
FIRST_DELAY_S = 0.5


class Timer:
    """Expires ``delay_s + period_s`` after its start, then a period after each reset.  Seconds.

    Expirations don't accumulate: however late it is polled, it expires once.  Not thread-safe.
    """

    __slots__ = ("_from_s", "_period_s")

    def __init__(self, period_s: float, *, now_s: float, delay_s: float = FIRST_DELAY_S) -> None:
        if not period_s > 0:
            raise ConfigError(
                "period_s",
                f"must be greater than 0, got {period_s}.",
                remedy="Give a time in seconds.",
            )
        if delay_s < 0:
            raise ConfigError(
                "delay_s", f"must be 0 or more, got {delay_s}.", remedy="Give a time in seconds."
            )
        self._period_s = period_s
        self._from_s = now_s + delay_s

    @property
    def due_s(self) -> float:
        """When it expires next."""
        return self._from_s + self._period_s

    def expired_reset_on_true(self, now_s: float) -> bool:
        """Return whether it has expired; restart the period only if so."""
        if now_s < self.due_s:
            return False
        self._from_s = now_s
        return True


# -- Topics of Kafka as a source ---------------------------------------------------------------


# Seconds that a poll waits for messages: half of the time that a producer may take.
_POLL_S = 0.05


class KafkaTopics:
    """Reads topics: a :class:`flowctl.ports.FlowProducer`; a record's position is its offset.

    ``servers`` is Kafka's ``bootstrap.servers``.  A partition is named ``topic-number``.  A
    record's value is what ``translate`` returns for a message, by default its bytes; ``NOTHING``
    counts as done at once.

    Without ``group`` this driver reads all partitions, new ones at most ``refresh_s`` [s] after
    they appear.  With ``group`` they are shared with the other drivers of that consumer group, each
    of them a job with its own name and checkpoint; a driver that takes over from another begins at
    the group's commit.  That commit follows the checkpoint every ``commit_s`` [s], at a rebalance
    and at the end, and carries the job's name and the acked ranges; with AT_MOST_ONCE it precedes
    any emit.  The checkpoint store is authoritative for the job's own progress.

    ``first_poll`` decides where to begin a partition that was never read, as in Storm:
    ``earliest``, ``latest``, or ``uncommitted_…``: at the offset that a client other than flowctl
    committed in this group, if there is one.  A partition that is added later begins at its first
    offset.  With ``until_end`` the input ends at the offsets that were the last ones at the start;
    otherwise it never ends.  A partition with ``uncommitted_max`` records read above its cumulative
    ack is paused until it has fewer (None: only ``buffer.uncommitted_max`` applies).  ``config``
    goes to the client (security, fetch sizes).

    Raises :class:`SourceError` if offsets do not fit the topic, and for permanent errors. Calls
    come from one thread.
    """

    @check_arguments(
        "topics",
        "servers",
        "group",
        "first_poll",
        "translate",
        "until_end",
        "uncommitted_max",
        "refresh_s",
        "commit_s",
        "config",
        "clock",
    )
    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        servers: str,
        group: str | None = None,
        first_poll: FirstPoll = "uncommitted_earliest",
        translate: Translate = value_of,
        until_end: bool = False,
        uncommitted_max: int | None = None,
        refresh_s: float = 2.0,
        commit_s: float = 30.0,
        config: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics or not all(self._topics):
            raise ConfigError("topics", "no topic given.", remedy="Name a topic.")
        if uncommitted_max is not None and uncommitted_max < 1:
            raise ConfigError("uncommitted_max", "must be 1 or more.", remedy="Leave it out.")
        self._servers = servers
        self._group = group
        self._first_poll: FirstPoll = first_poll
        self._translate = translate
        self._until_end = until_end
        self._uncommitted_max = uncommitted_max
        self._refresh_s, self._commit_s = refresh_s, commit_s
        self._config = dict(config or {})
        self._clock = clock
        self._host: SourceHost | None = None
        self._consumer: Consumer | None = None
        self._logger = ModuleLogger("flowctl.kafka")
        self._reset()

    def _reset(self) -> None:
        self.waiting: deque[SourceChunk] = deque()
        self._rebalances = 0
        self._is_assigned = False
        self._is_closing = False
        self._is_troubled = False
        self._is_kept = False  # all partitions are paused, as the buffer is full
        self._error: BaseException | None = None

    def attach(self, host: SourceHost) -> None:
        """See :class:`flowctl.ports.SharingProducer`."""
        self._host = host

    def partitions(self) -> Sequence[str]:
        """Return all partitions of the topics, also those that other drivers of the group read."""
        if self._consumer is not None:
            return list_partitions(self._consumer, self._topics, self._servers)
        consumer = self._make_consumer()
        try:
            return list_partitions(consumer, self._topics, self._servers)
        finally:
            consumer.close()

    def _make_consumer(self) -> Consumer:
        return make_consumer(
            self._servers,
            self._group,
            self._config,
            refresh_s=self._refresh_s,
            on_commit=self._on_commit,
        )

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commits.on_commit(error, partitions)

    def open(self, checkpoint: Checkpoint) -> None:
        """Prepare to read on; fails early if Kafka can't be reached."""
        self.close()
        self._reset()
        consumer = self._consumer = self._make_consumer()
        now_s = self._clock()
        self._refresh_timer = Timer(self._refresh_s, now_s=now_s)
        self._commit_timer = Timer(self._commit_s, now_s=now_s)
        job = self._host.job if self._host is not None else ""
        self._commits = GroupCommits(consumer, job=job, servers=self._servers)
        self.assignment = Assignment(
            consumer,
            self._commits if self._group is not None else None,
            checkpoint,
            host=self._host,
            first_poll=self._first_poll,
            servers=self._servers,
        )
        names = list_partitions(consumer, self._topics, self._servers)
        self.assignment.note_first(names)
        if self._group is None:
            self._begin(names)
        else:
            consumer.subscribe(
                self._topics,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )

    def _begin(self, names: Sequence[str]) -> None:
        """Read ``names`` too, each from where it was left."""
        self.assignment.begin(names)
        self._is_assigned = True

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._guarded(lambda: self._begin(sorted(map(name_of, partitions))))

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._guarded(lambda: self._leave([name_of(p) for p in partitions], are_ours=True))

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._guarded(lambda: self._leave([name_of(p) for p in partitions], are_ours=False))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step of a callback, which must not raise; keep its error for the next poll."""
        self._rebalances += 1
        try:
            step()
        except BaseException as error:
            self._error = self._error or error

    def _leave(self, names: list[str], *, are_ours: bool) -> None:
        """Give up ``names`` to others; commit them first if ``are_ours``, that is, still held."""
        if self._is_closing:
            return  # the run has saved and close() has committed already
        self.assignment.drop(names)
        self._is_assigned = False  # until the group has assigned the rest
        self.waiting = deque(c for c in self.waiting if c.partition not in names)
        if self._host is None:
            return
        saved = self._host.take_away(names).partitions
        states = {name: saved[name] for name in names if name in saved}
        self.assignment.own.update(states)
        if are_ours and self._host.guarantee is not ProcessingGuarantee.AT_MOST_ONCE:
            self._commits.save(states, wait=True)
        self._commits.forget(names)

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next records, of one partition; see :class:`flowctl.ports.FlowProducer`.

        In this order: subscription, commit if due, poll if nothing is waiting.
        """
        if self._consumer is None:
            raise SourceError("poll was called before open.", remedy="Call open first.")
        now_s = self._clock()
        if self._group is None and self._refresh_timer.expired_reset_on_true(now_s):
            self._refresh()
        if self._commit_timer.expired_reset_on_true(now_s):
            self._commit_saved(wait=False)
        if not self.waiting and self._error is None and max_records > 0:
            if self._is_at_end():
                return None
            self._fetch(max_records)
        if not self.waiting:
            if self._error is not None:  # raised after the records read before it were returned
                raise self._error
            return SourceChunk("", ())
        chunk = self.waiting.popleft()
        if len(chunk.records) > max_records:
            self.waiting.appendleft(SourceChunk(chunk.partition, chunk.records[max_records:]))
            chunk = SourceChunk(chunk.partition, chunk.records[:max_records])
        return chunk

    def _is_at_end(self) -> bool:
        if not self._until_end or not self._is_assigned:
            return False
        readings = self.assignment.reading.values()
        if any(reading.next < reading.end for reading in readings):
            return False
        # A driver in a group must keep polling until everything is done, as partitions may move to
        # it.
        is_shared = self._group is not None and self._host is not None
        return not is_shared or not any(map(self._uncommitted, self.assignment.reading))

    def _refresh(self) -> None:
        """Begin to read partitions that have appeared since."""
        assert self._consumer is not None
        try:
            names = list_partitions(self._consumer, self._topics, self._servers)
        except SourceError as error:
            self._note_trouble(error.problem)
            return
        new = [name for name in names if name not in self.assignment.reading]
        if new and not self._until_end:
            self._begin(new)

    def _commit_saved(self, *, wait: bool) -> None:
        if self._group is None or self._host is None:
            return
        if self._host.guarantee is ProcessingGuarantee.AT_MOST_ONCE:
            return  # there is no commit timer
        saved = self._host.saved().partitions
        self._commits.save({n: saved[n] for n in self.assignment.reading if n in saved}, wait=wait)

    def _fetch(self, max_records: int) -> None:
        from confluent_kafka import KafkaException

        assert self._consumer is not None
        rebalances = self._rebalances
        if self._is_kept:
            self._is_kept = False
            self.assignment.resume(self.assignment.all())
        paused = self._pause()
        try:
            messages = self._consumer.consume(max_records, _POLL_S)
        except KafkaException as error:
            self._take_error(error.args[0])
            return
        finally:
            self.assignment.resume(paused)
        if rebalances != self._rebalances:
            # Messages fetched before the change may be of the earlier assignment: read them again.
            if messages and self.assignment.reading and self._error is None:
                self.assignment.assign()
            return
        by_partition: dict[str, list[Message]] = {}
        failures = [message for message in messages if message.error() is not None]
        for message in messages:
            if message.error() is None:
                self._is_troubled = False
                name = f"{message.topic()}-{message.partition()}"
                by_partition.setdefault(name, []).append(message)
        for name, group in by_partition.items():
            self._take(name, group)
        for message in failures:  # last, since the end comes after the messages before it
            if (failure := message.error()) is not None:
                self._take_error(failure, message)
        self._commit_read(list(by_partition))

    def keep(self) -> bool:
        """See :class:`flowctl.ports.SharingProducer`; without it the group removes this member."""
        from confluent_kafka import KafkaException

        if self._group is None or self._consumer is None:
            return True
        rebalances = self._rebalances
        if not self._is_kept:  # paused until the next fetch: nothing may arrive meanwhile
            self._is_kept = True
            self.assignment.pause(lambda _: True)
        try:
            if self._consumer.consume(1, 0.0) and rebalances != self._rebalances:
                self.assignment.assign()  # the message arrived after a rebalance: read it again
        except KafkaException as error:
            self._take_error(error.args[0])
        return rebalances == self._rebalances

    def _take(self, name: str, messages: list[Message]) -> None:
        reading = self.assignment.reading.get(name)
        if reading is None:
            return
        if (first := messages[0].offset()) is not None and first != reading.next:
            self._error = self._error or self.assignment.look_at_gap(reading, first)
        records: list[Record] = []
        for message in messages:
            offset = message.offset()
            assert offset is not None
            # An offset below the next one is done already; after a gap, the offsets between no
            # longer exist.
            if offset >= reading.next and not (self._until_end and offset >= reading.end):
                value = self._value(name, message)
                if self._error is not None:
                    break
                records.append(Record(offset, value))
            reading.next = max(reading.next, offset + 1)
        if records:
            self.waiting.append(SourceChunk(name, records))

    def _value(self, name: str, message: Message) -> Any:
        try:
            return translated(self._translate, message)
        except Exception as error:
            self._error = SourceError(
                f"{name}, offset {message.offset()}: translate raised"
                f" {type(error).__name__}: {error}.",
                remedy="Fix translate, or let it return NOTHING for such messages.",
            )
            self._error.__cause__ = error
            return None

    def _commit_read(self, names: list[str]) -> None:
        """For AT_MOST_ONCE: commit the offsets to the group before any record is sent."""
        host = self._host
        if self._group is None or host is None or not names:
            return
        if host.guarantee is not ProcessingGuarantee.AT_MOST_ONCE:
            return
        ends = {
            name: self.assignment.reading[name].next
            for name in names
            if name in self.assignment.reading
        }
        if self._commits.save_read(ends):
            return
        firsts = {c.partition: c.records[0].position for c in reversed(self.waiting)}
        for name, first in firsts.items():  # not committed, so it must not be sent: read it again
            assert isinstance(first, int)
            self.assignment.reading[name].next = first
        self.waiting.clear()
        self.assignment.assign()

    def _pause(self) -> list[TopicPartition]:
        """Pause the partitions that must not be polled."""
        if (most := self._uncommitted_max) is None:
            return []
        return self.assignment.pause(lambda name: self._uncommitted(name) >= most)

    def _uncommitted(self, name: str) -> int:
        return self._host.uncommitted(name) if self._host is not None else 0

    def _take_error(self, error: KafkaError, message: Message | None = None) -> None:
        from confluent_kafka import KafkaError as Codes

        if error.code() == Codes._PARTITION_EOF:
            if message is not None:
                reading = self.assignment.reading.get(f"{message.topic()}-{message.partition()}")
                at = message.offset()
                if reading is not None and at is not None:  # the offsets before it no longer exist
                    reading.next = max(reading.next, at)
        elif is_passing(error) and not error.fatal():
            self._note_trouble(error.str())
        else:
            self._error = self._error or unreachable(self._servers, error)

    def _note_trouble(self, reason: str) -> None:
        """Log one line per period of trouble."""
        if not self._is_troubled:
            self._is_troubled = True
            self._logger.warning("kafka_trouble", reason=reason)

    def close(self) -> None:
        """Commit the saved progress to the group and leave it; harmless when repeated."""
        if self._consumer is None:
            return
        consumer = self._consumer
        try:
            self._commit_saved(wait=True)
        finally:
            self._is_closing = True
            self._consumer = None
            consumer.close()

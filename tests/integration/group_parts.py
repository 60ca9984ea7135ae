"""Two drivers of one consumer group: the second joins, takes over a half and gives it back."""

from __future__ import annotations

import abc
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fault_parts import until

from flowctl.core.events import PartitionGiven, PartitionTakenAway
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_kafka import KafkaTopics
from tests.kafka_parts import MockKafka
from tests.runtime_parts import Witness

RECORD_S: Final = 0.002  # slow enough that the second driver comes in time


class Member(abc.ABC):
    """A driver of the group, in a thread; ``record_s`` is what a record takes, from now on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[int] = []
        self.view = Witness()
        self.store = MemoryCheckpointStore()
        self.error: BaseException | None = None
        self.record_s = RECORD_S
        self.thread = threading.Thread(target=self._run, daemon=True)

    @abc.abstractmethod
    def conduct(self) -> None:
        """Run to the end of the topic."""

    def _run(self) -> None:
        try:
            self.conduct()
        except BaseException as error:
            self.error = error

    def events(self, kind: type[Any]) -> set[str]:
        return {event.partition for event in self.view.events if isinstance(event, kind)}


M = TypeVar("M", bound=Member)


def topic_of_group(kafka: MockKafka, topic: str) -> KafkaTopics:
    """Return ``topic`` as a source that is read by a group of the same name, to its end."""
    return KafkaTopics(
        topic,
        servers=kafka.servers,
        group=topic,
        until_end=True,
        commit_s=0.2,
        # The mock lets a rebalance take as long as this, less a second.
        config={"session.timeout.ms": 5_000},
    )


def take_over(
    kafka: MockKafka,
    topic: str,
    join: Callable[[str], M],
    *,
    mode: str,
    records: int,
    prefix: str = "",
) -> tuple[M, M]:
    """Run both to the end and check what the mode promises; ``prefix`` is that of partitions."""
    kafka.fill(topic, records)
    first = join("first")
    first.thread.start()
    until(lambda: len(first.seen) > 200, "the first driver")
    until(lambda: any(p.offset > 0 for p in kafka.committed(topic, topic)), "its commit")
    # While the group is shared out anew the mock takes no commits, so these are what counts.
    committed = {p.partition: max(0, p.offset) for p in kafka.committed(topic, topic)}
    second = join("second")
    second.thread.start()
    until(lambda: len(second.seen) > 200 or not second.thread.is_alive(), "the second driver")
    first.record_s = second.record_s = 0.0
    both = (first, second)
    for member in both:
        member.thread.join(90)
        assert not member.thread.is_alive() and member.error is None, _state(both)
    names = {f"{prefix}{topic}-{n}" for n in range(MockKafka.PARTITIONS)}
    taken = first.events(PartitionTakenAway)
    assert taken == names, "an eager rebalance"
    assert second.events(PartitionGiven) & taken
    _check_records(both, committed, mode=mode, records=records)
    stored = [member.store.load(member.name).partitions for member in both]
    for name in names:
        ends = [part[name].position for part in stored if name in part]
        last = records / MockKafka.PARTITIONS - 1
        assert max(end or 0 for end in ends) == last  # type: ignore[type-var]
    return both


def _state(members: tuple[Member, ...]) -> str:
    """Tell how far each came, for the message of a run that did not end."""
    lines = []
    for member in members:
        stored = member.store.load(member.name).partitions
        kept = [(type(event).__name__, event) for event in member.view.events]
        lines.append(
            f"{member.name}: running={member.thread.is_alive()} error={member.error!r} "
            f"seen={len(member.seen)} of {len(set(member.seen))}\n  stored: {stored}\n  "
            f"last events: {kept[-15:]}"
        )
    frames = sys._current_frames()
    for thread in threading.enumerate():
        stack = "".join(traceback.format_stack(frames[thread.ident])[-4:]) if thread.ident else ""
        lines.append(f"{thread.name}:\n{stack}")
    return "\n".join(lines)


def _check_records(
    both: tuple[Member, Member], committed: dict[int, int], *, mode: str, records: int
) -> None:
    first, second = both
    seen = Counter(first.seen + second.seen)
    doubled = [n for n, times in seen.items() if times > 1]
    missing = set(range(records)) - seen.keys()
    print(f"{mode}: {len(first.seen)} + {len(second.seen)}, {len(missing)} missing,"
          f" {len(doubled)} doubled")  # fmt: skip
    if mode == "at_least_once":
        assert not missing
        parts = MockKafka.PARTITIONS
        below = [n for n in second.seen if n // parts < committed[n % parts]]
        assert not below, "what the group knew to be done ran again"
    else:
        assert not doubled

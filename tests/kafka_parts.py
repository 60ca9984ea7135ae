"""A Kafka cluster for tests: the client's own mock, over TCP on loopback, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, Message, Producer, TopicPartition


class MockKafka:
    """Lives as long as the object.  A topic has four partitions, made when it is first named."""

    PARTITIONS = 4

    def __init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": "mock",
                "test.mock.num.brokers": 1,
                "log_level": 0,
                "linger.ms": 1,
            }
        )
        brokers = self._producer.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def write(self, topic: str, values: Iterable[bytes | None], *, partition: int) -> None:
        """Append ``values`` and wait until they are there."""
        for value in values:
            self._producer.produce(topic, value=value, partition=partition)
            self._producer.poll(0)
        self._producer.flush(30)

    def fill(self, topic: str, count: int) -> list[str]:
        """Append the records ``0`` to ``count - 1``, dealt to all partitions; return them."""
        for partition in range(self.PARTITIONS):
            values = (b"%d" % n for n in range(partition, count, self.PARTITIONS))
            self.write(topic, values, partition=partition)
        return [str(n) for n in range(count)]

    def read(self, topic: str, count: int) -> list[Message]:
        """The messages of a topic, as many as there should be, and one that follows at once."""
        client = self.client("reader")
        client.assign([TopicPartition(topic, number, 0) for number in range(self.PARTITIONS)])
        found: list[Message] = []
        while len(found) < count and (more := client.consume(count - len(found), timeout=10)):
            found += more
        found += client.consume(1, timeout=0.2)
        client.close()
        return found

    def client(self, group: str) -> Consumer:
        """A plain client, as others than flowctl use it."""
        return Consumer(
            {"bootstrap.servers": self.servers, "group.id": group, "enable.auto.commit": False}
        )

    def committed(self, group: str, topic: str) -> Sequence[TopicPartition]:
        """What the group has committed of each partition."""
        client = self.client(group)
        wanted = [TopicPartition(topic, number) for number in range(self.PARTITIONS)]
        try:
            return client.committed(wanted, timeout=10)
        finally:
            client.close()

    def commit(self, group: str, topic: str, partition: int, offset: int, note: str = "") -> None:
        """Commit as others do."""
        client = self.client(group)
        client.commit(offsets=[TopicPartition(topic, partition, offset, note)], asynchronous=False)
        client.close()

"""Queues between loops, the overflow buffer, iterators as input, dispatch by task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowctl.errors import InternalError
from flowctl.runtime.queues import BoundedQueue, IteratorInbox, PendingEmits
from flowctl.runtime.tasks import ByTask
from tests.loop_parts import Message


def full_of(*items: int) -> BoundedQueue[int]:
    queue: BoundedQueue[int] = BoundedQueue(len(items))
    assert all(queue.offer(item) for item in items)
    return queue


def test_a_full_queue_refuses_and_a_wake_follows_each_item_that_is_in():
    woken: list[int] = []
    queue: BoundedQueue[int] = BoundedQueue(2, wake=lambda: woken.append(len(queue)))
    assert [queue.offer(item) for item in (1, 2, 3)] == [True, True, False]
    assert (len(queue), woken) == (2, [1, 2])


@pytest.mark.req("S69")
def test_messages_are_consumed_in_batches_in_order():
    queue = full_of(1, 2, 3)
    got: list[int] = []
    assert (queue.consume(got.append), got, len(queue)) == (3, [1, 2, 3], 0)
    assert queue.consume(got.append) == 0


def test_a_batch_has_an_end_even_if_handling_brings_more():
    queue = full_of(1, 2)
    assert queue.consume(queue.offer) == 2
    assert len(queue) == 2


@pytest.mark.req("S42")
def test_consumption_ends_when_the_exit_condition_is_true_and_takes_nothing_more():
    queue = full_of(1, 2, 3)
    got: list[int] = []
    assert queue.consume(got.append, lambda: len(got) == 2) == 2
    assert (got, len(queue)) == ([1, 2], 1)
    assert queue.consume(got.append, lambda: True) == 0
    assert len(queue) == 1


@pytest.mark.req("S41")
def test_a_flush_is_in_order_and_stops_at_the_first_refusal():
    tried: list[int] = []
    refused = {2}

    def transfer(item: int) -> bool:
        tried.append(item)
        return item not in refused

    emits: PendingEmits[int] = PendingEmits(transfer)
    emits.emit([1, 2, 3])
    emits.emit([4])
    assert tried == [1, 2], "3 and 4 must not overtake 2"
    assert not emits.flush()
    assert tried == [1, 2, 2]
    refused.clear()
    assert emits.flush()
    assert tried == [1, 2, 2, 2, 3, 4]
    assert emits.flush() and not emits.has_pending()


@pytest.mark.req("S52", "S56")
def test_emitting_never_blocks_and_is_counted_once_however_many_targets():
    emits: PendingEmits[int] = PendingEmits(lambda item: False)
    emits.emit([])
    emits.emit(range(5))
    assert (emits.emitted_count, len(emits), emits.kept_max) == (2, 5, 5)


@pytest.mark.req("S42")
def test_nothing_is_pulled_from_an_iterator_that_can_not_be_handled():
    """Ruling P: the same exit condition, where a bolt's input is Spark's iterator."""
    pulled: list[int] = []

    def source() -> Iterator[int]:
        for number in range(10):
            pulled.append(number)
            yield number

    inbox = IteratorInbox(source(), batch_max=4)
    got: list[int] = []
    assert inbox.consume(got.append, lambda: len(got) == 3) == 3
    assert pulled == got == [0, 1, 2]
    assert inbox.consume(got.append, lambda: True) == 0
    assert pulled == [0, 1, 2]
    assert inbox.consume(got.append) == 4, "a batch, so that a stop is heard"
    assert inbox.consume(got.append) == 3
    assert inbox.is_at_end
    assert inbox.consume(got.append) == 0
    assert got == list(range(10))


@pytest.mark.req("S69")
def test_messages_go_to_their_task_and_ticks_to_all():
    got: list[tuple[str, object]] = []
    by_task: ByTask[Message] = ByTask(
        {1: lambda m: got.append(("one", m.body)), 2: lambda m: got.append(("two", m.body))}
    )
    for message in (Message(2, "a"), Message(1, "b"), Message(None, "tick")):
        by_task(message)
    assert got == [("two", "a"), ("one", "b"), ("one", "tick"), ("two", "tick")]
    with pytest.raises(InternalError, match=r"task 3 came to \[1, 2\]"):
        by_task(Message(3))

"""The order in which tuples are due: as of a heap, whatever is known when."""

from __future__ import annotations

import random
from heapq import heappop, heappush

from flowctl.core.end_of_input.due_order import DueOrder, Entry


def test_it_gives_what_a_heap_gives_with_some_known_at_first_and_others_later() -> None:
    chance = random.Random(7)
    entries = [(chance.choice([0.5, 1.0, chance.random()]), number) for number in range(200)]
    order, heap = DueOrder(), sorted(entries[:100])
    order.start(entries[:100])
    given: list[tuple[Entry | None, Entry]] = []
    for entry in entries[100:]:
        order.add(entry)
        heappush(heap, entry)
        given.append((order.first(), heappop(heap)))
        order.drop_first()
    while heap:
        given.append((order.first(), heappop(heap)))
        order.drop_first()
    assert all(ours == theirs for ours, theirs in given)
    assert order.first() is None


def test_a_new_start_forgets_what_was_held() -> None:
    order = DueOrder()
    order.start([(1.0, 1)])
    order.add((0.5, 2))
    order.start([])
    assert order.first() is None

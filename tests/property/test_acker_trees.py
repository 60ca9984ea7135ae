"""Random tuple trees through spout, bolts and ackers, against trees that remember every tuple.

Messages travel in any order, bolts anchor to whatever they hold, some fail, prolong or never
answer, ticks fall anywhere.  Ids are random with 64 bits, so that a wrong verdict by collision has
a chance below 2^-50 in a thousand such runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowctl.core.trees.acker import AckerLedger, TreeOutcome, Verdict, owner_of
from flowctl.core.trees.anchors import Anchored, PendingAcks
from flowctl.core.trees.rotating import ACKER_BUCKETS
from flowctl.core.trees.spout_trees import SpoutTrees, TreeEnd

# What may happen, by how often.  Few plantings, so that most steps meet the same trees.
STEPS = (
    *("plant", "emit", "emit", "emit", "ack", "ack", "ack", "fail", "prolong", "prolong", "tick"),
    *("deliver",) * 7,
)
# One seed makes all choices, as lists drawn by Hypothesis stay too short to meet the rare cases;
# a failure is shrunk to the fewest steps of its seed.
SEEDS, COUNTS = st.integers(0, 2**32), st.integers(0, 150)
Kind: TypeAlias = Literal["init", "ack", "fail", "prolong"]


class Node(Anchored):
    """A tuple that a bolt holds; equal only to itself."""


@dataclass
class Message:
    """From a spout or bolt to the acker of ``root``; ``node`` is the tuple it speaks of."""

    kind: Kind
    root: int
    value: int = 0
    node: Node | None = None


@dataclass
class Heard:
    """What has been delivered about a root since its ledger began to know of it."""

    since_tick: int
    has_init: bool = False
    has_fail: bool = False
    acked: set[int] = field(default_factory=set)  # id() of nodes


class World:
    """The tested parts, joined by a network without an order; and the naive trees."""

    def __init__(self, seed: int, ackers: int, buckets: int, *, in_step: bool = True) -> None:
        random = Random(seed)

        def next_id() -> int:
            return random.getrandbits(64) or 1

        self.spout = SpoutTrees(next_id, has_ackers=True)
        self.bolts = PendingAcks(next_id)
        self.ledgers = {n: AckerLedger(buckets=buckets) for n in range(ackers)}
        self.buckets = buckets
        self.in_step = in_step  # spout, bolts and ackers tick together
        self.held: list[Node] = []  # at bolts, neither acked nor failed
        self.mail: list[Message] = []
        self.ticks = 0
        self.nodes: dict[int, set[int]] = {}  # root → every tuple of its tree
        self.alive: list[Node] = []  # so that no id() is used twice
        self.heard: dict[int, Heard] = {}
        self.ends: dict[int, TreeEnd] = {}  # message id → end
        self.planted: dict[int, int] = {}  # root → message id

    # -- steps: what may happen --------------------------------------------------------

    def plant(self, pick: int) -> None:
        number = len(self.planted)
        planting = self.spout.emit("s", 1 + pick % 3, values=[], message_id=number)
        assert planting.init is not None
        root = planting.init.root
        self.planted[root] = number
        self.nodes[root] = set()
        for edges in planting.edges:
            self._arrive(edges)
        self.mail.append(Message("init", root, planting.init.value))

    def emit(self, pick: int) -> None:
        random = Random(pick)
        anchors = random.sample(self.held, min(len(self.held), random.randint(0, 3)))
        for edges in self.bolts.emit(anchors, random.randint(1, 2)):
            assert set(edges) == {root for anchor in anchors for root in anchor.edges}
            self._arrive(edges)

    def _arrive(self, edges: dict[int, int]) -> None:
        node = Node(edges)
        self.held.append(node)
        self.alive.append(node)
        for root in edges:
            self.nodes[root].add(id(node))

    def ack(self, pick: int) -> None:
        if self.held:
            node = self.held.pop(pick % len(self.held))
            self.mail += [Message("ack", *pair, node) for pair in self.bolts.ack(node)]

    def fail(self, pick: int) -> None:
        if self.held:
            node = self.held.pop(pick % len(self.held))
            self.mail += [Message("fail", root) for root in self.bolts.fail(node)]

    def prolong(self, pick: int) -> None:
        if self.held:
            node = self.held[pick % len(self.held)]
            self.mail += [Message("prolong", root) for root in self.bolts.reset_timeout(node)]

    def tick(self, pick: int) -> None:
        parts = (self._tick_spout, self._tick_bolts, self._tick_ackers)
        for part in parts if self.in_step else parts[pick % 3 :][:1]:
            part()

    def _tick_spout(self) -> None:
        for end in self.spout.on_tick(now_s=0.0):
            self._note_end(end)

    def _tick_bolts(self) -> None:
        self.mail += [Message("fail", root) for root in self.bolts.on_tick()]

    def _tick_ackers(self) -> None:
        self.ticks += 1
        for ledger in self.ledgers.values():
            for verdict in ledger.on_tick():
                assert verdict.outcome is TreeOutcome.EXPIRED
                heard = self.heard.pop(verdict.root)
                assert heard.has_init and self.ticks == heard.since_tick + self.buckets
                if self.in_step:
                    assert verdict.root not in self.spout, "ruling M: the spout has expired it"
                self._tell_spout(verdict)
        for root, heard in list(self.heard.items()):
            if self.ticks == heard.since_tick + self.buckets:
                assert not heard.has_init, "should have expired with a verdict"
                del self.heard[root]

    def deliver(self, pick: int) -> None:
        if not self.mail:
            return
        message = self.mail.pop(pick % len(self.mail))
        verdict = self._tell(message)
        expected = self._expected(message)
        assert (verdict.outcome if verdict else None) is expected
        if verdict:
            self._tell_spout(verdict)

    def _tell(self, message: Message) -> Verdict | None:
        ledger = self.ledgers[owner_of(message.root, list(self.ledgers))]  # type: ignore[index]
        if message.kind == "init":
            return ledger.on_init(message.root, message.value, "s")
        if message.kind == "ack":
            return ledger.on_ack(message.root, message.value)
        if message.kind == "fail":
            return ledger.on_fail(message.root)
        return ledger.on_reset_timeout(message.root)

    # -- the naive trees ------------------------------------------------------------------

    def _expected(self, message: Message) -> TreeOutcome | None:
        """What a ledger that remembers every tuple would say."""
        root = message.root
        if message.kind == "prolong":
            if root not in self.heard:
                return None
            self.heard[root].since_tick = self.ticks
            return TreeOutcome.PROLONGED if self.heard[root].has_init else None
        heard = self.heard.setdefault(root, Heard(self.ticks))
        if message.kind == "init":
            heard.has_init = True
        elif message.kind == "fail":
            heard.has_fail = True
        else:
            heard.acked.add(id(message.node))
        if not heard.has_init:
            return None
        if heard.acked == self.nodes[root]:
            del self.heard[root]
            return TreeOutcome.COMPLETE
        if heard.has_fail:
            del self.heard[root]
            return TreeOutcome.FAILED
        return None

    def _tell_spout(self, verdict: Verdict) -> None:
        if verdict.outcome is TreeOutcome.PROLONGED:
            self.spout.on_reset_timeout(verdict.root)
            return
        is_ack = verdict.outcome is TreeOutcome.COMPLETE
        on_end = self.spout.on_ack if is_ack else self.spout.on_fail
        end = on_end(verdict.root, task=verdict.spout, now_s=0.0)
        number = self.planted[verdict.root]
        assert (end is None) == (number in self.ends), "one end each; what comes later is late"
        if end:
            self._note_end(end)

    def _note_end(self, end: TreeEnd) -> None:
        assert end.tree.message_id not in self.ends
        self.ends[end.tree.message_id] = end

    def check(self) -> None:
        assert sum(map(len, self.ledgers.values())) == len(self.heard)
        assert len(self.spout) + len(self.ends) == len(self.planted)


def run(world: World, choices: Random, count: int, without: tuple[str, ...] = ()) -> None:
    for name in choices.choices([step for step in STEPS if step not in without], k=count):
        getattr(world, name)(choices.randrange(2**16))
        world.check()


def drain(world: World, choices: Random) -> None:
    """Every bolt acks what it holds, every message arrives, no tick falls."""
    while world.held or world.mail:
        pick = choices.randrange(2**16)
        if world.held and choices.random() < 0.5:
            world.ack(pick)
        else:
            world.deliver(pick)
    world.check()


@pytest.mark.req("S64", "S65", "S66", "S76", "S77", "S78", "S79", "S80", "S125")
@given(SEEDS, COUNTS, st.integers(1, 3), st.integers(0, 1))
@example(37, 150, 1, 0)  # where edges are forgotten in a prolonged tree
def test_verdicts_are_those_of_a_ledger_that_remembers_every_tuple(
    seed: int, count: int, ackers: int, more_buckets: int
) -> None:
    world, choices = World(seed, ackers, ACKER_BUCKETS + more_buckets), Random(seed)
    run(world, choices, count)
    drain(world, choices)


@pytest.mark.req("S70", "S48")
@given(SEEDS, COUNTS, st.booleans())
@example(1056, 150, True)  # where edges are forgotten in a prolonged tree
@example(1273, 150, False)
def test_each_tracked_message_ends_once_and_acked_only_if_all_of_it_was(
    seed: int, count: int, in_step: bool
) -> None:
    world = World(seed, 1, ACKER_BUCKETS, in_step=in_step)
    run(world, Random(seed), count)
    for _ in range(ACKER_BUCKETS):  # what nobody answers for, as after a kill
        for part in range(3):
            world.tick(part)
    assert set(world.ends) == set(world.planted.values())
    assert len(world.spout) == len(world.ledgers[0]) == len(world.bolts) == 0
    open_nodes = {id(node) for node in world.held}
    for root, number in world.planted.items():
        assert not (world.ends[number].is_ack and world.nodes[root] & open_nodes)


@pytest.mark.req("S70", "S76")
@given(SEEDS, COUNTS)
def test_with_no_fails_and_no_ticks_every_tree_completes(seed: int, count: int) -> None:
    world, choices = World(seed, 2, ACKER_BUCKETS), Random(seed)
    run(world, choices, count, without=("fail", "tick"))
    drain(world, choices)
    assert len(world.ends) == len(world.planted)
    assert all(end.is_ack for end in world.ends.values())
    assert sum(map(len, world.ledgers.values())) == 0, "the XOR ledger is empty at the end"

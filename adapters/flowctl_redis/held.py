"""What Redis holds of a job, as known to its only writer, and how a save changes that.

Partitions that moved recently are *loose*: each has a field.  When there are many, those that have
not moved for longest are put together into a *block*, whose number is higher than all before.  A
partition that moves again becomes loose again; its old entry stays in the block and no longer
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from flowctl.core.positions import encode
from flowctl.core.records import PartitionCheckpoint
from flowctl_redis.blocks import BLOCK_PARTITIONS

# Below this all stay loose: a key of 0.3 MB does no harm, and older versions can read it.
LOOSE_MAX = 2 * BLOCK_PARTITIONS
# How many fields one save removes, at 1 µs each of the server's time: a key in which each of
# 200,000 partitions has a field is packed in 20 saves, none of which makes others wait.
_UNLOOSED_MAX = 10 * BLOCK_PARTITIONS
# How many blocks one save rewrites because most of their entries no longer count.
_CLEANED_MAX = 4

Partitions = dict[str, PartitionCheckpoint]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What one save changes.  ``goes_back`` names a partition whose position would go back."""

    changed: Partitions
    loose: Partitions  # written as a field each; all of them changed
    unloosed: list[str]  # their fields are removed: they are in one of ``blocks`` now
    blocks: dict[int, Partitions]
    dropped: list[int]  # blocks to remove
    goes_back: str | None


class Held:
    """Not thread-safe.  ``partitions`` is all that counts, ``revision`` the revision it belongs
    to."""

    __slots__ = ("_blocks", "_loose", "_next_block", "_where", "epoch", "partitions", "revision")

    def __init__(self, epoch: int, revision: bytes, next_block: int) -> None:
        self.epoch: int = epoch
        self.revision: bytes = revision
        self.partitions: Partitions = {}
        self._loose: dict[str, None] = {}  # the one that has not moved for longest comes first
        self._where: dict[str, int] = {}  # the others: in which block
        # names, including those of entries that no longer count
        self._blocks: dict[int, Iterable[str]] = {}
        self._next_block = next_block

    @classmethod
    def of(
        cls,
        epoch: int,
        revision: bytes,
        next_block: int,
        loose: Partitions,
        blocks: Mapping[int, Partitions],
    ) -> Held:
        """Return the state that these fields describe."""
        held = cls(epoch, revision, next_block)
        for number in sorted(blocks):
            held._put_block(number, blocks[number])
        held._put_loose(loose)
        return held

    def plan(self, wanted: Mapping[str, PartitionCheckpoint]) -> Plan:
        """Return what to change so that ``wanted`` holds; nothing is changed here."""
        known = self.partitions
        changed = {
            name: state
            for name, state in wanted.items()
            # "is" first: comparing 10,000 ranges takes 1 ms
            if (old := known.get(name)) is not state and old != state
        }
        goes_back = next((name for name in changed if self._goes_back(name, changed[name])), None)
        dropped = self._crowded() if changed else []
        packed = self._to_pack(changed, dropped)
        return Plan(
            changed=changed,
            loose={name: state for name, state in changed.items() if name not in packed},
            unloosed=[name for name in packed if name in self._loose],
            blocks=self._in_blocks(packed),
            dropped=dropped,
            goes_back=goes_back,
        )

    def _goes_back(self, name: str, state: PartitionCheckpoint) -> bool:
        old = self.partitions.get(name)
        if old is None or old.position is None or old.position == state.position:
            return False
        return state.position is None or encode(state.position) < encode(old.position)

    def _crowded(self) -> list[int]:
        """The oldest blocks, if most of what the blocks hold no longer counts."""
        entries = sum(map(len, self._blocks.values()))  # type: ignore[arg-type]
        if entries <= 2 * len(self._where) + LOOSE_MAX:
            return []
        return list(islice(self._blocks, _CLEANED_MAX))

    def _to_pack(self, changed: Partitions, dropped: list[int]) -> Partitions:
        """What goes into new blocks: entries of ``dropped`` that count, then those that moved
        longest ago."""
        # A changed partition is loose at first, behind the others.
        staying = (name for name in self._loose if name not in changed)
        loose_count = len(self._loose) + sum(1 for name in changed if name not in self._loose)
        names = [
            name
            for number in dropped
            for name in self._blocks[number]
            if self._where.get(name) == number and name not in changed
        ]
        packed = {name: self.partitions[name] for name in names}
        spare = (loose_count - LOOSE_MAX) // BLOCK_PARTITIONS + 1 if loose_count > LOOSE_MAX else 0
        left = spare * BLOCK_PARTITIONS
        for name in islice(staying, min(left, _UNLOOSED_MAX)):
            packed[name] = self.partitions[name]
            left -= 1
        for name in islice(changed, max(left, 0)):  # written once in any case, and shorter this way
            packed[name] = changed[name]
        return packed

    def _in_blocks(self, packed: Partitions) -> dict[int, Partitions]:
        items = iter(packed.items())
        blocks: dict[int, Partitions] = {}
        while block := dict(islice(items, BLOCK_PARTITIONS)):
            blocks[self._next_block + len(blocks)] = block
        return blocks

    def next_block_after(self, plan: Plan) -> int:
        """The number of the next block once ``plan`` is carried out."""
        return self._next_block + len(plan.blocks)

    def apply(self, plan: Plan, revision: bytes) -> None:
        """``plan`` was carried out, and left ``revision`` in Redis."""
        self.revision = revision
        self._next_block = self.next_block_after(plan)
        for number in plan.dropped:
            del self._blocks[number]
        for name in plan.unloosed:
            del self._loose[name]
        for number, block in plan.blocks.items():
            self._put_block(number, block)
        self._put_loose(plan.loose)

    def _put_block(self, number: int, block: Partitions) -> None:
        self._blocks[number] = tuple(block)
        self._where.update(dict.fromkeys(block, number))
        self.partitions.update(block)

    def _put_loose(self, loose: Partitions) -> None:
        for name in loose:
            self._where.pop(name, None)
            self._loose.pop(name, None)  # to the end
            self._loose[name] = None
        self.partitions.update(loose)

    def is_loose(self, name: str) -> bool:
        """Whether ``name`` has a field of its own."""
        return name in self._loose

"""The state of a job in Redis, as known to its only writer, and what a save changes in it.

Partitions that moved recently are *loose*: each has its own field.  When there are many, those that
haven't moved for longest are packed into a *block*, whose number is higher than all before.  A
partition that moves becomes loose again; its old entry stays in the block but no longer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from flowctl.core.positions import encode
from flowctl.core.records import PartitionCheckpoint
from flowctl_redis.blocks import BLOCK_PARTITIONS

# Up to this number all partitions stay loose: a key of 0.3 MB does no harm, and older versions can
# read it.
LOOSE_MAX = 2 * BLOCK_PARTITIONS
# Most fields that a save removes, each in 1 µs of the server's time.  So a key with a field for
# each of 200,000 partitions is packed in 20 saves, none of which makes other clients wait.
_UNLOOSED_MAX = 10 * BLOCK_PARTITIONS
# Most blocks that a save rewrites because most of their entries no longer count.
_CLEANED_MAX = 4

Partitions = dict[str, PartitionCheckpoint]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The changes of one save; ``goes_back`` names a partition whose position would go back."""

    changed: Partitions
    loose: Partitions  # all have changed; each is written as a field
    unloosed: list[str]  # packed into one of ``blocks`` now: their fields are removed
    blocks: dict[int, Partitions]
    dropped: list[int]  # blocks to remove
    goes_back: str | None


class Held:
    """The state of one job in Redis: its ``partitions`` at ``revision``.  Not thread-safe."""

    __slots__ = ("_blocks", "_loose", "_next_block", "_where", "epoch", "partitions", "revision")

    def __init__(self, epoch: int, revision: bytes, next_block: int) -> None:
        self.epoch: int = epoch
        self.revision: bytes = revision
        self.partitions: Partitions = {}
        self._loose: dict[str, None] = {}  # longest unmoved first
        self._where: dict[str, int] = {}  # block of each other partition
        # names in each block, including entries that no longer count
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
        """Return the state that the stored fields describe."""
        held = cls(epoch, revision, next_block)
        for number in sorted(blocks):
            held._put_block(number, blocks[number])
        held._put_loose(loose)
        return held

    def plan(self, wanted: Mapping[str, PartitionCheckpoint]) -> Plan:
        """Return the changes that make ``wanted`` hold; this object stays unchanged."""
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
        """Return the oldest blocks, if most entries of all blocks no longer count."""
        entries = sum(map(len, self._blocks.values()))  # type: ignore[arg-type]
        if entries <= 2 * len(self._where) + LOOSE_MAX:
            return []
        return list(islice(self._blocks, _CLEANED_MAX))

    def _to_pack(self, changed: Partitions, dropped: list[int]) -> Partitions:
        """Return the partitions for new blocks: of ``dropped``, then the longest unmoved."""
        # A changed partition is loose first, and comes after the others.
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
        for name in islice(changed, max(left, 0)):  # written anyway, and shorter in a block
            packed[name] = changed[name]
        return packed

    def _in_blocks(self, packed: Partitions) -> dict[int, Partitions]:
        items = iter(packed.items())
        blocks: dict[int, Partitions] = {}
        while block := dict(islice(items, BLOCK_PARTITIONS)):
            blocks[self._next_block + len(blocks)] = block
        return blocks

    def next_block_after(self, plan: Plan) -> int:
        """Return the number of the next block after ``plan``."""
        return self._next_block + len(plan.blocks)

    def apply(self, plan: Plan, revision: bytes) -> None:
        """Note that ``plan`` was carried out, and that Redis has ``revision`` now."""
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

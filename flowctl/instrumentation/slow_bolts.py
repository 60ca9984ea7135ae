"""Which bolts are slow, and which share they get: each bolt's rate compared with the others, for
display only.

Bolts of different stages do different work, so a bolt is compared only with those of its own stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from flowctl.core.events import BoltState
from flowctl.instrumentation.numbers import percent
from flowctl.instrumentation.snapshot import BoltView, Snapshot, WaitReason

# Tuples take up to a quarter of a second, so the rate of three seconds is off by a tuple in
# twelve; a bolt at half the rate of the others stands clear of that.
SLOW_BELOW: Final = 0.5
# While windows are full for less of the time than this, bolts wait for work, and a low rate says
# nothing about the bolt.
_BOLTS_DECIDE_ABOVE: Final = 0.5
# The longest time over which a bolt's rate is counted [s].
RATE_OVER_MOST_S: Final = 60.0
# A rate of fewer tuples says little: of equal bolts one has just acked its second, another its
# first.
_TUPLES_MIN: Final = 4
_NAMED_MAX = 3  # in a sentence; the table shows the others

Condition = Literal["normal", "slow", "refused", "busy", "down"]


class SlowBolt(NamedTuple):
    """A bolt that is slow: how many times slower than its stage's median, and its share.

    ``factor`` is None if it acked nothing recently.  ``share`` and ``equal_share`` are fractions of
    its stage's recent records, 0…1.
    """

    name: str
    factor: float | None
    share: float
    equal_share: float

    @property
    def text(self) -> str:
        """``10x slower``, or ``no ack lately``."""
        if self.factor is None:
            return "no ack lately"
        return f"{self.factor:.0f}x slower" if self.factor >= 10 else f"{self.factor:.2g}x slower"


def slow_bolts(snapshot: Snapshot) -> dict[str, SlowBolt]:
    """Return the bolts that are slower than the others of their stage, the slowest first.

    Empty if that can't be judged: at the end of the input, while the source or the target sets the
    pace, with fewer than three bolts to compare, and by rates of a few tuples.
    """
    if is_ending(snapshot) or target_holds_back(snapshot):
        return {}
    if (
        snapshot.held_up_by != WaitReason.BACKPRESSURE
        or snapshot.held_up_share < _BOLTS_DECIDE_ABOVE
    ):
        return {}
    found: list[SlowBolt] = []
    for bolts in stages(snapshot.bolts).values():
        found += _slow_of(bolts)
    found.sort(key=lambda bolt: bolt.factor or float("inf"), reverse=True)
    return {bolt.name: bolt for bolt in found}


def stages(bolts: Sequence[BoltView]) -> dict[str, list[BoltView]]:
    """Return the bolts that are up by their stage, which is "" where there is only one."""
    found: dict[str, list[BoltView]] = defaultdict(list)
    for bolt in bolts:
        if bolt.up:
            found[bolt.name.rpartition(".")[0]].append(bolt)
    return found


def _slow_of(bolts: Sequence[BoltView]) -> list[SlowBolt]:
    typical = median(bolt.records_per_s for bolt in bolts)
    if len(bolts) < 3 or not typical:
        return []
    if median(bolt.acked / bolt.slots for bolt in bolts) < _TUPLES_MIN:
        return []
    if typical_tuple_s(bolts) * _TUPLES_MIN > RATE_OVER_MOST_S:
        return []
    total = sum(bolt.records_per_s for bolt in bolts)
    return [
        SlowBolt(
            bolt.name,
            typical / bolt.records_per_s if bolt.records_per_s else None,
            bolt.records_per_s / total,
            1 / len(bolts),
        )
        for bolt in bolts
        # A bolt that holds nothing can't be slow.
        if bolt.in_flight and bolt.records_per_s <= SLOW_BELOW * typical
    ]


def typical_tuple_s(bolts: Sequence[BoltView]) -> float:
    """Return how long a tuple is in process, at a typical bolt of the slowest stage [s]; 0 if that
    is not known yet.
    """
    return max(
        (
            median(bolt.service_p50_s or 0.0 for bolt in of_stage)
            for of_stage in stages(bolts).values()
        ),
        default=0.0,
    )


def claim(slow: Mapping[str, SlowBolt]) -> str:
    """Return ``b5 is 10x slower and gets 0.9 % (an equal share: 8.3 %)``; "" if no bolt is slow."""
    bolts = list(slow.values())
    parts = [
        f"{bolt.name} is {bolt.text} and gets {percent(bolt.share, digits=1)}"
        if bolt.factor is not None
        else f"{bolt.name} has acked nothing lately and gets nothing more"
        for bolt in bolts[:_NAMED_MAX]
    ]
    if not parts:
        return ""
    left = len(bolts) - _NAMED_MAX
    more = f", {left} more {'is' if left == 1 else 'are'} slow" if left > 0 else ""
    equal = percent(bolts[0].equal_share, digits=1)
    return f"{', '.join(parts)}{more} (an equal share: {equal})"


def condition(bolt: BoltView, slow: Mapping[str, SlowBolt]) -> Condition:
    """Return the condition of ``bolt``.

    A single late round trip is normal: only its rate makes a bolt slow.
    """
    if not bolt.up:
        return "down"
    if bolt.refused:
        return "refused"
    if bolt.state is BoltState.BUSY:
        return "busy"
    return "slow" if bolt.name in slow else "normal"


def shares(bolts: Sequence[BoltView]) -> dict[str, float | None]:
    """Return each bolt's fraction of all recently acked records, 0…1; None while there were
    none."""
    total = sum(bolt.records_per_s for bolt in bolts)
    return {bolt.name: bolt.records_per_s / total if total else None for bolt in bolts}


def is_ending(snapshot: Snapshot) -> bool:
    """Whether everything read is at bolts: the rest moves between them, and rates mean nothing."""
    return snapshot.phase in ("draining", "stopping") and not snapshot.records_buffered


def target_holds_back(snapshot: Snapshot) -> bool:
    """Whether the target, not the bolts, sets the pace: it is down, full, or capped."""
    if snapshot.target_down_s is not None or any(bolt.refused for bolt in snapshot.bolts):
        return True
    return snapshot.sink_cap is not None and snapshot.tuples_in_flight >= snapshot.sink_cap

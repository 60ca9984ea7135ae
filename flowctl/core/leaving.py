"""A bolt that is about to lose its place finishes its begun tuples, gives back the rest, and
leaves.

No tuple runs twice: the bolt is asked to give back unbegun tuples, the begun ones are waited for,
and its connection is ended only when it holds nothing.
"""

from __future__ import annotations

from flowctl.core.messages import End
from flowctl.core.ranges.core import RangeCore
from flowctl.core.tuple_core import TupleCore


def retire(core: TupleCore, bolt: str, now_s: float) -> None:
    """Send ``bolt`` nothing more, and ask it for the tuples that it has not begun."""
    consumer = core.bolts[bolt]
    consumer.stop_sending()
    core.book.out.add(bolt)
    if isinstance(core, RangeCore):
        core.wind_up(now_s, bolt)
    if consumer.flight:
        core.book.revoke(consumer, list(consumer.flight))
    core.book.changed(consumer)


def dismiss(core: TupleCore, bolt: str, now_s: float, reason: str) -> bool:
    """End the retired ``bolt`` if it holds no tuple that is waited for; False: not yet."""
    if core.bolts[bolt].flight:
        return False
    core.remove_bolt(bolt, now_s=now_s, reason=reason, lost=False)
    core.book.orders.append(End(bolt))
    return True

"""Whether calls, not records, cost the time: what views and the report say of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.driver import Measured
from flowctl.core.ranges.consumer import RangeConsumer
from flowctl.core.service import ServicePool
from flowctl.core.settings import TupleSettings
from flowctl.core.sizing import is_dear
from flowctl.instrumentation.snapshot import DearCall


def dear_tuples(pools: Collection[ServicePool], settings: TupleSettings) -> DearCall | None:
    """The dearest call of all stages, if it decides the size of tuples."""
    pool = max(pools, key=lambda pool: pool.call_s, default=None)
    if pool is None or not is_dear(pool.call_s, settings):
        return None
    return DearCall(pool.call_s, round(pool.mean_records))


def dear_batches(
    consumers: Iterable[AdaptiveFlowConsumer], measured: Measured, before: DearCall | None
) -> DearCall | None:
    """The dearest call of all bolts of ranges, if it decides the size of batches.

    ``before``: what was said last, which holds where the bolts are gone.
    """
    bolts = [bolt for bolt in consumers if isinstance(bolt, RangeConsumer)]
    if not bolts:
        return before
    dearest = max(bolts, key=lambda bolt: bolt.call_s)
    if not dearest.call_s:
        return None
    # Such a batch takes longer than the time between two reports, so each has a report.
    records = dearest.service.mean_records * measured.records_per_position
    return DearCall(dearest.call_s, round(records), "batches")

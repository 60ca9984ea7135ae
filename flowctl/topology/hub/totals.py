"""The state of a topology, summed over its stages, roots and routes: pure reads."""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.counters import Counters
from flowctl.topology.figures import StageFigures, TreeFigures
from flowctl.topology.hub.roots import Roots
from flowctl.topology.hub.routing import Router
from flowctl.topology.hub.stage import Stage


def counters_of(stages: Sequence[Stage], roots: Roots, router: Router) -> Counters:
    """Tuples of all stages; records are roots."""
    total = Counters()
    for stage in stages:
        for core in stage.cores:
            total.add(core.counters)
    total.calls_refused += router.refused
    total.target_down_total_s += roots.blame.down_s
    total.records_acked = roots.acked + roots.intake.empty
    total.tuples_dead_lettered = total.records_dead_lettered = roots.dead_lettered
    total.tuples_handed_over = roots.handed_over
    total.records_dropped = roots.dropped + router.untracked_failed
    total.records_pending_now = roots.pending
    total.max_in_flight_records = roots.pending_max
    return total


def stage_figures_of(stage: Stage) -> StageFigures:
    """How one stage stands."""
    return StageFigures(
        stage=stage.name,
        records=sum(core.counters.records_acked for core in stage.cores),
        waiting_now=stage.waiting,
        waiting_max=stage.waiting_max,
        at_bolts_max=sum(core.counters.max_in_flight_records for core in stage.cores),
        held_now=sum(map(len, stage.held.values())),
    )


def tree_figures_of(roots: Roots, router: Router) -> TreeFigures:
    """How the trees stand."""
    return TreeFigures(
        complete=roots.acked - roots.dead_lettered,  # those count as acked, but did not complete
        failed=roots.failed,
        expired=roots.expired,
        replayed=roots.replayed,
        pending_now=roots.pending,
        ledger_now=sum(map(len, roots.ledgers)),
        orphans=sum(ledger.orphans for ledger in roots.ledgers),
        dropped_emits=router.dropped,
        undelivered_emits=router.undelivered.emits,
    )

"""How a run ended, in a few lines of text; the same for every view."""

from __future__ import annotations

from typing import Final

from flowctl.core.letters import without_redrives
from flowctl.core.records import Checkpoint
from flowctl.instrumentation.call_lines import dear_call, ended_lines
from flowctl.instrumentation.numbers import clock, count, counted, rate
from flowctl.instrumentation.snapshot import Limit, Report, WaitReason
from flowctl.instrumentation.text import shown_command

WAITED_FOR: dict[WaitReason, str] = {
    WaitReason.BACKPRESSURE: "for busy bolts",
    WaitReason.MAX_PENDING: "at the limit of pending",
    WaitReason.NO_INPUT: "for input",
    WaitReason.LAST_TUPLES: "for bolts, which hold all that is left",
}

# What to say of a checkpoint in memory: a notebook may continue from it, but it does not survive a
# kill.
IN_MEMORY: Final = (
    "in memory only: run() of the same object goes on from it, a new process starts over"
)

_OUTCOMES = {
    "finished": "finished",
    "failed": "failed",
    "interrupted": "interrupted and saved",
    "paused": "paused and saved",
}


def lines(report: Report) -> list[str]:
    """Return the summary: outcome, what a resumed run found done, outcomes of tuples,
    checkpoint.
    """
    found = [_outcome(report), *report.first()]
    if report.resumed:
        found.append(_resumed(report))
    found += [
        *_verdict(report),
        _tuples(report),
        *dear_call(report.dear_call),
        *ended_lines(report),
        *_losses(report),
        *_quietly(report),
        *_all_left_out(report),
        *report.more(),
        *_waits(report),
        _checkpoint(report),
    ]
    if report.error and report.outcome not in ("failed", "paused"):
        # The error that ended a run is raised: the caller that catches it prints it, with its
        # remedy.
        found.append(f"error: {report.error.partition(chr(10))[0]}")
    return found


def place_lines(store: object) -> list[str]:
    """Return where ``store`` keeps the checkpoint, and a warning about that place, if any."""
    caution = getattr(store, "caution", "")
    if not getattr(store, "survives", True):
        return [f"the checkpoint is {IN_MEMORY}" + (f" ({caution})" if caution else "")]
    where = getattr(store, "place", "")
    return [*([f"the checkpoint is in {where}"] if where else []), *([caution] if caution else [])]


def resume_line(restored: Checkpoint) -> str:
    """Return how much a resumed run finds done; dead letters that were redriven count once."""
    nowhere = restored.records_kept_nowhere
    restored = without_redrives(restored)
    above = sum(span.records for p in restored.partitions.values() for span in p.acked)
    lost = f", {count(nowhere)} rejected and kept nowhere" if nowhere else ""
    done = count(restored.records)
    return f"resumed: {done} records done before, {count(above)} above a hole{lost}"


def _outcome(report: Report) -> str:
    done = counted(report.records_acked, "record")
    how = _OUTCOMES[report.outcome]
    if report.outcome == "interrupted" and report.error:
        how = "interrupted, not all saved"
    if report.paused_until:
        how += f", until {report.paused_until[:16].replace('T', ' ')} UTC"
    return (
        f"{how} · {done} in {clock(report.elapsed_s, tenths=True)} · {rate(report.records_per_s)}"
    )


def _verdict(report: Report) -> list[str]:
    """Return why the run was not faster, and what to change, if anything."""
    verdict = report.verdict
    if verdict.limit is Limit.STARTING:
        return []
    return [verdict.sentence, *([f"to change that: {verdict.remedy}"] if verdict.remedy else [])]


def _resumed(report: Report) -> str:
    if report.outcome == "finished" and not report.records_acked:
        return (
            f"nothing to do: all {count(report.records_total)} records were done before;"
            f" `flowctl checkpoint clear {shown_command([report.job])}` begins anew"
        )
    return (
        f"resumed at {count(report.resumed_records)},"
        f" skipped {count(report.records_skipped)} already acked"
    )


def _tuples(report: Report) -> str:
    facts = [
        f"tuples {count(report.tuples_acked)} acked",
        f"{count(report.tuples_expired)} expired",
        f"{count(report.tuples_moved)} moved",
        f"{count(report.tuples_failed)} failed",
        f"acks {count(report.acks_late)} late, {count(report.acks_duplicate)} doubled",
    ]
    if report.tuples_lost:
        facts.append(f"{count(report.tuples_lost)} lost on the way")
    if report.tuples_hedged:
        facts.append(f"{count(report.tuples_hedged)} run twice at the end")
    if report.records_dropped:
        records = counted(report.records_dropped, "record")
        tuples = report.tuples_dropped  # of a topology roots are dropped, and no tuples
        facts.append(f"dropped {count(tuples)} ({records})" if tuples else f"dropped {records}")
    if report.peers_dropped:
        facts.append(f"peers dropped {count(report.peers_dropped)}")
    if report.bolts_lost:
        facts.append(f"bolts lost {count(report.bolts_lost)}")
    return " · ".join(facts)


def _losses(report: Report) -> list[str]:
    """Return how many records were left out, where they are, and why."""
    what = losses_of(report)
    hint = f" (see `{report.dead_letters_hint}`)" if report.dead_letters_hint else ""
    found = [what + hint] if what else []
    reasons = [f"{told.reason} ({count(told.records)})" for told in report.loss_reasons]
    if reasons:
        found.append(f"most frequent: {' · '.join(reasons)}")
    return found + earlier_losses_of(report)


def earlier_losses_of(report: Report) -> list[str]:
    """Return a line for each kind of records that earlier runs left out and that are still open."""
    earlier = (
        earlier_losses(report.letters_of_earlier_runs, report.dead_letters_hint),
        earlier_kept_nowhere(report.records_kept_nowhere_before, report.job),
    )
    return [line for line in earlier if line]


def losses_of(report: Report) -> str:
    """Like :func:`losses`, and whether the records are kept nowhere; without those of earlier
    runs.
    """
    what = losses(report.records_rejected, report.records_dead_lettered)
    if not report.records_kept_nowhere:
        return what
    return f"{what} and kept nowhere: --dead-letters DIR keeps such records"


def losses(rejected: int, dead_lettered: int) -> str:
    """Return ``4 records rejected · 12 dead-lettered``; "" if there were none."""
    facts = [f"{counted(rejected, 'record')} rejected"] if rejected else []
    if dead_lettered:
        number = count(dead_lettered) if facts else counted(dead_lettered, "record")
        facts.append(f"{number} dead-lettered")
    return " · ".join(facts)


def earlier_losses(letters: int, hint: str) -> str:
    """Return ``3 dead letters of earlier runs are still open: flowctl dlq show NAME``, or ""."""
    if not letters:
        return ""
    are = "is" if letters == 1 else "are"
    where = f": {hint}" if hint else ""
    return f"{counted(letters, 'dead letter')} of earlier runs {are} still open{where}"


def earlier_kept_nowhere(records: int, job: str) -> str:
    """Return ``3 records of earlier runs were rejected and kept nowhere: … says which``, or ""."""
    if not records:
        return ""
    were = "was" if records == 1 else "were"
    show = f"`flowctl checkpoint show {shown_command([job])}`"
    return (
        f"{counted(records, 'record')} of earlier runs {were} rejected and kept nowhere: {show}"
        " says which, and a rewind has them processed again"
    )


def _quietly(report: Report) -> list[str]:
    """Return harmless facts: records that the sink already had, and calls that were repeated."""
    facts = []
    if report.records_left_out:
        facts.append(f"{counted(report.records_left_out, 'record')} written before, left out")
    if report.calls_refused:
        facts.append(f"{counted(report.calls_refused, 'call')} refused by the target")
    return [" · ".join(facts)] if facts else []


def _all_left_out(report: Report) -> list[str]:
    """Return, for a run that wrote nothing new, how to write everything again, if that was
    intended.
    """
    if not 0 < report.records_left_out == report.records_acked:
        return []
    name = shown_command([report.job])
    return [
        "all of them were written before: to write them again, delete the rows and"
        f" `flowctl checkpoint clear {name} --sink FILE:NAME`, which forgets what the sink wrote"
    ]


def _waits(report: Report) -> list[str]:
    """Return what the spout waited for, the longest first; waits below 1 % of the run are left
    out.
    """
    waited_s = {what: report.waits.waited_s(reason) for reason, what in WAITED_FOR.items()}
    told = [what for what in waited_s if waited_s[what] > report.elapsed_s / 100]
    told.sort(key=waited_s.__getitem__, reverse=True)
    facts = [f"{clock(waited_s[what], tenths=True)} {what}" for what in told]
    return [f"the spout waited {', '.join(facts)}"] if facts else []


def _checkpoint(report: Report) -> str:
    done = counted(report.records_saved, "record")
    if not report.checkpoint_survives:
        return f"checkpoint {done}, {IN_MEMORY}"
    saves = counted(report.checkpoint_saves, "save")
    return f"checkpoint {done} saved, all runs together · {saves}"

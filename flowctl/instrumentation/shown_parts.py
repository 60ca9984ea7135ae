"""What writes without a driver of flowctl's show: partitions of Spark in the place of bolts.

``flow_sink``, batches of streams and ``format("flowctl")`` run in Spark's tasks.  Each task keeps
what it did beside the target that it shares with others; whoever looks puts that together as what a
run shows, so that ``flowctl top`` and the page of all jobs show it by the same views.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final, Protocol

import msgspec

from flowctl.core.events import BoltState
from flowctl.core.pacing.figures import StoredTarget, TargetView
from flowctl.errors import FlowctlError
from flowctl.instrumentation.diagnosis import verdict_of_calls
from flowctl.instrumentation.numbers import counted
from flowctl.instrumentation.shown import EVERY_S, SILENT_S, Shown
from flowctl.instrumentation.snapshot import BoltView, Report, Snapshot
from flowctl.instrumentation.text import shown_command

# The end of a task waits to be shown for so long [s]: Redis takes a ms, and tasks may be short.
_LAST_WORD_S: Final = 0.5


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition of a write did until ``at_unix_ms``, by its worker's clock.

    ``action`` is the same for all partitions of one write, or of one batch; ``name`` is that of the
    partition in it.  ``counts`` are those of its :class:`flowctl.delivery.tally.Tally`.  ``error``
    ended it, without what it says: that may quote a row.
    """

    job: str
    target: str
    action: str
    name: str
    worker: str
    began_unix_ms: int
    at_unix_ms: int
    is_over: bool = False
    error: str = ""
    counts: dict[str, float] = {}

    @property
    def for_s(self) -> float:
        """How long it has been at work [s]."""
        return max(0.001, (self.at_unix_ms - self.began_unix_ms) / 1000)

    def count(self, name: str) -> int:
        """Return one of the counts."""
        return int(self.counts.get(name, 0))

    @property
    def settled(self) -> int:
        """Rows that are done: written, rejected or given up."""
        return self.count("written") + self.count("rejected") + self.count("gave_up")


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Part).decode


def unpack(data: Sequence[bytes]) -> list[Part]:
    """Return the partitions that this version can read."""
    found = []
    for each in data:
        with suppress(msgspec.MsgspecError):
            found.append(_decode(each))
    return found


# -- In the task ------------------------------------------------------------------------------


class KeepsParts(Protocol):
    """Where tasks keep what they show; see ``flowctl_redis.targets.RedisTargets``."""

    def show_part(self, job: str, name: str, part: bytes) -> None:
        """Keep ``part`` in place of what was there of this partition."""


@contextmanager
def showing(
    keep: KeepsParts, part: Part, counts: Callable[[], Mapping[str, float]]
) -> Iterator[None]:
    """Keep what a task does, once a second and at its end, until the block ends.

    A thread of its own does so: a store that is slow or away holds up nobody, but for half a second
    at the end.
    """
    over = Event()
    told = part

    def show() -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(EVERY_S)
            newest = msgspec.structs.replace(
                told, at_unix_ms=_now_ms(), is_over=is_over, counts=dict(counts())
            )
            with suppress(FlowctlError):
                keep.show_part(part.job, part.name, _encode(newest))

    thread = Thread(target=show, name="flowctl-part", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        told = msgspec.structs.replace(part, error=type(error).__name__)
        raise
    finally:
        over.set()
        thread.join(_LAST_WORD_S)


def part_of(job: str, target: str, *, action: str, name: str) -> Part:
    """Return a partition that begins now, in this process."""
    now_ms = _now_ms()
    return Part(
        job=job,
        target=target,
        action=action,
        name=name,
        worker=f"process {os.getpid()} on {os.uname().nodename}",
        began_unix_ms=now_ms,
        at_unix_ms=now_ms,
    )


def _now_ms() -> int:
    return int(time.time() * 1000)


# -- For who looks ----------------------------------------------------------------------------


def shown_of(
    parts: Sequence[Part], now_s: float, stored: StoredTarget | None = None
) -> Shown | None:
    """Return the newest write of a job as what a run shows; None: there is none.

    ``stored``: what is known of its target.  A write is over once all its partitions are and no
    other began for :data:`SILENT_S`: only Spark knows how many there are.
    """
    if not parts:
        return None
    newest = max(parts, key=lambda part: part.at_unix_ms)
    parts = [part for part in parts if part.action == newest.action]
    at_work = [part for part in parts if not part.is_over]
    told: dict[str, Any] = {}
    if not at_work and now_s - newest.at_unix_ms / 1000 > SILENT_S:
        told["report"] = _report(parts)
    return Shown(
        job=newest.job,
        headline=f"writes into {newest.target}",
        driver=f"Spark's tasks (write {newest.action})",
        at_unix_ms=newest.at_unix_ms,
        elsewhere="Which rows failed, and why, is in the workers' logs, and of those in the dead"
        f" letter in: {shown_command(['flowctl', 'dlq', 'show', newest.job])}",
        snapshot=_snapshot(parts, now_s, stored),
        **told,
    )


def _numbers(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what snapshot and report share."""
    began_ms = min(part.began_unix_ms for part in parts)
    elapsed_s = max(0.001, (max(part.at_unix_ms for part in parts) - began_ms) / 1000)
    total = {name: sum(part.count(name) for part in parts) for name in _COUNTED}
    done = sum(part.settled for part in parts)
    return {
        "job": parts[0].job,
        "elapsed_s": elapsed_s,
        "records_acked": done,
        "records_per_s": done / elapsed_s,
        "records_saved": sum(part.settled for part in parts if part.is_over and not part.error),
        "records_rejected": total["rejected"],
        "records_dead_lettered": total["gave_up"],
        "records_left_out": total["left_out"],
        "tuples_emitted": total["calls"],
        "tuples_acked": total["calls"] - total["refused"] - total["failed"],
        "tuples_failed": total["failed"],
        "calls_refused": total["refused"],
    }


_COUNTED: Final = ("rejected", "gave_up", "left_out", "calls", "refused", "failed")


def _snapshot(parts: Sequence[Part], now_s: float, stored: StoredTarget | None) -> Snapshot:
    at_work = [part for part in parts if not part.is_over]
    ended = len(parts) - len(at_work)
    failed = sum(bool(part.error) for part in parts)
    note = f"{counted(ended, 'partition')} ended"
    note += f", {failed} of them failed" if failed else ""
    done = sum(part.settled for part in parts) or 1
    snapshot = Snapshot(
        phase="running",
        bolts=tuple(
            _bolt(part, done, now_s)
            for part in sorted(parts, key=lambda part: (len(part.name), part.name))
            if part in at_work or part.error
        ),
        kill_reruns=sum(part.count("rows") for part in at_work),
        note=f"{note}; how many there are is in Spark's UI",
        targets=() if stored is None else (_target(at_work, stored),),
        **_numbers(parts),
    )
    return msgspec.structs.replace(
        snapshot,
        verdict=verdict_of_calls(
            snapshot,
            slots_s=sum(part.for_s for part in at_work),
            called_s=_sum(at_work, "called_s"),
            waited_s=_sum(at_work, "waited_s"),
        ),
    )


def _bolt(part: Part, done: int, now_s: float) -> BoltView:
    is_up = not part.error and now_s - part.at_unix_ms / 1000 <= SILENT_S
    called_s, waited_s = part.counts.get("called_s", 0.0), part.counts.get("waited_s", 0.0)
    calls, in_flight = part.count("calls"), part.count("rows") > part.settled
    return BoltView(
        name=f"p{part.name}",
        state=BoltState.BUSY if not is_up else BoltState.NORMAL,
        up=is_up,
        window=1,
        in_flight=int(in_flight),
        ack_rtt_p50_s=None,
        service_p50_s=called_s / calls if calls else None,
        acked=calls - part.count("refused") - part.count("failed"),
        share=part.settled / done,
        records_acked=part.settled,
        records_per_s=part.settled / part.for_s,
        refused=waited_s > called_s and part.count("refused") > 0,
    )


def _target(at_work: Sequence[Part], stored: StoredTarget) -> TargetView:
    calls = sum(part.count("calls") for part in at_work)
    refused = sum(part.count("refused") for part in at_work)
    return TargetView(
        target=stored.target,
        limit=stored.limit,
        reason=stored.reason,
        used=stored.used,
        calls_per_s=stored.calls_per_s,
        refused_share=refused / calls if calls else 0.0,
        waited_s=_sum(at_work, "waited_s"),
    )


def _report(parts: Sequence[Part]) -> Report:
    failed = [part for part in parts if part.error]
    error = f"{counted(len(failed), 'partition')} failed: {failed[0].error}" if failed else None
    lost = any(part.count("kept") for part in parts)
    return Report(
        outcome="failed" if failed else "finished",
        error=error,
        dead_letters_hint=shown_command(["flowctl", "dlq", "show", parts[0].job]) if lost else "",
        **_numbers(parts),
    )


def _sum(parts: Sequence[Part], name: str) -> float:
    return sum(part.counts.get(name, 0.0) for part in parts)

"""Which files a record and an ack pass, traced in a run: ``python -m tests.walk``.

docs/architecture.md tells the walk file by file; ``tests/integration/test_walk.py`` compares.  Also
counts how many of an ack's calls come back to a file that waits for them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from flowctl import FlowControlSpout, LocalBolts
from flowctl.config import Settings
from flowctl_files import TextLines

ROOT: Final = f"{Path(__file__).parents[1]}/"
RECORDS: Final = 600  # enough for what happens to each to stand out from what happens at times
# The calls that are made for each tuple or ack; what they call, directly or not, is its walk.
STEPS: Final = {
    "flowctl/core/tuple_core.py:poll_emit": "choose and note",
    "flowctl/wire/server.py:send": "send",
    "flowctl/bolts/turns.py:begin": "process",
    "flowctl/bolts/turns.py:returned": "report",
    "flowctl/bolts/link.py:report_and_take": "report",
    "flowctl/runtime/claims.py:breach": "check",
    "flowctl/runtime/inbound.py:_take_frame": "hear",
    "flowctl/core/tuple_core.py:on_ack": "learn, settle, free the place",
}
ACK: Final = "flowctl/core/tuple_core.py:on_ack"


class Trace:
    """The calls between our files while it is on, of threads that begin meanwhile."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.steps: Counter[str] = Counter()
        self.passed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.crossings = self.returns = 0  # of acks
        self._seen = threading.local()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (path := _ours(frame)) is None:
            return
        self.files.add(path)
        callers = list(_callers(frame))
        name = f"{path}:{frame.f_code.co_name}"
        if name in STEPS:
            self.steps[name] += 1
        for caller in callers:
            step = f"{_ours(caller)}:{caller.f_code.co_name}"
            if step in STEPS:
                self._pass(step, path, caller)
        self._count(path, callers)

    def _pass(self, step: str, path: str, caller: FrameType) -> None:
        """``path`` is passed in this call of ``step``: once, however often it is called."""
        seen: dict[str, tuple[FrameType, set[str]]] = self._seen.__dict__.setdefault("by_step", {})
        if step not in seen or seen[step][0] is not caller:
            seen[step] = (caller, set())
        if path not in seen[step][1]:
            seen[step][1].add(path)
            self.passed[step][path] += 1

    def _count(self, path: str, callers: list[FrameType]) -> None:
        """A call to another file while an ack is taken; does it come back to one that waits?"""
        names = [f"{_ours(caller)}:{caller.f_code.co_name}" for caller in callers]
        if ACK not in names:
            return
        waiting = [name.partition(":")[0] for name in names[: names.index(ACK) + 1]]
        if waiting[0] != path:
            self.crossings += 1
            self.returns += path in waiting

    def walk(self) -> dict[str, list[str]]:
        """For each step the files that more than half of its calls pass, in any order."""
        return {
            step: sorted(path for path, n in self.passed[step].items() if n > calls / 2)
            for step, calls in self.steps.items()
        }


def _ours(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    if path.startswith(ROOT) and "/tests/" not in path:
        return path.removeprefix(ROOT)
    return None


def _callers(frame: FrameType) -> Iterator[FrameType]:
    while (caller := frame.f_back) is not None:
        if _ours(caller) is not None:
            yield caller
        frame = caller


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace all threads that begin in the block, and this one."""
    trace = Trace()
    before = threading.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(before)


def trace_a_run(place: Path, checkpoint: Any = None) -> Trace:
    """Run a small job of one stage, with a record in each tuple; return its trace."""
    (place / "in.log").write_text("".join(f"line {n}\n" for n in range(RECORDS)))
    spout = FlowControlSpout(
        name="walk",
        producer=TextLines(place / "in.log"),
        bolts=LocalBolts(lambda batch: time.sleep(0.001), count=2),
        checkpoint=checkpoint,
        settings=Settings().with_overrides({"tuple.records_max": 1, "hedge.enabled": False}),
    )
    with traced() as trace:
        spout.run(view="off")
    return trace


def main() -> None:
    """Print what each step passes."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        trace = trace_a_run(Path(place))
    for step, paths in trace.walk().items():
        print(f"{step}, {trace.steps[step]} calls: {', '.join(paths)}")
    acks = trace.steps[ACK]
    print(
        f"an ack makes {trace.crossings / acks:.1f} calls between files of the core; of these"
        f" {trace.returns / acks:.1f} come back to a file that waits for them"
    )


if __name__ == "__main__":
    main()

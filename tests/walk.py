"""Which files a record and an ack pass, traced in a run: ``python -m tests.walk``.

docs/architecture.md tells the walk file by file; ``tests/integration/test_walk.py`` compares.  Also
counts how many of an ack's calls come back to a file that waits for them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from flowctl import FlowControlSpout, LocalBolts
from flowctl.config import Settings
from flowctl_files import TextLines, TextRanges

ROOT: Final = f"{Path(__file__).parents[1]}/"
RECORDS: Final = 600  # enough for what happens to each to stand out from what happens at times
DEAR, BOLTS = 200, 4  # records of 50 ms, which take some three seconds
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
        self.entered: Counter[str] = Counter()  # each file: how often, from another one
        self.steps: Counter[str] = Counter()
        self.passed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.crossings = self.returns = 0  # of acks
        self.users_calls = 0
        self._seen = threading.local()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        self.users_calls += frame.f_code.co_name == "users_function"
        if (path := _ours(frame)) is None:
            return
        callers = list(_callers(frame))
        if not callers or _ours(callers[0]) != path:
            self.entered[path] += 1
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

    def files(self, times: int) -> list[str]:
        """The files that are entered at least so many times."""
        return sorted(path for path, n in self.entered.items() if n >= times)

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


def taking(record_s: float) -> Callable[[Any], None]:
    """Return a function of a user's that takes so long for each record; its calls are counted."""

    def users_function(batch: Any) -> None:
        time.sleep(record_s * len(batch))

    return users_function


def _ranges(place: Path, fn: Callable[[Any], None]) -> None:
    (place / "in.log").write_text("".join(f"line {n}\n" for n in range(DEAR)))
    FlowControlSpout(
        name="walk", producer=TextRanges(place / "in.log"), bolts=LocalBolts(fn, count=BOLTS)
    ).run(view="off")


def _flow_sink(_: Path, fn: Callable[[Any], None]) -> None:
    from pyspark.sql import Row

    from pyspark_flowctl import flow_sink

    flow_sink(fn, target="walk", rows_max=3)(iter([Row(id=n) for n in range(RECORDS)]))


def _columns(_: Path, fn: Callable[[Any], None]) -> None:
    import pyarrow as pa
    from pyspark.sql.types import LongType, StructField, StructType

    from pyspark_flowctl import flow_sink
    from pyspark_flowctl.arrow_rows import ArrowRows

    batch = pa.RecordBatch.from_pydict({"id": range(RECORDS)})
    schema = StructType([StructField("id", LongType())]).json()
    flow_sink(fn, target="walk", rows_max=3)(ArrowRows([batch], schema))


def _apply(place: Path, fn: Callable[[Any], None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from flowctl_apply.parquet_apply import apply_parquet

    def double(batch: Any) -> Any:
        fn(batch)
        return [(record.value["id"] * 2,) for record in batch]

    schema = pa.schema([("id", pa.int64())])
    pq.write_table(pa.table({"id": range(DEAR)}), place / "in.parquet", row_group_size=20)
    apply_parquet(
        place / "in.parquet", double, schema=schema, name="walk", out=place / "out", bolts=BOLTS,
        view="off",
    )  # fmt: skip


# The walks beside that of a record by value, and of its ack.
# With the time of a record: a batch of ranges takes .15 s, so long records make many batches.
DOORS: Final = {
    "a range": (_ranges, 0.05),
    "a row of flow_sink": (_flow_sink, 0.001),
    "a row of write(df)": (_columns, 0.001),
    "a row of apply": (_apply, 0.05),
}


def files_of(door: str, place: Path) -> list[str]:
    """Run a small job behind ``door``; return the files entered as often as its ``fn``.

    So those of the start and of the end are none of them.
    """
    run, record_s = DOORS[door]
    with traced() as trace:
        run(place, taking(record_s))
    return trace.files(trace.users_calls)


def main() -> None:
    """Print what each step passes, and how many files each walk enters."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        # Each walk begins anew, wherever it is started.
        os.environ["FLOWCTL_CHECKPOINTS"] = f"{place}/checkpoints"
        trace = trace_a_run(Path(place))
    for step, paths in trace.walk().items():
        print(f"{step}, {trace.steps[step]} calls: {', '.join(paths)}")
    acks = trace.steps[ACK]
    print(
        f"an ack makes {trace.crossings / acks:.1f} calls between files of the core; of these"
        f" {trace.returns / acks:.1f} come back to a file that waits for them"
    )
    print(f"an ack: {len(trace.walk()[ACK])} files")
    print(f"a record by value: {len(trace.files(RECORDS))} files")
    for door in DOORS:
        with tempfile.TemporaryDirectory() as place:
            os.environ["FLOWCTL_CHECKPOINTS"] = f"{place}/checkpoints"
            files = files_of(door, Path(place))
            print(f"{door}: {len(files)} files: {', '.join(files)}")


if __name__ == "__main__":
    main()

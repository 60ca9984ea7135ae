"""Bolts that collect, over real sockets and threads, and on real Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flowctl.errors import ProcessError, SourceError
from flowctl.ports import SourceChunk
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Input, LocalStages, ManualCollector, Topology
from tests.runtime_parts import Witness
from tests.topology_driver import Numbers, passing

RECORDS = 2_000


class Died(KeyboardInterrupt):
    """Ends a bolt as the death of its worker does: anything else would fail what it had."""


class Totals:
    """Adds up what it holds; dies in its first ``deaths`` calls of ``on_end``."""

    ends: ClassVar[list[int]] = []
    deaths = 0
    error: Exception | None = None

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.held.append(given)

    def on_end(self, out: ManualCollector) -> None:
        self.ends.append(len(self.held))
        out.emit([given.value for given in self.held], anchors=self.held)
        for given in self.held:
            out.ack(given)
        self.held = []
        if Totals.error is not None:
            raise Totals.error
        if len(self.ends) <= Totals.deaths:
            raise Died


@pytest.fixture(autouse=True)
def quiet() -> None:
    Totals.ends.clear()
    Totals.deaths = 0
    Totals.error = None


def collecting(got: list[Any], producer: Any = None, *, count: int = 2) -> Topology:
    made = Topology("collecting")
    made.spout("s", producer or Numbers(RECORDS))
    made.bolt("first", passing, count=2).shuffle("s")
    made.bolt("total", Totals, count=count).shuffle("first")
    made.bolt("sink", lambda given, out: got.append(given.value)).shuffle("total")
    return made


def run(made: Topology, **how: Any) -> Any:
    how.setdefault("checkpoint", MemoryCheckpointStore())
    return made.run(LocalStages(), view=Witness(), **how)


def test_what_two_tasks_collected_is_emitted_at_the_end_and_the_run_waits_for_it() -> None:
    got: list[Any] = []
    report = run(collecting(got))
    assert len(Totals.ends) == 2
    assert sorted(n for part in got for n in part) == list(range(1, RECORDS + 1))
    assert (report.outcome, report.records_saved) == ("finished", RECORDS)
    assert (report.trees.complete, report.trees.replayed, report.trees.ledger_now) == (
        RECORDS,
        0,
        0,
    )


def test_a_bolt_that_dies_in_its_on_end_is_called_again_with_what_it_held() -> None:
    got: list[Any] = []
    Totals.deaths = 1
    report = run(collecting(got, count=1))
    assert Totals.ends == [RECORDS, RECORDS]
    assert [sorted(part) for part in got] == [list(range(1, RECORDS + 1))]
    assert (report.trees.complete, report.trees.replayed) == (RECORDS, 0)


def test_an_on_end_that_raises_each_time_fails_the_run_and_saves_nothing_of_it() -> None:
    Totals.error = ValueError("no place for totals")
    store = MemoryCheckpointStore()
    with pytest.raises(ProcessError, match=r"on_end of total failed .* no place for totals"):
        run(collecting([], count=1), checkpoint=store)
    assert sum(p.records for p in store.load("collecting").partitions.values()) == 0


class Breaking(Numbers):
    """Gives its records, then fails."""

    def poll(self, max_records: int) -> SourceChunk | None:
        chunk = super().poll(max_records)
        if chunk is None:
            raise SourceError("the source is gone.", remedy="Bring it back.")
        return chunk


def test_a_source_that_fails_ends_the_run_without_on_end() -> None:
    got: list[Any] = []
    with pytest.raises(SourceError, match="the source is gone"):
        run(collecting(got, Breaking(RECORDS)))
    assert (got, Totals.ends) == ([], [])


class Paused(Numbers):
    """Has nothing more for a while, and then its end."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.ticks: list[float] = []

    def poll(self, max_records: int) -> SourceChunk | None:
        chunk = super().poll(max_records)
        if chunk is None and len(self.ticks) < 3:
            time.sleep(0.01)
            return SourceChunk("p", [])
        return chunk


def test_ticks_come_while_nothing_else_does() -> None:
    got: list[Any] = []
    source = Paused(100)

    class Ticking:
        def __init__(self) -> None:
            self.held: list[Input] = []

        def execute(self, given: Input, out: ManualCollector) -> None:
            self.held.append(given)

        def on_tick(self, out: ManualCollector) -> None:
            source.ticks.append(time.monotonic())
            for given in self.held:
                out.emit(given.value, anchors=given)
                out.ack(given)
            self.held = []

    made = Topology("ticking")
    made.spout("s", source)
    made.bolt("a", Ticking, tick_s=0.1).shuffle("s")
    made.bolt("sink", lambda given, out: got.append(given.value)).shuffle("a")
    report = run(made)
    assert sorted(got) == list(range(1, 101))
    assert (report.outcome, len(source.ticks) >= 3) == ("finished", True)
    spaces = [b - a for a, b in zip(source.ticks, source.ticks[1:], strict=False)]
    assert min(spaces) > 0.05  # a tick that was late does not bring the next one sooner than due


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_on_spark_what_was_collected_is_emitted_at_the_end(spark: Any, tmp_path: Path) -> None:
    from flowctl_storm import SparkStages

    place = str(tmp_path)

    class Sums:
        def __init__(self) -> None:
            self.held: list[Any] = []

        def execute(self, given: Any, out: Any) -> None:
            import os
            import time
            from pathlib import Path

            self.held.append(given)
            died = Path(place, "died")
            if len(self.held) == 200 and not died.exists():
                died.touch()
                os._exit(1)  # the worker dies with what it holds
            # The last record waits until the bolt that has nothing to do meanwhile has ticked.
            patience = 3_000
            while given.value == RECORDS and not Path(place, "ticked").exists() and patience:
                patience -= 1
                time.sleep(0.02)

        def on_tick(self, out: Any) -> None:
            from pathlib import Path

            Path(place, "ticked").touch()

        def on_end(self, out: Any) -> None:
            out.emit([given.value for given in self.held], anchors=self.held)
            for given in self.held:
                out.ack(given)
            self.held = []

    def sink(given: Any, out: Any) -> None:
        from pathlib import Path

        with Path(place, "got").open("a") as file:
            file.write("".join(f"{n}\n" for n in given.value))

    made = Topology("collecting")
    made.spout("s", Numbers(RECORDS))
    made.bolt("total", Sums, count=2, tick_s=0.2).shuffle("s")
    made.bolt("sink", sink).shuffle("total")
    report = made.run(SparkStages(spark=spark), checkpoint=MemoryCheckpointStore(), view=Witness())
    got = [int(n) for n in (tmp_path / "got").read_text().split()]
    assert set(got) == set(range(1, RECORDS + 1))
    assert (tmp_path / "died").exists()
    assert (tmp_path / "ticked").exists()
    assert report.trees is not None
    assert (report.trees.complete, report.trees.ledger_now) == (RECORDS, 0)
    assert report.records_saved == RECORDS

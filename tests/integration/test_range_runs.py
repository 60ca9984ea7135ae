"""Runs whose bolts read the source themselves: exact, split, killed, with bad records."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from guarantee_parts import Effects, ranges

from flowctl import (
    Batch,
    Checkpoint,
    ConfigError,
    Extent,
    FlowControlSpout,
    LocalBolts,
    ProcessError,
    Record,
    Settings,
    SourceError,
)
from flowctl.core.records import Receipts
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl_files import TextRanges
from flowctl_redis.embedded import EmbeddedServer

pytestmark = pytest.mark.timeout(120)
KILLS, RECORDS_A_KILL = 3, 400
QUICK = {"retry.backoff_first_s": 0.001}


def write_lines(place: Path, files: int, lines: int) -> list[str]:
    """Return the lines of ``files`` files in ``place``, all different."""
    written = []
    for number in range(files):
        mine = [f"{number} {line} {'x' * (line % 40)}" for line in range(lines)]
        (place / f"{number}.log").write_text("".join(f"{text}\n" for text in mine))
        written += mine
    return written


class Seen:
    """What bolts were given."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lines: Counter[str] = Counter()

    def add(self, batch: Sequence[Record]) -> int:
        """Return how many lines were seen so far."""
        with self.lock:
            self.lines.update(record.value for record in batch)
            return self.lines.total()


@pytest.mark.req("S11")
def test_each_line_is_processed_once_and_counted(tmp_path: Path) -> None:
    wanted, seen, store = write_lines(tmp_path, 3, 20_000), Seen(), MemoryCheckpointStore()

    def process(batch: Batch) -> None:
        seen.add(list(batch))

    def job() -> FlowControlSpout:
        return FlowControlSpout(
            name="lines",
            producer=TextRanges(f"{tmp_path}/*.log"),
            bolts=LocalBolts(process, count=3),
            checkpoint=store,
        )

    report = job().run(view="off")
    assert seen.lines == Counter(wanted)
    assert report.records_acked == report.records_saved == len(wanted)
    done = store.load("lines").partitions
    sizes = {str(path): path.stat().st_size for path in tmp_path.glob("*.log")}
    assert {name: state.position for name, state in done.items()} == {
        name: size - 1 for name, size in sizes.items()
    }
    assert job().run(view="off").records_acked == 0, "all of it was done"
    assert seen.lines == Counter(wanted)


@pytest.mark.req("S20")
def test_a_bolt_that_stands_still_gives_back_what_it_has_not_begun(tmp_path: Path) -> None:
    """Without splits this would not end: the slow bolt goes on only when all else is done."""
    wanted, seen = write_lines(tmp_path, 1, 30_000), Seen()
    others_are_done = threading.Event()
    stopped: list[int] = []  # the batch that the slow bolt stands still in
    went_on: list[bool] = []

    def process(batch: Batch) -> None:
        if batch.bolt == "b1" and not stopped:
            stopped.append(len(list(batch)))
            went_on.append(others_are_done.wait(100))
        total = seen.add(list(batch))
        if stopped and total + stopped[0] >= len(wanted):
            others_are_done.set()

    spout = FlowControlSpout(
        name="split",
        producer=TextRanges(f"{tmp_path}/*.log"),
        bolts=LocalBolts(process, count=2),
    )
    report = spout.run(view="off")
    assert all(went_on), "the others waited for the slow bolt"
    assert seen.lines == Counter(wanted), "once each: what was split was nobody's twice"
    assert report.records_acked == len(wanted)


@pytest.mark.req("S70", "S87")
def test_none_is_missing_after_kills_of_the_driver(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "redis")
    where, wanted = ranges(tmp_path, (KILLS + 1) * RECORDS_A_KILL)
    try:
        effects = Effects(tmp_path, server.start(), source=where, mode="at_least_once")
        assert effects.survive(KILLS, seed=1) == KILLS
    finally:
        server.stop()
    assert set(effects.seen()) == wanted


@pytest.mark.req("S22", "S70")
def test_none_of_a_topic_that_grows_is_missing_after_kills_of_the_driver(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    from tests.kafka_parts import MockKafka

    kafka, server = MockKafka(), EmbeddedServer(tmp_path / "redis")
    wanted, where = set(kafka.fill("numbers", 800)), f"kafka-ranges:{kafka.servers}/numbers"
    try:
        effects = Effects(tmp_path, server.start(), source=where, mode="at_least_once")
        for kill in range(2):
            assert effects.kill_after(150, effects.start())
            more = [f"{kill}-{n}" for n in range(100)]
            kafka.write("numbers", [value.encode() for value in more], partition=kill)
            wanted.update(more)
        done = effects.count()
        effects.finish()
    finally:
        server.stop()
    assert set(effects.seen()) == wanted
    assert effects.count() - done < len(wanted), "what the checkpoints hold is not done again"


@pytest.mark.req("S109", "S110")
def test_bad_records_go_to_the_dead_letter_and_nothing_else(tmp_path: Path) -> None:
    wanted, seen = write_lines(tmp_path, 1, 3_000), Seen()
    poison, useless = wanted[1_234], wanted[2_345]
    kept: list[str] = []

    class Letters:
        def dead_letter(
            self, job: str, partition: str, records: Sequence[Record], **why: object
        ) -> None:
            kept.extend(record.value for record in records)

        def close(self) -> None:
            pass

    def process(batch: Batch) -> None:
        good = []
        for record in list(batch):
            if record.value == poison:
                raise ValueError("poison")
            if record.value == useless:
                batch.reject(record, "no use")
            else:
                good.append(record)
        seen.add(good)

    report = FlowControlSpout(
        name="bad",
        producer=TextRanges(f"{tmp_path}/*.log"),
        bolts=LocalBolts(process, count=2),
        settings=Settings().with_overrides(QUICK),
        dead_letter=Letters(),
    ).run(view="off")
    assert sorted(kept) == sorted([poison, useless])
    assert set(seen.lines) == set(wanted) - {poison, useless}
    assert report.records_acked == len(wanted)
    assert (report.records_rejected, report.records_dead_lettered) == (1, 1)


def test_a_process_that_never_works_fails_the_run(tmp_path: Path) -> None:
    write_lines(tmp_path, 4, 5_000)
    calls = Seen()

    def process(batch: Batch) -> None:
        calls.add(list(batch)[:1])
        raise ValueError("never")

    spout = FlowControlSpout(
        name="never",
        producer=TextRanges(f"{tmp_path}/*.log"),
        bolts=LocalBolts(process, count=2),
    )
    with pytest.raises(ProcessError, match="never"):
        spout.run(view="off")
    assert calls.lines.total() < 5_000, "it was not called for each batch of the source"


def test_a_file_that_changed_ends_the_run_by_name(tmp_path: Path) -> None:
    write_lines(tmp_path, 1, 50_000)
    path = tmp_path / "0.log"

    class Changed(TextRanges):
        def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
            found = super().extents(checkpoint)
            path.write_text("something else\n")
            return found

    spout = FlowControlSpout(
        name="changed", producer=Changed(str(path)), bolts=LocalBolts(print, count=1)
    )
    with pytest.raises(SourceError, match=r"0\.log"):
        spout.run(view="off")


def test_ranges_refuse_guarantees_that_they_cannot_give(tmp_path: Path) -> None:
    write_lines(tmp_path, 1, 1)
    settings = Settings().with_overrides({"guarantee.mode": "at_most_once"})
    with pytest.raises(ConfigError, match="at most once"):
        FlowControlSpout(
            name="once",
            producer=TextRanges(f"{tmp_path}/*.log"),
            bolts=LocalBolts(print, count=1),
            settings=settings,
        )


class Log:
    """A manifest in memory."""

    def __init__(self) -> None:
        self.kept: list[Receipts] = []

    def entries(self) -> list[Receipts]:
        return list(self.kept)

    def append(self, entries: Sequence[Receipts]) -> None:
        self.kept.extend(entries)


def test_what_the_log_of_receipts_holds_is_done_whatever_the_checkpoint_says(
    tmp_path: Path,
) -> None:
    lines = write_lines(tmp_path, 1, 1_000)
    path = tmp_path / "0.log"
    half = len("".join(f"{line}\n" for line in lines[:500]))
    seen, log = Seen(), Log()
    log.kept.append(Receipts(str(path), 0, half, 500, [b"a file"]))

    def process(batch: Batch) -> None:
        seen.add(list(batch))

    spout = FlowControlSpout(
        name="kept", producer=TextRanges(str(path)), bolts=LocalBolts(process, count=2)
    )
    spout.receipts = log
    report = spout.run(view="off")
    assert seen.lines == Counter(lines[500:])
    assert report.records_acked == 500

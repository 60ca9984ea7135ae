"""Any files, by value and by reference, killed and gone on, changed meanwhile: as read naively.

A naive reader says what is in the files.  Then the same files are read as a job reads them: by
value through a spout that is driven by hand, by reference through the core of ranges and the
reader that travels to the workers.  Lives of the job end anywhere; what was saved is never read
again, and everything is read.
"""

from __future__ import annotations

import bz2
import gzip
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowctl.config import Settings
from flowctl.core.messages import Emission, Processed, Progress, RangeEmission
from flowctl.core.ranges.core import RangeCore
from flowctl.core.records import Checkpoint, Record
from flowctl.core.settings import CoreSettings
from flowctl.errors import SourceError
from flowctl.range_ports import RangeProducer
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.clock import ManualClock
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import ParquetRanges, ParquetRows, TextLines, TextRanges, _text_blocks
from flowctl_sql import SqlRanges
from tests.thorough import IS_THOROUGH

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

Row = tuple[str, int, Any]  # file, place in it, value
EXAMPLES = settings(max_examples=2_000 if IS_THOROUGH else 50)


# -- the job ---------------------------------------------------------------------------------


class Read(NamedTuple):
    """What the lives of a job were given, and the error that ended the last one."""

    lives: list[list[Row]]
    error: SourceError | None

    @property
    def rows(self) -> list[Row]:
        return [row for life in self.lives for row in life]


def row_of(partition: str, record: Record) -> Row:
    at = record.position
    return partition, at[0] if isinstance(at, tuple) else at, record.value  # type: ignore[return-value]


class ByValue:
    """Lives of a job whose spout is driven by hand; tuples are acked in any order."""

    def __init__(self, make: Callable[[], Any], chance: Random) -> None:
        self.make = make
        self.chance = chance
        self.store = MemoryCheckpointStore()
        self.saved: set[str] = set()

    def read(self, kills: int, between: Callable[[], None] = lambda: None) -> Read:
        lives: list[list[Row]] = []
        for left in range(kills, -1, -1):
            lives.append([])
            try:
                self.live(lives[-1], self.chance.randint(0, 12) if left else inf)
            except SourceError as error:
                return Read(lives, error)
            if left:
                between()
        return Read(lives, None)

    def live(self, given: list[Row], steps: float) -> None:
        producer, chance = self.make(), self.chance
        small = {"tuple.records_max": chance.choice([1, 3, 100]), "lab.window.initial": 3}
        spout = ManualSpout(
            name="job",
            producer=producer,
            checkpoint=self.store,
            settings=Settings().with_overrides(small),
        )
        spout.open({"a": 1, "b": 1}, clock=ManualClock())
        known, under_way, acked = set(self.saved), list[Emission](), set[str]()
        try:
            spout.activate()
            while steps > 0:
                steps -= 1
                emission = self.next_of(spout, under_way)
                if emission is not None:
                    rows = [row_of(emission.partition, record) for record in emission.records]
                    assert not known.intersection(map(repr, rows)), "it was saved as done"
                    given += rows
                    under_way.append(emission)
                elif under_way:
                    done = under_way.pop(chance.randrange(len(under_way)))
                    spout.ack(done)
                    acked.update(repr(row_of(done.partition, record)) for record in done.records)
                elif spout.is_drained:
                    spout.save()
                    self.saved |= acked
                    return
                if chance.random() < 0.2:
                    spout.save()
                    self.saved |= acked
        finally:
            producer.close()  # killed: nothing is saved

    def next_of(self, spout: ManualSpout, under_way: list[Emission]) -> Emission | None:
        """The next tuple; what came before an error is finished first."""
        if under_way and self.chance.random() < 0.3:
            return None
        try:
            return spout.next_tuple()
        except SourceError:
            if not under_way:
                raise
            return None


class ByReference:
    """Lives of a job over ranges: one bolt, which reads as a worker does and reports by batches."""

    def __init__(self, make: Callable[[], RangeProducer], chance: Random) -> None:
        self.make = make
        self.chance = chance
        self.saved = Checkpoint()
        self.done: set[str] = set()

    def read(self, kills: int, between: Callable[[], None] = lambda: None) -> Read:
        lives: list[list[Row]] = []
        for left in range(kills, -1, -1):
            lives.append([])
            try:
                self.live(lives[-1], self.chance.randint(0, 12) if left else inf)
            except SourceError as error:
                return Read(lives, error)
            if left:
                between()
        return Read(lives, None)

    def live(self, given: list[Row], batches: float) -> None:
        producer, clock = self.make(), ManualClock()
        core = RangeCore(CoreSettings(), checkpoint=self.saved)
        core.offer_extents(producer.extents(self.saved))
        reader = producer.reader()
        core.end_of_input(now_s=clock())
        core.add_bolt("a", slots=1, epoch=1, now_s=clock(), in_order=True)
        known = set(self.done)
        done: set[str] = set()
        while not core.is_drained:
            emission = core.poll_emit(now_s=clock())
            assert isinstance(emission, RangeEmission)
            at = emission.start
            for through, rows in self.batches(reader, emission):
                if batches <= 0:
                    return  # killed
                batches -= 1
                assert not known.intersection(map(repr, rows)), "it was saved as done"
                given += rows
                clock.advance(0.01)
                did = Processed(records=len(rows), service_s=0.01)
                told = Progress(emission.tuple_id, 1, at, through, 0.0, did)
                core.on_progress("a", 1, told, now_s=clock())
                at = through
                done.update(map(repr, rows))
                if self.chance.random() < 0.4:
                    self.saved = core.checkpoint()
                    self.done |= done
        self.saved = core.checkpoint()
        self.done |= done

    def batches(self, reader: Any, e: RangeEmission) -> Iterator[tuple[int, list[Row]]]:
        for block in reader.open(e.partition, e.start, e.stop, e.identity):
            first = 0
            while first < len(block):
                last = min(len(block), first + self.chance.choice([1, 3, 50]))
                records = block.batch_records(first, last)
                yield block.position(last), [row_of(e.partition, record) for record in records]
                first = last
            if not len(block):
                yield block.stop, []


DOORS = {"by value": ByValue, "by reference": ByReference}
doors = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


@contextmanager
def place(block_bytes: int = 1 << 16) -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(_text_blocks, "BLOCK_BYTES", block_bytes),
        patch.object(_text_blocks, "_REST_BYTES", max(1, block_bytes // 4)),
    ):
        yield Path(folder)


def check_read(read: Read, expected: list[Row]) -> None:
    """Everything, in the last life nothing twice, and never another value."""
    assert {repr(row) for row in read.rows} == {repr(row) for row in expected}
    for life in read.lives:
        assert len({row[:2] for row in life}) == len(life), "twice in one life"


# -- lines -----------------------------------------------------------------------------------

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
}
TEXTS = st.text(st.sampled_from("aé漢😀\r\t \x85\u2028\x00"), max_size=9) | st.just("x" * 90)
CONTENTS = st.tuples(
    st.lists(st.tuples(TEXTS, st.sampled_from(["\n", "\r\n"])), max_size=14),
    st.booleans(),  # the last line ends
    st.booleans(),  # a byte order mark
    st.integers(0, 200) | st.none(),  # where a bad byte is
)


def data_of(contents: Any, encoding: str | None) -> bytes:
    lines, is_ended, has_bom, bad_at = contents
    text = "".join(line + end for line, end in lines)
    if not is_ended and lines:
        text = text.removesuffix(lines[-1][1])
    data = text.encode(encoding or "utf-8", errors="replace")
    if has_bom and encoding == "utf-8":
        data = b"\xef\xbb\xbf" + data
    if bad_at is not None and data and encoding == "utf-8":
        at = bad_at % len(data)
        data = data[:at] + b"\xff" + data[at:]
    return data


def naive_lines(name: str, data: bytes, encoding: str | None, errors: str) -> tuple[list[Row], int]:
    """The lines with their places up to the first that is no text, and how many are left."""
    raw = data.split(b"\n")
    last_ended = raw[-1] == b""
    if last_ended:
        raw.pop()
    rows: list[Row] = []
    at = 0
    for number, line in enumerate(raw):
        is_ended = number < len(raw) - 1 or last_ended
        whole = line.removesuffix(b"\r") if is_ended else line
        try:
            value: Any = whole if encoding is None else whole.decode(encoding, errors)
        except UnicodeDecodeError:
            return rows, len(raw) - number
        if at == 0 and encoding == "utf-8":
            value = value.removeprefix("\ufeff")
        rows.append((name, at, value))
        at += len(line) + 1
    return rows, 0


def is_utf_16(data: bytes) -> bool:
    """Whether its beginning is ASCII in UTF-16, for all that can be known: that is refused."""
    zeros = {index % 2 for index, byte in enumerate(data[:10]) if not byte}
    return len(zeros) == 1 and data[:10].count(0) == len(data[min(zeros) : 10 : 2])


CODECS = st.sampled_from(
    [("utf-8", "strict"), ("utf-8", "replace"), ("latin-1", "strict"), (None, "strict")]
)


@doors
@EXAMPLES
@given(
    files=st.lists(st.tuples(CONTENTS, st.sampled_from(sorted(PACKED))), min_size=1, max_size=3),
    codec=CODECS,
    block_bytes=st.integers(1, 300),
    kills=st.integers(0, 3),
    chance=st.randoms(use_true_random=False),
)
def test_lines(
    door: Any, files: Any, codec: Any, block_bytes: int, kills: int, chance: Random
) -> None:
    encoding, errors = codec
    with place(block_bytes) as folder:
        expected: list[Row] = []
        bad: list[str] = []
        for number, (contents, end) in enumerate(files):
            path = folder / f"{number}.log{end}"
            data = data_of(contents, encoding)
            assume(end or not is_utf_16(data))
            path.write_bytes(PACKED[end](data))
            rows, left = naive_lines(str(path), data, encoding, errors)
            expected += [] if bad else rows  # what stands behind an error is not read
            if left:
                bad.append(str(path))
        source = TextLines if door is ByValue else TextRanges
        made = lambda: source(folder / "*.log*", encoding=encoding, errors=errors)  # noqa: E731
        read = door(made, chance).read(kills)
        if bad:
            assert read.error is not None and bad[0] in read.error.problem
        else:
            assert read.error is None, read.error
        check_read(read, expected)


# -- Parquet ---------------------------------------------------------------------------------

TYPES = {
    "int8": (pyarrow.int8(), st.integers(-128, 127)),
    "int64": (pyarrow.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (pyarrow.float64(), st.floats()),
    "bool": (pyarrow.bool_(), st.booleans()),
    "text": (pyarrow.string(), st.text(max_size=5)),
    "bytes": (pyarrow.binary(), st.binary(max_size=5)),
    "list": (pyarrow.list_(pyarrow.int64()), st.lists(st.integers(0, 9), max_size=3)),
    "struct": (
        pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=2)}),
    ),
    "codes": (pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), st.sampled_from("abc")),
    "time": (pyarrow.timestamp("us"), st.datetimes()),
}


@st.composite
def tables(draw: Any) -> Any:
    names = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(0, 12))
    columns = {}
    for name in names:
        kind, values = TYPES[name]
        given_values = draw(st.lists(values | st.none(), min_size=rows, max_size=rows))
        columns[name] = pyarrow.array(given_values, kind)
    return pyarrow.table(columns)


@doors
@EXAMPLES
@given(
    table=tables(),
    files=st.integers(1, 2),
    group=st.integers(1, 8),
    packed=st.sampled_from(["none", "snappy", "gzip", "zstd"]),
    some=st.booleans(),
    kills=st.integers(0, 2),
    chance=st.randoms(use_true_random=False),
)
def test_rows(
    door: Any,
    table: Any,
    files: int,
    group: int,
    packed: str,
    some: bool,
    kills: int,
    chance: Random,
) -> None:
    columns = table.column_names[:1] if some else None
    with place() as folder:
        expected: list[Row] = []
        for number in range(files):
            path = folder / f"{number}.parquet"
            parquet.write_table(table, path, row_group_size=group, compression=packed)
            values = parquet.read_table(path, columns=columns, partitioning=None).to_pylist()
            expected += [(str(path), at, value) for at, value in enumerate(values)]
        source = ParquetRows if door is ByValue else ParquetRanges
        read = door(lambda: source(folder / "*.parquet", columns=columns), chance).read(kills)
        assert read.error is None, read.error
        check_read(read, expected)


# -- tables of a database --------------------------------------------------------------------

KEYS = st.integers(-5, 40) | st.sampled_from([-(1 << 63), (1 << 63) - 2, 1 << 40])


@EXAMPLES
@given(
    keys=st.sets(KEYS, max_size=25),
    page_rows=st.integers(1, 6),
    where=st.sampled_from(["", "id % 2 = 0", "word LIKE 'w%'"]),
    some=st.booleans(),
    kills=st.integers(0, 3),
    chance=st.randoms(use_true_random=False),
)
def test_rows_of_a_table(
    keys: set[int], page_rows: int, where: str, some: bool, kills: int, chance: Random
) -> None:
    with place() as folder:
        connect = partial(sqlite3.connect, folder / "t.db")
        with closing(connect()) as database, database:
            database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, price REAL)")
            rows = [(key, chance.choice(["w", "x", None]), key / 2) for key in keys]
            database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        names = ["price", "id"] if some else ["id", "word", "price"]
        with closing(connect()) as database:
            cursor = database.execute(
                f"SELECT id, {', '.join(names)} FROM t WHERE {where or '1'} ORDER BY id"
            )
            expected = [("t", key, dict(zip(names, row, strict=True))) for key, *row in cursor]
        options = {"where": where, "page_rows": page_rows, "columns": names if some else None}
        read = ByReference(lambda: SqlRanges(connect, "t", "id", **options), chance).read(kills)
        assert read.error is None, read.error
        check_read(read, expected)


# -- files that change -----------------------------------------------------------------------


@EXAMPLES
@given(
    lines=st.lists(st.text("ab", max_size=9), min_size=1, max_size=30),
    how=st.sampled_from(["touched", "longer", "shorter", "rewritten", "gone"]),
    when=st.integers(0, 12),
    block_bytes=st.integers(1, 60),
    chance=st.randoms(use_true_random=False),
)
def test_of_a_file_that_changes_during_a_run_of_ranges_no_new_line_is_given(
    lines: list[str], how: str, when: int, block_bytes: int, chance: Random
) -> None:
    """Also between two batches of one range: what was read before may still be given."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with place(block_bytes) as folder:
        path = folder / "a.log"
        path.write_bytes(data)
        expected, _ = naive_lines(str(path), data, "utf-8", "strict")

        class Meddling(ByReference):
            left = when

            def batches(self, reader: Any, e: RangeEmission) -> Iterator[tuple[int, list[Row]]]:
                for batch in super().batches(reader, e):
                    yield batch
                    self.left -= 1
                    if self.left < 0:
                        change(path, data, how)
                        self.left = 1 << 30

        read = Meddling(lambda: TextRanges(path), chance).read(0)
        assert [row for row in read.rows if row not in expected] == []
        if read.error is None:
            check_read(read, expected)
        else:
            assert "a.log" in read.error.problem


def change(path: Path, data: bytes, how: str) -> None:
    if how == "gone":
        path.unlink()
        return
    if how != "touched":
        # In place: a reader that has it open sees it.
        with path.open("r+b") as file:
            file.truncate(len(data) // 2 if how == "shorter" else len(data))
            if how == "rewritten":
                file.write(b"z" * max(0, len(data) - 1) + b"\n")
            elif how == "longer":
                file.seek(0, os.SEEK_END)
                file.write(b"new\n")
    os.utime(path, ns=(1, 1))


@EXAMPLES
@given(
    lines=st.lists(st.text("ab", max_size=9), min_size=1, max_size=20),
    more=st.lists(st.text("cd", max_size=9), max_size=9),
    is_ended=st.booleans(),
    kills=st.integers(1, 3),
    block_bytes=st.integers(1, 60),
    chance=st.randoms(use_true_random=False),
)
def test_a_file_that_grows_between_runs_is_read_on(
    lines: list[str],
    more: list[str],
    is_ended: bool,
    kills: int,
    block_bytes: int,
    chance: Random,
) -> None:
    """Of a last line without an end, what was there is a record, and the whole line another."""
    with place(block_bytes) as folder:
        path = folder / "a.log"
        text = "".join(f"{line}\n" for line in lines)
        path.write_text(text if is_ended else text[:-1], newline="")
        left = iter(more)
        seen: set[str] = set()

        def see() -> None:
            rows, _ = naive_lines(str(path), path.read_bytes(), "utf-8", "strict")
            seen.update(map(repr, rows))

        def grow() -> None:
            see()
            with path.open("a", newline="") as file:
                file.write(next(left, "") + ("\n" if chance.random() < 0.7 else ""))

        read = ByValue(lambda: TextLines(path), chance).read(kills, grow)
        see()
        final, _ = naive_lines(str(path), path.read_bytes(), "utf-8", "strict")
        assert read.error is None, read.error
        found = {repr(row) for row in read.rows}
        assert found <= seen
        assert {repr(row) for row in final} <= found


@EXAMPLES
@given(
    door=st.sampled_from(sorted(DOORS)),
    rows=st.integers(2, 20),
    kills=st.integers(1, 3),
    chance=st.randoms(use_true_random=False),
)
def test_a_table_that_is_another_in_a_later_run_is_refused_once_a_part_is_done(
    door: str, rows: int, kills: int, chance: Random
) -> None:
    """Else rows of two files would pass for those of one."""
    with place() as folder:
        path = folder / "a.parquet"
        parquet.write_table(pyarrow.table({"n": range(rows)}), path, row_group_size=3)
        source = ParquetRows if door == "by value" else ParquetRanges
        lives = DOORS[door](lambda: source(path), chance)

        kept: list[bool] = []

        def rewrite() -> None:
            kept.append(bool(lives.saved if door == "by value" else lives.done))
            parquet.write_table(pyarrow.table({"n": range(100, 100 + rows)}), path)
            os.utime(path, ns=(1, 1))

        read = lives.read(kills, rewrite)
        if kept[0]:
            assert read.error is not None and "a.parquet" in read.error.problem
            assert not read.lives[1]
        else:
            assert read.error is None, read.error
            later = {row[2]["n"] for life in read.lives[1:] for row in life}
            assert later == set(range(100, 100 + rows))

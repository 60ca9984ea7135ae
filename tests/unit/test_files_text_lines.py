"""What TextLines reads, and what it says when it can't."""

from __future__ import annotations

import gzip
import os
import random
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.errors import ConfigError, SourceError
from flowctl_files import TextLines, TextRanges


def _at(**positions: Position) -> Checkpoint:
    return Checkpoint(partitions={n: PartitionCheckpoint(position=p) for n, p in positions.items()})


def _drain(producer: TextLines, records: list[Record], *, most: int = 1000) -> list[Record]:
    while (chunk := producer.poll(most)) is not None:
        records.extend(chunk.records)
    return records


def _read(producer: TextLines, checkpoint: Checkpoint | None = None) -> list[Record]:
    producer.open(checkpoint or Checkpoint())
    try:
        return _drain(producer, [])
    finally:
        producer.close()


def _values(path: Path, data: bytes, **options: object) -> list[object]:
    path.write_bytes(data)
    return [record.value for record in _read(TextLines(path, **options))]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.req("S12")
def test_positions_are_byte_and_line(here: Path) -> None:
    (here / "a.log").write_bytes("ä\r\n\nzwei\nend".encode())
    assert _read(TextLines("a.log")) == [
        Record((0, 1), "ä"),
        Record((4, 2), ""),
        Record((5, 3), "zwei"),
        Record((10, 4, 3), "end"),  # no newline: it may yet grow
    ]


def test_only_newline_ends_a_line(here: Path) -> None:
    data = "a\rb\x0b\x0c\x85\u2028\r\r\nc\r".encode()
    assert _values(here / "a", data) == ["a\rb\x0b\x0c\x85\u2028\r", "c\r"]
    assert _values(here / "a", data, encoding=None) == [data[:-4], b"c\r"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "shift_jis", None])
def test_every_encoding_gives_the_lines_that_python_reads(here: Path, encoding: str | None) -> None:
    rng = random.Random(7)
    letters = "aé\r" if encoding != "shift_jis" else "aソ\r"  # its second byte is a backslash
    text = "\n".join("".join(rng.choices(letters, k=rng.randrange(5))) for _ in range(3000))
    data = text.encode(encoding or "utf-8")
    expected = [line + b"\n" for line in data.split(b"\n")]
    expected[-1] = expected[-1][:-1]
    stripped = [
        line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n") for line in expected
    ]
    if not stripped[-1]:
        stripped.pop()
    values = _values(here / "a", data, encoding=encoding)
    assert values == [line.decode(encoding) if encoding else line for line in stripped]


@pytest.mark.parametrize(
    ("errors", "value"),
    [("replace", "a\ufffdb"), ("backslashreplace", "a\\xffb"), ("ignore", "ab")],
)
def test_bytes_that_do_not_decode_can_be_let_through(here: Path, errors: str, value: str) -> None:
    (here / "a").write_bytes(b"a\xffb\nnext\n")
    assert _read(TextLines("a", errors=errors)) == [Record((0, 1), value), Record((4, 2), "next")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(here: Path) -> None:
    """Or the first of a file from Windows would not be the name of a column."""
    mark = "\ufeff"
    text = f"{mark}id,name\r\n{mark}1,a\n".encode()
    assert _values(here / "a.csv", text) == ["id,name", f"{mark}1,a"]
    assert _values(here / "b.csv", f"{mark}".encode()) == [""]
    assert _values(here / "c.csv", text, encoding=None)[0] == f"{mark}id,name".encode()
    (here / "d.csv").write_bytes(text)
    done = _at(**{"d.csv": (0, 1)})
    assert [r.position for r in _read(TextLines("d.csv"), done)] == [(12, 2)]


def test_files_are_found_sorted_and_once(here: Path) -> None:
    (here / "d" / "e").mkdir(parents=True)
    for name in ("b.log", "a.log", "d/e/c.log", ".hidden.log", "[x].log"):
        (here / name).write_text("x\n")
    (here / "link.log").symlink_to("a.log")
    assert TextLines("**/*.log").partitions() == ["[x].log", "a.log", "b.log", "d/e/c.log"]
    assert TextLines(["b.log", "./b.log", Path("a.log"), "*.log"]).partitions() == [
        "./b.log",
        "[x].log",
        "a.log",
    ]
    assert TextLines("[x].log").partitions() == ["[x].log"]
    assert TextLines("**").partitions() == ["[x].log", "a.log", "b.log", "d/e/c.log"]


def test_home_is_known(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.log").write_text("x\n")
    monkeypatch.setenv("HOME", str(here))
    assert TextLines("~/*.log").partitions() == [str(here / "a.log")]


def test_an_empty_file_is_fine(here: Path) -> None:
    assert _values(here / "a", b"") == []
    assert _values(here / "a.gz", gzip.compress(b"")) == []


def test_a_done_file_is_not_read_again(here: Path) -> None:
    (here / "a").write_bytes(b"x" * 99 + b"\n" + b"y" * 99 + b"\n")
    producer = TextLines("a")
    producer.open(_at(a=(100, 2)))
    assert producer.progress().done == 100
    assert _drain(producer, []) == []


@pytest.mark.req("S13")
@pytest.mark.parametrize(
    ("appended", "again"),
    [(b"", []), (b"\n", []), (b"\nthree\n", ["three"]), (b"lf\nthree", ["half", "three"])],
)
def test_a_last_line_that_grew_is_read_again(here: Path, appended: bytes, again: list[str]) -> None:
    path = here / "a.log"
    path.write_bytes(b"one\nha")
    before = _read(TextLines("a.log"))
    assert [record.value for record in before] == ["one", "ha"]
    path.write_bytes(b"one\nha" + appended)
    checkpoint = _at(**{"a.log": before[-1].position})
    after = _read(TextLines("a.log"), checkpoint)
    assert [record.value for record in after] == again
    assert all(before[-1].position < record.position for record in after)  # type: ignore[operator]
    assert _read(TextLines("a.log"), _at(**{"a.log": [*before, *after][-1].position})) == []


@pytest.mark.req("S13")
@pytest.mark.parametrize("appended", [b"lf\nnew\n", b"lf\n", b"lf"])
def test_a_last_line_that_was_acked_before_others_and_grew_is_read_again(
    here: Path, appended: bytes
) -> None:
    """Kind: what is done of a line above the position counted for the whole line."""
    path = here / "a.log"
    path.write_bytes(b"one\ntwo\nthree\nha")
    one, _, three, half = _read(TextLines("a.log"))
    saved = PartitionCheckpoint(one.position, 1, (AckedRange(three.position, half.position, 2),))
    path.write_bytes(b"one\ntwo\nthree\nha" + appended)
    ledger = PartitionLedger("a.log", saved)
    read = _read(TextLines("a.log"), Checkpoint({"a.log": saved}))
    left = [record.value for _, run in ledger.admit(read) for record in run]
    assert left == ["two", "half", "new"][: 3 if b"new" in appended else 2]


def test_a_poll_for_nothing_loses_nothing(here: Path) -> None:
    (here / "a").write_bytes(b"1\n2\n")
    producer = TextLines("a")
    producer.open(Checkpoint())
    chunk = producer.poll(0)
    assert chunk is not None and not chunk.records
    assert [record.value for record in _drain(producer, [])] == ["1", "2"]


def test_skipping_in_a_large_gzip_is_spread_over_polls(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl_files._reader._SKIP_BYTES", 1000)
    lines = b"".join(b"%06d\n" % number for number in range(10_000))
    (here / "a.gz").write_bytes(gzip.compress(lines))
    producer = TextLines("a.gz")
    producer.open(_at(**{"a.gz": (7 * 9_000, 9_001)}))
    rest = _drain(producer, [])
    assert rest[0] == Record((7 * 9_001, 9_002), "009001")
    assert len(rest) == 999


# Errors: each names the place and the remedy, and what lies before it comes out first.


def _good_then_error(producer: TextLines) -> tuple[list[object], SourceError]:
    producer.open(Checkpoint())
    records: list[Record] = []
    with pytest.raises(SourceError) as caught:
        _drain(producer, records)
    with pytest.raises(SourceError):  # and nothing behind it is read
        producer.poll(1)
    producer.close()
    assert caught.value.remedy
    assert caught.value.exit_code == 1
    return [record.value for record in records], caught.value


@pytest.mark.parametrize("pattern", ["no.log", "no*.log"])
def test_no_such_file(pattern: str) -> None:
    with pytest.raises(SourceError, match="no") as caught:
        TextLines(pattern).open(Checkpoint())
    assert pattern in str(caught.value) and caught.value.exit_code == 1


def test_a_directory_is_no_file(here: Path) -> None:
    with pytest.raises(SourceError, match=r"is a directory.*\*"):
        TextLines(here).partitions()


def test_a_pipe_is_no_file(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with pytest.raises(SourceError, match="not a regular file"):
        TextLines("pipe").partitions()


def test_a_pipe_that_took_the_place_of_a_file_is_not_waited_for(here: Path) -> None:
    (here / "a.log").write_text("1\n")
    (here / "b.log").write_text("2\n")
    lines, ranges = TextLines("*.log"), TextRanges("*.log").reader()
    lines.open(Checkpoint())
    assert lines.poll(1) is not None
    (here / "b.log").unlink()
    os.mkfifo(here / "b.log")
    with pytest.raises(SourceError, match="not a regular file"):
        _drain(lines, [])
    with pytest.raises(SourceError, match="not a regular file"):
        next(ranges.open("b.log", 0, 2, ""))


def test_a_name_that_is_not_utf8(here: Path) -> None:
    Path(os.fsdecode(b"\xff.log")).write_text("x\n")
    with pytest.raises(SourceError, match="not UTF-8"):
        TextLines("*.log").partitions()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork to become another user")
@pytest.mark.parametrize("closed", ["file", "directory"])
def test_a_file_that_may_not_be_read(closed: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.log")
        path.write_text("x\n")
        path.chmod(0 if closed == "file" else 0o644)
        Path(directory).chmod(0 if closed == "directory" else 0o755)
        pid = os.fork()
        if pid == 0:  # root reads everything: be nobody
            _leave_with_the_message(path)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        Path(directory).chmod(0o755)


def _leave_with_the_message(path: Path) -> None:
    code = 1
    try:
        if os.geteuid() == 0:
            os.setuid(65534)
        TextLines(path).open(Checkpoint())
    except SourceError as error:
        code = 0 if str(path) in str(error) and "ermission denied" in str(error) else 2
    finally:
        os._exit(code)


def test_a_file_that_fails_while_it_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.log").write_text("1\n2\n")
    (here / "b.log").write_text("3\n")
    producer = TextLines("*.log")
    producer.open(Checkpoint())
    assert producer.poll(1) is not None
    (here / "b.log").unlink()
    with pytest.raises(SourceError, match=r"b\.log: can't be read: No such file"):
        _drain(producer, [])


def test_invalid_utf8_is_placed_exactly(here: Path) -> None:
    (here / "a").write_bytes(b"".join(b"%04d\n" % n for n in range(50)) + b"ab\xc3(\nnext\n")
    good, error = _good_then_error(TextLines("a"))
    assert good == [f"{n:04d}" for n in range(50)]
    assert "a, line 51 (byte 252): 0xc3 is not utf-8" in str(error)
    assert "replace" in error.remedy


def test_invalid_utf8_in_the_first_line(here: Path) -> None:
    (here / "a").write_bytes(b"\xff\nnext\n")
    good, error = _good_then_error(TextLines("a"))
    assert good == [] and "line 1 (byte 0)" in str(error)


@pytest.mark.parametrize("tail", [b"", b"\nafter\n"])
def test_a_line_too_long(here: Path, tail: bytes) -> None:
    (here / "a").write_bytes(b"one\ntwo\n" + b"x" * 101 + tail)
    good, error = _good_then_error(TextLines("a", max_line_bytes=100))
    assert good == ["one", "two"]
    assert "a, line 3 (byte 8): longer than 100 bytes" in str(error)
    assert "max_line_bytes" in error.remedy


def test_a_line_of_just_the_limit_is_fine(here: Path) -> None:
    data = b"x" * 100 + b"\n" + b"y" * 100 + b"\n"
    assert len(_values(here / "a", data, max_line_bytes=100)) == 2


def test_a_line_of_50_mb_is_refused_in_little_memory(here: Path) -> None:
    (here / "a").write_bytes(b"one\n" + b"x" * 50_000_000 + b"\n")
    tracemalloc.start()
    good, error = _good_then_error(TextLines("a"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert good == ["one"] and "line 2" in str(error)
    assert peak < 3 * (8 << 20)


def test_a_file_of_empty_lines_takes_little_memory(here: Path) -> None:
    (here / "a").write_bytes(b"\n" * 3_000_000)
    producer = TextLines("a")
    producer.open(Checkpoint())
    tracemalloc.start()
    for _ in range(1000):
        producer.poll(10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    producer.close()
    assert peak < 8 << 20


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_file_that_shrank(here: Path, name: str) -> None:
    data = b"one\ntwo\n"
    (here / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    for position in ((8, 3), (4000, 400)):
        with pytest.raises(SourceError, match=r"shrank.*rotated"):
            _read(TextLines(name), _at(**{name: position}))


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_file_that_is_another_one(here: Path, name: str) -> None:
    data = b"a longer first line\ntwo\n"
    (here / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(SourceError, match="not the file that was read before"):
        _read(TextLines(name), _at(**{name: (4, 2)}))


def test_a_checkpoint_of_another_source(here: Path) -> None:
    (here / "a").write_text("x\n")
    with pytest.raises(SourceError, match="not \\(byte, line\\)"):
        TextLines("a").open(_at(a=17))


def test_a_gzip_cut_short_gives_what_is_whole(here: Path) -> None:
    rng = random.Random(7)
    lines = [f"{n} {rng.random()}" for n in range(20_000)]
    data = gzip.compress("".join(line + "\n" for line in lines).encode())
    (here / "a.gz").write_bytes(data[: len(data) // 2])
    good, error = _good_then_error(TextLines("a.gz"))
    assert good == lines[: len(good)]
    assert len(good) > 8_000
    assert "a.gz: the gzip data are damaged or truncated after line" in str(error)


def test_a_gzip_that_is_none(here: Path) -> None:
    (here / "a.gz").write_bytes(b"plain text\n")
    good, error = _good_then_error(TextLines("a.gz"))
    assert good == [] and "a.gz: the gzip data are damaged" in str(error)


def test_a_gzip_whose_checksum_is_wrong(here: Path) -> None:
    data = bytearray(gzip.compress(b"one\ntwo\n"))
    data[-5] ^= 1
    (here / "a.gz").write_bytes(data)
    good, error = _good_then_error(TextLines("a.gz"))
    assert good == ["one", "two"] and "CRC" in str(error)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"paths": []}, "paths"),
        ({"paths": ""}, "paths"),
        ({"errors": "surrogateescape"}, "errors"),
        ({"encoding": "utf-16"}, "encoding"),
        ({"encoding": "klingon"}, "encoding"),
        ({"encoding": "hex"}, "encoding"),
        ({"max_line_bytes": 0}, "max_line_bytes"),
        ({"max_line_bytes": float("nan")}, "max_line_bytes"),
        ({"max_line_bytes": "1000"}, "max_line_bytes"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TextLines(**{"paths": "a", **options})  # type: ignore[arg-type]
    assert caught.value.field == field and caught.value.remedy

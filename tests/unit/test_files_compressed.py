"""Compressed files: the same lines and positions as plain ones, resumed, cut short, damaged."""

from __future__ import annotations

import bz2
import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import MissingExtraError, SourceError
from flowctl_files import TextLines, TextRanges

LINES = [f"line {n} {n * 7919 % 1000}" for n in range(20_000)]
DATA = "".join(line + "\n" for line in LINES).encode()
Compress = Callable[[bytes], bytes]
KINDS = pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.gz", gzip.compress),
        ("a.bz2", bz2.compress),
        ("a.zst", zstandard.ZstdCompressor().compress),
        ("A.ZST", zstandard.ZstdCompressor().compress),
    ],
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str, checkpoint: Checkpoint | None = None) -> list[Record]:
    found: list[Record] = []
    producer = TextLines(name)
    producer.open(checkpoint or Checkpoint())
    try:
        while (chunk := producer.poll(1000)) is not None:
            found += chunk.records
    except SourceError as error:
        raise Damaged(found, error) from error
    finally:
        producer.close()
    progress = producer.progress()
    assert progress.done == progress.total
    return found


class Damaged(Exception):
    def __init__(self, good: list[Record], error: SourceError) -> None:
        super().__init__(str(error))
        self.good = [record.value for record in good]


@KINDS
def test_lines_and_positions_are_those_of_the_plain_file(name: str, compress: Compress) -> None:
    Path("plain").write_bytes(DATA)
    Path(name).write_bytes(compress(DATA))
    assert read(name) == read("plain")


@KINDS
def test_several_parts_one_behind_the_other_are_one_file(name: str, compress: Compress) -> None:
    Path(name).write_bytes(compress(DATA[:70_001]) + compress(b"") + compress(DATA[70_001:]))
    assert [record.value for record in read(name)] == LINES


@KINDS
def test_it_is_read_on_from_the_checkpoint(name: str, compress: Compress) -> None:
    Path(name).write_bytes(compress(DATA))
    whole = read(name)
    saved = PartitionCheckpoint(position=whole[12_345].position, records=12_346)
    assert read(name, Checkpoint({name: saved})) == whole[12_346:]


@KINDS
def test_one_that_is_cut_short_is_not_taken_for_a_whole_one(name: str, compress: Compress) -> None:
    data = compress(DATA)
    Path(name).write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(Damaged, match="data are damaged or truncated after line") as caught:
        read(name)
    assert caught.value.good == LINES[: len(caught.value.good)]


@KINDS
def test_what_is_something_else_is_named(name: str, compress: Compress) -> None:
    del compress
    Path(name).write_bytes(b"plain text\n" * 100)
    with pytest.raises(Damaged, match=r"data are damaged or truncated after line 0"):
        read(name)


def test_the_package_for_zstandard_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"flowctl-spark\[zstd\]"):
        read("a.zst")


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.zst"])
def test_a_file_without_a_byte_is_damaged(here: Path, name: str) -> None:
    (here / name).touch()
    with pytest.raises(Damaged, match="damaged or truncated after line 0"):
        read(name)


@KINDS
def test_a_compressed_nothing_has_no_lines(here: Path, name: str, compress: Compress) -> None:
    (here / name).write_bytes(compress(b""))
    assert read(name) == []


@pytest.mark.parametrize("name", ["a.zip", "b.tar.gz", "C.TGZ", "d.xz"])
def test_what_is_no_text_is_refused_by_name_before_a_line_of_it_is_read(name: str) -> None:
    Path(name).write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(SourceError, match=f"{name}: this is an archive") as caught:
        TextLines("*").open(Checkpoint())
    assert "Unpack it" in caught.value.remedy
    with pytest.raises(SourceError, match=f"{name}: this is an archive"):
        TextRanges("*").extents(Checkpoint())


@pytest.mark.parametrize(
    ("kind", "end", "compress"),
    [
        ("gzip", ".gz", gzip.compress),
        ("zstd", ".zst", zstandard.ZstdCompressor().compress),
        ("bzip2", ".bz2", bz2.compress),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", None])
def test_compressed_data_under_another_name_are_not_taken_for_lines(
    kind: str, end: str, compress: Compress, encoding: str | None
) -> None:
    Path("a.log").write_bytes(compress(DATA))
    said = rf"a\.log: it is compressed \({kind}\), but its name does not end in \{end}\."
    lines = TextLines("a.log", encoding=encoding)
    lines.open(Checkpoint())
    with pytest.raises(SourceError, match=said) as caught:
        lines.poll(1000)
    assert f"Rename it to a.log{end}" in caught.value.remedy
    ranges = TextRanges("a.log", encoding=encoding)
    ((name, extent),) = ranges.extents(Checkpoint()).items()
    with pytest.raises(SourceError, match=said):
        list(ranges.reader().open(name, extent.start, extent.stop, extent.identity))


@pytest.mark.parametrize("text", [b"a\0b\n", b"\0\0\0\0\n", b"a\0bc\0d\n", b"a\0\n"])
def test_lines_with_some_nul_bytes_are_read(text: bytes) -> None:
    Path("a.log").write_bytes(text)
    lines = TextLines("a.log", encoding=None)
    lines.open(Checkpoint())
    chunk = lines.poll(1000)
    assert chunk is not None
    assert [record.value for record in chunk.records] == [text[:-1]]


@pytest.mark.parametrize("junk", [b"\x00" + bz2.compress(DATA)[1:], b"BZ", b"junk"])
def test_what_follows_the_first_stream_of_bzip2_is_read_or_refused(junk: bytes) -> None:
    Path("a.bz2").write_bytes(bz2.compress(DATA) + junk)
    with pytest.raises(Damaged, match=r"a\.bz2: the bzip2 data are damaged") as caught:
        read("a.bz2")
    assert caught.value.good == LINES


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-16", ""), ("utf-16-be", "\ufeff"), ("utf-16-le", ""), ("utf-16-be", "")],
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_lines_of_utf_16_are_not_taken_for_those_of_another_encoding(
    encoding: str, mark: str, errors: str
) -> None:
    Path("a.log").write_bytes(f"{mark}one\ntwo\n".encode(encoding))
    lines = TextLines("a.log", errors=errors)
    lines.open(Checkpoint())
    with pytest.raises(SourceError, match=r"a\.log: it is UTF-16") as caught:
        lines.poll(1000)
    assert "iconv" in caught.value.remedy
    ranges = TextRanges("a.log", errors=errors)
    ((name, extent),) = ranges.extents(Checkpoint()).items()
    with pytest.raises(SourceError, match=r"a\.log: it is UTF-16"):
        list(ranges.reader().open(name, extent.start, extent.stop, extent.identity))

"""Any cut of a text file at any bytes reads each line exactly once, whatever its blocks are."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.records import Checkpoint, Record
from flowctl.errors import SourceError
from flowctl_files import TextRanges, _text_blocks
from flowctl_files._lines import LineCodec
from flowctl_files._text_blocks import TextBlocks

LINES = st.lists(
    st.text(st.sampled_from("aé漢😀\r \x85"), max_size=12) | st.just("") | st.just("x" * 70),
    max_size=12,
)
ENDS = st.sampled_from(["\n", "\r\n"])
BLOCKS = st.integers(1, 64)


@contextmanager
def small(block_bytes: int, piece_bytes: int) -> Iterator[None]:
    with (
        patch.object(_text_blocks, "BLOCK_BYTES", block_bytes),
        patch.object(_text_blocks, "_REST_BYTES", max(1, block_bytes // 4)),
        patch.object(_text_blocks, "PIECE_BYTES", piece_bytes),
    ):
        yield


class Bytes:
    """A file in memory that is read from a place."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def read_into(self, view: memoryview) -> int:
        got = self.data[self.at : self.at + len(view)]
        view[: len(got)] = got
        self.at += len(got)
        return len(got)


def read(data: bytes, start: int, stop: int, codec: LineCodec) -> list[Record]:
    """Read a range as a bolt does, batches of all sizes, and check what a block promises."""
    blocks = TextBlocks("a.log", codec, 1 << 20)
    source = Bytes(data, max(start - 1, 0))
    records: list[Record] = []
    before = start
    for block in blocks.blocks(source.read_into, start, stop):
        made = [*block.batch_records(0, len(block))]
        positions = [block.position(i) for i in range(len(block) + 1)]
        assert positions == [record.position for record in made] + [block.stop]
        assert all(a < b for a, b in pairwise(positions[:-1]))
        assert all(before <= position < block.stop for position in positions[:-1])
        for i in range(len(block)):
            some = block.batch_records(i, min(i + 3, len(block)))
            assert [*some] == made[i : i + 3] == [some[k] for k in range(len(some))]
            assert some[-1] == made[i : i + 3][-1]
        before = block.stop
        records += made
    assert before == stop
    return records


@given(
    lines=LINES,
    end=ENDS,
    has_last=st.booleans(),
    has_bom=st.booleans(),
    codec=st.sampled_from([LineCodec("utf-8", "strict"), LineCodec(None, "strict")]),
    data=st.data(),
)
def test_any_cut_reads_each_line_once(lines, end, has_last, has_bom, codec, data):
    text = end.join(lines) + (end if has_last and lines else "")
    encoded = (b"\xef\xbb\xbf" if has_bom else b"") + text.encode()
    raw = encoded.split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    ended = encoded.endswith(b"\n")
    expected, at = [], 0
    for number, line in enumerate(raw, 1):
        value = line.removesuffix(b"\r") if number < len(raw) or ended else line
        if codec.encoding is None:
            expected.append(Record(at, value))
        else:
            expected.append(Record(at, value.decode().removeprefix("\ufeff" if at == 0 else "")))
        at += len(line) + 1
    size = len(encoded)
    cuts = data.draw(st.lists(st.integers(0, size), max_size=8))
    found: list[Record] = []
    with small(data.draw(BLOCKS), data.draw(BLOCKS)):
        for start, stop in pairwise(sorted({0, size, *cuts})):
            found += read(encoded, start, stop, codec)
    assert found == expected


@given(at=st.integers(0, 40), block=BLOCKS, start=st.integers(0, 30))
def test_lines_before_a_bad_one_are_given_and_it_is_named(at, block, start):
    good = [b"line %d" % n for n in range(6)]
    data = bytearray(b"\n".join(good) + b"\n")
    data[at % len(data)] = 0xFF
    bad = bytes(data).index(0xFF)
    found: list[int] = []
    source = Bytes(bytes(data), max(start - 1, 0))
    begins = data.rfind(b"\n", 0, bad) + 1
    with small(block, block):
        blocks = TextBlocks("a.log", LineCodec("utf-8", "strict"), 1 << 20)
        try:
            for each in blocks.blocks(source.read_into, start, len(data)):
                found += [each.position(i) for i in range(len(each))]
        except SourceError as error:
            assert f"a.log, byte {bad}: 0xff is not utf-8" in str(error)
            assert begins >= start
            assert each.stop == begins or not found
        else:
            assert begins < start
    lines = [0, *[i + 1 for i, byte in enumerate(data) if byte == 10][:-1]]
    last = begins if begins >= start else len(data)
    assert found == [line for line in lines if start <= line < last]


@pytest.mark.parametrize("kind", ["", ".gz"])
def test_a_file_is_read_from_any_place_compressed_or_not(tmp_path, kind):
    text = "".join(f"line {n} é\n" for n in range(2_000))
    path = tmp_path / f"a.log{kind}"
    path.write_bytes(gzip.compress(text.encode()) if kind else text.encode())
    source = TextRanges(path)
    [(name, extent)] = source.extents(Checkpoint()).items()
    reader = source.reader()
    whole = [
        record
        for block in reader.open(name, 0, extent.stop, extent.identity)
        for record in block.batch_records(0, len(block))
    ]
    assert [record.value for record in whole] == text.splitlines()
    middle = whole[1_234].position
    assert isinstance(middle, int)
    rest = [
        record
        for block in reader.open(name, middle, extent.stop, extent.identity)
        for record in block.batch_records(0, len(block))
    ]
    assert rest == whole[1_234:]
    assert extent.is_splittable == (not kind)

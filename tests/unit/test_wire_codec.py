from __future__ import annotations

import time

import msgspec
import pytest

from flowctl.core.messages import (
    Emission,
    End,
    Processed,
    Progress,
    RangeEmission,
    Revoke,
    Revoked,
)
from flowctl.core.records import Record
from flowctl.errors import SourceError, WireError
from flowctl.wire.codec import LENGTH, FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import ToBolt, ToSpout

LIMIT = 1 << 20


def _bytes_of(frames: list[msgspec.Struct]) -> bytes:
    writer = FrameWriter(LIMIT)
    for frame in frames:
        writer.append(frame)
    return bytes(writer.take())


def test_a_range_and_its_progress_are_some_hundred_bytes():
    # What the driver pays for a range, however much data it stands for.
    data = _bytes_of(
        [
            RangeEmission(
                1 << 20, "bolt-12", 1, "s3://logs/2026-11-22/part-00001.log", (), 0, 0, None,
                0, 1 << 26, "x" * 40,
            ),
            Progress(1 << 20, 1, 0, 1 << 25, 99.0, Processed(1 << 18, 0.1, 0.0, 0.2, 0.3)),
        ]
    )  # fmt: skip
    assert len(data) < 250


def test_taking_leaves_an_empty_outbox():
    writer = FrameWriter(LIMIT)
    writer.append(Revoke("b1", [1]))
    assert len(writer.take()) > 0
    assert writer.take() == b""


@pytest.mark.parametrize("announced", [LIMIT + 1, 0xFFFFFFFF, 0])
@pytest.mark.parametrize("piecewise", [True, False])
def test_a_wrong_length_is_refused_before_anything_is_kept(announced, piecewise):
    reader = FrameReader(decoder_of(ToSpout), LIMIT)
    data = LENGTH.pack(announced)
    with pytest.raises(WireError):
        for piece in [data[:1], data[1:]] if piecewise else [data + b"x" * 10]:
            reader.feed(piece)
    assert len(reader.kept) <= LENGTH.size


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",  # never used in msgpack
        b"GET / HTTP/1.1",
        b"\x96\x04\x07",  # cut short
        b"\x91\x63",  # a tag that nobody knows
        b"\x92\x04\x07",  # fields missing
        b"\x96\x04\xa1x\x01\x01\x01\x01",  # a str where an int belongs
        b"\xc0",
        b"\x91" * 5000 + b"\xc0",  # nested without end
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
        b"\x92\x08\xdd\xff\xff\xff\xff\x01",
        b"\x98\x05\x01\x01\xa1\xff\xa0\xc0\xc2",  # not UTF-8
    ],
)
@pytest.mark.parametrize("piecewise", [True, False])
def test_a_body_that_is_no_frame_is_a_wire_error(body, piecewise):
    reader = FrameReader(decoder_of(ToSpout), LIMIT)
    data = LENGTH.pack(len(body)) + body
    with pytest.raises(WireError) as caught:
        for piece in [data[:-1], data[-1:]] if piecewise else [data]:
            reader.feed(piece)
    assert caught.value.remedy


def test_frames_before_a_bad_one_do_not_hide_it():
    reader = FrameReader(decoder_of(ToSpout), LIMIT)
    with pytest.raises(WireError):
        reader.feed(_bytes_of([Revoked([1])]) + LENGTH.pack(1) + b"\xc1")


@pytest.mark.parametrize("value", [object(), 1 << 64, {"a": {1, object()}}, "\ud800"])
def test_a_record_that_msgpack_cannot_hold_names_the_remedy_and_leaves_the_outbox(value):
    writer = FrameWriter(LIMIT)
    writer.append(Revoke("b1", [1]))
    with pytest.raises(SourceError, match="can't be sent"):
        writer.append(Emission(1, "b1", 1, "p", [Record(1, "good"), Record(2, value)], None, 0))
    writer.append(End("b1"))
    assert bytes(writer.outbox) == _bytes_of([Revoke("b1", [1]), End("b1")])


def test_a_frame_over_the_limit_is_not_sent():
    writer = FrameWriter(1000)
    with pytest.raises(SourceError, match=r"Shorten the record") as caught:
        writer.append(Emission(1, "b1", 1, "p", [Record(1, b"x" * 1000)], None, 0))
    assert "1000 are allowed" in str(caught.value)
    assert writer.outbox == b""


def test_reading_a_large_frame_in_small_pieces_takes_linear_time():
    def read_s(size: int) -> float:
        frame = Emission(1, "b1", 1, "p", [Record(1, b"x" * size)], None, 0)
        writer = FrameWriter(1 << 30)
        writer.append(frame)
        data = memoryview(writer.take())
        reader = FrameReader(decoder_of(ToBolt), 1 << 30)
        begun_s = time.thread_time()
        frames = [f for at in range(0, len(data), 2048) for f in reader.feed(data[at : at + 2048])]
        elapsed_s = time.thread_time() - begun_s
        assert frames == [frame]
        return elapsed_s

    small_s = min(read_s(2 << 20) for _ in range(3))
    large_s = min(read_s(32 << 20) for _ in range(2))
    # CPU time, as others use the machine.  16 times the bytes; in quadratic time 256 times as long.
    # The small frame fits into the caches, so up to 70 times as long was seen.
    assert large_s < 150 * small_s

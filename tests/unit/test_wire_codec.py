from __future__ import annotations

import time

import msgspec
import pytest

from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.records import Record
from flowctl.errors import SourceError, WireError
from flowctl.wire.codec import LENGTH, FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import (
    AckFrame,
    End,
    FailFrame,
    Heartbeat,
    Hello,
    ProgressFrame,
    RangeFail,
    RangeFrame,
    RejectedAt,
    Revoke,
    Revoked,
    Saved,
    SplitAnswer,
    SplitFrame,
    ToBolt,
    ToSpout,
    TupleFrame,
    Welcome,
)

LIMIT = 1 << 20
VALUES = [None, True, 1, -(1 << 63), 1.5, "ü", b"\xff", [1, [2]], {"a": {"b": None}}]
TO_BOLT = [
    Welcome(1, 2, 3),
    TupleFrame(7, 1, "p", ("file", 5), [Record(("file", n), v) for n, v in enumerate(VALUES)]),
    TupleFrame(8, 2, "p", None, [Record(5, "x")]),
    Revoke([1, 2]),
    End(),
    RangeFrame(9, 1, "a.log", 0, 1 << 40, "size:mtime", None),
    RangeFrame(9, 2, "a.log", 5, 7, "", 4),
    RangeFrame(9, 2, "a.log", 5, 7, "", 4, True),
    SplitFrame(9, 3, 0.5),
    Saved(1 << 40),
]
TO_SPOUT = [
    Hello(1, "b1", 2, 3, "host"),
    AckFrame(7, 1, 0.1, 0.2, 0.3),
    AckFrame(7, 1, 0.1, 0.2, 0.3, 0.05),
    FailFrame(7, 1, "ValueError: x", "trace", 3, False),
    FailFrame(7, 1, "x", "", None, True),
    Heartbeat(1, 2),
    Heartbeat(1, 2, [], [], [TargetFigures("p", "crm", "etl", 8, "refused", True, 9, 1.5, 2, 0.5)]),
    Heartbeat(1, 2, [], [], [], 7),
    Revoked([]),
    SplitAnswer(9, 3, 1 << 39),
    ProgressFrame(9, 1, 0, 1 << 20, 5_000, 0.1, 0.0, 0.2, None, 1.5),
    ProgressFrame(
        9, 1, 0, 9, 2, 0.1, 0.2, 0.3, 0.05, 1.5, [RejectedAt(3, "x", "no")], 1, [b"part-0"]
    ),
    ProgressFrame(9, 1, 0, 9, 2, 0.1, 0.2, 0.3, None, 1.5, is_urgent=True, is_awaited=True),
    RangeFail(9, 1, 3, 5, 2, "ValueError: x", "trace", False, is_data_error=True, record_at=3),
    RangeFail(9, 1, 3, 5, 1, "ValueError: x", "", False, record=Record(3, {"a": 1})),
    RangeFail(9, 1, 3, 99, 0, "SourceError: gone", "", False, fatal=True, is_read_error=True),
]


def _bytes_of(frames: list[msgspec.Struct]) -> bytes:
    writer = FrameWriter(LIMIT)
    for frame in frames:
        writer.append(frame)
    return bytes(writer.take())


@pytest.mark.parametrize(("kind", "frames"), [(ToBolt, TO_BOLT), (ToSpout, TO_SPOUT)])
def test_what_is_written_is_read(kind, frames):
    reader = FrameReader(decoder_of(kind), LIMIT)
    assert reader.feed(_bytes_of(frames)) == frames
    assert reader.is_between_frames


@pytest.mark.req("S120")
def test_bytes_are_the_same_on_every_run():
    # Version 1 as it went out; a change that an older peer could misread needs a new version.
    assert _bytes_of([AckFrame(7, 1, 0.5, 0.25, 1.0)]).hex() == (
        "0000002097040701cb3fe0000000000000cb3fd0000000000000cb3ff0000000000000c0"
    )


def test_peers_with_and_without_sink_times_understand_each_other():
    class OldAck(msgspec.Struct, frozen=True, array_like=True, tag=4):
        tuple_id: int
        attempt: int
        wait_s: float
        service_s: float
        idle_total_s: float

    old, new = OldAck(7, 1, 0.5, 0.25, 1.0), AckFrame(7, 1, 0.5, 0.25, 1.0, 0.125)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=OldAck) == old
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=AckFrame)
    assert (read.idle_total_s, read.sink_s) == (1.0, None)


def test_a_range_and_its_progress_are_some_hundred_bytes():
    # What the driver pays for a range, however much data it stands for.
    data = _bytes_of(
        [
            RangeFrame(1 << 20, 1, "s3://logs/2026-11-22/part-00001.log", 0, 1 << 26, "x" * 40, 0),
            ProgressFrame(1 << 20, 1, 0, 1 << 25, 1 << 18, 0.1, 0.0, 0.2, 0.3, 99.0),
        ]
    )
    assert len(data) < 250


def test_taking_leaves_an_empty_outbox():
    writer = FrameWriter(LIMIT)
    writer.append(Revoke([1]))
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
    assert len(reader._kept) <= LENGTH.size


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
    writer.append(Revoke([1]))
    with pytest.raises(SourceError, match="can't be sent"):
        writer.append(TupleFrame(1, 1, "p", None, [Record(1, "good"), Record(2, value)]))
    writer.append(End())
    assert bytes(writer.outbox) == _bytes_of([Revoke([1]), End()])


def test_a_frame_over_the_limit_is_not_sent():
    writer = FrameWriter(1000)
    with pytest.raises(SourceError, match=r"frame_bytes_max") as caught:
        writer.append(TupleFrame(1, 1, "p", None, [Record(1, b"x" * 1000)]))
    assert "1000 are allowed" in str(caught.value)
    assert writer.outbox == b""


def test_reading_a_large_frame_in_small_pieces_takes_linear_time():
    def read_s(size: int) -> float:
        frame = TupleFrame(1, 1, "p", None, [Record(1, b"x" * size)])
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
    assert large_s < 64 * small_s

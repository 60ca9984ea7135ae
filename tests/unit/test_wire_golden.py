"""The bytes of each kind of frame: peers of one protocol number must agree on them.

``wire_frames.txt`` may change only together with :data:`PROTOCOL_VERSION`, as a peer of the old
number reads something else in the new bytes, or nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Emission,
    End,
    Fail,
    Heartbeat,
    LongCall,
    Processed,
    Progress,
    RangeEmission,
    RangeFail,
    Rejected,
    RejectedRecord,
    Revoke,
    Revoked,
    SettledAck,
    Split,
    SplitAnswer,
)
from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.records import Record
from flowctl.core.trees.settlement import Emitted, FailedInput, Settlement, Watched
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import PROTOCOL_VERSION, Dying, Hello, Saved, ToBolt, ToSpout, Welcome

GOLDEN = Path(__file__).with_name("wire_frames.txt")
LIMIT = 1 << 20

TO_BOLT = {
    "Tuple": Emission(
        7,
        "b1",
        1,
        "p",
        [
            Record(("file", n), value)
            for n, value in enumerate(
                [None, True, 1, -(1 << 63), 1.5, "ü", b"\xff", [1, [2]], {"a": {"b": None}}]
            )
        ],
        ("file", 5),
        99,
    ),
    "Tuple, again, nothing acked": Emission(8, "b1", 2, "p", [Record(5, "x")], None, 1),
    "Range": RangeEmission(
        9, "b1", 1, "a.log", [], 4, 0, ("file", 3), 5, 1 << 40, "size:mtime", True
    ),
    "Revoke": Revoke("b1", [1, 2]),
    "Split": Split("b1", 9, 3, 0.5),
    "End": End("b1"),
    "Saved": Saved(1 << 40),
}
TO_SPOUT = {
    "Ack": Ack(7, 1, 0.1, 0.2, 0.3),
    "Ack, with a sink": Ack(7, 1, 0.1, 0.2, 0.3, 0.05),
    "Ack, with details": DetailedAck(7, 1, 0.1, 0.2, 0.3, None, [Rejected(3, "no")], 2),
    "Ack, settled": SettledAck(
        7,
        1,
        0.1,
        0.2,
        0.3,
        None,
        Settlement(
            [Emitted("v", [1], "words", 4)],
            [FailedInput(2, "no", True, 1.5)],
            [3],
            [4],
            [5],
            Watched({"s": 1}, {"s": 1}, {}, {"words": 1}, {"s": (0.2, 1)}),
        ),
    ),
    "Fail": Fail(7, 1, "ValueError: x", "trace", 3, is_data_error=True, is_content=True),
    "Fail, refused": Fail(7, 1, "503", is_refused=True, after_s=2.5, is_overdue=True),
    "Fail, fenced": Fail(7, 1, "x", is_fenced=True, newest_epoch=1_700_000_000_001),
    "Fail, fatal": Fail(7, 1, "process: x\nremedy", is_fatal=True),
    "Heartbeat": Heartbeat(1, 2),
    "Heartbeat, of everything": Heartbeat(
        2,
        0,
        [7, 8],
        9,
        [11],
        [TargetFigures("p", "crm", "etl", 8, "refused", True, 9, 1.5, 2, 0.5)],
        [LongCall("p", 5, 6, 12.5)],
    ),
    "Revoked": Revoked([1]),
    "SplitAnswer": SplitAnswer(9, 3, 1 << 39),
    "Progress": Progress(9, 1, 0, 1 << 20, 1.5, Processed(5_000, 0.1, 0.0, 0.2)),
    "Progress, of everything": Progress(
        9,
        1,
        0,
        9,
        1.5,
        Processed(
            2,
            0.1,
            0.2,
            0.3,
            0.05,
            [RejectedRecord(3, "x", "no")],
            1,
            [b"part-0"],
            0.01,
            is_urgent=True,
            is_awaited=True,
        ),
    ),
    "RangeFail": RangeFail(Fail(9, 1, "ValueError: x", "trace", 1), 3, 5, 2, 3),
    "RangeFail, of one record": RangeFail(
        Fail(9, 1, "ValueError: x", is_data_error=True), 3, 5, 1, 3, Record(3, {"a": 1})
    ),
    "RangeFail, unread": RangeFail(Fail(9, 1, "gone", is_fatal=True, is_read_error=True), 3, 99, 0),
    "Dying": Dying("process raised SystemExit", True, True),
}
FIRST = {"Hello": Hello(5, "b1", 2, 3, "host"), "Welcome": Welcome(5, 2, 1_700_000_000_000)}
ALL: dict[str, msgspec.Struct] = {**FIRST, **TO_BOLT, **TO_SPOUT}


def _bytes_of(frame: msgspec.Struct) -> bytes:
    writer = FrameWriter(LIMIT)
    writer.append(frame)
    return bytes(writer.take())


def _golden() -> dict[str, bytes]:
    lines = GOLDEN.read_text().splitlines()
    return {name: bytes.fromhex(hexed) for name, hexed in (line.split(": ") for line in lines)}


@pytest.mark.req("S120")
def test_the_bytes_of_each_frame_are_those_of_this_protocol_number():
    """After a change that is meant: raise the number, and put what this prints into the file."""
    written = {"protocol": bytes([PROTOCOL_VERSION]), **{n: _bytes_of(f) for n, f in ALL.items()}}
    told = "\n".join(f"{name}: {data.hex()}" for name, data in written.items())
    assert written == _golden(), f"now written:\n{told}"


@pytest.mark.parametrize(
    ("kind", "frames"),
    [(Hello | Welcome, FIRST), (ToBolt, TO_BOLT), (ToSpout, TO_SPOUT)],
    ids=["first", "to bolt", "to spout"],
)
def test_the_committed_bytes_are_read_as_the_frames(kind, frames):
    reader, golden = FrameReader(decoder_of(kind), LIMIT), _golden()
    assert reader.feed(b"".join(golden[name] for name in frames)) == list(frames.values())
    assert reader.is_between_frames


def test_the_most_frequent_frame_is_small():
    """One for each tuple: what it adds, the driver reads some 100,000 times a second."""
    assert len(_bytes_of(ALL["Ack"])) == 36


def test_each_kind_of_frame_has_its_bytes_here():
    kinds = {Hello, Welcome, *ToBolt.__args__, *ToSpout.__args__}
    assert {type(frame) for frame in ALL.values()} == kinds

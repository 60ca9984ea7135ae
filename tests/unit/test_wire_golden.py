"""The bytes of each kind of frame: peers of one protocol number must agree on them.

``wire_frames.txt`` may change only together with :data:`PROTOCOL_VERSION`, as a peer of the old
number reads something else in the new bytes, or nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.records import Record, Rejected
from flowctl.core.trees.settlement import Emitted, FailedInput, Settlement, Watched
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import (
    PROTOCOL_VERSION,
    AckFrame,
    DetailedAckFrame,
    Dying,
    End,
    FailFrame,
    Heartbeat,
    Hello,
    LongCall,
    ProgressFrame,
    RangeFail,
    RangeFrame,
    RejectedAt,
    Revoke,
    Revoked,
    Saved,
    SettledFrame,
    SplitAnswer,
    SplitFrame,
    ToBolt,
    ToSpout,
    TupleFrame,
    Welcome,
)

GOLDEN = Path(__file__).with_name("wire_frames.txt")
LIMIT = 1 << 20

TO_BOLT = {
    "Welcome": Welcome(4, 2, 1_700_000_000_000),
    "Tuple": TupleFrame(7, 1, "p", ("file", 5), [Record(("file", 6), "x"), Record(("file", 7), 1)]),
    "Tuple, again, nothing acked": TupleFrame(8, 2, "p", None, [Record(5, {"a": [None, b"\xff"]})]),
    "Range": RangeFrame(9, 1, "a.log", 5, 1 << 40, "size:mtime", 4, True),
    "Revoke": Revoke([1, 2]),
    "Split": SplitFrame(9, 3, 0.5),
    "End": End(),
    "Saved": Saved(1 << 40),
}
TO_SPOUT = {
    "Hello": Hello(4, "b1", 2, 3, "host"),
    "Ack": AckFrame(7, 1, 0.1, 0.2, 0.3),
    "Ack, with a sink": AckFrame(7, 1, 0.1, 0.2, 0.3, 0.05),
    "Ack, with details": DetailedAckFrame(7, 1, 0.1, 0.2, 0.3, None, [Rejected(3, "no")], 2),
    "Ack, settled": SettledFrame(
        7, 1, 0.1, 0.2, 0.3, None,
        Settlement(
            [Emitted("v", [1], "words", 4)], [FailedInput(2, "no", True, 1.5)], [3], [4], [5],
            Watched({"s": 1}, {"s": 1}, {}, {"words": 1}, {"s": (0.2, 1)}),
        ),
    ),
    "Fail": FailFrame(7, 1, "ValueError: x", "trace", 3, False, is_data_error=True),
    "Fail, refused": FailFrame(7, 1, "503", "", None, False, True, 2.5, is_overdue=True),
    "Fail, fenced": FailFrame(7, 1, "x", "", None, True, newest_epoch=1_700_000_000_001),
    "Fail, fatal": FailFrame(7, 1, "process: x\nremedy", "", None, False, fatal=True),
    "Heartbeat": Heartbeat(1, 2),
    "Heartbeat, of everything": Heartbeat(
        2, 0, [11], [7, 8],
        [TargetFigures("p", "crm", "etl", 8, "refused", True, 9, 1.5, 2, 0.5)], 9,
        [LongCall("p", 5, 6, 12.5)],
    ),
    "Revoked": Revoked([1]),
    "SplitAnswer": SplitAnswer(9, 3, 1 << 39),
    "Progress": ProgressFrame(9, 1, 0, 1 << 20, 5_000, 0.1, 0.0, 0.2, None, 1.5),
    "Progress, of everything": ProgressFrame(
        9, 1, 0, 9, 2, 0.1, 0.2, 0.3, 0.05, 1.5, [RejectedAt(3, "x", "no")], 1, [b"part-0"], 0.01,
        is_urgent=True, is_awaited=True,
    ),
    "RangeFail": RangeFail(9, 1, 3, 5, 2, "ValueError: x", "trace", False, record_at=3),
    "RangeFail, of one record": RangeFail(
        9, 1, 3, 5, 1, "ValueError: x", "", False, is_data_error=True, record_at=3,
        record=Record(3, {"a": 1}),
    ),
    "RangeFail, unread": RangeFail(
        9, 1, 3, 99, 0, "gone", "", False, fatal=True, is_read_error=True
    ),
    "Dying": Dying("process raised SystemExit", True, True),
}  # fmt: skip
ALL: dict[str, msgspec.Struct] = {**TO_BOLT, **TO_SPOUT}


def _bytes_of(frame: msgspec.Struct) -> bytes:
    writer = FrameWriter(LIMIT)
    writer.append(frame)
    return bytes(writer.take())


def _golden() -> dict[str, bytes]:
    lines = GOLDEN.read_text().splitlines()
    return {name: bytes.fromhex(hexed) for name, hexed in (line.split(": ") for line in lines)}


def test_the_bytes_of_each_frame_are_those_of_this_protocol_number():
    """After a change that is meant: raise the number, and commit what this says is written."""
    written = {"protocol": bytes([PROTOCOL_VERSION]), **{n: _bytes_of(f) for n, f in ALL.items()}}
    told = "\n".join(f"{name}: {data.hex()}" for name, data in written.items())
    assert written == _golden(), f"now written:\n{told}"


@pytest.mark.parametrize("name", ALL)
def test_the_committed_bytes_are_read_as_the_frame(name):
    kind = ToBolt if name in TO_BOLT else ToSpout
    assert FrameReader(decoder_of(kind), LIMIT).feed(_golden()[name]) == [ALL[name]]


def test_the_most_frequent_frame_is_small():
    """One for each tuple: what it adds, the driver reads some 100,000 times a second."""
    assert len(_bytes_of(ALL["Ack"])) == 36


def test_each_kind_of_frame_has_its_bytes_here():
    kinds = set(ToBolt.__args__) | set(ToSpout.__args__)
    assert {type(frame) for frame in ALL.values()} == kinds

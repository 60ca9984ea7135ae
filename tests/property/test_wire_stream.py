"""However the bytes are cut, the frames are the same; whatever the bytes are, no other error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.messages import Emission, End, Revoke
from flowctl.core.records import Record
from flowctl.errors import WireError
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import ToBolt

pytestmark = pytest.mark.on_change()

LIMIT = 1 << 16
INTS = st.integers(-(1 << 63), (1 << 63) - 1)
PARTS = st.none() | INTS | st.floats(allow_nan=False) | st.text(max_size=5)
POSITIONS = INTS | st.text(max_size=5) | st.lists(PARTS, max_size=3).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | INTS | st.text(max_size=9) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
TUPLES = st.builds(
    Emission,
    tuple_id=INTS,
    bolt=st.text(max_size=5),
    attempt=INTS,
    partition=st.text(max_size=5),
    acked_through=st.none() | POSITIONS,
    records=st.lists(st.builds(Record, position=POSITIONS, value=VALUES), max_size=4),
    size_bytes=INTS,
)
FRAMES = TUPLES | st.builds(Revoke, st.just("b"), st.lists(INTS, max_size=5)) | st.just(End("b"))


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 1 << 20), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_frames(frames, cuts):
    writer = FrameWriter(LIMIT)
    for frame in frames:
        writer.append(frame)
    reader = FrameReader(decoder_of(ToBolt), LIMIT)
    buffer = bytearray(LIMIT * 8)  # reused as the loops do: nothing may point into it
    read = []
    for piece in _pieces(bytes(writer.take()), cuts):
        buffer[: len(piece)] = piece
        read += reader.feed(memoryview(buffer)[: len(piece)])
        buffer[: len(piece)] = b"\xc1" * len(piece)
    assert read == frames
    assert reader.is_between_frames


@given(
    st.lists(FRAMES, max_size=3),
    st.binary(max_size=200),
    st.integers(0, 1 << 20),
    st.lists(st.integers(0, 1 << 20), max_size=5),
)
def test_damaged_bytes_give_frames_or_a_wire_error(frames, garbage, place, cuts):
    writer = FrameWriter(LIMIT)
    for frame in frames:
        writer.append(frame)
    data = bytearray(writer.take())
    at = place % (len(data) + 1)
    data[at : at + len(garbage)] = garbage
    reader = FrameReader(decoder_of(ToBolt), LIMIT)
    try:
        for piece in _pieces(bytes(data), cuts):
            reader.feed(piece)
            assert len(reader.kept) <= LIMIT + 4
    except WireError:
        pass

"""Values arrive as they were sent, at every depth in value and type, or are refused by name.

pytestmark = pytest.mark.on_change()

A few hundred examples; HYPOTHESIS_PROFILE=thorough takes 100,000.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import struct
import uuid
import zoneinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.core.buffer import sizes_of
from flowctl.core.messages import Emission, SettledAck
from flowctl.core.records import Record
from flowctl.core.trees.settlement import Emitted, Settlement
from flowctl.errors import SourceError, WireError
from flowctl.wire.codec import LENGTH_BYTES, FrameReader, FrameWriter, decoder_of
from flowctl.wire.not_encodable import NotCarriedError
from flowctl.wire.values import (
    carry_emits,
    carry_records,
    decode_value,
    encode_value,
    keep_hook,
)

EXAMPLES = 100_000 if settings.default.max_examples >= 5_000 else 300
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu")


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 1


class Text(str):
    pass


class Number(int):
    pass


class Fraction(float):
    pass


class Moment(datetime.datetime):
    pass


class Zone(datetime.tzinfo):
    def utcoffset(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=1)


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Data:
    a: int = 1


microseconds = st.integers(-86_399_999_999, 86_399_999_999)
zones = st.one_of(
    st.none(),
    st.just(datetime.timezone.utc),
    st.sampled_from(ZONES).map(zoneinfo.ZoneInfo),
    microseconds.map(lambda us: datetime.timezone(datetime.timedelta(microseconds=us))),
    st.builds(
        lambda us, name: datetime.timezone(datetime.timedelta(microseconds=us), name),
        microseconds,
        st.text(max_size=5).filter(lambda text: text.isprintable()),
    ),
)
datetimes = st.builds(
    lambda when, zone, fold: when.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    zones,
    st.sampled_from((0, 1)),
)
times = st.builds(
    lambda when, zone, fold: when.replace(tzinfo=zone, fold=fold),
    st.times(),
    zones,
    st.sampled_from((0, 1)),
)
ints = st.one_of(
    st.integers(-100, 100),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1]),
    st.integers(1, 400).map(lambda bits: 1 << bits),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    ints,
    st.floats(),
    st.sampled_from([-0.0, math.nan, math.inf, -math.inf]),
    st.text(max_size=10),
    st.binary(max_size=10),
)
specials = st.one_of(
    datetimes,
    times,
    st.dates(),
    st.timedeltas(),
    st.decimals(),
    st.sampled_from(["-0", "1E+400", "sNaN7", "-Infinity", "0E-30", "1.10"]).map(decimal.Decimal),
    st.uuids(),
    st.uuids().map(lambda u: uuid.UUID(int=u.int, is_safe=uuid.SafeUUID.safe)),
)


def has_hash(value: Any) -> bool:
    """Not so: a signalling NaN, a moment whose offset leads out of the calendar."""
    try:
        hash(value)
    except (TypeError, OverflowError):
        return False
    return True


hashables = st.recursive(
    st.one_of(scalars, specials).filter(has_hash),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=5,
)
# Each is to be refused, wherever it stands; no two of them are alike.
REFUSED = [
    Colour.RED,
    Level.HIGH,
    Text("a"),
    Number(1),
    Fraction(1.0),
    Pair(1, 2),
    Data(),
    bytearray(b"a"),
    memoryview(b"a"),
    collections.OrderedDict(a=1),
    collections.defaultdict(int),
    1 + 2j,
    range(3),
    object(),
    "half \ud800",
    Moment(2020, 1, 1),
    datetime.datetime(2020, 1, 1, tzinfo=Zone()),
    datetime.time(1, tzinfo=Zone()),
    ...,
]


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text(max_size=4), inner, max_size=4),
            st.dictionaries(hashables, inner, max_size=3),
            st.sets(hashables, max_size=3),
            st.frozensets(hashables, max_size=3),
        ),
        max_leaves=12,
    )


good = nested(st.one_of(scalars, specials))
mixed = nested(st.one_of(scalars, specials, st.sampled_from(REFUSED)))


def is_same(ours: Any, theirs: Any) -> bool:
    """Equal, and of equal type, at every depth; written without a look at the codec."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(is_same, ours, theirs))
    if isinstance(ours, dict):
        return len(ours) == len(theirs) and all(
            is_same(a, b) and is_same(ours[a], theirs[b]) for a, b in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, set | frozenset):
        left = list(theirs)
        for item in ours:
            match = next((i for i, other in enumerate(left) if is_same(item, other)), None)
            if match is None:
                return False
            del left[match]
        return not left
    return is_same_leaf(ours, theirs)


def is_same_leaf(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float):
        return struct.pack(">d", ours) == struct.pack(">d", theirs)  # also nan, also -0.0
    if isinstance(ours, decimal.Decimal):
        return ours.as_tuple() == theirs.as_tuple()
    if isinstance(ours, uuid.UUID):
        return ours == theirs and ours.is_safe is theirs.is_safe
    if isinstance(ours, datetime.datetime | datetime.time):
        naive = ours.replace(tzinfo=None) == theirs.replace(tzinfo=None)
        return naive and ours.fold == theirs.fold and is_same_zone(ours.tzinfo, theirs.tzinfo)
    return bool(ours == theirs)


def is_same_zone(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, zoneinfo.ZoneInfo):
        return ours.key == theirs.key
    if ours is None:
        return True
    return ours.utcoffset(None) == theirs.utcoffset(None) and repr(ours) == repr(theirs)


def is_refused(value: Any) -> bool:
    """Whether something that can't be carried is in ``value``, at whatever depth."""
    if any(value is bad for bad in REFUSED):
        return True
    if isinstance(value, dict):
        return any(is_refused(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_refused, value))
    return False


def over_the_wire(values: list[Any]) -> list[Any]:
    """From a producer's records into a frame and out of it at a bolt."""
    records, sizes, refused = carry_records([Record(n, value) for n, value in enumerate(values)])
    if refused is not None:
        raise refused
    # What the driver itself shows to others is what it was given.
    for record, value in zip(records, values, strict=True):
        assert record.value is value
    assert list(sizes) == sizes_of(records)
    writer = FrameWriter(1 << 30)
    writer.append(Emission(1, "b1", 1, "p", list(records), None, 0))
    (frame,) = FrameReader(decoder_of(Emission), 1 << 30).feed(writer.take())
    return [record.value for record in frame.records]


def through_the_hub(value: Any) -> Any:
    """From a bolt's emit to the hub, and from there on to the next bolt."""
    emits = [Emitted(value, [])]
    carry_emits(emits, 0)
    assert emits[0].value is value
    writer = FrameWriter(1 << 30)
    writer.append(SettledAck(1, 1, 0.0, 0.0, 0.0, None, Settlement(emits)))
    (frame,) = FrameReader(decoder_of(SettledAck, keep_hook), 1 << 30).feed(writer.take())
    at_hub = frame.settlement.emits[0].value
    writer.append(SettledAck(1, 1, 0.0, 0.0, 0.0, None, Settlement([Emitted(at_hub, [])])))
    (frame,) = FrameReader(decoder_of(SettledAck), 1 << 30).feed(writer.take())
    return frame.settlement.emits[0].value


@pytest.mark.timeout(3_600)
@settings(max_examples=EXAMPLES)
@given(good)
def test_each_value_arrives_as_it_was_sent(value: Any) -> None:
    data = encode_value(value)
    assert is_same(decode_value(data), value)
    assert encode_value(decode_value(data)) == data
    assert is_same(over_the_wire([value]), [value])
    assert is_same(through_the_hub(value), value)


@pytest.mark.timeout(3_600)
@settings(max_examples=EXAMPLES)
@given(mixed)
def test_or_is_refused_by_name(value: Any) -> None:
    if is_refused(value):
        # Records that are text as a whole are not looked through when they are read: what UTF-8
        # can't hold is seen when it is sent, and the sender then names the record.
        sends = [encode_value, through_the_hub]
        if type(value) is str:
            with pytest.raises((NotCarriedError, SourceError)):
                over_the_wire([1, value])
        else:
            sends.append(lambda v: over_the_wire(["good", v]))
        for send in sends:
            with pytest.raises(NotCarriedError, match=r"^(the time zone of )?value.* is (an?|nes)"):
                send(value)
    else:
        assert is_same(decode_value(encode_value(value)), value)
        assert is_same(over_the_wire([value, 1]), [value, 1])


def test_text_that_utf_8_can_not_hold_is_refused_before_it_is_sent() -> None:
    with pytest.raises(NotCarriedError, match="a lone surrogate at 5"):
        over_the_wire(["good", "half \ud800"])


@pytest.mark.timeout(3_600)
@settings(max_examples=EXAMPLES // 3)
@given(st.binary(max_size=60))
def test_bytes_of_others_are_a_value_or_an_error_of_ours(data: bytes) -> None:
    for code in range(14):
        wrapped = bytes([0xC7, len(data), code]) + data
        with contextlib.suppress(WireError):
            decode_value(wrapped)
        reader = FrameReader(decoder_of(Emission), 1 << 20)
        writer = FrameWriter(1 << 20)
        writer.append(Emission(1, "b1", 1, "p", [Record(1, "VALUE")], None, 0))
        frame = bytes(writer.take()).replace(b"\xa5VALUE", wrapped)
        body = frame[LENGTH_BYTES:]
        with contextlib.suppress(WireError):
            reader.feed(len(body).to_bytes(LENGTH_BYTES, "big") + body)

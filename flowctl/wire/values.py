"""Values of records and emits: each arrives exactly as sent, value and type, or is refused by name.

msgpack knows None, bool, int of 64 bits, float, str, bytes, lists and dicts. msgspec also takes
datetimes, Decimals, tuples and more, and sends them as text or lists, which would go unnoticed
until the value is used.  So every value is checked before it is sent.  A value of plain parts is
sent as it is.  In any other value, the parts that msgpack would change are wrapped in extension
types, each with its own code, and the whole in one more (:data:`_WHOLE`), so that a frame has one
extension per value.  The codes are part of the wire format and of everything that stores values
(ADR 12): their meaning never changes.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
import zoneinfo
from collections.abc import Callable, Sequence
from operator import countOf
from typing import Any, Final, NamedTuple

import msgspec

from flowctl.core.buffer import size_of, sizes_of
from flowctl.core.carried import CarriedEmitted, CarriedRecord, Packed
from flowctl.core.records import NOTHING, Fields, Record
from flowctl.core.trees.settlement import Emitted
from flowctl.errors import WireError
from flowctl.wire.not_encodable import NotCarriedError, name_of, refused, short, shown

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1  # the range of msgpack
_NOT_ENCODED = (TypeError, OverflowError, ValueError, RecursionError)

# The codes of extensions, which are part of the wire format: none is ever used for another kind.
_WHOLE: Final = 1
_TUPLE: Final = 2
_SET: Final = 3
_FROZENSET: Final = 4
_DICT: Final = 5  # a dict with other keys: key, value, key, value, …
_INT: Final = 6  # an int of more than 64 bits
_DECIMAL: Final = 7
_UUID: Final = 8
_DATE: Final = 9
_TIME: Final = 10
_DATETIME: Final = 11
_TIMEDELTA: Final = 12

_Ext = msgspec.msgpack.Ext
_encode = msgspec.msgpack.Encoder().encode
# Values nested deeper than this are refused: both ends must be able to walk through them within
# Python's limit of 1,000 calls, and a level may take three.
_DEPTH_MAX: Final = 100
_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
# From this length on, C code checks a list of one type faster than a loop does (measured).
_LONG_LIST: Final = 8
_DICTS: Final[frozenset[type]] = frozenset((dict, Fields))
_PLAIN: Final = _SCALARS | _DICTS | {list}


# -- what others use ---------------------------------------------------------------------------


def encode_value(value: Any) -> bytes:
    """Return bytes for ``value``; :func:`decode_value` turns them into an equal value of equal
    type.

    The same value gives the same bytes on every run.  Raises :class:`NotCarriedError`, which names
    the part that can't be kept exactly.
    """
    carried = carry(value)
    return carried.data if carried.__class__ is Packed else _encode(carried)


def decode_value(data: bytes | bytearray | memoryview) -> Any:
    """Return the value encoded in ``data``; :class:`WireError` if it can't be decoded."""
    try:
        return _decode(data)
    except _NOT_DECODED as error:
        raise WireError(
            f"A value can't be read: {_why(error)}.",
            remedy="Read it with the flowctl-spark version that wrote it, or a newer one.",
        ) from None


def carry(value: Any) -> Any:
    """Return ``value`` if msgpack carries it exactly, else a :class:`Packed` of it.

    Raises :class:`NotCarriedError`.
    """
    try:
        _encode(value)  # fails early if a list contains itself
    except _NOT_ENCODED:
        return _packed(value)
    return value if _are_plain((value,)) else _packed(value)


def carry_emits(emits: list[Emitted], start: int) -> None:
    """Prepare the emits from ``start`` on for sending, in place; raise :class:`NotCarriedError`."""
    for index in range(start, len(emits)):
        emit = emits[index]
        carried = carry(emit.value)
        if carried.__class__ is Packed:
            emits[index] = CarriedEmitted(carried, emit.anchors, emit.stream, emit.task)


class Carried(NamedTuple):
    """Records that are ready to be sent, and their sizes as the core counts them.

    ``refused`` says why the next record can't be sent; None if all can.
    """

    records: Sequence[Record]
    sizes: Sequence[int]
    refused: NotCarriedError | None = None


def carry_records(records: Sequence[Record]) -> Carried:
    """Make ``records`` ready to be sent, up to the first that can't be."""
    values = [record.value for record in records]
    kinds = set(map(type, values))
    try:
        if str in kinds:  # of text outside ASCII, UTF-8 may not encode half a surrogate pair
            _encode([text for text in values if text.__class__ is str and not text.isascii()])
        if kinds in _TEXTS:
            return Carried(records, list(map(len, values)))
        # This encodes lists and dicts: it fails if one contains itself.
        if kinds <= _CONTAINED:
            sizes = [len(_encode(value)) for value in values]
        else:
            sizes = [size_of(value) for value in values]
        if int in kinds:
            _encode([value for value in values if value.__class__ is int])
    except _NOT_ENCODED:
        return _carry_one_by_one(records)
    if kinds <= _FLAT or _are_plain([value for value in values if value is not NOTHING]):
        return Carried(records, sizes)
    return _carry_one_by_one(records)


def _carry_one_by_one(records: Sequence[Record]) -> Carried:
    carried: list[Record] = []
    refused = None
    for record in records:
        value = record.value
        if value is NOTHING or isinstance(record, CarriedRecord):
            carried.append(record)
            continue
        try:
            ready = carry(value)
        except NotCarriedError as error:
            refused = error
            break
        is_packed = ready.__class__ is Packed
        carried.append(CarriedRecord(record.position, ready) if is_packed else record)
    return Carried(carried, sizes_of(carried), refused)


# -- for frames --------------------------------------------------------------------------------


def enc_hook(value: Any) -> Any:
    """Encoder hook for frames: called for types that msgpack does not know."""
    if value.__class__ is Packed:
        return _Ext(_WHOLE, value.data)
    raise TypeError(f"Encoding objects of type {name_of(type(value))} is unsupported")


def unpack_hook(code: int, data: memoryview) -> Any:
    """Decoder hook for frames where the value itself is needed."""
    return _unpacked(code, data).value


def keep_hook(code: int, data: memoryview) -> Packed:
    """Decoder hook for frames where the value is only passed on."""
    return _unpacked(code, data)


def _unpacked(code: int, data: memoryview) -> Packed:
    if code != _WHOLE:
        raise ValueError(f"extension {code} is not a value")
    kept = bytes(data)
    try:
        return Packed(kept, _decode(kept))
    except _NOT_DECODED as error:
        # As the type of error that decoders of frames expect.
        raise ValueError(f"a value can't be read: {_why(error)}") from None


# -- is msgpack enough, checked as fast as Python can --------------------------------------------


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether msgpack carries all of ``values`` exactly.  Checked level by level, as calls cost
    most.

    They have been encoded before, so none of them contains itself.
    """
    level = values
    for _ in range(_DEPTH_MAX):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        below: list[Any] = []
        if not _DICTS.isdisjoint(kinds) and not _look_into_dicts(level, below):
            return False
        if list in kinds:
            _look_into_lists(level, below)
        if not below:
            return True
        level = below
    return False


def _look_into_dicts(level: Sequence[Any], below: list[Any]) -> bool:
    """Put everything but scalars into ``below``; False for keys that are not text."""
    scalars, push = _SCALARS, below.append  # this runs for every part of every dict that is read
    for value in level:
        if isinstance(value, dict):
            for key, item in value.items():
                if key.__class__ is not str:
                    return False
                if item.__class__ not in scalars:
                    push(item)
    return True


def _look_into_lists(level: Sequence[Any], below: list[Any]) -> None:
    """As :func:`_look_into_dicts`."""
    scalars, push = _SCALARS, below.append
    for value in level:
        if value.__class__ is list:
            first = value[0].__class__ if len(value) >= _LONG_LIST else None
            if first in scalars and countOf(map(type, value), first) == len(value):
                continue
            for item in value:
                if item.__class__ not in scalars:
                    push(item)


# -- looking through, with names -------------------------------------------------------------


class _Walk:
    """One walk through one value: ``is_plain`` until a part is found that is not."""

    def __init__(self) -> None:
        self.is_plain = True

    def tree(self, value: Any, where: str, depth: int) -> Any:
        """Return ``value`` with everything in extensions that msgpack would change."""
        kind = type(value)
        wrap = _WRAPS.get(kind)
        if wrap is not None:
            self.is_plain = False
            return wrap(value, where)
        if kind is str:
            return _text(value, where)
        if kind is int and not _INT_MIN <= value <= _INT_MAX:
            self.is_plain = False
            size = (value.bit_length() + 8) // 8  # plus one bit for the sign
            return _Ext(_INT, value.to_bytes(size, "big", signed=True))
        if kind in _SCALARS:
            return value
        if kind not in _CONTAINERS:
            raise refused(value, where)
        if depth >= _DEPTH_MAX:
            raise NotCarriedError(f"{short(where)} is nested deeper than {_DEPTH_MAX}.")
        if kind in _DICTS:
            return self._dict(value, where, depth + 1)
        if kind in (set, frozenset):
            return self._set(value, where, depth + 1)
        items = [self.tree(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        if kind is list:
            return items
        self.is_plain = False
        return _Ext(_TUPLE, _encode(items))

    def _dict(self, value: dict[Any, Any], where: str, depth: int) -> Any:
        items = [
            (
                self.tree(key, f"{where}'s key {shown(key)}", depth),
                self.tree(item, f"{where}[{shown(key)}]", depth),
            )
            for key, item in value.items()
        ]
        if all(type(key) in _SCALARS for key, _ in items):
            return dict(items)
        self.is_plain = False
        return _Ext(_DICT, _encode([part for item in items for part in item]))

    def _set(self, value: set[Any] | frozenset[Any], where: str, depth: int) -> Any:
        self.is_plain = False
        # Sorted by their bytes: the same on every run.
        parts = sorted(_encode(self.tree(v, f"{where}{{{shown(v)}}}", depth)) for v in value)
        code = _SET if type(value) is set else _FROZENSET
        return _Ext(code, _encode([msgspec.Raw(part) for part in parts]))


def _packed(value: Any) -> Any:
    """Like :func:`carry`, but slower: its errors name the refused part."""
    walk = _Walk()
    tree = walk.tree(value, "value", 0)
    return value if walk.is_plain else Packed(_encode(tree), value)


def _text(value: str, where: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotCarriedError(
                f"{short(where)} is a str with a lone surrogate at {error.start}, which UTF-8"
                " can't encode; decode it with errors='replace', or use bytes."
            ) from None
    return value


# -- single types, there and back --------------------------------------------------------------


def _wrap_decimal(value: decimal.Decimal, where: str) -> Any:
    return _Ext(_DECIMAL, str(value).encode())


def _wrap_uuid(value: uuid.UUID, where: str) -> Any:
    safe = value.is_safe.value
    return _Ext(_UUID, value.bytes if safe is None else value.bytes + bytes([safe + 1]))


def _wrap_date(value: datetime.date, where: str) -> Any:
    return _Ext(_DATE, _encode(value.toordinal()))


def _wrap_time(value: datetime.time, where: str) -> Any:
    return _Ext(_TIME, _encode(_time_parts(value, where)))


def _wrap_datetime(value: datetime.datetime, where: str) -> Any:
    return _Ext(_DATETIME, _encode([value.toordinal(), *_time_parts(value, where)]))


def _time_parts(value: datetime.time | datetime.datetime, where: str) -> Sequence[Any]:
    clock = (value.hour, value.minute, value.second, value.microsecond)
    return (*clock, value.fold, _zone(value.tzinfo, where))


def _time_of(parts: Sequence[Any]) -> datetime.time:
    hour, minute, second, microsecond, fold, zone = parts
    return datetime.time(hour, minute, second, microsecond, _zone_of(zone), fold=fold)


def _wrap_timedelta(value: datetime.timedelta, where: str) -> Any:
    return _Ext(_TIMEDELTA, _encode((value.days, value.seconds, value.microseconds)))


def _zone(zone: datetime.tzinfo | None, where: str) -> Any:
    """Return None, a name from the time zone database, or a fixed offset [µs] with its name, if
    any.
    """
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [offset // datetime.timedelta(microseconds=1), *(_text(n, where) for n in name)]
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return _text(zone.key, where)
    raise NotCarriedError(
        f"the time zone of {short(where)} is a {name_of(type(zone))}, which would not arrive as"
        " it is; use zoneinfo.ZoneInfo(name) or datetime.timezone."
    )


def _zone_of(said: Any) -> datetime.tzinfo | None:
    if said is None:
        return None
    if isinstance(said, str):
        return zoneinfo.ZoneInfo(said)
    offset = datetime.timedelta(microseconds=said[0])
    return datetime.timezone(offset, *said[1:])


def _unwrap_uuid(data: bytes) -> uuid.UUID:
    safe = uuid.SafeUUID(data[16] - 1) if len(data) == 17 else uuid.SafeUUID.unknown
    return uuid.UUID(bytes=data[:16], is_safe=safe)


def _unwrap_time(data: bytes) -> datetime.time:
    return _time_of(_decode(data))


def _unwrap_datetime(data: bytes) -> datetime.datetime:
    ordinal, *time = _decode(data)
    return datetime.datetime.combine(datetime.date.fromordinal(ordinal), _time_of(time))


def _unwrap_dict(data: bytes) -> dict[Any, Any]:
    parts = _decode(data)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _unwrap(code: int, data: memoryview) -> Any:
    """Decoder hook for extensions within a value."""
    return _UNWRAPS[code](bytes(data))


_decode = msgspec.msgpack.Decoder(ext_hook=_unwrap).decode
# KeyError: an unknown code or time zone; ArithmeticError: Decimal's own.
_NOT_DECODED = (msgspec.MsgspecError, LookupError, ArithmeticError, *_NOT_ENCODED)
_CONTAINED: Final = _DICTS | {list}
_TEXTS: Final = ({str}, {bytes})
_FLAT: Final = _SCALARS | {type(NOTHING)}
_CONTAINERS: Final = _DICTS | {list, tuple, set, frozenset}
_WRAPS: Final[dict[type, Callable[[Any, str], Any]]] = {
    decimal.Decimal: _wrap_decimal,
    uuid.UUID: _wrap_uuid,
    datetime.date: _wrap_date,
    datetime.time: _wrap_time,
    datetime.datetime: _wrap_datetime,
    datetime.timedelta: _wrap_timedelta,
}
_UNWRAPS: Final[dict[int, Callable[[bytes], Any]]] = {
    _TUPLE: lambda data: tuple(_decode(data)),
    _SET: lambda data: set(_decode(data)),
    _FROZENSET: lambda data: frozenset(_decode(data)),
    _DICT: _unwrap_dict,
    _INT: lambda data: int.from_bytes(data, "big", signed=True),
    _DECIMAL: lambda data: decimal.Decimal(data.decode()),
    _UUID: _unwrap_uuid,
    _DATE: lambda data: datetime.date.fromordinal(_decode(data)),
    _TIME: _unwrap_time,
    _DATETIME: _unwrap_datetime,
    _TIMEDELTA: lambda data: datetime.timedelta(*_decode(data)),
}


def _why(error: BaseException) -> str:
    if isinstance(error, zoneinfo.ZoneInfoNotFoundError):
        return f"{error.args[0]} on this machine; pip install tzdata, or the system's package of it"
    if isinstance(error, KeyError):
        return f"it holds an extension {error} that this version does not know"
    return str(error) or type(error).__name__

"""Records whose values msgpack alone would change: they keep the form that goes over the wire.

How a value is put into that form and read back is :mod:`flowctl.wire.values`' business; the core
only has to know how long it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowctl.core.records import Position, Record
from flowctl.core.trees.settlement import Emitted


class Packed:
    """A value and the bytes that stand for it on the wire.  Immutable by agreement."""

    __slots__ = ("data", "value")

    def __init__(self, data: bytes, value: Any) -> None:
        self.data: bytes = data
        self.value: Any = value

    def __repr__(self) -> str:
        return repr(self.value)


class CarriedRecord(Record, frozen=True, array_like=True, gc=False):
    """A record whose ``value`` goes over the wire as ``packed``.

    Otherwise it is a record like any other.  It is made with a :class:`Packed` in the value's
    place, which encoders send as it is; reading ``value`` gives the plain value.
    """

    if not TYPE_CHECKING:  # type checkers refuse a property in place of a field

        @property
        def value(self) -> Any:
            return _value_of_record(self).value

    @property
    def packed(self) -> Packed:
        packed: Packed = _value_of_record(self)
        return packed


class CarriedEmitted(Emitted, frozen=True, array_like=True, gc=False):
    """Like :class:`CarriedRecord`, for a value that a topology's bolt emitted."""

    if not TYPE_CHECKING:

        @property
        def value(self) -> Any:
            return _value_of_emitted(self).value


_value_of_record: Any = Record.value.__get__
_value_of_emitted: Any = Emitted.value.__get__


def record_of(position: Position, value: Any) -> Record:
    """Make a record of ``value`` or of a :class:`Packed` one."""
    kind = CarriedRecord if value.__class__ is Packed else Record
    return kind(position, value)


def wire_value(record: Record) -> Any:
    """Return the value or :class:`Packed` from which :func:`record_of` makes an equal record."""
    return record.packed if isinstance(record, CarriedRecord) else record.value


def plain_value(value: Any) -> Any:
    """Return the plain value of a value that may be :class:`Packed`."""
    return value.value if value.__class__ is Packed else value

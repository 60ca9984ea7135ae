"""Whether msgpack carries values exactly, checked as fast as Python can."""

from __future__ import annotations

from collections.abc import Sequence
from operator import countOf
from typing import Any, Final

from flowctl.core.records import Fields

# Values nested deeper than this are refused: both ends must be able to walk through them within
# Python's limit of 1,000 calls, and a level may take three.
DEPTH_MAX: Final = 100
SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
# From this length on, C code checks a list of one type faster than a loop does (measured).
_LONG_LIST: Final = 8
DICTS: Final[frozenset[type]] = frozenset((dict, Fields))
_PLAIN: Final = SCALARS | DICTS | {list}


def are_plain(values: Sequence[Any]) -> bool:
    """Whether msgpack carries all of ``values`` exactly; level by level, as calls cost most.

    They have been encoded before, so none of them contains itself.
    """
    level = values
    for _ in range(DEPTH_MAX):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        below: list[Any] = []
        if not DICTS.isdisjoint(kinds) and not _look_into_dicts(level, below):
            return False
        if list in kinds:
            _look_into_lists(level, below)
        if not below:
            return True
        level = below
    return False


def _look_into_dicts(level: Sequence[Any], below: list[Any]) -> bool:
    """Put everything but scalars into ``below``; False for keys that are not text."""
    scalars, push = SCALARS, below.append  # this runs for every part of every dict that is read
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
    scalars, push = SCALARS, below.append
    for value in level:
        if value.__class__ is list:
            first = value[0].__class__ if len(value) >= _LONG_LIST else None
            if first in scalars and countOf(map(type, value), first) == len(value):
                continue
            for item in value:
                if item.__class__ not in scalars:
                    push(item)

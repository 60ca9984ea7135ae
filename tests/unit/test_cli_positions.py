"""Positions on the command line: as ``checkpoint show`` prints them, or as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.cli.positions import position_of, shown
from flowctl.core.records import AckedRange, PartitionCheckpoint, Position
from flowctl.errors import ConfigError


def _stored(*known: Position) -> PartitionCheckpoint:
    """Saved up to the first position, with acked ranges that end at the others."""
    ranges = tuple(AckedRange(position, position, 1) for position in known[1:])
    return PartitionCheckpoint(known[0] if known else None, 10, ranges)


@pytest.mark.parametrize(
    ("known", "text", "position"),
    [
        ((2000,), "1234", 1234),
        ((2000,), "2000", 2000),
        ((2000,), "-", None),
        (((2000, 60),), "1234:57", (1234, 57)),
        (((2000, 60),), "[1234, 57]", (1234, 57)),
        (((2000, 60, 17),), "2000:60:17", (2000, 60, 17)),
        (((2000, 60, 17),), "1234:57", (1234, 57)),  # a last line without newline has a length
        ((20.0,), "7", 7.0),
        ((20.5,), "-1.5e-3", None),
        ((20.5, -3.0), "-1.5", -1.5),
        (("key",), "abc", "abc"),
        (("key",), '"abc"', "abc"),
        (("key",), "1234", "1234"),
        (("key:a:b",), "key:a:b", "key:a:b"),
        (("k\x1b[2J",), "k\\x1b[2J", "k\x1b[2J"),
        ((("k", 5),), "a:3", ("a", 3)),
        ((("k:l", 5),), "k:l:5", ("k:l", 5)),
        ((("k", None),), "k:None", ("k", None)),
        ((("k", None),), '["a", null]', ("a", None)),
    ],
)
def test_positions_as_show_prints_them_or_as_json(
    known: tuple[Position, ...], text: str, position: Position | None
) -> None:
    if text == "-1.5e-3":  # below all that is known: of no source that counts from 0
        with pytest.raises(ConfigError):
            position_of(text, "p", _stored(*known))
        return
    found = position_of(text, "p", _stored(*known))
    assert (found, type(found)) == (position, type(position))


_positions = st.one_of(
    st.integers(0, 2**63 - 1),
    st.floats(0, allow_nan=False, allow_infinity=False),
    st.text(),
    st.lists(
        st.one_of(st.integers(0, 2**63 - 1), st.text(), st.none()), min_size=1, max_size=3
    ).map(tuple),
)


@given(_positions)
def test_what_show_prints_means_the_same(position: Position) -> None:
    assert position_of(shown(position), "p", _stored(position)) == position
    assert position_of(json.dumps(position), "p", _stored(position)) == position


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ((2000,), text)
        for text in ("", "key", "true", "null", "{}", "[1]", "1:2", "1.5", "-5", "NaN", "1e3", "²")
    ]
    + [
        (((2000, 60),), text)
        for text in ("7", "[1]", "[[1]]", "[true, 1]", "[1, null]", "1:2:3", "1:", "1:a", "-1:1")
    ]
    + [((20.0,), text) for text in ("nan", "inf", "-1", "key")]
    + [((), text) for text in ("5", "[1, 2]", "key")],
)
def test_what_is_no_position_of_the_partition_is_refused_by_name(
    known: tuple[Position, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=r"--to: .* of a\.log") as caught:
        position_of(text, "a.log", _stored(*known))
    example = shown(known[0]) if known else "-"
    assert caught.value.exit_code == 2 and example in caught.value.remedy


@pytest.mark.parametrize(("known", "text"), [((2000, 3000), "3000"), ((2000,), "2001")])
def test_what_lies_beyond_the_saved_position_is_refused(
    known: tuple[Position, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=r"--to: .* ahead of what is saved, 2000"):
        position_of(text, "a.log", _stored(*known))

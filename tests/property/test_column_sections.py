"""Sections of columns: their marks tell the same rows, and no others, however Arrow holds them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.delivery.sections import ColumnSections
from tests.thorough import IS_THOROUGH

pa = pytest.importorskip("pyarrow")

GOLDEN = 50_932_741_195_270_539  # the mark of some values of each kind, and of nulls
_moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
_integers = st.integers(-2, 2) | st.integers(-(2**63), 2**63 - 1)
_texts = st.sampled_from(["", "a", "ab", "b", "ä", "\x00"]) | st.text(max_size=5)
_lists = st.lists(st.none() | st.integers(-1, 1), max_size=3)

#: Each Arrow type that Spark sends, with values that are easily taken for one another.
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), _integers),
    (pa.int8(), st.integers(-2, 2)),
    (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1.5])),
    (pa.float32(), st.sampled_from([0.0, -0.0, float("nan"), 1.5])),
    (pa.bool_(), st.booleans()),
    (pa.string(), _texts),
    (pa.large_string(), _texts),
    (pa.binary(), st.binary(max_size=3)),
    (pa.decimal128(38, 18), st.decimals("-9", "9", places=18)),
    (pa.date32(), st.dates(date(2026, 11, 1), date(2026, 11, 4))),
    (pa.timestamp("us", tz="UTC"), _moments.map(lambda at: at.replace(tzinfo=timezone.utc))),
    (pa.timestamp("us"), _moments),
    (pa.duration("us"), st.timedeltas(timedelta(-1), timedelta(1))),
    (pa.null(), st.none()),
    (pa.list_(pa.int64()), _lists),
    (pa.list_(pa.list_(pa.string())), st.lists(st.none() | st.lists(_texts, max_size=2))),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(_texts, st.none() | st.integers(-1, 1))),
    (
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.bool_()))]),
        st.fixed_dictionaries(
            {"x": st.none() | st.integers(-1, 1), "y": st.none() | st.lists(st.booleans())}
        ),
    ),
]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Any, list[Any], list[Any]]:
    """A type, and two columns of it that are often the same."""
    kind, values = draw(st.sampled_from(KINDS))
    pool = st.lists(st.none() | values, min_size=1, max_size=4)
    column = st.lists(st.sampled_from(draw(pool)), min_size=1, max_size=9)
    one = draw(column)
    other = draw(st.just(one) | st.permutations(one) | column)
    return kind, one, list(other)


def marks(batches: Sequence[Any], **more: Any) -> list[tuple[int, ...]]:
    """The positions of all rows."""
    sections = ColumnSections(batches, lambda columns: columns.to_pylist(), **more)
    found: list[tuple[int, ...]] = []
    while taken := sections.take(7, sections.place):
        found += [record.position for record in taken]  # type: ignore[misc]
    return found


def shape(value: Any) -> Any:
    """A value as a row of Python tells it from others: ``repr`` knows -0.0, NaN and scales."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return [shape(part) for part in value] if isinstance(value, list) else repr(value)


def rearranged(kind: Any, values: list[Any], chance: random.Random) -> Iterator[Any]:
    """The same values as Arrow may hold them: cut, behind others, with anything under nulls."""
    at = 0
    while at < len(values):
        stop = at + chance.randint(1, len(values) - at)
        others = [chance.choice(values) for _ in range(chance.randint(0, 9))]
        array = pa.array([*others, *values[at:stop], *others], kind)
        if chance.random() < 0.5 and not pa.types.is_null(kind):
            array = with_rubbish(array, values, chance)
        array = array.slice(len(others), stop - at)
        yield pa.record_batch([array], names=["c"])
        at = stop


def with_rubbish(array: Any, values: list[Any], chance: random.Random) -> Any:
    """``array`` with any value below its nulls."""
    filler = next((value for value in values if value is not None), None)
    valid = array.is_valid().to_pylist()
    full = pa.array([v if v is not None else filler for v in array.to_pylist()], array.type)
    if filler is None or full.null_count or len(full.buffers()) > 3 or array.type.num_fields:
        return array
    bits = pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(array.type, len(array), [bits, *full.buffers()[1:]])


@pytest.mark.req("S70")
@settings(max_examples=5_000 if IS_THOROUGH else 600, deadline=None)
@given(case=_cases(), seed=st.integers(0, 2**16))
def test_the_same_rows_have_the_same_marks_and_others_have_others(
    case: tuple[Any, list[Any], list[Any]], seed: int
) -> None:
    """Against a comparison row by row.  Equal marks of other rows would leave rows out."""
    kind, one, other = case
    chance = random.Random(seed)
    plain = marks([pa.record_batch([pa.array(one, kind)], names=["c"])])
    assert plain == marks(list(rearranged(kind, one, chance)))
    is_same = shape(one) == shape(other)
    assert (plain == marks(list(rearranged(kind, other, chance)))) == is_same


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=str)
def test_nulls_and_no_rows_of_any_type(kind: Any) -> None:
    def of(*values: Any) -> list[tuple[int, ...]]:
        return marks([pa.record_batch([pa.array(values, kind)], names=["c"])])

    assert of() == []
    assert of(None, None) == of(None, None) != of(None)


def test_types_of_equal_bytes_are_told_apart() -> None:
    number = [pa.array([1], kind) for kind in (pa.int64(), pa.timestamp("us"), pa.duration("us"))]
    number += [pa.array([1], pa.timestamp("us", tz="UTC")), pa.array([Decimal(1)])]
    number += [pa.array([b"a"]), pa.array(["a"]), pa.array([["a"]]), pa.array([{"a": "a"}])]
    found = {str(marks([pa.record_batch([each], names=["c"])])) for each in number}
    assert len(found) == len(number)


def test_the_zone_of_the_session_the_names_and_large_texts_do_not_count() -> None:
    at = datetime(2026, 11, 22, tzinfo=timezone.utc)

    def of(zone: str, text: Any, name: str) -> list[tuple[int, ...]]:
        columns = [pa.array([at], pa.timestamp("us", tz=zone)), pa.array(["x"], text)]
        return marks([pa.record_batch(columns, names=[name, name])])

    assert of("UTC", pa.string(), "a") == of("Europe/Berlin", pa.large_string(), "b")


@pytest.mark.parametrize("sign", [0, 1])
def test_a_nan_is_a_nan_whatever_its_bits(sign: int) -> None:
    """0 / 0 is another one where the JVM has compiled it, as it has in a repeat."""
    bits = pa.array([0x7FF8000000000000 | sign << 63, 0], pa.uint64()).buffers()[1]
    made = pa.Array.from_buffers(pa.float64(), 2, [None, bits])
    plain = pa.array([float("nan"), 0.0])
    assert marks([pa.record_batch([made], names=["c"])]) == marks(
        [pa.record_batch([plain], names=["c"])]
    )


def test_columns_are_told_apart_where_one_ends() -> None:
    def of(*columns: list[str]) -> list[tuple[int, ...]]:
        return marks([pa.record_batch(list(columns), names=[str(n) for n in range(len(columns))])])

    assert of(["a", "b"], ["", ""]) != of(["", "a"], ["b", ""]) != of(["", ""], ["a", "b"])


@pytest.mark.parametrize("rows_a_batch", [1, 3, 127, 128, 10_000, 80_000])
def test_where_sections_end_does_not_depend_on_how_spark_cuts(rows_a_batch: int) -> None:
    whole = pa.RecordBatch.from_pydict(
        {"n": range(80_000), "text": ["x" * (n % 9) for n in range(80_000)]}
    )
    if rows_a_batch < 100:
        whole = whole.slice(0, 2_000)
    parts = [whole.slice(at, rows_a_batch) for at in range(0, len(whole), rows_a_batch)]
    assert marks(parts) == marks([whole])
    assert [number for *_, number in marks(parts)] == list(range(len(whole)))


def test_sections_grow_as_those_of_rows_do() -> None:
    found = marks([pa.RecordBatch.from_pydict({"n": range(80_000)})])
    begins = [n for n in range(1, 80_000) if found[n][0] != found[n - 1][0]]
    assert begins == [*(128 * 2**n for n in range(8)), *range(32_768, 80_000, 16_384)]


@pytest.mark.parametrize("rows_a_batch", [1, 3, 20])
def test_a_section_of_large_rows_ends_where_memory_would(rows_a_batch: int) -> None:
    """Rows of 10 MB, nulls between them, and lists: the second one brings it to 16 MiB."""
    texts = ["x" * 10_000_000 if n % 3 else None for n in range(20)]
    whole = pa.RecordBatch.from_pydict({"text": texts, "parts": [[[1, None]]] * 20})
    parts = [whole.slice(at, rows_a_batch) for at in range(0, 20, rows_a_batch)]
    held = [section for section, *_ in marks(parts)]
    assert held == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6]


def test_no_more_is_read_than_the_next_section_takes() -> None:
    read = 0

    def batches() -> Iterator[Any]:
        nonlocal read
        for _ in range(12):
            read += 1
            yield pa.RecordBatch.from_pydict({"bytes": [bytes(10_000_000)]})

    sections = ColumnSections(batches(), lambda columns: columns.to_pylist())
    given = 0
    while taken := sections.take(1, sections.place):
        given += len(taken)
        assert read - given <= 2


def test_moments_of_the_run_do_not_make_rows_other_ones() -> None:
    early, late = datetime(2026, 11, 22, 1, 2, 3, 4), datetime(2026, 11, 23)

    def of(*moments: datetime | None, passing_moments: bool = True, rows: int = 1) -> Any:
        columns = {"n": range(len(moments) * rows), "at": [*moments] * rows}
        return marks([pa.RecordBatch.from_pydict(columns)], passing_moments=passing_moments)

    assert of(early) == of(late)
    assert of(early, rows=40) == of(late, rows=40), "current_timestamp() is one for all rows"
    assert of(early, passing_moments=False) != of(late, passing_moments=False)
    assert of(early, late) != of(early, early)
    assert of(early, None) != of(late, None), "not all rows have it"
    first = [(early, late)[n % 2] for n in range(128)]
    one, other = of(*first, *[early] * 9), of(*first, *[late] * 9)
    assert one[:128] == other[:128] and one[128] != other[128], "the first section decides"
    one, other = of(*[early] * 128, early, late), of(*[late] * 128, late, early)
    assert one[:128] == other[:128] and one[128] != other[128]
    assert of(*[early] * 128, early, early)[128] == of(*[late] * 128, late, late)[128]


def test_marks_are_those_of_other_versions_of_pyarrow() -> None:
    """A ledger is read after an update, too: `make sparks` runs this with others."""
    values: list[list[Any]] = [
        [1, None, -1], [1, 2, None], [0.5, None, float("nan")], [None, 1.5, -0.0],
        [True, None, False], ["a", "", None], ["ab", None, ""], [b"a", None, b""],
        [Decimal("1.5"), None, Decimal(0)], [date(2026, 11, 22), None, date(1, 1, 1)],
        [datetime(2026, 11, 22, tzinfo=timezone.utc), None, None],
        [datetime(2026, 11, 22, 1, 2, 3, 4), None, None], [timedelta(1), None, timedelta(0)],
        [None, None, None], [[1, None], [], None], [[["a"], None], None, []],
        [[("a", 1)], [], None], [{"x": 1, "y": [True]}, {"x": None, "y": None}, None],
    ]  # fmt: skip
    columns = [pa.array(each, kind) for each, (kind, _) in zip(values, KINDS, strict=True)]
    batch = pa.record_batch(columns, names=[str(kind) for kind, _ in KINDS])
    [first, *_] = marks([batch])
    assert first == (0, GOLDEN, 0)


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.month_day_nano_interval(), (1, 2, 3), (1, 2, 4)),
        (pa.list_(pa.int8(), 2), [1, 2], [2, 1]),
        (pa.run_end_encoded(pa.int32(), pa.int8()), 1, 2),
    ],
    ids=str,
)
def test_types_that_are_rare_are_told_by_their_values(kind: Any, value: Any, other: Any) -> None:
    def marked(*values: Any) -> list[tuple[int, ...]]:
        return marks([pa.record_batch([pa.array(values, kind)], names=["c"])])

    assert marked(value, other) == marked(value, other)
    assert marked(value, other) != marked(other, value)
    assert marked(value, None) != marked(other, None)

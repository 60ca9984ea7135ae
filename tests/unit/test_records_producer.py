"""Records(iterable): what it reads once, what it recognises, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowctl import Records
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.ports import MeasuredProducer
from tests.runtime_parts import a_spout


def done_to(position: Any) -> Checkpoint:
    return Checkpoint({"records": PartitionCheckpoint(position, 1)})


def values_of(producer: Records, checkpoint: Checkpoint | None = None) -> list[Record]:
    producer.open(checkpoint or Checkpoint())
    found: list[Record] = []
    while (chunk := producer.poll(2)) is not None:
        found += chunk.records
    producer.close()
    return found


# -- iterators that can be read once ----------------------------------------------------------


def test_an_iterator_serves_one_run() -> None:
    producer = Records(iter("abc"))
    assert values_of(producer, done_to(0)) == [Record(1, "b"), Record(2, "c")]
    with pytest.raises(SourceError, match=r"str(_ascii)?_iterator can be read once") as caught:
        producer.open(Checkpoint())
    assert "function that returns a new iterator" in caught.value.remedy


def test_an_iterator_that_nobody_read_from_may_be_opened_again() -> None:
    producer = Records(iter("a"))
    producer.open(Checkpoint())
    producer.close()
    assert values_of(producer) == [Record(0, "a")]


def test_a_function_that_returns_the_same_iterator_again_is_refused() -> None:
    same = iter([1, 2])
    producer = Records(lambda: same)
    producer.open(Checkpoint())
    producer.poll(1)
    with pytest.raises(SourceError, match="can be read once"):
        producer.open(Checkpoint())


def test_an_iterator_with_fewer_values_than_are_done() -> None:
    producer = Records(lambda: iter([1, 2]))
    producer.open(done_to(4))
    with pytest.raises(SourceError, match="there are 2 values, but the checkpoint counts 5 done"):
        producer.poll(10)


# -- what a checkpoint says --------------------------------------------------------------------


def test_a_shorter_list_and_the_position_of_another_source_are_refused() -> None:
    assert values_of(Records([1, 2]), done_to(1)) == []
    with pytest.raises(SourceError, match="there are 2 values, but the checkpoint counts 3 done"):
        Records([1, 2]).open(done_to(2))
    with pytest.raises(SourceError, match=r"\(7, 1\) is not a place"):
        Records([1, 2]).open(done_to((7, 1)))


def ended(values: Any, **how: Any) -> Checkpoint:
    """The checkpoint after a run that did all of ``values``."""
    producer = Records(values, **how)
    producer.open(Checkpoint())
    position = end = None
    while (chunk := producer.poll(2)) is not None:
        position = chunk.records[-1].position if chunk.records else position
        end = chunk.end if chunk.end is not None else end
    return Checkpoint({"records": PartitionCheckpoint(position, 1, end=end)})


ROWS = [{"id": 1, "tags": {"a", "b"}}, {"id": 2, "n": float("nan")}, {"id": 3, "none": None}]


@pytest.mark.parametrize("form", [list, lambda values: lambda: iter(values)])
@pytest.mark.parametrize("place", [0, 2])
def test_other_values_are_refused_where_all_was_done(form: Any, place: int) -> None:
    others = [*ROWS, {"id": 4}]
    others[place] = {"id": 7}
    with pytest.raises(SourceError, match=f"position {place} is not the one") as caught:
        values_of(Records(form(others)), ended(form(ROWS)))
    assert "compare=False" in caught.value.remedy
    assert values_of(Records(form(others), compare=False), ended(form(ROWS))) == [
        Record(3, others[3])
    ]


@pytest.mark.parametrize("form", [list, lambda values: lambda: iter(values)])
def test_the_same_values_are_recognised_and_more_may_follow(form: Any) -> None:
    again = [dict(reversed(row.items())) for row in ROWS]
    assert values_of(Records(form(again)), ended(form(ROWS))) == []
    assert values_of(Records(form([*again, 4])), ended(form(ROWS))) == [Record(3, 4)]
    ends = ended(form([*ROWS, 4])).partitions["records"].end
    longer = Records(form([*again, 4]))
    longer.open(ended(form(ROWS)))
    assert [c.end for c in iter(lambda: longer.poll(9), None)] == [None, ends]


def test_an_end_says_nothing_of_a_job_that_was_set_back_or_of_values_without_a_digest() -> None:
    saved = ended([1, 2, 3]).partitions["records"]
    back = Checkpoint({"records": PartitionCheckpoint(0, 1, end=saved.end)})
    assert values_of(Records([5, 6, 7]), back) == [Record(1, 6), Record(2, 7)]
    assert values_of(Records([object(), 3]), ended([object()])) == [Record(1, 3)]
    assert ended([]).partitions["records"].end is None


def killed(
    values: Any, *, read: int, done: int, holes: Sequence[int] = (), **how: Any
) -> Checkpoint:
    """The checkpoint of a run that was killed when it had read so many values in chunks of two."""
    producer = Records(values, **how)
    producer.open(Checkpoint())
    mark = None
    while read > 0:
        chunk = producer.poll(2)
        assert chunk is not None
        read -= len(chunk.records)
        mark = chunk.mark
    acked = tuple(AckedRange(place, place, 1) for place in holes)
    position = done - 1 if done else None
    return Checkpoint({"records": PartitionCheckpoint(position, done, acked, mark=mark)})


@pytest.mark.parametrize("form", [list, lambda values: lambda: iter(values)])
def test_other_values_are_refused_after_a_kill_in_mid_run(form: Any) -> None:
    """A list of what is still to do is shorter the next time: its first values would be skipped."""
    saved = killed(form("abcdef"), read=4, done=2)
    assert values_of(Records(form("abcdef")), saved) == [
        Record(n, "abcdef"[n]) for n in range(2, 6)
    ]
    for others, said in [
        ("cdefgh", "position 0 is not the one"),
        ("abcxef", "position 3 is not the one"),
        ("abc", "read 4"),
    ]:
        with pytest.raises(SourceError, match=said) as caught:
            values_of(Records(form(others)), saved)
        assert "flowctl checkpoint clear" in caught.value.remedy
        assert values_of(Records(form(others), compare=False), saved)
    unmarked = killed(form("abcdef"), read=4, done=2, compare=False)
    assert values_of(Records(form("abxxxx")), unmarked)


def test_values_above_a_hole_count_as_done_and_are_compared() -> None:
    saved = killed(list("abcd"), read=4, done=0, holes=[1, 2])
    with pytest.raises(SourceError, match="read 4"):
        values_of(Records(["a", "d"]), saved)  # what is left; "d" is where "b" was
    nothing_done = killed(list("abcd"), read=4, done=0)
    assert len(values_of(Records(["x"]), nothing_done)) == 1


def test_after_a_kill_the_end_is_saved_once_all_is_done() -> None:
    producer = Records([1, 2, 3])
    producer.open(killed([1, 2, 3], read=3, done=2))
    ends = [chunk.end for chunk in iter(lambda: producer.poll(9), None)]
    assert ends == [None, ended([1, 2, 3]).partitions["records"].end]


def test_progress_counts_what_an_earlier_run_did() -> None:
    producer = Records([1, 2, 3, 4])
    assert isinstance(producer, MeasuredProducer)
    producer.open(done_to(1))
    assert producer.progress().done == 2
    producer.poll(1)
    assert (producer.progress().done, producer.progress().total) == (3, 4)
    assert not isinstance(Records(lambda: [1]), MeasuredProducer)


# -- generators -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError, SystemExit, GeneratorExit])
def test_values_before_an_error_are_given_and_the_error_stays(error: type[BaseException]) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise error("the line is dead")

    producer = Records(broken)
    producer.open(Checkpoint())
    chunk = producer.poll(5)
    assert chunk is not None and chunk.records == [Record(0, 1)]
    for _ in range(2):  # the generator has ended: that must not look like the end of the input
        with pytest.raises(error, match="the line is dead"):
            producer.poll(5)


def test_a_slow_generator_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))  # each look at the clock is a second later
    monkeypatch.setattr("flowctl.runtime.iterables.time.monotonic", lambda: next(now))
    producer = Records(lambda: (n for n in range(3)))
    producer.open(done_to(0))
    chunks = [producer.poll(10) for _ in range(5)]
    given = [c and list(c.records) for c in chunks]
    assert given == [[], [Record(1, 1)], [Record(2, 2)], [], None]


def test_close_ends_a_generator_of_its_own() -> None:
    ended = []

    def values() -> Iterator[int]:
        try:
            yield from range(9)
        finally:
            ended.append(True)

    producer = Records(values)
    producer.open(Checkpoint())
    producer.poll(1)
    producer.close()
    assert ended


# -- what is refused --------------------------------------------------------------------------


async def async_values() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a/b.log", "TextLines(path)"),
        (b"abc", "is one value"),
        (Path("a"), "TextLines(path)"),
        ({"a": 1}, "list(values.items())"),
        ({1, 2}, "sorted(values)"),
        (5, "an int can't be iterated"),
        (list, "can't be iterated"),
        (lambda need: need, "without arguments"),
        (async_values, "is async"),
    ],
)
def test_what_is_not_an_iterable_of_records(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Records(given)
    assert caught.value.field == "values"
    assert said in str(caught.value)


def test_data_frames_are_refused_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    with pytest.raises(ConfigError, match="pandas DataFrame") as caught:
        a_spout(producer=frame)
    assert caught.value.field == "producer"
    assert 'df.to_dict("records")' in caught.value.remedy
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert [r.value for r in values_of(Records(frame.to_dict("records")))] == rows


@pytest.mark.parametrize("make", [Records, lambda table: a_spout(producer=table)])
def test_a_table_of_pyarrow_is_refused_by_name(make: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1, 2]})
    with pytest.raises(ConfigError, match="pyarrow Table") as caught:
        make(table)
    assert "table.to_pylist()" in caught.value.remedy
    assert [r.value for r in values_of(Records(table.to_pylist()))] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("make", [Records, lambda frame: a_spout(producer=frame)])
@pytest.mark.parametrize("module", ["sql.classic.dataframe", "sql.connect.dataframe"])
def test_spark_data_frames_are_refused_by_name(make: Any, module: str) -> None:
    frame = type("DataFrame", (), {"__module__": f"pyspark.{module}", "__iter__": None})()
    with pytest.raises(ConfigError, match="Spark DataFrame") as caught:
        make(frame)
    assert "pyspark_flowctl.apply(df" in caught.value.remedy

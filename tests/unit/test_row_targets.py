"""``target=`` as a function of the row: each call has rows of one target, each row is done once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet
import pytest

from flowctl import ConfigError, Limits, RetryLater, paced
from flowctl.bolts.batch import Batch
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.pacers import RowTargets
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.sections import Sections, section_of
from flowctl.errors import ProcessError, QuotaUsedUpError
from flowctl.pacing import gates
from flowctl_apply import Applied, apply_parquet
from flowctl_sql import SqlSink
from tests.delivery_parts import Clock, PatientPacer
from tests.unit.test_delivery import Letters

T = TypeVar("T")
Row = tuple[int, str | None]
TENANTS = ("ada", "bob", "cyd")
ROWS: list[Row] = [(n, TENANTS[n * n % 7 % 3]) for n in range(600)]


@pytest.fixture(autouse=True)
def no_gates() -> Iterator[None]:
    gates.close_gates()
    yield
    gates.close_gates()


def tenant(row: Row) -> Any:
    return row[1]


class Pacers(PatientPacer):
    """Patient pacers, in one time; each call is noted by the target that it was made for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.made: Counter[str] = Counter()
        self.clock = clock

    def of(self, target: str) -> Pacers:
        self.made[target] += 1
        return self


def deliver(process: Any, rows: list[Row], calls: int = 1, **plan: Any) -> tuple[Any, Pacers]:
    clock = Clock()
    pacers = Pacers(clock)
    sections = Sections(rows)
    where = Where(
        "job", "7", place=sections.place, rest=sections.rest, section_of=section_of, before=(-1,)
    )
    made = Plan(process=process, calls=calls, target=RowTargets(tenant), **plan)
    delivery = Delivery(made, where, pacers, clock=clock, sleep=clock.sleep)
    return delivery.run(sections), pacers


def test_a_call_has_rows_of_one_target_in_their_order_and_a_span_of_its_own() -> None:
    taken: list[Row] = []
    spans: dict[str, set[str]] = {}

    def take(batch: Batch) -> None:
        [name] = {row[1] for row in batch.values}
        spans.setdefault(batch.span.partition, set()).add(name)
        taken.extend(batch.values)

    tally, pacers = deliver(take, ROWS)
    assert sorted(taken) == ROWS
    for name in TENANTS:
        own = [row for row in taken if row[1] == name]
        assert own == sorted(own)
    assert spans == {f"7@{name}": {name} for name in TENANTS}
    assert set(pacers.made) == set(TENANTS)
    assert tally.written == len(ROWS)
    assert tally.calls < 40, "rows of a target that are read together go together"


def test_a_target_that_is_far_larger_than_the_others_gets_calls_of_the_usual_size() -> None:
    sizes: list[int] = []
    rows: list[Row] = [(n, "ada" if n % 50 else "bob") for n in range(3_000)]
    deliver(lambda batch: sizes.append(len(batch)), rows, rows_max=40)
    assert max(sizes) == 40


def test_what_one_target_does_is_not_held_against_another() -> None:
    """A target that fails for a while is down by itself: its rows wait, those of others go."""
    done, failing = [], {"left": 40}

    def take(batch: Batch) -> None:
        if batch.values[0][1] == "ada" and failing["left"]:
            failing["left"] -= 1
            raise RuntimeError("500")
        done.extend(batch.values)

    rows: list[Row] = [(n, "ada" if n < 20 else "bob") for n in range(200)]
    letters = Letters()
    tally, _ = deliver(take, rows, dead_letter=letters, rows_max=10)
    assert sorted(done) == rows
    assert letters.kept == []
    assert done[:60] == [row for row in rows if row[1] == "bob"][:60]
    assert tally.lost == 0


def test_a_row_without_a_target_is_kept_and_the_others_are_written() -> None:
    rows: list[Row] = list(ROWS)
    rows[7], rows[300], rows[301] = (7, None), (300, ""), (301, "a{b}")
    letters, taken = Letters(), []
    tally, _ = deliver(lambda batch: taken.extend(batch.values), rows, dead_letter=letters)
    assert sorted(taken) == [row for row in rows if row[0] not in (7, 300, 301)]
    assert sorted(letter[3] for letter in letters.kept) == [rows[7], rows[300], rows[301]]
    assert "target= returned None for this row" in str(letters.kept)
    assert tally.gave_up == 3


def test_without_a_dead_letter_a_row_without_a_target_ends_the_job() -> None:
    with pytest.raises(ProcessError, match="target= returned None for this row, which is no name"):
        deliver(lambda batch: None, [(0, "ada"), (1, None)])


def test_a_function_that_raises_is_named() -> None:
    with pytest.raises(ValueError, match="target= raised TypeError for this row: 'int'"):
        RowTargets(lambda row: row["tenant"]).name(7)


@pytest.mark.parametrize("dies_at", [1, 3, 6, 9])
def test_each_row_is_written_once_though_killed_between_calls(tmp_path: Path, dies_at: int) -> None:
    """Rows of other targets lie between those of a call: what is noted as written is not theirs."""
    url = str(tmp_path / "t.db")
    with sqlite3.connect(url) as made:
        made.execute("CREATE TABLE t (n INTEGER, tenant TEXT)")
    sink = SqlSink(f"sqlite:///{url}", table="t")
    calls = 0

    def write(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        if calls == dies_at:
            raise KeyboardInterrupt
        sink.write(
            [dict(zip(("n", "tenant"), row, strict=True)) for row in batch.values], batch=batch
        )

    with pytest.raises(KeyboardInterrupt):
        deliver(write, ROWS, rows_max=50)
    calls = dies_at  # dies no more
    deliver(write, ROWS, rows_max=30)
    with sqlite3.connect(url) as made:
        assert made.execute("SELECT n, tenant FROM t ORDER BY n").fetchall() == ROWS


# -- The same in ``apply`` -----------------------------------------------------------------------

SCHEMA = pyarrow.schema([("n", pyarrow.int64()), ("tenant", pyarrow.string())])


def run(place: Path, fn: Callable[..., Any], rows: list[Row] = ROWS, **options: Any) -> Applied:
    columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns, SCHEMA), place / "in.parquet")
    given: dict[str, Any] = {
        "bolts": 2,
        "view": "off",
        "target": lambda row: row["tenant"],
        **options,
    }
    return apply_parquet(
        place / "in.parquet", fn, schema=SCHEMA, name="job", out=place / "out", **given
    )


def rows_of(applied: Applied) -> list[Row]:
    files = [file.removeprefix("file://") for file in applied.files]
    tables = [pyarrow.parquet.read_table(file).to_pylist() for file in files]
    return sorted((row["n"], row["tenant"]) for table in tables for row in table)


def test_apply_calls_for_one_target_at_a_time_and_keeps_each_row(tmp_path: Path) -> None:
    seen: set[tuple[str, ...]] = set()

    def same(batch: Batch) -> list[dict[str, Any]]:
        seen.add(tuple({row["tenant"] for row in batch.values}))
        for at, record in enumerate(batch):
            if record.value["n"] in (3, 8):
                batch.reject(at, "bad")
        return [row for row in batch.values if row["n"] not in (3, 8)]

    applied = run(tmp_path, same, fail_over=2)
    assert rows_of(applied) == [row for row in ROWS if row[0] not in (3, 8)]
    assert seen == {(name,) for name in TENANTS}


def test_of_an_async_function_too(tmp_path: Path) -> None:
    async def same(batch: Batch) -> list[Any]:
        assert len({row["tenant"] for row in batch.values}) == 1
        return list(batch.values)

    assert rows_of(run(tmp_path, same)) == ROWS


def test_a_row_of_apply_that_fails_or_has_no_target_is_the_only_one_kept(tmp_path: Path) -> None:
    rows = list(ROWS)
    rows[30] = (30, None)

    def failing(batch: Batch) -> Iterator[tuple[Any, ...]]:
        for record in batch:
            if record.value["n"] == 77:
                raise ValueError("bad")
            yield record.value["n"], record.value["tenant"]

    applied = run(tmp_path, failing, rows, dead_letter=tmp_path / "letters")
    assert rows_of(applied) == [row for row in rows if row[0] not in (30, 77)]
    assert applied.report.letters_open == 2


def test_each_name_has_the_budget_for_itself(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def count(batch: Batch) -> list[Any]:
        calls[batch.values[0]["tenant"]] += 1
        return list(batch.values)

    with pytest.raises(QuotaUsedUpError, match="bob"):
        run(
            tmp_path, count, [(n, "ada" if n % 9 else "bob") for n in range(90)],
            bolts=1, budget="1/day", limits=Limits(give_up_after_s=0.1),
            target=lambda row: row["tenant"] if row["tenant"] == "bob" else f"ada-{row['n']}",
        )  # fmt: skip
    assert calls["bob"] == 1
    assert calls["ada"] > 1


# -- What can't be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spend_max": "$5"}, "spend_max: is counted for one target, and target= is a function"),
        ({"budget": "9 tokens/min"}, "cost"),
    ],
)
def test_options_of_one_target_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, lambda batch: [], **options)


def test_a_process_does_not_keep_gates_for_names_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "_GATES_MAX", 20)
    for number in range(100):
        with paced(f"row-{number}"):
            pass
    assert len(gates.figures()) <= 20
    assert "row-99" in {each.target for each in gates.figures()}


def test_a_gate_that_counts_a_quota_alone_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_GATES_MAX", 3)
    for number in range(3):
        with paced(f"row-{number}", budget="9/day"):
            pass
    with pytest.raises(ConfigError, match="'row-3' would be one more than 3 targets of this"):  # noqa: SIM117
        with paced("row-3", budget="9/day"):
            pass
    assert {each.calls for each in gates.figures()} == {1}


def test_a_refusal_makes_only_its_own_target_wait() -> None:
    order: list[str] = []
    refused = {"left": 3}

    def take(batch: Batch) -> None:
        name = batch.values[0][1]
        if name == "ada" and refused["left"]:
            refused["left"] -= 1
            raise RetryLater("full", after_s=0.01)
        order.append(str(name))

    tally, _ = deliver(take, ROWS[:60], calls=3)
    assert tally.written == 60
    assert tally.refused == 3

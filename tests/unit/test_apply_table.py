"""Which Delta tables take the files of a job, and that they are added once: without deltalake.

``tests/integration/test_apply_delta.py`` is the same with the library, where it is installed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.errors import ConfigError, InfrastructureError, InternalError
from flowctl_apply import apply_parquet
from flowctl_apply._delta import DeltaAppend
from flowctl_apply._places import LocalPlace
from flowctl_apply._results import Description, Finished, ResultFile, Results, prefix_of


class Field(NamedTuple):
    name: str
    type: str = "long"
    nullable: bool = True
    metadata: dict[str, str] = {}  # noqa: RUF012


class Table:
    """A Delta table, as much of it as is looked at."""

    def __init__(self) -> None:
        self.fields = [Field("id"), Field("label", "string")]
        self.features: list[str] | None = None
        self.version = 2
        self.partitioned_by: list[str] = []
        self.configuration: dict[str, str] = {}
        self.files: list[Any] = []
        self.transactions: dict[str, int] = {}
        self.fault: Exception | None = None
        self.wanted: list[Field] = []  # in place of what a schema of Arrow's says

    def schema(self) -> Any:
        return SimpleNamespace(fields=self.fields)

    def protocol(self) -> Any:
        return SimpleNamespace(writer_features=self.features, min_writer_version=self.version)

    def metadata(self) -> Any:
        return SimpleNamespace(
            partition_columns=self.partitioned_by, configuration=self.configuration
        )

    def file_uris(self) -> list[str]:
        return [f"file:///table/{action.path}" for action in self.files]

    def transaction_version(self, app_id: str) -> int | None:
        if self.fault is not None:
            raise self.fault
        return self.transactions.get(app_id)

    def create_write_transaction(
        self, actions: list[Any], mode: str, schema: Any, *, commit_properties: Any
    ) -> None:
        assert (mode, schema) == ("append", self.schema())
        self.files += actions
        self.transactions.update(commit_properties.app_transactions)


class Action(NamedTuple):
    path: str
    size: int
    partition_values: dict[str, str]
    modified_ms: int
    data_change: bool
    stats: str


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    opened = SimpleNamespace(create=lambda url, wanted, mode: table)
    library = SimpleNamespace(
        Schema=SimpleNamespace(
            from_arrow=lambda fields: SimpleNamespace(fields=table.wanted or fields)
        ),
        DeltaTable=type(
            "DeltaTable", (), {"__new__": lambda *_: table, "create": staticmethod(opened.create)}
        ),
        CommitProperties=lambda app_transactions: SimpleNamespace(
            app_transactions=app_transactions
        ),
    )
    transaction = SimpleNamespace(AddAction=Action, Transaction=lambda app, version: (app, version))
    monkeypatch.setitem(sys.modules, "deltalake", library)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "deltalake.transaction", transaction)  # type: ignore[arg-type]
    return table


WANTED = [Field("id"), Field("label", "string")]


def append_at(tmp_path: Path, wanted: list[Field] = WANTED) -> DeltaAppend:
    return DeltaAppend(Results(LocalPlace(str(tmp_path)), "labels"), wanted)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"features": ["appendOnly", "invariants"]},
        {"features": [], "version": 7},
        {"version": 1},
        {"fields": [*WANTED, Field("more")]},
        {"configuration": {"delta.appendOnly": "true"}},
    ],
)
def test_a_table_that_takes_more_rows_is_used(
    table: Table, tmp_path: Path, change: dict[str, Any]
) -> None:
    vars(table).update(change)
    append_at(tmp_path).prepare()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": ["appendOnly", "columnMapping"], "version": 7}, r"need \['columnMapping'\]"),
        ({"version": 3}, "need version 3"),
        ({"version": 6}, "need version 6"),
        ({"partitioned_by": ["day", "hour"]}, "partitioned by .day., which is not"),
        ({"configuration": {"delta.constraints.a": "id > 0"}}, "checks rows .delta.constraints.a"),
        (
            {"fields": [Field("id", metadata={"delta.invariants": "id > 0"}), WANTED[1]]},
            "checks rows .id",
        ),
        ({"fields": [WANTED[0]]}, "its column 'label' is None"),
        ({"fields": [WANTED[0], Field("label", "long")]}, "its column 'label' is"),
        ({"fields": [Field("id", nullable=False), WANTED[1]]}, "its column 'id' is"),
        ({"fields": [*WANTED, Field("more", nullable=False)]}, "'more' may not be null"),
    ],
)
def test_one_that_would_not_is_refused_before_any_work(
    table: Table, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    vars(table).update(change)
    with pytest.raises(ConfigError, match=said) as caught:
        append_at(tmp_path).prepare()
    assert caught.value.field == "mode"


def test_a_column_of_values_that_are_never_null_goes_into_one_that_may_be(
    table: Table, tmp_path: Path
) -> None:
    append_at(tmp_path, [Field("id", nullable=False), WANTED[1]]).prepare()
    table.fields[0] = Field("id", nullable=False)
    append_at(tmp_path, [Field("id", nullable=False), WANTED[1]]).prepare()


def test_a_name_whose_rows_are_in_the_table_is_not_begun_again(
    table: Table, tmp_path: Path
) -> None:
    """Its files would be taken for leftovers; a job that goes on knows them."""
    table.files = [SimpleNamespace(path=f"{prefix_of('other')}1.parquet")]
    append_at(tmp_path).prepare()
    table.files += [SimpleNamespace(path=f"{prefix_of('labels')}1.parquet")]
    with pytest.raises(ConfigError, match="rows of an earlier job 'labels'") as caught:
        append_at(tmp_path).prepare()
    assert caught.value.field == "name"
    begin(Results(LocalPlace(str(tmp_path)), "labels"))
    append_at(tmp_path).prepare()


def begin(results: Results) -> None:
    results.begin(Description(name="labels", run="r1", schema="", source="", fn="", paths=[]))


def finished(tmp_path: Path) -> list[ResultFile]:
    results = Results(LocalPlace(str(tmp_path)), "labels")
    begin(results)
    files = []
    for number in range(2):
        name = f"{prefix_of('labels')}{number}.parquet"
        results.place.put(name, b"rows" * (number + 1))
        files.append(ResultFile(name, number + 5, 4 * (number + 1)))
    results.finish(Finished(files, 11, 11))
    return files


def test_the_files_of_a_job_are_added_in_one_commit_and_once(table: Table, tmp_path: Path) -> None:
    files = finished(tmp_path)
    for _ in range(2):
        append_at(tmp_path).append()
        assert [(a.path, a.size) for a in table.files] == [(f.file, f.bytes) for f in files]
    assert [json.loads(a.stats) for a in table.files] == [{"numRecords": 5}, {"numRecords": 6}]
    assert all(a.data_change and a.partition_values == {} for a in table.files)
    assert all(abs(time.time() - a.modified_ms / 1000) < 86_400 for a in table.files)
    assert table.transactions == {"flowctl:labels:r1": 1}


def test_a_file_that_is_gone_is_not_added(table: Table, tmp_path: Path) -> None:
    files = finished(tmp_path)
    (tmp_path / files[0].file).unlink()
    with pytest.raises(InternalError, match="is a file of results, but it is not in"):
        append_at(tmp_path).append()
    assert (table.files, table.transactions) == ([], {})


def test_what_the_library_raises_is_told_with_where(table: Table, tmp_path: Path) -> None:
    finished(tmp_path)
    table.fault = RuntimeError("no lock\nat line 7")
    with pytest.raises(InfrastructureError, match=r": no lock\. Check"):
        append_at(tmp_path).append()
    table.fields = None  # type: ignore[assignment]
    with pytest.raises(InfrastructureError, match="Delta table at"):
        append_at(tmp_path).prepare()


def test_a_job_with_a_mode_adds_its_rows_to_the_table_once(table: Table, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": range(10)}), tmp_path / "in.parquet")
    schema = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
    table.wanted = [Field("id"), Field("label", "string")]
    for was_done in (False, True):
        done = apply_parquet(
            tmp_path / "in.parquet", label, schema=schema, name="labels", out=tmp_path / "table",
            mode="append", bolts=1, view="off",
        )  # fmt: skip
        assert (done.rows, done.was_done) == (10, was_done)
        assert sum(json.loads(action.stats)["numRecords"] for action in table.files) == 10


def label(batch: Batch) -> list[tuple[int, str]]:
    return [(record.value["n"], "x") for record in batch]


@pytest.mark.parametrize("paths", [[], "", ["a", ""]])
def test_a_path_that_is_none_is_named(tmp_path: Path, paths: Any) -> None:
    with pytest.raises(ConfigError, match="no path given") as caught:
        apply_parquet(paths, label, schema=pyarrow.schema([("n", pyarrow.int64())]), name="labels",
                      out=tmp_path)  # fmt: skip
    assert caught.value.field == "paths"


def test_bolts_may_be_the_callers_own(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": range(10)}), tmp_path / "in.parquet")
    schema = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
    made: list[LocalBolts] = []

    def bolts(process: Any) -> LocalBolts:
        made.append(LocalBolts(process, count=1))
        return made[-1]

    done = apply_parquet(tmp_path / "in.parquet", label, schema=schema, name="labels",
                         out=tmp_path / "out", bolts=bolts, view="off")  # fmt: skip
    assert (done.rows, len(made)) == (10, 1)

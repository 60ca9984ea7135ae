"""``apply(…, table=…)``: rows into Iceberg tables of pyiceberg's SQL catalogue, each once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'flowctl-spark[iceberg]'")

import pyiceberg.catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.config import Config

from flowctl.bolts.batch import Batch
from flowctl.errors import ConfigError
from flowctl_apply import apply_parquet
from flowctl_apply._places import LocalPlace

SCHEMA = pyarrow.schema([
    ("id", pyarrow.int64()), ("label", pyarrow.string()),
    ("at", pyarrow.timestamp("us", "UTC")), ("tags", pyarrow.list_(pyarrow.string())),
])  # fmt: skip


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    uri, warehouse = f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/wh"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", warehouse)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # it was read at the import
    made = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    made.create_namespace("db")
    yield made
    made.close()


def rows_of(batch: Batch) -> Iterator[tuple[Any, ...]]:
    for record in batch:
        number = record.value["id"]
        yield number, f"#{number % 3}", None, [str(number)]


def run(tmp_path: Path, table: Any, *, name: str = "labels", **options: Any) -> Any:
    given = tmp_path / "given.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(1_000)}), given)
    options = {"schema": SCHEMA, "bolts": 2, "view": "off", **options}
    return apply_parquet(given, rows_of, name=name, out=tmp_path / "out", table=table, **options)


def ids_in(table: Any) -> list[int]:
    table.refresh()
    rows = table.scan().to_arrow()
    assert set(rows["label"].to_pylist()) <= {"#0", "#1", "#2"}
    return sorted(rows["id"].to_pylist())


@pytest.mark.parametrize("partitioned", [False, True])
def test_each_row_is_in_the_table_once_however_often_the_job_is_started(
    catalog: Any, tmp_path: Path, partitioned: bool
) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    if partitioned:
        with table.update_spec() as spec:
            spec.add_field("label", IdentityTransform(), "label")
    assert run(tmp_path, "lake.db.t").rows == 1_000
    assert run(tmp_path, table).was_done
    assert ids_in(table) == list(range(1_000))
    run(tmp_path, table, name="more")
    assert ids_in(table) == sorted([*range(1_000)] * 2)


def test_killed_around_the_commit_it_is_made_once(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    whole = LocalPlace.put

    def killed(self: Any, name: str, data: bytes) -> None:
        if "/appended-" in name:
            raise KeyboardInterrupt
        whole(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "put", killed)
        with pytest.raises(KeyboardInterrupt):  # after the commit, before the job's own note
            run(tmp_path, table)
    assert ids_in(table) == list(range(1_000))
    run(tmp_path, "lake.db.t")
    assert ids_in(table) == list(range(1_000))
    # Also once the snapshot that tells of it has expired, as the job's own note stays.
    table.append(pyarrow.table({"id": [-1], "label": ["#0"], "at": [None], "tags": [None]}, SCHEMA))
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    run(tmp_path, table)
    assert ids_in(table) == list(range(-1, 1_000))


@pytest.mark.parametrize("partitioned", [False, True])
def test_files_that_came_later_are_added_alone(
    catalog: Any, tmp_path: Path, partitioned: bool
) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    if partitioned:
        with table.update_spec() as spec:
            spec.add_field("label", IdentityTransform(), "label")
    (tmp_path / "given").mkdir()
    for number in range(3):
        ids = range(100 * number, 100 * number + 100)
        pyarrow.parquet.write_table(
            pyarrow.table({"id": ids}), tmp_path / "given" / f"{number}.parquet"
        )
        for _ in range(2):
            apply_parquet(
                tmp_path / "given", rows_of, schema=SCHEMA, name="labels", out=tmp_path / "out",
                table=table, bolts=2, view="off", keep_results=True,
            )  # fmt: skip
        assert ids_in(table) == list(range(100 * number + 100))


def test_a_commit_of_others_is_no_harm(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = catalog.create_table("db.t", SCHEMA), catalog.load_table("db.t")
    other.append(pyarrow.table({"id": [-1], "label": ["#0"], "at": [None], "tags": [None]}, SCHEMA))
    run(tmp_path, table)
    assert ids_in(table) == list(range(-1, 1_000))


def test_what_does_not_fit_is_refused_before_any_work(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    with pytest.raises(ConfigError, match="its column 'id' is"):
        run(tmp_path, table, schema=SCHEMA.set(0, pyarrow.field("id", pyarrow.string())))
    with pytest.raises(ConfigError, match="can't be loaded"):
        run(tmp_path, "lake.db.nowhere")
    with pytest.raises(ConfigError, match="mode too"):
        run(tmp_path, table, mode="append")
    with pytest.raises(ConfigError, match="not a Table of pyiceberg"):
        run(tmp_path, 7)
    assert not (tmp_path / "out").exists()

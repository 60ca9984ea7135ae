"""What a function of keys may return, and what it does not see."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.delivery.pacers import RowTargets
from flowctl.errors import ConfigError, UnrunnableError
from flowctl_apply._job import Input, Job
from flowctl_apply._keys import KeyedJob, KeyedRows
from flowctl_apply._row_writer import RowWriter, Target

KEY = pyarrow.schema([("text", pyarrow.string()), ("number", pyarrow.int64())])
RESULT = pyarrow.schema([("label", pyarrow.string())])


def rows() -> KeyedRows:
    return KeyedRows(KEY, RESULT, ["id", "other"])


def batch_of(*texts: str | None) -> Batch:
    records = [Record(n, {"text": text, "number": n}) for n, text in enumerate(texts)]
    return Batch(records, Span("j", "p", 0, len(texts) - 1, 1), bolt="b1", attempt=1)


def same(batch: Batch) -> list[tuple[str]]:
    return [(record.value.text,) for record in batch]


def test_each_result_stands_beside_its_key() -> None:
    batch = batch_of("a", None, "c")
    made = rows().table([("A",), (None,), ("C",)], batch).to_pylist()
    assert made == [
        {"text": "a", "number": 0, "label": "A"},
        {"text": None, "number": 1, "label": None},
        {"text": "c", "number": 2, "label": "C"},
    ]


def test_a_rejected_key_has_no_result_and_moves_no_other() -> None:
    batch = batch_of("a", "b", "c")

    def label(batch: Batch) -> Any:
        for record in batch:
            if record.value.text == "b":
                batch.reject(record, "no")
            else:
                yield (record.value.text.upper(),)

    made = rows().table(label(batch), batch).to_pylist()
    assert [(row["text"], row["label"]) for row in made] == [("a", "A"), ("c", "C")]
    batch = batch_of("b")
    assert not rows().table(label(batch), batch).num_rows


@pytest.mark.parametrize("made", [[], [("A",)], [("A",), ("B",), ("C",)], None])
def test_rows_that_belong_to_no_key_or_to_several_end_the_run(made: Any) -> None:
    with pytest.raises(UnrunnableError, match=r"rows? for 2 keys .*one row for each key"):
        rows().table(made, batch_of("a", "b"))


@pytest.mark.parametrize(
    "asked",
    [
        lambda batch: [(record.value["id"],) for record in batch],
        lambda batch: [(record.value.id,) for record in batch],
        lambda batch: ((record.value["id"],) for record in batch),
        lambda batch: batch.to_arrow()["id"],
        lambda batch: batch.to_pandas()["id"],
        lambda batch: batch.to_pandas().id,
    ],
)
def test_a_column_outside_of_the_key_is_an_error_that_says_so(asked: Any) -> None:
    form, batch = rows(), batch_of("a")
    with (
        pytest.raises(UnrunnableError, match=r"'id', and with key= .*'text', 'number'.*add it to"),
        form.explained(),
    ):
        form.table(asked(batch), batch)


def test_a_target_by_a_column_outside_of_the_key_is_an_error_that_says_so() -> None:
    """Not a letter of each key, and no result."""
    by_id = RowTargets(lambda row: f"crm-{row['id']}")
    writer = RowWriter(None, None, rows(), cast("Target", None), by_id)
    with pytest.raises(UnrunnableError, match="target: it asked for the column 'id'"):
        list(writer._calls(batch_of("a")))


def test_what_a_function_that_has_worked_misses_is_something_else() -> None:
    form, batch = rows(), batch_of("a")
    with pytest.raises(KeyError, match="nothing"), form.explained():
        raise KeyError("nothing")
    with form.explained():
        form.table([("A",)], batch)
    with pytest.raises(KeyError, match="id"), form.explained():
        raise KeyError("id")  # of an answer, perhaps
    pickle.loads(pickle.dumps(form)).table([("A",)], batch)


def test_a_job_with_a_key_and_one_without_do_not_share_a_name(tmp_path: Path) -> None:
    how: dict[str, Any] = {"name": "labels", "out": str(tmp_path)}
    keyed = KeyedJob(same, RESULT, KEY, ["id"], **how)
    Job(same, keyed.schema, **how).begin(Input("rows", ["in.parquet"], columns=KEY.names))
    with pytest.raises(ConfigError, match=r"key: 'labels' in .* was begun without a key"):
        keyed.known()

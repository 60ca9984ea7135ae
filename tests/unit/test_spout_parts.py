"""What a spout takes as its parts: a producer, bolts, a checkpoint; and what it says to others."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from flowctl import FlowControlSpout, Interrupted, LocalBolts, ManualSpout, Records, Settings
from flowctl.core.records import Checkpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.instrumentation.summary import IN_MEMORY, lines
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_apply import Applied
from flowctl_http import BulkSink, HttpSink
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink
from tests.runtime_parts import ListProducer, Witness, a_spout
from tests.unit.test_view_plain import REPORT


def test_a_spout_takes_an_iterable_as_records() -> None:
    def values() -> Iterator[int]:
        yield 1

    for given in ([1], (1,), range(1, 2), values, values()):
        producer = a_spout(producer=given).producer
        assert isinstance(producer, Records)
        producer.open(Checkpoint())
        chunk = producer.poll(9)
        assert chunk is not None and list(chunk.records) == [Record(0, 1)]
    own = ListProducer(3)
    assert a_spout(producer=own).producer is own


def test_a_spout_whose_producer_is_replaced_takes_an_iterable_too() -> None:
    done: list[Any] = []
    job = a_spout(bolts=LocalBolts(lambda batch: done.extend(r.value for r in batch), count=1))
    job.producer = ["x"]
    assert job.run(view="off").records_acked == 1
    assert done == ["x"]


class Halfway:
    """Was meant as a producer."""

    def partitions(self) -> list[str]:
        return ["p"]

    def poll(self, max_records: int) -> None:
        return None

    def __iter__(self) -> Iterator[int]:
        return iter([1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Halfway(), "Halfway is not a producer: it has no open(), close()."),
        (7, "int is not a producer: it has no partitions(), open(), poll(), close()."),
        (None, "None is not a producer"),
        (ListProducer, "ListProducer is a class. Give an instance: ListProducer(…)."),
        ("logs/*.log", "flowctl_files.TextLines(path)"),
        ({1, 2}, "no order"),
    ],
)
def test_what_is_not_a_producer(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_spout(producer=given)
    assert caught.value.field == "producer"
    assert said in str(caught.value)


def load(batch: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (load, "a function does not run bolts: it has no listen_host()"),
        (load, "LocalBolts(load, count=4) or SparkBolts(load)"),
        (lambda batch: None, "LocalBolts(load, count=4)"),
        (LocalBolts, "is a class"),
        (3, "int does not run bolts: it has no listen_host(), start(), stop(), count."),
    ],
)
def test_what_is_not_bolts(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_spout(bolts=given)
    assert caught.value.field == "bolts"
    assert said in str(caught.value)


@pytest.mark.parametrize("given", [3, None, "", "a\nb", "x" * 201])
def test_what_can_not_name_a_job(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"name: .* can't name a job"):
        FlowControlSpout(name=given, producer=[1], bolts=LocalBolts(load, count=1))


@pytest.mark.parametrize("given", ["2", 2.0, True, 0, -1, None])
@pytest.mark.parametrize("field", ["count", "slots"])
def test_what_is_not_a_count(field: str, given: Any) -> None:
    arguments: Any = {"count": 1, field: given}
    with pytest.raises(ConfigError, match=rf"{field}: .* is not a count"):
        LocalBolts(load, **arguments)


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        ("dead_letter", 7, "int is not a dead letter: it has no dead_letter(), close()"),
        ("dead_letter", 7, "Give a directory, such as dead_letter='.flowctl/dead-letters'"),
        ("dead_letter", MemoryCheckpointStore, "MemoryCheckpointStore is a class"),
        ("listener", print, "is not a listener: it has no on_open(), on_emit()"),
        ("listener", Witness, "Witness is a class"),
    ],
)
def test_what_hears_and_keeps_nothing(field: str, given: Any, said: str) -> None:
    """Without a look it would be noticed when the first record is lost."""
    arguments: Any = {field: given}
    with pytest.raises(ConfigError) as caught:
        FlowControlSpout(name="j", producer=[1], bolts=LocalBolts(load, count=1), **arguments)
    assert caught.value.field == field
    assert said in str(caught.value)


@pytest.mark.parametrize("made", [FlowControlSpout, ManualSpout])
def test_a_directory_is_taken_as_the_dead_letter_as_behind_every_other_door(
    made: Any, tmp_path: Path
) -> None:
    bolts: Any = {"bolts": LocalBolts(load, count=1)} if made is FlowControlSpout else {}
    for directory in (tmp_path, str(tmp_path)):
        spout = made(name="j", producer=[1], dead_letter=directory, **bolts)
        assert spout.dead_letter.directory == tmp_path


def test_a_url_is_taken_as_the_checkpoint() -> None:
    from flowctl_redis import RedisCheckpointStore

    store = a_spout(checkpoint="redis://user:secret@localhost:6399/3").checkpoint
    assert isinstance(store, RedisCheckpointStore)
    assert store.address == "localhost:6399/3"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("localhost:6379/secret", 'checkpoint="redis://host:6379/0"'),
        ("redis://user:secret@a/b", "database is not a number"),
        (7, "int is not a checkpoint store: it has no acquire(), load()"),
        (MemoryCheckpointStore, "is a class"),
    ],
)
def test_what_is_not_a_checkpoint(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_spout(checkpoint=given)
    assert caught.value.field in ("checkpoint", "redis")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_a_checkpoint_it_is_in_files_here_and_a_run_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOWCTL_CHECKPOINTS")
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    job, view = a_spout(checkpoint=None), Witness()
    job.run(view=view)
    where = tmp_path / ".flowctl" / "checkpoints"
    assert view.messages[0].startswith("1 bolt · LocalBolts")
    assert view.messages[1] == f"the checkpoint is in {where}"
    kept = {path.suffix for path in where.iterdir()}
    assert kept == {".checkpoint", ".jsonl", ".lock", ".shown"}
    again = a_spout(checkpoint=None).run(view=view)  # as a new process would
    assert (again.records_acked, again.resumed_records) == (0, 1)


def test_without_a_checkpoint_it_is_in_the_redis_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://:secret@here:6379/0")
    assert repr(a_spout(checkpoint=None).checkpoint).startswith("RedisCheckpointStore(here:6379/0")


def test_where_nothing_can_be_written_it_is_in_memory_and_a_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWCTL_CHECKPOINTS", raising=False)
    (tmp_path / ".flowctl").write_text("a file in its place")
    job, view = a_spout(checkpoint=None), Witness()
    job.run(view=view)
    said = f"the checkpoint is {IN_MEMORY} ({tmp_path / '.flowctl'} is not a directory)"
    assert view.messages[1] == said
    again = job.run(view=view)  # the object still knows
    assert (again.records_acked, again.resumed_records) == (0, 1)


def fails_after_two() -> Iterator[int]:
    yield from (1, 2)
    raise OSError("disk")


@pytest.mark.parametrize("survives", [False, True])
def test_what_is_kept_in_memory_only_is_not_called_saved(survives: bool) -> None:
    store, view = MemoryCheckpointStore(), Witness()
    store.survives = survives
    with pytest.raises(SourceError) as caught:
        a_spout(producer=fails_after_two, checkpoint=store).run(view=view)
    report = view.report
    assert report is not None and report.error == str(caught.value)
    assert ("a new process starts over" in caught.value.remedy) is not survives
    assert ("checkpoint 2 records saved" in lines(report)[-1]) is survives
    assert (IN_MEMORY in lines(report)[-1]) is not survives


class InterruptedAtOnce(Witness):
    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if len(self.snapshots) == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("survives", "in_notebook"), [(False, False), (True, False), (True, True)])
def test_an_interruption_names_what_resumes_and_nothing_that_does_not(
    survives: bool, in_notebook: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a remedy that does not help.  ``saved in memory only, so a new process starts over;
    resume with: python ipykernel_launcher.py``."""
    store = MemoryCheckpointStore()
    store.survives = survives
    monkeypatch.delattr(sys, "ps1", raising=False)
    if in_notebook:  # as IPython does, also in a kernel
        monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    job = a_spout(producer=itertools.count(), bolts=LocalBolts(id, count=1), checkpoint=store)
    with pytest.raises(Interrupted) as caught:
        job.run(view=InterruptedAtOnce())
    said = str(caught.value)
    assert (IN_MEMORY in said) is not survives
    assert ("resume with: python" in said) is (survives and not in_notebook)
    assert ("run the cell again" in said) is in_notebook


def test_what_a_notebook_shows_of_a_job_fits_a_line_and_holds_no_secret() -> None:
    """Kind: a repr of all fields.  ``spout.run()`` as a cell's last line filled the screen."""
    url = "https://me:secret@host/secret?token=secret"
    spout = a_spout(checkpoint="redis://:secret@localhost:6379/0")
    manual = ManualSpout(name="j", producer=[1], checkpoint=None)
    shown = {
        repr(spout): "FlowControlSpout('j', Records, LocalBolts, RedisCheckpointStore)",
        repr(manual): "ManualSpout('j', Records, FileCheckpointStore)",
        repr(MemoryCheckpointStore()): "MemoryCheckpointStore(0 jobs)",
        repr(spout.checkpoint): "RedisCheckpointStore(localhost:6379/0, prefix='flowctl')",
        repr(REPORT): "Report(finished: 200000 records in 12.0 s, 200000 in all runs)",
        repr(SqlSink("postgresql://me:secret@host/db", table="t")): "SqlSink(table='t')",
        repr(HttpSink(url)): "HttpSink(host)",
        repr(BulkSink("https://me:secret@host", index="i")): "BulkSink(host)",
        repr(Applied(["file:///a"] * 9, 7, True, REPORT)): (
            "Applied(7 rows in 9 files, was_done=True)"
        ),
        repr(flow_sink(print, target="t")): "flow_sink(target='t')",
    }
    assert list(shown) == list(shown.values())


def test_a_url_without_the_adapter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flowctl_redis", None)
    with pytest.raises(ConfigError, match=r"flowctl-spark\[redis\]"):
        a_spout(checkpoint="redis://localhost")


def test_settings_may_be_a_dict_of_dotted_names() -> None:
    bolts = LocalBolts(print, count=1)
    spout = FlowControlSpout(name="j", producer=[1], bolts=bolts, settings={"tuple.records_max": 3})
    assert spout.settings == Settings().with_overrides({"tuple.records_max": 3})
    with pytest.raises(ConfigError, match=r"tuple\.record_max") as caught:
        FlowControlSpout(name="j", producer=[1], bolts=bolts, settings={"tuple.record_max": 3})
    assert "tuple.records_max" in caught.value.remedy
    with pytest.raises(ConfigError, match="tuple: no such setting"):
        FlowControlSpout(name="j", producer=[1], bolts=bolts, settings={"tuple": {"slots": 3}})


def test_settings_that_are_none_are_refused_with_the_words_that_work() -> None:
    given: Any = "tuple.records_max=500"
    with pytest.raises(ConfigError, match="settings: a str is not Settings") as caught:
        FlowControlSpout(name="j", producer=[1], bolts=LocalBolts(print, count=1), settings=given)
    assert "{'tuple.records_max': 500}" in caught.value.remedy


@pytest.mark.parametrize("view", [None, 5, "of"])
def test_what_is_no_view_is_refused_before_the_run(view: Any) -> None:
    spout = FlowControlSpout(
        name="job", producer=Records([1]), bolts=LocalBolts(lambda batch: None, count=1)
    )
    with pytest.raises(ConfigError, match=r"is not a view\. Use auto, live"):
        spout.run(view=view)


def test_a_checkpoint_that_can_only_be_in_memory_is_logged_and_refused_if_a_place_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kind: a nightly job that does everything each night, and nobody hears of it."""
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    monkeypatch.delenv("FLOWCTL_CHECKPOINTS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".flowctl").write_text("a file in its place")
    with structlog.testing.capture_logs() as logged:
        assert not a_spout(checkpoint=None).checkpoint.survives
    assert [event["event"] for event in logged] == ["checkpoint_in_memory"]
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(tmp_path / ".flowctl" / "here"))
    with pytest.raises(ConfigError, match=r"^FLOWCTL_CHECKPOINTS: .*Name another directory"):
        a_spout(checkpoint=None)


def test_no_directory_of_letters_is_an_empty_text_and_a_home_is_found() -> None:
    with pytest.raises(ConfigError, match="dead_letter: it is empty"):
        a_spout(dead_letter="")
    letters = a_spout(dead_letter="~/letters").dead_letter
    assert letters.directory == Path.home() / "letters"

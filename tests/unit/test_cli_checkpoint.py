"""``flowctl checkpoint``: list, show, rewind, clear."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

import fakeredis
import pytest
from click.testing import CliRunner, Result

from flowctl import FileCheckpointStore, adapters
from flowctl.cli.checkpoint import SHOWN_MAX, checkpoint
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError, FencedError, JobError
from flowctl.instrumentation.summary import resume_line
from flowctl_redis import RedisCheckpointStore

_Store: TypeAlias = RedisCheckpointStore | FileCheckpointStore

_CHECKPOINT = Checkpoint(
    {
        "a.log": PartitionCheckpoint(
            (12345, 57), 5702, (AckedRange((1 << 20, 60), (1 << 21, 86), 27),)
        ),
        "b.log": PartitionCheckpoint(),
    },
)


@pytest.fixture(autouse=True)
def _epochs_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs begin at the time of day; here at 1, so that they can be compared."""
    clock = SimpleNamespace(time=lambda: 0, time_ns=time.time_ns)
    monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", clock)
    monkeypatch.setattr("flowctl.runtime.memory_store.time", clock)


@pytest.fixture(params=["files", "redis"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _Store:
    """Job "etl" is saved, and the command looks into the same directory or (fake) server."""
    store: _Store = FileCheckpointStore()
    if request.param == "redis":
        store = request.getfixturevalue("redis_store")
    else:
        monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    store.save("etl", _CHECKPOINT, epoch=store.acquire("etl"))
    return store


@pytest.fixture
def redis_store(monkeypatch: pytest.MonkeyPatch) -> RedisCheckpointStore:
    server = fakeredis.FakeServer()

    def make(url: str | None) -> RedisCheckpointStore:
        assert url == "redis://here"
        return RedisCheckpointStore(client=fakeredis.FakeRedis(server=server))

    adapter = SimpleNamespace(RedisCheckpointStore=make)
    monkeypatch.setattr("flowctl.runtime.parts.load_adapter", lambda *_: adapter)
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://here")
    return make("redis://here")


def _run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(checkpoint, list(arguments), input=answer, catch_exceptions=False)


def _failure(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _run(*arguments)
    return caught.value


def test_show(store: _Store) -> None:
    lines = _run("show", "etl").output.splitlines()
    assert lines[0].startswith("etl · 5 729 records · 2 partitions · saved ")
    assert lines[0].endswith(" ago · epoch 1")
    assert lines[2].split() == ["a.log", "12345:57", "5", "702", "1", "range,", "27", "records"]
    assert lines[3].split() == ["b.log", "-", "0", "-"]
    assert len(lines) == 4


def test_show_json(store: _Store) -> None:
    tree = json.loads(_run("show", "etl", "--json").output)
    assert tree["epoch"] == 1 and tree["records"] == 5729
    assert tree["saved_at_unix_ms"] == store.inspect("etl").saved_at_unix_ms
    assert tree["partitions"]["a.log"] == {
        "position": [12345, 57],
        "records": 5702,
        "acked": [{"first": [1 << 20, 60], "last": [1 << 21, 86], "records": 27}],
    }


def test_redriven_letters_are_not_counted_twice(store: _Store) -> None:
    redriven = {"redrive:1700000000000": PartitionCheckpoint(1, 2)}
    both = Checkpoint(dict(_CHECKPOINT.partitions) | redriven)
    store.save("etl", both, epoch=store.acquire("etl"))
    assert _run("show", "etl").output.startswith("etl · 5 729 records (2 redriven) · 3 partitions")
    tree = json.loads(_run("show", "etl", "--json").output)
    assert tree["records"] == 5729 and tree["redriven"] == 2
    assert resume_line(both) == resume_line(_CHECKPOINT)


def test_show_an_unknown_job_names_those_there_are(store: _Store) -> None:
    error = _failure("show", "elt")
    assert "elt" in error.problem and "etl" in error.remedy and error.exit_code == 2


def test_list(store: _Store) -> None:
    assert _run("list").output.startswith("etl  5 729 records · 2 partitions · saved ")
    store.clear("etl")
    assert _run("list").output == "No checkpoints.\n"
    assert json.loads(_run("list", "--json").output) == []


@pytest.mark.parametrize("command", ["list", "show"])
def test_without_a_name_all_jobs_are_listed_the_newest_first(store: _Store, command: str) -> None:
    for job in ("zoo", "middle", "ark"):
        until_the_clock_moves()
        store.save(job, _CHECKPOINT, epoch=store.acquire(job))
    said = _run(command).output
    assert [line.split()[0] for line in said.splitlines()] == ["ark", "middle", "zoo", "etl"]
    told = json.loads(_run(command, "--json").output)
    assert [row["job"] for row in told] == ["ark", "middle", "zoo", "etl"]


def until_the_clock_moves() -> None:
    """Stores keep milliseconds."""
    now_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now_ms:
        pass


@pytest.mark.parametrize("option", [["--partition", "a.log"], ["--all"]])
def test_partitions_are_those_of_a_job(store: _Store, option: list[str]) -> None:
    assert "of which job" in str(_failure("show", *option))


def test_list_goes_on_past_an_unreadable_job(store: _Store) -> None:
    store.save("older", _CHECKPOINT, epoch=store.acquire("older"))
    if isinstance(store, FileCheckpointStore):
        path = store.directory / "older.checkpoint"
        path.write_bytes(path.read_bytes().replace(b"checkpoint 1", b"checkpoint 9"))
    else:
        store._client.hset("flowctl:{older}", "schema", "9")
    rows = {row["job"]: row for row in json.loads(_run("list", "--json").output)}
    assert rows["etl"]["partitions"] == 2
    assert "version 9" in rows["older"]["error"]
    assert "version 9" in _run("list").output


def test_rewind(store: _Store) -> None:
    result = _run("rewind", "etl", "--partition", "a.log", "--to", "[12000, 50]", "--yes")
    assert "12000:50" in result.output
    assert store.load("etl").partitions["a.log"] == PartitionCheckpoint((12000, 50))
    with pytest.raises(FencedError):
        store.save("etl", _CHECKPOINT, epoch=1)
    out = _run("rewind", "etl", "--partition", "a.log", "--start", "--yes", "--json").stdout
    told = {"job": "etl", "partition": "a.log", "position": None, "epoch": 3, "sinks": {}}
    assert json.loads(out) == told
    assert store.load("etl").partitions["a.log"] == PartitionCheckpoint()


def test_rewind_says_that_the_count_begins_again(store: _Store) -> None:
    """Otherwise a job that is done counts fewer records than its source has, and says not why."""
    rewind = ("rewind", "etl", "--partition", "a.log", "--yes")
    assert "they count as 0" in _run(*rewind, "--to", "[12000, 50]").output
    again = _run(*rewind, "--to", "[12000, 50]").output  # it is there already
    assert "count as" not in again
    assert "count as" not in _run(*rewind, "--start").output  # there are none


def test_rewound_rows_of_a_file_are_counted_by_their_numbers(store: _Store) -> None:
    """5,000 rows up to number 4,999: so there are 1,001 up to number 1,000."""
    done = Checkpoint({"a.parquet": PartitionCheckpoint(4999, 5000, end=4999)})
    store.save("rows", done, epoch=store.acquire("rows"))
    said = _run("rewind", "rows", "--partition", "a.parquet", "--to", "1000", "--yes").output
    assert "count as" not in said
    assert store.load("rows").partitions["a.parquet"] == PartitionCheckpoint(1000, 1001)


@pytest.mark.parametrize("records", [4999, 5001, 0])
def test_positions_that_do_not_count_their_records_are_not_counted(
    store: _Store, records: int
) -> None:
    """Offsets of a topic have gaps, and may begin anywhere."""
    done = Checkpoint({"t/0": PartitionCheckpoint(4999, records)})
    store.save("topic", done, epoch=store.acquire("topic"))
    said = _run("rewind", "topic", "--partition", "t/0", "--to", "1000", "--yes").output
    assert "they count as 0" in said
    assert store.load("topic").partitions["t/0"] == PartitionCheckpoint(1000, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["etl", "--partition", "a.log"], "--to"),
        (["etl", "--partition", "a.log", "--to", "1", "--start"], "--to"),
        (["etl", "--partition", "a.log", "--to", "{}"], "not a position"),
        (["etl", "--partition", "a.log", "--to", "[99999, 1]"], "ahead"),
        (["etl", "--partition", "a.log", "--to", "7"], "not a position"),
        (["etl", "--partition", "c.log", "--start"], "a.log, b.log"),
        (["elt", "--partition", "a.log", "--start"], "elt"),
    ],
)
def test_rewind_refuses(store: _Store, arguments: list[str], says: str) -> None:
    assert says in str(_failure("rewind", *arguments, "--yes"))
    assert store.load("etl") == _CHECKPOINT


def test_clear(store: _Store) -> None:
    assert "forgotten" in _run("clear", "etl", "--yes").output
    assert store.jobs() == []
    assert "Nothing was stored" in _run("clear", "etl", "--yes").output
    assert json.loads(_run("clear", "etl", "--yes", "--json").stdout)["cleared"] is False


def test_clear_says_that_it_stops_a_driver_and_so_does_the_driver(
    store: _Store,
) -> None:
    epoch = store.inspect("etl").epoch
    assert "etl is forgotten. A running driver will stop." in _run("clear", "etl", "--yes").stdout
    with pytest.raises(
        FencedError, match="another driver has started, or somebody cleared"
    ) as caught:
        store.save("etl", _CHECKPOINT, epoch=epoch)
    assert "start the job again" in caught.value.remedy
    begun = store.acquire("new")  # a driver that has saved nothing yet
    text = "Nothing was stored for new. A running driver will stop."
    assert text in _run("clear", "new", "--yes").stdout
    with pytest.raises(FencedError):
        store.save("new", _CHECKPOINT, epoch=begun)
    assert "will stop" not in _run("clear", "nobody", "--yes").stdout


def test_a_misspelt_name_is_not_cleared_in_silence(store: _Store) -> None:
    assert _run("clear", "elt", "--yes").output == "Nothing was stored for elt. Known: etl.\n"


@pytest.mark.parametrize(
    "command", [["clear", "etl"], ["rewind", "etl", "--partition", "a.log", "--start"]]
)
def test_it_asks_first(store: _Store, command: list[str]) -> None:
    refused = _run(*command, answer="n\n")
    assert "Nothing was changed" in refused.stderr
    assert store.load("etl") == _CHECKPOINT
    with pytest.raises(ConfigError, match="--yes"):
        _run(*command, answer="")
    assert store.load("etl") == _CHECKPOINT
    _run(*command, answer="y\n")
    assert store.load("etl") != _CHECKPOINT


def test_no_directory_is_made_only_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    monkeypatch.delenv("FLOWCTL_CHECKPOINTS")
    assert str(tmp_path / ".flowctl" / "checkpoints") in str(_failure("list"))
    assert "elsewhere" in str(_failure("list", "--dir", "elsewhere"))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_named_comes_before_a_redis(
    tmp_path: Path, redis_store: RedisCheckpointStore
) -> None:
    named = FileCheckpointStore(tmp_path / "named")
    named.save("here", _CHECKPOINT, epoch=named.acquire("here"))
    assert "here" in _run("list", "--dir", str(tmp_path / "named")).output
    assert "here" not in _run("list").output


def test_a_position_is_checked_before_anything_is_asked(store: _Store) -> None:
    for arguments in (["--to", "7"], ["--to", "99999:1"]):
        error = _failure("rewind", "etl", "--partition", "a.log", *arguments)
        assert error.exit_code == 2 and "12345:57" in str(error)


def test_a_byte_and_a_line_that_do_not_belong_together_are_refused(
    store: _Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["rewind", "etl", "--partition", "a.log", "--to", "4000:20", "--yes"]
    assert (
        "could not check whether 4000:20 is where a line of a.log begins" in _run(*command).stderr
    )
    store.clear("etl")
    store.save("etl", _CHECKPOINT, epoch=store.acquire("etl"))
    (tmp_path / "a.log").write_text(("x" * 199 + "\n") * 55 + "y" * 1344 + "\nz\n")
    error = _failure(*command)
    assert "line 21 begins at byte 4000" in str(error) and "Line 20 is 3800:20." in error.remedy
    assert store.load("etl") == _CHECKPOINT
    command[5] = "3800:20"
    assert _run(*command).stderr == ""
    assert store.load("etl").partitions["a.log"].position == (3800, 20)


def test_a_partition_is_found_as_show_prints_it(store: _Store) -> None:
    name = "x\x1b[2J\ny.log"
    saved = Checkpoint({name: PartitionCheckpoint(5, 5)})
    store.save("odd", saved, epoch=store.acquire("odd"))
    output = _run("show", "odd").output
    assert "\x1b" not in output
    printed = output.splitlines()[2].split()[0]
    assert printed == "x\\x1b[2J\\ny.log"
    _run("rewind", "odd", "--partition", printed, "--to", "3", "--yes")
    assert store.load("odd").partitions[name].position == 3


# -- sinks -----------------------------------------------------------------------------------

_SINKS = """
class Sink:
    def __init__(self, forgot=True):
        self.calls, self.forgot = [], forgot
    def forget(self, job, partition=None, above=None):
        self.calls.append((job, partition, above))
        return self.forgot
class Whole:
    def forget(self, job):
        pass
class Failing:
    def forget(self, job, partition=None, above=None):
        raise OSError("no route")
sink, other, empty = Sink(), Sink(), Sink(False)
whole, failing = Whole(), Failing()
number = 7
def make():
    return other
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sinks_of_job.py").write_text(_SINKS)
    yield tmp_path
    sys.modules.pop("sinks_of_job", None)


@pytest.mark.usefixtures("job")
class TestSinks:
    def test_clear_has_them_forget(self, store: _Store) -> None:
        said = _run("clear", "etl", "--sink", "sinks_of_job.py", "--sink", "sinks_of_job:make",
                    "--yes").output  # fmt: skip
        module = sys.modules["sinks_of_job"]
        assert module.sink.calls == module.other.calls == [("etl", None, None)]
        assert said.count("Delete the rows") == 2 and "skips" not in said
        assert store.jobs() == []
        # Again, as after a sink that failed: the checkpoint is gone, the sink still forgets.
        _run("clear", "etl", "--sink", "sinks_of_job.py", "--yes")
        assert len(module.sink.calls) == 2

    def test_rewind_has_them_forget_what_is_above(self, store: _Store) -> None:
        command = ["rewind", "etl", "--partition", "a.log", "--sink", "sinks_of_job.py:sink"]
        _run(*command, "--to", "12000:50", "--yes")
        out = json.loads(_run(*command, "--start", "--yes", "--json").output)
        assert out["sinks"] == {"sinks_of_job.py:sink": True}
        calls = sys.modules["sinks_of_job"].sink.calls
        assert calls == [("etl", "a.log", (12000, 50)), ("etl", "a.log", None)]

    @pytest.mark.parametrize(
        "command", [["clear", "etl"], ["rewind", "etl", "--partition", "a.log", "--start"]]
    )
    def test_without_one_it_says_what_a_sink_with_a_ledger_will_do(
        self, store: _Store, command: list[str]
    ) -> None:
        said = _run(*command, "--yes").output.splitlines()[-1]
        assert (
            "An SqlSink skips rows that it has already written" in said
            and "--sink FILE.py:SINK" in said
        )
        quiet = _run(*command, "--yes", "--json")
        assert json.loads(quiet.stdout)["sinks"] == {} and "skips" in quiet.stderr

    def test_a_sink_that_remembered_nothing_is_told(self, store: _Store) -> None:
        said = _run("clear", "etl", "--sink", "sinks_of_job.py:empty", "--yes").output
        assert "remembered nothing of etl" in said

    @pytest.mark.parametrize(
        ("sink", "says"),
        [
            ("sinks_of_job.py:number", "no forget(job). There is: sinks_of_job.py:empty"),
            ("sinks_of_job.py:Sink", "no forget(job)"),
            ("sinks_of_job.py:snik", "has no 'snik'"),
            ("nothing.py:sink", "no file nothing.py"),
            (".", "neither a Python file nor the name of a module"),
            ("", "neither a Python file nor the name of a module"),
        ],
    )
    def test_what_is_no_sink_is_refused_and_nothing_is_changed(
        self, store: _Store, sink: str, says: str
    ) -> None:
        error = _failure("clear", "etl", "--sink", sink, "--yes")
        assert says in str(error) and "--sink" in str(error) and error.exit_code == 2
        assert store.load("etl") == _CHECKPOINT

    def test_one_that_forgets_only_whole_jobs(self, store: _Store) -> None:
        sink = ("--sink", "sinks_of_job.py:whole", "--yes")
        error = _failure("rewind", "etl", "--partition", "a.log", "--start", *sink)
        assert "single partition" in str(error)
        assert store.load("etl") == _CHECKPOINT
        _run("clear", "etl", *sink)

    def test_one_that_fails_says_what_is_done_and_what_is_not(self, store: _Store) -> None:
        with pytest.raises(JobError, match="did not forget etl: OSError: no route") as caught:
            _run("clear", "etl", "--sink", "sinks_of_job.py:failing", "--yes")
        assert "same command again" in caught.value.remedy


def test_a_missing_adapter_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'flowctl-spark\[redis\]'"):
        adapters.load_adapter("flowctl_no_such_adapter", "redis")
    assert "flowctl_no_such_adapter" not in sys.modules


def _save_many(store: _Store) -> None:
    """5,000 files, most of them read to their ends: more than are kept a field each."""
    states = {f"in/{n:04}.log": PartitionCheckpoint((n, 1), 1, end=(n + 9, 1)) for n in range(5000)}
    states["in/3000.log"] = PartitionCheckpoint((3000, 1), 1)
    states["in/4000.log"] = PartitionCheckpoint(None, 0, (AckedRange((7, 2), (7, 2), 1),))
    store.save("many", Checkpoint(states), epoch=store.acquire("many"))


def test_show_of_many_partitions_is_a_screen_of_those_that_are_not_done(
    store: _Store,
) -> None:
    _save_many(store)
    lines = _run("show", "many").output.splitlines()
    assert lines[0].startswith("many · 5 000 records · 5 000 partitions · saved ")
    assert [line.split()[0] for line in lines[2:5]] == ["in/4000.log", "in/3000.log", "in/0000.log"]
    assert len(lines) == 2 + SHOWN_MAX + 1
    assert lines[-1].startswith(f"… and {5000 - SHOWN_MAX:,} ".replace(",", " "))
    assert "4 998 of 5 000 are read to their ends" in lines[-1]
    assert len(_run("show", "many", "--all").output.splitlines()) == 2 + 5000
    tree = json.loads(_run("show", "many", "--json").output)
    assert len(tree["partitions"]) == 5000
    assert tree["partitions"]["in/0001.log"]["end"] == [10, 1]


def test_show_of_some_partitions(store: _Store) -> None:
    _save_many(store)
    lines = _run("show", "many", "--partition", "in/12*.log", "--all").output.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [f"in/12{n:02}.log" for n in range(100)]
    tree = json.loads(_run("show", "many", "--partition", "in/0007.log", "--json").output)
    assert list(tree["partitions"]) == ["in/0007.log"]
    error = _failure("show", "many", "--partition", "out/*")
    assert "out/*" in error.problem


def test_rewind_of_a_packed_partition(redis_store: RedisCheckpointStore) -> None:
    store = redis_store
    _save_many(store)
    assert store._client.hget("flowctl:{many}", "p:in/0001.log") is None, "it is not packed"
    _run("rewind", "many", "--partition", "in/0001.log", "--start", "--yes")
    assert store.load("many").partitions["in/0001.log"] == PartitionCheckpoint()
    assert "in/0001.log" in _run("show", "many").output

"""``flowctl checkpoint``: list, show, rewind, clear."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import fakeredis
import pytest
from click.testing import CliRunner, Result

from flowctl.cli import adapters
from flowctl.cli.checkpoint import checkpoint, parse_position
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError, FencedError
from flowctl_redis import RedisCheckpointStore

_CHECKPOINT = Checkpoint(
    {
        "a.log": PartitionCheckpoint(
            (12345, 57), 5702, (AckedRange((1 << 20, 60), (1 << 21, 86), 27),)
        ),
        "b.log": PartitionCheckpoint(),
    },
    {"b2": 19.0, "b1": 20.5},
)


@pytest.fixture(autouse=True)
def _epochs_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs begin at the server's time of day; here at 1, so that they can be compared."""
    clock = SimpleNamespace(time=lambda: 0)
    monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", clock)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RedisCheckpointStore:
    """Job "etl" is saved, and the command talks to the same (fake) server."""
    server = fakeredis.FakeServer()

    def make(url: str | None) -> RedisCheckpointStore:
        assert url == "redis://here"
        return RedisCheckpointStore(client=fakeredis.FakeRedis(server=server))

    monkeypatch.setattr(
        adapters, "load_adapter", lambda *_: SimpleNamespace(RedisCheckpointStore=make)
    )
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://here")
    store = make("redis://here")
    store.save("etl", _CHECKPOINT, epoch=store.acquire("etl"))
    return store


def _run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(checkpoint, list(arguments), input=answer, catch_exceptions=False)


def _failure(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _run(*arguments)
    return caught.value


def test_show(store: RedisCheckpointStore) -> None:
    lines = _run("show", "etl").output.splitlines()
    assert lines[0].startswith("etl · 5 729 records · 2 partitions · saved ")
    assert lines[0].endswith(" ago · epoch 1")
    assert lines[2].split() == ["a.log", "12345:57", "5", "702", "1", "range,", "27", "records"]
    assert lines[3].split() == ["b.log", "-", "0", "-"]
    assert lines[4] == "windows  b1 20.5, b2 19"


def test_show_json(store: RedisCheckpointStore) -> None:
    tree = json.loads(_run("show", "etl", "--json").output)
    assert tree["epoch"] == 1 and tree["records"] == 5729
    assert tree["saved_at_unix_ms"] == store.inspect("etl").saved_at_unix_ms
    assert tree["partitions"]["a.log"] == {
        "position": [12345, 57],
        "records": 5702,
        "acked": [{"first": [1 << 20, 60], "last": [1 << 21, 86], "records": 27}],
    }


def test_show_an_unknown_job_names_those_there_are(store: RedisCheckpointStore) -> None:
    error = _failure("show", "elt")
    assert "elt" in error.problem and "etl" in error.remedy and error.exit_code == 2


def test_list(store: RedisCheckpointStore) -> None:
    assert _run("list").output.startswith("etl  5 729 records · 2 partitions · saved ")
    store.clear("etl")
    assert _run("list").output == "No checkpoints.\n"
    assert json.loads(_run("list", "--json").output) == []


def test_list_goes_on_past_an_unreadable_job(store: RedisCheckpointStore) -> None:
    store.save("older", _CHECKPOINT, epoch=store.acquire("older"))
    store._client.hset("flowctl:{older}", "schema", "9")
    rows = {row["job"]: row for row in json.loads(_run("list", "--json").output)}
    assert rows["etl"]["partitions"] == 2
    assert "version 9" in rows["older"]["error"]
    assert "version 9" in _run("list").output


def test_rewind(store: RedisCheckpointStore) -> None:
    result = _run("rewind", "etl", "--partition", "a.log", "--to", "[12000, 50]", "--yes")
    assert "12000:50" in result.output
    assert store.load("etl").partitions["a.log"] == PartitionCheckpoint((12000, 50))
    with pytest.raises(FencedError):
        store.save("etl", _CHECKPOINT, epoch=1)
    out = _run("rewind", "etl", "--partition", "a.log", "--start", "--yes", "--json").output
    assert json.loads(out) == {"job": "etl", "partition": "a.log", "position": None, "epoch": 3}
    assert store.load("etl").partitions["a.log"] == PartitionCheckpoint()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["etl", "--partition", "a.log"], "--to"),
        (["etl", "--partition", "a.log", "--to", "1", "--start"], "--to"),
        (["etl", "--partition", "a.log", "--to", "{}"], "no position"),
        (["etl", "--partition", "a.log", "--to", "[99999, 1]"], "ahead"),
        (["etl", "--partition", "a.log", "--to", "7"], "another kind"),
        (["etl", "--partition", "c.log", "--start"], "a.log, b.log"),
        (["elt", "--partition", "a.log", "--start"], "elt"),
    ],
)
def test_rewind_refuses(store: RedisCheckpointStore, arguments: list[str], says: str) -> None:
    assert says in str(_failure("rewind", *arguments, "--yes"))
    assert store.load("etl") == _CHECKPOINT


def test_clear(store: RedisCheckpointStore) -> None:
    assert "forgotten" in _run("clear", "etl", "--yes").output
    assert store.jobs() == []
    assert "Nothing was stored" in _run("clear", "etl", "--yes").output
    assert json.loads(_run("clear", "etl", "--yes", "--json").output)["cleared"] is False


@pytest.mark.parametrize(
    "command", [["clear", "etl"], ["rewind", "etl", "--partition", "a.log", "--start"]]
)
def test_it_asks_first(store: RedisCheckpointStore, command: list[str]) -> None:
    refused = _run(*command, answer="n\n")
    assert "Nothing was changed" in refused.stderr
    assert store.load("etl") == _CHECKPOINT
    with pytest.raises(ConfigError, match="--yes"):
        _run(*command, answer="")
    assert store.load("etl") == _CHECKPOINT
    _run(*command, answer="y\n")
    assert store.load("etl") != _CHECKPOINT


def test_no_server_is_started_only_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    assert str(tmp_path) in str(_failure("list"))
    assert list(tmp_path.iterdir()) == []


def test_positions_as_json() -> None:
    texts = {
        "1234": 1234,
        "-1.5": -1.5,
        "[1234, 57]": (1234, 57),
        '"key"': "key",
        '["a", null]': ("a", None),
    }
    for text, position in texts.items():
        assert parse_position(text) == position
    for text in ("", "key", "true", "null", "{}", "[[1]]", "[true]"):
        with pytest.raises(ConfigError, match="--to"):
            parse_position(text)


def test_a_missing_adapter_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r'pip install "flowctl-spark\[redis\]"'):
        adapters.load_adapter("flowctl_no_such_adapter", "redis")
    assert "flowctl_no_such_adapter" not in sys.modules

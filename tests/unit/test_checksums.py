"""What is stored and decides what is done: one flipped bit never passes for other content.

The kind: a stored value is read as it was written, or refused by name; one of an older version,
which has no checksum, is read as before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointCorruptError, FencedError, FlowctlError, UnrunnableError
from flowctl.runtime.receipts import Entry, Segment
from flowctl_apply._places import LocalPlace
from flowctl_apply._results import Description, Finished, ResultFile, Results
from flowctl_redis import RedisCheckpointStore
from tests.sql_parts import new_sink, query, write

RECEIPTS = (b'{"file":"part-1.parquet","rows":3,"bytes":512}', b"\xff\x00")
SEGMENT = Segment(7, "aa", 1, (Entry("a.parquet", 0, 10, 10, RECEIPTS), Entry("b", 5, 7, 2)))
BASE = Segment(7, "aa", 0, (Entry("a.parquet", 10, 19, 9),), is_base=True)
DESCRIPTION = Description(
    name="scores", run="ab12", schema="id: int64", source="s", fn="f", paths=["a.parquet"],
    files={"a.parquet": "1 19"},
)  # fmt: skip
FINISHED = Finished([ResultFile("part-1.parquet", 3, 512)], 3, 19, (7, "aa"))


def flips(data: bytes, every: int = 7) -> Iterator[bytes]:
    for bit in range(0, 8 * len(data), every):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def passes(read: Callable[[], Any], right: Any) -> bool:
    """Whether something else than ``right`` is read."""
    try:
        return bool(read() != right)
    except FlowctlError:
        return False


@pytest.fixture
def results(tmp_path: Path) -> Results:
    made = Results(LocalPlace(str(tmp_path)), "scores")
    made.begin(DESCRIPTION)
    made.manifest.append(BASE)
    made.manifest.append(SEGMENT)
    made.finish(FINISHED)
    return made


def read_all(results: Results) -> Any:
    return list(results.manifest.segments()), results.description(), results.finished()


@pytest.mark.parametrize("kind", ["log/*.jsonl", "bases/*.jsonl", "job.json", "finished.json"])
def test_a_flipped_bit_in_a_file_of_a_job_of_apply_is_refused(
    results: Results, tmp_path: Path, kind: str
) -> None:
    right = read_all(results)
    assert right == ([BASE, SEGMENT], DESCRIPTION, FINISHED)
    (path,) = tmp_path.glob(f"_flowctl/scores/{kind}")
    whole = path.read_bytes()
    for damaged in flips(whole):
        path.write_bytes(damaged)
        assert not passes(lambda: read_all(results), right), damaged


def test_a_segment_under_the_name_of_another_one_is_refused(
    results: Results, tmp_path: Path
) -> None:
    (path,) = tmp_path.glob("_flowctl/scores/log/*.jsonl")
    path.rename(path.with_name(path.name.replace("00000001.", "00000002.")))
    with pytest.raises(CheckpointCorruptError, match=r"00000002\.jsonl .* checksum"):
        results.manifest.segments()


@pytest.mark.parametrize("name", ["job.json", "finished.json"])
@pytest.mark.parametrize("data", [b"\xff\xfe{}", b'{"version":1,"name":"\xff"}', b"", b"[]"])
def test_a_file_that_is_no_text_is_named(
    results: Results, tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / "_flowctl/scores" / name).write_bytes(data)
    with pytest.raises(CheckpointCorruptError, match=f"scores/{name}"):
        read_all(results)


def test_files_of_the_version_before_have_no_checksums_and_are_read(tmp_path: Path) -> None:
    old = tmp_path / "_flowctl/scores"
    (old / "bases").mkdir(parents=True)
    (old / "bases/00000000000000000007-aa-00000000.jsonl").write_text(
        '{"version":1,"entries":1}\n{"partition":"p","start":0,"stop":9,"records":9}\n'
    )
    (old / "job.json").write_text(
        '{"name":"scores","run":"1","schema":"","source":"","fn":"","paths":[],"version":1}'
    )
    (old / "finished.json").write_text('{"files":[],"rows":0,"rows_in":9,"version":1}')
    segments, description, finished = read_all(Results(LocalPlace(str(tmp_path)), "scores"))
    assert segments == [Segment(7, "aa", 0, (Entry("p", 0, 9, 9),), is_base=True)]
    assert description is not None and description.run == "1"
    assert finished is not None and (finished.rows_in, finished.base) == (9, None)


def test_a_segment_of_the_version_before_that_lacks_a_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "_flowctl/scores/bases/00000000000000000007-aa-00000000.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"version":1,"entries":2}\n{"partition":"p","start":0,"stop":9,"records":9}\n')
    with pytest.raises(CheckpointCorruptError, match="1 of 2 entries"):
        Results(LocalPlace(str(tmp_path)), "scores").manifest.segments()


@pytest.mark.parametrize("name", ["job.json", "finished.json"])
@pytest.mark.parametrize("version", [2, 99])
def test_a_file_without_its_checksum_or_of_a_later_version_is_refused(
    results: Results, tmp_path: Path, name: str, version: int
) -> None:
    path = tmp_path / "_flowctl/scores" / name
    text = path.read_text()
    path.write_text(
        "{" + text[text.index(",") + 1 :].replace('"version": 2', f'"version": {version}')
    )
    with pytest.raises(CheckpointCorruptError, match=f"version {version}"):
        read_all(results)


# -- Redis -------------------------------------------------------------------------------------

STATES = {
    "a.log": PartitionCheckpoint((17, 3), 3, (AckedRange((20, 4), (30, 6), 3),)),
    "b.log": PartitionCheckpoint(5, 6, (), 9, 4),
    "c.log": PartitionCheckpoint("x", 1),
}


def stored(states: dict[str, PartitionCheckpoint]) -> tuple[Any, RedisCheckpointStore, bytes]:
    client = fakeredis.FakeRedis()
    store = RedisCheckpointStore(client=client)
    store.save("job", Checkpoint(states), epoch=store.acquire("job"))
    return client, RedisCheckpointStore(client=client), b"flowctl:{job}"


def test_a_flipped_bit_in_a_checkpoint_in_redis_is_refused() -> None:
    client, store, key = stored(STATES)
    assert store.load("job") == Checkpoint(STATES)
    for name in STATES:
        field = f"p:{name}".encode()
        whole = client.hget(key, field)
        for damaged in flips(whole):
            client.hset(key, field, damaged)
            assert not passes(lambda: store.load("job"), Checkpoint(STATES)), damaged
        client.hset(key, field, whole)


@pytest.mark.parametrize("field", ["epoch", "revision", "blocks", "epoch_copy"])
def test_a_changed_number_in_redis_lets_no_older_driver_pass(field: str) -> None:
    """Nor is a position lost: what it decides fails by name, or is as it was."""
    states = {f"{n:05}.log": PartitionCheckpoint(n, n + 1) for n in range(2_500)}
    client, first, key = stored(states)
    old = first.acquire("job")
    second = RedisCheckpointStore(client=client)
    epoch = second.acquire("job")
    moved = {"a.log": PartitionCheckpoint(4, 5)}
    second.save("job", Checkpoint(moved), epoch=epoch)
    before = client.hgetall(key)
    for damaged in flips(before[field.encode()], every=1):
        client.hset(key, field, damaged)
        with pytest.raises((CheckpointCorruptError, FencedError)):
            first.save("job", Checkpoint({"a.log": PartitionCheckpoint(9, 9)}), epoch=old)
        assert not passes(lambda: second.load("job"), Checkpoint(states | moved)), damaged
        client.delete(key)
        client.hset(key, mapping=before)
    second.save("job", Checkpoint(moved), epoch=epoch)


def test_an_older_version_that_raised_the_epoch_without_its_copy_is_gone_on_with() -> None:
    client, store, key = stored(STATES)
    raised = client.hincrby(key, "epoch", 1)
    assert store.load("job") == Checkpoint(STATES)
    assert store.acquire("job") > raised
    client.hdel(key, "epoch_copy")
    assert store.acquire("job") > raised + 1


def test_a_checkpoint_under_the_name_of_another_partition_is_refused() -> None:
    client, store, key = stored(STATES)
    client.hset(key, b"p:c.log", client.hget(key, b"p:b.log"))
    with pytest.raises(CheckpointCorruptError, match=r"p:c\.log"):
        store.load("job")


def test_a_flipped_bit_in_a_block_of_partitions_is_refused() -> None:
    states = {f"{n:05}.log": PartitionCheckpoint(n, n + 1) for n in range(2_500)}
    client, store, key = stored(states)
    (field,) = [name for name in client.hkeys(key) if name.startswith(b"b:")][:1]
    whole = client.hget(key, field)
    client.hdel(key, *[name for name in client.hkeys(key) if name.startswith(b"p:")])
    right = store.load("job")
    assert right.partitions
    for damaged in flips(whole, every=211):
        client.hset(key, field, damaged)
        assert not passes(lambda: store.load("job"), right)


def test_a_block_under_the_number_of_another_one_is_refused() -> None:
    states = {f"{n:05}.log": PartitionCheckpoint(n, n + 1) for n in range(2_500)}
    client, store, key = stored(states)
    field = min(name for name in client.hkeys(key) if name.startswith(b"b:"))
    client.hset(key, b"b:77", client.hget(key, field))
    client.hset(key, b"blocks", b"78")
    with pytest.raises(CheckpointCorruptError, match="b:77"):
        store.load("job")


def test_values_in_redis_of_the_version_before_are_read() -> None:
    client, store, key = stored({"b.log": STATES["b.log"]})
    old = b"02" + b"%016x" % ((1 << 63) + 5) + b"|" + b"\x95\x05\x06\x90\x09\x04"
    client.hset(key, b"p:b.log", old)
    assert store.load("job") == Checkpoint({"b.log": STATES["b.log"]})
    client.hset(key, b"p:b.log", old.replace(b"\x95\x05\x06\x90\x09\x04", b"\x93\x05\x06\x90"))
    assert store.load("job") == Checkpoint({"b.log": PartitionCheckpoint(5, 6)})


@pytest.mark.parametrize("column", ["first_position", "last_position", "crc"])
def test_a_flipped_bit_in_what_sql_sink_remembers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Whatever is written next: neither is a row left out, nor written twice."""
    monkeypatch.chdir(tmp_path)
    sink = new_sink()
    write(sink, 3, 4, 5)
    write(sink, 8, 9)
    sink.close()
    ((whole,),) = query(f"SELECT {column} FROM flowctl_spans ORDER BY first_position LIMIT 1")
    was = whole if isinstance(whole, bytes) else whole.to_bytes(4, "big")
    for damaged in flips(was, every=5):
        stored = damaged if isinstance(whole, bytes) else int.from_bytes(damaged, "big")
        with sqlite3.connect("t.db") as connection:
            connection.execute(
                f"UPDATE flowctl_spans SET {column} = ? WHERE {column} = ?", (stored, whole)
            )
        for numbers in ((3, 4, 5), (6, 7), (1, 2)):
            with pytest.raises(UnrunnableError, match=r"'job', partition 'p' has another checksum"):
                write(new_sink(), *numbers)
        with sqlite3.connect("t.db") as connection:
            connection.execute(
                f"UPDATE flowctl_spans SET {column} = ? WHERE {column} = ?", (whole, stored)
            )
    assert write(new_sink(), 3, 4, 5, 6) == (1, 3)


def test_a_table_of_sql_sink_without_checksums_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = new_sink()
    write(sink, 3, 4, 5)
    sink.close()
    with sqlite3.connect("t.db") as connection:
        connection.execute("ALTER TABLE flowctl_spans DROP COLUMN crc")
    assert write(new_sink(), 3, 4, 5) == (0, 3)
    assert write(new_sink(), 7) == (1, 0)
    assert [crc is None for (crc,) in query("SELECT crc FROM flowctl_spans ORDER BY 1")] == [
        True,
        False,
    ]

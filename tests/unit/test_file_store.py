"""The checkpoint in files: damaged, missing, old or half-written ones, and a full disk."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowctl import FileCheckpointStore, disk
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    ConfigError,
    FencedError,
    JobError,
)

pytestmark = pytest.mark.req("S13")
_MANY = Checkpoint({f"p{n}": PartitionCheckpoint((n, "x"), n) for n in range(300)})


@pytest.fixture
def store(tmp_path: Path) -> FileCheckpointStore:
    return FileCheckpointStore(tmp_path / "checkpoints")


def at(position: int, **more: Any) -> Checkpoint:
    return Checkpoint({"a": PartitionCheckpoint(position, position, **more)})


def file_of(store: FileCheckpointStore, job: str = "job") -> Path:
    return store.directory / f"{job}.checkpoint"


def another(store: FileCheckpointStore) -> FileCheckpointStore:
    return FileCheckpointStore(store.directory)


def test_the_file_says_what_it_is(store: FileCheckpointStore) -> None:
    store.save("job", at(7), epoch=store.acquire("job"))
    line, _, _ = file_of(store).read_bytes().partition(b"\n")
    assert re.fullmatch(rb"flowctl checkpoint 1 [0-9a-f]{8} 2", line), "acquired, then saved"


def test_each_damaged_byte_is_noticed_and_named_and_nothing_is_overwritten(
    store: FileCheckpointStore,
) -> None:
    """Fencing is made of the epoch in this file: damage must not pass for other content."""
    epoch = store.acquire("job")
    store.save("job", at(7, acked=(AckedRange(9, 12, 4),)), epoch=epoch)
    whole = file_of(store).read_bytes()
    for place in range(len(whole)):
        for damaged in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :],
        ):
            file_of(store).write_bytes(damaged)
            with pytest.raises(CheckpointCorruptError, match=re.escape(str(file_of(store)))):
                another(store).load("job")
            with pytest.raises(CheckpointCorruptError, match="flowctl checkpoint clear job"):
                another(store).acquire("job")
            assert file_of(store).read_bytes() == damaged


def test_a_file_of_another_version_is_refused_by_its_number(store: FileCheckpointStore) -> None:
    store.save("job", at(7), epoch=store.acquire("job"))
    later = file_of(store).read_bytes().replace(b"checkpoint 1 ", b"checkpoint 12 as it may be ")
    file_of(store).write_bytes(later)
    with pytest.raises(CheckpointCorruptError, match="version 12; this flowctl reads 1") as caught:
        store.load("job")
    assert "Install the flowctl that wrote it" in caught.value.remedy


def test_the_file_of_another_job_is_not_taken_for_this_one(store: FileCheckpointStore) -> None:
    store.save("other", at(7), epoch=store.acquire("other"))
    file_of(store, "other").rename(file_of(store))
    with pytest.raises(CheckpointCorruptError, match="checksum"):
        store.load("job")


def test_a_damaged_file_is_listed_and_can_be_cleared_and_fences(store: FileCheckpointStore) -> None:
    epoch = store.acquire("a job")
    store.save("a job", at(7), epoch=epoch)
    file_of(store, "a job").write_bytes(b"rubbish")
    assert list(store.jobs()) == ["a job"]
    assert another(store).clear("a job")
    assert another(store).load("a job") == Checkpoint()
    assert another(store).acquire("a job") > epoch


def test_what_a_kill_left_of_a_write_is_nothing(store: FileCheckpointStore) -> None:
    """The new content is written beside the file: half of it is never read."""
    epoch = store.acquire("job")
    store.save("job", at(7), epoch=epoch)
    whole = file_of(store).read_bytes()
    Path(f"{file_of(store)}.new").write_bytes(whole[: len(whole) // 2])
    assert another(store).load("job") == at(7)
    assert list(another(store).jobs()) == ["job"]
    store.save("job", at(8), epoch=epoch)
    assert another(store).load("job") == at(8)


@contextmanager
def full_disk(left_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond ``left_bytes``: the write that would is cut there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_what_was_saved_stays_and_the_next_save_that_has_room_has_all(
    store: FileCheckpointStore,
) -> None:
    epoch = store.acquire("job")
    store.save("job", at(7), epoch=epoch)
    with full_disk(1000), pytest.raises(CheckpointUnavailableError, match="Make room"):
        store.save("job", _MANY, epoch=epoch)
    assert another(store).load("job") == at(7)
    assert not Path(f"{file_of(store)}.new").exists(), "what did not fit takes no room"
    store.save("job", at(8), epoch=epoch)  # what failed is not in it: nobody was told that it is
    assert another(store).load("job") == at(8)
    store.save("job", _MANY, epoch=epoch)
    assert another(store).load("job").partitions == {**at(8).partitions, **_MANY.partitions}


@pytest.mark.parametrize("what", ["directory", "file", "older copy"])
def test_what_was_removed_or_set_back_under_a_running_driver_is_saved_again(
    store: FileCheckpointStore, what: str
) -> None:
    epoch = store.acquire("job")
    older = file_of(store).read_bytes()
    store.save("job", _MANY, epoch=epoch)
    store.save("job", at(7), epoch=epoch)
    for path in store.directory.iterdir():
        path.unlink()
    if what == "directory":
        store.directory.rmdir()
    if what == "older copy":
        file_of(store).write_bytes(older)
    store.save("job", at(8), epoch=epoch)
    assert another(store).load("job").partitions == {**_MANY.partitions, **at(8).partitions}


def test_a_driver_that_was_replaced_does_not_bring_back_what_it_knew(
    store: FileCheckpointStore,
) -> None:
    old = store.acquire("job")
    store.save("job", at(7), epoch=old)
    newer = another(store)
    newer.clear("job")
    newer.save("job", at(1), epoch=newer.acquire("job"))
    with pytest.raises(FencedError):
        store.save("job", at(8), epoch=old)
    assert another(store).load("job") == at(1)


def test_two_objects_of_one_driver_do_not_lose_each_others_saves(
    store: FileCheckpointStore,
) -> None:
    epoch = store.acquire("job")
    other = another(store)
    store.save("job", at(7), epoch=epoch)
    other.save("job", Checkpoint({"b": PartitionCheckpoint(1, 1)}), epoch=epoch)
    store.save("job", at(8), epoch=epoch)
    assert set(another(store).load("job").partitions) == {"a", "b"}
    assert another(store).load("job").partitions["a"].position == 8


def test_a_lock_that_stays_taken_is_a_store_that_is_away(
    store: FileCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = store.acquire("job")
    name = str(store.directory / "job.lock")
    holder = os.open(name, os.O_RDWR)
    assert disk.lock(holder, name)
    monkeypatch.setattr("flowctl.runtime.file_store.LOCK_TIMEOUT_S", 0.05)
    with pytest.raises(
        CheckpointUnavailableError, match=f"stays locked by process {os.getpid()} on "
    ):
        store.save("job", at(7), epoch=epoch)
    disk.unlock(holder)
    store.save("job", at(7), epoch=epoch)


def test_where_a_file_system_has_no_locks_it_is_refused(
    store: FileCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "lock", lambda *_, **__: False)
    with pytest.raises(CheckpointUnavailableError, match="two drivers can't be kept apart"):
        store.acquire("job")
    assert not file_of(store).exists()


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("/dev/sda / ext4 rw 0 0\nserver:/x {place} nfs4 rw 0 0\n", "nfs4"),
        ("server:/x / nfs rw 0 0\n/dev/sdb {place} xfs rw 0 0\n", ""),
        ("server:/x {place}-other nfs rw 0 0\n/dev/sda / ext4 rw 0 0\n", ""),
        ("s3fs {place} fuse.s3fs rw 0 0\n", "fuse.s3fs"),
    ],
)
def test_on_a_network_file_system_a_run_is_told_what_that_means(
    mounts: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "mounts"
    listed.write_text(mounts.format(place=tmp_path / "with-it"))
    monkeypatch.setattr(disk, "MOUNTS", str(listed))
    caution = FileCheckpointStore(tmp_path / "with-it" / "below").caution
    assert (f"({kind})" in caution and "use --redis URL" in caution) if kind else caution == ""


def test_names_and_positions_that_are_no_text_are_kept_or_refused_by_name(
    store: FileCheckpointStore,
) -> None:
    odd = Checkpoint({"caf\udce9.log": PartitionCheckpoint(("a\0", None, 1.5), 3)})
    store.save("j/ä", odd, epoch=store.acquire("j/ä"))
    assert another(store).load("j/ä") == odd
    assert list(another(store).jobs()) == ["j/ä"]
    huge = PartitionCheckpoint(1, 1, end=1 << 70)
    with pytest.raises(JobError, match="'a' can't be stored"):
        store.save("job", Checkpoint({"a": huge}), epoch=store.acquire("job"))
    with pytest.raises(ConfigError, match="name is empty"):
        store.load("")


def test_a_save_is_on_the_disk_under_its_name_when_it_returns(
    store: FileCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power can't be tried here: that each step waits for the disk can."""
    done: list[str] = []

    def noting(name: str) -> Any:
        real = getattr(os, name)

        def noted(*arguments: Any) -> Any:
            first = arguments[0]
            is_file = isinstance(first, int) and os.path.isfile(f"/proc/self/fd/{first}")
            done.append(f"{name} {'file' if is_file else 'directory'}" if name == "fsync" else name)
            return real(*arguments)

        return noted

    epoch = store.acquire("job")
    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, noting(name))
    store.save("job", at(7), epoch=epoch)
    assert done == ["write", "fsync file", "replace", "fsync directory"]
    done.clear()
    FileCheckpointStore(store.directory / "a" / "b").acquire("job")
    assert done[:2] == ["fsync directory"] * 2, "new directories are there after a loss of power"

"""Objects in S3 as a source by reference: the key is on the workers only."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_parts import BUCKET, MISSING, S3, TOO_OLD, Journal, Key, can_check, command, store
from sink_parts import ProcessBolts

from flowctl import FlowControlSpout, Settings
from flowctl.core.settings import RetrySettings
from flowctl.errors import FlowctlError, SourceError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextRanges

pytestmark = pytest.mark.skipif(command() is None, reason=MISSING)

LINES = 4_000


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = S3()
    try:
        if not can_check(server):
            pytest.skip(TOO_OLD)
        yield server
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def driver_key(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may list objects, not read them: enough for a pattern."""
    for name, value in s3.lister.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def lines(name: str, count: int = LINES) -> list[str]:
    return [f"{name} line {n} é" for n in range(count)]


def put(s3: S3, *names: str) -> list[str]:
    """Objects of ``LINES`` lines; return all of these, sorted."""
    for name in names:
        s3.put(name, "".join(f"{line}\n" for line in lines(name)).encode())
    return sorted(line for name in names for line in lines(name))


def run(
    s3: S3, pattern: str, journal: Journal, key: Key, *, bolts_count: int = 2, **parts: Any
) -> Any:
    filesystem = functools.partial(store, s3.port)
    return FlowControlSpout(
        name="s3",
        producer=TextRanges(pattern, filesystem=filesystem),
        bolts=ProcessBolts(journal, count=bolts_count, environment=key.environment),
        **parts,
    ).run()


def test_workers_read_with_a_key_that_the_driver_does_not_have(s3: S3, tmp_path: Path) -> None:
    expected = put(s3, "a.log", "b.log")
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        store(s3.port).open_input_file(f"{BUCKET}/a.log")
    journal, saved = Journal(tmp_path), MemoryCheckpointStore()
    report = run(s3, f"{BUCKET}/[ab].log", journal, s3.reader, checkpoint=saved)
    assert (report.outcome, report.records_acked) == ("finished", 2 * LINES)
    assert journal.lines() == expected
    assert s3.reader.secret not in repr(saved.load("s3"))


def test_a_wrong_key_ends_the_run_and_with_the_right_one_it_goes_on(s3: S3, tmp_path: Path) -> None:
    expected = put(s3, "c.log")
    journal, saved = Journal(tmp_path), MemoryCheckpointStore()
    twice = Settings(retry=RetrySettings(attempts_max=2))
    for key in (Key("AKIAWRONG", "not-a-secret"), s3.lister):
        with pytest.raises(FlowctlError, match=r"(?s)c\.log.*own credentials") as raised:
            run(s3, f"{BUCKET}/c*.log", journal, key, checkpoint=saved, settings=twice)
        assert key.secret not in str(raised.value)
    assert journal.lines() == []
    run(s3, f"{BUCKET}/c*.log", journal, s3.reader, checkpoint=saved)
    assert journal.lines() == expected


def test_a_bucket_that_is_missing_is_said_at_once(s3: S3, tmp_path: Path) -> None:
    for pattern in ("no-such/a.log", "no-such/*.log", f"{BUCKET}/no-such-*.log"):
        with pytest.raises(SourceError, match="no-such"):
            run(s3, pattern, Journal(tmp_path), s3.reader)


def test_an_object_that_changes_in_mid_run_is_refused_and_nothing_is_lost(
    s3: S3, tmp_path: Path
) -> None:
    expected = put(s3, "d1.log", "d2.log", "d3.log")
    journal = Journal(tmp_path, hold="go")
    saved = MemoryCheckpointStore()

    class Changing(MemoryCheckpointStore):
        """Replaces the last object once a part of the first is saved as done."""

        def save(self, job: str, checkpoint: Any, *, epoch: int) -> None:
            saved.save(job, checkpoint, epoch=epoch)
            if not (tmp_path / "go").exists():
                s3.put("d3.log", "".join(f"{line}!\n" for line in lines("d3.log")).encode())
                (tmp_path / "go").touch()

        def load(self, job: str) -> Any:
            return saved.load(job)

        def acquire(self, job: str) -> int:
            return saved.acquire(job)

    # One bolt: it can't have opened the last object while it holds the first.
    with pytest.raises(SourceError, match=r"d3\.log: it changed during the run"):
        run(s3, f"{BUCKET}/d*.log", journal, s3.reader, checkpoint=Changing(), bolts_count=1)
    done = journal.lines()
    assert done
    assert set(done) < set(expected), "nothing of the new object was processed"
    saved_of: Any = saved.load("s3").partitions
    for name in ("d1.log", "d2.log"):
        if (partition := saved_of.get(f"{BUCKET}/{name}")) is not None:
            of_this = "".join(f"{line}\n" for line in done if line.startswith(name))
            assert len(of_this.encode()) >= (partition.position or 0)

"""Recordings: bounded, readable after any end, refused if they are none."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowctl.cli.replay import replay
from flowctl.config import RecordSettings
from flowctl.core.messages import Ack
from flowctl.core.records import Checkpoint, Record
from flowctl.core.spout import SpoutCore
from flowctl.errors import ConfigError
from flowctl.runtime.control import RunControl
from flowctl.runtime.recording import MAGIC, Recorder, Recording, RunOf, recorder_of, replayed


class Run:
    """A core with a bolt, recorded in ``path``; each step sends a tuple and acks it."""

    def __init__(self, path: Path, *, bytes_max: int = 1 << 20) -> None:
        self.control = RunControl(SpoutCore())
        self.core = self.control.core
        settings = RecordSettings(file=str(path), bytes_max=bytes_max)
        recorder = recorder_of(self.control, settings, RunOf("j", 3, Checkpoint(), 1))
        assert recorder is not None
        self.recorder: Recorder = recorder
        self.now_s = 0.0
        self.core.add_bolt("b1", slots=1, epoch=1, now_s=0.0)

    def step(self) -> None:
        self.now_s += 1.0
        at = int(self.now_s)
        self.core.offer("p", [Record((at, "row"), "value")], now_s=self.now_s, sizes=[5])
        turn = self.control.turn(self.now_s, emits_max=9, bytes_max=None, heard_until_s=None)
        for e in turn.emissions:
            self.core.on_ack("b1", 1, Ack(e.tuple_id, e.attempt, 0.0, 0.1, 0.0), now_s=self.now_s)


def calls_in(path: Path) -> int:
    run = replayed(str(path))
    assert run.difference is None
    return run.calls


def test_what_was_flushed_is_read_whatever_follows(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.step()
    run.recorder.flush()
    flushed = (tmp_path / "rec").stat().st_size
    assert calls_in(tmp_path / "rec") == 4, "a bolt, an offer, a turn, an ack"
    run.step()
    run.recorder.close()
    whole = (tmp_path / "rec").read_bytes()
    assert calls_in(tmp_path / "rec") == 7
    for length in (flushed + 2, flushed + 9, len(whole) - 5):  # killed while it was written
        (tmp_path / "cut").write_bytes(whole[:length])
        assert calls_in(tmp_path / "cut") == 4
    (tmp_path / "cut").write_bytes(whole[:-9] + b"\0" * 9)
    assert calls_in(tmp_path / "cut") == 4


def test_a_replay_says_that_the_recording_is_not_whole(tmp_path: Path) -> None:
    run, place = Run(tmp_path / "rec"), tmp_path / "rec"
    run.step()
    run.recorder.flush()
    flushed = place.stat().st_size
    run.step()
    run.recorder.close()
    whole = place.read_bytes()
    assert "recording" not in said_of(place).partition("the same as recorded")[2]
    for left in (flushed, len(whole) - 4):
        place.write_bytes(whole[:left])
        assert "ends before the run" in said_of(place)
    for broken in (whole[: flushed + 9], whole[:-9] + b"?" + whole[-8:]):
        place.write_bytes(broken)
        assert f"to its end, by {len(broken) - flushed} bytes" in said_of(place)


def said_of(path: Path) -> str:
    return CliRunner().invoke(replay, [str(path)], catch_exceptions=False).output


def test_another_file_is_not_taken_for_one_to_be_kept_and_written_over(tmp_path: Path) -> None:
    place = tmp_path / "job.py"
    place.write_text("spout = 1\n")
    with pytest.raises(ConfigError, match="is there, and is not a recording"):
        Run(place)
    assert [each.name for each in tmp_path.iterdir()] == ["job.py"]
    Run(tmp_path / "rec").recorder.close()
    before = (tmp_path / "rec").read_bytes()
    with pytest.raises(ConfigError, match="is what is read"):
        arguments = [str(tmp_path / "rec"), "--decisions", str(tmp_path / "rec")]
        CliRunner().invoke(replay, arguments, catch_exceptions=False)
    assert (tmp_path / "rec").read_bytes() == before


def test_one_that_is_full_ends_and_the_run_does_not(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec", bytes_max=3_000)
    told = 0
    for _ in range(60):
        run.step()
        told += run.recorder.flush()
    assert told == 1, "it is told once"
    assert "is full" in run.recorder.problem
    assert (tmp_path / "rec").stat().st_size <= 3_000
    assert 10 < calls_in(tmp_path / "rec") < 180, "what is in it can be replayed"
    assert run.core.counters.records_acked == 60


def test_a_disk_that_takes_no_more_ends_the_recording_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "rec")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Recorder, "_put", full)
    run.step()
    assert run.recorder.flush()
    assert "No space left" in run.recorder.problem
    run.step()
    assert not run.recorder.flush()


def test_where_it_can_not_be_written_the_run_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"record\.file"):
        Run(tmp_path / "file" / "rec")


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "rec"
    place.write_text("not one")
    with pytest.raises(ConfigError, match="is not a recording"):
        Recording(str(place))
    place.write_bytes(MAGIC)  # nothing of the run came to the disk
    with pytest.raises(ConfigError, match="is not a recording"):
        Recording(str(place))
    place.write_bytes(MAGIC.replace(b"1", b"2"))
    with pytest.raises(ConfigError, match="of another version of the format"):
        Recording(str(place))
    with pytest.raises(ConfigError, match="No such file"):
        CliRunner().invoke(replay, [str(tmp_path / "none")], catch_exceptions=False)

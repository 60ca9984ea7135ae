"""TextLines(follow=True): files that grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import SourceError
from flowctl_files import TextLines


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("flowctl_files.text_lines._LOOK_AGAIN_S", 0.0)
    monkeypatch.chdir(tmp_path)


def _news(producer: TextLines) -> list[tuple[str, object]]:
    """What comes until two polls in a row bring nothing (the first may only look around)."""
    found: list[tuple[str, object]] = []
    quiet = 0
    while quiet < 2:
        chunk = producer.poll(100)
        assert chunk is not None, "a followed source does not end"
        quiet = 0 if chunk.records else quiet + 1
        found += [(chunk.partition, record.value) for record in chunk.records]
    return found


def _append(name: str, text: str) -> None:
    with Path(name).open("a") as file:
        file.write(text)


def test_lines_come_when_their_newline_comes() -> None:
    _append("a.log", "one\nhal")
    producer = TextLines("*.log", follow=True)
    producer.open(Checkpoint())
    assert _news(producer) == [("a.log", "one")]
    assert _news(producer) == []
    _append("a.log", "f\ntwo\nthr")
    assert _news(producer) == [("a.log", "half"), ("a.log", "two")]
    _append("a.log", "ee\n")
    assert _news(producer) == [("a.log", "three")]
    producer.close()


def test_files_that_come_later_are_found() -> None:
    producer = TextLines(["*.log", "b/later.txt"], follow=True)
    producer.open(Checkpoint())
    assert _news(producer) == []
    _append("z.log", "1\n")
    Path("b").mkdir()
    _append("b/later.txt", "2\n")
    assert _news(producer) == [("b/later.txt", "2"), ("z.log", "1")]
    assert producer.partitions() == ["b/later.txt", "z.log"]
    producer.close()


def test_a_file_that_goes_is_no_error() -> None:
    _append("a.log", "1\n")
    _append("b.log", "2\n")
    producer = TextLines("*.log", follow=True)
    producer.open(Checkpoint())
    assert len(_news(producer)) == 2
    Path("a.log").unlink()
    _append("b.log", "3\n")
    assert _news(producer) == [("b.log", "3")]
    producer.close()


def test_it_goes_on_after_a_restart() -> None:
    _append("a.log", "one\ntwo\n")
    checkpoint = Checkpoint(partitions={"a.log": PartitionCheckpoint(position=(4, 2))})
    producer = TextLines("a.log", follow=True)
    producer.open(checkpoint)
    assert _news(producer) == []
    _append("a.log", "three\n")
    assert _news(producer) == [("a.log", "three")]
    assert producer.progress().done == producer.progress().total == 14
    producer.close()


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_rotation_under_our_feet_is_said(how: str) -> None:
    _append("a.log", "one\ntwo\n")
    producer = TextLines("a.log", follow=True)
    producer.open(Checkpoint())
    assert len(_news(producer)) == 2
    if how == "replaced":
        Path("a.log").rename("a.log.1")
        _append("a.log", "something new that is longer\n")
    else:
        Path("a.log").write_text("new\n")
    with pytest.raises(SourceError, match="rotated"):
        _news(producer)
    producer.close()


def test_gzip_does_not_grow() -> None:
    Path("a.log.gz").write_bytes(b"")
    with pytest.raises(SourceError, match="can't be followed"):
        TextLines("*", follow=True).open(Checkpoint())

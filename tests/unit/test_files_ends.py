"""Files that were read to their ends are recognised after a restart, and not opened."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import SourceError
from flowctl_files import TextLines, text_lines
from flowctl_files._reader import FileReader


class Opened:
    """Which files are opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []

        def opened(name: str, *arguments: object, **named: object) -> FileReader:
            self.names.append(name)
            return FileReader(name, *arguments, **named)  # type: ignore[arg-type]

        patch.setattr(text_lines, "FileReader", opened)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.chdir(tmp_path)
    return Opened(monkeypatch)


def read(before: Checkpoint = Checkpoint()) -> tuple[list[str], Checkpoint]:  # noqa: B008 - frozen
    """Read all there is; return the values, and the checkpoint with all of it done."""
    producer = TextLines("*.log*")
    producer.open(before)
    values: list[str] = []
    done = dict(before.partitions)
    while (chunk := producer.poll(1)) is not None:
        values += [record.value for record in chunk.records]
        if chunk.records:
            done[chunk.partition] = PartitionCheckpoint(chunk.records[-1].position)
        if chunk.end is not None:
            position = done.get(chunk.partition, PartitionCheckpoint()).position
            done[chunk.partition] = PartitionCheckpoint(position, end=chunk.end)
    progress = producer.progress()
    assert progress.done == progress.total
    producer.close()
    return values, Checkpoint(done)


def test_what_was_read_to_its_end_is_not_opened_again(opened: Opened) -> None:
    Path("a.log").write_text("one\ntwo\n")
    Path("b.log").write_text("no newline")
    Path("empty.log").write_text("")
    Path("c.log.gz").write_bytes(gzip.compress(b"packed\n"))
    values, done = read()
    assert values == ["one", "two", "no newline", "packed"]
    assert set(done.partitions) == set(opened.names)
    opened.names.clear()
    assert read(done) == ([], done)
    assert opened.names == []


@pytest.mark.parametrize("text", ["one\ntwo\nthree\n", "one\ntwo and more\nthree\n"])
def test_what_has_grown_is_read_on(opened: Opened, text: str) -> None:
    Path("a.log").write_text("one\ntwo")
    Path("b.log").write_text("b\n")
    _, done = read()
    Path("a.log").write_text(text)
    opened.names.clear()
    values, done = read(done)
    assert values[-1] == "three"
    assert opened.names == ["a.log"]
    assert read(done) == ([], done)


def test_what_was_written_anew_is_looked_at(opened: Opened) -> None:
    Path("a.log").write_text("one\ntwo\n")
    _, done = read()
    opened.names.clear()
    status = os.stat("a.log")
    os.utime("a.log", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    values, done = read(done)
    assert (values, opened.names) == ([], ["a.log"])
    assert read(done) == ([], done)


@pytest.mark.parametrize(
    "text", ["300\n301\n302\n", "300\n301\n302\n303\n", "100\n101\n109\n103\n"]
)
def test_another_file_with_lines_at_the_same_places_is_refused(opened: Opened, text: str) -> None:
    Path("a.log").write_text("100\n101\n102\n")
    os.utime("a.log", ns=(1, 1))  # else both may be written in one tick of the clock
    _, done = read()
    Path("a.log").write_text(text)
    with pytest.raises(
        SourceError, match=r"a.log: the bytes before byte 12 are not those"
    ) as caught:
        read(done)
    assert "--partition a.log --start" in caught.value.remedy


@pytest.mark.parametrize("text", ["300\n301\n302\n", "300\n301\n302\n303\n"])
def test_another_compressed_file_with_lines_at_the_same_places(opened: Opened, text: str) -> None:
    Path("a.log.gz").write_bytes(gzip.compress(b"100\n101\n102\n"))
    os.utime("a.log.gz", ns=(1, 1))
    _, done = read()
    Path("a.log.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(SourceError, match=r"a.log.gz: the bytes before byte 11 are not those"):
        read(done)


@pytest.mark.parametrize("last", ["two\n", "two"])
def test_a_compressed_file_may_be_compressed_anew_and_grow(opened: Opened, last: str) -> None:
    Path("a.log.gz").write_bytes(gzip.compress(f"one\n{last}".encode(), mtime=1))
    _, done = read()
    for text in ("one\ntwo\n", "one\ntwo\nthree\n", "one\ntwo\nthree\nfour\n"):
        Path("a.log.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=2))
        values, done = read(done)
        assert values == text.split()[2:][-1:]
        assert read(done) == ([], done)


def test_an_end_of_an_earlier_version_says_nothing_of_the_last_bytes(opened: Opened) -> None:
    Path("a.log").write_text("300\n301\n")
    old = PartitionCheckpoint((0, 1), end=(4, 1))
    assert read(Checkpoint({"a.log": old}))[0] == ["301"]


def test_what_grows_while_it_is_read_has_no_end(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.log").write_text("one\n")
    stat = FileReader.stat

    def grown(reader: FileReader) -> os.stat_result:
        with open("a.log", "a") as file:
            file.write("two\n")
        return stat(reader)

    with monkeypatch.context() as patch:
        patch.setattr(FileReader, "stat", grown)
        _, done = read_without_progress()
    assert done.partitions["a.log"].end is None
    values, _ = read(done)
    assert values[0] == "two"


def read_without_progress() -> tuple[list[str], Checkpoint]:
    producer = TextLines("*.log*")
    producer.open(Checkpoint())
    done: dict[str, PartitionCheckpoint] = {}
    while (chunk := producer.poll(1)) is not None:
        assert chunk.end is None
        if chunk.records:
            done[chunk.partition] = PartitionCheckpoint(chunk.records[-1].position)
    return [], Checkpoint(done)


def test_many_files_without_a_word_keep_nobody_waiting(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "_FILES_PER_POLL", 2)
    for name in "abcde":
        Path(f"{name}.log").write_text("")
    producer = TextLines("*.log", follow=True)
    producer.open(Checkpoint())
    looks = [producer.poll(10) for _ in range(4)]
    producer.close()
    busy = [chunk is not None and chunk.is_busy for chunk in looks]
    assert busy == [True, True, False, False]

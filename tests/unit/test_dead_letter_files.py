"""Files of dead letters: exact values, one letter a record, and every step safe from a kill."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl.adapters import dead_letter_of
from flowctl.core.letters import Letter, letter_id, redrive_number, redrive_partition
from flowctl.core.records import Position, Record
from flowctl.disk import file_name
from flowctl.errors import ConfigError
from flowctl.ports import RedrivableDeadLetter
from flowctl.runtime.file_store import FileCheckpointStore
from flowctl_files import FileDeadLetter, JsonLinesDeadLetter
from flowctl_files.dead_letter import default_directory


def keep(
    letters: FileDeadLetter | JsonLinesDeadLetter,
    *positions: Position,
    job: str = "job",
    partition: str = "p",
    value: Any = "text",
    reason: str = "ValueError: poison",
) -> None:
    records = [Record(position, value) for position in positions]
    letters.dead_letter(job, partition, records, attempts=3, reason=reason, bolts=("b1",))


def held(letters: FileDeadLetter | JsonLinesDeadLetter, job: str = "job") -> list[Letter]:
    return letters.file_of(job).read().of(job)


def positions(letters: FileDeadLetter, job: str = "job") -> list[Position]:
    return [letter.position for letter in held(letters, job)]


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**63, 2**64 - 1, 1.5, math.inf, "", "text", "ü\x00\x1b[2J", b"",
        b"\xff\x00", [], [1, [b"x"]], {}, {"a": b"bytes"}, {1: "int key"},
        {"nested": {"list": [1.0, None]}}, (1, 2), {"day": date(2026, 11, 22)},
        {"price": Decimal("1.50")}, {"at": datetime(2026, 11, 22, 9, 30)},
    ],
)  # fmt: skip
def test_a_value_comes_back_as_the_wire_carries_it(tmp_path: Path, value: Any) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 7, value=value)
    (letter,) = held(letters)
    assert letter.value == value and type(letter.value) is type(value)
    assert letter.is_exact


@pytest.mark.parametrize("position", [1, -1, 1.5, math.inf, "key", (1, 57), (None, "a", 2.0)])
def test_a_position_comes_back_exactly(tmp_path: Path, position: Position) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, position)
    (letter,) = held(letters)
    assert letter.position == position and type(letter.position) is type(position)
    assert letter.id == letter_id("job", "p", position)


def test_what_can_not_be_kept_exactly_is_shown_and_not_given_back(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 7, value=object)
    (letter,) = held(letters)
    assert not letter.is_exact and "object" in letter.value
    assert letters.file_of("job").redrive("job")[0] == 0
    assert letters.to_redrive("job") == []


def test_a_letter_tells_what_happened(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    letters.dead_letter("job", "p", [Record(1, "x")], attempts=1, reason="rejected: no id", epoch=4)
    (letter,) = held(letters)
    assert (letter.kind, letter.reason, letter.attempts) == ("rejected", "rejected: no id", 1)
    assert (letter.job, letter.partition, letter.epoch, letter.redrives) == ("job", "p", 4, 0)
    assert letter.at_unix_ms == letter.first_at_unix_ms > 1_700_000_000_000
    keep(letters, 2)
    assert held(letters)[1].kind == "gave_up" and held(letters)[1].bolts == ("b1",)


def test_it_is_json_that_people_can_read(tmp_path: Path) -> None:
    letters = JsonLinesDeadLetter(tmp_path / "dead.jsonl")
    keep(letters, (3, 4), value={"id": 7, "raw": b"\x00"})
    line = msgspec.json.decode((tmp_path / "dead.jsonl").read_bytes())
    assert line["position"] == [3, 4] and line["value"] == {"id": 7, "raw": "AA=="}
    assert (line["job"], line["partition"], line["attempts"]) == ("job", "p", 3)


def test_lines_of_the_version_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_text(
        '{"job":"job","partition":"p","position":[1,2],"value":"x","attempts":5,"reason":"bad"}\n'
    )
    (letter,) = held(JsonLinesDeadLetter(path))
    assert (letter.position, letter.value, letter.id) == (
        (1, 2),
        "x",
        letter_id("job", "p", (1, 2)),
    )
    assert not letter.is_exact  # bytes were written as text then


def test_repeats_after_a_kill_are_one_letter(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 1, 2, 3)
    first = held(letters)[0].at_unix_ms
    keep(FileDeadLetter(tmp_path), 1, 2, reason="ValueError: again")
    assert positions(letters) == [1, 2, 3]
    assert held(letters)[0].reason == "ValueError: again"
    assert held(letters)[0].first_at_unix_ms == first
    assert (tmp_path / "job.jsonl").read_bytes().count(b"\n") == 5


def test_two_jobs_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    letters = JsonLinesDeadLetter(tmp_path / "dead.jsonl")
    keep(letters, 1, job="a")
    keep(letters, 1, job="b")
    file = letters.file_of("a")
    assert file.redrive("a")[0] == 1
    assert [letter.job for letter in letters.to_redrive("a")] == ["a"]
    assert letters.to_redrive("b") == []
    assert file.drop("a", lambda letter: True) == 1
    assert held(letters, "a") == [] and len(held(letters, "b")) == 1


def test_cut_anywhere_nothing_before_the_cut_is_lost_and_what_is_written_after_is_read(
    tmp_path: Path,
) -> None:
    letters = FileDeadLetter(tmp_path)
    path = tmp_path / "job.jsonl"
    keep(letters, 1)
    before = path.stat().st_size
    keep(letters, 2, value="äöü" * 3)
    whole = path.read_bytes()
    for size in range(before, len(whole) + 1):
        path.write_bytes(whole[:size])
        contents = letters.file_of("job").read()
        # Without its newline a last line may be whole by chance.
        is_whole = size >= len(whole) - 1
        is_cut = before < size < len(whole) - 1
        assert len(contents.held) == 1 + is_whole and contents.damaged == is_cut, size
        keep(letters, 3)
        contents = letters.file_of("job").read()
        assert len(contents.held) == 2 + is_whole and contents.damaged == is_cut, size


def test_a_redrive_is_given_back_until_it_is_done(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    assert isinstance(letters, RedrivableDeadLetter)
    keep(letters, 1, 2, 3)
    file = letters.file_of("job")
    assert letters.to_redrive("job") == []
    marked, number = file.redrive("job", {letter.id for letter in held(letters)[:2]})
    assert marked == 2
    assert file.redrive("job", {held(letters)[0].id})[0] == 0  # twice does not double
    waiting = letters.to_redrive("job")
    assert [(one.position, one.redrive) for one in waiting] == [(1, (number, 1)), (2, (number, 2))]
    assert FileDeadLetter(tmp_path).to_redrive("job") == waiting  # after a kill: the same again
    letters.on_redriven("job", waiting[:1])
    assert positions(letters) == [2, 3]
    assert FileDeadLetter(tmp_path).to_redrive("job") == waiting[1:]
    letters.on_redriven("job", waiting[1:])
    assert positions(letters) == [3]


def test_one_that_fails_again_stays_with_its_first_origin(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, (5, 6), "key", value=b"x")
    first = held(letters)[0]
    number = letters.file_of("job").redrive("job")[1]
    waiting = letters.to_redrive("job")
    again = redrive_partition(number)
    letters.dead_letter("job", again, [Record(1, b"x")], attempts=2, reason="TypeError: still bad")
    letters.on_redriven("job", waiting)  # both count as processed
    (letter,) = held(letters)
    assert (letter.id, letter.partition, letter.position) == (first.id, "p", (5, 6))
    assert (letter.reason, letter.redrives, letter.redrive) == ("TypeError: still bad", 1, None)
    assert letter.value == b"x" and letter.first_at_unix_ms == first.at_unix_ms
    assert FileDeadLetter(tmp_path).to_redrive("job") == []
    second = letters.file_of("job").redrive("job")[1]
    assert second > number
    assert held(letters)[0].redrives == 1


def test_a_repeat_from_the_source_does_not_end_a_redrive(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 1)
    letters.file_of("job").redrive("job")
    keep(letters, 1)
    assert len(letters.to_redrive("job")) == 1


def test_a_partition_that_only_looks_like_a_redrive_is_the_sources(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 1, partition="redrive:1700000000000")
    assert held(letters)[0].partition == "redrive:1700000000000"
    assert redrive_number("redrive:7") is None  # nobody's number: those are unix milliseconds
    assert redrive_number("spout:redrive:1700000000000") == 1_700_000_000_000


def test_dropped_is_gone_from_the_disk_and_the_last_takes_the_file_along(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 1, 2, value="secret")
    keep(letters, 3, value="open")
    file = letters.file_of("job")
    number = file.redrive("job", {held(letters)[2].id})[1]
    assert file.drop("job", lambda letter: letter.value == "secret") == 2
    assert b"secret" not in (tmp_path / "job.jsonl").read_bytes()
    assert [letter.redrive for letter in held(letters)] == [(number, 1)]  # survives the rewrite
    assert file.drop("job", lambda letter: True) == 1
    assert list(tmp_path.iterdir()) == []
    keep(letters, 9)
    assert positions(letters) == [9]


def test_a_file_that_mostly_says_nothing_any_more_is_written_anew(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, *range(100))
    size = (tmp_path / "job.jsonl").stat().st_size
    letters.file_of("job").redrive("job", {letter.id for letter in held(letters)[10:]})
    letters.on_redriven("job", letters.to_redrive("job"))
    assert positions(letters) == list(range(10))
    assert (tmp_path / "job.jsonl").stat().st_size < size / 5


def _write_many(directory: Path, partition: str) -> None:
    letters = FileDeadLetter(directory)
    for position in range(50):
        keep(letters, position, partition=partition)


def test_writers_of_several_processes_and_a_drop_do_not_lose_each_others_letters(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    file = FileDeadLetter(tmp_path).file_of("job")
    dropped = 0
    while any(writer.is_alive() for writer in writers):
        dropped += file.drop("job", lambda letter: letter.position == 7)
    for writer in writers:
        writer.join()
    dropped += file.drop("job", lambda letter: letter.position == 7)
    contents = file.read()
    assert (len(contents.held), contents.damaged, dropped) == (3 * 49, 0, 3)


@pytest.mark.parametrize("job", ["a/b", "..", ".", "a b", "ä" * 200, "x" * 200, "A:B*?", "-n"])
def test_any_name_of_a_job_is_a_file_name(tmp_path: Path, job: str) -> None:
    letters = FileDeadLetter(tmp_path)
    keep(letters, 1, job=job)
    (path,) = tmp_path.iterdir()
    assert path.name == file_name(job, ".jsonl") and len(path.name.encode()) < 255
    assert len(held(letters, job)) == 1


def test_names_that_differ_have_files_that_differ() -> None:
    names = ["a/b", "a%2Fb", "a:b", "ä" * 199, "ä" * 200, "é" * 200]
    assert len({file_name(name, "") for name in names}) == len(names)


def test_where_letters_are_if_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWCTL_DEAD_LETTERS", raising=False)
    keep(JsonLinesDeadLetter(), 1)
    assert (tmp_path / ".flowctl" / "dead-letters" / "job.jsonl").is_file()
    assert FileDeadLetter().hint("a b") == "flowctl dlq show 'a b'"
    assert FileDeadLetter("x").hint("job") == "flowctl dlq show job --dir x"
    assert JsonLinesDeadLetter("d.jsonl").hint("job") == "flowctl dlq show job --file d.jsonl"
    monkeypatch.setenv("FLOWCTL_DEAD_LETTERS", "elsewhere")
    assert default_directory() == Path("elsewhere")
    assert FileDeadLetter().hint("job") == "flowctl dlq show job"


@pytest.mark.parametrize("url", ["s3://bucket/letters", "file:///mnt/letters", "hdfs:/letters"])
@pytest.mark.parametrize("make", [FileDeadLetter, JsonLinesDeadLetter, FileCheckpointStore])
def test_a_url_is_no_directory(url: str, make: Callable[[str], Any]) -> None:
    """Kind: a place that goes with the worker: letters would be in ``s3:`` below its directory."""
    with pytest.raises(ConfigError, match=f"'{url}' is a URL"):
        make(url)
    with pytest.raises(ConfigError, match="is a URL"):
        dead_letter_of("abfss://c@a/letters")


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_file_is_refused_and_nothing_hangs(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/full") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)
    letters = JsonLinesDeadLetter(path)
    with pytest.raises(OSError, match="not a regular file"):
        letters.open_letters("job")
    with pytest.raises(OSError, match="not a regular file"):
        letters.dead_letter("job", "p", [Record(1, "x")], attempts=1, reason="bad")

"""Files that are cut, written anew or replaced while they are read."""

from __future__ import annotations

import gzip
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError
from flowctl_files import TextLines

LINES = [f"{n} {'x' * (n % 90)}" for n in range(20_000)]  # some 1 MB: 17 blocks


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("flowctl_files.text_lines._LOOK_AGAIN_S", 0.0)
    monkeypatch.chdir(tmp_path)


def write(name: str, lines: list[str] = LINES) -> Path:
    path = Path(name)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def read(producer: TextLines, meanwhile: Callable[[], None], at: int) -> list[object]:
    """All values until the end or an error, which is raised with them as ``values``."""
    values: list[object] = []
    done = False
    try:
        while (chunk := producer.poll(500)) is not None:
            values += [record.value for record in chunk.records]
            if not done and len(values) >= at:
                done = True
                meanwhile()
    except SourceError as error:
        error.values = values  # type: ignore[attr-defined]
        raise
    finally:
        producer.close()
    assert done
    return values


def _to_nothing(path: Path) -> None:
    path.write_text("")


def _to_a_third(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)


def _by_a_byte_less_than_was_read(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(max(0, 64 << 10) - 1)


def _copytruncate(path: Path) -> None:
    shutil.copy(path, f"{path}.1")
    path.write_text("a few\nnew lines\n")


def _anew_and_longer_than_before(path: Path) -> None:
    write(path.name, [f"new {line}" for line in LINES])


CUTS = [
    _to_nothing,
    _to_a_third,
    _by_a_byte_less_than_was_read,
    _copytruncate,
    _anew_and_longer_than_before,
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_is_truncated_while_it_is_read_is_not_taken_for_done(cut, seed) -> None:
    path = write("a.log")
    least = len(LINES) // 2 if cut is _to_a_third else 1  # what was cut had been read
    at = random.Random(f"{cut} {seed}").randint(least, len(LINES) - 3_000)
    producer = TextLines("a.log")
    producer.open(Checkpoint())
    with pytest.raises(SourceError, match=r"a\.log: the file was truncated") as caught:
        read(producer, lambda: cut(path), at)
    values = caught.value.values  # type: ignore[attr-defined]
    assert len(values) >= at
    assert values == LINES[: len(values)], "a line of what came later was taken for an old one"
    said = str(caught.value)
    read_bytes = int(said.partition("byte ")[2].partition(" ")[0])
    assert read_bytes >= sum(len(line) + 1 for line in values)
    size = path.stat().st_size
    assert (
        f"it has {size} bytes now" if size < read_bytes else "its bytes there have changed"
    ) in said
    assert "copytruncate" in said
    assert "renaming" in caught.value.remedy
    with pytest.raises(SourceError):  # nothing behind it is read either
        producer.poll(1)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("keeps", [0.6, 0.9])
def test_one_that_is_cut_ahead_of_what_was_read_is_not_taken_for_done(keeps, follow) -> None:
    """What was read is all there, and ends where the file ends: but the file had more."""
    path = write("a.log")
    had = path.stat().st_size
    has = int(had * keeps)
    producer = TextLines("a.log", follow=follow)
    producer.open(Checkpoint())

    def cut() -> None:
        with path.open("r+b") as file:
            file.truncate(has)

    with pytest.raises(SourceError, match=r"a\.log: the file was truncated") as caught:
        read(producer, cut, 1_000)
    values = caught.value.values  # type: ignore[attr-defined]
    assert values == LINES[: len(values)], "nor is half a line a record"
    assert f"it had {had} bytes and has {has} now" in str(caught.value)


def test_one_that_grew_and_was_cut_to_more_than_it_had_at_first() -> None:
    path = write("a.log", LINES[:5_000])
    producer = TextLines("a.log")
    producer.open(Checkpoint())
    chunk = producer.poll(5_000)
    write("a.log")
    while len(chunk.records) + chunk.records[0].position[1] < 7_000:
        chunk = producer.poll(1_000)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 9 // 10)
    with pytest.raises(SourceError, match="truncated"):
        while producer.poll(5_000) is not None:
            pass
    producer.close()


def test_truncated_after_its_end_was_read_it_is_done() -> None:
    path = write("a.log")
    producer = TextLines("a.log")
    producer.open(Checkpoint())
    values = [r.value for chunk in iter(lambda: producer.poll(5_000), None) for r in chunk.records]
    _to_nothing(path)
    assert values == LINES
    assert producer.poll(1) is None


def test_the_last_line_without_a_newline_is_not_made_of_two_files() -> None:
    path = Path("a.log")
    path.write_text("".join(f"{line}\n" for line in LINES) + "the last one has no newline")
    producer = TextLines("a.log")
    producer.open(Checkpoint())
    with pytest.raises(SourceError, match="truncated") as caught:
        read(producer, lambda: _copytruncate(path), len(LINES) - 1_000)
    assert "the last one has no newline" not in caught.value.values  # type: ignore[attr-defined]


def test_a_file_that_grows_while_it_is_read_is_read_to_its_new_end() -> None:
    path = write("a.log")

    def append() -> None:
        with path.open("a") as file:
            file.write("one more\n")

    producer = TextLines("a.log")
    producer.open(Checkpoint())
    assert read(producer, append, 10_000) == [*LINES, "one more"]


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_file_that_is_rotated_by_renaming_is_read_to_its_end_and_the_new_one_is_told(how) -> None:
    path = write("a.log")

    def rotate() -> None:
        if how == "removed":
            path.unlink()
        else:
            path.rename("a.log.1")
            write("a.log", ["new"])

    producer = TextLines("a.log")
    producer.open(Checkpoint())
    with capture_logs() as logs:
        assert read(producer, rotate, 5_000) == LINES
    told = [(entry["event"], entry["file"]) for entry in logs]
    assert told == ([("file_replaced_while_read", "a.log")] if how == "renamed" else [])


@pytest.mark.parametrize("keep", [0, 1_000, 100_000])
def test_a_gz_that_is_truncated_while_it_is_read(keep: int) -> None:
    chance = random.Random(7)
    lines = [f"{chance.getrandbits(400):x}" for _ in range(20_000)]  # hardly compressible: 1 MB
    path = Path("a.gz")
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))

    def cut() -> None:
        with path.open("r+b") as file:
            file.truncate(keep)

    producer = TextLines("a.gz")
    producer.open(Checkpoint())
    with pytest.raises(SourceError, match=r"a\.gz: .*(truncated|cut short)") as caught:
        read(producer, cut, 5_000)
    values = caught.value.values  # type: ignore[attr-defined]
    assert values == lines[: len(values)]


# How much of a file the standard library reads before it decompresses it.
GZIP_READ_BYTES = getattr(gzip, "READ_BUFFER_SIZE", io.DEFAULT_BUFFER_SIZE)


def member() -> bytes:
    """A gzip member of which all but its header is read at once, and nothing of the next one."""
    size = GZIP_READ_BYTES
    while True:
        text = f"{'x' * 98}\n".encode() * (size // 99 + 1)
        data = gzip.compress(text[: size - 1] + b"\n", compresslevel=0)
        surplus = len(data) - 10 - GZIP_READ_BYTES
        if not surplus:
            return data
        size -= surplus


@pytest.mark.parametrize("keeps", [1, 18])
def test_a_gz_of_several_members_that_is_cut_between_two_of_them(keeps: int) -> None:
    """What is left looks complete: whole members, and each of them is all that is read at once."""
    path = Path("a.gz")
    path.write_bytes(member() * 20)

    def cut() -> None:
        with path.open("r+b") as file:
            file.truncate(keeps * len(member()))

    producer = TextLines("a.gz")
    producer.open(Checkpoint())
    with pytest.raises(SourceError, match=r"a\.gz: the file was truncated") as caught:
        read(producer, cut, 500)
    assert "copytruncate" in str(caught.value)


def test_a_followed_file_that_is_cut_and_grows_beyond_where_it_was_read() -> None:
    path = write("a.log")
    producer = TextLines("a.log", follow=True)
    producer.open(Checkpoint())
    values: list[object] = []
    while len(values) < len(LINES):
        chunk = producer.poll(5_000)
        assert chunk is not None
        values += [record.value for record in chunk.records]
    for _ in range(3):
        producer.poll(1)
    # The same lengths: a line begins where one began before.
    write("a.log", ["9" + line[1:] for line in [*LINES, "1 more"]])
    with pytest.raises(SourceError, match="truncated") as caught:
        for _ in range(10):
            producer.poll(5_000)
    assert "rotated" in str(caught.value)
    assert path.stat().st_size > 0
    producer.close()

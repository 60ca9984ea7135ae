"""Files that are cut, written anew or replaced while they are read."""

from __future__ import annotations

import gzip
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


def test_a_gz_of_several_members_that_is_cut_between_two_of_them() -> None:
    chance = random.Random(7)
    lines = [f"{chance.getrandbits(400):x}" for _ in range(20_000)]
    members = [
        gzip.compress("".join(line + "\n" for line in lines[n : n + 1_000]).encode())
        for n in range(0, 20_000, 1_000)
    ]
    path = Path("a.gz")
    path.write_bytes(b"".join(members))

    def cut() -> None:  # right behind a member that was read, so that the data look complete
        with path.open("r+b") as file:
            file.truncate(len(members[0]))

    producer = TextLines("a.gz")
    producer.open(Checkpoint())
    with pytest.raises(SourceError, match=r"a\.gz: .*(truncated|cut short)"):
        read(producer, cut, 5_000)


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

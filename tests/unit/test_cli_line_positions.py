"""``flowctl checkpoint rewind --to BYTE:LINE``: the two numbers have to belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.cli import positions
from flowctl.cli.positions import check_line
from flowctl.core.records import Position
from flowctl.errors import ConfigError

LINES = ["one", "two", "", "four", "fünf"]
STARTS = [0, 4, 8, 9, 14]
SAVED = (14, 5)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
@pytest.mark.parametrize("partition", ["a.log", "lines:a.log"])
def test_pairs_that_belong_together_are_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch, block: int, partition: str
) -> None:
    monkeypatch.setattr(positions, "_BLOCK_BYTES", block)
    for number, start in enumerate(STARTS, start=1):
        assert check_line((start, number), partition, SAVED) == ""
    assert check_line((14, 5, 5), partition, (14, 5, 5)) == ""  # as it is saved


@pytest.mark.parametrize(
    ("position", "says", "pair"),
    [
        ((4, 3), "line 2 begins at byte 4", "Line 3 is 8:3"),
        ((5, 2), "byte 5 is within line 2", "Line 2 is 4:2"),
        ((9, 700), "line 4 begins at byte 9", "Line 4 is 9:4"),
        ((0, 0), "line 1 begins at byte 0", "Line 1 is 0:1"),
        ((13, 4), "byte 13 is within line 4", "Line 4 is 9:4"),
        ((4, 2, 3), "line 2 begins at byte 4", "Line 2 is 4:2"),
    ],
)
@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_others_are_refused_with_the_right_pair(
    place: Path, monkeypatch: pytest.MonkeyPatch,
    position: tuple[int, ...], says: str, pair: str, block: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(positions, "_BLOCK_BYTES", block)
    with pytest.raises(ConfigError, match=r"--to: .* a\.log begins: ") as caught:
        check_line(position, "a.log", SAVED)
    assert says in caught.value.problem and pair in caught.value.remedy


def test_what_can_not_be_checked_is_said(place: Path) -> None:
    assert "no file" in check_line((1, 1), "b.log", SAVED)
    (place / "b.log.gz").write_bytes(b"x")
    assert "compressed" in check_line((1, 1), "b.log.gz", SAVED)
    assert "saved position" in check_line((1, 1), "a.log", (15, 5))  # another file by now
    assert "saved position" in check_line((1, 1), "a.log", (999, 5))  # a shorter one


@pytest.mark.parametrize("position", [7, "key", (1, "a"), (1, 2, 3, 4), (1.0, 2)])
def test_positions_of_other_sources_are_none_of_its_business(
    place: Path, position: Position
) -> None:
    assert check_line(position, "a.log", 9) == ""
    assert check_line(position, "nowhere", SAVED) == ""


@given(lines=st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"")), min_size=1))
def test_every_line_of_any_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
    saved = (starts[-1], len(starts))
    for number, start in enumerate(starts, start=1):
        assert check_line((start, number), str(path), saved) == ""
        if number > 1:
            with pytest.raises(ConfigError, match="begins at byte"):
                check_line((start, number - 1), str(path), saved)

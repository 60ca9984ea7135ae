"""``flowctl dlq``: what it shows, marks and removes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from flowctl.cli import dlq
from flowctl.cli.dlq import parse_age_s
from flowctl.cli.main import main
from flowctl.core.records import Record
from flowctl.errors import ConfigError
from flowctl_files import FileDeadLetter, JsonLinesDeadLetter

NASTY = "\x1b]0;owned\x07\x1b[2J\nflowctl: all is well"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWCTL_DEAD_LETTERS", raising=False)
    return tmp_path


def keep(job: str = "visits", count: int = 3, *, reason: str = "ValueError: row 7") -> None:
    letters = FileDeadLetter()
    records = [Record((n, 1), f"value {n}") for n in range(1, count + 1)]
    letters.dead_letter(job, "in.log", records, attempts=5, reason=reason, bolts=("b1", "b2"))


def ids(job: str = "visits") -> list[str]:
    return [letter.id for letter in FileDeadLetter().file_of(job).read().of(job)]


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["dlq", *words]) == code
    said = capsys.readouterr()
    return said.out + said.err


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["dlq", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_says_how_many_why_and_since_when(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = place / ".flowctl" / "dead-letters"
    assert run(capsys, "list") == f"No dead letters in {where}.\n"
    keep(count=1200)
    FileDeadLetter().dead_letter(
        "visits", "x", [Record(1, "v")], attempts=1, reason="rejected: no id 9"
    )
    keep("other", 1)
    text = run(capsys, "list")
    assert "visits  1 201 letters · 1 rejected · 1 200 given up · newest" in text
    assert "1 200  ValueError: row #" in text and "1  no id #" in text
    assert "other  1 letter" in text
    assert "visits" not in run(capsys, "list", "other")
    assert run(capsys, "list", "nobody") == f"No dead letters of nobody in {where}.\n"
    told = as_json(capsys, "list", "visits")
    assert told["damaged"] == []
    (row,) = told["jobs"]
    assert (row["job"], row["letters"], row["rejected"], row["gave_up"]) == (
        "visits",
        1201,
        1,
        1200,
    )


def test_show_tells_which_record_why_and_what_it_was(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(count=30)
    text = run(capsys, "show", "visits")
    assert "visits · 30 letters" in text and "and 10 more: --limit 30" in text
    assert "in.log 30:1  5 attempts  on b1, b2" in text and "in.log 10:1" not in text
    assert "    ValueError: row 7\n    value 30\n" in text
    only = ids()[4]
    text = run(capsys, "show", "visits", "--id", only)
    assert "visits · 1 letter" in text and "value 5" in text and only in text
    (tree,) = as_json(capsys, "show", "visits", "--id", only)
    assert (tree["id"], tree["position"], tree["value"]) == (only, [5, 1], "value 5")
    assert len(as_json(capsys, "show", "visits", "--limit", "2")) == 2


def test_long_values_are_shortened_unless_one_is_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FileDeadLetter().dead_letter("j", "p", [Record(1, "x" * 999)], attempts=1, reason="r")
    assert "x" * 199 + "…" in run(capsys, "show", "j")
    assert "x" * 999 in run(capsys, "show", "j", "--id", ids("j")[0])


@pytest.mark.parametrize("value", [NASTY, b"\xff\x00", {1.5: [b"x", None]}, 2**64 - 1])
def test_what_others_wrote_can_not_move_the_terminal(
    place: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    FileDeadLetter().dead_letter("j", NASTY, [Record(NASTY, value)], attempts=1, reason=NASTY)
    for words in (["list"], ["show", "j"], ["show", "j", "--id", ids("j")[0]]):
        text = run(capsys, *words)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert not any(line.startswith("flowctl:") for line in text.splitlines())
    as_json(capsys, "show", "j")


def test_redrive_marks_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    text = run(capsys, "redrive", "visits", "--id", ids()[0])
    assert text.startswith("1 letter of visits: the next run")
    text = run(capsys, "redrive", "visits")
    assert "2 letters of visits: the next run" in text
    assert "1 letter already marked for redrive." in text
    text = run(capsys, "redrive", "visits")
    assert text == "3 letters already marked for redrive.\n"
    assert len(FileDeadLetter().to_redrive("visits")) == 3
    assert "3 marked for redrive" in run(capsys, "list")
    assert "redrive:" in run(capsys, "show", "visits")
    told = as_json(capsys, "redrive", "visits")
    assert told == {
        "job": "visits", "marked": 0, "waiting_before": 3, "not_exact": 0, "redrive": None,
    }  # fmt: skip


def test_drop_asks_and_takes_what_is_meant(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep()
    assert run(capsys, "drop", "visits", "--id", ids()[1], "--yes") == "1 letter dropped.\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "--yes" in run(capsys, "drop", "visits", "--all", code=2)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "Nothing was changed." in run(capsys, "drop", "visits", "--all", code=1)
    assert len(ids()) == 2
    now_s = dlq.time.time()
    monkeypatch.setattr(dlq.time, "time", lambda: now_s + 3600)
    assert run(capsys, "drop", "visits", "--older-than", "2h", "--yes") == "0 letters dropped.\n"
    assert run(capsys, "drop", "visits", "--older-than", "30min", "--yes") == "2 letters dropped.\n"
    where = place / ".flowctl" / "dead-letters"
    assert run(capsys, "list") == f"No dead letters in {where}.\n"


def test_drop_takes_those_that_redrive_has_marked(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    marked = ids()[:2]
    run(capsys, "redrive", "visits", "--id", marked[0], "--id", marked[1])
    assert run(capsys, "drop", "visits", "--marked", "--yes") == "2 letters dropped.\n"
    assert len(ids()) == 1 and ids()[0] not in marked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nobody"], "no dead letters of job 'nobody'"),
        (["redrive", "nobody"], "no dead letters of job 'nobody'"),
        (["show", "visits", "--id", "17"], "visits has no letter 17"),
        (["redrive", "visits", "--id", "17"], "visits has no letter 17"),
        (["drop", "visits"], "which letters?"),
        (["drop", "visits", "--all", "--older-than", "7d"], "which letters?"),
        (["drop", "visits", "--older-than", "soon"], "is not an age"),
        (["list", "--dir", "nowhere"], "no directory nowhere"),
        (["list", "--file", "nowhere"], "no file nowhere"),
    ],
)
def test_wrong_usage_is_2_and_says_what(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    keep()
    assert said in run(capsys, *words, code=2)
    assert len(ids()) == 3


def test_other_places(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = [Record(1, "x")]
    JsonLinesDeadLetter("dead.jsonl").dead_letter("a", "p", record, attempts=1, reason="r")
    FileDeadLetter("there").dead_letter("b", "p", record, attempts=1, reason="r")
    assert "a  1 letter" in run(capsys, "list", "--file", "dead.jsonl")
    assert "1 letter of a" in run(capsys, "redrive", "a", "--file", "dead.jsonl")
    assert "b  1 letter" in run(capsys, "list", "--dir", "there")
    assert "1 letter dropped" in run(capsys, "drop", "b", "--all", "--yes", "--dir", "there")


def test_a_line_that_was_cut_short_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    path = place / ".flowctl" / "dead-letters" / "visits.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    for words in (["list"], ["show", "visits"]):
        text = run(capsys, *words)
        assert "visits.jsonl: 1 line truncated or damaged, skipped" in text
        assert "2 letters" in text


def test_a_place_that_can_not_be_read_is_1_without_a_traceback(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep()

    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("flowctl_files._letters.os.open", refuse)
    text = run(capsys, "show", "visits", code=1)
    assert "can't be read or written: not yours" in text and "Traceback" not in text


@pytest.mark.parametrize(("text", "age_s"), [("7d", 604_800), ("1.5 h", 5_400), ("30min", 1_800)])
def test_ages(text: str, age_s: float) -> None:
    assert parse_age_s(text) == age_s


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-1d"])
def test_no_ages(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_age_s(text)


def test_a_long_digest_in_a_position_is_shortened_until_one_letter_is_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in flow_sink's: section, digest of the section, number of the row.  No text is cut."""
    record = Record(("orders of 2026-11.log", 71234567890123456, 130), "value")
    FileDeadLetter().dead_letter("sink", "run/7", [record], attempts=5, reason="ValueError: x")
    assert "  run/7 orders of 2026-11.log:712345678901…:130  5 attempts" in run(
        capsys, "show", "sink"
    )
    [only] = ids("sink")
    assert "  run/7 orders of 2026-11.log:71234567890123456:130  " in run(
        capsys, "show", "sink", "--id", only
    )
    [tree] = json.loads(run(capsys, "show", "sink", "--json"))
    assert tree["position"] == ["orders of 2026-11.log", 71234567890123456, 130]

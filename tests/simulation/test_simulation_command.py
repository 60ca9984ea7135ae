"""``flowctl simulate`` and the report that it writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowctl.cli.main import main
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.gates import judge
from flowctl_lab.simulation.report import headline, markdown, rows_of, text_table
from flowctl_lab.simulation.scenario import Gate
from flowctl_lab.simulation.sweep import Job, jobs_of, run_job, run_jobs
from tests.simulation.simulation_runs import run

_STEP = Path(__file__).parents[2] / "docs" / "images" / "step.svg"


def test_the_report_is_the_same_every_time(tmp_path: Path) -> None:
    paths = [tmp_path / "report.md", tmp_path / "again.md"]
    for path, jobs in zip(paths, ("1", "2"), strict=True):
        arguments = ["simulate", "drain", "--policy", "aiad", "--policy", "fixed:4"]
        assert main([*arguments, "--seeds", "1,2", "--jobs", jobs, "--report", str(path)]) == 0
    one, other = (path.read_text(encoding="utf-8") for path in paths)
    assert one == other.replace("again.md", "report.md")
    assert "Seeds 1, 2." in one
    assert "| fixed:4 |" in one


def test_policies_may_have_seeds_and_parts_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    arguments = ["simulate", "drain", "homog", "--policy", "just_full/40@1,2"]
    arguments += ["--policy", "aiad/40", "--seeds", "3", "--jobs", "1", "--report", str(path)]
    assert main(arguments) == 0
    report = path.read_text(encoding="utf-8")
    assert "Seeds 1, 2: just_full.  \nSeeds 3: aiad." in report
    assert "| aiad/40 |" in report  # homog is steady
    assert "| aiad |" in report  # drain is not
    assert "- aiad: min E" in report


def test_a_report_that_is_not_what_the_code_gives_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.md"
    arguments = ["simulate", "drain", "--seeds", "1", "--jobs", "1", "--report", str(path)]
    assert main([*arguments, "--verify"]) == 1  # there is none
    assert main(arguments) == 0
    assert main([*arguments, "--verify"]) == 0
    changed = path.read_text(encoding="utf-8").replace("| just_full | 0.", "| just_full | 1.")
    path.write_text(changed, encoding="utf-8")
    capsys.readouterr()
    assert main([*arguments, "--verify"]) == 1
    assert "+| just_full | 0." in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == changed


def test_a_report_may_hold_more_than_the_rows_that_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.md"
    tail = ["--jobs", "1", "--report", str(path)]
    few = ["simulate", "drain", "--seeds", "1", *tail, "--verify=rows"]
    assert main(["simulate", "drain", "--policy", "fixed:2", "--seeds", "1", *tail]) == 0
    assert main(few) == 1, "it has no row of the default policy"
    assert "+| just_full |" in capsys.readouterr().err
    policies = ["--policy", "just_full", "--policy", "fixed:2"]
    assert main(["simulate", "drain", *policies, "--seeds", "1", *tail]) == 0
    assert main(few) == 0
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace("| fixed:2 | 0.", "| fixed:2 | 1."), encoding="utf-8")
    assert main(few) == 0, "another policy's row"
    path.write_text(whole.replace("| just_full | 0.", "| just_full | 1."), encoding="utf-8")
    assert main(few) == 1
    assert "+| just_full | 0." in capsys.readouterr().err


def test_the_table_names_gates_and_the_command_that_repeats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["simulate", "drain", "--policy", "fixed:16", "--seeds", "1", "--jobs", "1"]
    assert main([*arguments, "--set", "lab.window.step=2"]) == 0
    out = capsys.readouterr().out
    assert "missed: E" in out
    assert "flowctl simulate drain --policy fixed:16 --seeds 1 --set lab.window.step=2" in out
    assert main([*arguments, "--check"]) == 1


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*CATALOGUE, "aiad", "fixed"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "no scenario 'nosuch'"),
        (["drain", "--policy", "reno"], "no policy 'reno'"),
        (["drain", "--seeds", "x"], "--seeds"),
        (["drain", "--set", "window.size=2"], "no such setting"),
        (["drain", "--plot", "x.png"], "is not an .svg"),
        (["drain", "--policy", "aiad/x"], "no part 'x'"),
        (["drain", "--policy", "aiad@x"], "--seeds"),
        (["drain", "--verify"], "no report"),
    ],
)
def test_wrong_words_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "drain.svg"
    assert main(["simulate", "drain", "--seeds", "1", "--jobs", "1", "--plot", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<svg")
    panels = [text.index(label) for label in ("speed: acked", "share: part", "capacity in use")]
    assert panels == sorted(panels), "what each bolt does and gets comes first"


def test_windows_are_drawn_where_they_move(tmp_path: Path) -> None:
    path = tmp_path / "drain.svg"
    command = ["simulate", "drain", "--policy", "aiad", "--seeds", "1", "--jobs", "1"]
    assert main([*command, "--plot", str(path)]) == 0
    assert "window [tuples]" in path.read_text(encoding="utf-8")
    assert "window [tuples]" not in _STEP.read_text(encoding="utf-8")


def test_a_gate_takes_the_worst_seed_or_the_mean() -> None:
    _, good = run(tuples=200)
    bad = msgspec.structs.replace(good, efficiency=0.5, seed=2)
    good = msgspec.structs.replace(good, efficiency=1.0)
    worst, mean = Gate("E", at_least=0.7), Gate("E", at_least=0.7, of_mean=True)
    scenario = msgspec.structs.replace(CATALOGUE["homog"], gates=(worst, mean))
    verdicts = judge(scenario, [good, bad])
    assert [(v.is_met, v.value, v.seed) for v in verdicts] == [(False, 0.5, 2), (True, 0.75, 2)]
    broken = msgspec.structs.replace(good, finished=False)
    assert not any(v.is_met for v in judge(scenario, [broken]))


def test_rows_and_headline() -> None:
    outcomes = list(run_jobs(jobs_of(["drain"], {"aiad": [1, 2]}, {}), 1))
    (row,) = rows_of(outcomes)
    assert row.seeds == (1, 2)
    assert row.min_efficiency == min(outcome.efficiency for outcome in outcomes)
    assert text_table([row]).splitlines()[1].startswith("drain")
    assert headline([row])[0].startswith("aiad: min E")
    assert markdown([row], command="x").count("\n| ") == 2


def test_a_defect_names_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("flowctl_lab.simulation.sweep.simulate", broken)
    with pytest.raises(Exception, match="flowctl simulate drain --policy aiad --seeds 7"):
        run_job(Job("drain", "aiad", 7))

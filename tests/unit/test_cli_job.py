"""Finding the spout of a job: what is there, and what is said where it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowctl.cli import find_job as jobs
from flowctl.cli.run import parse_overrides, resume_command
from flowctl.errors import ConfigError, JobError
from flowctl.runtime.flow_control_spout import FlowControlSpout

JOB = """
from flowctl import FlowControlSpout, LocalBolts
from helper_of_job import work
def make():
    bolts = LocalBolts(work, count=1)
    return FlowControlSpout(name="j", producer=[1], bolts=bolts)
spout = make()
number = 7
def other():
    return "no spout"
def broken():
    raise KeyError("missing")
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name in ("my_job", "helper_of_job", "bad", "job_json") or name.startswith("my_package"):
            del sys.modules[name]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "helper_of_job.py").write_text("def work(batch): pass\n")
    path = tmp_path / "my_job.py"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize("attribute", ["", ":spout", ":make"])
def test_an_object_or_a_function_of_a_file(job: Path, attribute: str) -> None:
    spout = jobs.load_spout(f"{job}{attribute}")
    assert isinstance(spout, FlowControlSpout)
    assert sys.modules["my_job"].__file__ == str(job)  # found by name, as pickling needs it


def test_a_module(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = job.parent / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "etl.py").write_text(JOB)
    monkeypatch.chdir(job.parent)
    assert isinstance(jobs.load_spout("my_package.etl:spout"), FlowControlSpout)


def test_a_file_named_like_a_library_does_not_replace_it(job: Path) -> None:
    import json

    namesake = job.with_name("json.py")
    namesake.write_text(JOB)
    jobs.load_spout(str(namesake))
    assert sys.modules["json"] is json


def test_no_such_file_or_module() -> None:
    with pytest.raises(ConfigError, match=r"no file nothing\.py"):
        jobs.load_spout("nothing.py:spout")
    with pytest.raises(ConfigError, match="no module no_such_package"):
        jobs.load_spout("no_such_package.etl:spout")


def test_a_missing_attribute_names_what_there_is(job: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no 'spoot'") as caught:
        jobs.load_spout(f"{job}:spoot")
    assert f"{job}:spout" in caught.value.remedy
    assert f"{job}:make" in caught.value.remedy
    assert "number" not in caught.value.remedy


@pytest.mark.parametrize(("name", "kind"), [("number", "int"), ("other", "str")])
def test_what_is_no_spout_is_refused(job: Path, name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not a FlowControlSpout but {kind}"):
        jobs.load_spout(f"{job}:{name}")


def test_a_job_that_raises_shows_its_own_traceback_only(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = job.with_name("bad.py")
    bad.write_text("def f():\n    return 1 / 0\nf()\n")
    with pytest.raises(JobError, match=r"bad\.py raised ZeroDivisionError") as caught:
        jobs.load_spout(str(bad))
    err = capsys.readouterr().err
    assert "return 1 / 0" in err and "ZeroDivisionError" in err
    assert "importlib" not in err and "cli/find_job.py" not in err
    assert caught.value.exit_code == 1


def test_a_factory_that_raises(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobError, match="raised KeyError"):
        jobs.load_spout(f"{job}:broken")
    err = capsys.readouterr().err
    assert 'raise KeyError("missing")' in err and "cli/find_job.py" not in err


def test_a_function_that_takes_arguments_is_named(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text(job.read_text() + "\ndef process(batch):\n    pass\n")
    with pytest.raises(ConfigError, match="process can't be called without arguments") as caught:
        jobs.load_spout(f"{job}:process")
    assert caught.value.field == "JOB"
    assert ":make" in caught.value.remedy
    assert ":process" not in caught.value.remedy
    assert "Traceback" not in capsys.readouterr().err


def test_a_syntax_error(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = job.with_name("bad.py")
    bad.write_text("def f(:\n")
    with pytest.raises(JobError, match="SyntaxError"):
        jobs.load_spout(str(bad))
    assert "bad.py" in capsys.readouterr().err


def test_a_wrong_setting_in_the_job_keeps_its_exit_code(job: Path) -> None:
    bad = job.with_name("bad.py")
    bad.write_text(JOB.replace('name="j"', 'name=""'))
    with pytest.raises(ConfigError, match="name"):
        jobs.load_spout(str(bad))


def test_overrides() -> None:
    assert parse_overrides(("a.b=1", "c.d=x=y")) == {"a.b": "1", "c.d": "x=y"}
    with pytest.raises(ConfigError, match="is not NAME=VALUE"):
        parse_overrides(("lab.window.policy",))


def test_the_resume_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/flowctl", "run", "my job.py:spout", "--set", "a=b"])
    assert resume_command() == "flowctl run 'my job.py:spout' --set a=b"
    monkeypatch.setattr(sys, "argv", ["/x/flowctl/cli/main.py", "run", "j.py"])
    assert resume_command() == "python -m flowctl run j.py"

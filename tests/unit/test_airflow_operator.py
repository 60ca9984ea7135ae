"""The operator and the trigger of Airflow: exit codes become states, the report is handed over."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl import DetachedRun
from flowctl.runtime.detached import STOP_TIMEOUT_S
from flowctl.runtime.run import FINAL_SAVE_TIMEOUT_S
from tests.airflow_parts import Deferred, Fails, FailsForGood, StandIn, context_of, stand_in

REPORT = {"job": "visits", "records_acked": 7, "error": None}


@pytest.fixture
def airflow() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Stands for ``flowctl``; ends as ``told`` says."""
    path = tmp_path / "flowctl"
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"told = json.load(open({str(tmp_path / 'told')!r}))\n"
        "print(*sys.argv[1:4])\n"
        "open(sys.argv[sys.argv.index('--report') + 1], 'w').write(told['report'])\n"
        f"open({str(tmp_path / 'begun')!r}, 'a').write('x')\n"
        "sys.exit(told['code'])\n"
    )
    path.chmod(0o755)
    return path


def ends(program: Path, code: int, report: str | None = None) -> None:
    told = {"code": code, "report": json.dumps(REPORT) if report is None else report}
    (program.parent / "told").write_text(json.dumps(told))


def begun(program: Path) -> int:
    return len((program.parent / "begun").read_text())


def operator_of(airflow: StandIn, program: Path, **more: Any) -> Any:
    job = str(program.parent / "visits.py")
    given = {"name": "visits", "job": job, "options": ["--quiet"], "program": str(program)}
    return airflow.names.FlowctlOperator(task_id="t", **(given | more))


@pytest.mark.parametrize(
    ("code", "raised"),
    [(0, None), (1, Fails), (130, Fails), (124, Fails)]
    + [(code, FailsForGood) for code in (2, 3, 4)],
)
def test_exit_codes_become_states_and_the_report_is_returned(
    airflow: StandIn, program: Path, code: int, raised: type[Exception] | None
) -> None:
    ends(program, code)
    operator = operator_of(airflow, program)
    if raised is None:
        assert operator.execute(context_of("monday")) == REPORT
        return
    with pytest.raises(Fails, match=f"exit code {code}") as failed:
        operator.execute(context_of("monday"))
    assert type(failed.value) is raised


@pytest.mark.parametrize("report", ["", '{"records_acked": 7, "er', "[1]"])
def test_a_report_that_was_cut_off_does_not_hide_the_exit_code(
    airflow: StandIn, program: Path, report: str
) -> None:
    ends(program, 3, report)
    with pytest.raises(FailsForGood, match="exit code 3"):
        operator_of(airflow, program).execute(context_of("monday"))


def test_what_the_run_prints_is_in_the_tasks_log(
    airflow: StandIn, program: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends(program, 0)
    with caplog.at_level("INFO"):
        operator_of(airflow, program).execute(context_of("monday"))
    assert f"run {program.parent / 'visits.py'} --quiet" in caplog.messages


def test_a_program_that_is_not_there_fails_for_good(airflow: StandIn, program: Path) -> None:
    with pytest.raises(FailsForGood, match="there is no program"):
        operator_of(airflow, program.with_name("nowhere")).execute(context_of("monday"))


def test_a_name_that_is_not_the_jobs_own_is_refused(airflow: StandIn, program: Path) -> None:
    """Under another name another task could run the job at the same time."""
    ends(program, 0)
    with pytest.raises(FailsForGood, match="name='visits'"):
        operator_of(airflow, program, name="other").execute(context_of("monday"))


async def first(events: Any) -> Any:
    return await anext(events)


def test_a_task_that_defers_ends_as_its_run_did(airflow: StandIn, program: Path) -> None:
    ends(program, 0)
    operator = operator_of(airflow, program, deferrable=True)
    with pytest.raises(Deferred) as deferred:
        operator.execute(context_of("monday"))
    path, fields = deferred.value.trigger.serialize()
    assert path == "flowctl_airflow.operator.FlowctlTrigger"
    event = asyncio.run(first(airflow.names.FlowctlTrigger(**fields).run()))
    for _ in range(2):  # the worker that goes on dies before it does, and the retry begins again
        with pytest.raises(Deferred):
            operator_of(airflow, program, deferrable=True).execute(context_of("monday"))
    again = operator_of(airflow, program, deferrable=True)
    told = getattr(again, deferred.value.method_name)(context_of("monday"), event.payload)
    assert told == REPORT
    assert begun(program) == 1
    operator_of(airflow, program).execute(context_of("monday"))
    assert begun(program) == 2, "cleared, it runs again"


def test_a_used_up_quota_is_waited_for_in_the_triggerer(
    airflow: StandIn, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker waits: the task is deferred until the moment, and runs again then."""
    until = "2026-11-29T00:00:00+00:00"
    until_s = 1_795_910_400.0
    ends(program, 75, json.dumps({**REPORT, "outcome": "paused", "paused_until": until}))
    task = {"deferrable": True}
    with pytest.raises(Deferred) as deferred:
        operator_of(airflow, program, **task).execute(context_of("monday"))
    event = asyncio.run(first(deferred.value.trigger.run()))
    with pytest.raises(Deferred) as paused:
        operator_of(airflow, program, **task).execute_complete(context_of("monday"), event.payload)
    path, fields = paused.value.trigger.serialize()
    assert path == "flowctl_airflow.operator.QuotaTrigger"
    assert 0 < fields["until_s"] - until_s < 10, "a little later: clocks differ"

    now_s, waits = until_s - 3_600, []

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        waits.append(seconds)
        now_s += seconds

    operator_module = sys.modules["flowctl_airflow.operator"]
    monkeypatch.setattr(operator_module, "time", SimpleNamespace(time=lambda: now_s))
    monkeypatch.setattr(operator_module, "asyncio", SimpleNamespace(sleep=sleep))
    event = asyncio.run(first(airflow.names.QuotaTrigger(**fields).run()))
    assert now_s >= until_s and max(waits) <= 60
    monkeypatch.undo()

    ends(program, 0)
    again = getattr(operator_of(airflow, program, **task), paused.value.method_name)
    with pytest.raises(Deferred):  # it has begun anew, and is waited for as before
        again(context_of("monday"), event.payload)
    deadline_s = time.monotonic() + 30
    while begun(program) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert begun(program) == 2


def test_without_the_triggerer_a_used_up_quota_is_a_try_that_says_until_when(
    airflow: StandIn, program: Path
) -> None:
    ends(program, 75, json.dumps({"error": "used up until 2026-11-29 00:00:00 UTC"}))
    with pytest.raises(Fails, match="until 2026-11-29") as failed:
        operator_of(airflow, program).execute(context_of("monday"))
    assert type(failed.value) is Fails


def test_a_trigger_on_another_machine_says_so(airflow: StandIn, tmp_path: Path) -> None:
    trigger = airflow.names.FlowctlTrigger("visits", str(tmp_path), "monday")
    event = asyncio.run(first(trigger.run()))
    operator = operator_of(airflow, tmp_path / "flowctl")
    with pytest.raises(Fails, match="no run of 'visits' was started in"):
        operator.execute_complete(context_of("monday"), event.payload)


def test_a_cleared_task_runs_again(airflow: StandIn, program: Path) -> None:
    ends(program, 0)
    for times in (1, 2):
        operator_of(airflow, program).execute(context_of("monday"))
        assert begun(program) == times


def test_a_try_that_was_not_told_of_success_is_told_later(airflow: StandIn, program: Path) -> None:
    ends(program, 0)
    job = str(program.parent / "visits.py")
    killed = DetachedRun(
        "visits", [str(program), "run", job], occasion="d/t/monday/-1", directory=program.parent
    )
    killed.start()
    assert operator_of(airflow, program).execute(context_of("monday")) == REPORT
    assert begun(program) == 1


def test_a_run_that_is_stopped_has_the_time_for_its_last_save() -> None:
    assert STOP_TIMEOUT_S >= FINAL_SAVE_TIMEOUT_S + 20

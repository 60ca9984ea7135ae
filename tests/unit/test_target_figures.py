"""What processes tell of the targets that they pace, as the view of their run shows it."""

from __future__ import annotations

import io

import msgspec
import pytest

from flowctl import paced
from flowctl.bolts import paced_targets
from flowctl.bolts.paced_targets import TargetTeller
from flowctl.core.messages import Heartbeat
from flowctl.core.pacing.figures import (
    OVER_S,
    SILENT_S,
    TARGETS_MAX,
    SeenTargets,
    TargetFigures,
    TargetView,
)
from flowctl.instrumentation.call_lines import target_lines
from flowctl.instrumentation.plain import PlainView
from flowctl.pacing import gates
from flowctl.runtime.meter import Meter
from tests.unit.test_runtime_claims import Driver
from tests.unit.test_view_live import screen
from tests.unit.test_view_plain import SNAPSHOT, Time

CRM = TargetView(
    target="crm",
    limit=8,
    reason="goodput kept",
    used=5.94,
    calls_per_s=59.0,
    refused_share=0.003,
    waited_s=4921.0,
)


def told(process: str = "w-1", **changes: object) -> TargetFigures:
    figures = TargetFigures(process, "crm", "etl", 8, "goodput kept", True)
    return msgspec.structs.replace(figures, **changes)


def test_the_use_of_all_processes_is_added_up_over_the_last_seconds() -> None:
    seen = SeenTargets()
    for second in range(31):
        calls = 10 * second if second <= 20 else 200 + 20 * (second - 20)
        for process in ("w-1", "w-2"):
            seen.take(
                told(process, calls=calls, call_s=calls / 5, refused=second, waited_s=second),
                float(second),
            )
    (view,) = seen.views(30.0)
    assert (view.target, view.limit, view.reason, view.alone) == ("crm", 8, "goodput kept", 0)
    assert view.used == pytest.approx(8.0)
    assert view.calls_per_s == pytest.approx(40.0)
    assert view.refused_share == pytest.approx(10 / 210)
    assert view.waited_s == 60.0


def test_what_several_bolts_of_a_process_tell_is_counted_once() -> None:
    seen = SeenTargets()
    for at_s in (0.0, 0.2, 0.4, 1.0, 1.2, 1.4):
        seen.take(told(calls=int(10 * at_s), call_s=at_s), at_s)
    (view,) = seen.views(1.4)
    assert (view.used, view.calls_per_s) == (1.0, 10.0)


def test_a_process_that_has_ended_is_left_out_but_what_it_waited_stays() -> None:
    seen = SeenTargets()
    seen.take(told("dead", waited_s=3.0), 0.0)
    seen.take(told("alive", waited_s=1.0, limit=4), SILENT_S + 1)
    (view,) = seen.views(SILENT_S + 1)
    assert (view.limit, view.waited_s) == (4, 4.0)
    seen.take(told("dead", waited_s=3.5), SILENT_S + 2)  # it had only been frozen
    assert seen.views(SILENT_S + 2)[0].waited_s == 4.5
    assert seen.views(3 * OVER_S) == ()


def test_processes_that_learn_alone_have_limits_of_their_own() -> None:
    seen = SeenTargets()
    seen.take(told("w-1", is_shared=False, limit=3), 0.0)
    seen.take(told("w-2", is_shared=False, limit=4, reason="refused"), 0.1)
    (view,) = seen.views(0.2)
    assert (view.limit, view.reason, view.alone) == (7, "refused", 2)
    seen.take(told("w-3", limit=8), 0.3)
    assert seen.views(0.3)[0].limit == 15


def test_a_bolt_tells_once_a_second_what_its_process_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.close_gates()
    with paced("crm", job="etl") as call:
        call.run(int)
    teller = TargetTeller()
    (figures,) = teller.due(10.0)
    assert (figures.target, figures.job, figures.calls, figures.is_shared) == (
        "crm",
        "etl",
        1,
        False,
    )
    assert (figures.limit, figures.reason) == (4, "start")
    assert [teller.due(10.0 + n / 4) for n in range(1, 4)] == [[], [], []]
    assert teller.due(11.0) == [figures], "the process has the same name"
    many = [told(target=f"t-{n}", call_s=float(n)) for n in range(100)]
    monkeypatch.setattr(paced_targets, "_ask", lambda: many)
    assert [each.target for each in teller.due(12.0)] == [f"t-{99 - n}" for n in range(TARGETS_MAX)]
    gates.close_gates()


def test_the_run_sees_what_its_bolts_tell() -> None:
    driver = Driver()
    meter = Meter(driver.control, None, job="j", restored=driver.control.saved)
    assert meter.snapshot("running", "").targets == ()
    driver.say("a", Heartbeat(0, 0, targets=[told()]))
    driver.now_s = 2.0
    driver.say("b", Heartbeat(0, 0, targets=[told(calls=30, call_s=6.0)]))
    (view,) = meter.snapshot("running", "").targets
    assert (view.target, view.used, view.calls_per_s) == ("crm", 3.0, 15.0)


LINE = "target crm  limit 8 (goodput kept)  used 5.9  0.3 % refused  waited 1:22:01"


def test_each_target_has_a_line_in_the_views() -> None:
    shot = msgspec.structs.replace(SNAPSHOT, targets=(CRM,))
    assert target_lines(shot) == [LINE]
    assert LINE in screen(shot)
    assert "limit 8 (goodput kept)" in screen(shot, width=80)
    assert "target" not in screen(SNAPSHOT)
    out = io.StringIO()
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    for _ in range(4):  # within a second
        view.update(shot)
    assert out.getvalue().count(f"  {LINE}\n") == 1


def test_who_learns_alone_is_said_and_of_many_targets_the_most_used_are_shown() -> None:
    alone = msgspec.structs.replace(CRM, alone=3)
    shot = msgspec.structs.replace(SNAPSHOT, targets=(alone,))
    assert "limit 8 (goodput kept; 3 processes learn alone)" in target_lines(shot)[0]
    many = tuple(
        msgspec.structs.replace(CRM, target=f"t{n}", used=float(n % 4)) for n in range(1, 7)
    )
    lines = target_lines(msgspec.structs.replace(SNAPSHOT, targets=many))
    assert [line.split()[1] for line in lines[:-1]] == ["t1", "t2", "t3", "t6"]
    assert lines[-1] == "and 2 targets more"


def test_a_name_with_control_codes_is_shown_escaped() -> None:
    shot = msgspec.structs.replace(
        SNAPSHOT, targets=(msgspec.structs.replace(CRM, target="a\x1b[2J[red]b"),)
    )
    shown = screen(shot)
    assert "\x1b" not in shown
    assert r"a\x1b[2J[red]b" in shown

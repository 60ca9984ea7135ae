"""What processes tell of the targets that they pace, as the view of their run shows it."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["w-1", "w-2", "w-3"]),
        st.sampled_from(["crm", "pg"]),
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0, 7.0]),  # later
        st.integers(0, 9),  # calls
        st.integers(0, 3),  # refused
        st.booleans(),  # is the limit shared
        st.booleans(),  # does somebody look
    ),
    max_size=40,
)


@given(STEPS)
def test_a_view_is_what_all_that_was_told_lately_comes_to(
    steps: list[tuple[str, str, float, int, int, bool, bool]],
) -> None:
    """Against all reports, kept for ever."""
    seen, now_s = SeenTargets(), 0.0
    sums: dict[tuple[str, str], TargetFigures] = {}
    kept: dict[tuple[str, str], list[tuple[float, TargetFigures]]] = {}
    waited: dict[tuple[str, str], float] = {}
    for process, target, later_s, calls, refused, is_shared, looks in steps:
        now_s += later_s
        key, before = (process, target), sums.get((process, target), told(process, target=target))
        figures = sums[key] = msgspec.structs.replace(
            before, calls=before.calls + calls, call_s=before.call_s + calls / 4,
            refused=before.refused + refused, waited_s=before.waited_s + refused,
            is_shared=is_shared, limit=1 + calls,
        )  # fmt: skip
        seen.take(figures, now_s)
        reports = kept.setdefault(key, [])
        if not reports or now_s - reports[-1][0] >= 0.9:
            reports.append((now_s, figures))
            waited[key] = figures.waited_s
        if not looks:
            continue
        views = seen.views(now_s)
        for its in kept.values():
            if its and now_s - its[-1][0] > SILENT_S:
                its.clear()
        names = sorted({name for (_, name), its in kept.items() if its})
        assert [view.target for view in views] == names
        for view in views:
            check(view, [its for (_, name), its in kept.items() if its and name == view.target])
            assert view.waited_s == sum(s for (_, name), s in waited.items() if name == view.target)


def check(view: TargetView, told_of_it: list[list[tuple[float, TargetFigures]]]) -> None:
    used = calls_per_s = calls = refused = 0.0
    for reports in told_of_it:
        last_s, last = reports[-1]
        since = [report for report in reports if last_s - report[0] <= OVER_S]
        first_s, first = since[0] if len(since) > 1 else reports[-2:][0]
        calls += last.calls - first.calls
        refused += last.refused - first.refused
        if last_s > first_s:
            used += (last.call_s - first.call_s) / (last_s - first_s)
            calls_per_s += (last.calls - first.calls) / (last_s - first_s)
    assert (view.used, view.calls_per_s) == (pytest.approx(used), pytest.approx(calls_per_s))
    assert view.refused_share == pytest.approx(refused / (calls + refused) if refused else 0.0)
    newest = [reports[-1] for reports in told_of_it]
    shared = [(at_s, figures.limit) for at_s, figures in newest if figures.is_shared]
    alone = [figures for _, figures in newest if not figures.is_shared]
    last_at_s = max((at_s for at_s, _ in shared), default=0.0)
    # Of processes that told it at the same moment, either may be right.
    limits = {limit for at_s, limit in shared if at_s == last_at_s} or {0}
    assert view.limit - sum(figures.limit for figures in alone) in limits
    assert view.alone == len({figures.process for figures in alone})


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
    with paced("crm", name="etl") as call:
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

"""The view below a notebook's cell."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from flowctl.instrumentation.notebook import EVERY_S, LINES_MAX, NotebookView
from flowctl.instrumentation.plain import PlainView
from flowctl.instrumentation.snapshot import Limit, Verdict
from flowctl.instrumentation.views import make_view
from tests.unit.test_view_plain import REPORT, SNAPSHOT, Time

HOSTILE = "<script>alert(1)</script>"


class Cell:
    """What is below the cell: the states that were shown, the newest last."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.clock = Time()
        self.view = NotebookView(self.shown.append, clock=self.clock)

    @property
    def newest(self) -> str:
        return self.shown[-1]


def test_it_says_the_verdict_the_figures_and_how_it_ended() -> None:
    cell = Cell()
    cell.view.start("j", "4 bolts")
    cell.clock.now_s += EVERY_S
    full = Verdict(limit=Limit.TARGET, headline="the target is the limit", remedy="Make it faster.")
    cell.view.update(msgspec.structs.replace(SNAPSHOT, verdict=full, progress=0.25))
    for told in ("The target is the limit", "Make it faster.", "25 %", "a kill now would run"):
        assert told in cell.newest
    cell.view.stop(REPORT)
    assert 'value="1.0000"' in cell.newest
    assert REPORT.outcome.capitalize() in cell.newest


def test_it_is_drawn_once_a_second_and_stays_small() -> None:
    cell = Cell()
    cell.view.start("j", "4 bolts")
    before = len(cell.shown)
    for _ in range(8):
        cell.clock.now_s += EVERY_S / 4
        cell.view.update(SNAPSHOT)
    assert len(cell.shown) - before == 2
    for number in range(3 * LINES_MAX):
        cell.view.message(f"line {number}")
    lines = cell.newest.partition("<pre")[2].partition(">")[2].splitlines()
    assert len(lines) == LINES_MAX
    assert f"line {3 * LINES_MAX - 1}" in lines[-1]


def test_names_and_errors_are_text_and_no_html() -> None:
    cell = Cell()
    cell.view.start(HOSTILE, HOSTILE)
    cell.view.message(HOSTILE)
    cell.clock.now_s += EVERY_S
    why = Verdict(limit=Limit.TARGET_DOWN, headline=HOSTILE, remedy=HOSTILE)
    cell.view.update(msgspec.structs.replace(SNAPSHOT, verdict=why, note=HOSTILE))
    cell.view.stop(msgspec.structs.replace(REPORT, job=HOSTILE, outcome="failed", error=HOSTILE))
    assert not any("<script" in html.lower() for html in cell.shown)


@pytest.mark.parametrize(("kernel", "kind"), [(object(), NotebookView), (None, PlainView)])
def test_auto_is_the_cell_only_in_a_kernel(
    kernel: object, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    display = ModuleType("IPython.display")
    vars(display).update(
        HTML=str,
        display=lambda html, display_id: drawn.append(html) or SimpleNamespace(update=drawn.append),
    )
    ipython = ModuleType("IPython")
    vars(ipython).update(get_ipython=lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    view = make_view("auto")
    assert type(view) is kind
    if kernel is not None:
        view.start("j", "4 bolts")
        view.stop(REPORT)
        assert len(drawn) == 2, "one place, which is replaced"
    assert type(make_view("plain")) is PlainView

"""Every number that a run tells people and machines, compared with what is committed.

Three cores are driven by hand in virtual time (a source by value, by reference, a topology), so
that each value is exact.  What ``--report``, ``/metrics``, the log, the plain lines and the screen
make of them is in ``numbers_told/``.  ``FLOWCTL_SNAPSHOTS=write pytest`` writes those files; look
at the difference before you commit it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from rich.console import Console

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.driver import DriverCore
from flowctl.core.events import FlowEvent
from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Emission,
    Fail,
    LongCall,
    Rejected,
    RejectedRecord,
    SplitAnswer,
)
from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.records import Checkpoint, Record
from flowctl.errors import RetryLater
from flowctl.instrumentation.live import LiveView
from flowctl.instrumentation.metrics_server import Scraped, metrics_app
from flowctl.instrumentation.plain import PlainView
from flowctl.instrumentation.run_events import PROGRESS_EVERY_S, RunEvents
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.instrumentation.views import BaseView
from flowctl.runtime.control import RunControl
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.losses import Losses
from flowctl.runtime.meter import Meter
from flowctl.testing.clock import ManualClock
from flowctl_storm import Collector, Input, Topology
from flowctl_storm.local_stages import LocalStages
from tests.core_driver import Driver
from tests.listener_parts import Letters
from tests.range_driver import split_scene
from tests.range_parts import NumberRanges
from tests.runtime_parts import ListProducer
from tests.topology_driver import Hub, passing, topology

pytest.importorskip("prometheus_client")

TOLD = Path(__file__).parent / "numbers_told"
AT = datetime(2026, 11, 22, 3, 4, 5, tzinfo=timezone.utc)
# What differs from one machine to the next, or from one release to the next.
_OF_HERE = {"versions", "version", "host", "pid"}


class Watched:
    """A core that somebody drives, and a meter that reads it."""

    def __init__(self, core: DriverCore, clock: ManualClock, *, letters: Any = None) -> None:
        self.clock = clock
        self.control = RunControl(core, clock=clock)
        self.meter = Meter(self.control, None, job="j", restored=Checkpoint())
        self.losses = Losses(None, letters, job="j")
        self.events: list[FlowEvent] = []

    def take(self, events: Iterable[FlowEvent]) -> None:
        for event in events:
            self.events.append(event)
            self.losses.take(event)
            self.meter.take(event)

    def text(self, extend: Any = lambda report: report) -> str:
        """All that is told of the run as it is now, as one text."""
        self._note_what_bolts_tell()
        snapshot = self.meter.snapshot("running", "a note")
        report = self.losses.completed(self.meter.report("finished", None, 7))
        report = extend(report)
        log, report = self._logged(snapshot, report)
        parts = {
            "--report": json.dumps(_masked(msgspec.to_builtins(report)), indent=1, sort_keys=True),
            "/metrics": "\n".join(_scraped(snapshot)),
            "log": "\n".join(log),
            "--plain": self._plain(snapshot, report),
            "screen": _screen(snapshot),
        }
        return "".join(f"== {name}\n{text.rstrip()}\n" for name, text in parts.items())

    def _note_what_bolts_tell(self) -> None:
        """As the sender does with what heartbeats bring."""
        control, now_s = self.control, self.clock()
        told = TargetFigures("w-1", "crm", "j", 8, "goodput kept", True)
        control.targets.take(told, now_s)
        told = msgspec.structs.replace(told, calls=40, call_s=20.0, refused=10, waited_s=3.5)
        self.clock.advance(4.0)
        control.targets.take(told, self.clock())
        control.long_calls.take("a", [LongCall("p", 7, 9, 42.0)], self.clock())
        control.long_calls.overdue = 2

    def _logged(self, snapshot: Snapshot, report: Report) -> tuple[list[str], Report]:
        with structlog.testing.capture_logs() as logs:
            clock = ManualClock()
            told = RunEvents(
                "j", Settings(), clock=clock, now=lambda: AT, logger=structlog.get_logger()
            )
            told.started()
            clock.advance(PROGRESS_EVERY_S)
            told.look(snapshot)
            report = told.finished(report)
        return [json.dumps(_masked(line), sort_keys=True) for line in logs], report

    def _plain(self, snapshot: Snapshot, report: Report) -> str:
        out = io.StringIO()
        view = PlainView(out, clock=lambda: 0.0)
        view.start("j", "j · 3 bolts")
        for event in self.events:
            view.event(event)
        view.update(snapshot)
        view.stop(report)
        return _without_wall_clock(out.getvalue())


def _masked(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: "…" if key in _OF_HERE else value for key, value in fields.items()}


def _without_wall_clock(text: str) -> str:
    return re.sub(r"since \d\d:\d\d:\d\d", "since …", text)


def _scraped(snapshot: Snapshot) -> Iterator[str]:
    scraped = Scraped(BaseView())
    scraped.update(snapshot)
    [text] = metrics_app(scraped)({}, lambda status, headers: None)
    for line in text.decode().splitlines():
        if "bucket" in line and not re.search(r'le="(0.025|.Inf)"', line):
            continue
        if " flowctl_" in line or line.startswith("flowctl_"):  # the others are of the process
            yield re.sub(r'(python|version)="[^"]*"', r'\1="…"', line)


def _screen(snapshot: Snapshot) -> str:
    console = Console(width=150, height=50, record=True, file=io.StringIO())
    view = LiveView(console=console, clock=lambda: 0.0)
    view.start("j", "j · 3 bolts")
    console.print(view.render(snapshot))
    lines = console.export_text().splitlines()
    return _without_wall_clock("\n".join(line.rstrip() for line in lines))


# -- three runs ------------------------------------------------------------------------------


def by_value() -> str:
    """Bolts ack, fail, reject, break the protocol, fall silent and die; then nothing succeeds."""
    driver = Driver(
        "a", "b", "c", has_dead_letter=True, tuple_records_max=4, window_policy="fixed",
        window_initial=2, retry_attempts_max=2, hedge_enabled=True,
    )  # fmt: skip
    watched = Watched(driver.core, driver.clock, letters=Letters())
    driver.offer(400)
    driver.offer(8, "q")
    answers = itertools.cycle(_ANSWERS)
    for turn in range(14):
        for emission in driver.emit():
            driver.wait(1 / 64)
            if emission.bolt in driver.core.bolts:
                next(answers)(driver, emission)
        driver.wait(0.25)
        _keep_letters(driver)
        _IN_TURN.get(turn, _nothing)(driver)
        watched.meter.snapshot("running", "")  # a bolt that goes was seen before
    driver.settle()
    watched.take(driver.log)
    return watched.text()


def _ack(driver: Driver, emission: Emission) -> None:
    _ack_with(driver, emission, wait_s=0.002, service_s=0.006, idle_total_s=0.0)


def _ack_twice(driver: Driver, emission: Emission) -> None:
    _ack(driver, emission)
    _ack(driver, emission)


def _reject(driver: Driver, emission: Emission) -> None:
    _ack_with(driver, emission, rejected=[Rejected(0, "no number: 'x'")])


def _leave_out(driver: Driver, emission: Emission) -> None:
    _ack_with(driver, emission, left_out=len(emission.records))


def _ack_with(driver: Driver, emission: Emission, **more: Any) -> None:
    epoch = driver.core.bolts[emission.bolt].epoch
    ack = DetailedAck(emission.tuple_id, emission.attempt, **more)
    driver.core.on_ack(emission.bolt, epoch, ack, now_s=driver.clock())


def _fail(driver: Driver, emission: Emission) -> None:
    driver.fail(emission, epoch=driver.core.bolts[emission.bolt].epoch)


def _refuse(driver: Driver, emission: Emission) -> None:
    epoch = driver.core.bolts[emission.bolt].epoch
    fail = Fail(emission.tuple_id, emission.attempt, "429", is_refused=True)
    driver.core.on_fail(emission.bolt, epoch, fail, now_s=driver.clock())


def _nothing(*_: Any) -> None:
    """Nothing is heard of it."""


_ANSWERS = (_ack, _ack, _ack_twice, _ack, _reject, _ack, _leave_out, _fail, _nothing, _ack, _fail)


def _set_aside(driver: Driver) -> None:
    record = Record(999, "it can't be sent")
    assert driver.core.set_aside("r", record, reason="not encodable", now_s=driver.clock())


def _take_away(driver: Driver) -> None:
    driver.offer(8, "q")
    driver.emit()
    driver.core.handover.take_away("q", now_s=driver.clock())


def _break_protocol(driver: Driver) -> None:
    driver.core.drop_peer("b", now_s=driver.clock(), reason="a tuple that it was never given")


def _die(driver: Driver) -> None:
    driver.remove("c", reason="its worker died")
    driver.add("c", epoch=2)


def _expire(driver: Driver) -> None:
    """All that bolts hold expires, and then they ack it: late."""
    held = driver.emit()
    driver.wait(10.0)
    for emission in held:
        _ack(driver, emission)


def _lose(driver: Driver) -> None:
    """What is sent never arrives: the bolts say that they have nothing to do."""
    driver.emit()
    driver.wait(0.5)
    for bolt in driver.core.bolts:
        driver.beat(bolt, epoch=driver.core.bolts[bolt].epoch)


def _refuse_all(driver: Driver) -> None:
    """Nothing succeeds any more."""
    for _ in range(20):
        for emission in driver.emit():
            _refuse(driver, emission)
        driver.wait(1.0)


def _say_nonsense(driver: Driver) -> None:
    ack = Ack(99_999, 1)
    driver.core.on_ack("a", 1, ack, now_s=driver.clock())


_IN_TURN = {
    1: _expire,
    2: _set_aside,
    4: _lose,
    5: _take_away,
    6: _break_protocol,
    8: _die,
    10: _say_nonsense,
    13: _refuse_all,
}


def _keep_letters(driver: Driver) -> None:
    while (letter := driver.core.poll_dead_letter()) is not None:
        driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())


def by_reference() -> str:
    """Ranges that are done in parts, split, rejected in part, failed, and read again."""
    ranges, ours = split_scene(has_dead_letter=True)
    core, clock = ranges.core, ranges.clock
    watched = Watched(core, clock, letters=Letters())
    (question,) = ranges.questions()
    core.on_split("a", 1, SplitAnswer(ours.tuple_id, question.request, 500_000), now_s=clock())
    (rest,) = ranges.emit()
    ranges.did(ours, 100_000, 200_000, rejected=[RejectedRecord(150_000, "x", "no number: 'x'")])
    ranges.did(ours, 200_000, 250_000, left_out=500)
    ranges.did(ours, 200_000, 250_000)
    ranges.failed(rest, rest.start, rest.start + 64)
    ranges.wait(1.0, "a", "b")
    core.remove_bolt("a", now_s=clock(), reason="its worker died")
    ranges.wait(1.0, "b")
    ranges.emit()
    while (letter := core.poll_dead_letter()) is not None:
        core.on_dead_lettered(letter.gave_up.tuple_id, now_s=clock())
    watched.take(iter(core.poll_event, None))
    return watched.text()


def of_stages() -> str:
    """Trees that are complete, fail, are sent again, given up and dropped; a stage refuses."""

    def first(given: Input, out: Collector) -> None:
        if given.value == 5 and not refused:
            refused.append(given)
            raise RetryLater("429")
        if given.value == 9:
            out(given.value, stream="nobody's")
        out(given.value)

    def last(given: Input, out: Collector) -> None:
        if given.value in (7, 8):
            raise ValueError("poison")

    refused: list[Input] = []
    made = topology()
    made.bolt("a", first, count=2).shuffle("s")
    made.bolt("b", last).shuffle("a")
    ids = itertools.count(1)
    hub = Hub(
        made, next_id=lambda: next(ids) * 0x9E3779B97F4A7C15 % (1 << 64), has_dead_letter=True,
        overrides={"retry.attempts_max": 2, "tuple.records_max": 4, "lab.window.policy": "fixed"},
    )  # fmt: skip
    clock = ManualClock()
    watched = Watched(hub.core, clock, letters=Letters())
    hub.offer(range(1, 31))
    for turn in range(60):
        if not hub.step():
            hub.now_s += 0.25
        if turn == 3:
            hub.kill("a.2")
        while (letter := hub.core.poll_dead_letter()) is not None:
            hub.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=hub.now_s)
    clock.advance_to(hub.now_s)
    hub.offer(range(31, 35), start=31)
    hub.step()
    watched.take(hub.events)
    hub.take_news()
    hub.job.teller.start()
    return watched.text(hub.job.extended)


def nothing_again() -> str:
    """A mode that sends nothing again drops what fails and what is lost."""
    driver = Driver("a", "b", guarantee_mode="at_most_once", tuple_records_max=3)
    watched = Watched(driver.core, driver.clock)
    driver.offer(30)
    driver.core.on_committed()
    first, second, *_ = driver.emit()
    driver.wait(0.25)
    driver.fail(first)
    _ack(driver, second)
    driver.emit()
    driver.remove("b", reason="its worker died")
    watched.take(driver.log)
    return watched.text()


RUNS = (by_value, by_reference, of_stages, nothing_again)


@pytest.mark.parametrize("run", RUNS)
def test_what_is_told_of_a_run_is_what_is_committed(run: Callable[[], str]) -> None:
    path, told = TOLD / f"{run.__name__}.txt", run()
    if os.environ.get("FLOWCTL_SNAPSHOTS") == "write":
        path.write_text(told, encoding="utf-8")
    assert told == path.read_text(encoding="utf-8")


# -- a real run ------------------------------------------------------------------------------


def committed_report(name: str) -> dict[str, Any]:
    _, _, rest = (TOLD / f"{name}.txt").read_text(encoding="utf-8").partition("== --report\n")
    report: dict[str, Any] = json.loads(rest.partition("== ")[0])
    return report


def shape(value: Any) -> Any:
    """The keys of ``value`` at any depth; of a list, those of its first; a number's type."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value) if type(value) in (int, bool) else None


def spout(producer: Any) -> Callable[..., Any]:
    made = FlowControlSpout(
        name="j", producer=producer, bolts=LocalBolts(lambda batch: None, count=1)
    )
    return made.run


def stages() -> Callable[..., Any]:
    made = Topology("j")
    made.spout("s", ListProducer(5))
    made.bolt("a", passing).shuffle("s")
    return made.job(LocalStages()).run


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("by_value", spout(ListProducer(5))),
        ("by_reference", spout(NumberRanges(p=50))),
        ("of_stages", stages()),
    ],
)
def test_a_real_run_writes_the_same_keys_and_types(
    name: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where checkpoints are: all three runs are of a job "j"
    run(view="quiet", report_path=tmp_path / "report.json")
    written, wanted = json.loads((tmp_path / "report.json").read_text()), committed_report(name)
    assert written.keys() == wanted.keys()
    assert list(written)[:3] == ["job", "outcome", "error"], "what one looks for stands first"
    for key in wanted.keys() - _OF_HERE:
        if written[key] and wanted[key]:
            assert shape(written[key]) == shape(wanted[key]), key


@pytest.mark.parametrize("name", ["by_value", "by_reference", "nothing_again"])
def test_what_was_written_can_be_read_as_a_report_and_be_pickled(name: str) -> None:
    written = {key: value for key, value in committed_report(name).items() if key not in _OF_HERE}
    report = msgspec.convert(written, Report)
    assert report.records_acked == written["records_acked"]
    assert pickle.loads(pickle.dumps(report)) == report
    with pytest.raises(AttributeError, match="immutable"):
        report.records_acked = 1  # type: ignore[misc]

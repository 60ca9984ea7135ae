"""What a run shows is kept beside its checkpoint, and ``flowctl top`` shows it elsewhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from flowctl.bolts.local import LocalBolts
from flowctl.cli.watching import Watch, top
from flowctl.core import events as ev
from flowctl.core.records import AckedRange
from flowctl.errors import CheckpointUnavailableError, ConfigError
from flowctl.instrumentation.page import PageState
from flowctl.instrumentation.shown import SILENT_S, Shower, Shown, pack, unpack
from flowctl.instrumentation.snapshot import PartitionView, Report, Snapshot
from flowctl.instrumentation.views import BaseView
from flowctl.runtime.file_store import FileCheckpointStore
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.clock import ManualClock
from tests.runtime_parts import ListProducer, Witness
from tests.unit.test_view_plain import REPORT, SNAPSHOT

WAIT_S = 30.0  # a thread of a busy machine


def shown_at(second: float, snapshot: Snapshot | None = SNAPSHOT, **more: Any) -> Shown:
    return Shown(
        job="j", headline="1 bolt", driver="process 7 on host", at_unix_ms=int(second * 1000),
        snapshot=snapshot, **more,
    )  # fmt: skip


class Place:
    """Keeps what is shown; fails on demand."""

    def __init__(self) -> None:
        self.kept: list[Shown] = []
        self.came = threading.Event()
        self.is_away = False

    def keep(self, data: bytes) -> None:
        self.came.set()
        if self.is_away:
            raise CheckpointUnavailableError("nobody answers.", remedy="Wait.")
        found = unpack(data)
        assert found is not None
        self.kept.append(found)


def test_a_snapshot_and_a_report_come_back_as_they_were() -> None:
    above = (AckedRange(first=(1, "x"), last=(2, "y"), records=3),)
    part = PartitionView(name="a", position=10, records=10, acked_above=above)
    told = shown_at(5.0, msgspec.structs.replace(SNAPSHOT, partitions=(part,)), report=REPORT)
    assert unpack(pack(told)) == told


def test_a_name_that_is_not_utf_8_is_made_printable() -> None:
    found = unpack(pack(msgspec.structs.replace(shown_at(5.0), job="a\udcff")))
    assert found is not None and found.snapshot == SNAPSHOT
    assert found.job.startswith("a") and found.job.encode()


@pytest.mark.parametrize("data", [b"", b"x", pack(shown_at(1.0))[:-9]])
def test_what_is_damaged_or_of_another_version_is_nothing(data: bytes) -> None:
    assert unpack(data) is None


def test_the_view_beside_is_told_all_and_others_get_the_newest_and_the_end() -> None:
    place, beside, alone = Place(), Witness(), Witness()
    shower = Shower(beside, place.keep, every_s=1e-3, now=lambda: 1000.0)
    for view in (shower, alone):
        view.start("j", "1 bolt")
        view.message("a line")
        view.update(SNAPSHOT)
    assert place.came.wait(WAIT_S)
    for view in (shower, alone):
        view.stop(REPORT)
    assert vars(beside) == vars(alone)
    last = place.kept[-1]
    assert (last.snapshot, last.report, last.at_unix_ms) == (SNAPSHOT, REPORT, 1_000_000)


def test_a_place_that_is_away_costs_the_run_nothing() -> None:
    place, beside = Place(), Witness()
    place.is_away = True
    shower = Shower(beside, place.keep, every_s=1e-3)
    shower.start("j", "1 bolt")
    shower.update(SNAPSHOT)
    assert place.came.wait(WAIT_S)
    shower.stop(REPORT)
    assert beside.report == REPORT and place.kept == []


def test_no_event_is_shown_to_others_as_it_may_quote_a_record() -> None:
    place = Place()
    shower = Shower(Witness(), place.keep, every_s=1e-3)
    shower.start("j", "1 bolt")
    shower.event(
        ev.RecordsRejected(
            at_s=1.0, tuple_id=1, bolt="b1", partition="a", positions=(7,),
            reasons=("'4929 1234' is no card",),
        )
    )  # fmt: skip
    shower.message("'4929 1234' is no card")
    shower.update(SNAPSHOT)
    shower.stop(REPORT)
    assert place.kept and not any("4929" in str(each) for each in place.kept)


class Watched:
    """What a watcher reads, one after the other; its clock moves by a second each time."""

    def __init__(self, *states: Shown | Exception | float) -> None:
        self.states = list(states)
        self.now_s = 0.0

    def read(self) -> Shown | None:
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        if isinstance(state, float):  # nothing new for so long
            self.now_s += state
            return None
        return state

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def shown_by(self, view: Any, **parts: Any) -> None:
        first = self.states.pop(0)
        assert isinstance(first, Shown)
        Watch(self.read, view, now=lambda: self.now_s, sleep=self.sleep, **parts).run(first)


def later(elapsed_s: float) -> Snapshot:
    return msgspec.structs.replace(SNAPSHOT, elapsed_s=elapsed_s)


def test_a_watcher_shows_each_state_once_and_the_end() -> None:
    view, joined = Witness(), []
    second = shown_at(1.0, later(6.0))
    watched = Watched(shown_at(0.0), second, second, shown_at(3.0, later(8.0), report=REPORT))
    watched.shown_by(view, join=joined.append)
    assert view.snapshots == [SNAPSHOT, later(6.0), later(8.0)]
    assert view.report == REPORT and joined == [5.0]
    assert view.messages[0] == "1 bolt" and "process 7 on host" in view.messages[1]


def test_a_driver_without_a_word_and_a_store_that_is_away_are_told_once() -> None:
    view = Witness()
    away = CheckpointUnavailableError("nobody answers.", remedy="Wait.")
    end = shown_at(90.0, report=REPORT)
    Watched(shown_at(0.0), SILENT_S, 1.0, away, away, end).shown_by(view)
    told = [text.split(" since")[0] for text in view.messages[2:]]
    assert told == ["no word", "nobody answers."]
    fresh = Witness()
    Watched(shown_at(0.0), SILENT_S - 3.0, end).shown_by(fresh)
    assert len(fresh.messages) == 2, "a driver may be late"


def test_a_new_run_after_a_kill_is_shown_by_the_same_watcher() -> None:
    view, joined = Witness(), []
    again = msgspec.structs.replace(shown_at(20.0, later(0.5)), driver="process 8 on host")
    end = msgspec.structs.replace(again, report=REPORT)
    Watched(shown_at(0.0), SILENT_S, again, end).shown_by(view, join=joined.append)
    assert joined == [5.0, 0.5] and "process 8" in view.messages[-1]
    page = PageState(clock=ManualClock())
    for snapshot in (later(6.0), later(0.5)):
        page.update(snapshot)
    whole = json.loads(page.whole())
    assert [column[0] for column in whole["columns"]] == [0]
    assert [point[0] for point in whole["curve"]] == [0.5]


def test_times_are_those_of_the_run_and_not_of_the_watcher() -> None:
    view = BaseView(clock=lambda: 100.0)
    view.start("j", "1 bolt")
    view.join(65.0)
    assert view.now() == "1:05.0"


def test_top_shows_how_a_run_ended_and_names_those_it_knows(tmp_path: Path) -> None:
    spout = FlowControlSpout(
        name="job <b>",
        producer=ListProducer(50),
        bolts=LocalBolts(lambda batch: None, count=1),
        checkpoint=FileCheckpointStore(tmp_path),
    )
    spout.run(view="off")
    found = unpack(FileCheckpointStore(tmp_path).shown("job <b>"))
    assert found is not None and isinstance(found.report, Report)
    done = CliRunner().invoke(top, ["job <b>", "--dir", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0 and "finished · 50 records" in done.output + done.stderr
    with pytest.raises(ConfigError, match=r"NAME: no run of 'x'.*Known: job <b>"):
        CliRunner().invoke(top, ["x", "--dir", str(tmp_path)], catch_exceptions=False)


def test_top_refuses_what_another_version_wrote(tmp_path: Path) -> None:
    FileCheckpointStore(tmp_path).show("j", b"other")
    with pytest.raises(ConfigError, match="another version"):
        CliRunner().invoke(top, ["j", "--dir", str(tmp_path)], catch_exceptions=False)

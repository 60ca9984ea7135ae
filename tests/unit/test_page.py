"""What the page of a run shows, and that words of others stay words."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl import Page
from flowctl.bolts.local import LocalBolts
from flowctl.core import events as ev
from flowctl.core.pacing.figures import TargetView
from flowctl.core.records import AckedRange
from flowctl.errors import CheckpointUnavailableError, ConfigError
from flowctl.instrumentation import team_page
from flowctl.instrumentation.explained import SHARE_MIN, SPENT
from flowctl.instrumentation.page import (
    KINDS_SHOWN,
    PageState,
    PageView,
    page_html,
    page_with,
    policy,
)
from flowctl.instrumentation.page_parts import (
    CELLS_MAX,
    CELLS_OF_ALL,
    POINTS_MAX,
    ROWS_ALL,
    ROWS_OF_MANY,
)
from flowctl.instrumentation.snapshot import (
    BoltView,
    Limit,
    PartitionView,
    Shares,
    Snapshot,
    Verdict,
    WaitReason,
)
from flowctl.runtime.file_store import FileCheckpointStore
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.clock import ManualClock
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import FailingStore, ListProducer, Witness
from tests.unit.test_view_plain import BOLT, REPORT, SNAPSHOT

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[2J\u202e\ud800"


def state_of(*snapshots: Snapshot, **parts: Any) -> PageState:
    state = PageState(clock=ManualClock(), now=lambda: 1_000_000.0, **parts)
    state.start("job", "1 bolt")
    for snapshot in snapshots:
        state.update(snapshot)
    return state


def shown(*snapshots: Snapshot, **parts: Any) -> dict[str, Any]:
    """What the page shows after these snapshots."""
    found: dict[str, Any] = json.loads(state_of(*snapshots, **parts).newest)
    return found


def bolts_of(number: int, **changes: Any) -> tuple[BoltView, ...]:
    return tuple(
        msgspec.structs.replace(BOLT, name=f"b{n}", records_per_s=100.0, **changes)
        for n in range(1, number + 1)
    )


def with_one_slow(number: int, slow: str) -> Snapshot:
    bolts = tuple(
        msgspec.structs.replace(bolt, records_per_s=5.0) if bolt.name == slow else bolt
        for bolt in bolts_of(number)
    )
    return msgspec.structs.replace(
        SNAPSHOT, bolts=bolts, held_up_by=WaitReason.BACKPRESSURE, held_up_share=0.9
    )


def test_first_the_verdict_with_its_remedy_since_when_and_where_the_time_went() -> None:
    verdict = Verdict(
        limit=Limit.TARGET,
        headline="the target is the limit",
        why="8 calls at once",
        remedy="Raise its quota.",
        since_s=3.0,
        shares=Shares(service=0.7, sink=0.298, driver=0.002),
    )
    told = shown(msgspec.structs.replace(SNAPSHOT, verdict=verdict))["verdict"]
    assert told["sentence"] == "The target is the limit: 8 calls at once"
    assert (told["tone"], told["remedy"]) == ("warn", "Raise its quota.")
    assert re.fullmatch(r"since \d\d:\d\d:\d\d", told["since"])
    assert told["shares"] == [
        ["sink", 0.298, "30 %", "calls wait for the target"],
        ["service", 0.7, "70 %", "process works"],
    ]
    assert SHARE_MIN > 0.002, "what can't be seen is left out"


def test_each_share_of_the_time_has_words() -> None:
    assert set(SPENT) == set(Shares.__struct_fields__)


@pytest.mark.parametrize(
    ("limit", "tone"), [("nothing", "calm"), ("source", "warn"), ("target_down", "bad")]
)
def test_the_verdict_is_loud_only_where_somebody_must_act(limit: str, tone: str) -> None:
    verdict = Verdict(limit=Limit(limit), headline="so it is")
    assert shown(msgspec.structs.replace(SNAPSHOT, verdict=verdict))["verdict"]["tone"] == tone


def test_four_figures_say_when_it_is_done_how_fast_what_a_kill_costs_and_what_failed() -> None:
    tiles = {tile[0]: tile[1:] for tile in shown(SNAPSHOT)["tiles"]}
    assert tiles["done"] == ["21 %", "0:19 to go"]
    assert tiles["pace"] == ["8 400/s", "1 of 1 bolt up"]
    assert tiles["a kill now would run"] == ["1 200 records again", "40 000 saved"]
    assert tiles["left out"] == ["0 records", "none failed"]
    forgetful = msgspec.structs.replace(SNAPSHOT, store_survives=False)
    assert {tile[0]: tile[1] for tile in shown(forgetful)["tiles"]}["a kill now would run"] == (
        "everything again"
    )


def test_slow_bolts_come_first_and_the_others_keep_their_places() -> None:
    rows = shown(with_one_slow(12, "b7"))["bolts"]["rows"]
    assert [row[2] for row in rows][:3] == ["b7", "b1", "b2"]
    assert rows[0][1] == "s" and rows[0][-1] == "20x slower"
    refused = bolts_of(3)[:2] + bolts_of(3, refused=True)[2:]
    rows = shown(msgspec.structs.replace(SNAPSHOT, bolts=refused))["bolts"]["rows"]
    assert [row[1:3] for row in rows] == [["n", "b1"], ["n", "b2"], ["r", "b3"]]


@pytest.mark.parametrize(
    ("number", "rows"), [(ROWS_ALL, ROWS_ALL), (ROWS_ALL + 1, ROWS_OF_MANY), (1000, ROWS_OF_MANY)]
)
def test_of_many_bolts_only_those_that_need_a_look_have_a_row(number: int, rows: int) -> None:
    told = shown(with_one_slow(number, "b99"))
    assert (len(told["bolts"]["rows"]), told["bolts"]["total"]) == (rows, number)
    assert told["bolts"]["rows"][0][2] == "b99"
    [[_, codes, levels]] = told["columns"]
    assert (codes.count("n"), codes.count("s"), len(levels)) == (number - 1, 1, number)


def test_a_lane_tells_what_its_bolt_did_each_second_whoever_came_later() -> None:
    first = msgspec.structs.replace(SNAPSHOT, elapsed_s=0.2, bolts=bolts_of(2)[1:])
    idle = msgspec.structs.replace(SNAPSHOT, elapsed_s=0.9, bolts=bolts_of(2, in_flight=0)[1:])
    both = msgspec.structs.replace(SNAPSHOT, elapsed_s=1.1, bolts=bolts_of(2))
    down = msgspec.structs.replace(SNAPSHOT, elapsed_s=7.0, bolts=bolts_of(2, up=False))
    state = state_of(first, idle, both, down)
    columns = json.loads(state.whole())["columns"]
    # b2 was there first, so it is the first in each column; of a second the last state counts.
    assert [column[:2] for column in columns] == [[0, "i"], [1, "nn"], [7, "dd"]]
    assert json.loads(state.newest)["columns"] == columns[-1:]


def test_what_a_page_loads_is_bounded_however_long_the_run_is() -> None:
    for number, cells in ((12, CELLS_MAX), (1000, CELLS_OF_ALL // 1000)):
        bolts = bolts_of(number)
        state = PageState(clock=ManualClock())
        for second in range(2 * CELLS_MAX):
            state.update(msgspec.structs.replace(SNAPSHOT, elapsed_s=float(second), bolts=bolts))
        whole = json.loads(state.whole())
        assert len(whole["columns"]) == cells
        assert whole["columns"][-1][0] == 2 * CELLS_MAX - 1
        assert POINTS_MAX / 2 <= len(whole["curve"]) <= POINTS_MAX
        assert whole["curve"][0][0] == 0.0, "the curve is of the whole run"


def test_errors_are_counted_by_kind_with_an_example_and_the_command_for_the_letters() -> None:
    state = state_of(letters="flowctl dlq show job")
    for number in (7, 9):
        state.event(
            ev.RecordsRejected(
                at_s=1.0, tuple_id=1, bolt="b1", partition="a.log", positions=(number,),
                reasons=(f"ValueError: {number} is no amount",),
            )
        )  # fmt: skip
    state.event(
        ev.TupleFailed(
            at_s=1.0, bolt="b2", tuple_id=5, attempt=1, partition="a.log", first=10, last=19,
            reason="HTTP 503", retry_at_s=2.0,
        )
    )  # fmt: skip
    for number in range(100):  # a reason of its own each: bounded
        state.event(
            ev.TupleRefused(
                at_s=1.0, bolt="b2", tuple_id=5, attempt=1, retry_at_s=2.0,
                reason="x" * (number + 1),
            )
        )  # fmt: skip
    state.update(msgspec.structs.replace(SNAPSHOT, records_rejected=2, records_rejected_kept=2))
    errors = json.loads(state.newest)["errors"]
    assert errors["kinds"][0] == [
        "2", "left out", "ValueError: # is no amount", "a.log record 7: ValueError: 7 is no amount"
    ]  # fmt: skip
    assert ["1", "tried again", "HTTP 503"] in [kind[:3] for kind in errors["kinds"]]
    assert len(errors["kinds"]) <= 2 * KINDS_SHOWN
    assert (errors["lost"], errors["letters"]) == ("2 records rejected", "flowctl dlq show job")
    happened = [text for _, text in json.loads(state.newest)["happened"]]
    assert len(happened) == 2, "the second rejection is of a kind that was told"


def test_a_target_tells_its_limit_what_this_job_uses_and_who_tells_of_the_others() -> None:
    paced = TargetView(
        target="pg main", limit=8, reason="learned", used=7.6, calls_per_s=390.0,
        refused_share=0.021, waited_s=61.0,
    )  # fmt: skip
    alone = msgspec.structs.replace(paced, target="api", alone=2)
    told = shown(msgspec.structs.replace(SNAPSHOT, targets=(paced, alone), sink_cap=4))["target"]
    assert [(limit["name"], limit["limit"], limit["used"]) for limit in told["limits"]] == [
        ("the target of all bolts", 4, 3), ("pg main", 8, 7.6), ("api", 8, 7.6)
    ]  # fmt: skip
    assert told["limits"][1]["facts"] == [
        "limit 8 (learned)", "used 7.6", "2.1 % refused", "waited 1:01", "390.0 calls/s",
        "of all jobs: flowctl targets show 'pg main'",
    ]  # fmt: skip
    assert told["limits"][2]["facts"][0] == "limit 8 (learned; 2 processes learn alone)"
    assert "no limit is known" in shown(SNAPSHOT)["target"]["facts"][-1]


def test_stages_say_which_one_sets_the_pace_and_a_job_of_one_stage_has_none() -> None:
    full = msgspec.structs.replace(BOLT, name="sink.1", window=3, in_flight=3)
    moments = [
        msgspec.structs.replace(
            SNAPSHOT,
            elapsed_s=float(second),
            bolts=(msgspec.structs.replace(BOLT, name="parse.1", in_flight=second % 2), full),
        )
        for second in range(20)
    ]
    stages = shown(*moments)["stages"]
    told = [(stage["name"], stage["busy"], stage["sets_pace"]) for stage in stages]
    assert told == [("parse", 0.5, False), ("sink", 1.0, True)]
    assert shown(SNAPSHOT)["stages"] == []


def test_the_checkpoint_shows_its_holes_and_what_a_kill_would_run_again() -> None:
    above = (AckedRange(first=15, last=20, records=6),)
    part = PartitionView(name="a.log", position=10, records=10, acked_above=above)
    none = PartitionView(name="b.log", position=None, records=0)
    told = shown(msgspec.structs.replace(SNAPSHOT, partitions=(part, none)))["checkpoint"]
    assert told["kill"].startswith("a kill now would run 1 200 records again")
    assert told["holes"] == "1 hole"
    first, second = told["partitions"]
    assert [run[0] for run in first["runs"]] == [True, False, True]
    assert first["where"] == "done up to 10 (10 records), and parts up to 20"
    assert (second["where"], second["runs"]) == ("nothing is done yet", [])


def test_words_of_others_are_made_printable_and_can_not_leave_the_data() -> None:
    name = HOSTILE
    state = state_of(resume=HOSTILE, letters=HOSTILE)
    state.start(name, HOSTILE)
    state.note(HOSTILE)
    state.event(
        ev.RecordsRejected(
            at_s=1.0, tuple_id=1, bolt=HOSTILE, partition=HOSTILE, positions=(HOSTILE,),
            reasons=(HOSTILE,),
        )
    )  # fmt: skip
    part = PartitionView(name=HOSTILE, position=HOSTILE, records=1)
    bolt = msgspec.structs.replace(BOLT, name=HOSTILE)
    verdict = Verdict(headline=HOSTILE, why=HOSTILE, remedy=HOSTILE)
    state.update(
        msgspec.structs.replace(
            SNAPSHOT, bolts=(bolt,), partitions=(part,), note=HOSTILE, verdict=verdict,
            records_rejected=1, records_rejected_kept=1,
        )
    )  # fmt: skip
    state.stop(msgspec.structs.replace(REPORT, job=HOSTILE, outcome="failed", error=HOSTILE))
    data = state.whole()
    said = json.dumps(json.loads(data), ensure_ascii=False)  # as a browser reads it
    assert not re.search("\\\\u00|[\x00-\x1f\u202e\ud800]", said)
    html = page_with(data)
    assert len(re.findall(r"</script>", html)) == 2 and "<img" not in html
    assert json.loads(Parts.of(html).scripts[0]) == json.loads(data), "nothing else was changed"


class Parts(HTMLParser):
    """The scripts of a page, the attributes of its elements, and its meta elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._is_script = False

    @classmethod
    def of(cls, html: str) -> Parts:
        parts = cls()
        parts.feed(html)
        return parts

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._is_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts.append(data)


@pytest.mark.parametrize("file", ["page.html", team_page.NAME])
def test_a_page_asks_nothing_of_anybody_and_has_no_code_in_attributes(file: str) -> None:
    parts = Parts.of(page_html(file))
    assert "//" not in re.sub(r"// .*", "", parts.scripts[1]).replace("://", "//")
    for tag, name, value in parts.attributes:
        assert not name.startswith("on") and name != "style", (tag, name)
        if name in ("src", "href"):
            assert value.startswith(("#", "data:")), value
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page_html(file)
    )
    assert policy(file).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy(file) and "http" not in policy(file)


def test_a_page_from_elsewhere_says_where_the_kinds_of_errors_are() -> None:
    told = shown(SNAPSHOT, elsewhere="see flowctl explain j")["errors"]
    assert (told["kinds"], told["elsewhere"]) == ([], "see flowctl explain j")
    assert shown(SNAPSHOT)["errors"]["elsewhere"] == ""


def spout_of(process: object = lambda batch: None, store: Any = None) -> FlowControlSpout:
    return FlowControlSpout(
        name="job <b>",
        producer=ListProducer(50),
        bolts=LocalBolts(process, count=2),
        checkpoint=store or MemoryCheckpointStore(),
        settings={"retry.attempts_max": 1},
    )


def test_a_report_in_html_is_the_page_with_its_data_and_needs_no_server(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    spout_of().run(view="off", report_path=path, resume_hint="flowctl run job.py:spout")
    html = path.read_text()
    told = json.loads(Parts.of(html).scripts[0])
    assert (told["job"], told["phase"]) == ("job <b>", "finished")
    assert told["verdict"]["sentence"].startswith("Finished · 50 records in ")
    assert "flowctl run" not in told["resume"], "no command resumes what is in memory only"
    assert told["columns"] and told["curve"]
    metas = [value for tag, name, value in Parts.of(html).attributes if tag == "meta"]
    assert policy() in metas


def test_the_page_of_a_run_whose_checkpoint_stays_has_the_command_that_resumes_it(
    tmp_path: Path,
) -> None:
    path, store = tmp_path / "run.html", FileCheckpointStore(tmp_path / "kept")
    spout_of(store=store).run(view="off", report_path=path, resume_hint="flowctl run job.py")
    assert json.loads(Parts.of(path.read_text()).scripts[0])["resume"] == "flowctl run job.py"


def test_a_failed_run_and_one_that_did_not_begin_have_their_page_too(tmp_path: Path) -> None:
    path = tmp_path / "run.HTM"
    with pytest.raises(Exception, match="ZeroDivisionError"):
        spout_of(lambda batch: 1 / 0).run(view="off", report_path=path)
    told = json.loads(Parts.of(path.read_text()).scripts[0])
    assert (told["phase"], told["verdict"]["tone"]) == ("failed", "bad")
    assert "ZeroDivisionError" in told["verdict"]["remedy"]

    class Away(FailingStore):
        def acquire(self, job: str) -> int:
            raise CheckpointUnavailableError("nobody answers.", remedy="Start it.")

    with pytest.raises(CheckpointUnavailableError):
        spout_of(store=Away()).run(view="off", report_path=path)
    told = json.loads(Parts.of(path.read_text()).scripts[0])
    assert told["phase"] == "failed" and "nobody answers" in told["verdict"]["remedy"]


def test_what_a_page_passes_on_is_all_that_the_view_beside_it_is_told() -> None:
    beside, alone = Witness(), Witness()
    view = PageView(beside, PageState(clock=ManualClock()))
    for each in (view, alone):
        each.start("job", "head")
        each.message("a line\nits rest")
        each.event(ev.BoltAdded(at_s=1.0, bolt="b1", epoch=2, slots=1))
        each.update(SNAPSHOT)
        each.stop(REPORT)
    assert vars(beside) == vars(alone)
    assert view.url == "", "it is not served"


@pytest.mark.parametrize(
    ("place", "host", "port"),
    [("0", "127.0.0.1", 0), ("10.0.0.7:80", "10.0.0.7", 80), ("[::1]:8", "::1", 8)],
)
def test_the_place_of_a_page(place: str, host: str, port: int) -> None:
    page = Page.at(place, name="--page")
    assert (page.host, page.port) == (host, port)
    assert Page.at(page.place, name="--page") == page


@pytest.mark.parametrize("place", ["", "x", "host:", "70000", "-1", "8 0", "1:2:x"])
def test_another_place_is_refused_with_an_example(place: str) -> None:
    with pytest.raises(ConfigError, match=r"--page: .* is not \[HOST:\]PORT"):
        Page.at(place, name="--page")

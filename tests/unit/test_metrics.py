"""What Prometheus and probes learn of a run; board and rules ask for what there is."""

from __future__ import annotations

import gc
import gzip
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from flowctl.bolts.local import LocalBolts
from flowctl.config import MetricsSettings, Settings
from flowctl.core.counters import Counters
from flowctl.core.times import BOUNDS_S, AckTimes, Histogram
from flowctl.errors import ConfigError
from flowctl.instrumentation.metrics_server import (
    HUNG_AFTER_S,
    MetricsServer,
    Scraped,
    metrics_app,
    served,
)
from flowctl.instrumentation.prometheus import NO_METRIC
from flowctl.instrumentation.run_events import RunEvents
from flowctl.instrumentation.snapshot import (
    AckTimesView,
    BoltView,
    Snapshot,
    TimesView,
    Waits,
)
from flowctl.instrumentation.views import BaseView
from flowctl.runtime import launch
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.run import Run
from flowctl.testing.clock import ManualClock
from tests.runtime_parts import ListProducer, Witness
from tests.unit.test_view_plain import REPORT, SNAPSHOT

ROOT = Path(__file__).resolve().parents[2]
parser = pytest.importorskip("prometheus_client.parser")

BUSY = msgspec.structs.replace(
    SNAPSHOT,
    tuples_acked=7,
    tuples_moved=2,
    records_acked=70,
    records_dead_lettered=1,
    waits=Waits(no_input_s=1.5),
    times=AckTimesView(rtt=TimesView((0, 3, *(0,) * (len(BOUNDS_S) - 2), 1), 61.5)),
    checkpoint_age_s=0.25,
    progress=0.5,
    eta_s=3.0,
    sink_cap=8,
)


def scrape(*snapshots: Snapshot) -> dict[str, list[Any]]:
    """The samples of the run by name, after these snapshots."""
    scraped = Scraped(BaseView())
    for snapshot in snapshots:
        scraped.update(snapshot)
    [text] = metrics_app(scraped)({}, lambda status, headers: None)
    found: dict[str, list[Any]] = {}
    for family in parser.text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name.startswith("flowctl"):  # the others are of the process
                found.setdefault(sample.name, []).append(sample)
    return found


def value(samples: dict[str, list[Any]], name: str, /, **labels: str) -> float:
    [found] = [s for s in samples[name] if labels.items() <= s.labels.items()]
    return float(found.value)


def test_a_scrape_of_many_bolts_sets_off_no_pass_of_the_garbage_collector() -> None:
    bolt = SNAPSHOT.bolts[0]
    many = tuple(msgspec.structs.replace(bolt, name=f"b{n}") for n in range(1_000))
    scraped = Scraped(BaseView())
    scraped.update(msgspec.structs.replace(SNAPSHOT, bolts=many))
    app = metrics_app(scraped)
    app({}, lambda status, headers: None)  # imports count once
    passes = []
    gc.callbacks.append(lambda phase, info: passes.append(phase))
    try:
        [text] = app({}, lambda status, headers: None)
    finally:
        gc.callbacks.pop()
    assert text.count(b'{bolt="b999"}') == 6
    assert passes.count("start") <= 2, "one for what is small; it was one for each thousand samples"


def test_nothing_is_told_before_the_first_snapshot() -> None:
    assert scrape() == {}


def test_counts_gauges_and_histograms_are_those_of_the_snapshot() -> None:
    samples = scrape(SNAPSHOT, BUSY)
    assert value(samples, "flowctl_run_info", name=BUSY.job) == 1
    assert value(samples, "flowctl_tuples_moved_total") == 2
    assert value(samples, "flowctl_records_dead_lettered_total") == 1
    assert value(samples, "flowctl_spout_wait_seconds_total", reason="no_input") == 1.5
    assert value(samples, "flowctl_phase", phase=BUSY.phase) == 1
    assert sum(s.value for s in samples["flowctl_phase"]) == 1
    assert value(samples, "flowctl_ack_rtt_seconds_bucket", le="0.0005") == 0
    assert value(samples, "flowctl_ack_rtt_seconds_bucket", le="0.001") == 3
    assert value(samples, "flowctl_ack_rtt_seconds_bucket", le="60.0") == 3
    assert value(samples, "flowctl_ack_rtt_seconds_count") == 4
    assert value(samples, "flowctl_ack_rtt_seconds_sum") == 61.5
    assert value(samples, "flowctl_checkpoint_age_seconds") == 0.25
    assert value(samples, "flowctl_store_away_seconds") == 0, "there, so that rules have a value"


def test_each_number_is_a_metric_and_in_the_report_or_it_is_said_why_not() -> None:
    """A new number needs no further line: what the core counts is told everywhere."""
    names = Counters.__struct_fields__
    numbers = {name: n for n, name in enumerate(names, 1)}
    samples = scrape(msgspec.structs.replace(BUSY, **numbers))
    told = {name: f"flowctl_{name}_total" for name in names if name not in NO_METRIC}
    assert {name: value(samples, told[name]) for name in told} == {n: numbers[n] for n in told}
    assert NO_METRIC.keys() < set(names) and all(NO_METRIC.values())
    report = msgspec.to_builtins(msgspec.structs.replace(REPORT, **numbers))
    assert {name: report[name] for name in names} == numbers
    with structlog.testing.capture_logs() as logs:
        finished = msgspec.structs.replace(REPORT, **numbers)
        RunEvents("j", Settings(), logger=structlog.get_logger()).finished(finished)
    assert {name: logs[0][name] for name in names} == numbers


def test_each_number_says_what_it_counts_in_a_sentence() -> None:
    for name, meaning in Counters.meanings().items():
        assert re.fullmatch(r"[A-Z][^.]+\.", meaning), name


def test_what_is_not_known_has_no_sample() -> None:
    unknown = msgspec.structs.replace(BUSY, progress=None, checkpoint_age_s=None, sink_cap=None)
    samples = scrape(unknown)
    for name in ("source_done_ratio", "checkpoint_age_seconds", "sink_cap_tuples"):
        assert f"flowctl_{name}" not in samples, name


def test_names_follow_the_rules_and_labels_are_bounded() -> None:
    samples = scrape(BUSY)
    assert len(samples) > 40
    for name, found in samples.items():
        assert re.fullmatch(r"flowctl(_[a-z0-9]+)+", name), name
        assert not re.search(r"_(ms|s|millis)(_|$)", name), "base units"
        labels = {label for sample in found for label in sample.labels}
        if name != "flowctl_run_info":
            assert labels <= {"bolt", "le", "phase", "reason", "state"}, name


def test_each_bolt_is_one_label() -> None:
    view = BUSY.bolts[0]
    bolts = tuple(msgspec.structs.replace(view, name=f"b{n}", window=n) for n in range(1, 1001))
    samples = scrape(msgspec.structs.replace(BUSY, bolts=bolts))
    assert value(samples, "flowctl_bolt_window_tuples", bolt="b997") == 997
    assert sum(s.value for s in samples["flowctl_bolts"]) == 1000
    assert isinstance(view, BoltView)


def test_the_metrics_of_a_bolt_are_its_own_whatever_its_name_is() -> None:
    name = 'a"b\\c\nd\u00e9'
    bolt = msgspec.structs.replace(
        BUSY.bolts[0],
        name=name,
        up=True,
        window=8,
        in_flight=3,
        refused=True,
        records_acked=10**15 + 1,
        moved_away=5,
    )
    samples = scrape(msgspec.structs.replace(BUSY, bolts=(bolt, BUSY.bolts[0])))
    found = {
        key.removeprefix("flowctl_bolt_"): value(samples, key, bolt=name)
        for key in samples
        if key.startswith("flowctl_bolt_")
    }
    assert found == {
        "up": 1,
        "window_tuples": 8,
        "in_flight_tuples": 3,
        "resting": 1,
        "records_acked_total": 10**15 + 1,
        "tuples_moved_total": 5,
    }


# -- histograms ------------------------------------------------------------------------------


def test_a_value_on_a_bound_is_in_its_bucket_and_any_value_has_one() -> None:
    histogram = Histogram()
    for seconds in (-0.001, 0.0, 0.0005, 0.00051, 60.0, 61.0):
        histogram.observe(seconds)
    assert histogram.counts[:2] == [3, 1]
    assert histogram.counts[-2:] == [1, 1]
    assert sum(histogram.counts) == 6


def test_a_bolt_that_tells_no_times_counts_for_the_round_trip() -> None:
    times = AckTimes()
    times.observe(0.2, None, None)
    times.observe(0.2, 0.1, 0.05)
    assert [sum(h.counts) for h in (times.rtt, times.wait, times.service)] == [2, 1, 1]


# -- health ----------------------------------------------------------------------------------


def test_a_run_that_does_not_move_is_unhealthy_unless_it_starts_or_saves() -> None:
    clock = ManualClock()
    scraped = Scraped(BaseView(), clock=clock)
    assert scraped.unhealthy() == ""
    for phase, is_bad in (("starting", False), ("running", True), ("stopping", False)):
        scraped.update(msgspec.structs.replace(BUSY, phase=phase))
        clock.advance(HUNG_AFTER_S)
        assert scraped.unhealthy() == "", phase
        clock.advance(1.0)
        assert bool(scraped.unhealthy()) is is_bad, phase


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"bolts": ()}, "no bolt"),
        ({"bolts": (), "note": "waiting for 4 bolts"}, "waiting for 4 bolts"),
        ({"store_away_s": 3.2}, "store has been away for 3 s"),
        ({"phase": "stopping"}, "stops"),
    ],
)
def test_ready_is_a_run_with_a_bolt_and_its_store(changes: dict[str, Any], why: str) -> None:
    scraped = Scraped(BaseView())
    assert scraped.unready() == "the run has not begun"
    scraped.update(msgspec.structs.replace(BUSY, **{"phase": "running", **changes}))
    assert why in scraped.unready()
    assert bool(scraped.unready()) == bool(why)


# -- over HTTP -------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[Scraped, str]]:
    scraped = Scraped(BaseView())
    made = MetricsServer(MetricsSettings(port=0), scraped)
    yield scraped, f"http://127.0.0.1:{made.port}"
    made.close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_three_paths(server: tuple[Scraped, str]) -> None:
    scraped, url = server
    assert get(f"{url}/healthz") == (200, "ok\n")
    assert get(f"{url}/readyz") == (503, "the run has not begun\n")
    scraped.update(msgspec.structs.replace(BUSY, phase="running"))
    assert get(f"{url}/readyz") == (200, "ok\n")
    status, text = get(f"{url}/metrics")
    assert (status, "flowctl_tuples_acked_total 7.0" in text) == (200, True)
    assert "process_resident_memory_bytes" in text
    assert get(f"{url}/")[0] == 404


def test_what_asks_for_it_gets_the_same_text_compressed(server: tuple[Scraped, str]) -> None:
    scraped, url = server
    scraped.update(msgspec.structs.replace(BUSY, phase="running"))
    asked = urllib.request.Request(f"{url}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        packed = answer.read()
    names = [line.split()[0] for line in gzip.decompress(packed).decode().splitlines()]
    assert names == [line.split()[0] for line in get(f"{url}/metrics")[1].splitlines()]


def test_a_port_that_is_taken_is_named(server: tuple[Scraped, str]) -> None:
    port = int(server[1].rpartition(":")[2])
    with pytest.raises(ConfigError, match=r"metrics\.port.*127\.0\.0\.1") as raised:
        MetricsServer(MetricsSettings(port=port), Scraped(BaseView()))
    assert "free port" in raised.value.remedy


def test_without_a_port_nothing_is_served() -> None:
    view = BaseView()
    with served(MetricsSettings(), view) as shown:
        assert shown is view


def test_a_run_is_served_while_it_lasts_and_a_scrape_needs_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[Run] = []
    told: list[tuple[int, str]] = []
    scraped = threading.Event()

    class KeptRun(Run):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            runs.append(self)

    class Looks(Witness):
        url = ""

        def message(self, text: str) -> None:
            if text.startswith("metrics at "):
                self.url = text.removeprefix("metrics at ").removesuffix("/metrics")

        def update(self, snapshot: Snapshot) -> None:
            if snapshot.records_acked and not told:
                with runs[0].control.lock:  # would never end if a scrape took it
                    told.append(get(f"{self.url}/metrics"))
                scraped.set()

    def process(batch: Any) -> None:
        if batch.span.last != 1:  # the first tuple is acked, the others wait until it was seen
            scraped.wait(60)

    monkeypatch.setattr(launch, "Run", KeptRun)
    view = Looks()
    spout = FlowControlSpout(
        name="scraped",
        producer=ListProducer(40),
        bolts=LocalBolts(process, count=2),
        settings=Settings().with_overrides({"metrics.port": 0, "tuple.records_max": 1}),
    )
    spout.run(view=view)
    [(status, text)] = told
    assert status == 200
    assert re.search(r"^flowctl_records_acked_total [1-9]", text, re.MULTILINE)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{view.url}/healthz", timeout=30)


# -- board and rules -------------------------------------------------------------------------


def board_queries() -> Iterator[str]:
    board = json.loads((ROOT / "deploy/grafana/flowctl.json").read_text("utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")


def rule_queries() -> Iterator[str]:
    yaml = pytest.importorskip("yaml")
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]
            yield rule["expr"]


def selectors(expression: Any) -> Iterator[Any]:
    """The vector selectors of a parsed query."""
    if hasattr(expression, "matchers"):
        yield expression
    for part in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (inner := getattr(expression, part, None)) is not None:
            yield from selectors(inner)
    for argument in getattr(expression, "args", ()):
        yield from selectors(argument)


@pytest.mark.parametrize("queries", [board_queries, rule_queries])
def test_queries_ask_for_what_a_scrape_has(queries: Any) -> None:
    promql = pytest.importorskip("promql_parser")
    samples = scrape(BUSY)
    asked = list(queries())
    assert len(asked) > 5
    for query in asked:
        found = list(selectors(promql.parse(query)))
        assert found, query
        for selector in found:
            if selector.name.startswith("process_"):
                continue  # prometheus-client's own
            assert selector.name in samples, query
            has = {label for sample in samples[selector.name] for label in sample.labels}
            for matcher in selector.matchers.matchers:
                assert matcher.name in has | {"instance", "job"}, query


def test_the_board_shows_every_label_that_its_legends_name() -> None:
    board = json.loads((ROOT / "deploy/grafana/flowctl.json").read_text("utf-8"))
    legends = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"{{(\w+)}}", target["legendFormat"])
    }
    assert legends <= {"instance", "bolt", "reason", "state"}

"""The house stays in order; and what measures it sees each kind of disorder."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import pytest

from flowctl.core.state import LIVENESS, TRANSITIONS, Liveness, Sign
from tests import house, imports, once
from tests.sources import Breach, Source

# All that is there is read once, as long as one process runs them.
reads_all = pytest.mark.xdist_group("house")

OWNERS = [
    Source(
        house.BOLT.path,
        f"class {house.BOLT.name}:\n    __slots__ = ('acked', 'alarm_s', 'flight')\n",
    ),
    Source(
        house.TUPLE.path,
        f"class {house.TUPLE.name}(Struct):\n    faults: int = 0\n    avoided: set[str]\n",
    ),
]


@reads_all
def test_nothing_is_out_of_order() -> None:
    assert [str(breach) for breach in house.breaches()] == []


@reads_all
def test_what_is_exempt_still_needs_it() -> None:
    wide = {node.name for _, node, count in house.constructors(house.read()) if count > 6}
    assert wide == set(house.PUBLIC_BUILDERS)


@reads_all
def test_there_are_a_bolt_and_a_tuple_to_watch() -> None:
    bolt, flow_tuple = (house.fields_of(house.read(), owner) for owner in house.OWNERS)
    assert {"flight", "acked", "liveness", *house.BOLT.lent} <= bolt
    assert {"cut", "attempt", "faults", "deadline_s"} <= flow_tuple


def test_the_tables_of_states_have_every_pair() -> None:
    assert set(LIVENESS) == set(product(Liveness, Sign))
    assert {state for state, _ in TRANSITIONS} == set(TRANSITIONS.values())


@reads_all
def test_the_figures_can_be_read() -> None:
    told = "\n".join(house.figures())
    for measure in (
        "lines a file, median / p90 / max: ",
        "lines a function, median / p90 / max: ",
        "most parameters of a constructor: 6 (",
        "lines outside a bolt's or a tuple's own class that write its fields: 0\n",
        f"tables of states beside {house.STATE_FILE}: 0\n",
        f"pauses and blame beside {once.RETRY_FILE} and {once.BLAME_FILE}: 0\n",
        f"estimates of what a call costs beside {once.COST_FILE}: 0\n",
        f"limits learned from refusals beside {once.LIMIT_FILE}: 0\n",
        "public docstrings / annotated: ",
    ):
        assert measure in told


def test_what_has_no_docstring_or_annotation_is_counted() -> None:
    text = (
        'def a(x: int) -> int:\n    "It is a."\n    return x\n'
        "def b(x): return x\n"
        "class C:\n    def _d(self, x: int) -> None: return\n    def e(self) -> int: ...\n"
    )
    assert house.documented([Source("a.py", text)]) == (1, 3)
    assert house.annotated([Source("a.py", text)]) == (3, 4)


def long(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("measure", "good", "bad"),
    [
        (
            house.long_files,
            "x = 1\n" * house.FILE_LINES_MAX,
            "x = 1\n" * (house.FILE_LINES_MAX + 1),
        ),
        (house.long_functions, long(50), long(51)),
        (house.long_functions, long(50), f"async {long(51)}"),
        (
            house.wide_constructors,
            "class A:\n    def __init__(self, a, b, *, c, d, e, f): ...",
            "class A:\n    def __init__(self, a, b, *, c, d, e, f, g): ...",
        ),
        (
            house.stray_tables,
            "COLOURS = {BoltState.SLOW: 'red'}",
            "AFTER = {'late': BoltState.SLOW}",
        ),
    ],
)
def test_one_more_is_seen(
    measure: Callable[[Iterable[Source]], Iterator[Breach]], good: str, bad: str
) -> None:
    assert list(measure([Source("a.py", good)])) == []
    assert [breach.path for breach in measure([Source("a.py", bad)])] == ["a.py"]


COUNTERS = Source(house.NUMBERS_FILE, "class Counters:\n    a: int = 0\n    b: int = 0\n")


def test_a_class_that_copies_numbers_of_a_run_is_seen() -> None:
    copy = Source("flowctl/x.py", "class Copy:\n    a: int\n    b: int\n    c: int\n")
    own = Source("flowctl/y.py", "class View:\n    a: int\n    c: int\n")
    [breach] = house.copied_numbers([COUNTERS, copy, own])
    assert (breach.path, breach.what[:18]) == ("flowctl/x.py", "Copy defines a, b,")


def test_each_measure_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    disorder = (
        "class A:\n    def __init__(self, a, b, c, d, e, f, g): ...\n"
        "BACKOFF_S = 3\nclass Copy:\n    a: int\n    b: int\n"
        f"AFTER = {{'late': BoltState.SLOW}}\nconsumer.acked = 1\n{long(house.FILE_LINES_MAX)}"
    )
    sources = [*OWNERS, COUNTERS, Source("flowctl/a.py", disorder)]
    monkeypatch.setattr(house, "read", lambda *_: sources)
    told = "\n".join(breach.what for breach in house.breaches())
    for what in (
        "lines, 600", "f has", "A takes 7", "writes acked", "a table of states", "BACKOFF_S",
        "Copy d",
    ):  # fmt: skip
        assert what in told


@pytest.mark.parametrize(
    "line",
    [
        "consumer.acked = 1",
        "consumer.acked += 1",
        "consumer.acked, x = 1, 2",
        "consumer.flight[1] = None",
        "del consumer.flight[1]",
        "consumer.flight.pop(1)",
        "for each in self.bolts.values():\n    each.acked = 1",
        "donor = self.bolts.get('a')\ndonor.flight.clear()",
        "donor = self.bolts['a']\ndonor.flight.clear()",
        f"def f(donor: {house.BOLT.name}):\n    donor.alarm_s = 1",
        "flow_tuple.faults = 1",
        "piece.faults, x = 1, 2",
        "whole.faults -= 1",
        "flow_tuple.avoided.add('a')",
        "for each in list(self._book.pending.values()):\n    each.faults = 0",
        "dead = self._pending[1]\ndead.faults = 0",
        "if (dead := self.pending.get(1)) is not None:\n    dead.faults = 0",
        "rest = FlowTuple(1, cut)\nrest.faults = 1",
        "rest: FlowTuple | None = take()\nrest.faults = 1",
        "def f(failed: FlowTuple | None):\n    failed.faults = 1",
    ],
)
def test_a_line_that_writes_a_field_of_a_bolt_or_a_tuple_is_seen(line: str) -> None:
    sources: Sequence[Source] = [*OWNERS, Source("flowctl/core/other.py", line)]
    assert len(list(house.foreign_writes(sources))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "x = consumer.acked",
        "consumer.other = 1",
        "counters.tuples_acked += 1",
        "len(consumer.flight)",
        "consumer.flight.get(1)",
        "x = flow_tuple.faults",
        "flow_tuple.other = 1",
        "flow_tuple.acked = 1",
        "root.faults += 1",
        "flow_tuple.refused()",
    ],
)
def test_other_lines_are_let_be(line: str) -> None:
    assert list(house.foreign_writes([*OWNERS, Source("flowctl/core/other.py", line)])) == []


def test_a_field_that_is_lent_may_be_written_where_it_is_kept() -> None:
    line = "consumer.alarm_s = 1"
    keeper = Source(house.BOLT.lent["alarm_s"], line)
    assert list(house.foreign_writes([*OWNERS, keeper])) == []


# -- how the files hang together -------------------------------------------------------------------


def modules(**texts: str) -> list[imports.Module]:
    return [
        imports.module(f"flowctl/{path.replace('__', '/')}.py", ast.parse(text))
        for path, text in texts.items()
    ]


def test_the_longest_chain_goes_through_what_is_imported_at_the_start() -> None:
    made = modules(
        a="from flowctl import b\nfrom flowctl.d import x",
        b="from flowctl.c import y",
        c="def f():\n    from flowctl.e import z",
        d="import typing\nif TYPE_CHECKING:\n    import flowctl.a",
        e="z = 1",
    )
    graph = imports.graph(made, at_start=True)
    assert imports.longest_chain(graph) == ["flowctl.a", "flowctl.b", "flowctl.c"]
    assert imports.graph(made, at_start=False)["flowctl.c"] == {"flowctl.e"}


def test_files_with_one_importer_are_counted_by_room() -> None:
    made = modules(
        core__a="from flowctl.core.b import x", core__b="x = 1", wire__c="import flowctl.core.a"
    )
    graph = imports.graph(made, at_start=False)
    assert imports.imported_once(graph) == (2, 3)
    assert imports.imported_once(graph, "flowctl.wire") == (0, 1)


def test_a_name_in_two_rooms_and_private_names_of_others_are_found() -> None:
    made = modules(
        core__a="class A:\n    def __init__(self):\n        self._x = self._y = 1",
        wire__a="def f(a, b):\n    b._replace()\n    os._exit(a._x)",
        wire__b="from flowctl.core.a import _x\nclass B:\n    def f(self):\n        self._y = 1",
    )
    assert imports.shared_names(made) == {"a": ["flowctl.core.a", "flowctl.wire.a"]}
    found = list(imports.private_access(made, made))
    assert found == [("flowctl.wire.a", "a._x"), ("flowctl.wire.b", "_x")]


def test_a_long_chain_and_files_that_one_other_needs_are_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = [
        Source("flowctl/runtime/a.py", "from flowctl.runtime import b\nimport flowctl.runtime.c"),
        Source("flowctl/runtime/b.py", "from flowctl.runtime import c"),
        Source("flowctl/runtime/c.py", ""),
    ]
    monkeypatch.setattr(house, "CHAIN_MAX", 3)
    assert list(house.scattered(sources[2:])) == []
    (once,) = house.scattered(sources)
    monkeypatch.setattr(house, "CHAIN_MAX", 2)
    chain, again = house.scattered(sources)
    assert again == once and "1 of 3 files" in once.what
    assert "3 files, 2 at most: flowctl.runtime.a > flowctl.runtime.b" in chain.what


def test_private_names_of_others_and_names_in_two_rooms_are_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = modules(core__a="class A:\n    def __init__(self):\n        self._x = 1")
    tests = modules(unit__t="a._x\nb._x")
    assert list(house.familiar(made, tests)) == []
    monkeypatch.setattr(house, "PRIVATE_IN_TESTS_MAX", 1)
    (breach,) = house.familiar(made, tests)
    assert breach.what.startswith("2 private names of others: flowctl.unit.t: a._x")
    (breach,) = house.familiar(tests + made, [])
    named = modules(core__a="", wire__a="", cli__a="", core__ranges__a="", wire___b="", core__b="")
    (breach,) = house.namesakes(named)
    assert breach.what == "a is the name of flowctl.core.a and of flowctl.wire.a"


@reads_all
def test_how_the_files_hang_together_can_be_read() -> None:
    told = "\n".join(house.structure())
    for measure in ("the longest chain of imports: ", "files that one other imports: all "):
        assert measure in told


@pytest.mark.parametrize(
    "line",
    [
        "pause_s *= 2",
        "self._wait_s = min(MOST_S, 2 * self._wait_s)",
        "wait_s = FIRST_S * 2 ** min(tries, 5)",
        "return min(5.0, first_s * 2.0 ** tries)",
        "RESTART = Pause(0.1, 5.0)",
        "self.breaker = Breaker(600.0)",
        "class RetryAttempts: ...",
        "_BACKOFF_FIRST_S: Final = 0.1",
        "IN_A_ROW_MAX = 8",
        "BAD_END_S = 10.0",
    ],
)
def test_a_second_pause_or_blame_is_seen(line: str) -> None:
    """Kind: each door brought its own, and a mend of one left the others as they were."""
    (breach,) = once.stray_retries([Source("flowctl/new/door.py", line)])
    assert once.RETRY_FILE in breach.what or once.BLAME_FILE in breach.what
    for path in (once.RETRY_FILE, once.BLAME_FILE):
        assert list(once.stray_retries([Source(path, line)])) == []


@pytest.mark.parametrize(
    "line", ["self._wait(next(pauses))", "wait_s = TARGET.after(refusals)", "size *= 2"]
)
def test_who_asks_the_one_rule_is_let_be(line: str) -> None:
    assert list(once.stray_retries([Source("flowctl/new/door.py", line)])) == []


@pytest.mark.parametrize(
    "line",
    [
        "record_s = max(took_s - call_s, 0.0) / records",
        "self._row_s = batch_s / self._rows_total",
        "slope = (took_s - before_s) / (rows - before)",
        "class BatchTime: ...",
        "class RowCost: ...",
        "class SizeEstimator: ...",
    ],
)
def test_a_second_estimate_of_what_a_call_costs_is_seen(line: str) -> None:
    """Kind: ranges, streams and spouts each learned it in a way of their own."""
    (breach,) = once.stray_costs([Source("flowctl/new/door.py", line)])
    assert once.COST_FILE in breach.what
    assert list(once.stray_costs([Source(once.COST_FILE, line)])) == []


@pytest.mark.parametrize(
    "line", ["rows = work_s / cost.record_s", "share = done / records", "half = records / 2"]
)
def test_who_asks_the_one_estimate_is_let_be(line: str) -> None:
    assert list(once.stray_costs([Source("flowctl/new/door.py", line)])) == []


@pytest.mark.parametrize(
    "text",
    [
        "class RefusalCap: ...",
        "class PooledRefusals: ...",
        "def on_refused(self):\n    self.limit *= 0.8",
        "def _note_refusal(self):\n    self.limit = max(1, _DOWN * self.limit)",
        "def throttled(self):\n    self.permits = self.permits // 2",
    ],
)
def test_a_second_limit_learned_from_refusals_is_seen(text: str) -> None:
    """Kind: a spout fell by a fifth, a paced target by a half, on the same refusals."""
    (breach,) = once.stray_limits([Source("flowctl/new/door.py", text)])
    assert once.LIMIT_FILE in breach.what
    assert list(once.stray_limits([Source(once.LIMIT_FILE, text)])) == []


@pytest.mark.parametrize(
    "text",
    [
        "def on_refused(self):\n    self.limit.fall(now_s, level, 1)",
        "def half(n):\n    return n / 2",
    ],
)
def test_who_asks_the_one_limit_is_let_be(text: str) -> None:
    assert list(once.stray_limits([Source("flowctl/new/door.py", text)])) == []


@reads_all
def test_other_times_by_records_are_still_there() -> None:
    """An exception that nobody needs any more would hide the next estimate in that file."""
    divided = {
        source.path
        for source in house.read()
        if any(once.is_time_by_records(node) for node in source.nodes)
    }
    for path in once.OTHER_COSTS:
        assert any(each.startswith(path) for each in divided), path


@reads_all
def test_other_waits_that_double_are_still_there() -> None:
    others = [source for source in house.read() if source.path in once.OTHER_WAITS]
    assert {source.path for source in others} == set(once.OTHER_WAITS)
    for source in others:
        assert any(once.doubles_a_wait(node) for node in source.nodes), source.path

"""Streams and fields: what nobody emits is refused by name when a topology is built, or tells."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flowctl.core.events import TupleFailed
from flowctl.errors import ConfigError, UnrunnableError
from flowctl_storm import Batched, Collector, Input, ManualCollector, Topology
from tests.runtime_parts import ListProducer
from tests.topology_driver import Hub, Sink, nothing, topology


def declared() -> Topology:
    """ "parse" says that it emits client and path, and on "bad" the line."""
    made = Topology("t")
    made.spout("s", ListProducer(0))
    emits = {"default": ("client", "path"), "bad": ("text",)}
    made.bolt("parse", nothing, emits=emits).shuffle("s")
    return made


@pytest.mark.req("S114")
@pytest.mark.parametrize(
    ("subscribe", "words"),
    [
        (
            lambda t: t.bolt("b", nothing).shuffle("parse", stream="bads"),
            "b: 'parse' does not emit on stream 'bads'. Did you mean 'bad'?",
        ),
        (
            lambda t: t.bolt("b", nothing).fields("parse", "clients"),
            "b: grouped by 'clients', which 'parse' does not emit. Did you mean 'client'?",
        ),
        (
            lambda t: t.bolt("b", nothing).fields("parse", "client", stream="bad"),
            "b: grouped by 'client', which 'parse' does not emit on 'bad'. It has 'text'.",
        ),
        (
            lambda t: t.bolt("b", nothing).shuffle("s", stream="errors"),
            "b: 's' is a spout, which emits only on the default stream",
        ),
        (
            lambda t: t.bolt("b", nothing).direct("s"),
            "b: 's' is a spout and does not emit to tasks",
        ),
        (
            lambda t: t.bolt("b", nothing).shuffle("pars"),
            "b: there is no 'pars' to subscribe to. Did you mean 'parse'?",
        ),
        (
            lambda t: t.bolt("b", nothing).fields("parse", 1.5),
            "b: fields: 1.5 is neither a key nor an index",
        ),
        (
            lambda t: t.bolt("b", nothing, emits={"a b": ()}).shuffle("s"),
            "'a b' can't be a name",
        ),
        (
            lambda t: t.bolt("b", nothing, emits="default").shuffle("s"),
            "b: emits: a str",
        ),
    ],
)  # fmt: skip
def test_what_nobody_emits_is_refused_by_name(subscribe: Any, words: str) -> None:
    made = declared()
    with pytest.raises(ConfigError) as refused:
        subscribe(made)
        made.plans()
    assert words in str(refused.value)


def test_what_is_declared_is_accepted() -> None:
    made = declared()
    made.bolt("b", nothing).fields("parse", "client").shuffle("parse", stream="bad")
    made.bolt("c", nothing, emits={"x": None}).shuffle("s")  # on x, with whatever fields
    made.bolt("d", nothing).fields("c", "anything", stream="x")
    made.bolt("e", nothing).fields("b", "anything").shuffle("b", stream="any")  # b says nothing
    assert [plan.name for plan in made.plans()] == ["parse", "c", "b", "d", "e"]


def failure_of(made: Topology, value: Any) -> str:
    hub = Hub(made)
    hub.offer([value])
    for _ in range(3):
        hub.step()
    [event] = [event for event in hub.events if isinstance(event, TupleFailed)]
    return event.reason


def test_an_emit_on_a_stream_that_was_not_declared_fails_its_input_by_name() -> None:
    made = topology()
    made.bolt("a", lambda given, out: out("v", stream="bads"), emits={"bad": None}).shuffle("s")
    made.bolt("b", nothing).shuffle("a", stream="bad")
    reason = failure_of(made, "x")
    assert "'a' emitted on stream 'bads', which it does not declare. Did you mean 'bad'?" in reason


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"usr": 1, "id": 2}, "it has 'id', 'usr'. Did you mean 'usr'?"),
        ({"id": 2}, "it has 'id'."),
        ({}, "it is empty."),
        (["a", "b"], "it is a list of 2."),
        ("text", "it is a str."),
        ({str(n): n for n in range(50)}, "and 40 more."),
    ],
)
def test_a_field_that_is_missing_fails_the_input_and_names_stage_field_and_fields(
    value: Any, words: str
) -> None:
    made = topology()
    made.bolt("a", lambda given, out: out(given.value)).shuffle("s")
    made.bolt("b", nothing, count=2).fields("a", "user")
    reason = failure_of(made, value)
    assert reason.startswith("stage 'b' groups the values of 'a' by 'user', but a value has none:")
    assert reason.endswith(words)


def test_a_value_that_can_not_be_a_key_is_named_too() -> None:
    made = topology()
    made.translations["s"] = lambda partition, record: record.value
    made.bolt("b", nothing, count=2).fields("s", 5)
    assert failure_of(made, ["a", "b"]).endswith("it is a list of 2.")


# -- what can't be run -------------------------------------------------------------------------


async def waits(given: Input, out: Collector) -> None:
    pass


def yields(given: Input, out: Collector) -> Any:
    yield given


async def waits_and_yields(given: Input, out: Collector) -> Any:
    yield given


class Waits:
    async def execute(self, given: Input, out: ManualCollector) -> None:
        pass


class Yields:
    def execute(self, given: Input, out: ManualCollector) -> Any:
        yield given


class Called:
    async def __call__(self, given: Input, out: Collector) -> None:
        pass


@pytest.mark.parametrize(
    "code",
    [
        waits, yields, waits_and_yields, Waits, Yields, Called(), partial(waits),
        partial(Waits), Batched(waits), Batched(yields),
    ],
    ids=lambda code: f"{type(code).__name__}-{getattr(code, '__name__', '')}",
)  # fmt: skip
def test_code_that_would_never_run_is_refused_by_name(code: Any) -> None:
    """Calling it makes a coroutine or a generator, and its body is not executed once."""
    made = Topology("t")
    with pytest.raises(ConfigError, match=r"^b(\.execute)?: .*(async|generator)"):
        made.bolt("b", code)


@pytest.mark.parametrize("field", ["translate", "on_ack", "on_fail"])
@pytest.mark.parametrize("code", [waits, yields])
def test_so_is_a_spouts(field: str, code: Any) -> None:
    with pytest.raises(ConfigError, match=f"s: {field}: .*(async|generator)"):
        Topology("t").spout("s", ListProducer(0), **{field: code})


def test_and_a_metrics_consumer() -> None:
    with pytest.raises(ConfigError, match=r"metrics: .*async"):
        Topology("t").metrics(waits)


class Hidden:
    """Nothing of it looks like a coroutine until it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def execute(self, given: Input, out: ManualCollector) -> Any:
        return waits(given, out)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "code",
    [
        lambda given, out: (waits)(given, out),  # noqa: PLW0108
        lambda given, out: (yields)(given, out),  # noqa: PLW0108
        Batched(lambda inputs, out: waits(inputs, out)),  # noqa: PLW0108
        Hidden,
    ],
    ids=["coroutine", "generator", "batched", "manual"],
)
def test_a_coroutine_that_a_bolt_returns_ends_the_run_as_it_was_never_run(code: Any) -> None:
    made = topology()
    made.bolt("a", code).shuffle("s")
    hub = Hub(made)
    hub.offer(["x"])
    with pytest.raises(UnrunnableError, match="its work is not done"):
        hub.run()
    assert hub.figures.complete == 0


def test_what_a_bolt_returns_otherwise_is_ignored() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", lambda given, out: [sink(given, out)]).shuffle("s")
    hub = Hub(made)
    hub.offer(range(3))
    hub.run()
    assert (len(sink.got), hub.figures.complete) == (3, 3)

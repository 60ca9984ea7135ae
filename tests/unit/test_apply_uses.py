"""Results are those of one function: what it uses is compared as well, as far as it can be seen.

The kind: a result that was made with another value, or by another function of the project, is not
returned as if this one had made it; what differs is named.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.errors import ConfigError
from flowctl_apply._job import Input, Job
from flowctl_apply._uses import uses_of

pyarrow = pytest.importorskip("pyarrow")
SCHEMA = pyarrow.schema([("id", pyarrow.int64())])
GIVEN = Input("rows", ["in.parquet"])


def changed(before: Callable[..., Any], after: Callable[..., Any]) -> list[str]:
    """Names of what differs."""
    one, two = uses_of(before), uses_of(after)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


MODULE = """
from dataclasses import dataclass

K = 3
PROMPT = {"system": "be brief"}
CACHE = {}
SEEN = []
COUNT = 0
CLIENT = None


def clean(text, size=80):
    return text[:size] + PROMPT["system"]


@dataclass
class Model:
    name: str = "small"
    calls: int = 0

    def ask(self, text):
        self.calls += 1
        return self.name + clean(text)


MODEL = Model("large")


def score(batch, form="short"):
    global COUNT, CLIENT
    COUNT += 1
    CLIENT = CLIENT or object()
    SEEN.append(len(batch))
    CACHE["x"] = K
    return [(K, MODEL.ask(form)) for _ in batch]
"""


def module(tmp_path: Path, name: str, *edits: tuple[str, str]) -> Any:
    """The module of a job, as it is after ``edits``."""
    import importlib.util
    import sys

    text = MODULE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("project_of_apply", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["project_of_apply"] = made
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (("K = 3", "K = 4"), ["variable 'K'"]),
        (("be brief", "be long"), ["variable 'PROMPT'"]),
        (("[:size] +", "[:size] + ' ' +"), ["function 'clean'"]),
        (("size=80", "size=90"), ["default 'size'", "function 'clean'"]),
        (('Model("large")', 'Model("huge")'), ["variable 'MODEL'"]),
        (('form="short"', 'form="long"'), ["default 'form'"]),
        (("CACHE = {}", "CACHE = {1: 2}"), []),
        (("SEEN = []", "SEEN = [1]"), []),
        (("COUNT = 0", "COUNT = 7"), []),
        (("self.name + clean", "self.name * clean"), ["class 'Model'"]),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_a_function_of_a_project_uses_is_seen_and_named(
    tmp_path: Path, edit: tuple[str, str], named: list[str]
) -> None:
    before = uses_of(module(tmp_path, "before").score)
    after = uses_of(module(tmp_path, "after", edit).score)
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert differ == set(named)


def test_calls_in_this_process_change_nothing_that_is_compared(tmp_path: Path) -> None:
    score = module(tmp_path, "job").score
    before = uses_of(score)
    score([1, 2])
    assert uses_of(score) == before


THEIRS = "helpers_of_project"
HELPERS = """
LIMIT = 5
OTHER = 6


def shorten(text, *, size=4):
    return text[:min(size, LIMIT)]


class Judge:
    WORDS = ["good", "bad"]

    def __call__(self, batch):
        return self.look(batch)

    def look(self, batch):
        return [shorten(word) for word in self.WORDS]
"""


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (("LIMIT = 5", "LIMIT = 6"), {f"variable '{THEIRS}.LIMIT'", "its variable 'LIMIT'"}),
        (
            ("size=4", "size=3"),
            {f"default '{THEIRS}.size'", "function 'helpers.shorten'"}
            | {f"function '{THEIRS}.shorten'", "its default 'size'", "its function 'shorten'"},
        ),
        (
            ('"bad"', '"evil"'),
            {"attribute 'Judge.WORDS'", "class 'helpers.Judge'", "its attribute 'Judge.WORDS'"},
        ),
        (("OTHER = 6", "OTHER = 7"), set()),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_is_used_of_another_module_of_the_project_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: tuple[str, str], named: set[str]
) -> None:
    def used(text: str) -> dict[str, str]:
        helpers = types.ModuleType(THEIRS)
        path = tmp_path / f"{len(text)}{abs(hash(text))}.py"
        path.write_text(text)
        helpers.__file__ = str(path)
        monkeypatch.setitem(sys.modules, THEIRS, helpers)
        exec(compile(text, str(path), "exec"), vars(helpers))

        def fn(batch: Batch) -> Any:
            return helpers.shorten("text"), helpers.Judge()

        return uses_of(fn) | {f"its {name}": one for name, one in uses_of(helpers.Judge()).items()}

    before, after = used(HELPERS), used(HELPERS.replace(*edit))
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert differ == named


def test_a_lambda_that_fills_a_list_does_not_depend_on_it() -> None:
    seen: list[int] = []
    calls = [lambda batch: seen.append(len(batch))]
    before = uses_of(calls[0])
    calls[0]([1])
    assert uses_of(calls[0]) == before


def kept_in(**functions: Any) -> Any:
    return functions["fn"]


def test_a_lambda_whose_line_alone_is_no_program_is_looked_at_too() -> None:
    seen: list[int] = []
    known = [1]
    fills = kept_in(first=1,
        fn=lambda batch: seen.append(len(batch)))  # fmt: skip
    reads = kept_in(first=1,
        fn=lambda batch: known * len(batch))  # fmt: skip
    before = uses_of(fills), uses_of(reads)
    seen.append(2)
    known.append(2)
    assert uses_of(fills) == before[0]
    assert uses_of(reads) != before[1]


def test_of_objects_of_packages_only_the_type_is_known() -> None:
    assert changed(with_cell(logging.Logger("a")), with_cell(logging.Logger("b"))) == []
    assert changed(with_cell(logging.Logger("a")), with_cell(logging.Handler())) == [
        "variable 'value'"
    ]


@dataclass(frozen=True)
class Options:
    model: str
    labels: tuple[str, ...] = ("a", "b")


@dataclass
class Slotted:
    __slots__ = ("model",)
    model: str


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


def with_cell(value: Any) -> Callable[[Batch], Any]:
    def fn(batch: Batch) -> Any:
        return [value for _ in batch]

    return fn


class Scorer:
    def __init__(self, prompt: str, keys: list[str]) -> None:
        self.prompt = prompt
        self.keys = keys
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, batch: Batch) -> Any:
        with self.lock:
            self.calls += len(batch)
        return [(self.prompt, key) for key in self.keys]

    def method(self, batch: Batch) -> Any:
        return self(batch)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (3, 4),
        (3, 3.0),
        (1, True),
        ("a", b"a"),
        ([1, [2]], [[1], 2]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (("ab", "c"), ("a", "bc")),
        (None, object()),
        (Options("small"), Options("large")),
        (Options("small"), replace(Options("small"), labels=("a",))),
        (types.SimpleNamespace(model="a"), types.SimpleNamespace(model="b")),
        (Size.SMALL, Size.LARGE),
        (Slotted("a"), Slotted("b")),
    ],
)
def test_values_of_a_closure_are_told_apart(one: Any, two: Any) -> None:
    assert changed(with_cell(one), with_cell(two)) == ["variable 'value'"]
    assert changed(with_cell(one), with_cell(one)) == []


def test_values_that_are_equal_in_another_order_or_object_are_the_same() -> None:
    assert changed(with_cell({"a": 1, "b": {2, 3}}), with_cell({"b": {3, 2}, "a": 1})) == []
    assert changed(with_cell(threading.Lock()), with_cell(threading.Lock())) == []
    loop: list[Any] = []
    loop.append(loop)
    assert changed(with_cell(loop), with_cell(loop)) == []


def deep(depth: int, value: object) -> object:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(("depth", "is_seen"), [(45, True), (60, False), (5_000, False)])
def test_what_lies_very_deep_is_told_apart_by_its_type(depth: int, is_seen: bool) -> None:
    assert bool(changed(with_cell(deep(depth, 1)), with_cell(deep(depth, 2)))) is is_seen
    assert changed(with_cell(deep(depth, 1)), with_cell(deep(depth, 1))) == []


class Node:
    def __init__(self, parent: Node | None, name: str) -> None:
        self.parent = parent
        self.name = name
        self.children: list[Node] = []


def tree(leaf: str) -> Node:
    root = Node(None, "root")
    for number in range(30):
        node = Node(root, str(number))
        node.children = [Node(node, leaf) for _ in range(30)]
        root.children = [*root.children, node]
    return root


def test_objects_that_refer_to_each_other_are_looked_at_once() -> None:
    assert changed(with_cell(tree("a")), with_cell(tree("b"))) == ["variable 'value'"]
    assert changed(with_cell(tree("a")), with_cell(tree("a"))) == []


def test_attributes_and_arguments_are_named() -> None:
    first = Scorer("p", ["a"])
    assert changed(first, Scorer("q", ["a"])) == ["attribute 'prompt'"]
    assert changed(first.method, Scorer("p", ["b"]).method) == ["attribute 'keys'"]
    before = uses_of(first)
    first([1, 2])  # type: ignore[arg-type]
    assert uses_of(first) == before
    given = functools.partial(with_cell, 3)
    assert changed(given, functools.partial(with_cell, 4)) == ["argument 0"]


def test_what_wraps_a_function_and_what_it_wraps_are_seen() -> None:
    def times(factor: int) -> Callable[..., Any]:
        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(fn)
            def wrapper(batch: Batch) -> Any:
                return fn(batch) * factor

            return wrapper

        return decorate

    one, two = times(2)(with_cell(3)), times(3)(with_cell(3))
    assert changed(one, two) == ["variable 'factor'"]
    assert changed(one, times(2)(with_cell(4))) == ["variable 'value'"]


def test_a_job_whose_function_uses_another_value_is_refused_by_its_name(tmp_path: Path) -> None:
    def job(k: int, **options: Any) -> Job:
        return Job(with_cell(k), SCHEMA, name="scores", out=str(tmp_path), **options)

    job(3).begin(GIVEN)
    assert job(3).done(GIVEN) is None
    with pytest.raises(ConfigError, match=r"fn: .* was begun with another variable 'value'"):
        job(4).done(GIVEN)
    assert job(4, keep_results=True).done(GIVEN) is None


def test_results_of_several_functions_are_not_returned_as_if_one_had_made_them(
    tmp_path: Path,
) -> None:
    """Kept once by keep_results, they are named as mixed for whoever comes without it."""

    def job(k: int, **options: Any) -> Job:
        return Job(with_cell(k), SCHEMA, name="scores", out=str(tmp_path), **options)

    job(3).begin(GIVEN)
    job(3, keep_results=True).begin(GIVEN)
    assert job(3).done(GIVEN) is None, "the same function: nothing is mixed"
    job(4, keep_results=True).begin(GIVEN)
    for k in (3, 4):
        with pytest.raises(ConfigError, match=r"holds results of several functions"):
            job(k).done(GIVEN)
        assert job(k, keep_results=True).done(GIVEN) is None

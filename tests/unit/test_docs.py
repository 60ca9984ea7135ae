"""What the documents say is so: jobs run, names exist, defaults are those of the code."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl.bolts.batch import Batch
from flowctl.cli.main import COMMANDS, cli
from flowctl.cli.run import run
from flowctl.config import Settings, kinds
from flowctl.core.records import Record, Span
from flowctl.core.sizing import FIXED_SHARE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md", "docs/README.md"),
    *("docs/architecture.md", "docs/demo.md", "docs/dev/glossary.md", "docs/guarantees.md"),
    *("docs/settings.md", "docs/adr/README.md", "docs/control.md", "docs/adr/0009-control-law.md"),
    *("docs/dev/semantics.md", "docs/topologies.md", "docs/process.md", "docs/dead-letters.md"),
    "docs/pacing.md",
    *("docs/testing.md", "docs/versions.md", "docs/ranges.md", "SECURITY.md"),
    *("docs/spark-writes.md", "docs/streaming.md"),
    *("deploy/platforms.md", "docs/security.md"),
    *(
        "docs/apply.md",
        *(f"docs/howto/{path.name}" for path in sorted((ROOT / "docs/howto").glob("*.md"))),
        "docs/comparison.md",
        "docs/embedding.md",
        "docs/dev/rules.md",
        "docs/options.md",
        "docs/dev/releasing.md",
        "docs/dev/lab.md",
        "docs/dev/control-law-cases.md",
    ),
]
README_LINES_MAX = 200
JOB_LINES_MAX = 12  # "a job of your own takes twelve lines"; empty lines don't count


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def python_blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text_of(name), re.DOTALL | re.MULTILINE)


def table_rows(name: str) -> Iterator[list[str]]:
    """The cells of each row of each table; heads and rules are left out."""
    for table in re.findall(r"(?:^\|.*\|$\n?)+", text_of(name), re.MULTILINE):
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


# -- README ----------------------------------------------------------------------------------


def job() -> str:
    return next(block for block in python_blocks("README.md") if "FlowControlSpout(" in block)


@pytest.mark.req("S26")
def test_the_readme_is_short_and_so_is_its_job() -> None:
    assert len(text_of("README.md").splitlines()) <= README_LINES_MAX
    assert len([line for line in job().splitlines() if line]) <= JOB_LINES_MAX


def test_the_jobs_imports_resolve() -> None:
    for node in ast.walk(ast.parse(job())):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_the_jobs_process_writes_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "job"}
    exec(compile(job(), "README.md", "exec"), names)
    lines = [
        '1.2.3.4 - - [01/Nov/2026:00:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 17 "-" "x"',
        "no line of a web server",
    ]
    records = [Record((n, n), line) for n, line in enumerate(lines, start=1)]
    span = Span("visits", "logs/a.log", (1, 1), (2, 2), 1)
    for attempt in (1, 2):
        batch = Batch(records, span, bolt="b1", attempt=attempt)
        names["load"](batch)
        assert list(batch.rejected) == [1], "what is not read is counted"
    names["sink"].close()

    import sqlite3

    connection = sqlite3.connect("visits.db")
    assert connection.execute("SELECT * FROM visits").fetchall() == [("1.2.3.4", "/a?b=c", 200)]
    connection.close()
    assert names["spout"].name == "visits"


def test_options_and_commands_exist() -> None:
    known = {option for parameter in [*run.params, *cli.params] for option in parameter.opts}
    said = {
        option
        for cells in table_rows("README.md")
        if len(cells) == 2
        for option in re.findall(r"--[a-z-]+", cells[0])
    }
    assert said and said <= known
    for page in PAGES:
        for command in re.findall(r"`flowctl ([a-z]+)", text_of(page)):
            assert command in COMMANDS, f"{page}: flowctl {command}"


def test_extras_exist() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11

    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for page in PAGES:
        for found in re.findall(r"(?:flowctl-spark|'\.)\[([a-z,]+)\]", text_of(page)):
            assert set(found.split(",")) <= set(extras), f"{page}: {found}"


# -- links and names -------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page)):
        assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_every_decision_is_in_the_index() -> None:
    index = text_of("docs/adr/README.md")
    for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"):
        assert f"({path.name})" in index, path.name


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/dev/rules.md"])
def test_paths_in_the_architecture_exist(page: str) -> None:
    text = text_of(page)
    adapters = ROOT / "adapters"
    roots = (ROOT, ROOT / "flowctl", adapters, adapters / "pyspark_flowctl")
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", text):
        assert any((root / name).exists() for root in roots), name


def test_the_table_of_tests_has_each_directory_with_tests_and_no_other() -> None:
    rows = {row[0].strip("`") for row in table_rows("CONTRIBUTING.md")}
    named = {row for row in rows if row.startswith("tests/")}
    assert {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/test_*.py")} <= named
    assert all((ROOT / name).is_dir() for name in named)


def test_the_share_of_a_tuples_fixed_cost_is_that_of_the_code() -> None:
    for page, words in (
        ("docs/control.md", "fixed cost is"),
        ("docs/adr/0009-control-law.md", "fixed cost ≤"),
    ):
        assert re.findall(rf"{words} (\d+) %", text_of(page)) == [f"{FIXED_SHARE:.0%}"[:-1]], page


def test_the_glossary_defines_each_term_once() -> None:
    terms = [cells[0] for cells in table_rows("docs/dev/glossary.md")]
    assert not {term for term in terms if terms.count(term) > 1}


def test_names_in_the_glossary_are_in_the_code() -> None:
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for root in ("flowctl", "adapters")
        for path in (ROOT / root).rglob("*.py")
    )
    for cells in table_rows("docs/dev/glossary.md"):
        for quoted in re.findall(r"`([^`]+)`", cells[1]):
            for name in re.findall(r"[A-Za-z_]+", quoted.replace("=…", "")):
                assert re.search(rf"\b{name}\b", code), f"{cells[0]}: {name}"


@pytest.mark.parametrize("page", ["README.md", "docs/apply.md"])
def test_a_function_of_rows_is_code_whose_imports_exist(page: str) -> None:
    block = next(one for one in python_blocks(page) if "apply(df" in one)
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


# -- guarantees ------------------------------------------------------------------------------


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes and assigned names of a test file, also those in classes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def test_every_guarantee_names_its_test_or_says_that_there_is_none() -> None:
    rows = list(table_rows("docs/guarantees.md"))
    assert len(rows) > 40
    for fault, _, shown_by in rows:
        assert "::" in shown_by or "not tested" in shown_by, fault


def test_the_tests_that_guarantees_name_exist() -> None:
    named = re.findall(r"`((?:tests|flowctl)/[^`:]+)::([^`]+)`", text_of("docs/guarantees.md"))
    assert len(named) == text_of("docs/guarantees.md").count("::") > 60
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name in names_in(ROOT / path), f"{path}::{name}"


def test_the_tests_that_the_security_page_names_exist() -> None:
    named = re.findall(r"`(tests/[^`:]+)::([^`]+)`", text_of("docs/security.md"))
    assert len(named) > 8
    for path, name in named:
        assert name in names_in(ROOT / path), f"{path}::{name}"


# -- settings --------------------------------------------------------------------------------


def settings_fields() -> Iterator[tuple[str, msgspec.inspect.Type, Any]]:
    """Name, type and default of each setting."""
    defaults = msgspec.to_builtins(Settings())
    for name, kind in kinds().items():
        section, _, field = name.removeprefix("lab.").partition(".")
        yield name, kind, defaults[section][field]


def type_of(kind: msgspec.inspect.Type) -> str:
    """A setting's type, as docs/settings.md writes it."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            [single] = {type_of(t) for t in types} - {"none"}
            return single
        case msgspec.inspect.NoneType():
            return "none"
        case msgspec.inspect.LiteralType():
            return "one of"
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.IntType():
            return "number"
        case msgspec.inspect.BoolType():
            return "switch"
    return "seconds"


def range_of(kind: msgspec.inspect.Type) -> str:
    """A setting's range, as docs/settings.md writes it."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(range_of(t) for t in types)
        case msgspec.inspect.NoneType():
            return "`none`"
        case msgspec.inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case msgspec.inspect.StrType(min_length=1):
            return "the name of a file"
        case msgspec.inspect.StrType(pattern=pattern):
            return "a count or a share such as `0.1%`" if pattern else "a name or address"
        case msgspec.inspect.IntType(ge=int(low), le=int(high)):
            return f"{low} … {high}"
        case msgspec.inspect.IntType(ge=int(low)):
            return f"≥ {low}"
        case msgspec.inspect.BoolType():
            return "`true` or `false`"
        case msgspec.inspect.FloatType():
            return float_range(kind)
    raise AssertionError(f"no rule for {kind}")


def float_range(kind: msgspec.inspect.FloatType) -> str:
    if kind.gt is None:
        return f"{kind.ge:g} … {kind.le:g}"
    return f"> {kind.gt:g}" + ("" if kind.le is None else f" … {kind.le}")


def test_every_setting_is_told_with_its_present_type_default_and_range() -> None:
    users = {
        cells[0].strip("`"): (cells[2] + cells[1], cells[3])
        for cells in table_rows("docs/settings.md")
        if len(cells) == 5
    }
    told = users | {
        cells[0].strip("`"): (cells[1], cells[2].replace(", or ", " or "))
        for cells in table_rows("docs/dev/lab.md")
        if len(cells) == 4
    }
    wanted = {
        name: (
            ("" if name.startswith("lab.") else type_of(kind)) + f"`{_as_text(default)}`",
            range_of(kind),
        )
        for name, kind, default in settings_fields()
    }
    assert not [name for name in users if name.startswith("lab.")] and len(users) <= 28
    assert told.keys() == wanted.keys()
    for name, values in wanted.items():
        # A Literal's values come in msgspec's order, which is not the page's.
        assert _sorted(told[name]) == _sorted(values), name


def _as_text(default: object) -> str:
    """As ``--set`` takes it."""
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def _sorted(values: tuple[str, str]) -> tuple[str, list[str]]:
    return values[0], sorted(values[1].split(", "))


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_settings_run(number: int) -> None:
    blocks = python_blocks("docs/settings.md")
    names: dict[str, Any] = {}
    exec("\n".join(blocks[: number + 1]), names)
    assert (names["settings"].tuple.records_max, names["settings"].hedge.enabled) == (500, False)
    assert names["settings"].listen.port == (0, 7077)[number]


# -- embedding -------------------------------------------------------------------------------


@pytest.mark.req("S119")
def test_the_spout_that_is_driven_by_hand_does_all_of_it() -> None:
    names: dict[str, Any] = {"__name__": "by_hand"}
    exec(compile(python_blocks("docs/embedding.md")[0], "embedding.md", "exec"), names)
    assert sorted(names["done"]) == list(range(1, 1001))
    saved = names["store"].load("by-hand").partitions["numbers"]
    assert (saved.position, saved.records, saved.acked) == (1000, 1000, ())

"""What is decided in one place is decided nowhere else: pauses, blame, costs, limits.

Each door once brought its own, and what was mended behind one stayed broken behind the next.  Here
a second one is found, by its syntax and by how it is called.  A part of :mod:`tests.house`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from tests.sources import Breach, Source, text_of

RETRY_FILE: Final = "flowctl/core/retry.py"
BLAME_FILE: Final = "flowctl/core/blame.py"
# What may be made in one file only.
MADE_IN: Final = {"Pause": RETRY_FILE, "Breaker": BLAME_FILE}
COST_FILE: Final = "flowctl/core/cost.py"
# A time by a number of records that is no estimate of what a record costs the caller.
OTHER_COSTS: Final = {
    "flowctl/core/consumer.py": "service.of() without a call, in the hottest place",
    "flowctl/core/end_of_input/shares.py": "the same, with the most that a call may cost",
    "flowctl/core/first_guess.py": "what COST_FILE begins with: the last run, the first tuples",
    "flowctl/core/sink_guard/epoch.py": "what a sink takes for a record at some load, of all bolts",
    "flowctl/core/window/rtt_only.py": "how many tuples are on the path",
    "adapters/flowctl_lab/": "what the simulated world costs, which it knows",
}
_COST_NAME: Final = re.compile(
    r"(Call|Row|Record|Batch|Service)(Cost|Time|Times|Model|Line)$|Estimator$|Kalman|Regression"
)
COST_NAMES: Final = {  # that estimate something else
    "RttEstimator": "flowctl/core/rtt.py",
}
LIMIT_FILE: Final = "flowctl/core/limit.py"
_LIMIT_NAME: Final = re.compile(r"(Refus|Throttl)\w*(Cap|Limit|Law|Size|s)$")
_ON_REFUSAL: Final = re.compile(r"refus|throttl")
# Waits that double and are no pause before another try of what failed.
OTHER_WAITS: Final = {
    "flowctl/core/pacing/law.py": "how long it keeps a limit, and takes one for known to be low",
    "flowctl/core/ranges/splits.py": "how long a bolt has to answer, by its path",
    "flowctl/runtime/bolt_watch.py": "how long a bolt may be silent before it is ended",
    "adapters/pyspark_flowctl/supervisor.py": "how often Spark is asked for its slots",
}
# How constants and classes are called that decide about retries and blame.
_RETRY_NAME: Final = re.compile(
    r"(^|_)(BACKOFF|RETRY|GIVE_UP|GIVEN_UP|IN_A_ROW|BAD_END)(_|$)|Backoff|Attempts|Retries|Breaker$"
)
_WAIT_NAME: Final = re.compile(r"(wait|pause|back_?off|rest|retry|first|after)\w*_s$", re.I)
RETRY_NAMES: Final = {  # that mean something else, or are what it works with
    "_BACKOFF": "flowctl/core/rtt.py",  # of a time-out (RFC 6298)
    "_BACKOFF_RATIO": "adapters/flowctl_lab/baselines.py",  # by which a window shrinks
    "_RETRY_S": "adapters/flowctl_sql/_sqlite.py",  # how often it looks whether a lock is free
    "Breaker": "flowctl/core/blame.py",
}


# -- retries and blame -------------------------------------------------------------------------


def stray_retries(sources: Iterable[Source]) -> Iterator[Breach]:
    """Pauses before another try, and judgements of whose fault a failure is, beside those of
    :data:`RETRY_FILE` and :data:`BLAME_FILE`."""
    for source in sources:
        if source.path in (RETRY_FILE, BLAME_FILE):
            continue
        for node in source.nodes:
            what = _made(node, source.path) or _named(node, source.path)
            if not what and source.path not in OTHER_WAITS and doubles_a_wait(node):
                what = f"a wait that doubles, beside {RETRY_FILE}"
            if what:
                yield Breach(source.path, getattr(node, "lineno", 1), what)


def _made(node: ast.AST, path: str) -> str:
    if not (isinstance(node, ast.Call) and text_of(node.func) in MADE_IN):
        return ""
    name = text_of(node.func)
    return "" if path == MADE_IN[name] else f"makes a {name}, which only {MADE_IN[name]} may"


def _named(node: ast.AST, path: str) -> str:
    """What is said of a class or a constant that is called as if it decided this."""
    names: list[str] = []
    if isinstance(node, ast.ClassDef):
        names = [node.name]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each.id for each in targets if isinstance(each, ast.Name)]
    for name in names:
        is_constant = isinstance(node, ast.ClassDef) or name.isupper()
        if is_constant and _RETRY_NAME.search(name) and RETRY_NAMES.get(name) != path:
            return f"{name}: belongs to {RETRY_FILE} or {BLAME_FILE}"
    return ""


def doubles_a_wait(node: ast.AST) -> bool:
    """Whether it is ``wait_s *= 2``, or has ``2 * wait_s`` or ``first_s * 2 ** n`` in it."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Mult) and _is_wait(node.target) and _is_two(node.value)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if _is_wait(one) and (_is_two(other) or _is_power_of_two(other)):
            return True
    return False


def _is_wait(node: ast.expr) -> bool:
    return _WAIT_NAME.search(text_of(node)) is not None


def _is_two(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 2


def _is_power_of_two(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _is_two(node.left)


# -- costs -------------------------------------------------------------------------------------


def stray_costs(sources: Iterable[Source]) -> Iterator[Breach]:
    """Estimates of what a call or a record costs, beside those of :data:`COST_FILE`."""
    for source in sources:
        if source.path == COST_FILE:
            continue
        is_other = any(source.path.startswith(path) for path in OTHER_COSTS)
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and _COST_NAME.search(node.name):
                if COST_NAMES.get(node.name) != source.path:
                    yield Breach(source.path, node.lineno, f"{node.name}: belongs to {COST_FILE}")
            elif not is_other and is_time_by_records(node):
                what = f"a time by a number of records, beside {COST_FILE}"
                yield Breach(source.path, getattr(node, "lineno", 1), what)


def is_time_by_records(node: ast.AST) -> bool:
    """Whether it is ``service_s / records``, or ``(one_s - other_s) / (rows - fewer)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        time, records = text_of(node.left), text_of(node.right)
        return bool(re.search(r"_s\b", time) and re.search(r"(records|rows)(_|\b)", records))
    return False


# -- limits ------------------------------------------------------------------------------------


def stray_limits(sources: Iterable[Source]) -> Iterator[Breach]:
    """Limits learned from refusals, beside that of :data:`LIMIT_FILE`."""
    for source in sources:
        if source.path == LIMIT_FILE:
            continue
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and _LIMIT_NAME.search(node.name):
                yield Breach(source.path, node.lineno, f"{node.name}: belongs to {LIMIT_FILE}")
            elif is_lessening_on_refusal(node):
                what = f"makes less of something on a refusal, which only {LIMIT_FILE} may"
                yield Breach(source.path, getattr(node, "lineno", 1), what)


def is_lessening_on_refusal(node: ast.AST) -> bool:
    """Whether it is a function, called after refusals, that makes less of something."""
    if not (isinstance(node, ast.FunctionDef) and _ON_REFUSAL.search(node.name)):
        return False
    return any(lessens(part) for part in ast.walk(node))


def lessens(node: ast.AST) -> bool:
    """Whether it is ``limit *= 0.8``, ``_DOWN * limit`` or ``limit / 2``."""
    if not isinstance(node, ast.BinOp | ast.AugAssign):
        return False
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    if isinstance(node.op, ast.Mult):
        return any(_is_below_one(part) for part in parts)
    return isinstance(node.op, ast.Div | ast.FloorDiv) and _is_two(parts[-1])


def _is_below_one(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value < 1
    return re.search(r"DOWN|DECREASE|BACKOFF_RATIO", text_of(node)) is not None

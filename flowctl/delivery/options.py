"""The options of the doors: one table, so that each has one name, one meaning and one default.

What a door takes, how it is checked, what its docstring and docs/options.md say (``make options``
prints that page), and what is told of an unknown name, all come from here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, TypeVar

from flowctl.adapters import dead_letter_of
from flowctl.arguments import check_numbers, check_whole
from flowctl.core.settings import LONG_SECONDS_MAX, RetrySettings
from flowctl.delivery.batch_rows import START_ROWS
from flowctl.delivery.pacers import RowTargets
from flowctl.delivery.plan import CALL_MAX_S, ROWS_MAX
from flowctl.errors import ConfigError
from flowctl.failure.callables import check_plain, check_process
from flowctl.failure.classify import check_rule
from flowctl.pacing.api import Paced, paced
from flowctl.pacing.budgets import check_units
from flowctl.pacing.target_settings import Limits

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch
    from flowctl.config import GivenSettings
    from flowctl.failure.classify import RefusalRule
    from flowctl.pacing.budgets import Budget, Cost
    from flowctl.ports import Bolts, CheckpointStore, DeadLetter, Process
    from flowctl.runtime.launch import ViewChoice

_T = TypeVar("_T", bound=Callable[..., Any])

# -- Checks: each returns what is used in place of what was given --------------------------------


def _whole(name: str, given: Any) -> int:
    check_whole(**{name: given})
    return int(given)


def _number(name: str, given: Any) -> float:
    check_numbers(**{name: given})
    return float(given)


def _text(name: str, given: Any, remedy: str = "Give text.") -> str:
    if not isinstance(given, str):
        raise ConfigError(name, f"is of type {type(given).__name__}.", remedy=remedy)
    if not given:  # mostly a variable that nobody has set
        raise ConfigError(name, "it is empty.", remedy="Give a name, or leave it out.")
    return given


def _target(name: str, given: Any) -> Any:
    if callable(given):
        check_process(given, name)
        check_plain(given, name)
        return given
    return _text(name, given, "Give text, or a function of the row that returns one.")


def _seconds(name: str, given: Any) -> float:
    seconds = _number(name, given)
    if seconds > LONG_SECONDS_MAX:
        raise ConfigError(
            name,
            f"must be {LONG_SECONDS_MAX} s (two weeks) at most, got {given!r}.",
            remedy="Leave it out if a call may take as long as it likes.",
        )
    return seconds


def _letters(name: str, given: Any) -> Any:
    from flowctl.runtime.parts import check_dead_letter

    if isinstance(given, str | Path):
        return _text(name, str(given))
    check_dead_letter(given)
    return given


def _losses(name: str, given: Any) -> str:
    from flowctl.runtime.losses import LossBudget

    return LossBudget.parse(given, name=name).text


def _rule(name: str, given: Any) -> Any:
    check_rule(given, name)
    return given


def _function(name: str, given: Any) -> Any:
    check_process(given, name)
    return given


def _bolts(name: str, given: Any) -> Any:
    return given if given == "auto" or callable(given) else _whole(name, given)


def _settings(_: str, given: Any) -> Any:
    from flowctl.config import settings_of

    return settings_of(given or None)


def _store(_: str, given: Any) -> Any:
    from flowctl.runtime.memory_store import MemoryCheckpointStore
    from flowctl.runtime.parts import store_of

    # The manifest beside the results is the checkpoint, so nothing else need survive.
    return store_of(given) if given else MemoryCheckpointStore()


def _view(_: str, given: Any) -> Any:
    from flowctl.runtime.launch import page_of, view_of

    return page_of(given) or view_of(given)


def _append(name: str, given: Any) -> Any:
    if given != "append":
        raise ConfigError(name, f"{given!r} is not known.", remedy='Give "append", or None.')
    return given


def _iceberg(name: str, given: Any) -> Any:
    if isinstance(given, str):
        return _text(name, given)
    if not hasattr(given, "add_files"):
        raise ConfigError(
            name,
            f"is a {type(given).__name__}, not a Table of pyiceberg.",
            remedy="Give one, or its name: 'catalog.namespace.table'.",
        )
    return given


def _as_column(name: str, given: Any) -> str:
    if given != "column":
        raise ConfigError(name, f"{given!r} is not known.", remedy='Give "column", or None.')
    return str(given)


def _directory(name: str, given: Any) -> str:
    return _text(name, os.fspath(given) if isinstance(given, os.PathLike) else given)


def _by_pacing(_: str, given: Any) -> Any:
    """:func:`flowctl.paced` checks it, with the target."""
    return given


# Spark costs half a second a batch: 5 % of this.
TARGET_BATCH_S: Final = 10.0
# All of them are in the planner's memory: some 200 MB, as their bytes are bounded too
# (delivery/offset_reader.py).  Rows that cost nothing are then done as fast as Spark plans batches.
BATCH_ROWS_MAX: Final = 500_000

# -- The table -----------------------------------------------------------------------------------

SINK: Final = "flow_sink"
BATCH: Final = "flow_batch"
WRITE: Final = "write.format"
READ: Final = "readStream.format"
APPLY: Final = "apply"
PACED: Final = "paced"
#: Each door, as docs/options.md calls it.
DOORS: Final = {
    SINK: "`flow_sink`",
    BATCH: "`flow_batch`",
    WRITE: '`write.format("flowctl")`, `writeStream`',
    READ: '`readStream.format("flowctl")`',
    APPLY: "`apply`, `apply_parquet`",
    PACED: "`paced`",
}
_ROWS = (SINK, BATCH, WRITE)  # doors through which rows go out
_TEXT = (WRITE, READ)  # Spark passes their options as text


class Option(NamedTuple):
    """``says`` what can be given; ``check(name, given)`` returns what is used, or raises."""

    name: str
    says: str
    default: Any
    meaning: str
    doors: tuple[str, ...]
    check: Callable[[str, Any], Any]
    of_text: Callable[[str], Any] = str  # for the doors whose options Spark passes as text


OPTIONS: Final = (
    Option("target", "a name, or a function of the row that returns one", None,
           "what is called; all that name it share a limit, which flowctl learns from its answers."
           " With a function each call has rows of one target"
           " ([pacing.md](pacing.md#a-limit-for-each-tenant)); where options are text, and for"
           " `paced`, a name", (*_ROWS, READ, APPLY, PACED), _target),
    Option("redis", "a URL", None,
           "the Redis over which processes and jobs share limits and streams keep their progress;"
           " None: `FLOWCTL_REDIS_URL`, else each process has a limit of its own",
           (*_ROWS, READ, APPLY, PACED), _text),
    Option("name", "a name", None,
           "the job, in checkpoints, spans and dead letters, beside others with the same target;"
           " None: as the target (`apply` and a spout ask for one)", (*_ROWS, READ, PACED), _text),
    Option("run", "text, such as a date", None,
           "makes the names of the rows last for ever: what comes again with it is left out",
           (SINK, WRITE), _text),
    Option("rows_max", "a whole number", ROWS_MAX,
           "a call gets at most so many rows; a sink may have a default of its own"
           " (`SqlSink`: 10,000)", _ROWS, _whole, int),
    Option("bytes_max", "bytes", None,
           "the rows of a call have at most so many bytes, as MessagePack; a single row goes"
           " whatever its size. None: what the target's \"too large\" (413) teaches",
           _ROWS, _whole, int),
    Option("call_max_s", "seconds", CALL_MAX_S,
           "a call gets no more rows than take this long", _ROWS, _number, float),
    Option("call_timeout_s", "seconds", None,
           "a call that takes longer is a failure of its rows; None: it may take as long as it"
           " likes, and is named after 30 s", (*_ROWS, READ, APPLY), _seconds, float),
    Option("calls", "a whole number", 1,
           "so many calls of a partition are made at once, in any order, if the target's limit lets"
           " them: by threads, or in the event loop if `async`; `SqlSink` takes 1",
           _ROWS, _whole, int),
    Option("attempts_max", "a whole number", RetrySettings().attempts_max,
           "a row that fails is tried so many times", (*_ROWS, READ, APPLY), _whole, int),
    Option("dead_letter", "a directory that all workers share, or a `flowctl.DeadLetter`", None,
           "keeps rows that are rejected, or that fail always; None: such a row ends the job",
           (*_ROWS, READ, APPLY), _letters),
    Option("fail_over", '"100" or "1%"', None,
           "how many rows may be lost before the job fails; None: any number, if they are kept",
           (*_ROWS, READ, APPLY), _losses),
    Option("refusal", "a function of an error", None,
           "which errors are refusals of the target: True or seconds; False for a failure; None"
           " leaves it to flowctl", (SINK, BATCH, APPLY, PACED), _rule),
    Option("cost", "a function of the batch", None,
           "what a call takes of `budget`: a number, or numbers by unit, `{\"tokens\": 812}`; None:"
           " one call. For `paced` the cost itself, or a function of the call's arguments",
           (SINK, BATCH, APPLY, PACED), _function),
    Option("budget", 'quotas: `"500/min"`, `["500/min", "90k tokens/min", "10k/day"]`', None,
           "what all callers of the target may use together"
           " ([pacing.md](pacing.md#quotas)); a number: the cost per second; None: what is learned",
           (*_ROWS, READ, APPLY, PACED), _by_pacing),
    Option("spend_max", '`"$20"`', None,
           "what the job may spend in all, as `cost` says; then it ends, saved",
           (*_ROWS, READ, APPLY, PACED), _by_pacing),
    Option("weight", "a number", 1.0, "this job's share beside others with the same target",
           (*_ROWS, READ, APPLY, PACED), _by_pacing, float),
    Option("leave", "0 to below 1", 0.0,
           "the part of the limit that is left to callers which flowctl doesn't know",
           (*_ROWS, READ, APPLY, PACED), _by_pacing, float),
    Option("limits", "`flowctl.Limits`", None, "bounds for the limit that is learned",
           (SINK, BATCH, APPLY, PACED), _by_pacing),
    Option("hard", "True or False", False,
           "PostgreSQL holds a permit for each call as well", (PACED,), _by_pacing),
    Option("target_batch_s", "seconds", TARGET_BATCH_S,
           "how long a batch of the stream should take; Spark itself needs 0.2 to 1 s of it",
           (READ,), _number, float),
    Option("trigger_s", "seconds", None,
           "the interval of `Trigger.ProcessingTime`, if you use it", (READ,), _number, float),
    Option("start_rows", "a whole number", START_ROWS, "rows of the first batch",
           (READ,), _whole, int),
    Option("batch_rows_max", "a whole number", BATCH_ROWS_MAX,
           "a batch has at most so many rows; Spark's planner holds all of them in memory",
           (READ,), _whole, int),
    Option("tasks", "a whole number", 4,
           "so many tasks run at once; a batch is cut into four chunks for each",
           (READ,), _whole, int),
    Option("bolts", '"auto", a number, or a function of `process`', "auto",
           "how many bolts; auto: one for each slot of the Spark application, also for those that"
           " come later; 12 without Spark, and on Spark Connect, which doesn't say",
           (APPLY,), _bolts),
    Option("slots", "a whole number", 1, "so many batches each bolt processes at once",
           (APPLY,), _whole),
    Option("checkpoint", "a URL of Redis, or a store", "",
           "where progress is kept as well; a killed job goes on without one, too",
           (APPLY,), _store),
    Option("deadline_s", "seconds", None,
           "then the job saves, says what is left and raises `DeadlineError`; run it again for the"
           " rest", (APPLY,), _seconds),
    Option("settings", "`flowctl.Settings`, or a dict", (), "[settings.md](settings.md)",
           (APPLY,), _settings),
    Option("files", "a whole number", None,
           "merge the result into at most so many files; None: as they were written",
           (APPLY,), _whole),
    Option("mode", '"append"', None,
           "`out` is a Delta table, to which the rows are added in one commit", (APPLY,), _append),
    Option("table", "a `Table` of pyiceberg, or `catalog.namespace.table`", None,
           "an Iceberg table, to which the rows are added in one commit", (APPLY,), _iceberg),
    Option("cache", "a directory, as `out`", None,
           "with `key`: keeps results by their keys, for other jobs with the same function",
           (APPLY,), _directory),
    Option("cache_days", "a number", None, "how long a result of `cache` counts; None: for ever",
           (APPLY,), _number),
    Option("cache_gb", "a number", None,
           "the results of one function in `cache` take no more; the oldest go", (APPLY,), _number),
    Option("errors", '"column"', None,
           "with `key`: rows that failed stay, and a column `error` says why; None: they are left"
           " out, and `.failures` of the result has them", (APPLY,), _as_column),
    Option("view", '"auto", "live", "plain", "quiet", "off" or "page"', "auto",
           "how progress is shown", (APPLY,), _view),
)  # fmt: skip


# -- The same for the type checker; a test holds it against the table ----------------------------


class CallOptions(TypedDict, total=False):
    """What both take for their calls of a target."""

    target: str | Callable[[Any], str] | None
    redis: str | None
    call_timeout_s: float | None
    attempts_max: int
    dead_letter: DeadLetter | str | Path | None
    fail_over: str | int | None
    refusal: RefusalRule | None
    cost: Callable[[Batch], Cost] | None
    budget: Budget | None
    spend_max: str | float | None
    weight: float
    leave: float
    limits: Limits | None


class SinkOptions(CallOptions, total=False):
    """What :func:`pyspark_flowctl.flow_sink` takes beside ``fn`` and ``sink``."""

    name: str | None
    run: str | None
    rows_max: int
    bytes_max: int | None
    call_max_s: float
    calls: int


class ApplyOptions(CallOptions, total=False):
    """What :func:`pyspark_flowctl.apply` takes beside what decides its result."""

    bolts: int | Literal["auto"] | Callable[[Process], Bolts]
    slots: int
    checkpoint: CheckpointStore | str | None
    deadline_s: float | None
    settings: GivenSettings
    files: int | None
    mode: Literal["append"] | None
    table: Any
    cache: str | os.PathLike[str] | None
    cache_days: float | None
    cache_gb: float | None
    errors: Literal["column"] | None
    view: ViewChoice


# -- What the doors ask --------------------------------------------------------------------------


def names_of(door: str) -> tuple[str, ...]:
    """Return the names of the options that ``door`` takes, in the order of the table."""
    return tuple(option.name for option in OPTIONS if door in option.doors)


def checked(door: str, given: Mapping[str, Any], *also: str) -> dict[str, Any]:
    """Return all options of ``door``: those given, as they are used, and defaults.

    ``also``: parameters that the door has beside them, for the error.  Raises :class:`ConfigError`
    for a name that the door does not take, and for a value that can't be used.
    """
    known = names_of(door)
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(
            unknown[0],
            "is not a parameter.",
            remedy=f"There are: {', '.join((*also, *known))}.",
        )
    return {option.name: _used(option, given) for option in OPTIONS if door in option.doors}


def _used(option: Option, given: Mapping[str, Any]) -> Any:
    value = given.get(option.name, option.default)
    return None if value is None and option.default is None else option.check(option.name, value)


def read_text(door: str, left: dict[str, str]) -> dict[str, Any]:
    """Take the options of ``door`` out of ``left``, where Spark has them as text in lower case.

    Raises :class:`ConfigError` for what is not a number and should be one.
    """
    found = {}
    for option in OPTIONS:
        if door in option.doors and option.name in left:
            text = left.pop(option.name)
            try:
                found[option.name] = option.of_text(text)
            except ValueError:
                what = "whole number" if option.of_text is int else "number"
                raise ConfigError(
                    option.name,
                    f"{text!r} is not a {what}.",
                    remedy=f"Give one: .option({option.name!r}, 100).",
                ) from None
    return found


#: What of a door's options is passed on to :func:`flowctl.paced`.
PACING: Final = ("budget", "spend_max", "weight", "leave", "limits")
# Where nobody says how many slots there are.  Most functions wait for a service: more than cores.
BOLTS: Final = 12
_AS_SETTINGS: Final = {
    "attempts_max": "retry.attempts_max",
    "call_timeout_s": "call.timeout_s",
    "fail_over": "loss.fail_over",
}


def for_apply(name: str, given: Mapping[str, Any], *, key: object = None) -> dict[str, Any]:
    """Return all options of ``apply`` for the job ``name``, as they are used.

    ``key`` are the columns that decide a row's result, if it is known that some do.
    ``settings`` has what options say as well; ``paced`` is the limit that its calls keep, or None;
    if each row names its target, what knows the limits.
    Raises :class:`ConfigError` as :func:`checked` does, and for what leaves rows without a result.
    """
    made = checked(APPLY, given, "schema", "name", "out", "columns", "form", "keep_results")
    # An option that is not given leaves what ``settings`` say.
    own = {_AS_SETTINGS[option]: made[option] for option in _AS_SETTINGS if option in given}
    made["settings"] = made["settings"].with_overrides(
        {setting: value for setting, value in own.items() if value is not None}
    )
    mode = made["settings"].guarantee.mode
    if mode != "at_least_once":
        raise ConfigError(
            "guarantee.mode",
            f"{mode} would leave rows without a result.",
            remedy="Leave it out: each row's result is kept exactly once.",
        )
    for option in ("cache", "errors") if key is None else ():
        if made[option] is not None:
            raise ConfigError(
                option, "is about rows with equal keys.", remedy="Give key=, in apply on Spark."
            )
    for option in ("cache_days", "cache_gb"):
        if made[option] is not None and made["cache"] is None:
            raise ConfigError(option, "is about a cache.", remedy="Give cache=, a directory.")
    made["dead_letter"] = dead_letter_of(made["dead_letter"])
    made["paced"] = _pace_of(name, made, given)
    return made


def check_row_target(made: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for options that one target has, if each row names its own."""
    if callable(made["target"]) and made["spend_max"] is not None:
        raise ConfigError(
            "spend_max",
            "is counted for one target, and target= is a function of the row.",
            remedy='Give each target a quota, budget=["$20/day"]; or, around the calls in fn,'
            " paced('all', spend_max=…).",
        )


def _pace_of(
    name: str, made: Mapping[str, Any], given: Mapping[str, Any]
) -> Paced | RowTargets | None:
    target = made["target"]
    if target is not None:
        check_row_target(made)
        options: dict[str, Any] = {
            "redis": made["redis"] or os.environ.get("FLOWCTL_REDIS_URL"),
            "name": name,
            "cost": made["cost"],
            "refusal": made["refusal"],
            **{option: made[option] for option in PACING},
        }
        pace = paced(name if callable(target) else target, **options)
        check_units(pace.settings.quotas, made["cost"])
        return RowTargets(target, **options) if callable(target) else pace
    for option in ("redis", "cost", *PACING):
        if given.get(option) is not None:
            raise ConfigError(option, "is about a target.", remedy="Name the target: target='llm'.")
    return None


def documented(*doors: str) -> Callable[[_T], _T]:
    """Decorate a door: its docstring ends with its options."""

    def decorate(door: _T) -> _T:
        lines = [
            f"    {option.name}: {option.says}; {option.meaning}"
            f" (default {option.default!r})".replace("`", "")
            for option in OPTIONS
            if set(doors) & set(option.doors)
        ]
        # From 3.13 on Python itself takes away the indentation, which the options would lack.
        said = inspect.cleandoc(door.__doc__ or "")
        door.__doc__ = f"{said}\n\nOptions:\n" + "\n".join(lines) + "\n"
        return door

    return decorate

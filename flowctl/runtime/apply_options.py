"""The options of ``apply``, one list for all its doors, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypedDict, cast

from flowctl.bolts.limits import check_count
from flowctl.config import GivenSettings, settings_of
from flowctl.errors import ConfigError
from flowctl.ports import Bolts, CheckpointStore, DeadLetter, Process
from flowctl.runtime.launch import ViewChoice, view_of
from flowctl.runtime.parts import check_dead_letter, store_of

# Where nobody says how many slots there are.  Most functions wait for a service: more than cores.
BOLTS: Final = 12


class ApplyOptions(TypedDict, total=False):
    """How a job runs; none of it changes its result.

    ``bolts``: how many, or what makes bolts of a process ("auto": one for each slot that Spark
    has; 12 without Spark, or on Connect, which doesn't say); ``slots``: how many batches one does
    at once (1).  A call of ``fn`` that takes longer than ``call_timeout_s`` is a failure of its
    rows (None: it may take as long as it likes).  ``checkpoint`` as for
    :class:`flowctl.FlowControlSpout`: a killed run goes on without one too.  ``dead_letter``
    keeps rows that ``fn`` rejects, or always fails on; without one the run fails there.  ``files``:
    merge the result into at most this many files at the end (None: as they were written).
    ``mode="append"``: ``out`` is the directory of a Delta table, to which the rows are added in one
    commit at the end; needs deltalake on the driver (None: not a table).  ``view`` shows progress.
    """

    bolts: int | Literal["auto"] | Callable[[Process], Bolts]
    slots: int
    call_timeout_s: float | None
    checkpoint: CheckpointStore | str | None
    settings: GivenSettings
    dead_letter: DeadLetter | None
    files: int | None
    mode: Literal["append"] | None
    view: ViewChoice


def checked_options(given: Mapping[str, Any]) -> ApplyOptions:
    """Return ``given`` with its parts made and all defaults; may be given what it returned.

    Raises :class:`ConfigError` for an option that does not exist or can't be used.
    """
    known = ApplyOptions.__annotations__
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(
            unknown[0], "is not a parameter.", remedy=f"There are also: {', '.join(known)}."
        )
    made = {
        "bolts": "auto", "slots": 1, "dead_letter": None, "files": None, "mode": None, **given,
    }  # fmt: skip
    if made["bolts"] != "auto" and not callable(made["bolts"]):
        check_count("bolts", made["bolts"])
    check_count("slots", made["slots"])
    if made["files"] is not None:
        check_count("files", made["files"])
    if made["mode"] not in (None, "append"):
        raise ConfigError(
            "mode", f"{made['mode']!r} is not known.", remedy='Give "append", or None.'
        )
    check_dead_letter(made["dead_letter"])
    made["settings"] = settings_of(made.get("settings"))
    if (bound_s := made.pop("call_timeout_s", None)) is not None:
        made["settings"] = made["settings"].with_overrides({"call.timeout_s": bound_s})
    mode = made["settings"].guarantee.mode
    if mode != "at_least_once":
        raise ConfigError(
            "guarantee.mode",
            f"{mode} would leave rows without a result.",
            remedy="Leave it out: each row's result is kept exactly once.",
        )
    made["checkpoint"] = store_of(made.get("checkpoint"))
    made["view"] = view_of(made.get("view", "auto"))
    return cast("ApplyOptions", made)

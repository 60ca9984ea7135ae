"""An import that fails in ``process``: no record is to blame, and none would be processed."""

from __future__ import annotations

import dis
import socket
from typing import Final

from flowctl.errors import MissingExtraError, UnrunnableError

_IMPORT: Final = dis.opmap["IMPORT_NAME"]


def for_missing_module(error: BaseException) -> UnrunnableError | None:
    """Return what ends the run if ``error`` says that this machine lacks a module; else None.

    Only of an ``import`` statement: ``pickle.loads`` and ``importlib.import_module`` raise the same
    error for a module that a record names.
    """
    if isinstance(error, MissingExtraError):
        problem = error.problem.removeprefix(f"{error.field}: ")
        return UnrunnableError(error.field, f"{problem} ({_here()})", remedy=error.remedy)
    if not isinstance(error, ModuleNotFoundError) or not (place := _statement(error)):
        return None
    return UnrunnableError(
        "process",
        f"{place} imports {error.name!r}, which {_here()} does not have ({error}).",
        remedy="Install it wherever bolts run (on Spark: spark.submit.pyFiles or addPyFile send a"
        " module), and run again.",
    )


def _statement(error: ModuleNotFoundError) -> str:
    """Return where an import statement raised ``error``; "": something else did."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    if code.co_code[trace.tb_lasti : trace.tb_lasti + 1] != bytes([_IMPORT]):
        return ""
    return f"line {trace.tb_lineno} of {code.co_filename}"


def _here() -> str:
    return socket.gethostname()

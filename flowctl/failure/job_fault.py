"""Errors with which no record can succeed: a missing module, a target that refuses the login."""

from __future__ import annotations

import dis
import socket
from typing import Final

from flowctl.errors import MissingExtraError, UnrunnableError
from flowctl.failure.classify import Meaning, RefusalRule, meaning_of
from flowctl.failure.kinds import Kind
from flowctl.failure.texts import error_text

_IMPORT: Final = dis.opmap["IMPORT_NAME"]


def job_fault_of(error: BaseException, rule: RefusalRule | None = None) -> UnrunnableError | None:
    """Return what ends the run if ``error`` is the job's fault, and no record's; else None.

    ``rule`` is the user's own; its exceptions propagate.
    """
    return for_missing_module(error) or not_allowed(error, meaning_of(error, rule))


def not_allowed(error: BaseException, meaning: Meaning) -> UnrunnableError | None:
    """Return what ends the run if ``meaning`` says that ``error`` means "not allowed"; else
    None.
    """
    if meaning.kind is not Kind.NOT_ALLOWED:
        return None
    said = " ".join(error_text(error).split())  # the remedy follows on a line of its own
    ending = UnrunnableError(
        "process",
        f"the target does not allow it ({meaning.reason}): {said.rstrip('.')}.",
        remedy="No record is to blame. Correct the token, user, password, database or rights, and"
        " run again. If it is about single records, reject them (batch.reject), or let refusal="
        " return 'content' for such errors.",
    )
    ending.__cause__ = error
    return ending


def for_missing_module(error: BaseException) -> UnrunnableError | None:
    """Return what ends the run if ``error`` says that this machine lacks a module; else None.

    Only for an ``import`` statement: ``pickle.loads`` and ``importlib.import_module`` raise the
    same error for a module that a record names.
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
    """Return the import statement that raised ``error``; "": something else did."""
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

"""One tree of errors, split by who must act.

======================  ==========================================================
the job's author acts   :class:`JobError` and below: a wrong setting, bad input,
                        a ``process`` that raises
the operator acts       :class:`InfrastructureError` and below: Redis, Spark, network,
                        a checkpoint that can't be read, a newer driver
flowctl's makers act    :class:`InternalError`: a broken invariant; please report it
======================  ==========================================================

Late, doubled and unknown acks are counted outcomes, not errors
(:class:`flowctl.core.records.AckOutcome`).  Every error has a ``remedy``: one sentence that says
what to do next.  No message ever holds a password (see :func:`without_secrets`).
"""

from __future__ import annotations

import re
import reprlib
import shlex
from calendar import timegm
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.instrumentation.snapshot import Report

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
# records were rejected or dead-lettered, and no setting allowed that many
EXIT_FINISHED_WITH_LOSSES = 3
EXIT_SPENT = 4  # spend_max ended the run; a person decides
EXIT_QUOTA = 75  # EX_TEMPFAIL of sysexits.h: a quota is used up, run again later
EXIT_DEADLINE = 124  # as timeout(1) ends: --deadline ended the run; run again for the rest
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# User and password of a URL.  For servers and databases everything up to the last @ is hidden: a
# raw @ or / in a password must not leave a part of it visible.  Elsewhere an @ may belong to a path
# (s3://b/a@b).  Templates such as "redis://[user:password@]host" or "redis://:PASSWORD@host" stay.
_USAGE = r"(?!\[user:password@\]|:PASSWORD@)"
_SERVERS = r"(?:rediss?|valkeys?|postgres(?:ql)?|mysql|mariadb|mongodb|amqps?)(?:\+\w+)?"
_USERINFO = re.compile(rf"(?<=://){_USAGE}[^/@\s]*@")
_SERVER_USERINFO = re.compile(rf"(\b{_SERVERS}://){_USAGE}[^\s'\"]*@", re.IGNORECASE)
# What follows the name of a secret: in a URL (?api_key=x), a DSN (password=x), the environment
# (AWS_SECRET_ACCESS_KEY=x), a mapping ('password': 'x') and a header (Authorization: Bearer x).
# Nothing is before a name, so a long word is searched in linear time.
_NAMES = (
    r"(?:password|passwd|pwd|api[-_]?key|access[-_]?key|account[-_]?key|shared[-_]?key"
    r"|secret(?:[-_]?access)?(?:[-_]?key)?|token|[?&;]sig|amz-signature)"
)
_PARAMETER = re.compile(
    rf"({_NAMES}=)(?!\*\*\*)(?:'[^'\n]*'|\"[^\"\n]*\"|[^&;\s'\"),]+)", re.IGNORECASE
)
_ENTRY = re.compile(rf"({_NAMES}(['\"])\s?:\s?b?(['\"]))(?:(?!\3)[^\n])+(?=\3)", re.IGNORECASE)
_HEADER = re.compile(
    r"(\b(?:authorization|x-api-key)['\"]?\s?:\s?(?:b(?=['\"]))?['\"]?"
    r"(?:(?:basic|bearer|apikey|token)\s)?)[^\s'\",;]+",
    re.IGNORECASE,
)
# One of these is in each of the names above.  Reasons of rejected records pass through here, a
# million of them in a run, and the patterns take 40 us for 100 characters.
_MARKS = ("pass", "pwd", "key", "secret", "token", "sig", "authorization")

_UNTIL = re.compile(r"is used up until (\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) UTC\.")

_JOB = re.compile(r"(?<=flowctl checkpoint rewind )JOB\b|(?<=flowctl checkpoint clear )JOB\b")


def without_secrets(text: str) -> str:
    """Return ``text`` with ``***`` for what looks like a secret.

    That is: user and password of a URL, and what follows the name of a secret.  A secret without
    its name is not recognised.
    """
    text = _SERVER_USERINFO.sub(r"\1***@", text)
    text = _USERINFO.sub("***@", text)
    lowered = text.lower()
    if not any(mark in lowered for mark in _MARKS):
        return text
    for named in (_PARAMETER, _ENTRY, _HEADER):
        text = named.sub(r"\1***", text)
    return text


def has_secrets(text: str) -> bool:
    """Whether :func:`without_secrets` would hide a part of ``text``."""
    return without_secrets(text) != text


def with_article(noun: str) -> str:
    """Return ``an int``, ``a list``."""
    return f"an {noun}" if noun[0] in "aeiouAEIOU" else f"a {noun}"


class FlowctlError(Exception):
    """Base class of every error that flowctl raises deliberately.

    ``str(error)`` is the problem followed by the remedy.  ``exit_code`` is the exit code of the
    command line.  ``report`` says how far the run had got when this error ended it; None if the
    error did not end a run.
    """

    exit_code: int = EXIT_FAILED
    report: Report | None = None

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem: str = without_secrets(problem)
        self.remedy: str = without_secrets(remedy)
        super().__init__(self._said())

    def add_remedy(self, remedy: str) -> None:
        """Say more than whoever raised the error could know."""
        self._set_remedy(f"{self.remedy} {without_secrets(remedy)}".strip())

    def name_job(self, job: str) -> None:
        """Write ``job`` for JOB in the commands of the remedy: a source does not know its name."""
        self._set_remedy(_JOB.sub(lambda _: shlex.quote(job), self.remedy))

    def _set_remedy(self, remedy: str) -> None:
        self.remedy = remedy
        super().__init__(self._said())  # sets args

    def _said(self) -> str:
        between = "" if self.problem.endswith("\n") else " "  # it ends with a traceback
        return f"{self.problem}{between}{self.remedy}".strip()


class JobError(FlowctlError):
    """The job's author must act: settings, source data or ``process``."""


class ConfigError(JobError):
    """A setting or argument is wrong; ``field`` names it."""

    exit_code: int = EXIT_USAGE

    def __init__(self, field: str, problem: str, *, remedy: str = "") -> None:
        self.field = field
        super().__init__(f"{field}: {problem}", remedy=remedy)


class MissingExtraError(ConfigError, ImportError):
    """A package of an optional extra is missing; also Python's own ``ImportError``.

    ``extra`` is the name of the extra; ``or_else`` names an alternative.
    """

    def __init__(self, field: str, package: str, extra: str, *, or_else: str = "") -> None:
        remedy = f"Run: pip install 'flowctl-spark[{extra}]'{or_else}"
        super().__init__(field, f"{package} is not installed.", remedy=remedy)
        self.extra = extra


class UnrunnableError(ConfigError):
    """``process`` returns unfinished work instead of doing it, or can't be used at all.

    Or it raised an error that says so: a module is missing, or the target denies access.  A retry
    can't help and an ack would be wrong, so the run ends at once.
    """


class UnknownNameError(ConfigError, ValueError):
    """A name is not among the known ones; also a ``ValueError``, as from Python's own enums."""


class RowError(JobError, ValueError):
    """A row can't be written as it is, whatever the target says: a value, a column or its key.

    It is about the content, as Python's own ``ValueError``: a second try changes nothing, and the
    target is not to blame.
    """


class SourceError(JobError):
    """The source can't be read as requested: no such file, bad bytes, a record too large."""


class ProcessError(JobError):
    """``process`` failed on the same tuple until its attempts ran out."""


class CallTooLongError(ProcessError):
    """A call of ``process`` or ``fn`` took longer than ``call_timeout_s`` allows.

    It is a failure of the records that the call got, as if it had raised this.
    """


class RetryLater(FlowctlError):
    """Raise it in ``process`` if the target can't take the records now, but nothing is wrong with
    them.

    The tuple is sent again, and no attempt is counted; meanwhile less is sent to the target.
    ``after_s`` says after how many seconds (as a ``Retry-After`` header does); below 0 it is 0.

    ``again``: indices in the batch of the records that the target did not take; it has taken the
    others.  ``flow_sink`` and ``flow_batch`` send only those again; a bolt sends the whole tuple.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        after_s: float | None = None,
        again: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(reason, str):
            # A mistake in the program, not a fault of records: they must not become dead letters.
            raise UnrunnableError(
                "RetryLater",
                "it takes the reason first.",
                remedy=f"Write RetryLater('busy', after_s={reason!r}).",
            )
        if after_s is not None and not _is_wait(after_s):
            raise UnrunnableError(
                "RetryLater",
                f"after_s={after_s!r} is not a number of seconds.",
                remedy="Give seconds: RetryLater('busy', after_s=2.5).",
            )
        # A moment that has passed, as the time that a service told may have, is no mistake.
        self.after_s = None if after_s is None else max(after_s, 0.0)
        self.again: tuple[int, ...] | None = None if again is None else _indices(again)
        super().__init__(reason or "the target asked to be tried again later")

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry_later, (self.problem, self.after_s, self.again)


def _is_wait(after_s: Any) -> bool:
    try:
        return bool(float("-inf") < after_s < float("inf"))
    except TypeError:
        return False


def _indices(again: Any) -> tuple[int, ...]:
    """Return ``again`` as ints; numpy's are fine.

    Flags, one for each record, would pass for the indices 0 and 1: the others would be lost.
    """
    try:
        given = tuple(again)
        if not any(isinstance(each, bool) for each in given):
            return tuple(index(each) for each in given)
    except TypeError:
        pass
    raise UnrunnableError(
        "RetryLater",
        f"again={reprlib.repr(again)} are not indices of records.",
        remedy="Give whole numbers: RetryLater('full', again=[3, 7]).",
    )


def _retry_later(
    reason: str, after_s: float | None, again: Sequence[int] | None = None
) -> RetryLater:
    return RetryLater(reason, after_s=after_s, again=again)


class TooManyLostError(JobError):
    """More records were rejected or dead-lettered than ``loss.fail_over`` allows."""


class InfrastructureError(FlowctlError):
    """The operator must act: something around the job is missing, wrong or unavailable."""


class CheckpointUnavailableError(InfrastructureError):
    """The checkpoint store can't be reached or refuses access.  Trying later may help."""


class CheckpointCorruptError(InfrastructureError):
    """A stored checkpoint can't be read: not written by flowctl, damaged, or of an unknown
    version."""


class FencedError(InfrastructureError):
    """A newer driver of the same job owns the checkpoint; this one must stop.

    ``newest_epoch`` is the epoch of that driver, if the store reported it.
    """

    def __init__(self, problem: str, *, remedy: str = "", newest_epoch: int | None = None) -> None:
        self.newest_epoch = newest_epoch
        super().__init__(problem, remedy=remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return _fenced, (type(self), self.problem, self.remedy, self.newest_epoch)


def _fenced(
    kind: type[FencedError], problem: str, remedy: str, newest_epoch: int | None
) -> FencedError:
    return kind(problem, remedy=remedy, newest_epoch=newest_epoch)


class BoltsUnavailableError(InfrastructureError):
    """No bolt started, or none is left and none comes back."""


class TargetDownError(InfrastructureError):
    """The target of ``process`` accepted nothing for ``retry.give_up_after_s``."""


class QuotaUsedUpError(InfrastructureError):
    """A quota of the target is used up until ``until_s``; what is done is kept."""

    exit_code: int = EXIT_QUOTA

    @property
    def until_s(self) -> float:
        """When there is a quota again, in Unix seconds; infinite: never by itself."""
        # From the text, which is all that comes back from a worker.
        found = _UNTIL.search(self.problem)
        return float("inf") if found is None else float(timegm(tuple(map(int, found.groups()))))


class SpentError(QuotaUsedUpError):
    """All that ``spend_max`` allows is spent."""

    exit_code: int = EXIT_SPENT


class DeadlineError(InfrastructureError):
    """The run reached its deadline (``deadline_s``); what is done is saved."""

    exit_code: int = EXIT_DEADLINE


#: They end a run early: what is done is saved, and running it again goes on with the rest.
PAUSES: tuple[type[InfrastructureError], ...] = (QuotaUsedUpError, DeadlineError)


class AuthenticationError(InfrastructureError):
    """The other side of a connection does not hold this run's key."""


class WireError(InfrastructureError):
    """A peer broke the protocol: wrong version, frame too large, bytes that don't decode."""


class InternalError(FlowctlError):
    """An internal invariant of flowctl is broken: a defect to report."""

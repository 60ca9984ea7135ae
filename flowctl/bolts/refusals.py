"""Is an error of ``process`` a refusal: does the target have no room now, or is it unavailable?

A refusal says nothing about the records: they are sent again, which does not count as an attempt,
and less is sent meanwhile.  So only errors that pass by waiting are taken for one.  A response that
is not a refusal (a 404, a unique violation) ends the search: what caused it does not matter then.
Timeouts count as refusals, because an overloaded target looks just like that.

Errors are recognised by their attributes and by the names of their classes and modules; no client
library is imported, and a worker without them pays nothing.  Pure except for the wall clock, which
is used only if a response names a date but not its own time.
"""

from __future__ import annotations

import errno
import math
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowctl.bolts.callables import check_plain, check_process
from flowctl.bolts.refusal_headers import wait_of
from flowctl.errors import RetryLater, UnrunnableError

# An hour in a header may be an hour, milliseconds read as seconds, or a wrong clock.  Asking every
# five minutes costs a target nothing, and a run never stands still much longer than it must.  This
# also applies to RetryLater: a longer wait is then several waits, none of which counts.
AFTER_MAX_S: Final = 300.0
# Two transactions conflicted and one was aborted: the other will be over in moments.
_CONFLICT_AFTER_S: Final = 0.05
_ERRORS_LOOKED_AT_MAX: Final = 16  # of a chain of causes, which may be circular
_BULK_ERRORS_LOOKED_AT_MAX: Final = 10_000


class Refusal(NamedTuple):
    """``after_s``: how long to leave the target alone, 0 … 300 s; None: not specified."""

    after_s: float | None
    reason: str


# The user's own rule: True or seconds mean a refusal, False a fault; with None flowctl's rules
# decide.
RefusalRule: TypeAlias = Callable[[BaseException], "bool | float | None"]
# "fault": a response that is not a refusal.  None: this error alone does not decide.
_Verdict: TypeAlias = Refusal | Literal["fault"] | None

# 502 and 504 come from a proxy whose target is unavailable.
_STATUSES: Final = frozenset({429, 502, 503, 504})
_STATUS_MIN, _STATUS_MAX = 400, 599
# The target is well, has read the request, and what is wrong is in it: malformed, too large, of a
# kind that it does not take.  Not 404: so answers a balancer whose service is restarting.
_CONTENT_STATUSES: Final = frozenset({400, 413, 415, 422})
# AWS, after botocore's own list of what it throttles on, and its "try again" answers.
_AWS_CODES: Final = frozenset({
    "BandwidthLimitExceeded", "EC2ThrottledException", "LimitExceededException",
    "PriorRequestNotComplete", "ProvisionedThroughputExceededException", "RequestLimitExceeded",
    "RequestThrottled", "RequestThrottledException", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "ServiceUnavailableException", "SlowDown", "ThrottledException",
    "Throttling", "ThrottlingException", "TooManyRequestsException",
    "TransactionInProgressException",
})  # fmt: skip
_GRPC_CODES: Final = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
# 53: no resources; 08: the connection broke; 57P01 to 57P03: shut down, crashed, starting.
_SQLSTATES: Final = ("53", "08", "57P01", "57P02", "57P03")
_SQL_CONFLICTS: Final = frozenset({"40001", "40P01"})  # serialisation failure, deadlock
_SQLSTATE_CHARS: Final = 5
# What libpq and drivers say when there is no SQLSTATE, as before a connection is established.  A
# wrong password comes the same way, so the text must decide.
_SQL_MODULES: Final = frozenset({
    "asyncpg", "pg8000", "psycopg", "psycopg2", "psycopg_pool", "sqlalchemy",
})  # fmt: skip
_SQL_WORDS: Final = (
    "connection refused", "could not connect", "connection timed out", "timeout expired",
    "connection timeout", "connection reset", "server closed the connection",
    "connection has been closed", "connection is closed", "connection already closed",
    "the connection is lost", "terminating connection", "connection is bad", "eof detected",
    "no route to host", "network is unreachable", "starting up", "shutting down",
    "recovery mode", "too many clients", "too many connections", "connection slots",
    "couldn't get a connection", "queuepool limit", "database is locked",
    "temporary failure in name resolution", "not yet accepting connections",
)  # fmt: skip
# Among those: waiting will not help until somebody corrects the address, a setting or a right.
_NEVER_CONNECTS: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|not permitted to log in|"
    r"no pg_hba\.conf entry|pg_hba\.conf rejects|permission denied|certificate|"
    r"does not support SSL|invalid response to SSL negotiation|expected authentication request|"
    r"authentication method|channel binding required|invalid connection option|"
    r"invalid (\S+ )?value|invalid port number|definition of service|"
    r"Name or service not known|No address associated with hostname|nodename nor servname",
    re.IGNORECASE,
)
_SQLITE_WORDS: Final = ("is locked", "database is busy")
_SEARCH_REJECTED: Final = "es_rejected_execution_exception"
# By top-level module: base classes of errors that mean "unavailable, or timed out".
_AWAY: Final[dict[str, frozenset[str]]] = {
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "botocore": frozenset({"HTTPClientError", "ConnectionError"}),
    "elastic_transport": frozenset({"ConnectionError", "ConnectionTimeout"}),
    "elasticsearch": frozenset({"ConnectionError", "ConnectionTimeout"}),
    "http": frozenset({"IncompleteRead", "RemoteDisconnected"}),
    "httpcore": frozenset({"NetworkError", "TimeoutException", "RemoteProtocolError"}),
    "httpx": frozenset({"NetworkError", "TimeoutException", "RemoteProtocolError"}),
    "opensearchpy": frozenset({"ConnectionError", "ConnectionTimeout"}),
    "psycopg_pool": frozenset({"PoolTimeout", "TooManyRequests"}),
    "pymongo": frozenset({"AutoReconnect"}),
    "redis": frozenset({
        "ClusterDownError", "ConnectionError", "MasterDownError", "OutOfMemoryError",
        "TimeoutError", "TryAgainError",
    }),
    "requests": frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError"}),
    "sqlalchemy": frozenset({"TimeoutError"}),
    "urllib3": frozenset({
        "IncompleteRead", "NewConnectionError", "ProtocolError", "TimeoutError",
    }),
}  # fmt: skip
# Subclasses of those for which waiting does not help.
_NOT_AWAY: Final = frozenset({
    "AuthenticationError", "AuthorizationError", "ClientConnectorCertificateError",
    "ClientConnectorSSLError", "InvalidURL", "ProxyConnectionError", "SSLCertVerificationError",
    "SSLError", "UnsupportedProtocol",
})  # fmt: skip
_NET_ERRNOS: Final = frozenset({
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT,
})  # fmt: skip


def refusal_of(
    error: BaseException,
    rule: RefusalRule | None = None,
    *,
    wall_clock: Callable[[], float] = time.time,
) -> Refusal | None:
    """Return what ``error`` asks for, or None if it is a fault.

    ``rule`` is asked first; its exceptions propagate, and a result of the wrong type is an
    :class:`UnrunnableError`.  ``wall_clock``: Unix seconds.
    """
    if isinstance(error, RetryLater):  # said by the author of process, so there is nothing to judge
        return Refusal(_bounded(error.after_s), "RetryLater")
    if rule is not None:
        ruled = rule(error)
        if ruled is not None:
            return _as_ruled(ruled)
    verdict = _verdict_of_chain(error, wall_clock)
    return verdict if isinstance(verdict, Refusal) else None


def is_about_content(error: BaseException) -> bool:
    """Whether a target answered by HTTP that it can't take what was sent (400, 422, …)."""
    return _status_of(error, _get(error, "response")) in _CONTENT_STATUSES


def _as_ruled(ruled: object) -> Refusal | None:
    if isinstance(ruled, bool):
        return Refusal(None, "refusal=") if ruled else None
    if isinstance(ruled, int | float) and not math.isnan(ruled):
        return Refusal(_bounded(float(ruled)), "refusal=")
    close = getattr(ruled, "close", None)
    if callable(close):  # perhaps a coroutine
        close()
    raise UnrunnableError(
        "refusal",
        f"returned {ruled if isinstance(ruled, float) else type(ruled).__name__}.",
        remedy="Return True or seconds for a refusal, False for a fault, None if it can't tell.",
    )


def never_connects(error: BaseException) -> bool:
    """Whether the text of a driver's error without a code says that waiting will not help."""
    # SQLAlchemy appends the statement and its values.
    return bool(_NEVER_CONNECTS.search(_text(error).partition("[SQL:")[0]))


def check_rule(rule: RefusalRule | None) -> None:
    """Raise :class:`flowctl.errors.ConfigError` for a rule that could never give an answer."""
    if rule is not None:
        check_process(rule, "refusal", given="the exception")
        check_plain(rule, "refusal")


def _verdict_of_chain(error: BaseException, wall_clock: Callable[[], float]) -> _Verdict:
    """From the outermost error inwards: the first that decides counts.

    A wrong certificate and a host that does not exist always do, whatever wraps them.
    """
    chain = list(_chain(error))
    if any(map(_stays, chain)):
        return "fault"
    for each in chain:
        if isinstance(each, BaseExceptionGroup):
            return _verdict_of_group(each, wall_clock)
        verdict = _verdict(each, wall_clock)
        if verdict is not None:
            return verdict
    return None


def _stays(error: BaseException) -> bool:
    """Whether no connection is possible until somebody corrects something."""
    if isinstance(error, socket.gaierror):  # no answer of a name server is another matter
        return error.errno != socket.EAI_AGAIN
    return type(error).__name__ == "SSLCertVerificationError"


def _verdict_of_group(
    group: BaseExceptionGroup[BaseException], wall_clock: Callable[[], float]
) -> _Verdict:
    """A fault among refusals is a fault: otherwise it would come back for ever without being
    counted."""
    verdicts = [_verdict_of_chain(each, wall_clock) for each in group.exceptions[:1000]]
    refusals = [verdict for verdict in verdicts if isinstance(verdict, Refusal)]
    if len(refusals) < len(verdicts):
        return "fault"
    return max(refusals, key=lambda refusal: refusal.after_s or 0.0)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error``, what it wraps, then what caused it; each once, up to a limit."""
    waiting, seen = deque([error]), {id(error)}
    looked_at = 0
    while waiting and looked_at < _ERRORS_LOOKED_AT_MAX:
        each = waiting.popleft()
        looked_at += 1
        yield each
        context = None if each.__suppress_context__ else each.__context__
        # urllib and urllib3 keep the cause in reason, SQLAlchemy in orig.
        inner = (_get(each, "reason"), _get(each, "orig"), each.__cause__, context)
        for found in inner:
            if isinstance(found, BaseException) and id(found) not in seen:
                seen.add(id(found))
                waiting.append(found)


def _verdict(error: BaseException, wall_clock: Callable[[], float]) -> _Verdict:
    """What one error says by itself."""
    if isinstance(error, RetryLater):
        return Refusal(_bounded(error.after_s), "RetryLater")
    for judge in (_aws, _search, _grpc, _sql):
        verdict = judge(error)
        if verdict is not None:
            return verdict
    return _http(error, wall_clock) or _away(error)


def _http(error: BaseException, wall_clock: Callable[[], float]) -> _Verdict:
    response = _get(error, "response")
    status = _status_of(error, response)
    if status is None:
        return None
    headers = _get(response, "headers") or _get(error, "headers") or {}
    said = wait_of(headers, wall_clock, is_limit=status in (403, 429))
    # GitHub and others answer 403 where the standard says 429; the headers tell them apart.
    if status in _STATUSES or (status == 403 and said.is_limit):
        return Refusal(_bounded(said.after_s), f"HTTP {status}")
    return "fault"


def _status_of(error: BaseException, response: Any) -> int | None:
    """The HTTP status, if there is one, whatever its attribute is called."""
    candidates = [_get(response, "status_code"), _get(response, "status")]
    candidates += [_get(error, "status_code"), _get(error, "status")]
    # Many errors have their own code; that of an HTTP error comes with headers, or from Google.
    if _get(error, "headers") is not None or _module(type(error)) == "google":
        candidates.append(_get(error, "code"))
    for status in candidates:
        if isinstance(status, int) and _STATUS_MIN <= status <= _STATUS_MAX:
            return int(status)
    return None


def _aws(error: BaseException) -> _Verdict:
    response = _get(error, "response")
    if not isinstance(response, dict) or not isinstance(response.get("Error"), dict):
        return None
    code = str(response["Error"].get("Code"))
    meta = response.get("ResponseMetadata")
    meta = meta if isinstance(meta, dict) else {}
    if code not in _AWS_CODES and meta.get("HTTPStatusCode") not in _STATUSES:
        return "fault"
    return Refusal(None, code)


def _search(error: BaseException) -> _Verdict:
    """OpenSearch and Elasticsearch; a bulk request is refused if every failed item was."""
    if _module(type(error)) not in ("opensearchpy", "elasticsearch"):
        return None
    items = _get(error, "errors")
    if type(error).__name__ == "BulkIndexError" and isinstance(items, list) and items:
        results = [r for item in items[:_BULK_ERRORS_LOOKED_AT_MAX] for r in item.values()]
        if all(r.get("status") in _STATUSES for r in results):
            return Refusal(None, "bulk items refused")
        return "fault"
    if _SEARCH_REJECTED in _text(error):
        return Refusal(None, _SEARCH_REJECTED)
    return None


def _grpc(error: BaseException) -> _Verdict:
    code = _get(error, "code")
    if not callable(code) or _module(type(error)) != "grpc":
        return None
    try:
        name = getattr(code(), "name", None)
    except Exception:  # an unrelated error
        return None
    if not isinstance(name, str):
        return None
    return Refusal(None, f"gRPC {name}") if name in _GRPC_CODES else "fault"


def _sql(error: BaseException) -> _Verdict:
    state = _get(error, "sqlstate") or _get(error, "pgcode")
    if isinstance(state, str) and len(state) == _SQLSTATE_CHARS:
        if state in _SQL_CONFLICTS:
            return Refusal(_CONFLICT_AFTER_S, f"SQLSTATE {state}")
        return Refusal(None, f"SQLSTATE {state}") if state.startswith(_SQLSTATES) else "fault"
    names = {cls.__name__ for cls in type(error).__mro__}
    if not names & {"OperationalError", "InterfaceError"}:
        return None
    module, text = _module(type(error)), _text(error).lower()
    if module in _SQL_MODULES and never_connects(error):
        return "fault"
    words = _SQLITE_WORDS if module == "sqlite3" else _SQL_WORDS
    is_known = module == "sqlite3" or module in _SQL_MODULES
    if is_known and any(word in text for word in words):
        return Refusal(None, type(error).__name__)
    return None


def _away(error: BaseException) -> _Verdict:
    """Connections that broke or were never established, and timeouts."""
    kinds = type(error).__mro__
    if any(cls.__name__ in _NOT_AWAY for cls in kinds):
        return "fault"
    # Of gaierror only those where no name server answered come here: see _stays.
    is_away = isinstance(error, ConnectionError | TimeoutError | socket.gaierror) or any(
        cls.__name__ in _AWAY.get(_module(cls), ()) for cls in kinds
    )
    if isinstance(error, OSError) and error.errno in _NET_ERRNOS:
        is_away = True
    return Refusal(None, type(error).__name__) if is_away else None


def _bounded(after_s: float | None) -> float | None:
    return None if after_s is None else min(max(after_s, 0.0), AFTER_MAX_S)


def _module(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _get(owner: Any, name: str) -> Any:
    """An attribute of someone else's object: reading it may raise anything."""
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""

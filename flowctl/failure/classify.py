"""What does an error mean: is the target full or away, is it the job's fault, or the record's?

Every door asks here, so that the same error has the same end behind each:

* A refusal (full, away, a conflict) says nothing about the records: they are sent again, which does
  not count as an attempt, and less is sent meanwhile.  Timeouts count as refusals, because an
  overloaded target looks just like that.
* What is not allowed (a token, a user, a right) ends the run at once.
* An answer about the content is the record's fault; so the target is not to blame.
* Anything else is a fault, and counts as an attempt.

What is known of other people's clients is in :mod:`flowctl.failure.tables`.  Pure except for the
wall clock, which is used only if a response names a date but not its own time.
"""

from __future__ import annotations

import math
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from flowctl.errors import RetryLater, UnrunnableError
from flowctl.failure import tables
from flowctl.failure.callables import check_plain, check_process
from flowctl.failure.headers import Told, told_of, wait_of
from flowctl.failure.kinds import Kind
from flowctl.failure.texts import answer_of

# The longest wait [s].  An hour in a header may be an hour, milliseconds read as seconds, or a
# wrong clock; asking every five minutes costs a target nothing, and a run never stands still much
# longer than it must.  This also applies to RetryLater: a longer wait is then several waits, none
# of which counts.
AFTER_MAX_S: Final = 300.0
# After a conflict of two transactions, of which one was aborted, wait this long [s]: the other will
# be over in moments.
_CONFLICT_AFTER_S: Final = 0.05
_ERRORS_LOOKED_AT_MAX: Final = 16  # errors of a chain of causes, which may be circular
_ITEMS_LOOKED_AT_MAX: Final = 10_000
_STATUS_MIN, _STATUS_MAX = 400, 599
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")
_REFUSED: Final = (Kind.FULL, Kind.AGAIN)
# The errors that Python's own operations on a value raise.  Exceptions of client libraries derive
# from these too, but then also from OSError (requests).
_DATA_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


class Meaning(NamedTuple):
    """What an error means; ``reason`` is what it was recognised by.

    ``asked_s``: how long the target asked to be left alone; None: it didn't say.
    """

    kind: Kind
    reason: str = ""
    asked_s: float | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the same records may succeed later, without any correction."""
        return self.kind in _REFUSED

    @property
    def after_s(self) -> float | None:
        """How long to leave the target alone, 0 … 300 s; None: not specified."""
        if self.asked_s is None:
            return _CONFLICT_AFTER_S if self.kind is Kind.AGAIN else None
        return min(max(self.asked_s, 0.0), AFTER_MAX_S)

    @property
    def said(self) -> str:
        """The reason, and for how long the target asked to be left alone."""
        if not self.asked_s or self.asked_s < 0:
            return self.reason
        cut = f"; waits are cut to {AFTER_MAX_S:g} s" if self.asked_s > AFTER_MAX_S else ""
        return f"{self.reason}, asked for a wait of {round(self.asked_s, 3):g} s{cut}"


# The user's own rule: True or seconds mean a refusal, False that it is none, the text of a
# :class:`Kind` exactly that; with None flowctl's rules decide.
RefusalRule: TypeAlias = Callable[[BaseException], "bool | float | str | None"]


def refusal_of(
    error: BaseException,
    rule: RefusalRule | None = None,
    *,
    wall_clock: Callable[[], float] = time.time,
) -> Meaning | None:
    """Return what ``error`` means if that is a refusal, else None; see :func:`meaning_of`."""
    meaning = meaning_of(error, rule, wall_clock=wall_clock)
    return meaning if meaning.is_refusal else None


def meaning_of(
    error: BaseException,
    rule: RefusalRule | None = None,
    *,
    wall_clock: Callable[[], float] = time.time,
) -> Meaning:
    """Return what ``error`` means.

    ``rule`` is asked first; its exceptions propagate, and a result of the wrong type is an
    :class:`UnrunnableError`.  ``wall_clock``: Unix seconds.
    """
    if isinstance(error, RetryLater):  # the author of process says so, so there is nothing to judge
        return Meaning(Kind.FULL, "RetryLater", error.after_s)
    ruled = None if rule is None else _as_ruled(rule(error))
    if ruled is not None and ruled is not Kind.FAULT:
        return ruled if isinstance(ruled, Meaning) else Meaning(ruled, "refusal=")
    meaning = _meaning_of_chain(error, wall_clock) or Meaning(Kind.FAULT)
    if ruled is Kind.FAULT and meaning.is_refusal:
        return Meaning(Kind.FAULT, "refusal=")
    return meaning


def told_by(response: Any, *, wall_clock: Callable[[], float] = time.time) -> tuple[Told, ...]:
    """Return the limits that ``response``, or the response of an error, reports.

    Takes what httpx, requests, aiohttp, openai and anthropic give, a dictionary of botocore, and
    plain headers.  Nothing is read from the network.
    """
    carried = _get(response, "response") or response
    if isinstance(carried, dict) and "ResponseMetadata" in carried:  # botocore's
        headers = carried["ResponseMetadata"].get("HTTPHeaders", {})
    else:
        headers = _get(carried, "headers") or _get(response, "headers") or carried
    return told_of(headers, wall_clock)


def meaning_alone(error: BaseException) -> Meaning | None:
    """Return what ``error`` means by itself, whatever caused it; None: it does not decide."""
    return _meaning(error, time.time)


def is_about_rows(error: BaseException, rule: RefusalRule | None = None) -> bool:
    """Whether the rows are to blame, not the target: by the error's type, or by the target's
    answer.

    For callers that give up soon if no call succeeds.  A bolt uses :func:`is_data_error`, as its
    run does not end after a few failures: a target that answers 400 to everything is not well.
    """
    return is_data_error(error) or meaning_of(error, rule).kind is Kind.CONTENT


def is_too_large(error: BaseException, rule: RefusalRule | None = None) -> bool:
    """Whether a target says that a call has too many bytes; smaller ones may be taken."""
    meaning = meaning_of(error, rule)
    if meaning.is_refusal or meaning.kind is Kind.NOT_ALLOWED:
        return False
    if meaning.reason in tables.TOO_LARGE:
        return True
    return any(tables.TOO_LARGE_TEXT.search(_text(each)) for each in _chain(error))


def is_data_error(error: BaseException) -> bool:
    """Whether ``error`` is about a value, judged by its type, so that no target is to blame.

    However many tuples fail this way, the target is not considered down.
    """
    return isinstance(error, _DATA_ERRORS) and not isinstance(error, OSError)


def _as_ruled(ruled: object) -> Meaning | Kind | None:
    if ruled is None:
        return None
    if isinstance(ruled, bool):
        return Meaning(Kind.FULL, "refusal=") if ruled else Kind.FAULT
    if isinstance(ruled, int | float) and not math.isnan(ruled):
        return Meaning(Kind.FULL, "refusal=", float(ruled))
    if isinstance(ruled, str) and ruled in list(Kind):
        return Meaning(Kind(ruled), "refusal=")
    close = getattr(ruled, "close", None)
    if callable(close):  # perhaps a coroutine
        close()
    what = repr(ruled) if isinstance(ruled, float | str) else type(ruled).__name__
    raise UnrunnableError(
        "refusal",
        f"returned {what}.",
        remedy="Return True or seconds for a refusal, False for none, None if it can't tell; or"
        f" one of {', '.join(map(repr, map(str, Kind)))}.",
    )


def never_connects(error: BaseException) -> Kind | None:
    """Return what a driver's error text without a code says, if waiting will not help."""
    # SQLAlchemy appends the statement and its values.
    text = _text(error).partition("[SQL:")[0]
    if tables.SQL_DENIED.search(text):
        return Kind.NOT_ALLOWED
    return Kind.FAULT if tables.SQL_NEVER.search(text) else None


def check_rule(rule: RefusalRule | None, name: str = "refusal") -> None:
    """Raise :class:`flowctl.errors.ConfigError` for a rule that could never give an answer.

    ``name`` is the name of the argument.
    """
    if rule is not None:
        check_process(rule, name, given="the exception")
        check_plain(rule, name)


def _meaning_of_chain(error: BaseException, wall_clock: Callable[[], float]) -> Meaning | None:
    """Return what a chain of errors means, from the outermost inwards: the first that decides
    counts, wrappers last.

    A wrong certificate and a host that does not exist always decide, whatever wraps them.
    """
    chain = list(_chain(error))
    if any(map(_stays, chain)):
        return Meaning(Kind.FAULT)
    for each in sorted(chain, key=_wraps):
        if _is_group(each):
            return _meaning_of_group(each, wall_clock)
        meaning = _meaning(each, wall_clock)
        if meaning is not None:
            return meaning
    return None


def _wraps(error: BaseException) -> bool:
    """Whether the error is SQLAlchemy's, around the error of a driver, which knows better."""
    return isinstance(_get(error, "orig"), BaseException)


def _stays(error: BaseException) -> bool:
    """Whether no connection is possible until a user corrects something."""
    if isinstance(error, socket.gaierror):  # a name server that answers is another matter
        return error.errno != socket.EAI_AGAIN
    return type(error).__name__ == "SSLCertVerificationError"


def _is_group(error: BaseException) -> bool:
    """Whether it is a group, by name: Python 3.10 has no type for it, and libraries bring the
    package exceptiongroup.
    """
    return any(cls.__name__ == "BaseExceptionGroup" for cls in type(error).__mro__)


def _meaning_of_group(group: Any, wall_clock: Callable[[], float]) -> Meaning:
    """Return what a group of errors means.  An error that is not allowed counts most, then a fault:
    among refusals it would come back for ever without being counted.
    """
    fault = Meaning(Kind.FAULT)
    meanings = [_meaning_of_chain(each, wall_clock) or fault for each in group.exceptions[:1000]]
    for meaning in meanings:
        if meaning.kind is Kind.NOT_ALLOWED:
            return meaning
    if all(meaning.is_refusal for meaning in meanings):
        return max(meanings, key=lambda meaning: meaning.after_s or 0.0)
    is_content = all(meaning.kind is Kind.CONTENT for meaning in meanings)
    return meanings[0] if is_content else fault


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, the errors it wraps, then its causes; each once, up to a limit."""
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


def _meaning(error: BaseException, wall_clock: Callable[[], float]) -> Meaning | None:
    """Return what one error means by itself."""
    if isinstance(error, RetryLater):
        return Meaning(Kind.FULL, "RetryLater", error.after_s)
    http = partial(_http, wall_clock=wall_clock)
    for judge in (_aws, _items, _grpc, _kafka, _code, _by_text, _sql, http, _by_class):
        try:
            meaning = judge(error)
        except Exception:  # under a known name it carries something else
            continue
        if meaning is not None:
            return meaning
    return None


def _http(error: BaseException, wall_clock: Callable[[], float]) -> Meaning | None:
    response = _get(error, "response")
    status = _status_of(error, response)
    if status is None:
        return None
    headers = _get(response, "headers") or _get(error, "headers") or {}
    said = wait_of(headers, wall_clock, is_limit=status in (403, 429))
    kind = tables.STATUSES.get(status, Kind.FAULT)
    # GitHub and others answer 403 where the standard says 429; the headers tell them apart.
    if status == 403 and said.is_limit:
        kind = Kind.FULL
    elif status == 429 and tables.OUT_OF_MONEY in answer_of(error):
        return Meaning(Kind.NOT_ALLOWED, f"HTTP {status}, {tables.OUT_OF_MONEY}")
    return Meaning(kind, f"HTTP {status}", said.after_s if kind is Kind.FULL else None)


def _status_of(error: BaseException, response: Any) -> int | None:
    """Return the HTTP status, if there is one, whatever its attribute is called."""
    candidates = [_get(response, "status_code"), _get(response, "status")]
    candidates += [_get(error, "status_code"), _get(error, "status")]
    # Many errors have their own code; the code of an HTTP error comes with headers, or from Google.
    if _get(error, "headers") is not None or _module(type(error)) == "google":
        candidates.append(_get(error, "code"))
    context = _get(error, "context")
    if isinstance(context, dict):  # Databricks
        candidates.append(context.get("http-code"))
    for status in candidates:
        if isinstance(status, int) and _STATUS_MIN <= status <= _STATUS_MAX:
            return int(status)
    return None


def _aws(error: BaseException) -> Meaning | None:
    response = _get(error, "response")
    if not isinstance(response, dict) or not isinstance(response.get("Error"), dict):
        return None
    code = str(response["Error"].get("Code"))
    meta = response.get("ResponseMetadata")
    status = meta.get("HTTPStatusCode") if isinstance(meta, dict) else None
    by_status = tables.STATUSES.get(status) if isinstance(status, int) else None
    kind = tables.AWS_CODES.get(code) or (by_status if by_status in _REFUSED else None)
    return Meaning(kind or Kind.FAULT, code)


def _items(error: BaseException) -> Meaning | None:
    """Return the meaning of a bulk request: it is refused if every failed item was."""
    if type(error).__name__ == "BulkIndexError":  # OpenSearch, Elasticsearch
        items = _get(error, "errors")
        if not isinstance(items, list) or not items:
            return None
        results = [r for item in items[:_ITEMS_LOOKED_AT_MAX] for r in item.values()]
        kinds = {tables.STATUSES.get(r.get("status"), Kind.FAULT) for r in results}
        return _of_items(kinds)
    details = _get(error, "details")
    if type(error).__name__ == "BulkWriteError" and isinstance(details, dict):  # MongoDB
        codes = tables.NUMBERS["pymongo"]
        found = details.get("writeErrors") or []
        return _of_items({codes.get(item.get("code"), Kind.FAULT) for item in found})
    return None


def _of_items(kinds: set[Kind]) -> Meaning:
    kind = kinds.pop() if len(kinds) == 1 else Kind.FAULT
    return Meaning(kind, "bulk items")


def _grpc(error: BaseException) -> Meaning | None:
    code = _get(error, "code")
    if not callable(code) or _module(type(error)) != "grpc":
        return None
    name = _called(code, "name")
    if not isinstance(name, str):
        return None
    return Meaning(tables.GRPC_CODES.get(name, Kind.FAULT), f"gRPC {name}")


def _kafka(error: BaseException) -> Meaning | None:
    """Return the meaning of a KafkaException, which holds a KafkaError that is no exception."""
    if type(error).__name__ != "KafkaException" or not error.args:
        return None
    return meaning_of_kafka(error.args[0])


def meaning_of_kafka(said: Any) -> Meaning | None:
    """Return what a ``KafkaError`` of confluent-kafka means; None: it is another error."""
    name, retriable = _get(said, "name"), _get(said, "retriable")
    if not callable(name) or not callable(retriable):
        return None
    known = tables.KAFKA_CODES.get(name(), Kind.FAULT)
    return Meaning(Kind.FULL if retriable() else known, str(name()))


def _code(error: BaseException) -> Meaning | None:
    """Return the meaning by a code that is text, or by the number that a driver gives."""
    for code in _codes(error):
        if isinstance(code, str) and code in tables.CODES:
            return Meaning(tables.CODES[code], code)
    module = _module(type(error))
    numbers = tables.NUMBERS.get(module, {})
    for number in _numbers(error, module) if numbers else ():
        if (kind := numbers.get(number)) is not None:
            wait_s = tables.WAITS_S.get((module, number)) or _told_in_details(error)
            return Meaning(kind, f"{module} {number}", wait_s)
    return None


def _codes(error: BaseException) -> Iterator[object]:
    yield _get(error, "code")
    for name in ("errors", "content"):  # Google; Salesforce
        listed = _get(error, name)
        if isinstance(listed, list) and listed and isinstance(listed[0], dict):
            yield listed[0].get("reason")
            yield listed[0].get("errorCode")


def _numbers(error: BaseException, module: str) -> Iterator[int]:
    for given in (_get(error, "errno"), _get(error, "code"), *error.args[:1]):
        if isinstance(given, int):
            yield given
    if (pattern := tables.NUMBERS_IN_TEXT.get(module)) is not None:
        yield from map(int, pattern.findall(_text(error)))


def _told_in_details(error: BaseException) -> float | None:
    """Return how long Cosmos for MongoDB says to wait, in the error's details."""
    details = _get(error, "details")
    told = details.get("RetryAfterMs") if isinstance(details, dict) else None
    return told / 1000 if isinstance(told, int | float) and math.isfinite(told) else None


def _by_text(error: BaseException) -> Meaning | None:
    if type(error) is OSError:
        return _store(error)
    words = tables.TEXTS.get(_module(type(error)))
    if words is None or (_module(type(error)) == "builtins" and type(error) is not BufferError):
        return None
    text = _text(error)
    return next((Meaning(kind, word) for word, kind in words if word in text), None)


def _store(error: OSError) -> Meaning | None:
    text = _text(error)
    if tables.ARROW_STORE not in text:
        return None
    if store_denies(error):
        return Meaning(Kind.NOT_ALLOWED, tables.ARROW_STORE)
    return Meaning(Kind.FULL, tables.ARROW_STORE) if tables.STORE_FULL.search(text) else None


def store_denies(error: OSError) -> bool:
    """Whether a disk or an object store says that this process has no right to that."""
    return isinstance(error, PermissionError) or bool(tables.STORE_DENIED.search(_text(error)))


def _sql(error: BaseException) -> Meaning | None:
    if (state := sqlstate_of(error)) is not None:
        kind = tables.SQLSTATES.get(state) or tables.SQLSTATES.get(state[:2], Kind.FAULT)
        return Meaning(kind, f"SQLSTATE {state}")
    name, module = type(error).__name__, _module(type(error))
    names = {cls.__name__ for cls in type(error).__mro__}
    if module not in tables.SQL_WORDS:
        return None
    if names & tables.SQL_CONTENT_CLASSES:
        return Meaning(Kind.CONTENT, name)
    if not names & tables.SQL_CLASSES:
        return None
    if module == "sqlite3" and sqlite_code_of(error) in tables.SQLITE_FULL:
        return Meaning(Kind.FULL, name)
    if (never := never_connects(error)) is not None:
        return Meaning(never, name)
    text = _text(error).lower()
    # What PostgreSQL's drivers report without a code is about the connection.
    is_away = module in tables.POSTGRES_DRIVERS and "OperationalError" in names
    is_away = is_away or any(word in text for word in tables.SQL_WORDS[module])
    return Meaning(Kind.FULL, name) if is_away else None


def sqlstate_of(error: BaseException) -> str | None:
    """Return the five-character code of a database's error, if it has one."""
    said: Any = error.args[0] if error.args else None
    candidates = [_get(error, "sqlstate"), _get(error, "pgcode")]  # psycopg, psycopg2
    if isinstance(said, dict):
        candidates.append(said.get("C"))  # pg8000
    elif _module(type(error)) == "pyodbc":
        candidates.append(said)
    for state in candidates:
        if isinstance(state, str) and _SQLSTATE.fullmatch(state):
            return state
    return None


def sqlite_code_of(error: BaseException) -> int:
    """Return SQLite's primary code; 0 without one."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # Python 3.10 does not report it
        return tables.SQLITE_CODES.get(str(error).partition(":")[0], 0)
    return code & 0xFF  # the low byte: SQLITE_BUSY_RECOVERY and the like count too


def _by_class(error: BaseException) -> Meaning | None:
    """Return the meaning by class: lost or failed connections, time-outs, and other known
    classes.
    """
    for cls in type(error).__mro__:
        if cls.__name__ in tables.NEVER_CLASSES:
            return Meaning(Kind.FAULT)
        kind: Kind | None = tables.CLASSES.get(_module(cls), {}).get(cls.__name__)
        if kind is not None:
            return Meaning(kind, type(error).__name__)
    # A gaierror comes here only if no name server answered: see _stays.
    is_away = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    if isinstance(error, OSError) and error.errno in tables.NET_ERRNOS:
        is_away = True
    return Meaning(Kind.FULL, type(error).__name__) if is_away else None


def _called(call: Callable[[], Any], attribute: str) -> Any:
    try:
        return getattr(call(), attribute, None)
    except Exception:  # an unrelated error
        return None


def _module(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _get(owner: Any, name: str) -> Any:
    """Return an attribute of a foreign object: reading it may raise anything."""
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""

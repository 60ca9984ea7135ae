"""Errors of other people are odd: whatever they carry, the classifier gives an answer.

The kind of defect: an attribute of another type than a client's own errors have (a list that holds
texts, a code that is a function) makes the classifier raise, and that error hides the real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given

from flowctl.failure import tables
from flowctl.failure.classify import Meaning, meaning_of
from flowctl.failure.job_fault import job_fault_of
from flowctl.failure.kinds import Kind
from flowctl.failure.texts import error_text

MODULES = sorted({
    "builtins", "confluent_kafka", "databricks", "grpc", "google", "httpx", "shop", "sqlite3",
    *tables.CLASSES, *tables.NUMBERS, *tables.SQL_WORDS, *tables.TEXTS,
})  # fmt: skip
NAMES = sorted({
    "BulkIndexError", "BulkWriteError", "KafkaException", "OperationalError", "IntegrityError",
    "InterfaceError", "SSLError", "Error",
    *(name for each in tables.CLASSES.values() for name in each),
})  # fmt: skip
ATTRIBUTES = (
    "args", "cause", "code", "content", "context", "details", "errno", "errors", "headers", "orig",
    "pgcode", "reason", "response", "retriable", "sqlite_errorcode", "sqlstate", "status",
    "status_code",
)  # fmt: skip


def _fails(*_: object) -> Any:
    raise ZeroDivisionError


class _Nasty:
    @property
    def headers(self) -> Any:
        raise ZeroDivisionError

    status_code = code = name = _content = items = get = headers


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-5, 70_000)
    | st.sampled_from([401, 403, 429, 503, 16500, 1045, "28P01", "insufficient_quota", "08006"])
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=6)
    | st.sampled_from([_fails, dict, list, _Nasty(), ValueError("x"), TimeoutError()])
)
KEYS = st.sampled_from(
    ["Error", "Code", "ResponseMetadata", "HTTPStatusCode", "writeErrors", "code", "reason",
     "errorCode", "RetryAfterMs", "http-code", "status", "Retry-After", "C"]
) | st.integers(0, 3)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(
            lambda status, headers, content: SimpleNamespace(
                status_code=status, headers=headers, _content=content, encoding=content
            ),
            inner,
            inner,
            inner,
        )
    ),
    max_leaves=6,
)


def made(module: str, name: str, attributes: dict[str, Any]) -> BaseException:
    error = type(name, (Exception,), {"__module__": module})("x")
    for attribute, value in attributes.items():
        is_args = attribute == "args"
        setattr(error, attribute, (value,) if is_args and not isinstance(value, list) else value)
    return error


@given(
    st.sampled_from(MODULES),
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(ATTRIBUTES), VALUES, max_size=4),
)
@example("elasticsearch", "BulkIndexError", {"errors": ["text"]})
@example("pymongo", "BulkWriteError", {"details": {"writeErrors": [16500]}})
@example("simple_salesforce", "Error", {"content": [{"errorCode": {}}]})
@example("pymysql", "Error", {"args": [[]]})
def test_whatever_an_error_carries_it_gets_a_verdict(
    module: str, name: str, attributes: dict[str, Any]
) -> None:
    error = made(module, name, attributes)
    meaning = meaning_of(error)
    assert isinstance(meaning, Meaning) and isinstance(meaning.kind, Kind)
    assert meaning.after_s is None or 0 <= meaning.after_s <= 300
    assert isinstance(meaning.said, str)
    assert isinstance(error_text(error), str)
    assert (job_fault_of(error) is not None) == (meaning.kind is Kind.NOT_ALLOWED)

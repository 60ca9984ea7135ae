"""Which errors are refusals: answers as clients raise them.

Clients are stood in for by classes with the same modules, names and attributes, as their sources
have them; tests/integration/test_refusals_real.py asks real ones.
"""

from __future__ import annotations

import errno
import socket
import sqlite3
import ssl
import sys
from email.message import Message
from email.utils import formatdate
from http.client import IncompleteRead, RemoteDisconnected
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from flowctl.bolts.outcomes import fail_of
from flowctl.core.messages import Emission
from flowctl.core.records import Record
from flowctl.errors import FencedError, RetryLater, UnrunnableError
from flowctl.failure.classify import AFTER_MAX_S, Meaning, refusal_of
from flowctl.failure.kinds import Kind

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

NOW_S = 1_800_000_000.0


def judge(error: BaseException, rule: Any = None) -> Meaning | None:
    return refusal_of(error, rule, wall_clock=lambda: NOW_S)


def foreign(path: str, bases: tuple[type, ...] = (Exception,), text: str = "x", **attributes: Any):
    """An error of a class ``path`` ("module.Class") of a library that is not installed."""
    module, _, name = path.rpartition(".")
    error = type(name, bases, {"__module__": module})(text)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def below(path: str, base: str) -> BaseException:
    """An error whose class has a base of the same library."""
    return foreign(path, (type(foreign(base)),))


def requests_error(status: int, **headers: str) -> BaseException:
    response = SimpleNamespace(status_code=status, headers=headers)
    return foreign("requests.exceptions.HTTPError", (OSError,), response=response)


def aws(code: str, status: int = 400) -> BaseException:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return foreign("botocore.exceptions.ClientError", response=response)


def grpc_error(name: str) -> BaseException:
    return foreign("grpc._channel._InactiveRpcError", code=lambda: SimpleNamespace(name=name))


def raised_from(outer: BaseException, inner: BaseException, *, implicit: bool = False) -> Any:
    try:
        try:
            raise inner
        except BaseException as error:
            if implicit:
                raise outer  # noqa: B904
            raise outer from error
    except BaseException as error:
        return error


REFUSED = {
    "requests 429": requests_error(429),
    "requests 503": requests_error(503),
    "502": requests_error(502),
    "504": requests_error(504),
    "httpx": foreign(
        "httpx.HTTPStatusError", response=SimpleNamespace(status_code=429, headers={})
    ),
    "aiohttp": foreign("aiohttp.client_exceptions.ClientResponseError", status=503, headers={}),
    "urllib": HTTPError("http://x", 503, "no", Message(), None),
    "google": foreign("google.api_core.exceptions.ResourceExhausted", code=429),
    "kubernetes": foreign("kubernetes.client.exceptions.ApiException", status=429, headers=None),
    "github": requests_error(403, **{"X-RateLimit-Remaining": "0"}),
    "throttled": aws("ThrottlingException"),
    "dynamo": aws("ProvisionedThroughputExceededException"),
    "s3": aws("SlowDown", 503),
    "ec2": aws("RequestLimitExceeded", 503),
    "lambda": aws("TooManyRequestsException", 429),
    "aws 503 of another name": aws("Unavailable", 503),
    "botocore away": below(
        "botocore.exceptions.EndpointConnectionError", "botocore.exceptions.ConnectionError"
    ),
    "grpc full": grpc_error("RESOURCE_EXHAUSTED"),
    "grpc away": grpc_error("UNAVAILABLE"),
    "too many connections": foreign("psycopg.errors.TooManyConnections", sqlstate="53300"),
    "shutdown": foreign("psycopg.errors.AdminShutdown", sqlstate="57P01"),
    "crash": foreign("psycopg2.errors.CrashShutdown", pgcode="57P02"),
    "starting": foreign("asyncpg.exceptions.CannotConnectNowError", sqlstate="57P03"),
    "broken connection": foreign("asyncpg.exceptions.ConnectionFailureError", sqlstate="08006"),
    "serialisation": foreign("psycopg.errors.SerializationFailure", sqlstate="40001"),
    "deadlock": foreign("psycopg.errors.DeadlockDetected", sqlstate="40P01"),
    "psycopg connect": foreign(
        "psycopg.OperationalError",
        text="connection failed: connection to server at 127.0.0.1, port 5: Connection refused",
        sqlstate=None,
    ),
    "psycopg2 closed": foreign(
        "psycopg2.OperationalError",
        text="server closed the connection unexpectedly\n\tThis probably means",
        pgcode=None,
    ),
    "starting, before a connection": foreign(
        "psycopg.OperationalError", text="FATAL:  the database system is starting up", sqlstate=None
    ),
    "sqlalchemy": foreign(
        "sqlalchemy.exc.OperationalError",
        text="(psycopg2.errors.X) wrapped",
        orig=foreign("psycopg2.errors.TooManyConnections", pgcode="53300"),
    ),
    "sqlalchemy, whatever the statement holds": foreign(
        "sqlalchemy.exc.OperationalError",
        text="(psycopg.OperationalError) the connection is lost\n[SQL: -- a certificate]",
    ),
    "opensearch": foreign("opensearchpy.exceptions.TransportError", status_code=429),
    "opensearch by its text": foreign(
        "opensearchpy.exceptions.TransportError",
        text="TransportError(429, 'es_rejected_execution_exception', 'rejected execution')",
        status_code="N/A",
    ),
    "elasticsearch": foreign(
        "elasticsearch.ApiError", status_code=429, meta=SimpleNamespace(status=429)
    ),
    "elasticsearch away": foreign("elastic_transport.ConnectionError", status_code="N/A"),
    "bulk, all full": foreign(
        "elasticsearch.helpers.errors.BulkIndexError",
        errors=[{"index": {"status": 429}}, {"create": {"status": 503}}],
    ),
    "refused": ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    "reset": ConnectionResetError(),
    "pipe": BrokenPipeError(),
    "aborted": ConnectionAbortedError(),
    "timeout": TimeoutError(),
    "socket.timeout": socket.timeout("timed out"),  # noqa: UP041
    "no route": OSError(errno.EHOSTUNREACH, "no route"),
    "dns is away": socket.gaierror(socket.EAI_AGAIN, "temporary failure"),
    "dns is away, by httpx": raised_from(
        below("httpx.ConnectError", "httpx.NetworkError"),
        socket.gaierror(socket.EAI_AGAIN, "temporary failure"),
    ),
    "urllib away": URLError(ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
    "cut answer": IncompleteRead(b"x", 10),
    "hung up": RemoteDisconnected("no answer"),
    "requests away": foreign("requests.exceptions.ConnectionError", (OSError,)),
    "requests timeout": below("requests.exceptions.ReadTimeout", "requests.exceptions.Timeout"),
    "httpx away": below("httpx.ConnectError", "httpx.NetworkError"),
    "httpx timeout": below("httpx.PoolTimeout", "httpx.TimeoutException"),
    "aiohttp away": below(
        "aiohttp.client_exceptions.ServerDisconnectedError",
        "aiohttp.client_exceptions.ClientConnectionError",
    ),
    "urllib3": foreign(
        "urllib3.exceptions.MaxRetryError",
        reason=foreign("urllib3.exceptions.NewConnectionError"),
    ),
    "locked": sqlite3.OperationalError("database is locked"),
    "wrapped": raised_from(RuntimeError("could not load"), requests_error(503)),
    "wrapped without from": raised_from(
        RuntimeError("could not load"), ConnectionResetError(), implicit=True
    ),
    "a group of refusals": ExceptionGroup("calls", [requests_error(429), TimeoutError()]),
    "RetryLater": RetryLater("quota"),
    "RetryLater, wrapped": raised_from(RuntimeError("no"), RetryLater("quota")),
}
FAULTS = {
    "value": ValueError("bad line"),
    "key": KeyError("user"),
    "404": requests_error(404),
    "400": HTTPError("http://x", 400, "bad", Message(), None),
    "500": requests_error(500),
    "403": requests_error(403, **{"X-RateLimit-Remaining": "12", "X-RateLimit-Reset": "1"}),
    "unique": foreign("psycopg.errors.UniqueViolation", sqlstate="23505"),
    "cancelled by a user": foreign("psycopg.errors.QueryCanceled", sqlstate="57014"),
    "password": foreign(
        "psycopg.OperationalError", text="FATAL: password authentication failed", sqlstate=None
    ),
    "a setting that libpq does not know": foreign(
        "psycopg.OperationalError",
        text='connection is bad: invalid sslmode value: "foo"',
        sqlstate=None,
    ),
    "the same, by sqlalchemy": foreign(
        "sqlalchemy.exc.OperationalError",
        text='(psycopg.OperationalError) connection is bad: invalid sslmode value: "foo"',
    ),
    "no such table": sqlite3.OperationalError("no such table: t"),
    "denied": aws("AccessDenied", 403),
    "grpc": grpc_error("INVALID_ARGUMENT"),
    "exit": SystemExit(503),
    "a code of its own": foreign("shop.OrderError", code=503),
    "no such name": socket.gaierror(socket.EAI_NONAME, "unknown"),
    "no such name, by httpx": raised_from(
        below("httpx.ConnectError", "httpx.NetworkError"),
        raised_from(
            below("httpcore.ConnectError", "httpcore.NetworkError"),
            socket.gaierror(socket.EAI_NONAME, "unknown"),
        ),
    ),
    "no such name, by requests": raised_from(
        foreign("requests.exceptions.ConnectionError", (OSError,)),
        raised_from(
            foreign("urllib3.exceptions.NameResolutionError"),
            socket.gaierror(socket.EAI_NONAME, "unknown"),
        ),
    ),
    "no file": FileNotFoundError(errno.ENOENT, "no"),
    "certificate": URLError(ssl.SSLCertVerificationError(1, "expired")),
    "httpx certificate": raised_from(
        below("httpx.ConnectError", "httpx.NetworkError"), ssl.SSLCertVerificationError(1, "no")
    ),
    "requests certificate": below(
        "requests.exceptions.SSLError", "requests.exceptions.ConnectionError"
    ),
    "redis password": below("redis.exceptions.AuthenticationError", "redis.ConnectionError"),
    "bulk, one of them wrong": foreign(
        "elasticsearch.helpers.errors.BulkIndexError",
        errors=[{"index": {"status": 429}}, {"index": {"status": 400}}],
    ),
    "an answer after a timeout": raised_from(requests_error(404), TimeoutError()),
    "a context that was cut off": raised_from(
        ValueError("bad"), raised_from(KeyError("k"), ValueError("x"))
    ),
    "a group with a fault": ExceptionGroup("calls", [requests_error(429), ValueError("bad")]),
    "fenced": FencedError("a newer driver"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_target_that_has_no_room_or_is_away(name: str):
    refusal = judge(REFUSED[name])
    assert refusal is not None
    assert refusal.reason


@pytest.mark.parametrize("name", FAULTS)
def test_what_waiting_would_not_help(name: str):
    assert judge(FAULTS[name]) is None


DATE = formatdate(NOW_S, usegmt=True)
IN_20_S = formatdate(NOW_S + 20, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After": IN_20_S, "Date": DATE}, 20.0),
        ({"Retry-After": IN_20_S}, 20.0),  # by the wall clock
        # The server's clock is an hour behind ours: what it says counts from its own time.
        ({"Retry-After": formatdate(NOW_S - 3580), "Date": formatdate(NOW_S - 3600)}, 20.0),
        ({"Retry-After": formatdate(NOW_S - 5)}, 0.0),
        ({"Retry-After": "86400"}, AFTER_MAX_S),
        ({"Retry-After": "-1"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Tue, 99 Foo 2026"}, None),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"RateLimit-Reset": "30"}, 30.0),
        ({"X-RateLimit-Reset": str(int(NOW_S + 40))}, 40.0),
        ({"X-RateLimit-Reset": str(int((NOW_S + 40) * 1000))}, 40.0),
        ({"X-RateLimit-Reset": str(int(NOW_S + 40)), "X-RateLimit-Remaining": "3"}, None),
        ({"RateLimit": '"default";r=0;t=30'}, 30.0),
        ({"RateLimit": '"default";r=9;t=30'}, None),
    ],
)
def test_what_the_headers_ask_for(headers: dict[str, str], after_s: float | None):
    refusal = judge(requests_error(429, **headers))
    assert refusal is not None
    assert refusal.after_s == after_s


def test_a_reset_means_nothing_to_a_service_that_is_away_with_quota_left():
    refusal = judge(requests_error(503, **{"X-RateLimit-Reset": "60"}))
    assert refusal == Meaning(Kind.FULL, "HTTP 503", None)


def test_a_conflict_of_transactions_is_over_soon():
    refusal = judge(REFUSED["deadlock"])
    assert refusal is not None and refusal.after_s is not None and refusal.after_s < 0.1


@pytest.mark.parametrize(
    ("after_s", "kept_s"), [(None, None), (0.0, 0.0), (2.5, 2.5), (3600.0, AFTER_MAX_S)]
)
def test_retry_later_is_taken_at_its_word_within_bounds(after_s, kept_s):
    refusal = judge(RetryLater(after_s=after_s))
    assert refusal is not None and refusal.after_s == kept_s


def test_of_a_group_the_longest_wait_counts():
    group = ExceptionGroup("", [RetryLater(after_s=1), RetryLater(after_s=3), TimeoutError()])
    refusal = judge(group)
    assert refusal is not None and refusal.after_s == 3


def test_a_chain_that_is_a_circle_ends():
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__context__, two.__context__ = two, one
    assert judge(one) is None


def test_errors_whose_attributes_raise_are_faults_or_looked_into():
    class Nasty(Exception):
        response = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __str__(self) -> str:
            raise RuntimeError

    assert judge(Nasty()) is None
    assert judge(raised_from(Nasty(), TimeoutError())) is not None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, None),
        (2, 2.0),
        (0.5, 0.5),
        (1e9, AFTER_MAX_S),
        (-1.0, 0.0),
    ],
)
def test_the_users_own_rule_is_asked_first(answer: object, expected: float | None):
    for error in (ValueError("busy"), TimeoutError()):
        refusal = judge(error, lambda _: answer)
        assert refusal is not None
        assert (refusal.after_s, refusal.reason) == (expected, "refusal=")


def test_the_users_rule_can_say_that_it_is_no_refusal():
    assert judge(TimeoutError(), lambda _: False) is None


def test_a_rule_that_can_not_tell_leaves_it_to_ours():
    assert judge(TimeoutError(), lambda _: None) is not None
    assert judge(ValueError(), lambda _: None) is None
    assert judge(RetryLater(), lambda _: False) is not None, "said by the author: not asked"


async def _late(error: BaseException) -> bool:
    return True


@pytest.mark.parametrize("rule", [lambda _: "yes", lambda _: float("nan"), _late])
def test_a_rule_that_gives_something_else_ends_the_run(rule: Any):
    with pytest.raises(UnrunnableError, match="refusal: returned"):
        judge(ValueError(), rule)


# -- as it is reported ------------------------------------------------------------------------

FRAME = Emission(7, "b1", 3, "p", [Record(1, "x")], None, 0)


def test_a_refusal_names_the_record_that_it_came_to_and_brings_no_traceback():
    frame = fail_of(FRAME, requests_error(429, **{"Retry-After": "2"}), 0)
    assert (frame.is_refused, frame.after_s, frame.is_fatal) == (True, 2.0, False)
    assert (frame.record_index, frame.traceback) == (0, "")
    assert frame.error == "refused (HTTP 429, asked for a wait of 2 s): HTTPError: x"


def test_a_reason_that_is_the_errors_own_name_is_said_once():
    assert fail_of(FRAME, RetryLater("away"), None).error == "refused: RetryLater: away"


def test_a_rule_that_raises_fails_the_tuple_and_both_errors_are_told():
    def rule(error: BaseException) -> bool:
        raise KeyError("status")

    frame = fail_of(FRAME, ValueError("bad line"), 0, rule)
    assert not frame.is_refused and not frame.is_fatal
    assert frame.error == "KeyError: 'status'"
    assert "ValueError: bad line" in frame.traceback


def test_a_rule_that_gives_something_else_is_fatal():
    frame = fail_of(FRAME, ValueError("bad"), 0, lambda _: "yes")
    assert frame.is_fatal
    problem, _, remedy = frame.error.partition("\n")
    assert problem == "refusal: returned 'yes'."
    assert remedy.startswith("Return True or seconds")


def test_a_fenced_sink_is_never_a_refusal():
    frame = fail_of(FRAME, FencedError("a newer driver"), 0, lambda _: True)
    assert frame.is_fenced and not frame.is_refused

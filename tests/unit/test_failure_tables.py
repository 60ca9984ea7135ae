"""Each error of other people's clients has one meaning, whoever asks.

The kind of defect: the same error is a refusal behind one door and a fault behind another, or a
dead token makes letters of good rows.  Clients that are installed raise their own classes; the
others are stood in for by classes with the same module, name and attributes.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.failure.classify import Meaning, meaning_of
from flowctl.failure.kinds import Kind

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

FULL, AGAIN, NOT_ALLOWED = Kind.FULL, Kind.AGAIN, Kind.NOT_ALLOWED
CONTENT, FAULT = Kind.CONTENT, Kind.FAULT
MYSQL_AGAIN, MYSQL_AWAY = (1205, 1213), (2006, 2013, 1053)


def foreign(path: str, *args: Any, bases: tuple[type, ...] = (Exception,), **attributes: Any):
    """An error of a class ``path`` ("module.Class") of a library that may not be installed."""
    module, _, name = path.rpartition(".")
    error = type(name, bases, {"__module__": module})(*args)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def below(path: str, base: str, *args: Any, **attributes: Any) -> BaseException:
    """An error whose class has a base of the same library."""
    return foreign(path, *args, bases=(type(foreign(base)),), **attributes)


def http(status: int, body: str = "", **headers: str) -> BaseException:
    httpx = pytest.importorskip("httpx")
    request = httpx.Request("POST", "http://service/rows")
    response = httpx.Response(status, headers=headers, text=body, request=request)
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        return error
    raise AssertionError("not reached")


def answered(path: str, status: int, **more: Any) -> BaseException:
    headers = more.pop("headers", {})
    response = SimpleNamespace(status_code=status, headers=headers)
    return foreign(path, status_code=status, response=response, **more)


def postgres(state: str) -> BaseException:
    psycopg = pytest.importorskip("psycopg")
    return psycopg.errors.lookup(state)("x")  # type: ignore[no-any-return]


def by_state(path: str, name: str, state: str) -> BaseException:
    return foreign(path, "x", **{name: state})


def mysql(number: int) -> BaseException:
    pymysql = pytest.importorskip("pymysql")
    return pymysql.err.OperationalError(number, "x")  # type: ignore[no-any-return]


def mysql_by_sqlalchemy(number: int) -> BaseException:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orig = mysql(number)
    return sqlalchemy.exc.OperationalError("INSERT", {}, orig)  # type: ignore[no-any-return]


def kafka(code: str) -> BaseException:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    known = getattr(confluent_kafka.KafkaError, code)
    return confluent_kafka.KafkaException(  # type: ignore[no-any-return]
        confluent_kafka.KafkaError(known)
    )


def aws(code: str, status: int = 400) -> BaseException:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return foreign("botocore.exceptions.ClientError", response=response)


def grpc_error(name: str) -> BaseException:
    return foreign("grpc._channel._InactiveRpcError", code=lambda: SimpleNamespace(name=name))


PYODBC, ORACLE = "pyodbc.Error", "oracledb.exceptions.DatabaseError"
CLICKHOUSE = "clickhouse_connect.driver.exceptions.DatabaseError"
OPENAI_MONEY = {"code": "insufficient_quota"}
ROWS: list[tuple[str, Any, Kind]] = [
    ("Anthropic", answered("anthropic.OverloadedError", 529), FULL),
    ("OpenAI full", answered("openai.RateLimitError", 429), FULL),
    ("OpenAI, no money", answered("openai.RateLimitError", 429, **OPENAI_MONEY), NOT_ALLOWED),
    ("the same, by httpx", lambda: http(429, '{"code":"insufficient_quota"}'), NOT_ALLOWED),
    ("OpenAI 500", answered("openai.InternalServerError", 500), FAULT),
    *((f"HTTP {n}", lambda n=n: http(n), FULL) for n in (408, 425, 429, 502, 503, 504)),
    *((f"HTTP {n}", lambda n=n: http(n), FULL) for n in (520, 522, 524)),
    *((f"HTTP {n}", lambda n=n: http(n), NOT_ALLOWED) for n in (401, 402, 403)),
    *((f"HTTP {n}", lambda n=n: http(n), CONTENT) for n in (400, 413, 415, 422)),
    *((f"HTTP {n}", lambda n=n: http(n), FAULT) for n in (404, 409, 500)),
    ("GitHub", lambda: http(403, **{"X-RateLimit-Remaining": "0"}), FULL),
    ("403 with a wait", lambda: http(403, **{"Retry-After": "60"}), FULL),
    (
        "BigQuery",
        foreign(
            "google.api_core.exceptions.Forbidden",
            code=403,
            errors=[{"reason": "rateLimitExceeded"}],
        ),
        FULL,
    ),
    ("Google full", foreign("google.api_core.exceptions.ResourceExhausted", code=429), FULL),
    ("Azure SQL busy", foreign("pyodbc.ProgrammingError", "42000", "… (40501)"), FULL),
    ("Azure SQL full", foreign("pyodbc.OperationalError", "HY000", "… (10928)"), FULL),
    ("SQL Server deadlock", foreign(PYODBC, "40001", "deadlock (1205)"), AGAIN),
    ("SQL Server login", foreign(PYODBC, "28000", "login failed (18456)"), NOT_ALLOWED),
    ("ClickHouse parts", foreign(CLICKHOUSE, "Code: 252. DB::Exception"), FULL),
    ("ClickHouse queries", foreign(CLICKHOUSE, "Code: 202. DB::Exception"), FULL),
    ("Cosmos for MongoDB", foreign("pymongo.errors.OperationFailure", code=16500), FULL),
    (
        "Cosmos, bulk",
        foreign(
            "pymongo.errors.BulkWriteError",
            details={"writeErrors": [{"code": 16500}, {"code": 16500}]},
        ),
        FULL,
    ),
    (
        "bulk, one of them wrong",
        foreign(
            "pymongo.errors.BulkWriteError",
            details={"writeErrors": [{"code": 16500}, {"code": 11000}]},
        ),
        FAULT,
    ),
    ("Cosmos", answered("azure.cosmos.exceptions.CosmosHttpResponseError", 429), FULL),
    ("Cassandra full", foreign("cassandra.protocol.OverloadedErrorMessage"), FULL),
    ("Cassandra timeout", foreign("cassandra.WriteTimeout"), FULL),
    ("Cassandra timed out", foreign("cassandra.OperationTimedOut"), FULL),
    ("Cassandra away", foreign("cassandra.cluster.NoHostAvailable"), FULL),
    (
        "Neo4j deadlock",
        foreign(
            "neo4j.exceptions.TransientError",
            code="Neo.TransientError.Transaction.DeadlockDetected",
        ),
        AGAIN,
    ),
    ("Neo4j away", foreign("neo4j.exceptions.ServiceUnavailable"), FULL),
    ("Oracle full", foreign("oracledb.exceptions.OperationalError", "ORA-12516: no handler"), FULL),
    ("Oracle deadlock", foreign(ORACLE, "ORA-00060: deadlock"), AGAIN),
    ("Oracle password", foreign(ORACLE, "ORA-01017: invalid"), NOT_ALLOWED),
    ("MySQL full", lambda: mysql(1040), FULL),
    *((f"MySQL {n}", lambda n=n: mysql(n), AGAIN) for n in MYSQL_AGAIN),
    *((f"MySQL {n}", lambda n=n: mysql(n), FULL) for n in MYSQL_AWAY),
    *((f"MySQL {n}", lambda n=n: mysql(n), NOT_ALLOWED) for n in (1044, 1045, 1049)),
    *((f"alchemy {n}", lambda n=n: mysql_by_sqlalchemy(n), AGAIN) for n in MYSQL_AGAIN),
    *((f"alchemy {n}", lambda n=n: mysql_by_sqlalchemy(n), FULL) for n in MYSQL_AWAY),
    (
        "alchemy, where the driver's error has neither code nor known class",
        foreign(
            "sqlalchemy.exc.OperationalError",
            "(shop.Error) server closed the connection",
            orig=foreign("shop.Error"),
        ),
        FULL,
    ),
    ("alchemy 1045", lambda: mysql_by_sqlalchemy(1045), NOT_ALLOWED),
    *(
        (f"SQLSTATE {state}", lambda state=state: postgres(state), AGAIN)
        for state in ("40001", "40P01", "40003", "55P03", "25P03", "25P04")
    ),
    *(
        (f"SQLSTATE {state}", lambda state=state: postgres(state), FULL)
        for state in ("53300", "53200", "57P01", "57P03", "57P05", "25006", "08006")
    ),
    *(
        (f"SQLSTATE {state}", lambda state=state: postgres(state), NOT_ALLOWED)
        for state in ("28P01", "28000", "3D000", "42501")
    ),
    *(
        (f"SQLSTATE {state}", lambda state=state: postgres(state), CONTENT)
        for state in ("22001", "23505")
    ),
    ("psycopg2", by_state("psycopg2.errors.LockNotAvailable", "pgcode", "55P03"), AGAIN),
    ("asyncpg", by_state("asyncpg.exceptions.X", "sqlstate", "28P01"), NOT_ALLOWED),
    ("Databricks", foreign("databricks.sql.exc.RequestError", context={"http-code": 429}), FULL),
    (
        "Salesforce",
        foreign(
            "simple_salesforce.exceptions.SalesforceMalformedRequest",
            status=400,
            content=[{"errorCode": "UNABLE_TO_LOCK_ROW"}],
        ),
        AGAIN,
    ),
    (
        "Snowflake",
        foreign("snowflake.connector.errors.ProgrammingError", errno=390114, sqlstate="08001"),
        NOT_ALLOWED,
    ),
    (
        "Weaviate",
        foreign("weaviate.exceptions.WeaviateInsertManyAllFailedError", "… RESOURCE_EXHAUSTED …"),
        FULL,
    ),
    ("librdkafka", BufferError("Local: Queue full"), FULL),
    ("a buffer of Python's own", BufferError("Existing exports of data"), FAULT),
    ("Kafka away", lambda: kafka("_TRANSPORT"), FULL),
    ("Kafka rights", lambda: kafka("TOPIC_AUTHORIZATION_FAILED"), NOT_ALLOWED),
    ("Kafka size", lambda: kafka("MSG_SIZE_TOO_LARGE"), CONTENT),
    ("DynamoDB", aws("ProvisionedThroughputExceededException"), FULL),
    ("DynamoDB throttles", aws("ThrottlingException"), FULL),
    ("AWS token", aws("ExpiredTokenException"), NOT_ALLOWED),
    ("AWS rights", aws("AccessDenied", 403), NOT_ALLOWED),
    ("gRPC full", grpc_error("RESOURCE_EXHAUSTED"), FULL),
    ("gRPC rights", grpc_error("UNAUTHENTICATED"), NOT_ALLOWED),
    ("gRPC content", grpc_error("INVALID_ARGUMENT"), CONTENT),
    ("S3 by pyarrow, full", OSError("AWS Error SLOW_DOWN during PutObject operation"), FULL),
    ("S3, rights", OSError("AWS Error ACCESS_DENIED during PutObject operation"), NOT_ALLOWED),
    ("an error that nobody knows", foreign("shop.client.Oops", "it broke"), FAULT),
    ("a file of this machine", PermissionError(13, "Permission denied"), FAULT),
    (
        "Redis password",
        below("redis.exceptions.AuthenticationError", "redis.exceptions.ConnectionError"),
        NOT_ALLOWED,
    ),
]


@pytest.mark.parametrize(("error", "kind"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_an_error_means(error: Any, kind: Kind):
    made = error() if not isinstance(error, BaseException) else error
    assert meaning_of(made).kind is kind


@pytest.mark.parametrize(
    ("error", "after_s"),
    [
        (answered("openai.RateLimitError", 429, headers={"retry-after-ms": "1200"}), 1.2),
        (foreign("pyodbc.ProgrammingError", "42000", "… (40501)"), 10.0),
        (foreign("pymongo.errors.X", code=16500, details={"RetryAfterMs": 34}), 0.034),
        (answered("azure.cosmos.X", 429, headers={"x-ms-retry-after-ms": "250"}), 0.25),
    ],
)
def test_how_long_a_target_asks_to_be_left_alone(error: BaseException, after_s: float):
    assert meaning_of(error).after_s == pytest.approx(after_s)


def test_a_deadlock_is_tried_again_at_once():
    assert (meaning_of(mysql(1213)).after_s or 1.0) < 0.1


@pytest.mark.parametrize("kind", list(Kind))
def test_the_users_rule_may_say_each_of_the_kinds(kind: Kind):
    """Two services may mean different things by one status: whose it is, the job's author knows."""
    assert meaning_of(http(403), lambda _: str(kind)).kind is kind


def test_a_rule_that_says_that_it_is_no_refusal_leaves_the_rest_to_us():
    assert meaning_of(http(401), lambda _: False).kind is NOT_ALLOWED
    assert meaning_of(http(422), lambda _: False).kind is CONTENT
    assert meaning_of(http(429), lambda _: False).kind is FAULT


def test_among_several_errors_what_is_not_allowed_counts_most():
    group = ExceptionGroup("calls", [http(429), ValueError("x"), http(401)])
    assert meaning_of(group).kind is NOT_ALLOWED


def test_a_refusal_says_what_was_asked_for_and_that_waits_are_cut():
    """The kind: "refused for too long" after a tenth of a second, and nobody says why."""
    meaning = meaning_of(http(429, **{"Retry-After": "5400"}))
    assert meaning.after_s == 300
    assert meaning.said == "HTTP 429, asked for a wait of 5400 s; waits are cut to 300 s"
    assert Meaning(FULL, "HTTP 429", 0.04906281).said == "HTTP 429, asked for a wait of 0.049 s"
    assert Meaning(FULL, "HTTP 429", 2.0).said == "HTTP 429, asked for a wait of 2 s"
    assert Meaning(FULL, "HTTP 429").said == "HTTP 429"


# -- The same with the clients' own classes, where they are installed ----------------------------
#
# A class that is built alike may be built alike wrongly: another attribute, another module.
# ``make test-clients`` installs the clients into an environment of its own.

_QUEUE_FULL = "es_rejected_execution_exception"


def client(path: str) -> Any:
    """The class ``path`` ("module.Class") of a client; skips the test if it isn't installed."""
    module, _, name = path.rpartition(".")
    # ImportError: pyodbc needs a library of the system.
    return getattr(pytest.importorskip(module, exc_type=ImportError), name)


def by_httpx(path: str, status: int, body: Any = None, **headers: str) -> BaseException:
    """An error of openai or anthropic."""
    httpx = pytest.importorskip("httpx")
    request = httpx.Request("POST", "https://api/v1")
    response = httpx.Response(status, headers=headers, request=request)
    return client(path)("x", response=response, body=body)  # type: ignore[no-any-return]


def neo4j_error(code: str) -> BaseException:
    kind = client("neo4j.exceptions.Neo4jError")
    hydrate = getattr(kind, "_hydrate_neo4j", None) or kind.hydrate
    return hydrate(code=code, message="x")  # type: ignore[no-any-return]


def oracle(number: str, name: str = "OperationalError") -> BaseException:
    made = client(f"oracledb.{name}")
    return made(client("oracledb.errors._Error")(f"{number}: x"))  # type: ignore[no-any-return]


def psycopg2_error(state: str) -> BaseException:
    error = pytest.importorskip("psycopg2.errors").lookup(state)("x")
    error.__setstate__({"pgcode": state})  # as one that was pickled: only libpq sets it else
    return error  # type: ignore[no-any-return]


def aiohttp_error(status: int) -> BaseException:
    made = client("aiohttp.ClientResponseError")
    return made(None, (), status=status, headers={})  # type: ignore[no-any-return]


def cosmos(status: int) -> BaseException:
    response = SimpleNamespace(
        status_code=status, reason="x", headers={"x-ms-retry-after-ms": "250"}, text=lambda **_: ""
    )
    made = client("azure.cosmos.exceptions.CosmosHttpResponseError")
    return made(status_code=status, message="x", response=response)  # type: ignore[no-any-return]


def salesforce(code: str) -> BaseException:
    made = client("simple_salesforce.exceptions.SalesforceMalformedRequest")
    return made("u", 400, "Account", [{"errorCode": code}])  # type: ignore[no-any-return]


def dynamo(code: str) -> BaseException:
    made = client("botocore.exceptions.ClientError")
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return made(answer, "PutItem")  # type: ignore[no-any-return]


def mongo_bulk(*codes: int) -> BaseException:
    made = client("pymongo.errors.BulkWriteError")
    return made({"writeErrors": [{"code": code} for code in codes]})  # type: ignore[no-any-return]


REAL: list[tuple[str, Any, Kind]] = [
    ("anthropic 529", lambda: by_httpx("anthropic._exceptions.OverloadedError", 529), FULL),
    ("anthropic 429", lambda: by_httpx("anthropic.RateLimitError", 429), FULL),
    ("openai 429", lambda: by_httpx("openai.RateLimitError", 429), FULL),
    ("openai money", lambda: by_httpx("openai.RateLimitError", 429, OPENAI_MONEY), NOT_ALLOWED),
    ("openai 500", lambda: by_httpx("openai.InternalServerError", 500), FAULT),
    ("openai 400", lambda: by_httpx("openai.BadRequestError", 400), CONTENT),
    (
        "bigquery",
        lambda: client("google.api_core.exceptions.Forbidden")(
            "x", errors=[{"reason": "rateLimitExceeded"}]
        ),
        FULL,
    ),
    ("google", lambda: client("google.api_core.exceptions.ResourceExhausted")("x"), FULL),
    ("azure sql busy", lambda: client("pyodbc.ProgrammingError")("42000", "… (40501)"), FULL),
    ("azure sql full", lambda: client("pyodbc.OperationalError")("HY000", "… (10928)"), FULL),
    ("sql server", lambda: client("pyodbc.Error")("40001", "deadlock (1205)"), AGAIN),
    ("clickhouse", lambda: client(CLICKHOUSE)("Code: 252. DB::Exception: Too many parts"), FULL),
    ("clickhouse 202", lambda: client(CLICKHOUSE)("Code: 202. DB::Exception"), FULL),
    ("mongo", lambda: client("pymongo.errors.OperationFailure")("x", 16500), FULL),
    ("mongo bulk", lambda: mongo_bulk(16500, 16500), FULL),
    ("mongo bulk, one wrong", lambda: mongo_bulk(16500, 11000), FAULT),
    ("mongo twice", lambda: client("pymongo.errors.DuplicateKeyError")("x", 11000), CONTENT),
    ("cosmos", lambda: cosmos(429), FULL),
    (
        "cassandra full",
        lambda: client("cassandra.protocol.OverloadedErrorMessage")(0x1001, "x", None),
        FULL,
    ),
    ("cassandra write", lambda: client("cassandra.WriteTimeout")("x", write_type=0), FULL),
    ("cassandra timed out", lambda: client("cassandra.OperationTimedOut")("x"), FULL),
    ("cassandra away", lambda: client("cassandra.cluster.NoHostAvailable")("x", {}), FULL),
    ("neo4j", lambda: neo4j_error("Neo.TransientError.Transaction.DeadlockDetected"), AGAIN),
    ("neo4j away", lambda: client("neo4j.exceptions.ServiceUnavailable")("x"), FULL),
    ("oracle full", lambda: oracle("ORA-12516"), FULL),
    ("oracle deadlock", lambda: oracle("ORA-00060", "DatabaseError"), AGAIN),
    ("psycopg2", lambda: psycopg2_error("55P03"), AGAIN),
    ("psycopg2 password", lambda: psycopg2_error("28P01"), NOT_ALLOWED),
    ("asyncpg", lambda: client("asyncpg.exceptions.InvalidPasswordError")("x"), NOT_ALLOWED),
    ("asyncpg lock", lambda: client("asyncpg.exceptions.LockNotAvailableError")("x"), AGAIN),
    ("asyncpg twice", lambda: client("asyncpg.exceptions.UniqueViolationError")("x"), CONTENT),
    (
        "databricks",
        lambda: client("databricks.sql.exc.RequestError")("x", context={"http-code": 429}),
        FULL,
    ),
    ("salesforce", lambda: salesforce("UNABLE_TO_LOCK_ROW"), AGAIN),
    (
        "snowflake",
        lambda: client("snowflake.connector.errors.ProgrammingError")(
            msg="x", errno=390114, sqlstate="08001"
        ),
        NOT_ALLOWED,
    ),
    (
        "weaviate",
        lambda: client("weaviate.exceptions.WeaviateInsertManyAllFailedError")(
            "… RESOURCE_EXHAUSTED …"
        ),
        FULL,
    ),
    ("dynamodb", lambda: dynamo("ProvisionedThroughputExceededException"), FULL),
    ("dynamodb throttles", lambda: dynamo("ThrottlingException"), FULL),
    ("aws token", lambda: dynamo("ExpiredTokenException"), NOT_ALLOWED),
    ("aiohttp 429", lambda: aiohttp_error(429), FULL),
    ("aiohttp 422", lambda: aiohttp_error(422), CONTENT),
    ("opensearch", lambda: client("opensearchpy.TransportError")(429, _QUEUE_FULL, {}), FULL),
    ("redis", lambda: client("redis.exceptions.AuthenticationError")("x"), NOT_ALLOWED),
    ("requests", lambda: client("requests.exceptions.ReadTimeout")("x"), FULL),
]


@pytest.mark.parametrize(("error", "kind"), [row[1:] for row in REAL], ids=[row[0] for row in REAL])
def test_the_clients_own_class_means_the_same(error: Any, kind: Kind):
    assert meaning_of(error()).kind is kind


def test_the_clients_own_classes_say_how_long_to_wait():
    waits = {
        1.2: lambda: by_httpx("openai.RateLimitError", 429, **{"retry-after-ms": "1200"}),
        0.25: lambda: cosmos(429),
        0.034: lambda: client("pymongo.errors.OperationFailure")("x", 16500, {"RetryAfterMs": 34}),
        10.0: lambda: client("pyodbc.ProgrammingError")("42000", "… (40501)"),
    }
    found = 0
    for after_s, error in waits.items():
        try:
            made = error()
        except pytest.skip.Exception:
            continue
        assert meaning_of(made).after_s == pytest.approx(after_s)
        found += 1
    if not found:
        pytest.skip("none of these clients is installed")

"""The errors of client libraries of other services, and what they mean.  Data only.

Errors are recognised by their attributes and by the names of their classes and modules, so no
client library is imported.  A row needs no other code, unless the error has an attribute of its own
that says how long to wait: :mod:`flowctl.failure.classify` reads those.
"""

from __future__ import annotations

import errno
import re
from typing import Final, TypeAlias

from flowctl.failure.kinds import Kind

_FULL, _AGAIN, _DENIED = Kind.FULL, Kind.AGAIN, Kind.NOT_ALLOWED
_CONTENT, _FAULT = Kind.CONTENT, Kind.FAULT

Words: TypeAlias = tuple[str, ...]

# -- HTTP ------------------------------------------------------------------------------------

# Not 404: a balancer whose service is restarting answers that.
STATUSES: Final[dict[int, Kind]] = {
    400: _CONTENT,
    401: _DENIED,
    402: _DENIED,  # the account is out of money
    403: _DENIED,  # "full" with the headers of a limit, as GitHub sends it
    407: _DENIED,
    408: _FULL,  # the service waited for the request
    413: _CONTENT,
    415: _CONTENT,
    422: _CONTENT,
    425: _FULL,  # too early
    429: _FULL,
    502: _FULL,  # from a proxy whose target is away, as 504 and Cloudflare's
    503: _FULL,
    504: _FULL,
    520: _FULL,
    521: _FULL,
    522: _FULL,
    523: _FULL,
    524: _FULL,
    529: _FULL,  # overloaded: Anthropic
}
# Named in a 429, but no wait helps: the account is out of money.
OUT_OF_MONEY: Final = "insufficient_quota"
# Codes that are texts, in whatever attribute or body they come.
CODES: Final[dict[str, Kind]] = {
    OUT_OF_MONEY: _DENIED,
    # Google, in errors[0].reason of a 403
    "rateLimitExceeded": _FULL,
    "userRateLimitExceeded": _FULL,
    "jobRateLimitExceeded": _FULL,
    "quotaExceeded": _FULL,
    # Neo4j
    "Neo.TransientError.Transaction.DeadlockDetected": _AGAIN,
    # Salesforce
    "UNABLE_TO_LOCK_ROW": _AGAIN,
    "REQUEST_LIMIT_EXCEEDED": _FULL,
    "SERVER_UNAVAILABLE": _FULL,
    "INVALID_SESSION_ID": _DENIED,
}

# -- AWS: after botocore's own lists ---------------------------------------------------------

_AWS: Final[dict[Kind, Words]] = {
    _FULL: (
        "BandwidthLimitExceeded", "EC2ThrottledException", "LimitExceededException",
        "PriorRequestNotComplete", "ProvisionedThroughputExceededException",
        "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "RequestTimeout",
        "RequestTimeoutException", "ServiceUnavailable", "ServiceUnavailableException", "SlowDown",
        "ThrottledException", "Throttling", "ThrottlingException", "TooManyRequestsException",
        "TransactionInProgressException",
    ),
    _DENIED: (
        "AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken",
        "ExpiredTokenException", "InvalidAccessKeyId", "InvalidClientTokenId",
        "InvalidSignatureException", "MissingAuthenticationToken",
        "ResourceNotFoundException",  # no such table, stream, function
        "SignatureDoesNotMatch", "UnauthorizedOperation", "UnrecognizedClientException",
    ),
    _CONTENT: ("ValidationException",),
}  # fmt: skip
AWS_CODES: Final = {code: kind for kind, codes in _AWS.items() for code in codes}

GRPC_CODES: Final[dict[str, Kind]] = {
    "RESOURCE_EXHAUSTED": _FULL,
    "UNAVAILABLE": _FULL,
    "DEADLINE_EXCEEDED": _FULL,
    "ABORTED": _AGAIN,
    "UNAUTHENTICATED": _DENIED,
    "PERMISSION_DENIED": _DENIED,
    "INVALID_ARGUMENT": _CONTENT,
    "OUT_OF_RANGE": _CONTENT,
}
# Codes that a Kafka client recovers from by itself, or that a producer gets when it is ahead.
KAFKA_CODES: Final[dict[str, Kind]] = {
    "_ALL_BROKERS_DOWN": _FULL,
    "_ASSIGNMENT_LOST": _FULL,
    "_MAX_POLL_EXCEEDED": _FULL,
    "_MSG_TIMED_OUT": _FULL,
    "_QUEUE_FULL": _FULL,
    "_RESOLVE": _FULL,
    "_STATE": _FULL,
    "_TIMED_OUT": _FULL,
    "_TRANSPORT": _FULL,
    "_WAIT_COORD": _FULL,
    "_PURGE_INFLIGHT": _FULL,
    "_PURGE_QUEUE": _FULL,
    "ILLEGAL_GENERATION": _FULL,
    "KAFKA_STORAGE_ERROR": _FULL,
    "LEADER_NOT_AVAILABLE": _FULL,
    "NETWORK_EXCEPTION": _FULL,
    "NOT_ENOUGH_REPLICAS": _FULL,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": _FULL,
    "NOT_LEADER_FOR_PARTITION": _FULL,
    "REBALANCE_IN_PROGRESS": _FULL,
    "REQUEST_TIMED_OUT": _FULL,
    "THROTTLING_QUOTA_EXCEEDED": _FULL,
    "UNKNOWN_MEMBER_ID": _FULL,
    "_AUTHENTICATION": _DENIED,
    "CLUSTER_AUTHORIZATION_FAILED": _DENIED,
    "GROUP_AUTHORIZATION_FAILED": _DENIED,
    "SASL_AUTHENTICATION_FAILED": _DENIED,
    "TOPIC_AUTHORIZATION_FAILED": _DENIED,
    "INVALID_RECORD": _CONTENT,
    "MSG_SIZE_TOO_LARGE": _CONTENT,
}

# -- databases -------------------------------------------------------------------------------

# A state, or the class of states that its first two characters name.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
SQLSTATES: Final[dict[str, Kind]] = {
    "08": _FULL,  # connection exception
    "22": _CONTENT,  # data exception
    "23": _CONTENT,  # integrity constraint violation
    "28": _DENIED,  # invalid user or password
    "53": _FULL,  # no room: disk, memory, connections
    "25006": _FULL,  # read only: a standby, in a fail-over
    "25P03": _AGAIN,  # idle in a transaction for too long: we were frozen
    "25P04": _AGAIN,  # a transaction timed out
    "3D000": _DENIED,  # no such database
    "40001": _AGAIN,  # could not be serialised
    "40003": _AGAIN,  # unknown whether it was committed
    "40P01": _AGAIN,  # deadlock
    "42501": _DENIED,  # no right to do that
    "55P03": _AGAIN,  # a lock could not be acquired in time
    "57P01": _FULL,  # shut down by an operator
    "57P02": _FULL,  # crashed
    "57P03": _FULL,  # starting or recovering
    "57P05": _FULL,  # idle for too long
}
# https://mariadb.com/docs/server/reference/error-codes; those above 2000 are the client's.
_MYSQL: Final[dict[int, Kind]] = {
    1021: _FULL,  # the disk is full
    1040: _FULL,  # too many connections
    1044: _DENIED,  # no right to the database
    1045: _DENIED,  # wrong user or password
    1048: _CONTENT,  # a column may not be NULL
    1049: _DENIED,  # no such database
    1053: _FULL,  # shutting down
    1062: _CONTENT,  # a key twice
    1114: _FULL,  # the table is full: no room
    1142: _DENIED,  # no right to write there
    1143: _DENIED,  # no right to write this column
    1203: _FULL,  # too many connections of this user
    1205: _AGAIN,  # innodb_lock_wait_timeout is over
    1213: _AGAIN,  # deadlock
    1226: _FULL,  # the same as 1203, or another limit of this user
    1264: _CONTENT,  # out of range
    1290: _FULL,  # read only: a replica, in a fail-over
    1366: _CONTENT,  # a value of another type
    1406: _CONTENT,  # too long
    1698: _DENIED,  # wrong user or password
    1792: _FULL,  # read only, by transaction_read_only
    1836: _FULL,  # the same
    1927: _FULL,  # the connection was killed
    2002: _FULL,  # no connection: the socket
    2003: _FULL,  # no connection: the port
    2006: _FULL,  # the server has gone away
    2013: _FULL,  # the connection was lost during a query
    4031: _FULL,  # idle for too long
}
MYSQL_DRIVERS: Final = ("pymysql", "MySQLdb", "mysql", "mariadb")
_SQL_SERVER: Final[dict[int, Kind]] = {
    229: _DENIED,  # no right to do that
    1205: _AGAIN,  # deadlock
    4060: _DENIED,  # the database can't be opened by this login
    10928: _FULL,  # Azure: no worker or session left, as 10929
    10929: _FULL,
    18456: _DENIED,  # login failed
    40197: _FULL,  # a fail-over
    40501: _FULL,  # busy
    40613: _FULL,  # not available now
    49918: _FULL,  # not enough resources, as the next two
    49919: _FULL,
    49920: _FULL,
}
_ORACLE: Final[dict[int, Kind]] = {
    1: _CONTENT,  # unique
    18: _FULL,  # sessions
    20: _FULL,  # processes
    54: _AGAIN,  # a lock could not be acquired in time
    60: _AGAIN,  # deadlock
    1017: _DENIED,  # wrong user or password
    1031: _DENIED,  # no right to do that
    1033: _FULL,  # starting or stopping, as the next three
    1034: _FULL,
    1089: _FULL,
    1090: _FULL,
    1045: _DENIED,  # no right to connect
    1400: _CONTENT,  # a column may not be NULL
    1438: _CONTENT,  # out of range
    2290: _CONTENT,  # a check
    2291: _CONTENT,  # a foreign key
    3113: _FULL,  # the connection was lost, as the next two
    3114: _FULL,
    3135: _FULL,
    4011: _FULL,  # DPY: the connection was closed
    6005: _FULL,  # DPY: no connection
    8177: _AGAIN,  # could not be serialised
    12170: _FULL,  # no connection in time
    12516: _FULL,  # the listener has no handler left, as the next two
    12519: _FULL,
    12520: _FULL,
    12537: _FULL,  # the connection was closed
    12541: _FULL,  # no listener
    12899: _CONTENT,  # too long
    28000: _DENIED,  # the account is locked
}
_CLICKHOUSE: Final[dict[int, Kind]] = {
    81: _DENIED,  # no such database
    159: _FULL,  # it took too long
    202: _FULL,  # too many queries at once
    209: _FULL,  # the socket timed out
    210: _FULL,  # the network
    241: _FULL,  # no memory left
    252: _FULL,  # too many parts: inserts are faster than merges
    497: _DENIED,  # no right to do that
    516: _DENIED,  # wrong user or password
}
_MONGO: Final[dict[int, Kind]] = {
    13: _DENIED,  # no right to do that
    18: _DENIED,  # wrong user or password
    121: _CONTENT,  # validation
    11000: _CONTENT,  # a key twice
    16500: _FULL,  # Cosmos: too many requests
}
_SNOWFLAKE: Final[dict[int, Kind]] = {
    250001: _FULL,  # no connection
    390100: _DENIED,  # wrong user or password
    390114: _DENIED,  # the token has expired
    390195: _DENIED,  # the token has expired
}
# By top-level module.  The number is errno, code, the first argument, or in the text: see below.
NUMBERS: Final[dict[str, dict[int, Kind]]] = {
    "clickhouse_connect": _CLICKHOUSE,
    "clickhouse_driver": _CLICKHOUSE,
    **dict.fromkeys(MYSQL_DRIVERS, _MYSQL),
    "cx_Oracle": _ORACLE,
    "oracledb": _ORACLE,
    "pymongo": _MONGO,
    "pymssql": _SQL_SERVER,
    "pyodbc": _SQL_SERVER,
    "snowflake": _SNOWFLAKE,
}
NUMBERS_IN_TEXT: Final[dict[str, re.Pattern[str]]] = {
    "clickhouse_connect": re.compile(r"Code: (\d+)"),
    "clickhouse_driver": re.compile(r"Code: (\d+)"),
    "cx_Oracle": re.compile(r"\b(?:ORA|DPY)-(\d+)"),
    "oracledb": re.compile(r"\b(?:ORA|DPY)-(\d+)"),
    "pyodbc": re.compile(r"\((\d{3,5})\)"),
}
# How long a service asks to be left alone by a number, in its documents only [s].
WAITS_S: Final[dict[tuple[str, int], float]] = {("pyodbc", 40501): 10.0}

# -- classes ---------------------------------------------------------------------------------

# By top-level module: names of classes, and of their bases; the nearest one decides.
CLASSES: Final[dict[str, dict[str, Kind]]] = {
    "aiohttp": {
        "ClientConnectionError": _FULL,
        "ClientPayloadError": _FULL,
        "ClientConnectorCertificateError": _FAULT,
        "ClientConnectorSSLError": _FAULT,
    },
    "asyncio": {"TimeoutError": _FULL},  # in Python 3.10 not yet the one of builtins
    "botocore": {
        "HTTPClientError": _FULL,
        "ConnectionError": _FULL,
        "NoCredentialsError": _DENIED,
        "PartialCredentialsError": _DENIED,
        "SSLError": _FAULT,
        "ProxyConnectionError": _FAULT,
    },
    "cassandra": {
        "OverloadedErrorMessage": _FULL,
        "OperationTimedOut": _FULL,
        "NoHostAvailable": _FULL,
        "Timeout": _FULL,  # of reads and writes
        "ReadTimeout": _FULL,
        "WriteTimeout": _FULL,
        "Unavailable": _FULL,
        "AuthenticationFailed": _DENIED,
        "Unauthorized": _DENIED,
    },
    "concurrent": {"TimeoutError": _FULL},  # the same
    "elastic_transport": {"ConnectionError": _FULL, "ConnectionTimeout": _FULL},
    "elasticsearch": {"ConnectionError": _FULL, "ConnectionTimeout": _FULL},
    "http": {"IncompleteRead": _FULL, "BadStatusLine": _FULL},
    "httpcore": {"NetworkError": _FULL, "TimeoutException": _FULL, "RemoteProtocolError": _FULL},
    "httpx": {"NetworkError": _FULL, "TimeoutException": _FULL, "RemoteProtocolError": _FULL},
    "neo4j": {
        "TransientError": _FULL,
        "ServiceUnavailable": _FULL,
        "SessionExpired": _FULL,
        "AuthError": _DENIED,
        "Forbidden": _DENIED,
        "ConstraintError": _CONTENT,
    },
    "opensearchpy": {"ConnectionError": _FULL, "ConnectionTimeout": _FULL},
    "psycopg_pool": {"PoolTimeout": _FULL, "TooManyRequests": _FULL},
    "pymongo": {"AutoReconnect": _FULL},
    "redis": {
        "ClusterDownError": _FULL,
        "ConnectionError": _FULL,
        "MasterDownError": _FULL,
        "OutOfMemoryError": _FULL,
        "TimeoutError": _FULL,
        "TryAgainError": _FULL,
        "AuthenticationError": _DENIED,
        "AuthorizationError": _DENIED,
        "NoPermissionError": _DENIED,
    },
    "requests": {
        "ConnectionError": _FULL,
        "Timeout": _FULL,
        "ChunkedEncodingError": _FULL,
        "SSLError": _FAULT,
    },
    "sqlalchemy": {"TimeoutError": _FULL},
    "urllib3": {
        "IncompleteRead": _FULL,
        "NewConnectionError": _FULL,
        "ProtocolError": _FULL,
        "TimeoutError": _FULL,
    },
}
# Of any module: waiting does not help until a user corrects something.
NEVER_CLASSES: Final = frozenset({
    "InvalidURL", "SSLCertVerificationError", "SSLError", "UnsupportedProtocol",
})  # fmt: skip
# What PEP 249 calls errors that are about what was sent.
SQL_CONTENT_CLASSES: Final = frozenset({"DataError", "IntegrityError"})
SQL_CLASSES: Final = frozenset({"OperationalError", "InterfaceError"})
NET_ERRNOS: Final = frozenset({
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT,
})  # fmt: skip

# -- texts, where there is nothing else ------------------------------------------------------

# Texts of object stores; pyarrow raises OSError for everything, and names AWS in the text.
STORE_DENIED: Final = re.compile(
    r"access.?denied|forbidden|invalid.?access.?key|signature.?does.?not.?match"
    r"|unable to locate credentials|no.?credentials|expired.?token|unauthorized",
    re.IGNORECASE,
)
STORE_FULL: Final = re.compile(
    r"slow.?down|throttl|service.?unavailable|network.?connection|request.?timeout", re.IGNORECASE
)
ARROW_STORE: Final = "AWS Error"
TEXTS: Final[dict[str, tuple[tuple[str, Kind], ...]]] = {
    "builtins": (("Local: Queue full", _FULL),),  # librdkafka's BufferError
    "elasticsearch": (("es_rejected_execution_exception", _FULL),),
    "opensearchpy": (("es_rejected_execution_exception", _FULL),),
    "weaviate": (("RESOURCE_EXHAUSTED", _FULL),),
}
POSTGRES_DRIVERS: Final = ("psycopg", "psycopg2", "psycopg_pool", "pg8000")
# Texts of libpq and drivers if there is no SQLSTATE, as before a connection is established.  A
# wrong password comes the same way, so the text must decide.
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
SQL_WORDS: Final[dict[str, Words]] = {
    **dict.fromkeys((*POSTGRES_DRIVERS, *MYSQL_DRIVERS, "asyncpg", "sqlalchemy"), _SQL_WORDS),
    "sqlite3": ("is locked", "database is busy", "disk is full"),
}
SQLITE_BUSY: Final = 5
SQLITE_LOCKED: Final = 6
SQLITE_READONLY: Final = 8
SQLITE_IOERR: Final = 10
SQLITE_FULL: Final = (SQLITE_BUSY, SQLITE_LOCKED, 13)  # 13: SQLITE_FULL
# How SQLite puts these codes into words (sqlite3_errstr).
SQLITE_CODES: Final = {
    "database is locked": SQLITE_BUSY,
    "database table is locked": SQLITE_LOCKED,
    "database schema is locked": SQLITE_LOCKED,
    "attempt to write a readonly database": SQLITE_READONLY,
    "disk I/O error": SQLITE_IOERR,
    "database or disk is full": 13,
}
# Among those: waiting will not help until a user corrects login, password, database or rights, …
SQL_DENIED: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|not permitted to log in|"
    r"no pg_hba\.conf entry|pg_hba\.conf rejects|permission denied",
    re.IGNORECASE,
)
# … or the address, a setting or the program.
SQL_NEVER: Final = re.compile(
    r"certificate|does not support SSL|invalid response to SSL negotiation|"
    r"expected authentication request|authentication method|channel binding required|"
    r"invalid connection option|invalid (\S+ )?value|invalid port number|definition of service|"
    r"already in progress|Name or service not known|No address associated with hostname|"
    r"nodename nor servname",
    re.IGNORECASE,
)

# -- A call with too many bytes ------------------------------------------------------------------

TOO_LARGE: Final = frozenset({"HTTP 413", "MSG_SIZE_TOO_LARGE"})
# Of the call, not of a value in it ("value too large for column").
TOO_LARGE_TEXT: Final = re.compile(
    r"max_allowed_packet|content length exceeded"
    r"|(?:request|payload|entity|message|packet|body)(?: size| is| was)* too (?:large|big)",
    re.IGNORECASE,
)

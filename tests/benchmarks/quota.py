"""``python -m tests.benchmarks quota``: an API with quotas, called by 32 partitions of Spark.

The service (a process of its own, on loopback) takes 600 requests and 90,000 tokens in each minute
(windows that begin with its first call), answers 529 above 20 calls at once, is away for 8 s (no
answer), and gives tokens of which each is valid for 30 s.  A call takes half a second and 50 to 250
tokens, 150 in the mean, so both quotas are used up together.

Each arm makes one call for each of the same rows, and all have the same client, which gets a new
token when one has expired.  The other arms try a call six times, with waits of up to a minute, as
OpenAI's cookbook does by tenacity; a row whose last try fails has no result.  They need
``pip install tenacity pyrate-limiter aiolimiter``, which are no dependencies; else they are left
out, by name.

``used``: what was taken, of the requests or the tokens (the greater), as a share of what the quota
allows in the time in which the service is not away, from the first call until nine tenths of the
rows are done (then the first partitions end, and a call at a time of those that are left is less
than the quota).  A window lets bursts through, so who uses one at its beginning and the next at its
end can have more than 1.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.client
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import PIPE, Popen
from typing import Any

from flowctl import Batch
from pyspark_flowctl import flow_sink
from tests.benchmarks.pacing import own_redis
from tests.benchmarks.parts import machine

PARTITIONS = 32
REQUESTS, TOKENS, WINDOW_S = 600, 90_000, 60.0
AT_ONCE = 20
CALL_S = 0.5
AWAY_S = 40.0, 48.0  # since the first call
TOKEN_S = 30.0
TRIES = 6
ROWS = 1_200  # two minutes of it


def tokens_of(row: int) -> int:
    """What the call of a row takes: 50 to 250, in no order."""
    return 50 + row * 7_919 % 201


# -- The service ---------------------------------------------------------------------------------


class Service:
    """What the service knows; ``answer`` is for many threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began_s: float | None = None
        self.at_once = 0
        self.window, self.requests, self.tokens = -1, 0, 0
        self.answers: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.taken: list[tuple[float, int]] = []  # since the first call [s], and the tokens

    def begin(self, row: int, tokens: int, made_s: float) -> tuple[int, float]:
        """Return the status of a call that begins, 0 for none, and a wait to ask for [s]."""
        with self.lock:
            now_s = time.time()
            if self.began_s is None:
                self.began_s = now_s
            status, wait_s = self._status(now_s - self.began_s, tokens, now_s - made_s)
            self.answers[status] += 1
            if status == 200:
                self.requests += 1
                self.tokens += tokens
                self.taken.append((now_s - self.began_s, tokens))
                self.at_once += 1
                self.done[row] += 1
            return status, wait_s

    def _status(self, at_s: float, tokens: int, token_age_s: float) -> tuple[int, float]:
        if AWAY_S[0] <= at_s < AWAY_S[1]:
            return 0, 0.0
        if token_age_s > TOKEN_S:
            return 401, 0.0
        if self.at_once >= AT_ONCE:
            return 529, 0.0
        if self.window != (now := int(at_s // WINDOW_S)):
            self.window, self.requests, self.tokens = now, 0, 0
        if self.requests >= REQUESTS or self.tokens + tokens > TOKENS:
            return 429, WINDOW_S - at_s % WINDOW_S
        return 200, 0.0

    def end(self) -> None:
        """A call that was taken ends."""
        with self.lock:
            self.at_once -= 1

    def told(self) -> dict[str, Any]:
        """Return what came of all calls so far, and begin anew."""
        with self.lock:
            done = len(self.done)
            told = {
                "answers": self.answers,
                "done": done,
                "twice": self.done.total() - done,
                "taken": self.taken,
            }
        self.__init__()  # type: ignore[misc]
        return told


def serve() -> None:
    """Be the service until stdin ends; its port is the first line on stdout."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # the name is http.server's
            self._say(200, service.told() if self.path == "/told" else {"token": time.time()})

        def do_POST(self) -> None:  # the same
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, wait_s = service.begin(asked["row"], asked["tokens"], asked["token"])
            if not status:
                self.close_connection = True  # and says nothing
                return
            if status == 200:
                time.sleep(CALL_S)
                service.end()
            self._say(status, {}, {"Retry-After": f"{wait_s:.1f}"} if wait_s else {})

        def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


@contextmanager
def service() -> Iterator[int]:
    """Run the service in a process of its own; give its port."""
    code = "from tests.benchmarks.quota import serve; serve()"
    with Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


# -- The client, the same in each arm -------------------------------------------------------------


class AnswerError(Exception):
    """An answer that is no 200."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.headers = headers


class Client:
    """Calls the service, by a connection for each thread; gets a new token where one expired."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()
        self._token = 0.0

    def call(self, row: int) -> None:
        """Make the call of ``row``, or raise :class:`AnswerError` or ``ConnectionError``."""
        for last in (False, True):
            asked = {"row": row, "tokens": tokens_of(row), "token": self._token}
            status, headers, _ = self.ask("POST", "/call", asked)
            if status == 200:
                return
            if status != 401 or last:
                raise AnswerError(status, headers)
            self._token = json.loads(self.ask("GET", "/token")[2])["token"]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            self._local.connection = connection
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise


@functools.cache
def client_of(port: int) -> Client:
    """Return the one of this process."""
    return Client(port)


# -- The arms: each makes one call a row ----------------------------------------------------------


def by_flowctl(df: Any, port: int, redis: str, **options: Any) -> int:
    """Return how many rows have no result."""

    def call(batch: Batch) -> None:
        for record in batch:
            client_of(port).call(record.value["id"])

    def cost(batch: Batch) -> dict[str, float]:
        return {"tokens": sum(tokens_of(row["id"]) for row in batch.values)}

    with tempfile.TemporaryDirectory() as letters:
        sink = flow_sink(
            call, target="api", redis=redis, rows_max=1, cost=cost, dead_letter=letters, **options
        )
        return int(sink.write(df).lost)


def in_pandas(df: Any, call: Callable[[Sequence[int]], list[bool]]) -> int:
    """Return for how many rows ``call``, in a ``pandas_udf``, has no result."""
    import pandas
    from pyspark.sql.functions import pandas_udf

    def made(ids: Any) -> Any:
        return pandas.Series(call([int(one) for one in ids]))

    made.__annotations__ = {"ids": pandas.Series, "return": pandas.Series}
    results = df.select(pandas_udf(made, "boolean")("id").alias("ok")).collect()
    return sum(not row.ok for row in results)


def _tried(call: Callable[[int], None]) -> Callable[[int], bool]:
    from tenacity import RetryError, Retrying, stop_after_attempt, wait_random_exponential

    retrying = Retrying(wait=wait_random_exponential(max=60), stop=stop_after_attempt(TRIES))

    def tried(row: int) -> bool:
        try:
            retrying(call, row)
        except RetryError:
            return False
        return True

    return tried


def by_tenacity(df: Any, port: int, _: str) -> int:
    """Retry, and nothing else."""

    def calls(rows: Sequence[int]) -> list[bool]:
        return list(map(_tried(client_of(port).call), rows))

    return in_pandas(df, calls)


def by_pyrate(df: Any, port: int, redis: str, *, share: float = 1.0) -> int:
    """A limiter on Redis, for requests and for tokens, with ``share`` of the numbers."""

    def calls(rows: Sequence[int]) -> list[bool]:
        from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
        from redis import Redis

        client = Redis.from_url(redis)
        per_minute = {"requests": int(REQUESTS * share), "tokens": int(TOKENS * share)}
        limits = {
            unit: Limiter(RedisBucket.init([Rate(most, Duration.MINUTE)], client, f"pyrate:{unit}"))
            for unit, most in per_minute.items()
        }
        tries: Counter[int] = Counter()

        def call(row: int) -> None:
            tries[row] += 1
            name = f"{row}/{tries[row]}/"  # another one each time, or it counts once
            limits["requests"].try_acquire(name)
            limits["tokens"].try_acquire(name, weight=tokens_of(row))
            client_of(port).call(row)

        return list(map(_tried(call), rows))

    return in_pandas(df, calls)


def by_asyncio(df: Any, port: int, _: str) -> int:
    """A limiter of asyncio in each process, with its part of the numbers."""

    def calls(rows: Sequence[int]) -> list[bool]:
        from aiolimiter import AsyncLimiter

        requests = AsyncLimiter(REQUESTS / PARTITIONS, WINDOW_S)
        tokens = AsyncLimiter(TOKENS / PARTITIONS, WINDOW_S)

        async def permitted(row: int) -> None:
            await requests.acquire()
            await tokens.acquire(tokens_of(row))

        async def one(row: int, loop: asyncio.AbstractEventLoop) -> bool:
            def call(row: int) -> None:
                asyncio.run_coroutine_threadsafe(permitted(row), loop).result()
                client_of(port).call(row)

            return await asyncio.to_thread(_tried(call), row)

        async def all_of_them() -> list[bool]:
            loop = asyncio.get_running_loop()
            return list(await asyncio.gather(*(one(row, loop) for row in rows)))

        return asyncio.run(all_of_them())

    return in_pandas(df, calls)


BUDGET = [f"{REQUESTS}/min", f"{TOKENS} tokens/min"]
ARMS: dict[str, tuple[Callable[..., int], dict[str, Any], str]] = {
    "flowctl": (by_flowctl, {"budget": BUDGET}, "flow_sink, the quotas told"),
    "learned": (by_flowctl, {}, "flow_sink, told nothing"),
    "tenacity": (by_tenacity, {}, "pandas_udf + tenacity"),
    "pyrate": (by_pyrate, {}, "the same + PyrateLimiter on Redis"),
    "half": (by_pyrate, {"share": 0.5}, "the same at half of the numbers"),
    "asyncio": (by_asyncio, {}, "tenacity + aiolimiter per process"),
}
_NEEDS = {"tenacity": "tenacity", "pyrate": "pyrate_limiter", "half": "pyrate_limiter"}
_NEEDS["asyncio"] = "aiolimiter"


def _session() -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take python3 on PATH
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    return (
        SparkSession.builder.master(f"local[{PARTITIONS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def used_share(taken: Sequence[tuple[float, int]]) -> float:
    """Return which part of the quota ``taken`` is, until the last of them."""
    last_s = taken[-1][0]
    away_s = max(0.0, min(last_s, AWAY_S[1]) - AWAY_S[0])
    minutes = (last_s - away_s) / 60
    return max(len(taken) / REQUESTS, sum(tokens for _, tokens in taken) / TOKENS) / minutes


def warm_up() -> None:
    """Let all workers start and import, which takes half a minute on two cores: it is no arm's."""
    df = _session().range(0, PARTITIONS, 1, PARTITIONS)
    flow_sink(_nothing, target="nothing", budget="1000000/min", cost=len, rows_max=1).write(df)
    in_pandas(df, lambda rows: [True for _ in rows])


def _nothing(_: Batch) -> None:
    time.sleep(1.0)  # so that no worker does two of them


def measured(name: str, rows: int) -> bool:
    """Run an arm and print its row; return whether it is as flowctl has to be."""
    run, options, title = ARMS[name]
    with own_redis() as redis, service() as port:
        df = _session().range(0, rows, 1, PARTITIONS)
        began_s = time.monotonic()
        lost = run(df, port, redis.url, **options)
        took_s = time.monotonic() - began_s
        told = json.loads(Client(port).ask("GET", "/told")[2])
    answers = {int(status): count for status, count in told["answers"].items()}
    asked = sum(count for status, count in answers.items() if status not in (0, 401))
    refused = (answers.get(429, 0) + answers.get(529, 0)) / max(1, asked)
    used = used_share(told["taken"][: rows * 9 // 10])
    rates = Counter(int(at_s // 10) for at_s, _ in told["taken"])
    none = rows - told["done"]
    print(
        f"| {title:34} | {none:5} | {told['twice']:5} | {refused:7.1%} | {took_s:6.0f} s"
        f" | {used:5.2f} | {answers}, in each 10 s: {[rates[n] for n in range(max(rates) + 1)]}",
        flush=True,
    )
    return not lost and not none and refused <= 0.02 and used >= 0.95


def main(arguments: Sequence[str]) -> int:
    """Run the named arms; exit 1 if that of flowctl with the quotas told misses its gates."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks quota")
    parser.add_argument("arms", nargs="*", metavar="|".join(ARMS))
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args(arguments)
    print(machine())
    warm_up()
    print(f"| {'':34} | lost  | twice | refused | time     | used  | answers")
    held = True
    for name in options.arms or ARMS:
        module = _NEEDS.get(name)
        if module is not None and importlib.util.find_spec(module) is None:
            print(f"| {ARMS[name][2]:34} | left out: pip install {module}")
            continue
        is_held = measured(name, options.rows)
        held = held and (is_held or name != "flowctl")
    _session().stop()
    print("all gates hold" if held else "GATES MISSED")
    return not held

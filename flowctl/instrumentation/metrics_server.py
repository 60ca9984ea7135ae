"""``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for probes: a run, or paced targets."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from flowctl import adapters
from flowctl.config import MetricsSettings
from flowctl.core.pacing.figures import StoredTarget
from flowctl.errors import ConfigError, FlowctlError, MissingExtraError
from flowctl.instrumentation.prometheus import bolt_lines, families, target_families
from flowctl.instrumentation.snapshot import Snapshot, View
from flowctl.instrumentation.text import REDIS_URL_VARIABLE
from flowctl.instrumentation.views import Beside

if TYPE_CHECKING:
    from prometheus_client import Metric

# The loop that shows a run takes a turn four times a second.  A loop without a turn for this long
# [s] hangs: longer than a pause of the whole process, shorter than a user wants to wait for a
# restart.
HUNG_AFTER_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 5.0  # a client that sends no request must not hold a thread for ever
_GZIP_LEVEL: Final = 1  # similar lines shrink at once; 9 takes several times longer
_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


class Served(Protocol):
    """The object that the threads of a server ask."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that prometheus-client writes."""

    def lines(self) -> str:
        """Return further metrics, in Prometheus' text format."""

    def unhealthy(self) -> str:
        """Return why the process should be started again; "" if it need not be."""

    def unready(self) -> str:
        """Return why it does not work; "" if it does."""


class Scraped(Beside):
    """The newest snapshot of a run, beside the view that shows it.

    A scrape reads one attribute, so it takes no lock and never waits for the run.  ``targets``
    reads the paced targets, for the metrics too; if that fails, the scrape goes without them.
    """

    def __init__(
        self,
        view: View,
        *,
        clock: Callable[[], float] = time.monotonic,
        targets: Callable[[], Sequence[StoredTarget]] | None = None,
    ) -> None:
        super().__init__(view)
        self._clock = clock
        self._targets = targets
        self.address = ""  # where this is served, as text
        self._seen: tuple[float, Snapshot] | None = None

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        if self.address:
            self.message(f"metrics at {self.address}/metrics")

    def update(self, snapshot: Snapshot) -> None:
        self._seen = (self._clock(), snapshot)
        super().update(snapshot)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus-client asks for them; nothing before the first."""
        if self._seen is not None:
            yield from families(self._seen[1])
            if self._targets is not None:
                with suppress(FlowctlError):
                    yield from target_families(self._targets())

    def lines(self) -> str:
        """Return the metrics of each bolt, in Prometheus' text format."""
        return "" if self._seen is None else bolt_lines(self._seen[1].bolts)

    def unhealthy(self) -> str:
        """Return why the process should be started again; "" if it need not be.

        A run that starts (Spark may take minutes) or stops (it saves) is never unhealthy.
        """
        if self._seen is None or self._seen[1].phase in ("starting", "stopping"):
            return ""
        age_s = self._clock() - self._seen[0]
        return f"the run has not moved for {age_s:.0f} s" if age_s > HUNG_AFTER_S else ""

    def unready(self) -> str:
        """Return why the run does not work; "" if it does."""
        if self._seen is None:
            return "the run has not begun"
        snapshot = self._seen[1]
        if snapshot.phase == "stopping":
            return "the run stops"
        if snapshot.store_away_s is not None:
            return f"the checkpoint store has been away for {snapshot.store_away_s:.0f} s"
        if not snapshot.bolts_up:
            return snapshot.note or "no bolt is connected"
        return self.unhealthy()


class MetricsServer:
    """Serves a run, or another :class:`Served`, from daemon threads.

    Raises :class:`ConfigError` for an address that can't be used, :class:`MissingExtraError` where
    prometheus-client is not installed.  ``port`` is the one that it listens on.
    """

    def __init__(self, settings: MetricsSettings, scraped: Served) -> None:
        self._scraped = scraped
        self._metrics = metrics_app(scraped)
        self._server = _listen(settings, self._answer)
        self.port: int = self._server.server_port
        self._thread = Thread(target=self._serve, name="flowctl-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen; waits for the thread, not for clients."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)  # how long a close waits

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            found: Iterable[bytes] = self._metrics(environ, start)
            return found
        if path == "/healthz":
            return _verdict(self._scraped.unhealthy(), start)
        if path == "/readyz":
            return _verdict(self._scraped.unready(), start)
        start("404 Not Found", [_TEXT])
        return [b"/metrics, /healthz, /readyz\n"]


@contextmanager
def served(settings: MetricsSettings, view: View) -> Iterator[View]:
    """Serve the snapshots that ``view`` is shown while the block runs; without a port, do
    nothing.
    """
    if settings.port is None:
        yield view
        return
    scraped = Scraped(view, targets=_paced_targets())
    server = MetricsServer(settings, scraped)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scraped.address = f"http://{host}:{server.port}"
    try:
        yield scraped
    finally:
        server.close()


def _paced_targets() -> Callable[[], Sequence[StoredTarget]] | None:
    """Return a reader of the targets in the Redis of FLOWCTL_REDIS_URL; None without one."""
    url = os.environ.get(REDIS_URL_VARIABLE)
    if not url:
        return None
    try:
        stored = adapters.load_adapter("flowctl_redis.targets", "redis").RedisTargets(url)
    except MissingExtraError:
        return None  # then nothing in this environment uses Redis
    return lambda: [stored.read(name) for name in stored.names()]


def _verdict(problem: str, start: Callable[..., Any]) -> Iterable[bytes]:
    start("503 Service Unavailable" if problem else "200 OK", [_TEXT])
    return [f"{problem or 'ok'}\n".encode()]


def metrics_app(scraped: Served) -> Callable[..., Any]:
    """Return the application that answers ``/metrics`` (WSGI), always in Prometheus' text format
    0.0.4.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
    except ImportError:
        raise MissingExtraError("metrics.port", "prometheus-client", "metrics") from None
    registry = CollectorRegistry()
    registry.register(scraped)
    ProcessCollector(registry=registry)

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body: bytes = generate_latest(registry) + scraped.lines().encode()
        headers = [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body, _GZIP_LEVEL)
        start("200 OK", headers)
        return [body]

    return app


class Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is not news."""


def _listen(settings: MetricsSettings, app: Callable[..., Any]) -> WSGIServer:
    import socket
    from socketserver import ThreadingMixIn

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET

        def server_bind(self) -> None:
            # As WSGIServer does, without a look-up of the machine's name, which may take seconds.
            socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = settings.host, self.server_address[1]
            self.setup_environ()

    try:
        server = Server((settings.host, settings.port or 0), Handler)
    except OSError as error:
        raise ConfigError(
            "metrics.port",
            f"can't listen on {settings.host}:{settings.port}: {error.strerror}.",
            remedy="Choose a free port, or 0 for any; metrics.host is an address of this machine.",
        ) from None
    server.set_app(app)
    return server

"""Jobs whose workers reach Redis but not the driver: a function for each row."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator

from tests.cluster.drive import Cluster, Drive
from tests.cluster.parts import LINKS, Figures, kill_executors, long, needs, scenario, started
from tests.cluster.services import python_of, until

_PORT = 15002  # Spark Connect's own
_VIA_REDIS = ("--set", "listen.via=redis")
_RANGES = {"RANGES": "1"}
_CONNECTS = "import socket, sys; socket.create_connection(('master', int(sys.argv[1])), 1).close()"


@scenario
@long
@needs(LINKS)
def connect_through_redis(cluster: Cluster, draw: random.Random) -> Figures:
    """Spark Connect, no way between workers and driver: the doctor; ``listen.via=redis``; SIGKILL
    of an executor."""
    with _connect_server(cluster) as remote, _locked(cluster):
        drive = Drive(cluster, "doctor_of_relay", lines=10)
        drive.environment |= _RANGES
        code, said = drive.doctor("--master", remote)
        if code != 1 or "can't reach the listener at" not in said:
            return Figures(0, 0, problem=f"over TCP: exit code {code}: {said}")
        code, said = drive.doctor("--master", remote, *_VIA_REDIS)
        if code or "listener through Redis at" not in said:
            return Figures(0, 0, problem=f"through Redis: exit code {code}: {said}")
        options = ["--master", remote, *_VIA_REDIS]
        name = "connect_through_redis"
        with started(cluster, name, draw, environment=_RANGES, options=options) as fault:
            fault.at_s = kill_executors(cluster)
        return fault.figures("w1")


@contextlib.contextmanager
def _locked(cluster: Cluster) -> Iterator[None]:
    """What the driver and workers send each other is lost; both reach all other hosts."""
    driver, workers = cluster.hosts["d"], [cluster.hosts[name] for name in ("w1", "w2")]
    with contextlib.ExitStack() as mended:
        for worker in workers:
            for one, other in ((worker, driver), (driver, worker)):
                one.cut_towards(other)
                mended.callback(one.mend_towards, other)
        yield


@contextlib.contextmanager
def _connect_server(cluster: Cluster) -> Iterator[str]:
    """A Spark Connect server beside the Master, as a platform runs it; its address."""
    server = cluster.spark.start_connect()
    try:
        until(lambda: _connects(cluster), "the Spark Connect server listens")
        yield f"sc://master:{_PORT}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def _connects(cluster: Cluster) -> bool:
    driver = cluster.hosts["d"]
    with contextlib.suppress(RuntimeError):
        driver.run(python_of(driver), "-c", _CONNECTS, str(_PORT))
        return True
    return False

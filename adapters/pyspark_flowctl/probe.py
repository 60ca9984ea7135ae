"""The checks of ``flowctl doctor --spark`` on an executor.  Spark ships this code by value.

Since flowctl may be missing there, it uses only the standard library, and pyarrow for URLs.
Results are returned as JSON, and errors never raised: Spark would retry and print a hundred lines.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import importlib
import json
import os
import pickle
import platform
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from flowctl.config import ListenSettings
from flowctl.relay_ports import Relay, RelayingStore
from flowctl.wire import listener
from pyspark_flowctl.jobs import LOOPBACK, SparkJobs

_BLOCK_BYTES = 1 << 20  # enough to show that the file is readable; cheap on any link
LISTENER = "listener"  # the name of the target at which bolts would connect


class Target(NamedTuple):
    """An address to connect to.  It sends ``token`` at once, or perhaps nothing if b""."""

    name: str
    host: str
    port: int
    token: bytes = b""


class ProbeTask(NamedTuple):
    """The checks to make; shipped as plain tuples.

    ``process`` is a pickle to load (b"": none).  The task lasts ``lasts_s`` at least, so that each
    executor gets one.  For each of ``paths`` (a file, a pattern, a directory, a URL) the first
    block of the first file is read.  ``door`` is the pickle of a relay's door (b"": none), through
    which the listener sends ``token``.
    """

    targets: tuple[tuple[Any, ...], ...]
    timeout_s: float
    lasts_s: float
    process: bytes = b""
    paths: tuple[str, ...] = ()
    door: bytes = b""
    token: bytes = b""


def run_probe(*task: Any) -> str:
    """Make all checks; return the findings (see ``checkup.Seen``)."""
    targets, timeout_s, lasts_s, process, paths, door, token = task
    began_s = time.monotonic()
    reached = {name: _connect(host, port, said, timeout_s) for name, host, port, said in targets}
    if door:
        reached[LISTENER] = _relayed(door, token, timeout_s)
    seen = {
        "host": socket.gethostname(),
        "address": _address(*targets[0][1:3]) if targets else "",
        "executor": os.getppid(),  # each executor has one daemon of Python workers
        "python": platform.python_version(),
        "flowctl": _version("flowctl"),
        "targets": reached,
        "load": _load(process) if process else "",
        "paths": {path: first_block(path) for path in paths},
    }
    time.sleep(max(0.0, lasts_s - (time.monotonic() - began_s)))
    return json.dumps(seen)


def _address(host: str, port: int) -> str:
    """Return this machine's address on the route to ``host``; nothing is sent."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(place)
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def _version(module: str) -> str:
    try:
        return str(importlib.import_module(module).__version__)
    except Exception as error:  # whatever the error, the module can't be used here
        return f"{type(error).__name__}: {error}"


def _connect(host: str, port: int, token: bytes, timeout_s: float) -> str:
    """Return "" if the connection works, else the problem."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.settimeout(timeout_s)
            said = sock.recv(len(token)) if token else b""
    except socket.gaierror:
        return "unknown host"
    except TimeoutError:
        return "no answer"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return error.strerror or type(error).__name__
    return "" if said == token else "something else answers"


def _relayed(door: bytes, token: bytes, timeout_s: float) -> str:
    """Return "" if the listener answers through the relay, else the problem."""
    try:
        with pickle.loads(door).connect(timeout_s=timeout_s) as sock:
            sock.settimeout(timeout_s)
            said = sock.recv(len(token))
    except TimeoutError:
        return "no answer"
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    except Exception as error:  # flowctl's own and redis-py's
        problem = getattr(error, "problem", "") or getattr(error, "strerror", "") or str(error)
        return str(problem).partition("\n")[0] or type(error).__name__
    return "" if said == token else "no answer"


def _load(process: bytes) -> str:
    try:
        pickle.loads(process)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def first_block(path: str) -> str:
    """Return ``=`` and a digest of the first block at ``path``, or why it can't be read."""
    try:
        data = _of_url(path) if "://" in path else _of_disk(path)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    except OSError as error:
        return (error.strerror or str(error)).partition("\n")[0]
    except Exception as error:  # pyarrow's error for an unknown scheme
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "no such file" if data is None else f"={hashlib.sha256(data).hexdigest()[:16]}"


def _of_disk(path: str) -> bytes | None:
    place = os.path.expanduser(path)
    if os.path.isdir(place):
        place = f"{glob.escape(place)}/**"
    if not os.path.lexists(place):
        files = filter(os.path.isfile, glob.iglob(place, recursive=True))
        place = min(files, default="")
    if not place:
        return None
    with open(place, "rb") as file:
        return file.read(_BLOCK_BYTES)


def _of_url(url: str) -> bytes | None:
    fs: Any = importlib.import_module("pyarrow.fs")
    files, path = fs.FileSystem.from_uri(url.replace("s3a://", "s3://", 1))
    folder = path if "*" not in path else path.partition("*")[0].rpartition("/")[0]
    if files.get_file_info(folder).type == fs.FileType.Directory:
        infos = files.get_file_info(fs.FileSelector(folder, recursive=True))
        names = [info.path for info in infos if info.type == fs.FileType.File]
        wanted = path if "*" in path else "*"
        path = min((name for name in names if fnmatch.fnmatch(name, wanted)), default="")
    if not path:
        return None
    with files.open_input_file(path) as file:
        data: bytes = file.read(_BLOCK_BYTES)
        return data


def probe_partition(task: tuple[Any, ...], rows: Iterable[Any]) -> Iterator[str]:
    """Probe as a partition of an RDD."""
    for _ in rows:
        pass
    yield run_probe(*task)


def probe_arrow(task: tuple[Any, ...], batches: Iterable[Any]) -> Iterator[Any]:
    """Probe as a partition of ``mapInArrow``: one row with the column ``seen``."""
    pyarrow: Any = importlib.import_module("pyarrow")
    for _ in batches:
        pass
    yield pyarrow.RecordBatch.from_pydict({"seen": [run_probe(*task)]})


# -- Where executors are asked to connect by ``flowctl doctor --spark``, in place of a spout ---


_SAID_WITHIN_S: Final = 5.0  # to send a few bytes, which fit into a buffer
_TOKEN_BYTES: Final = 16  # enough that nothing else sends them by chance


class Greeter:
    """Sends a token over each connection to ``sock``, which it owns.

    ``place`` names, for people, where executors connect.  ``targets`` are the addresses to which a
    task connects by TCP; with a ``relay``, which the greeter owns too, tasks use ``door``, a
    pickle, instead.
    """

    def __init__(self, sock: socket.socket, host: str, relay: Relay | None = None) -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._relay = relay
        self.token: bytes = secrets.token_bytes(_TOKEN_BYTES)
        if relay is None:
            port = sock.getsockname()[1]
            self.place: str = f"{host}:{port}"
            self.targets: tuple[Target, ...] = (Target(LISTENER, host, port, self.token),)
            self.door: bytes = b""
        else:
            self.place, self.targets = f"through {relay.door.address}", ()
            self.door = pickle.dumps(relay.door)
        threading.Thread(target=self._greet, name="flowctl-greeter", daemon=True).start()

    def _greet(self) -> None:
        while True:
            try:
                guest, _ = self._sock.accept()
            except OSError:  # closed
                return
            with guest:
                guest.settimeout(_SAID_WITHIN_S)
                try:
                    guest.sendall(self.token)
                except OSError:
                    continue

    def close(self) -> None:
        """Stop to listen."""
        # A close alone would not wake the thread.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self._relay is not None:
            self._relay.close()


def greeter_of(listen: ListenSettings, jobs: SparkJobs) -> Greeter:
    """Return a greeter that listens where a spout would with these settings."""
    host = jobs.host() if listener.needs_host(listen) else listen.host or ""
    advertised = listener.advertised_host(listen, host)
    return Greeter(listener.bind(listen, jobs.bind_host() or host), advertised)


def relayed_greeter(store: RelayingStore) -> Greeter:
    """Return a greeter behind the relay of ``store``'s server, as with ``listen.via=redis``.

    Raises :class:`flowctl.errors.InfrastructureError` if the server can't be reached.
    """
    sock = listener.bind(ListenSettings(host=LOOPBACK), LOOPBACK)
    try:
        return Greeter(sock, LOOPBACK, store.open_relay((LOOPBACK, sock.getsockname()[1])))
    except BaseException:
        sock.close()
        raise

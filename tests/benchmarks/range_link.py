"""A driver behind a link of 8 Mbit/s: ``python -m tests.benchmarks range-link [--mb 100]``.

Bolts in two other processes count lines by status, and sleep for each line, so that a run takes
some 11 s on a busy machine too.  They reach the driver through a proxy, a process of its own, that
passes each direction on at the link's speed, or as fast as it can.  By reference the arms come in
turn and the medians are compared; by value there is one run of each: a hundred seconds at 1 MB/s,
if nothing is sent twice.  The clock runs from when the first bolt is there to the last ack.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.ports import Endpoint
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines, TextRanges
from tests.benchmarks.parts import ChildBolts, Stopwatch, machine
from tests.benchmarks.ranges import count_batch, counted_socket_bytes, write_lines

BITS_PER_S: Final = 8_000_000
AT_MOST: Final = 1.2  # times as long by reference as without the limit
_BOLTS: Final = 2
_LINE_S: Final = 40e-6  # 100 MB are half a million lines
# A tuple or a report is in several pieces, so that others come between; 4 ms at 8 Mbit/s.
_PIECE: Final = 4 << 10
# Kernels would hold megabytes for a link that is slow: seconds of it.
_BUFFER: Final = 64 << 10
# What a sleep that was too long has left unused of the link may be used up to this later [s].
_BURST_S: Final = 0.05


def count_slowly(batch: Batch) -> None:
    """What a bolt does with its lines."""
    count_batch(batch)
    time.sleep(_LINE_S * len(batch))


class _Direction:
    """Lets bytes pass one after the other, at ``bytes_per_s`` in all connections (0: at once)."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass on what comes, to the end."""
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE if self._bytes_per_s else _BUFFER):
                self._wait(len(data))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait(self, size: int) -> None:
        if self._bytes_per_s:
            with self._lock:
                now_s = time.monotonic()
                begin_s = max(now_s - _BURST_S, self._free_at_s)
                self._free_at_s = begin_s + size / self._bytes_per_s
                until_s = self._free_at_s
            time.sleep(max(0.0, until_s - now_s))


def be_link() -> None:
    """Be the link that stdin describes: the driver's port, bits a second.  Prints its own port."""
    port, bits_per_s = map(int, sys.stdin.readline().split())
    out, back = _Direction(bits_per_s / 8), _Direction(bits_per_s / 8)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        print(server.getsockname()[1], flush=True)
        while True:
            bolt, _ = server.accept()
            driver = socket.socket()
            driver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            driver.connect(("127.0.0.1", port))
            for end in (bolt, driver):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for direction, source, sink in ((out, driver, bolt), (back, bolt, driver)):
                threading.Thread(target=direction.pump, args=(source, sink), daemon=True).start()


@contextlib.contextmanager
def _link(bits_per_s: int) -> Iterator[Callable[[Endpoint], Endpoint]]:
    """A link; gives what makes an endpoint one that is reached through it."""
    links: list[subprocess.Popen[str]] = []

    def through(endpoint: Endpoint) -> Endpoint:
        command = [sys.executable, "-c", "import tests.benchmarks.range_link as b; b.be_link()"]
        link = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        links.append(link)
        assert link.stdin is not None and link.stdout is not None
        link.stdin.write(f"{endpoint.port} {bits_per_s}\n")
        return msgspec.structs.replace(endpoint, port=int(link.stdout.readline()))

    try:
        yield through
    finally:
        for link in links:
            link.kill()
            link.wait()


def seconds(producer: Any, records: int, bits_per_s: int) -> tuple[float, int]:
    """Run one job; return how long it took, and the bytes over the driver's sockets."""
    watch = Stopwatch()
    ways: list[Endpoint] = []  # one link for all bolts
    with _link(bits_per_s) as through, counted_socket_bytes() as seen:

        def told(endpoint: Endpoint, names: Sequence[str]) -> bytes:
            if not ways:
                ways.append(through(endpoint))
            return pickle.dumps((ways[0], names, count_slowly))

        command = ["-c", "import tests.benchmarks.range_driver as b; b.be_bolts()"]
        report = FlowControlSpout(
            name="link",
            producer=producer,
            bolts=ChildBolts(command, told, count=_BOLTS),
            checkpoint=MemoryCheckpointStore(),
        ).run(view=watch)
        size_bytes = seen()
    assert report.records_acked == records, f"{report.records_acked} of {records}: {report.error}"
    last_s = next(at_s for at_s, _, acked in watch.samples if acked == records)
    return last_s - min(watch.joined_s), size_bytes


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures; 1 if the gate is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks range-link", description=__doc__
    )
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="store_true", help="leave out what is by value")
    options = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="flowctl-link-") as directory:
        place = Path(directory)
        records, size_bytes = write_lines(place, options.mb * 1_000_000)
        paths = f"{place}/*.log"
        took: dict[int, list[float]] = {0: [], BITS_PER_S: []}
        sent = 0
        for _ in range(options.rounds):
            for bits_per_s, times in took.items():
                run_s, sent = seconds(TextRanges(paths), records, bits_per_s)
                times.append(run_s)
                print(f"  by reference, {_named(bits_per_s)}: {run_s:.2f} s", flush=True)
        free_s, limited_s = median(took[0]), median(took[BITS_PER_S])
        ratio = limited_s / free_s
        print(
            f"by reference: {size_bytes / 1e6:.0f} MB in {free_s:.2f} s, {limited_s:.2f} s at"
            f" {BITS_PER_S / 1e6:.0f} Mbit/s: {ratio:.2f} times (gate {AT_MOST});"
            f" {sent / 1e3:.0f} KB over the driver's sockets"
        )
        if not options.only:
            by_value = [seconds(TextLines(paths), records, bits) for bits in took]
            (free_s, _), (limited_s, sent) = by_value
            print(
                f"by value: {free_s:.2f} s, {limited_s:.2f} s at {BITS_PER_S / 1e6:.0f} Mbit/s:"
                f" {limited_s / free_s:.1f} times; {sent / 1e6:.0f} MB over the driver's sockets"
            )
    return int(ratio > AT_MOST)


def _named(bits_per_s: int) -> str:
    return f"{bits_per_s / 1e6:.0f} Mbit/s" if bits_per_s else "no limit"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

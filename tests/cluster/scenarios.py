"""What is done to a job, and what has to hold: a function for each row of the table."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.drive import Cluster, Drive, now_s
from tests.cluster.services import ROOT, until


class Figures(NamedTuple):
    """What a scenario showed; ``problem``: what did not hold, "" if all did."""

    records: int
    rerun: int
    elsewhere_s: float | None = None
    stalled_s: float | None = None
    lost: int = 0
    doubled: int = 0
    problem: str = ""
    note: str = ""


SCENARIOS: dict[str, Callable[[Cluster, random.Random], Figures]] = {}


def scenario(
    function: Callable[[Cluster, random.Random], Figures],
) -> Callable[[Cluster, random.Random], Figures]:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


def figures(drive: Drive, *, exit_code: int = 0, note: str = "") -> Figures:
    """Wait for the driver's end; count the sink record by record."""
    code = drive.wait()
    if code != exit_code:
        return Figures(drive.lines, drive.reruns(), problem=f"exit {code}: {drive.log()[-1500:]}")
    lost, doubled, wrong = drive.sink()
    problems = []
    if lost or doubled or wrong:
        problems.append(f"{lost} lost, {doubled} doubled, {wrong} wrong")
    told = "; ".join(problems)
    return Figures(drive.lines, drive.reruns(), lost=lost, doubled=doubled, problem=told, note=note)


@scenario
def no_fault(cluster: Cluster, draw: random.Random) -> Figures:
    """The job on two workers with TLS and ``spark.authenticate``: no record runs twice."""
    drive = Drive(cluster, "no_fault").start()
    found = figures(drive)
    hosts = {began.host for began in drive.began()}
    if not found.problem and (found.rerun or hosts != {"w1", "w2"}):
        return found._replace(problem=f"{found.rerun} ran again, on {hosts}")
    return found


@scenario
def page_of_deploy(cluster: Cluster, draw: random.Random) -> Figures:
    """The commands of deploy/README.md, to the letter: the doctor, then the job."""
    drive = Drive(cluster, "page_of_deploy", lines=400)
    drive.job_file.rename(drive.job_file.with_name("job.py"))
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```\n(flowctl .*?)^```$", text, re.DOTALL | re.MULTILINE))
    for line in blocks.replace("\\\n", " ").splitlines():
        if code := drive.start_command(shlex.split(line)[1:]).wait():
            return Figures(0, 0, problem=f"{line}: exit code {code}: {drive.log()[-1500:]}")
    return figures(drive)


@scenario
def topology(cluster: Cluster, draw: random.Random) -> Figures:
    """Two stages over two workers."""
    return figures(Drive(cluster, "topology", job="topology_job.py", lines=600).start())


# -- links -----------------------------------------------------------------------------------


@scenario
def worker_cut_for_5_s(cluster: Cluster, draw: random.Random) -> Figures:
    """A worker's cable is out for 5 s: what it held goes to the other worker."""
    with _started(cluster, "worker_cut_for_5_s", draw) as fault:
        cluster.hosts["w1"].cut()
        time.sleep(5)
        cluster.hosts["w1"].mend()
    return fault.figures("w1")


@scenario
def worker_cut_for_60_s(cluster: Cluster, draw: random.Random) -> Figures:
    """The same for 60 s; it works again afterwards."""
    with _started(cluster, "worker_cut_for_60_s", draw, lines=5000) as fault:
        cluster.hosts["w1"].cut()
        time.sleep(60)
        cluster.hosts["w1"].mend()
    return fault.figures("w1")


@scenario
def worker_cut_for_good(cluster: Cluster, draw: random.Random) -> Figures:
    """The same until the run has ended."""
    with _started(cluster, "worker_cut_for_good", draw) as fault:
        cluster.hosts["w1"].cut()
        fault.drive.wait()
        cluster.hosts["w1"].mend()
    return fault.figures("w1")


@scenario
def narrow_driver_link(cluster: Cluster, draw: random.Random) -> Figures:
    """10 MB of records by value through 8 Mbit/s: 10 s of the link, with nothing sent twice."""
    driver = cluster.hosts["d"]
    drive = Drive(cluster, "narrow_driver_link", lines=500, padding=20_000, record_s=0.0)
    driver.narrow(8_000_000)
    try:
        found = figures(drive.start())
    finally:
        driver.narrow(0)
    report = drive.report() if not found.problem else {"elapsed_s": 0.0}
    if not found.problem and found.rerun:
        return found._replace(problem=f"{found.rerun} ran twice")
    return found._replace(note=f"10 MB, {report['elapsed_s']:.0f} s with Spark's start")


@scenario
def worker_is_not_heard(cluster: Cluster, draw: random.Random) -> Figures:
    """What a worker sends to the driver is lost for 20 s; it hears all."""
    worker, driver = cluster.hosts["w1"], cluster.hosts["d"]
    with _started(cluster, "worker_is_not_heard", draw) as fault:
        worker.cut_towards(driver)
        time.sleep(20)
        worker.mend_towards(driver)
    return fault.figures("w1")


@scenario
def worker_does_not_hear(cluster: Cluster, draw: random.Random) -> Figures:
    """What the driver sends to a worker is lost for 20 s; the worker is heard."""
    worker, driver = cluster.hosts["w1"], cluster.hosts["d"]
    with _started(cluster, "worker_does_not_hear", draw) as fault:
        driver.cut_towards(worker)
        time.sleep(20)
        driver.mend_towards(worker)
    return fault.figures("w1")


# -- processes -------------------------------------------------------------------------------


@scenario
def executor_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of an executor: its bolts' tuples go to others, Spark starts another executor."""
    with _started(cluster, "executor_killed", draw) as fault:
        for pid in cluster.spark.executors("w1"):
            os.kill(pid, signal.SIGKILL)
        fault.at_s = now_s()
    return fault.figures("w1")


@scenario
def worker_daemon_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of a Worker, which ends its executors; it comes back after 5 s."""
    with _started(cluster, "worker_daemon_killed", draw) as fault:
        cluster.spark.signal("w1", signal.SIGKILL)
        fault.at_s = now_s()
        time.sleep(5)
        cluster.spark.start("w1")
    found = fault.figures("w1")
    until(lambda: cluster.spark.registered("w1"), "the Worker is back")
    return found


@scenario
def master_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of the Master: bolts run on without it."""
    with _started(cluster, "master_killed", draw) as fault:
        cluster.spark.signal("m", signal.SIGKILL)
    found = fault.figures()
    for name in ("m", "w1", "w2"):
        if name != "m":
            cluster.spark.signal(name, signal.SIGKILL)
        cluster.spark.start(name)
    until(lambda: all(map(cluster.spark.registered, ("w1", "w2"))), "Workers register again")
    return found


@scenario
def valkey_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of the checkpoint store; it comes back with its data after 3 s."""
    with _started(cluster, "valkey_killed", draw) as fault:
        cluster.valkey.kill()
        time.sleep(3)
        cluster.valkey.start()
    return fault.figures()


@scenario
def driver_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of the driver and its JVM; started again, it goes on from its checkpoint."""
    with _started(cluster, "driver_killed", draw) as fault:
        fault.drive.kill()
        fault.drive.start()
    found = fault.figures()
    report = fault.drive.report()
    if not found.problem and not report["resumed_records"]:
        return found._replace(problem="it began from the start")
    return found._replace(note=f"{report['resumed_records']} were done before")


@scenario
def driver_in_waiting(cluster: Cluster, draw: random.Random) -> Figures:
    """Two drivers with --standby on two hosts; the one that works is killed: within 5 s."""
    first = Drive(cluster, "driver_in_waiting", options=["--standby"]).start()
    first.until_done(0.1)
    second = first.twin(cluster.hosts["m"]).start()
    until(lambda: "is run by" in second.log(), "the second driver waits")
    first.kill()
    since_s = now_s()
    until(lambda: "takes over" in second.log(), "the second driver takes over")
    took_s = now_s() - since_s
    found = figures(second)._replace(stalled_s=second.stalled_s(since_s))
    found = found._replace(note=f"took over after {took_s:.1f} s")
    if not found.problem and took_s > 5:
        return found._replace(problem=found.note)
    return found


@scenario
def worker_decommissioned(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGPWR to a Worker (``spark.decommission.enabled``): its bolts end what they hold."""
    with _started(cluster, "worker_decommissioned", draw) as fault:
        cluster.spark.signal("w1", signal.SIGPWR)
    found = fault.figures()
    cluster.spark.signal("w1", signal.SIGKILL)
    cluster.spark.start("w1")
    until(lambda: cluster.spark.registered("w1"), "the Worker is back")
    if not found.problem and found.rerun:
        return found._replace(problem=f"{found.rerun} ran twice")
    return found


# -- clocks, sizes, versions -----------------------------------------------------------------


@scenario
def clocks_differ(cluster: Cluster, draw: random.Random) -> Figures:
    """The wall clock of one worker is ten minutes ahead, the other's ten minutes behind."""
    for name, shift_s in (("w1", 600), ("w2", -600)):
        _site(cluster, name).joinpath("sitecustomize.py").write_text(
            f"import time\n_real = time.time\ntime.time = lambda: _real() + {shift_s}\n"
        )
    try:
        found = figures(Drive(cluster, "clocks_differ").start())
    finally:
        for name in ("w1", "w2"):
            _site(cluster, name).joinpath("sitecustomize.py").unlink()
    if not found.problem and found.rerun:
        return found._replace(problem=f"{found.rerun} ran twice")
    return found


@scenario
def older_flowctl_on_a_worker(cluster: Cluster, draw: random.Random) -> Figures:
    """One worker's wheel speaks an older protocol: one line says so, the others do the work."""
    frames = _site(cluster, "w2") / "flowctl" / "wire" / "frames.py"
    text = frames.read_text(encoding="utf-8")
    frames.write_text(text.replace("PROTOCOL_VERSION: Final = ", "PROTOCOL_VERSION: Final = -"))
    try:
        drive = Drive(cluster, "older_flowctl").start()
        found = figures(drive)
    finally:
        frames.write_text(text)
    told = "Install the same flowctl-spark version on the driver and the workers."
    hosts = {began.host for began in drive.began()}
    if not found.problem and (told not in drive.log() or hosts != {"w1"}):
        return found._replace(problem=f"on {hosts}: {drive.log()[-1500:]}")
    return found


@scenario
def many_bolts(cluster: Cluster, draw: random.Random) -> Figures:
    """200 bolts on two workers (``CLUSTER_BOLTS`` for another number)."""
    bolts = int(os.environ.get("CLUSTER_BOLTS", "200"))
    cluster.spark.write(spark__executor__cores=str(bolts // 2), spark__cores__max=str(bolts))
    try:
        drive = Drive(cluster, "many_bolts", bolts=bolts, lines=60 * bolts, record_s=0.05)
        found = figures(drive.start())
    finally:
        cluster.spark.write()
    worked = len({began.bolt for began in drive.began()})
    if not found.problem and worked < bolts:
        return found._replace(problem=f"only {worked} of {bolts} bolts worked")
    return found._replace(note=f"{bolts} bolts")


# -- flowctl doctor --------------------------------------------------------------------------


@scenario
def doctor_of_a_good_cluster(cluster: Cluster, draw: random.Random) -> Figures:
    """Each executor reaches listener, Redis and sink, and loads the job."""
    return _doctor(
        cluster, "doctor_good", code=0, wanted=["All executors can run bolts", "w1", "w2"]
    )


@scenario
def doctor_of_a_cut_way(cluster: Cluster, draw: random.Random) -> Figures:
    """The listener is advertised at an address that nobody answers, then at an unknown name."""
    nowhere = ("--set", "listen.host=0.0.0.0", "--set", "listen.advertise=10.77.0.99")
    name = ("--set", "listen.host=0.0.0.0", "--set", "listen.advertise=driver.example")
    found = _doctor(
        cluster, "doctor_cut", *nowhere, code=1, wanted=["w1: can't reach the listener"]
    )
    if found.problem:
        return found
    return _doctor(
        cluster, "doctor_name", *name, code=1, wanted=["unknown host", "listen.advertise"]
    )


@scenario
def doctor_of_a_missing_package(cluster: Cluster, draw: random.Random) -> Figures:
    """flowctl is not installed on one worker."""
    package = _site(cluster, "w2") / "flowctl"
    package.rename(package.with_name("gone"))
    try:
        wanted = ["w2: flowctl can't be imported", "pip install flowctl-spark"]
        return _doctor(cluster, "doctor_package", code=1, wanted=wanted)
    finally:
        package.with_name("gone").rename(package)


@scenario
def doctor_of_another_python(cluster: Cluster, draw: random.Random) -> Figures:
    """The Python of one worker says that it is another version."""
    custom = _site(cluster, "w2") / "sitecustomize.py"
    custom.write_text(
        "import sys\nfrom collections import namedtuple\n"
        "names = 'major minor micro releaselevel serial'\n"
        "sys.version_info = namedtuple('version_info', names)(3, 99, 0, 'final', 0)\n"
    )
    try:
        return _doctor(cluster, "doctor_python", code=1, wanted=["w2", "3.99", "PYSPARK_PYTHON"])
    finally:
        custom.unlink()


def _doctor(
    cluster: Cluster, name: str, *options: str, code: int, wanted: Sequence[str]
) -> Figures:
    drive = Drive(cluster, name, lines=10)
    found, said = drive.doctor(*options)
    missing = [text for text in wanted if text not in said]
    problem = f"exit code {found}, without {missing}: {said}" if found != code or missing else ""
    return Figures(0, 0, problem=problem)


# -- parts -----------------------------------------------------------------------------------


class _Fault:
    """A run, and when something was done to it."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.at_s = now_s()

    def figures(self, host: str | None = None) -> Figures:
        """As :func:`figures`, with how long what ``host`` held took to go on elsewhere."""
        found = figures(self.drive)
        found = found._replace(stalled_s=self.drive.stalled_s(self.at_s))
        if host is None:
            return found
        return found._replace(elsewhere_s=self.drive.elsewhere_s(host, self.at_s))


@contextlib.contextmanager
def _started(cluster: Cluster, name: str, draw: random.Random, **options: Any) -> Iterator[_Fault]:
    """Start a run; give it back at a random moment of its first half."""
    drive = Drive(cluster, name, **options).start()
    drive.until_done(draw.uniform(0.15, 0.4))
    until(lambda: drive.first_begun_by("w1"), "a bolt on w1 works")
    yield _Fault(drive)


def _site(cluster: Cluster, name: str) -> Path:
    [site] = cluster.hosts[name].node.glob("lib/python*/site-packages")
    return site

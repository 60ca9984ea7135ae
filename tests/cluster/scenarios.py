"""What is done to links and processes, and what has to hold: a function for each row."""

from __future__ import annotations

import random
import signal
import time

from tests.cluster.drive import Cluster, Drive, now_s
from tests.cluster.parts import (
    ELSEWHERE_MOST_S,
    LINKS,
    Fault,
    Figures,
    cut,
    figures,
    kill_executors,
    long,
    needs,
    scenario,
    started,
)
from tests.cluster.services import until


@scenario
def no_fault(cluster: Cluster, draw: random.Random) -> Figures:
    """The job on two workers with TLS and ``spark.authenticate``: no record runs twice."""
    drive = Drive(cluster, "no_fault").start()
    found = figures(drive)
    hosts = {began.host for began in drive.began()}
    if not found.problem and (found.rerun or hosts != {"w1", "w2"}):
        return found._replace(problem=f"{found.rerun} ran again, on {hosts}, {drive.again()}")
    return found


@scenario
def topology(cluster: Cluster, draw: random.Random) -> Figures:
    """Two stages over two workers."""
    return figures(Drive(cluster, "topology", job="topology_job.py", lines=600).start())


# -- links -----------------------------------------------------------------------------------


@scenario
@needs(LINKS)
def worker_cut_for_5_s(cluster: Cluster, draw: random.Random) -> Figures:
    """A worker's cable is out for 5 s: what it held goes to the other worker."""
    with started(cluster, "worker_cut_for_5_s", draw) as fault:
        fault.at_s = cut(cluster)
        time.sleep(5)
        cluster.hosts["w1"].mend()
    return fault.figures_of_cut("w1")


@scenario
@needs(LINKS)
def worker_cut_in_slow_records(cluster: Cluster, draw: random.Random) -> Figures:
    """The same where a record takes 4 s: silence means little then, but that of its kernel does."""
    name, one = "worker_cut_in_slow_records", ["--set", "tuple.records_max=1"]
    with started(cluster, name, draw, lines=24, record_s=4, options=one) as fault:
        before = fault.drive.log().count("no heartbeat")
        fault.at_s = cut(cluster)
        until(lambda: fault.drive.log().count("no heartbeat") > before, "it is suspect")
        noticed_s = now_s() - fault.at_s
        time.sleep(max(0, 5 - noticed_s))
        cluster.hosts["w1"].mend()
    found = fault.figures("w1")._replace(note=f"suspect after {noticed_s:.1f} s")
    # Not when it goes on: the other bolts are in records of 4 s too.
    is_late = not found.problem and noticed_s > ELSEWHERE_MOST_S
    return found._replace(problem=found.note) if is_late else found


@scenario
@long
@needs(LINKS)
def worker_cut_for_60_s(cluster: Cluster, draw: random.Random) -> Figures:
    """The same for 60 s; it works again afterwards."""
    with started(cluster, "worker_cut_for_60_s", draw, lines=5000) as fault:
        fault.at_s = cut(cluster)
        time.sleep(60)
        cluster.hosts["w1"].mend()
    return fault.figures_of_cut("w1")


@scenario
@needs(LINKS)
def worker_cut_for_good(cluster: Cluster, draw: random.Random) -> Figures:
    """The same until the run has ended."""
    with started(cluster, "worker_cut_for_good", draw) as fault:
        fault.at_s = cut(cluster)
        fault.drive.wait()
        cluster.hosts["w1"].mend()
    return fault.figures_of_cut("w1")


@scenario
@needs(LINKS)
def narrow_driver_link(cluster: Cluster, draw: random.Random) -> Figures:
    """10 MB of records by value through 8 Mbit/s: 10 s of the link, with nothing sent twice."""
    return _narrow(cluster, "narrow_driver_link", "by value")


@scenario
@needs(LINKS)
def narrow_driver_link_by_reference(cluster: Cluster, draw: random.Random) -> Figures:
    """The same by reference (``TextRanges``): the records don't use the link."""
    return _narrow(cluster, "narrow_link_by_reference", "by reference", RANGES="1")


def _narrow(cluster: Cluster, name: str, how: str, **environment: str) -> Figures:
    driver = cluster.hosts["d"]
    drive = Drive(cluster, name, lines=500, padding=20_000, record_s=0.0)
    drive.environment |= environment
    driver.narrow(8_000_000)
    try:
        found = figures(drive.start())
    finally:
        driver.narrow(0)
    if found.problem:
        return found
    began = drive.began()
    if found.rerun:
        return found._replace(problem=f"{found.rerun} ran twice, {drive.again()}")
    return found._replace(note=f"10 MB {how}: {began[-1].at_s - began[0].at_s:.1f} s of work")


@scenario
def ranges_with_an_executor_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """Bolts read the source themselves; SIGKILL of an executor."""
    name = "ranges_with_an_executor_killed"
    with started(cluster, name, draw, environment={"RANGES": "1"}) as fault:
        fault.at_s = kill_executors(cluster)
    return fault.figures("w1")


@scenario
def flow_sink_with_an_executor_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """A DataFrame through ``flow_sink``; SIGKILL of an executor: its rows come again, once."""
    drive = Drive(cluster, "flow_sink", record_s=0.04).start_as("write_rows")
    drive.until_done(draw.uniform(0.15, 0.4))
    fault = Fault(drive)
    fault.at_s = kill_executors(cluster)
    return fault.figures("w1")


@scenario
def apply_with_an_executor_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """A DataFrame through ``apply``; SIGKILL of an executor: each row's result is there once."""
    drive = Drive(cluster, "apply")
    drive.environment["OUT"] = str(cluster.folder / "apply-out")  # as a store that all hosts see
    drive.start_as("apply_rows").until_done(draw.uniform(0.15, 0.4))
    until(lambda: drive.first_begun_by("w1"), "a bolt on w1 works")
    fault = Fault(drive)
    fault.at_s = kill_executors(cluster)
    return fault.figures("w1")


@scenario
@needs(LINKS)
def worker_is_not_heard(cluster: Cluster, draw: random.Random) -> Figures:
    """What a worker sends to the driver is lost for 10 s; it hears all."""
    worker, driver = cluster.hosts["w1"], cluster.hosts["d"]
    with started(cluster, "worker_is_not_heard", draw) as fault:
        worker.cut_towards(driver)
        time.sleep(10)
        worker.mend_towards(driver)
    return fault.figures("w1")


@scenario
@needs(LINKS)
def worker_does_not_hear(cluster: Cluster, draw: random.Random) -> Figures:
    """What the driver sends to a worker is lost for 10 s; the worker is heard."""
    worker, driver = cluster.hosts["w1"], cluster.hosts["d"]
    with started(cluster, "worker_does_not_hear", draw) as fault:
        driver.cut_towards(worker)
        time.sleep(10)
        driver.mend_towards(worker)
    return fault.figures("w1")


# -- processes -------------------------------------------------------------------------------


@scenario
def executor_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of an executor: its bolts' tuples go to others, Spark starts another executor."""
    with started(cluster, "executor_killed", draw) as fault:
        fault.at_s = kill_executors(cluster)
    return fault.figures("w1")


@scenario
def worker_daemon_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of a Worker, which ends its executors; it comes back after 5 s."""
    with started(cluster, "worker_daemon_killed", draw) as fault:
        fault.at_s = now_s()
        cluster.spark.signal("w1", signal.SIGKILL)
        time.sleep(5)
        cluster.spark.start("w1")
    found = fault.figures("w1")
    until(lambda: cluster.spark.registered("w1"), "the Worker is back")
    return found


@scenario
def master_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of the Master: bolts run on without it."""
    with started(cluster, "master_killed", draw) as fault:
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
    with started(cluster, "valkey_killed", draw) as fault:
        cluster.valkey.kill()
        time.sleep(3)
        cluster.valkey.start()
    return fault.figures()


@scenario
def driver_killed(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGKILL of the driver and its JVM; started again, it goes on from its checkpoint."""
    with started(cluster, "driver_killed", draw) as fault:
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
    until(lambda: "standby: waiting while" in second.log(), "the second driver waits")
    first.kill()
    since_s = now_s()
    until(lambda: "taking over" in second.log(), "the second driver takes over")
    took_s = now_s() - since_s
    found = figures(second)._replace(stalled_s=second.stalled_s(since_s))
    found = found._replace(note=f"took over after {took_s:.1f} s")
    if not found.problem and took_s > 5:
        return found._replace(problem=found.note)
    return found


@scenario
def worker_decommissioned(cluster: Cluster, draw: random.Random) -> Figures:
    """SIGPWR to a Worker (``spark.decommission.enabled``): its bolts leave, and run elsewhere."""
    with started(cluster, "worker_decommissioned", draw, lines=3000) as fault:
        cluster.spark.signal("w1", signal.SIGPWR)
        until(lambda: not cluster.spark.executors("w1"), "w1's executor ends by itself", 60)
        left_s = now_s() - fault.at_s
        cluster.spark.signal("w1", signal.SIGKILL)  # its host goes
    found = fault.figures()
    cluster.spark.start("w1")
    until(lambda: cluster.spark.registered("w1"), "the Worker is back")
    # Before it, a bolt's slow start on a loaded machine may have cost some.
    again = fault.drive.reruns(fault.at_s)
    if not found.problem and again:
        return found._replace(problem=f"{again} ran twice, {fault.drive.again()}")
    return found._replace(note=f"its executor ended after {left_s:.1f} s, then 0 ran twice")

"""Hosts that are set up oddly, and what the doctor says of them: a function for each row."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from tests.cluster.drive import Cluster, Drive
from tests.cluster.parts import (
    LINKS,
    NAMES,
    PYTHONS,
    Figures,
    figures,
    kill_executors,
    long,
    needs,
    scenario,
    site_of,
    started,
)
from tests.cluster.pythons import another_python, how

# -- clocks, sizes, versions -----------------------------------------------------------------


@scenario
@needs(PYTHONS)
def clocks_differ(cluster: Cluster, draw: random.Random) -> Figures:
    """The wall clock of one worker is ten minutes ahead, the other's ten minutes behind."""
    for name, shift_s in (("w1", 600), ("w2", -600)):
        site_of(cluster, name).joinpath("sitecustomize.py").write_text(
            f"import time\n_real = time.time\ntime.time = lambda: _real() + {shift_s}\n"
        )
    drive = Drive(cluster, "clocks_differ")
    try:
        found = figures(drive.start())
    finally:
        for name in ("w1", "w2"):
            site_of(cluster, name).joinpath("sitecustomize.py").unlink()
    if not found.problem and found.rerun:
        return found._replace(problem=f"{found.rerun} ran twice, {drive.again()}")
    return found


@scenario
@needs(PYTHONS)
def older_flowctl_on_a_worker(cluster: Cluster, draw: random.Random) -> Figures:
    """One worker's wheel speaks an older protocol: one line says so, the others do the work."""
    frames = site_of(cluster, "w2") / "flowctl" / "wire" / "frames.py"
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
@needs(PYTHONS)
def another_python_on_the_workers(cluster: Cluster, draw: random.Random) -> Figures:
    """All workers have another Python than the driver: the run ends with one line that says so."""
    drive = Drive(cluster, "another_python", lines=20)
    with another_python(cluster, "w1", "w2") as version:
        code = drive.start().wait()
    told = [line for line in drive.log().splitlines() if line.startswith("flowctl: ")]
    wanted = f"have Python {version}, but the driver has"
    is_clear = code == 1 and len(told) == 1 and wanted in told[0]
    problem = "" if is_clear else f"exit {code}: {drive.log()[-1500:]}"
    return Figures(0, 0, problem=problem, note=how(version))


@scenario
def many_bolts(cluster: Cluster, draw: random.Random) -> Figures:
    """40 bolts on two workers (``CLUSTER_BOLTS`` for another number)."""
    bolts = int(os.environ.get("CLUSTER_BOLTS", "40"))
    cluster.spark.write(spark__executor__cores=str(bolts // 2), spark__cores__max=str(bolts))
    try:
        drive = Drive(cluster, "many_bolts", bolts=bolts, lines=60 * bolts, record_s=0.05)
        # Otherwise the first ones have done all before the last ones have a slot.
        drive.environment["HOLD"] = str(bolts)
        found = figures(drive.start())
    finally:
        cluster.spark.write()
    first: dict[str, float] = {}
    for began in drive.began():
        first.setdefault(began.bolt, began.at_s)
    if not found.problem and len(first) < bolts:
        return found._replace(problem=f"only {len(first)} of {bolts} bolts worked")
    if found.problem:
        return found
    span_s, expired = max(first.values()) - min(first.values()), drive.report()["tuples_expired"]
    return found._replace(
        note=f"{bolts} bolts, all at work {span_s:.0f} s after the first; {expired} tuples expired"
    )


@scenario
@long
def dynamic_allocation(cluster: Cluster, draw: random.Random) -> Figures:
    """0 to 3 executors and back, with ``SparkBolts(count="auto")``: a bolt for each slot."""
    cluster.spark.write(
        spark__cores__max="6",
        spark__scheduler__minRegisteredResourcesRatio="0",
        spark__dynamicAllocation__enabled="true",
        spark__dynamicAllocation__shuffleTracking__enabled="true",
        spark__dynamicAllocation__maxExecutors="3",
        spark__dynamicAllocation__executorIdleTimeout="2s",
    )
    try:
        drive = Drive(cluster, "dynamic_allocation", bolts="auto", lines=6000)
        found = figures(drive.start_as("follow_executors"))
    finally:
        cluster.spark.write()
    if found.problem:
        return found
    worked, executors = len({began.bolt for began in drive.began()}), drive.told()
    if executors != [0, 3, 0] or worked != 6 or found.rerun:
        told = f"executors {executors}, {worked} bolts, {found.rerun} again"
        return found._replace(problem=f"{told}, {drive.again()}")
    return found._replace(note="executors 0, 3, 0; 6 bolts")


@scenario
def other_jobs_under_fair(cluster: Cluster, draw: random.Random) -> Figures:
    """Jobs of the same application beside the run (FAIR, a slot more than bolts): both go on."""
    cluster.spark.write(spark__scheduler__mode="FAIR", spark__cores__max="6")
    try:
        drive = Drive(cluster, "other_jobs_under_fair").start_as("beside_jobs")
        found = figures(drive)
    finally:
        cluster.spark.write()
    if found.problem:
        return found
    if found.rerun or not drive.told():
        told = f"{found.rerun} ran twice, {drive.told()} jobs beside it"
        return found._replace(problem=f"{told}, {drive.again()}")
    return found._replace(note=f"{drive.told()} other jobs meanwhile")


@scenario
def speculation_and_exclusion(cluster: Cluster, draw: random.Random) -> Figures:
    """``spark.speculation`` and ``spark.excludeOnFailure.enabled``; an executor is killed."""
    cluster.spark.write(
        spark__speculation="true", spark__excludeOnFailure__enabled="true", spark__cores__max="6"
    )
    try:
        with started(cluster, "speculation_and_exclusion", draw) as fault:
            fault.at_s = kill_executors(cluster)
        return fault.figures("w1")
    finally:
        cluster.spark.write()


# -- flowctl doctor --------------------------------------------------------------------------


@scenario
@needs(NAMES)
def doctor_of_a_good_cluster(cluster: Cluster, draw: random.Random) -> Figures:
    """Each executor reaches listener, Redis and sink, and loads the job."""
    return _doctor(
        cluster, "doctor_good", code=0, wanted=["All executors can run bolts", "w1", "w2"]
    )


@scenario
@long
@needs(LINKS)
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
@needs(PYTHONS)
def doctor_of_two_odd_workers(cluster: Cluster, draw: random.Random) -> Figures:
    """flowctl is not installed on one worker; the Python of the other is another version."""
    package = site_of(cluster, "w2") / "flowctl"
    package.rename(package.with_name("gone"))
    try:
        with another_python(cluster, "w1") as version:
            missing = ["w2: flowctl can't be imported", "pip install flowctl-spark"]
            python = ["w1", version, "PYSPARK_PYTHON"]
            found = _doctor(cluster, "doctor_odd", code=1, wanted=[*missing, *python])
            return found._replace(note=how(version))
    finally:
        package.with_name("gone").rename(package)


def _doctor(
    cluster: Cluster, name: str, *options: str, code: int, wanted: Sequence[str]
) -> Figures:
    drive = Drive(cluster, name, lines=10)
    found, said = drive.doctor(*options)
    missing = [text for text in wanted if text not in said]
    problem = f"exit code {found}, without {missing}: {said}" if found != code or missing else ""
    return Figures(0, 0, problem=problem)

"""What deploy/ says, done: its page to the letter, and the driver of its compose.yaml."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shlex

from tests.cluster.drive import Cluster, Drive
from tests.cluster.parts import Figures, figures, scenario
from tests.cluster.services import ROOT, composed, python_of, until

_NUMBERS = 4000
_ROWS = """
import json, sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    print(json.dumps(connection.execute("SELECT n, square FROM squares").fetchall()))
"""
_SCRAPE = (
    "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=2).read().decode())"
)


@scenario
def page_of_deploy(cluster: Cluster, draw: random.Random) -> Figures:
    """The commands of deploy/README.md, to the letter: the doctor, then the job."""
    drive = Drive(cluster, "page_of_deploy", lines=400)
    drive.job_file.rename(drive.job_file.with_name("job.py"))
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```\n(flowctl .*?)^```$", text, re.DOTALL | re.MULTILINE))
    blocks = cluster.hosts["d"].named(blocks.replace("\\\n", " "))
    for line in blocks.splitlines():
        if code := drive.start_command(shlex.split(line)[1:]).wait():
            return Figures(0, 0, problem=f"{line}: exit code {code}: {drive.log()[-1500:]}")
    return figures(drive)


@scenario
def driver_of_compose(cluster: Cluster, draw: random.Random) -> Figures:
    """The command of compose.yaml's driver, with its job; another host scrapes it meanwhile."""
    # Master, Workers and Valkey run as compose.yaml says in all rows.
    driver, other = cluster.hosts["d"], cluster.hosts["m"]
    drive = Drive(cluster, "driver_of_compose", lines=10)
    drive.environment["NUMBERS"] = str(_NUMBERS)
    job = driver.node / "squares.py"
    job.write_text((ROOT / "deploy" / "job" / "job.py").read_text(encoding="utf-8"))
    words = [
        driver.named(word).replace("/job/job.py", str(job.name)) for word in composed("driver")
    ]
    drive.start_command(words[1:])
    url = driver.named("http://driver:9108/metrics")  # as prometheus.yml has it
    scraped: list[str] = []

    def is_scraped() -> bool:
        if drive.is_over():
            raise RuntimeError(f"it ended before it was scraped: {drive.log()[-1500:]}")
        with contextlib.suppress(RuntimeError):  # it does not listen yet
            scraped.append(other.run(python_of(other), "-c", _SCRAPE, url))
        return "flowctl_bolt_up{" in "".join(scraped)

    until(is_scraped, "Prometheus' target has bolts")
    if code := drive.wait():
        return Figures(_NUMBERS, 0, problem=f"exit code {code}: {drive.log()[-1500:]}")
    told = driver.run(python_of(driver), "-c", _ROWS, cluster.postgres.url)
    rows = [tuple(row) for row in json.loads(told)]
    lost = len({(n, n**2) for n in range(1, _NUMBERS + 1)} - set(rows))
    doubled = len(rows) - len(set(rows))
    problem = f"{lost} lost, {doubled} doubled" if lost or len(rows) != _NUMBERS else ""
    return Figures(_NUMBERS, 0, lost=lost, doubled=doubled, problem=problem)

"""The one-liners from an installed wheel: ``python -m tests.cluster.one_liners --python PYTHON``.

PYTHON is that of a virtual environment with the wheel, Spark and pyarrow.  ``flow_sink``,
``flow_batch`` and ``format("flowctl")``, as sink, stream sink and source, run on local Spark and on
a standalone cluster: a master and two workers on loopback.  A declarative pipeline from that source
into that sink runs on local Spark: ``spark-pipelines run``, which takes no master and needs
``pyspark[pipelines]``.  Neither the programs nor the workers see this repository.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# What a user has installed on the driver and on all workers.
_JOBS = """
import os, pathlib, uuid

def write_rows(batch):
    place = pathlib.Path(os.environ["OUT"], uuid.uuid4().hex)
    place.write_text("".join(f"{record.value.id}\\n" for record in batch))

def numbers(batch):
    return [(int(record.value),) for record in batch]
"""
_PROGRAM = """
import os, pathlib, sys
from pyspark_flowctl import flow_batch, flow_sink
from pyspark_flowctl.java import ensure_java
ensure_java()
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
import flowctl, shop_jobs

place, master = pathlib.Path(sys.argv[1]), sys.argv[2]
assert "site-packages" in flowctl.__file__, flowctl.__file__
out = pathlib.Path(os.environ["OUT"])
spark = (SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m").config("spark.cores.max", 4)
    .config("spark.executorEnv.OUT", str(out)).getOrCreate())

def check(name, count):
    found = sorted(int(line) for path in out.iterdir() for line in path.read_text().split())
    for path in out.iterdir():
        path.unlink()
    assert found == list(range(count)), (name, len(found))
    print(f"{name}: {count} rows, each once", flush=True)

df = spark.range(0, 2000, 1, 8)
df.foreachPartition(flow_sink(shop_jobs.write_rows, target="t"))
check("foreachPartition(flow_sink)", 2000)
df.write.format("flowctl").option("process", "shop_jobs:write_rows").option("target", "t").mode(
    "append").save()
check('write.format("flowctl")', 2000)

(place / "in.log").write_text("".join(f"{n}\\n" for n in range(1000)))

def source():
    return (spark.readStream.format("flowctl").schema("id long")
        .option("producer", "flowctl_files:TextLines")
        .option("producer.paths", str(place / "in.log"))
        .option("process", "shop_jobs:numbers").option("start_rows", 500).load())

def end(written, name):
    written = written.option("checkpointLocation", str(place / name)).trigger(availableNow=True)
    for attempt in range(10):
        try:
            return written.start().awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a Python process ten seconds to start: too little on a busy machine.
            if "connect back" not in str(error) or attempt == 9:
                raise

end(source().writeStream.foreachBatch(flow_batch(shop_jobs.write_rows, target="t")), "one")
check("readStream, foreachBatch(flow_batch)", 1000)
end(source().writeStream.format("flowctl").option("process", "shop_jobs:write_rows")
    .option("target", "t"), "two")
check('writeStream.format("flowctl")', 1000)
spark.stop()
"""
_PIPELINE = """
import os
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink("api", "flowctl", {"process": "shop_jobs:write_rows", "target": "api"})

@dp.append_flow(target="api")
def orders():
    return (SparkSession.active().readStream.format("flowctl").schema("id long")
        .option("producer", "flowctl_files:TextLines")
        .option("producer.paths", os.environ["LINES"])
        .option("process", "shop_jobs:numbers").option("start_rows", "500").load())
"""
_PIPELINE_ROWS = 1000


def main() -> int:
    """Exit 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--master", action="append", choices=["local", "cluster"])
    given = parser.parse_args()
    python = given.python.absolute()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "jobs").mkdir()
        (place / "jobs" / "shop_jobs.py").write_text(_JOBS)
        (place / "program.py").write_text(_PROGRAM)
        environment = _environment(place, python)
        for kind in given.master or ["local", "cluster"]:
            print(f"== {kind}", flush=True)
            master = "local[4]"
            if kind == "cluster":
                master = stack.enter_context(_cluster(python, place, environment))
            (place / kind / "out").mkdir(parents=True)
            code = subprocess.run(
                [str(python), "-W", "ignore", str(place / "program.py"), str(place / kind), master],
                env={**environment, "OUT": str(place / kind / "out")},
                cwd=place,
                check=False,
            ).returncode
            if code or (kind == "local" and not _pipeline_runs(python, place, environment)):
                return 1
    return 0


def _pipeline_runs(python: Path, place: Path, environment: dict[str, str]) -> bool:
    """Say whether ``spark-pipelines run`` writes each line of a file once."""
    project, out, lines = place / "pipeline", place / "pipeline-out", place / "lines.log"
    (project / "flows").mkdir(parents=True)
    out.mkdir()
    lines.write_text("".join(f"{number}\n" for number in range(_PIPELINE_ROWS)))
    (project / "flows" / "shop.py").write_text(_PIPELINE)
    (project / "spark-pipeline.yml").write_text(
        f"name: shop\nstorage: {(place / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: flows/**\n"
    )
    settings = ["spark.ui.enabled=false", "spark.driver.host=127.0.0.1"]
    with (place / "pipeline.log").open("wb") as log:
        code = subprocess.run(
            [
                str(python.parent / "spark-pipelines"), "run",
                *[word for setting in settings for word in ("--conf", setting)],
            ],
            env={**environment, "OUT": str(out), "LINES": str(lines)},
            cwd=project, stdout=log, stderr=log, check=False,
        ).returncode  # fmt: skip
    found = sorted(int(line) for path in out.iterdir() for line in path.read_text().split())
    if code or found != list(range(_PIPELINE_ROWS)):
        print(f"spark-pipelines: exit {code}, {len(found)} rows", flush=True)
        print((place / "pipeline.log").read_text(errors="replace")[-3000:], flush=True)
        return False
    print(f"spark-pipelines run: {len(found)} rows, each once", flush=True)
    return True


def _java(python: Path) -> dict[str, str]:
    """Name the Java that the environment of `python` brings along; a user has it in JAVA_HOME."""
    program = (
        "import os; from pyspark_flowctl.java import ensure_java; ensure_java();"
        "print(os.environ.get('JAVA_HOME', ''))"
    )
    home = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {"JAVA_HOME": home} if home else {}


def _environment(place: Path, python: Path) -> dict[str, str]:
    """Without this repository, and with the user's module where an installed one would be."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "JAVA_HOME") if name in os.environ}
    ours = {"PYTHONPATH": str(place / "jobs"), "PYSPARK_PYTHON": str(python)}
    return {**kept, **_java(python), **ours}


@contextmanager
def _cluster(python: Path, place: Path, environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of a master that has two workers."""
    home = subprocess.run(
        [python, "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    port = _free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    commands = [[f"{package}.master.Master", "--host", "127.0.0.1", "-p", str(port)]]
    for number in (1, 2):
        room = ["-c", "2", "-m", "1g", "-d", str(place / f"work{number}")]
        commands.append([f"{package}.worker.Worker", "--host", "127.0.0.1", *room, master])
    servers = []
    for number, command in enumerate(commands):
        with (place / f"server{number}.log").open("wb") as log:
            servers.append(
                subprocess.Popen(
                    [f"{home}/bin/spark-class", *command],
                    env={**environment, "SPARK_HOME": home}, cwd=place,
                    stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
    try:
        while (place / "server0.log").read_text().count("Registering worker") < len(servers) - 1:
            assert all(server.poll() is None for server in servers), "see the logs"
            time.sleep(0.2)
        yield master
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())

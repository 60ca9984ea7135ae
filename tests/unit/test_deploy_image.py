"""What the image of deploy/ runs: on Kubernetes Spark itself asks for scripts of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IMAGE = Path(__file__).resolve().parents[2] / "deploy" / "image"
# What Spark sets in an executor's pod (BasicExecutorFeatureStep).
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@flowctl-driver:7079",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "flowctl-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_0": "-XX:+UseSerialGC",
    "SPARK_JAVA_OPT_1": "-Dspark.driver.port=7079 ",
}


@pytest.fixture
def started(tmp_path: Path) -> Any:
    """Run the entrypoint with a tini that shows what it gets."""
    (tmp_path / "tini").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("tini", "python"):
        (tmp_path / name).chmod(0o755)

    def run(*words: str, **environment: str) -> list[str]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        command = ["bash", str(IMAGE / "entrypoint.sh"), *words]
        done = subprocess.run(
            command, env={"PATH": path, **environment}, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    return run


def test_a_command_is_run_as_it_is(started: Any) -> None:
    assert started("flowctl", "run", "a b.py") == ["--", "flowctl", "run", "a b.py"]


def test_executor_starts_sparks_executor_with_what_spark_says_of_it(started: Any) -> None:
    pyspark = pytest.importorskip("pyspark")
    dashes, java, first, second, *rest = started("executor", **EXECUTOR)
    assert (dashes, java) == ("--", "java")
    assert (first, second) == ("-XX:+UseSerialGC", "-Dspark.driver.port=7079 "), "each one word"
    assert rest[:3] == ["-Xms1024m", "-Xmx1024m", "-cp"]
    assert f"{Path(pyspark.__file__).parent}/jars/*" in rest[3].split(":")
    assert rest[3].startswith("/opt/spark/conf:")
    assert rest[4] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(rest[5::2], rest[6::2], strict=True)) == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.3",
        "--podName": "flowctl-exec-3",
        "--resourceProfileId": "0",
    }


def test_an_executor_without_what_spark_sets_does_not_start(started: Any) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        started("executor")
    assert "SPARK_EXECUTOR_MEMORY" in raised.value.stderr


def test_before_a_pod_is_stopped_its_executor_is_decommissioned_and_waited_for() -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGPWR, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as executor:
        assert executor.stdout is not None
        assert executor.stdout.readline() == b"ready\n"
        hook = subprocess.Popen(["bash", str(IMAGE / "decom.sh"), str(executor.pid)])
        assert executor.wait() == 7
        assert hook.wait() == 0


def test_the_scripts_are_where_spark_and_the_image_look_for_them() -> None:
    text = (IMAGE.parent / "Dockerfile").read_text("utf-8")
    [copied] = re.findall(r"^COPY --chmod=755 (.+) /opt/$", text, re.MULTILINE)
    assert copied.split() == ["deploy/image/entrypoint.sh", "deploy/image/decom.sh"]
    assert 'ENTRYPOINT ["/opt/entrypoint.sh"]' in text
    assert " tini " in text

"""What follows when a bolt's Spark job has ended."""

from __future__ import annotations

import pytest

from flowctl.core.retry import RESTART, RESTART_KILLED, WELL_AFTER_S
from flowctl.ports import Endpoint
from pyspark_flowctl.outcome import (
    GiveUp,
    Outcome,
    Restart,
    RestartPolicy,
    describe,
    from_spark,
    remedy_for,
)

ENDPOINT = Endpoint(host="10.0.0.1", port=4711, key=b"secret", job="test")


def policy() -> RestartPolicy:
    return RestartPolicy(ENDPOINT)


def test_a_bolt_that_heard_end_is_done() -> None:
    assert policy().after(Outcome(kind="ended")) == GiveUp()


@pytest.mark.parametrize(
    ("kind", "longest_s"), [("lost", RESTART.most_s), ("crashed", RESTART_KILLED.most_s)]
)
def test_crashes_never_give_up_and_back_off_to_a_bound(kind: str, longest_s: float) -> None:
    decide = policy().after
    waits = []
    for _ in range(10_000):
        step = decide(Outcome(kind=kind))  # type: ignore[arg-type]
        assert isinstance(step, Restart)
        waits.append(step.after_s)
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert max(waits) == waits[-1] == longest_s


def test_a_long_life_resets_the_back_off() -> None:
    decide = policy().after
    for _ in range(5):
        decide(Outcome(kind="crashed"))
    step = decide(Outcome(kind="crashed", lived_s=WELL_AFTER_S))
    assert isinstance(step, Restart)
    assert step.after_s == RESTART_KILLED.first_s


@pytest.mark.parametrize(("kind", "tries"), [("load", 2), ("error", 3), ("spark", 5), ("gone", 1)])
def test_what_does_not_pass_gives_up(kind: str, tries: int) -> None:
    decide = policy().after
    decide(Outcome(kind="crashed"))  # other kinds don't count
    steps = [decide(Outcome(kind=kind, detail="x")) for _ in range(tries)]  # type: ignore[arg-type]
    assert all(isinstance(step, Restart) for step in steps[:-1])
    assert isinstance(steps[-1], GiveUp)
    assert steps[-1].remedy


def test_slow_connection_errors_give_up_too() -> None:
    decide = policy().after
    steps = [decide(Outcome(kind="error", error="OSError", lived_s=60.0)) for _ in range(3)]
    assert isinstance(steps[-1], GiveUp)


@pytest.mark.parametrize("error", ["AuthenticationError", "WireError"])
def test_a_stranger_at_the_port_gives_up_at_once(error: str) -> None:
    step = policy().after(Outcome(kind="error", error=error, detail="no", remedy="do this"))
    assert isinstance(step, GiveUp)
    assert "secret" not in step.remedy


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("flowctl.bolts", "pip install flowctl-spark"),
        ("numpy.linalg", "'numpy'"),
        ("pyarrow", "[spark]"),
    ],
)
def test_a_missing_module_is_named_in_the_remedy(module: str, said: str) -> None:
    decide = policy().after
    decide(Outcome(kind="load", error="ModuleNotFoundError", module=module))
    step = decide(Outcome(kind="load", error="ModuleNotFoundError", module=module))
    assert isinstance(step, GiveUp)
    assert said in step.remedy


CRASH = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 2.0 (TID 3) (host executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner.applyOrElse(PythonRunner.scala:1136)
"""
MISMATCH = """An error occurred while calling z:org.apache.spark.api.python.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 1, in main
    check_python_version(infile)
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has \
different version: 3.9 than that in driver: 3.11.

\tat org.apache.spark.api.python.BasePythonRunner.applyOrElse(PythonRunner.scala:1136)
"""


def test_a_crash_is_told_from_other_failures() -> None:
    assert from_spark(Exception(CRASH), gone=False, lived_s=1.0).kind == "crashed"
    assert from_spark(Exception(CRASH), gone=True, lived_s=1.0).kind == "gone"


def test_an_error_of_python_is_quoted_without_java() -> None:
    text = MISMATCH.replace("Python in worker has different version", "Something else")
    outcome = from_spark(Exception(text), gone=False, lived_s=1.0)
    assert (outcome.kind, outcome.error) == ("spark", "PySparkRuntimeError")
    assert outcome.detail.startswith("[PYTHON_VERSION_MISMATCH] Something else")
    assert "\tat " not in outcome.detail


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'pyarrow.lib'",
        "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= "
        "18.0.0 must be installed; however, it was not found.",
    ],
)
def test_what_spark_misses_on_a_worker_is_named(line: str) -> None:
    outcome = from_spark(Exception(f"Job aborted\n{line}\n\tat org.x(Y)"), gone=False, lived_s=1.0)
    assert (outcome.module or "").partition(".")[0] == "pyarrow"
    assert "pip install 'flowctl-spark[spark]'" in remedy_for(outcome, ENDPOINT)


NO_DAEMON = """An error occurred while calling z:org.apache.spark.api.python.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (w2 executor 1): \
org.apache.spark.SparkException:\x20
Error from python worker:
  /opt/bin/python: Error while finding module specification for 'pyspark_flowctl.daemon' \
(ModuleNotFoundError: No module named 'pyspark_flowctl')
PYTHONPATH was:
  /opt/pyspark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from \
pyspark_flowctl.daemon's stdout.
\tat org.apache.spark.errors.SparkCoreErrors$.eofExceptionWhileReadPortNumberError(X.scala:55)
"""


def test_a_worker_without_flowctl_is_named_where_its_daemon_is_ours() -> None:
    outcome = from_spark(Exception(NO_DAEMON), gone=False, lived_s=1.0)
    assert outcome.kind == "load", "another worker may have it"
    assert "no flowctl on w2" in outcome.detail
    assert "pip install flowctl-spark" in remedy_for(outcome, ENDPOINT)


def test_any_other_failure_is_cut_short() -> None:
    text = "An error occurred while calling x.\n: java.lang.Oops: no\n" + "\tat a.b.C(D:1)\n" * 100
    outcome = from_spark(Exception(text), gone=False, lived_s=1.0)
    assert outcome.detail == "java.lang.Oops: no"


def test_another_python_on_a_worker_is_one_clear_error() -> None:
    error = (
        "Lost task 0.3 in stage 0.0 (TID 3) (w2 executor 1): org.apache.spark.api.python."
        "PythonException: Traceback (most recent call last):\n"
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in"
        " worker has different version: 3.13 than that in driver: 3.11, PySpark cannot run with"
        " different minor versions.\n\n\tat org.apache.spark"
    )
    outcome = from_spark(error, gone=False, lived_s=0.1)
    assert describe(outcome) == "workers on w2 have Python 3.13, but the driver has 3.11."
    assert "PYSPARK_PYTHON" in remedy_for(outcome, ENDPOINT)
    policy = RestartPolicy(ENDPOINT)
    assert isinstance(policy.after(outcome), Restart), "another worker may have the right one"
    assert isinstance(policy.after(outcome), GiveUp)


def test_a_worker_without_that_python_is_named() -> None:
    error = (
        "(TID 3) (w2 executor 1): java.io.IOException: Cannot run program"
        ' "/opt/py/bin/python": error=2, No such file or directory'
    )
    outcome = from_spark(error, gone=False, lived_s=0.1)
    assert describe(outcome).startswith("there is no /opt/py/bin/python on w2")

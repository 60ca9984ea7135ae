"""``process`` is pickled so that workers can load it, or refused with the reason."""

from __future__ import annotations

import functools
import importlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from flowctl.errors import ConfigError
from flowctl.ports import Endpoint
from flowctl_storm.worker.tasks import StageCode
from flowctl_storm.worker.watch import WatchPlan
from pyspark_flowctl import SparkBolts
from pyspark_flowctl.shipping import ship
from tests.range_parts import NumberReader

LOCK = threading.Lock()

JOB = """
import json
FACTOR = 3
{extra}
def scale(value):
    return FACTOR * value
def load(batch):
    {use}
    return scale(json.loads(batch))
class Loader:
    def __call__(self, batch):
        return load(batch)
    def method(self, batch):
        return load(batch)
"""


def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **parts: str) -> Any:
    """Import a job's file as ``flowctl run`` does."""
    name = f"job_{abs(hash(str(tmp_path)))}"
    text = JOB.format(extra=parts.get("extra", ""), use=parts.get("use", "pass"))
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def run_on_a_worker(shipped: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Load it where the job's file can't be imported."""
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)('14'))"
    return subprocess.run(
        [sys.executable, "-c", program], input=shipped, capture_output=True, cwd=folder, check=False
    )


@pytest.mark.parametrize("form", ["function", "instance", "method", "partial"])
def test_what_the_jobs_file_defines_needs_no_file_on_the_worker(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    module = job(elsewhere, monkeypatch)
    loader = module.Loader()
    process = {
        "function": module.load,
        "instance": loader,
        "method": loader.method,
        "partial": functools.partial(module.load),
    }[form]
    done = run_on_a_worker(ship(process), tmp_path)
    assert done.stdout == b"42\n", done.stderr
    assert module.__name__ not in cloudpickle.list_registry_pickle_by_value()


@pytest.mark.req("S63")
@pytest.mark.parametrize("form", ["instance", "class"])
def test_hooks_travel_with_a_bolts_code_though_they_are_from_another_file(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my_hooks.py").write_text(
        "from flowctl.instrumentation.hooks import TaskHook\n"
        "class Mine(TaskHook):\n"
        "    def bolt_ack(self, info):\n"
        "        print('acked', info.message.value)\n"
    )
    (elsewhere / "my_code.py").write_text("def work(given, out):\n    print('worked')\n")
    monkeypatch.syspath_prepend(elsewhere)
    hook = importlib.import_module("my_hooks").Mine
    work = importlib.import_module("my_code").work
    plan = WatchPlan(hooks=[hook() if form == "instance" else hook])
    shipped = ship(StageCode(work, ["s"], plan))
    assert not {"my_hooks", "my_code"} & set(cloudpickle.list_registry_pickle_by_value())
    program = (
        "import pickle, sys; from flowctl.bolts.batch import Batch;"
        "from flowctl.core.records import Record, Span;"
        "run = pickle.load(sys.stdin.buffer).for_connection('w.1');"
        "run(Batch([Record(256, 'x')], Span('j', 'w', 256, 256, 1), bolt='w.1', attempt=1))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=shipped,
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{root}:{root / 'adapters'}"},
        check=False,
    )
    assert done.stdout == b"worked\nacked x\n", done.stderr
    for name in ("my_hooks", "my_code"):
        monkeypatch.delitem(sys.modules, name)


def test_a_module_that_cannot_travel_is_sent_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"extra": "import threading; LOCK = threading.Lock()", "use": "LOCK.locked()"}
    module = job(tmp_path, monkeypatch, **parts)
    shipped = ship(module.load)
    assert module.__name__.encode() in shipped
    assert run_on_a_worker(shipped, tmp_path).stdout == b"42\n"  # its folder is on the path there


def test_installed_modules_are_sent_by_name() -> None:
    import json

    assert len(ship(json.loads)) < 100


def test_the_offender_is_named() -> None:
    lock = LOCK

    def uses_local(batch: Any) -> None:
        with lock:
            pass

    class Holder:
        def __init__(self) -> None:
            self.connection = LOCK

        def __call__(self, batch: Any) -> None:
            pass

    cases = {
        "variable 'lock' (lock)": uses_local,
        "attribute 'connection' (lock)": Holder(),
        "argument 'way' (lock)": functools.partial(lambda batch, way: None, way=LOCK),
        "argument 0 (lock)": functools.partial(lambda way, batch: None, LOCK),
        "variable 'LOCK' (lock)": functools.partial(lambda batch: LOCK),
    }
    for label, process in cases.items():
        with pytest.raises(ConfigError) as caught:
            ship(process)
        assert caught.value.field == "process"
        assert label in str(caught.value)
        assert "on the worker" in caught.value.remedy


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_offender_is_named_however_deep_it_is(is_wrapped: bool) -> None:
    class Client:
        def __init__(self) -> None:
            self.lock = LOCK

    client = Client()

    def ask(batch: Any) -> Any:
        return client.lock

    def work(batch: Any) -> Any:
        return ask(batch)

    class Carries:  # as `apply` does with its function
        known_as = "fn"

        def __init__(self) -> None:
            self.__wrapped__ = work

    with pytest.raises(ConfigError) as caught:
        ship(Carries() if is_wrapped else work)
    path = "variable 'ask' (function): variable 'client' (Client): attribute 'lock' (lock)"
    assert f"work can't be sent to the workers because of {path}: " in caught.value.problem
    assert caught.value.field == ("fn" if is_wrapped else "process")


def test_arguments_are_checked() -> None:
    for arguments, field in (
        ({"process": 3}, "process"),
        ({"process": print, "spark": object(), "master": "local"}, "master"),
    ):
        with pytest.raises(ConfigError) as caught:
            SparkBolts(**arguments)
        assert caught.value.field == field


@pytest.mark.parametrize(("field", "value"), [("count", 0), ("slots", -1), ("count", True)])
def test_counts_are_checked_before_anything_starts(field: str, value: Any) -> None:
    from flowctl.ports import Endpoint

    with pytest.raises(ConfigError) as caught:
        SparkBolts(print, **{field: value})
    assert caught.value.field == field
    bolts = SparkBolts(print)
    setattr(bolts, field, value)
    with pytest.raises(ConfigError) as caught:
        bolts.start(Endpoint(host="127.0.0.1", port=1, key=b"k", job="j"), print)
    assert caught.value.field == field


def test_an_endpoint_survives_the_journey() -> None:
    import pickle

    from flowctl.ports import Endpoint

    endpoint = Endpoint(host="h", port=1, key=b"k", job="j", certificate_pem="pem")
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


READER = """
class Reader:
    def __init__(self, step):
        self.step = step
    def open(self, partition, start, stop, identity):
        yield from ()
    def __call__(self, text):
        return self.step * int(text)
"""


def test_a_reader_of_the_jobs_file_travels_once_beside_process(tmp_path, monkeypatch):
    reader = job(tmp_path, monkeypatch, extra=READER).Reader(3)
    endpoint = Endpoint(host="h", port=1, key=b"k", job="j", reader=reader)
    tasks = SparkBolts(len, 2).tasks(endpoint)
    assert pickle.loads(tasks[0].endpoint).reader is None
    assert tasks[0].reader is tasks[1].reader
    (tmp_path / "elsewhere").mkdir()
    ran = run_on_a_worker(tasks[0].reader, tmp_path / "elsewhere")
    assert ran.stdout == b"42\n", ran.stderr


def test_a_reader_that_cannot_travel_is_named():
    class Reader(NumberReader):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(ConfigError, match=r"producer: .*'closed'|producer: .*'lock'"):
        SparkBolts(len, 1).tasks(Endpoint("h", 1, b"k", "j", reader=Reader()))

"""An import that fails inside ``process`` ends the run: no record is to blame."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.bolts.outcomes import fail_of
from flowctl.core.messages import Emission, Fail
from flowctl.core.records import Record
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.plan import Plan, Where
from flowctl.errors import MissingExtraError, UnrunnableError
from flowctl.failure.job_fault import for_missing_module
from flowctl_storm.worker.tasks import Batched
from tests.delivery_parts import Clock, PatientPacer
from tests.stage_code_parts import run

_PICKLED = b"cno_such_module\nThing\n."  # what refers to no_such_module.Thing


def imports(*_: Any) -> None:
    import no_such_module  # noqa: F401


def imports_from(*_: Any) -> None:
    from no_such_module.deep import thing  # noqa: F401


def uses_an_extra(*_: Any) -> None:
    raise MissingExtraError("HttpSink", "httpx", "http")


def loads_a_record(*_: Any) -> None:
    pickle.loads(_PICKLED)


def imports_what_a_record_names(*_: Any) -> None:
    importlib.import_module("no_such_module")


def names_nothing(*_: Any) -> None:
    raise NameError("name 'x' is not defined")


def raised_by(process: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as caught:
        process()
    return caught.value


def report(process: Callable[[], None]) -> Fail:
    frame = Emission(7, "b1", 1, "p", [Record(1, "x")], None, 0)
    return fail_of(frame, raised_by(process), 0, lambda error: True)


@pytest.mark.parametrize("process", [imports, imports_from])
def test_an_import_statement_ends_the_run_and_names_module_and_line(process: Any) -> None:
    said = report(process)
    assert said.is_fatal and not said.is_refused
    assert "'no_such_module'" in said.error and "test_missing_module.py" in said.error


def test_a_missing_extra_ends_the_run_with_its_remedy() -> None:
    said = report(uses_an_extra)
    assert said.is_fatal
    assert "pip install 'flowctl-spark[http]'" in said.error


@pytest.mark.parametrize("process", [loads_a_record, imports_what_a_record_names, names_nothing])
def test_what_a_record_may_have_caused_is_a_fault_of_that_record(process: Any) -> None:
    assert for_missing_module(raised_by(process)) is None


def test_a_partition_of_rows_ends_at_the_first_call() -> None:
    clock = Clock()
    plan = Plan(process=imports)
    made = Delivery(
        plan, Where("job", "7"), PatientPacer(clock), clock=clock, sleep=clock.sleep, chance=None
    )
    with pytest.raises(UnrunnableError, match="no_such_module"):
        made.run(["a", "b"])
    assert made.tally.calls == 1


@pytest.mark.parametrize("process", [imports, Batched(imports)])
def test_a_bolt_of_a_topology_ends_it_too(process: Any) -> None:
    with pytest.raises(UnrunnableError, match="no_such_module"):
        run(process, 1, 2)

"""As much of Airflow as an operator, a trigger and a DAG of ours use: the real one brings 150
packages (``make test-airflow``)."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Fails(Exception):
    """AirflowException: another try follows."""


class FailsForGood(Fails):
    """AirflowFailException."""


class Deferred(Exception):
    """What ``defer`` raises; ``trigger`` waits, then ``method_name`` is called."""

    def __init__(self, trigger: Any, method_name: str) -> None:
        self.trigger = trigger
        self.method_name = method_name


class Event(SimpleNamespace):
    """TriggerEvent."""

    def __init__(self, payload: Any) -> None:
        super().__init__(payload=payload)


class StandIn:
    """``made``: the operators of the DAGs that were imported; ``names``: our own package."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.names: Any = None


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """While the block runs, Airflow is what this module makes of it."""
    found = StandIn()

    class Operator:
        log = logging.getLogger("airflow.task")

        def __init__(self, *, task_id: str, **_: Any) -> None:
            self.task_id = task_id
            found.made.append(self)

        def defer(self, *, trigger: Any, method_name: str) -> None:
            raise Deferred(trigger, method_name)

    class Dag:
        def __init__(self, *_: Any, **options: Any) -> None:
            self.options = options

        def __enter__(self) -> Dag:
            return self

        def __exit__(self, *_: object) -> None: ...

    class Trigger:
        pass

    modules: dict[str, dict[str, Any]] = {
        "airflow": {},
        "airflow.sdk": {"DAG": Dag, "BaseOperator": Operator},
        "airflow.sdk.exceptions": {"AirflowException": Fails, "AirflowFailException": FailsForGood},
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseTrigger": Trigger, "TriggerEvent": Event},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, values in modules.items():
            module = ModuleType(name)
            vars(module).update(values)
            patch.setitem(sys.modules, name, module)
        for name in ("flowctl_airflow", "flowctl_airflow.operator"):
            patch.delitem(sys.modules, name, raising=False)
        found.names = importlib.import_module("flowctl_airflow")
        yield found
    for name in ("flowctl_airflow", "flowctl_airflow.operator"):
        sys.modules.pop(name, None)


def context_of(run_id: str) -> dict[str, Any]:
    """What a task is told of itself."""
    return {"ti": SimpleNamespace(dag_id="d", task_id="t", run_id=run_id, map_index=-1)}

"""What users import from ``flowctl``: the names are a promise, and what they need is among them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import flowctl
from flowctl import config, errors

PUBLIC = set(flowctl.__all__)
WRITTEN_BY_USERS = (
    flowctl.Bolts,
    flowctl.CheckpointStore,
    flowctl.DeadLetter,
    flowctl.FlowProducer,
    flowctl.RangeProducer,
    flowctl.SpoutListener,
)
OF_PYTHON = {"Any", "Callable", "Iterable", "Literal", "Mapping", "None", "Path", "Sequence"}
# Its meaning is its values, which the docstring of ``run`` lists.
SPELT_OUT = {"ViewChoice"}


def errors_of_flowctl() -> list[str]:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return sorted({kind.__name__ for kind in kinds if issubclass(kind, errors.FlowctlError)})


def test_the_names_of_the_parts_of_a_job() -> None:
    assert {
        "Batch", "BoltNotice", "Bolts", "CheckpointStore", "DeadLetter", "FlowControlSpout",
        "FlowProducer", "Interrupted", "LocalBolts", "ManualSpout", "RangeProducer", "Record",
        "Records", "Report",
        "RetryLater", "Settings", "SourceChunk", "SpoutListener", "View",
    } <= PUBLIC  # fmt: skip
    assert flowctl.__all__ == sorted(flowctl.__all__), "a list that is sorted is easy to compare"


@pytest.mark.parametrize("name", errors_of_flowctl())
def test_every_error_can_be_caught_by_a_public_name(name: str) -> None:
    assert name in PUBLIC


@pytest.mark.parametrize("section", sorted({name.partition(".")[0] for name in config.kinds()}))
def test_every_section_of_the_settings_can_be_made_by_a_public_name(section: str) -> None:
    if section != "lab":
        kind = type(getattr(config.Settings(), section))
        assert getattr(flowctl, kind.__name__) is kind


@pytest.mark.parametrize("kind", [*WRITTEN_BY_USERS, flowctl.FlowControlSpout, flowctl.ManualSpout])
def test_what_its_methods_take_and_return_is_public(kind: type[Any]) -> None:
    named: set[str] = set()
    for name, value in vars(kind).items():
        if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
            for annotation in value.__annotations__.values():
                named |= set(re.findall(r"\b[A-Z]\w+", str(annotation)))
    assert named - OF_PYTHON - SPELT_OUT <= PUBLIC
    assert named, "nothing was looked at"


def test_a_run_can_be_caught_by_public_names() -> None:
    assert issubclass(flowctl.Interrupted, KeyboardInterrupt)
    assert flowctl.FlowctlError("x").report is None

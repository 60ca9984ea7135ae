"""Too few file descriptors are named, before the run and in it."""

from __future__ import annotations

import errno
import re
import resource

import pytest

from flowctl.bolts.limits import check_descriptors
from flowctl.bolts.local import LocalBolts
from flowctl.errors import InfrastructureError, InternalError
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.threads import death_of


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))


@pytest.mark.usefixtures("few")
def test_more_bolts_than_descriptors_are_refused_before_anything_runs() -> None:
    calls: list[object] = []
    spout = FlowControlSpout(name="j", producer=[1], bolts=LocalBolts(calls.append, count=200))
    with pytest.raises(
        InfrastructureError, match=r"may open only 256 files .* need about [4-9]\d\d"
    ) as caught:
        spout.run(view="off")
    assert re.search("ulimit -n (512|1024)", caught.value.remedy)
    assert not calls


@pytest.mark.usefixtures("few")
def test_a_limit_that_is_enough_is_not_mentioned() -> None:
    check_descriptors(24)


def test_no_limit_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    check_descriptors(1_000_000)


def test_a_thread_that_could_open_nothing_more_is_no_defect_of_ours() -> None:
    death = death_of("flowctl-sender", OSError(errno.EMFILE, "Too many open files"))
    assert isinstance(death, InfrastructureError) and "ulimit -n" in death.remedy
    assert isinstance(death_of("x", OSError(errno.EPIPE, "gone")), InternalError)

"""Where the driver listens and what bolts connect to: two things, as in Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_flowctl.bolts import SparkBolts
from pyspark_flowctl.jobs import ClassicJobs, _address_towards


def jobs(master: str = "spark://127.0.0.1:7077", **settings: str) -> ClassicJobs:
    conf = {f"spark.driver.{name}": value for name, value in settings.items()}
    context = SimpleNamespace(master=master, _jsc=SimpleNamespace(getConf=lambda: conf))
    return ClassicJobs(SimpleNamespace(sparkContext=context))


def test_a_local_master_needs_no_address() -> None:
    local = jobs("local[4]", host="driver.example", bindAddress="10.0.0.7")
    assert local.host() == "127.0.0.1"


@pytest.mark.parametrize("host", ["driver.example", "10.0.0.7", "fd00::7"])
def test_bolts_connect_to_the_host_that_spark_advertises(host: str) -> None:
    assert jobs(host=host).host() == host


def test_spark_writes_ipv6_in_brackets_and_sockets_do_not() -> None:
    found = jobs(host="[fd00::7]", bindAddress="[::]")
    assert (found.host(), found.bind_host()) == ("fd00::7", "::")


@pytest.mark.parametrize("nobodys", ["0.0.0.0", "::", "[::]", ""])
def test_an_unspecified_host_is_replaced_by_the_address_towards_the_master(nobodys: str) -> None:
    assert jobs(host=nobodys).host() == "127.0.0.1"


def test_a_master_that_can_t_be_resolved_leaves_the_name_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "driver")
    assert _address_towards("no such host") == "driver"


@pytest.mark.parametrize(
    ("master", "bind", "wanted"),
    [
        ("spark://127.0.0.1:7077", "0.0.0.0", "0.0.0.0"),
        ("spark://127.0.0.1:7077", "", ""),
        ("local[4]", "10.0.0.7", ""),
    ],
)
def test_bolts_say_where_to_listen(
    master: str, bind: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bolts = SparkBolts(print, spark=object())
    found: Any = SimpleNamespace(find=lambda: jobs(master, bindAddress=bind))
    monkeypatch.setattr(bolts, "_session", lambda: found)
    assert bolts.bind_host() == wanted


def test_before_a_session_is_open_nothing_is_started_to_find_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bolts = SparkBolts(print)
    none: Any = SimpleNamespace(find=lambda: None)
    monkeypatch.setattr(bolts, "_session", lambda: none)
    assert bolts.bind_host() == ""

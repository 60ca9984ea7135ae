"""What is said of slots: who has none, how many bolts run, and whose other work has to wait."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.ports import BoltNotice
from flowctl.runtime.bolt_watch import Notices
from pyspark_flowctl.bolts import crowding
from pyspark_flowctl.session import _settings


def jobs(slots: int | None, busy: int | None = 0) -> Any:
    return SimpleNamespace(slots=lambda: slots, busy_slots=lambda: busy, master="local[4]")


@pytest.mark.parametrize(
    ("slots", "busy", "count", "wanted"),
    [
        (4, 0, 3, None),
        (None, 0, 100, None),  # a cluster's can't be counted
        (4, 0, 4, "4 bolts take all 4 slots of the Spark session on local[4]: its other"),
        (4, 2, 6, "6 bolts take all 4 slots of the Spark session on local[4], 2 of which"),
        (4, None, 4, "4 bolts take all 4 slots"),
    ],
)
def test_bolts_that_leave_a_users_session_no_slot(
    slots: int | None, busy: int | None, count: int, wanted: str | None
) -> None:
    notice = crowding(jobs(slots, busy), count)
    assert (notice is None) == (wanted is None)
    if notice is not None and wanted is not None:
        assert notice.detail.startswith(wanted)
        assert notice.remedy.startswith("Set count to 3 or less (for apply: bolts=3)")


def told(bolts: dict[str, object], *notices: BoltNotice) -> list[str]:
    said: list[str] = []
    control: Any = SimpleNamespace(core=SimpleNamespace(bolts=bolts))
    bolts: Any = SimpleNamespace(count=6)
    subject = Notices(control, bolts=bolts, say=said.append, on_notice=None)
    for notice in notices:
        subject.put(notice)
    subject.take()
    return said


def test_as_many_bolts_run_as_have_come() -> None:
    """Where tasks of others hold all slots, none does: Spark can't tell, the driver can."""
    waiting = BoltNotice("b5", "waiting", "no free Spark slot on local[4]", "")
    assert told({}, waiting) == ["no free Spark slot on local[4]: 0 of 6 bolts run"]
    four = dict.fromkeys(["b1", "b2", "b3", "b4"])
    assert told(four, waiting) == ["no free Spark slot on local[4]: 4 of 6 bolts run"]


def test_a_warning_is_shown_and_ends_nothing() -> None:
    assert told({}, BoltNotice("", "warning", "It is so.", "Do that.")) == ["It is so. Do that."]


def test_a_session_of_our_own_keeps_what_spark_defaults_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    ours = _settings(None, 3)
    assert ours["spark.ui.enabled"] == "false" and "SerialGC" in str(ours)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# spark.driver.host x\n"
        "spark.driver.extraJavaOptions   -Dcompany=yes -XX:+UseG1GC\n"
        "  spark.ui.enabled=true\n\nspark.master spark://elsewhere:7077\n"
    )
    kept = _settings(None, 3)
    gone = {"spark.driver.extraJavaOptions", "spark.ui.enabled"}
    assert kept == {name: value for name, value in ours.items() if name not in gone}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "empty"))
    assert _settings(None, 3) == ours, "SPARK_CONF_DIR stands before SPARK_HOME"

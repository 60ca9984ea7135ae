"""A write by ``flow_sink`` is seen from elsewhere, through the Redis that its tasks share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowctl.cli.watching import top
from flowctl.errors import ConfigError
from flowctl.instrumentation.shown_parts import shown_of
from flowctl.instrumentation.task_part import unpack
from flowctl_redis.embedded import EmbeddedServer
from flowctl_redis.targets import RedisTargets
from pyspark_flowctl import flow_sink


def reject_one(batch: Any) -> None:
    batch.reject(batch[0], "not a number")


def test_what_a_partition_did_is_there_for_who_looks(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "redis")
    url = server.start()
    try:
        letters = str(tmp_path / "letters")
        sink = flow_sink(
            reject_one, target="svc", name="adhoc", redis=url, rows_max=100, dead_letter=letters
        )
        sink(iter(range(250)))
        shown = shown_of(unpack(RedisTargets(url).parts("adhoc")), time.time())
        assert shown is not None
        assert shown.snapshot is not None
        assert shown.snapshot.records_acked == 250
        assert shown.snapshot.records_rejected >= 3
        with pytest.raises(ConfigError, match="Known: adhoc"):
            CliRunner().invoke(top, ["orders", "--redis", url], catch_exceptions=False)
    finally:
        server.stop()

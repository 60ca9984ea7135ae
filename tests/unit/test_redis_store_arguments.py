"""RedisCheckpointStore refuses what it can't use by name, and says what to do about it."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest

from flowctl.errors import CheckpointCorruptError, ConfigError
from flowctl_redis import RedisCheckpointStore


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "5"])
def test_a_time_out_that_can_not_be_waited_for_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        RedisCheckpointStore("redis://host", timeout_s=timeout_s)
    assert refused.value.field == "timeout_s" and refused.value.remedy


def test_what_is_no_text_is_no_url() -> None:
    with pytest.raises(ConfigError, match="of type int") as refused:
        RedisCheckpointStore(5)  # type: ignore[arg-type]
    assert refused.value.field == "redis"


@pytest.mark.parametrize("broken", ["another version", "another kind"])
def test_the_command_that_clears_a_job_can_be_pasted_whatever_its_name(broken: str) -> None:
    client = fakeredis.FakeRedis()
    if broken == "another version":
        client.hset("flowctl:{two words; ls}", "schema", "9")
    else:
        client.set("flowctl:{two words; ls}", "x")
    with pytest.raises(CheckpointCorruptError, match="clear 'two words; ls'`"):
        RedisCheckpointStore(client=client).load("two words; ls")

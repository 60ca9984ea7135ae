"""RedisCheckpointStore refuses what it can't use when it is made, by name."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.errors import ConfigError
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

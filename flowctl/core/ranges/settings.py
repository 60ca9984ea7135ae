"""What is different in the settings of a core of ranges."""

from __future__ import annotations

import msgspec

from flowctl.core.settings import CoreSettings, HedgeSettings
from flowctl.errors import ConfigError


def for_ranges(settings: CoreSettings) -> CoreSettings:
    """Return ``settings`` as ranges need them; raise :class:`ConfigError` where they can't."""
    if not settings.guarantee.processing.commits_acked:
        raise ConfigError(
            "guarantee.mode",
            f"ranges can't be processed {settings.guarantee.mode.replace('_', ' ')} yet: a range is"
            " saved as it is done, not before it is begun.",
            remedy="Use at_least_once, or a source by value such as TextLines or KafkaTopics.",
        )
    # What is late is split, not run twice.  A sink's times are told by parts of ranges, which its
    # guard does not know.
    dispatch = msgspec.structs.replace(settings.dispatch, sink_guard=False)
    hedge = HedgeSettings(enabled=False)
    return msgspec.structs.replace(settings, dispatch=dispatch, hedge=hedge)

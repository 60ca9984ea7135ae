"""The items that go in and out of a bolt's link."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from flowctl.core.messages import Ack, Emission, Fail
from flowctl.prepared import prepare
from flowctl.wire.frames import ToBolt, Welcome

Outcome: TypeAlias = Ack | Fail
prepare(Welcome, ToBolt)


class Work(msgspec.Struct, frozen=True, gc=False):
    """A tuple whose processing may begin.  ``idle_total_s`` is as in :class:`Ack`."""

    frame: Emission
    received_at_s: float
    idle_total_s: float

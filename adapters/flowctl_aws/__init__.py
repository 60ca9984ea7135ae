"""Sinks of AWS: ``DynamoSink`` and ``KinesisSink``.  Needs ``flowctl-spark[aws]``."""

from __future__ import annotations

from flowctl_aws.sinks import DynamoSink, KinesisSink

__all__ = ["DynamoSink", "KinesisSink"]

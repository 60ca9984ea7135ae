"""Services where bolts can't work, recognised before anything waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from flowctl.errors import ConfigError

_DATABRICKS = "Databricks serverless, or Databricks Connect from another network"
# The ends of host names of Spark Connect services whose executors reach nothing of the client's.
_HOSTS = {
    ".databricks.com": _DATABRICKS,
    ".azuredatabricks.net": _DATABRICKS,
    ".snowflakecomputing.com": "Snowpark Connect",
    ".googleapis.com": "Dataproc Serverless",
}


def unsupported(master: str | None, environment: Mapping[str, str]) -> str:
    """Return the name of the service that ``master`` or the environment belongs to, "" if none.

    Where executors run in a network of the service's own they can't connect to the driver, and
    bolts would wait until ``start.bolts_timeout_s`` for nothing.
    """
    # A serverless notebook's runtime is called client.<version>, a cluster's <version>.
    is_serverless = environment.get("IS_SERVERLESS", "").upper() == "TRUE"
    if is_serverless or environment.get("DATABRICKS_RUNTIME_VERSION", "").startswith("client."):
        return "Databricks serverless"
    if environment.get("DATABRICKS_SERVERLESS_COMPUTE_ID"):
        return "Databricks serverless"
    if master is None or not master.startswith("sc://"):
        return ""
    host = urlsplit(master).hostname or ""
    return next((name for end, name in _HOSTS.items() if host.endswith(end)), "")


def refuse_unsupported(master: str | None, environment: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` where bolts can't work."""
    if name := unsupported(master, environment):
        raise ConfigError(
            "master",
            f"{name} is not supported: its executors can't connect to this driver.",
            remedy="Use a classic cluster whose driver runs flowctl (deploy/README.md), or"
            " LocalBolts.",
        )

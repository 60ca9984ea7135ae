"""Where a run's bolts connect to: the spout's listener, by itself or behind a relay."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from flowctl.config import ListenSettings, Settings
from flowctl.errors import ConfigError
from flowctl.ports import BindingBolts, CheckpointStore, Endpoint, FlowProducer, names_of
from flowctl.range_ports import RangeProducer
from flowctl.relay_ports import Relay, RelayingStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl.runtime.run_plan import RunPlan
from flowctl.wire.auth import KEY_BYTES
from flowctl.wire.listener import needs_host
from flowctl.wire.server import RunTerms, SpoutServer

_LOOPBACK: Final = "127.0.0.1"


def check_via(
    settings: Settings, producer: FlowProducer | RangeProducer, store: CheckpointStore
) -> None:
    """Raise :class:`ConfigError` if bolts can't connect in the way that ``listen.via`` names."""
    if settings.listen.via == "tcp":
        return
    if not isinstance(producer, RangeProducer):
        raise ConfigError(
            "listen.via",
            "redis is for jobs whose bolts read the source themselves: records by value would all"
            " go through Redis.",
            remedy="Use a source of ranges, such as TextRanges, or apply; or listen.via=tcp, with"
            " a port of the driver that executors can reach.",
        )
    if _relaying(store) is None:
        raise ConfigError(
            "listen.via",
            "redis needs a checkpoint in Redis, through which bolts then connect.",
            remedy='Give checkpoint="redis://host:6379/0" (or --redis URL), a server that both the'
            " driver and the executors reach.",
        )


class Listening:
    """The listener of one run, and the relay in front of it, if there is one.

    Raises as :class:`SpoutServer` and :meth:`RelayingStore.open_relay` do.  For one thread.
    """

    def __init__(self, plan: RunPlan, settings: Settings, epoch: int) -> None:
        listen, bolts = settings.listen, plan.bolts
        terms = RunTerms(
            plan.job,
            epoch,
            secrets.token_bytes(KEY_BYTES),
            heartbeat_s=settings.timeout.heartbeat_s,
            wait=settings.wait,
            expected=frozenset(names_of(bolts)),
        )
        self._relay: Relay | None = None
        if listen.via == "redis":
            self.server: SpoutServer = SpoutServer(_behind_relay(listen), terms, host=_LOOPBACK)
            self.endpoint: Endpoint = self._relayed(plan)
            return
        # Asking the bolts for an address may start Spark: do it only if the settings leave it open.
        host = bolts.listen_host() if needs_host(listen) else listen.host or ""
        bind_host = bolts.bind_host() if isinstance(bolts, BindingBolts) else ""
        self.server = SpoutServer(listen, terms, host=host, bind_host=bind_host)
        self.endpoint = self.server.endpoint

    def _relayed(self, plan: RunPlan) -> Endpoint:
        endpoint = self.server.endpoint
        try:
            store = _relaying(plan.store)
            assert store is not None  # see check_via
            relay = self._relay = store.open_relay((endpoint.host, endpoint.port))
        except BaseException:
            self.server.close()
            raise
        self.server.carry(lambda: relay.heard_until_s)
        return msgspec.structs.replace(endpoint, relay=relay.door)

    @property
    def is_deaf(self) -> bool:
        """Whether messages of bolts can't arrive, because the relay is away."""
        return self._relay is not None and self._relay.is_away

    def close(self) -> None:
        """Close all connections; what was sent to bolts before still reaches them."""
        self.server.close()
        if self._relay is not None:
            self._relay.close()


def _relaying(store: CheckpointStore) -> RelayingStore | None:
    inner = store.inner if isinstance(store, ReceiptStore) else store
    return inner if isinstance(inner, RelayingStore) else None


def _behind_relay(listen: ListenSettings) -> ListenSettings:
    """Return settings for a relay: only the relay connects, from this machine; TLS is for the way
    through Redis.
    """
    tls = "off" if listen.tls == "off" else "on"
    return msgspec.structs.replace(
        listen, host=_LOOPBACK, advertise=None, port=0, port_range=1, tls=tls
    )

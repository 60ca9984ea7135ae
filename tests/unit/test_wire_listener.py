from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from flowctl.config import ListenSettings
from flowctl.errors import ConfigError
from flowctl.wire import listener, tls


def test_the_hosts_that_bolts_are_told():
    def told(**settings: object) -> str:
        return listener.advertised_host(ListenSettings(**settings), "driver")  # type: ignore[arg-type]

    assert told() == "driver"
    assert told(host="10.0.0.7") == "10.0.0.7"
    assert told(host="0.0.0.0") == "driver"
    assert told(host="::") == "driver"
    assert told(host="0.0.0.0", advertise="spout.example") == "spout.example"


@pytest.mark.parametrize("any_address", ["0.0.0.0", "::", "0", "0x0", "::0"])
def test_an_address_that_means_all_is_never_told_to_bolts(any_address: str) -> None:
    settings = ListenSettings(host=any_address)
    assert listener.needs_host(settings)
    assert listener.advertised_host(settings, "driver") == "driver"
    for nothing_better in (any_address, ""):
        with pytest.raises(ConfigError) as caught:
            listener.advertised_host(settings, nothing_better)
        assert caught.value.field == "listen.advertise"
        assert "listen.advertise" in caught.value.remedy
    with pytest.raises(ConfigError, match="all addresses"):
        listener.advertised_host(ListenSettings(advertise=any_address), "driver")


def test_the_bolts_side_is_asked_only_where_the_settings_leave_it_open() -> None:
    assert listener.needs_host(ListenSettings())
    assert listener.needs_host(ListenSettings(advertise="spout.example"))  # where to listen
    assert not listener.needs_host(ListenSettings(host="10.0.0.7"))
    assert not listener.needs_host(ListenSettings(host="0.0.0.0", advertise="spout.example"))


@pytest.mark.parametrize(
    ("setting", "host", "wanted"),
    [
        ("auto", "127.0.0.1", False),
        ("auto", "localhost", False),
        ("auto", "0.0.0.0", True),
        ("on", "127.0.0.1", True),
        ("off", "0.0.0.0", False),
    ],
)
def test_tls_is_on_by_itself_exactly_off_loopback(setting, host, wanted):
    settings = ListenSettings(tls=setting)
    with listener.bind(settings, host) as sock:
        assert listener.wants_tls(settings, sock) is wanted


def test_a_taken_port_is_named():
    with listener.bind(ListenSettings(), "127.0.0.1") as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            listener.bind(ListenSettings(port=port), "127.0.0.1")
    assert caught.value.field == "listen.port"
    assert str(port) in str(caught.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_a_host_that_is_not_ours_is_named(host):
    with pytest.raises(ConfigError) as caught:
        listener.bind(ListenSettings(host=host), "127.0.0.1")
    assert caught.value.field == "listen.host"


def test_tls_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"flowctl-spark\[tls\]") as caught:
        tls.spout_context()
    assert caught.value.field == "listen.tls"
    assert "listen.tls=off" in caught.value.remedy


def two_free_ports() -> int:
    """A port that is free, and whose next is free."""
    while True:
        with listener.bind(ListenSettings(), "127.0.0.1") as first:
            port: int = first.getsockname()[1]
            try:
                listener.bind(ListenSettings(port=port + 1), "127.0.0.1").close()
            except ConfigError:
                continue
            return port


def test_the_first_free_port_of_the_range_is_taken() -> None:
    port = two_free_ports()
    settings = ListenSettings(port=port, port_range=2)
    with listener.bind(settings, "127.0.0.1") as first:
        assert first.getsockname()[1] == port
        with listener.bind(settings, "127.0.0.1") as second:
            assert second.getsockname()[1] == port + 1
            with pytest.raises(ConfigError, match=f"{port}-{port + 1}") as caught:
                listener.bind(settings, "127.0.0.1")
    assert caught.value.field == "listen.port"
    assert "listen.port_range" in caught.value.remedy


def test_a_range_ends_with_the_last_port_there_is() -> None:
    settings = ListenSettings(port=65535, port_range=10)
    with listener.bind(settings, "127.0.0.1") as sock:
        assert sock.getsockname()[1] == 65535


def test_a_fixed_port_on_a_host_that_is_not_ours_blames_the_host() -> None:
    with pytest.raises(ConfigError) as caught:
        listener.bind(ListenSettings(host="192.0.2.1", port=7077), "127.0.0.1")
    assert caught.value.field == "listen.host"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_ipv6_is_listened_on_and_connected_to() -> None:
    with listener.bind(ListenSettings(), "::1") as sock:
        assert not listener.wants_tls(ListenSettings(), sock), "loopback"
        with socket.create_connection(("::1", sock.getsockname()[1])):
            pass
    with listener.bind(ListenSettings(host="::"), "::1") as every:
        assert listener.wants_tls(ListenSettings(), every)

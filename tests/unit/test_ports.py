"""Ports are checked before anything starts, and the message names port, setting and remedy."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.ports import check_ports, port_is_free
from openclaw_core.config import ConfigError, RunConfig, load_config
from tests.ports import free_ports


@pytest.fixture
def config() -> RunConfig:
    return load_config("local-cpu", free_ports())


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with socket.create_server((request.param, 0)) as server:
        yield server


def test_free_ports_pass(config: RunConfig):
    check_ports(config.ports, type(config.ports).model_fields)


def test_a_listener_on_any_address_takes_the_port(listener: socket.socket):
    assert not port_is_free(listener.getsockname()[1])


def test_a_taken_port_is_named_with_its_setting_its_holder_and_the_remedy(listener: socket.socket):
    port = listener.getsockname()[1]
    config = load_config("local-cpu", {**free_ports(), "ports.gateway": port})
    with pytest.raises(ClusterError) as error:
        check_ports(config.ports, ["control", "gateway"])
    message = str(error.value)
    assert message.startswith(f"port {port} (ports.gateway) is taken by pid ")
    assert message.endswith("end that process or choose another port with ports.gateway=<port>")
    assert "ports.control" not in message


def test_every_taken_port_is_listed(listener: socket.socket):
    with socket.create_server(("127.0.0.1", 0)) as second:
        config = load_config(
            "local-cpu", {**free_ports(), "ports.gateway": listener.getsockname()[1], "ports.control": second.getsockname()[1]}
        )
        with pytest.raises(ClusterError, match=r"(?s)ports\.gateway.*ports\.control"):
            check_ports(config.ports, ["gateway", "control"])


def test_a_closed_connection_does_not_hold_its_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        peer, _ = server.accept()
        peer.close()  # the server's side closes first and stays in TIME_WAIT
        client.close()
    assert port_is_free(port)


@pytest.mark.parametrize("value", [0, -1, 65536])
def test_a_port_outside_the_range_is_refused(value: int):
    with pytest.raises(ConfigError, match=r"ports\.gateway"):
        load_config("local-cpu", {"ports.gateway": value})


def test_two_settings_may_not_share_a_port():
    with pytest.raises(ConfigError, match=r"ports\.control and ports\.gateway are both 31000"):
        load_config("local-cpu", {"ports.gateway": 31000, "ports.control": 31000})

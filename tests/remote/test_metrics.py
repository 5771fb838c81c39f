"""Metrics and health of servers, as Prometheus and probes read them."""

from __future__ import annotations

import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from message_client import MessageClient
from prometheus_client.parser import text_string_to_metric_families

import pjrt
from pjrt import remote
from pjrt.remote import Limits, MetricsServer
from pjrt.remote.transport.channel import Channel

CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


def read(metrics: MetricsServer) -> dict[tuple[str, str], float]:
    """Return the values by name and by the labels' values."""
    with urllib.request.urlopen(metrics.url) as page:
        text = page.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(sample.name, ",".join(sample.labels.values())): sample.value for sample in samples}
    assert len(values) == len(samples)
    return values


@pytest.mark.full
def test_what_a_server_does(client: pjrt.Client) -> None:
    with MetricsServer() as metrics, remote.serve(client, metrics=metrics, limits=Limits(sessions=1)) as server:
        with remote.serve(client, metrics=metrics), MessageClient(server.address) as speaker:
            speaker.put(1, np.zeros(1000, np.uint8))
            with pytest.raises(pjrt.NotFoundError):
                speaker.ask("is_array_deleted", array_handle=9)
            with pytest.raises(pjrt.ResourceExhaustedError):
                MessageClient(server.address)
            values = read(metrics)
            assert values["pjrt_open_sessions", "reference"] == 1
            assert values["pjrt_open_sessions", "reference 2"] == 0
            assert values["pjrt_arrays", "reference"] == 1
            assert values["pjrt_array_bytes", "reference"] == 1000
            assert values["pjrt_requests_total", "reference,init,OK"] == 1
            assert values["pjrt_requests_total", "reference,is_array_deleted,NOT_FOUND"] == 1
            assert values["pjrt_request_seconds_count", "reference,init"] == 1
            assert values["pjrt_refused_sessions_total", "reference,RESOURCE_EXHAUSTED"] == 1
            assert values["pjrt_sessions_total", "reference"] == 1
            assert values["pjrt_received_bytes_total", "reference"] > 1000
            assert values["pjrt_sent_bytes_total", "reference"] > 0
            assert values["process_resident_memory_bytes", ""] > 1 << 20


def test_the_pages(client: pjrt.Client) -> None:
    with MetricsServer("127.0.0.1:0") as metrics:
        with urllib.request.urlopen(metrics.url.replace("/metrics", "/healthz")) as page:
            assert page.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as raised:
            urllib.request.urlopen(metrics.url + "/other")
        raised.value.close()
        with pytest.raises(pjrt.UnavailableError, match="in use"):
            MetricsServer(metrics.url.removeprefix("http://").removesuffix("/metrics"))
    for address in ("grpc://127.0.0.1:0", "unix:/x", "nonsense"):
        with pytest.raises(pjrt.InvalidArgumentError):
            MetricsServer(address)


def test_the_health_service(client: pjrt.Client, tmp_path) -> None:
    with remote.serve(client) as server:
        channel = Channel(server.address.partition("://")[2])
        for service in (b"", b"xla.ifrt.proxy.GrpcIfrtService"):
            request = b"\x0a" + bytes([len(service)]) + service if service else b""
            assert channel.unary(CHECK, request, timeout=120) == b"\x08\x01"  # SERVING
        with pytest.raises(pjrt.NotFoundError):
            channel.unary(CHECK, b"\x0a\x01x", timeout=120)
        with pytest.raises(pjrt.InvalidArgumentError):
            channel.unary(CHECK, b"\xff", timeout=120)
        channel.close()


def begun(metrics: MetricsServer) -> socket.socket:
    """Return a connection that has sent the beginning of a request."""
    place = urllib.parse.urlsplit(metrics.url)
    connection = socket.create_connection((place.hostname, place.port), timeout=60)
    connection.sendall(b"GET /metr")
    return connection


def test_there_are_so_many_connections_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.remote.metrics._MOST_AT_ONCE", 2)
    with MetricsServer() as metrics:
        slow = [begun(metrics) for _ in range(2)]
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            urllib.request.urlopen(metrics.url, timeout=60)
        for connection in slow:
            connection.close()


def test_a_request_may_take_so_long_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.remote.metrics._SECONDS", 0.01)
    with MetricsServer() as metrics, begun(metrics) as slow:
        assert slow.recv(100) == b""

"""The metrics of the servers of a process, for Prometheus, and the HTTP server that shows them.

It has the pages ``/metrics`` for Prometheus and ``/healthz`` for probes.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnavailableError
from pjrt.remote.transport.addresses import parse_address

_LATENCIES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class UsedMemory(Protocol):
    """The memory that a session uses."""

    @property
    def bytes(self) -> int:
        """The bytes that count."""


class OpenSession(Protocol):
    """A session that is open, as far as the metrics need it."""

    @property
    def usage(self) -> UsedMemory:
        """The memory that the session uses."""

    @property
    def arrays(self) -> Sized:
        """The arrays of the session."""

    @property
    def executables(self) -> Sized:
        """The loaded programs of the session."""


class Metrics:
    """The metrics of the servers of a process.

    The label ``device`` is the name of a server's device; of several with one name, the second is ``NAME 2``.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._servers: list[ServerMetrics] = []
        ProcessCollector(registry=self.registry)
        self.registry.register(_Gauges(self._servers))
        self._sessions = Counter("pjrt_sessions", "Sessions that were opened.", ["device"], registry=self.registry)
        self._refusals = Counter(
            "pjrt_refused_sessions", "Sessions that were refused.", ["device", "status"], registry=self.registry
        )
        self._requests = Counter(
            "pjrt_requests", "Requests that were answered.", ["device", "kind", "status"], registry=self.registry
        )
        self._latencies = Histogram(
            "pjrt_request_seconds",
            "Time from a request to its response.",
            ["device", "kind"],
            registry=self.registry,
            buckets=_LATENCIES,
        )
        self._received = Counter(
            "pjrt_received_bytes", "Bytes of messages and arrays received.", ["device"], registry=self.registry
        )
        self._sent = Counter(
            "pjrt_sent_bytes", "Bytes of messages and arrays sent.", ["device"], registry=self.registry
        )

    def of_server(
        self, device: str, client: Client | None, sessions: Callable[[], Iterable[OpenSession]]
    ) -> ServerMetrics:
        """Return the metrics of one server.

        Args:
            device: the name of the device.
            client: the client whose devices are served; the memory in use is read from its devices. ``None`` where
                each client of the server has its own devices.
            sessions: returns the open sessions; called whenever the metrics are read.
        """
        count = sum(server.kind == device for server in self._servers)
        server = ServerMetrics(self, device, f"{device} {count + 1}" if count else device, client, sessions)
        self._servers.append(server)
        return server


class ServerMetrics:
    """The metrics of one server; its methods may be called by any thread.

    Attributes:
        kind: the name of the device, which other servers may have too.
    """

    def __init__(
        self,
        metrics: Metrics,
        kind: str,
        device: str,
        client: Client | None,
        sessions: Callable[[], Iterable[OpenSession]],
    ) -> None:
        self.kind = kind
        self._device = device
        self._client = client
        self._open_sessions = sessions
        self._requests, self._latencies, self._refusals = metrics._requests, metrics._latencies, metrics._refusals
        self._sessions = metrics._sessions.labels(device)
        self._received, self._sent = metrics._received.labels(device), metrics._sent.labels(device)
        self._by_kind: dict[tuple[str, str], tuple[Counter, Histogram]] = {}  # a look-up of labels takes a lock

    def session_opened(self) -> None:
        """Count a session."""
        self._sessions.inc()

    def session_refused(self, status: str) -> None:
        """Count a session that was refused, by the name of the status code."""
        self._refusals.labels(self._device, status).inc()

    def request_answered(self, kind: str, status: str, seconds: float) -> None:
        """Count a request, by its kind and the name of the status code of its response."""
        children = self._by_kind.get((kind, status))
        if children is None:
            counter, histogram = (
                self._requests.labels(self._device, kind, status),
                self._latencies.labels(self._device, kind),
            )
            children = self._by_kind[kind, status] = counter, histogram
        children[0].inc()
        children[1].observe(seconds)

    def received(self, size: int) -> None:
        """Count bytes that came."""
        self._received.inc(size)

    def sent(self, size: int) -> None:
        """Count bytes that were sent."""
        self._sent.inc(size)

    def usage(self) -> Iterator[tuple[str, str, int]]:
        """Yield the values of this moment for all sessions: name, explanation, value."""
        sessions = list(self._open_sessions())
        yield "pjrt_open_sessions", "Sessions that are open.", len(sessions)
        yield "pjrt_arrays", "Arrays of open sessions.", sum(len(session.arrays) for session in sessions)
        yield "pjrt_executables", "Loaded programs of open sessions.", sum(len(each.executables) for each in sessions)
        yield "pjrt_array_bytes", "Memory of the arrays of open sessions.", sum(each.usage.bytes for each in sessions)

    def device_memory(self) -> Iterator[tuple[str, int]]:
        """Yield the bytes in use of each device that counts them, by the device's id."""
        for device in () if self._client is None else self._client.addressable_devices:
            try:
                yield str(device.id), device.memory_stats().bytes_in_use
            except PjrtError:  # many devices do not count them
                continue

    @property
    def device(self) -> str:
        """The name of the device."""
        return self._device


class _Gauges:
    """The values that are read when Prometheus asks, as its library calls them.

    One object has those of all servers: a metric may be described only once in an answer.
    """

    def __init__(self, servers: list[ServerMetrics]) -> None:
        self._servers = servers

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the devices are not asked when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the values of this moment."""
        gauges: dict[str, GaugeMetricFamily] = {}
        memory = GaugeMetricFamily("pjrt_device_memory_bytes", "Memory of a device in use.", labels=["device", "id"])
        for server in list(self._servers):
            for name, text, value in server.usage():
                gauges.setdefault(name, GaugeMetricFamily(name, text, labels=["device"]))
                gauges[name].add_metric([server.device], value)
            for number, size in server.device_memory():
                memory.add_metric([server.device, number], size)
        yield from gauges.values()
        yield memory


_SECONDS = 10.0
"""The seconds that one request may take in all, however slowly its bytes come."""
_MOST_AT_ONCE = 32
"""The connections that are served at once; a further one is closed."""


class MetricsServer:
    """An HTTP server with the metrics of the servers of devices that are made with it; it is up until ``close``.

    Everyone who can reach the address may read the metrics. They have numbers, and the names of devices and of kinds of
    requests, but no secrets.

    Args:
        address: ``HOST:PORT``; the port 0 takes a free one.

    Raises:
        InvalidArgumentError: the address is not of this form.
        UnavailableError: the address is in use, or not of this machine.
    """

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        place = parse_address(address)
        if place.scheme or place.path:
            raise InvalidArgumentError(f"expected HOST:PORT for the metrics, found {address!r}")
        self._metrics = Metrics()
        try:
            self._server = _HttpServer((place.host, place.port), _handler(self._metrics))
        except OSError as error:
            raise UnavailableError(f"cannot serve metrics at {address}: {error.strerror or error}") from error
        self._place = place.with_port(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="pjrt metrics", daemon=True)
        self._thread.start()

    def of_server(
        self, device: str, client: Client | None, sessions: Callable[[], Iterable[OpenSession]]
    ) -> ServerMetrics:
        """Return the metrics of one server, which then are among those of this address: see ``Metrics.of_server``."""
        return self._metrics.of_server(device, client, sessions)

    @property
    def url(self) -> str:
        """The address of the metrics: ``http://HOST:PORT/metrics``."""
        return f"http://{self._place.target}/metrics"

    def close(self) -> None:
        """End the HTTP server; a second call does nothing."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, handler)
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, or close it where too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and end it when its time is over."""
        end = threading.Timer(_SECONDS, _end, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing about strangers who leave, or whose time is over."""

    def server_bind(self) -> None:
        """Bind the socket, without asking for the host's name in the network, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended itself
        connection.shutdown(socket.SHUT_RDWR)


def _handler(metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS
        server_version = "pjrt"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encode(metrics.registry))
            elif path == "/healthz":
                self._answer(200, "text/plain", b"ok\n")
            else:
                self._answer(404, "text/plain", b"the pages are /metrics and /healthz\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler

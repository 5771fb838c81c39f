"""The metrics of servers over HTTP: the pages ``/metrics`` for Prometheus and ``/healthz`` for probes."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError, UnavailableError
from pjrt.remote.monitoring.metrics import Metrics, OpenSession, ServerMetrics
from pjrt.remote.transport.addresses import parse_address

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

    def of_server(self, device: str, client: Client, sessions: Callable[[], Iterable[OpenSession]]) -> ServerMetrics:
        """Return the metrics of one server, which then are among those of this address.

        Args:
            device: the name of the device.
            client: the client whose devices are served; the memory in use is read from its devices.
            sessions: returns the open sessions; called whenever the metrics are read.
        """
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

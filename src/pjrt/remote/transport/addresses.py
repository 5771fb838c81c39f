"""Addresses of servers, and the pings by which both ends notice that the other is gone.

An address is ``grpc://HOST:PORT`` in the clear, ``grpcs://HOST:PORT`` with TLS, or a local socket. One without a scheme
is one whose scheme the caller decides.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace

from pjrt.api.errors import InvalidArgumentError

CLEAR, ENCRYPTED = "grpc", "grpcs"

_FORMS = "expected grpc://HOST:PORT, grpcs://HOST:PORT (TLS) or grpc://unix:/PATH"


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a server listens.

    Args:
        scheme: ``grpc`` in the clear, ``grpcs`` with TLS, or empty if the address does not state it.
        host: the name or the number of the host, without brackets; empty for a local socket.
        port: the port; 0 for any free one.
        path: the path of a local socket; empty for a host.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def target(self) -> str:
        """The name of the address in gRPC."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach the address: a local socket, or the loopback interface.

        Of names, only ``localhost`` is local: other names may mean another machine tomorrow.
        """
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted with TLS."""
        return self.scheme == ENCRYPTED

    def __str__(self) -> str:
        return f"{self.scheme}://{self.target}" if self.scheme else self.target

    def with_scheme(self, *, encrypted: bool) -> Address:
        """Return the address with its scheme."""
        return replace(self, scheme=ENCRYPTED if encrypted else CLEAR)

    def with_port(self, port: int) -> Address:
        """Return the address with another port."""
        return replace(self, port=port)


def parse_address(text: str) -> Address:
    """Return the address that a text states, such as ``grpc://127.0.0.1:8888`` or ``unix:/run/pjrt.sock``.

    Raises:
        InvalidArgumentError: the text is not an address.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", CLEAR, ENCRYPTED):
        raise InvalidArgumentError(f"{_FORMS}, found the scheme {scheme!r} in {text!r}")
    if rest.startswith("unix:"):
        return _local_socket(scheme, rest.removeprefix("unix:"), text)
    host, separator, port = rest.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not separator or not host or any(letter in host for letter in "/[]@ ") or (":" in host and not bracketed):
        raise InvalidArgumentError(f"{_FORMS}, found {text!r}")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise InvalidArgumentError(f"expected a port from 0 to 65535 in {text!r}, found {port!r}")
    return Address(scheme, host, int(port))


def _local_socket(scheme: str, path: str, text: str) -> Address:
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if not path.startswith("/"):
        raise InvalidArgumentError(f"expected the absolute path of a local socket after unix:, found {text!r}")
    if len(path.encode()) > 107:  # sun_path of Linux has 108 bytes, with the zero at the end
        raise InvalidArgumentError(f"expected a path of at most 107 bytes for a local socket, found {text!r}")
    if scheme == ENCRYPTED:
        raise InvalidArgumentError(f"a local socket is not encrypted: write grpc://unix:{path}")
    return Address(scheme, path=path)


# Without pings, a machine without power or a cut cable is noticed only after the system's own time limits, in minutes
# to hours. With them it takes seconds, although no connection was closed.

SHORTEST_KEEPALIVE = 2.0
"""The shortest time after which a silent server can be lost: servers allow four pings a second."""

LONGEST_KEEPALIVE = 86400.0

DEFAULT_KEEPALIVE = 10.0


def client_keepalive(seconds: float = DEFAULT_KEEPALIVE) -> tuple[tuple[str, int], ...]:
    """Return the arguments of a channel whose server is lost after a time of silence.

    gRPC's own threads send and answer the pings. So neither a long call that keeps Python's lock nor a thread of the
    server that waits for its device looks like a lost server.

    Args:
        seconds: the time: a quarter of it from the last data to a ping, and the rest from the ping to its answer. gRPC
            gives data that are on their way only the second part.
    """
    to_ping, to_answer = int(seconds * 250), int(seconds * 750)
    return (
        ("grpc.keepalive_time_ms", to_ping),
        ("grpc.keepalive_timeout_ms", to_answer),
        ("grpc.http2.ping_timeout_ms", to_answer),  # gRPC's core since 2024 looks at this one alone (grpc/grpc#39239)
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # any number: a long computation sends no data
    )


def server_keepalive(seconds: float) -> tuple[tuple[str, int], ...]:
    """Return the arguments of a server whose clients are lost after a time of silence."""
    return (
        *client_keepalive(seconds),
        # A client that pings more often is taken for an attack, and its connection is closed.
        ("grpc.http2.min_ping_interval_without_data_ms", int(SHORTEST_KEEPALIVE * 125)),
    )


def checked_keepalive(seconds: object) -> float:
    """Return a time of silence, which a user has chosen.

    Raises:
        InvalidArgumentError: it is no number, or too short or too long.
    """
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not SHORTEST_KEEPALIVE <= seconds <= LONGEST_KEEPALIVE:  # type: ignore[operator]
        raise InvalidArgumentError(
            f"expected a heartbeat_timeout in seconds, from {SHORTEST_KEEPALIVE:g} to {LONGEST_KEEPALIVE:g}, found "
            f"{seconds!r}"
        )
    return float(seconds)  # type: ignore[arg-type]

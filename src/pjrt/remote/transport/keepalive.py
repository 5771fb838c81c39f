"""The pings by which both ends notice within seconds that the other is gone, although no connection was closed.

Without them, a machine without power or a cut cable is noticed only after the system's own time limits, in minutes to
hours.
"""

from __future__ import annotations

SHORTEST_SECONDS = 2.0
"""The shortest time after which a silent server can be lost: servers allow two pings a second."""

LONGEST_SECONDS = 86400.0

DEFAULT_SECONDS = 10.0


def client_keepalive(seconds: float = DEFAULT_SECONDS) -> tuple[tuple[str, int], ...]:
    """Return the arguments of a channel whose server is lost after a time of silence.

    gRPC's own threads send and answer the pings. So neither a long call that keeps Python's lock nor a thread of the
    server that waits for its device looks like a lost server.

    Args:
        seconds: the time: half of it from the last data to a ping, and half from the ping to its answer.
    """
    half = int(seconds * 500)
    return (
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.http2.ping_timeout_ms", half),  # gRPC's core since 2024 looks at this one alone (grpc/grpc#39239)
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # any number: a long computation sends no data
    )


SERVER_KEEPALIVE: tuple[tuple[str, int], ...] = (
    *client_keepalive(),
    # A client that pings more often is taken for an attack, and its connection is closed.
    ("grpc.http2.min_ping_interval_without_data_ms", int(SHORTEST_SECONDS * 250)),
)
"""The arguments of a server."""

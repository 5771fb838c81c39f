"""The reasons for which connections to workers end, human-readable."""

from __future__ import annotations

from pjrt.api.errors import PjrtError, StatusCode


def reason_of(error: PjrtError, heartbeat_timeout: float) -> str:
    """Return why a connection has ended.

    Args:
        error: the error of its client.
        heartbeat_timeout: the seconds without a sign of life after which a worker is lost.
    """
    if "ping timeout" in error.message or "keepalive" in error.message:
        return f"it gave no sign of life for {heartbeat_timeout:g} s"
    if error.code is StatusCode.UNAVAILABLE:
        return "its process ended, or its connection was lost"
    return error.message

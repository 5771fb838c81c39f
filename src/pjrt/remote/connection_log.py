"""The log of a server: a JSON object for each session that opens, ends or is refused, and for changed files.

The records go to the logger ``pjrt.remote`` and have their facts as ``record.facts``. Texts of clients stand only in
JSON strings, so that they cannot make lines of their own.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

LOGGER = logging.getLogger("pjrt.remote")

_REFUSALS_PER_SECOND = 10


class JsonFormatter(logging.Formatter):
    """A formatter that makes each record one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the time, the level and the event of a record, and its facts."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", None) or record.getMessage(),
        }
        entry |= getattr(record, "facts", {})
        if record.exc_info is not None:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class ConnectionLog:
    """The log of one server's connections; its methods may be called by any thread.

    Args:
        device: the name of the device.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._second = 0
        self._refusals = 0

    def opened(self, number: int, peer: str, client_name: str, protocol: int) -> None:
        """Log that a session opened.

        Args:
            number: the place of the session among those of the server. The protocol's number of a session is a secret.
            peer: the address of the client.
            client_name: the name of its access token, or in its certificate; empty if it showed none.
            protocol: the version of the protocol.
        """
        facts = {"session": number, "peer": peer, "client": client_name, "protocol": protocol}
        self._log(logging.INFO, "session opened", facts)

    def ended(self, number: int, reason: str, seconds: float, requests: int) -> None:
        """Log that a session ended, after so many seconds and requests."""
        facts = {"session": number, "reason": reason, "seconds": round(seconds, 3), "requests": requests}
        self._log(logging.INFO, "session ended", facts)

    def refused(self, peer: str, status: str, reason: str) -> None:
        """Log that a call was refused; in one second at most ten refusals are logged, so that the log stays small."""
        with self._lock:
            second = int(time.monotonic())
            skipped = 0
            if second != self._second:
                skipped = max(0, self._refusals - _REFUSALS_PER_SECOND)
                self._second, self._refusals = second, 0
            self._refusals += 1
            if self._refusals > _REFUSALS_PER_SECOND:
                return
        facts: dict[str, Any] = {"peer": peer, "status": status, "reason": reason}
        if skipped:
            facts["refusals_not_logged"] = skipped
        self._log(logging.WARNING, "refused", facts)

    def _log(self, level: int, event: str, facts: dict[str, Any]) -> None:
        log_event(level, event, device=self._device, **facts)


def log_event(level: int, event: str, **facts: Any) -> None:
    """Log an event with its facts, which other formatters than ours show as JSON after the event."""
    LOGGER.log(level, "%s: %s", event, json.dumps(facts, default=str), extra={"event": event, "facts": facts})


def log_to(stream: TextIO, level: int = logging.INFO) -> logging.Handler:
    """Write the records of a level and above as JSON lines to a stream, and return the handler that does it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    return handler

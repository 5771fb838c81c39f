"""The log of a server's connections: JSON lines, of which a client can make no others."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pjrt.remote.connection_log import LOGGER, ConnectionLog, log_to


@contextmanager
def logged(level: int = logging.INFO) -> Iterator[list[dict[str, object]]]:
    stream, entries = io.StringIO(), []
    settings = LOGGER.level, LOGGER.propagate
    handler = log_to(stream, level)
    try:
        yield entries
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.level, LOGGER.propagate = settings
        LOGGER._cache.clear()  # type: ignore[attr-defined]
    entries += [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_for_each_event() -> None:
    with logged() as entries:
        log = ConnectionLog("cpu")
        log.opened(1, "ipv4:127.0.0.1:5", 'a"\n{"event": "forged"}', 25)
        log.ended(1, "the connection ended", 1.23456, 7)
        LOGGER.warning("plain %s", "text")
    assert [entry["event"] for entry in entries] == ["session opened", "session ended", "plain text"]
    assert entries[0]["client"] == 'a"\n{"event": "forged"}'
    assert entries[1] | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "session ended",
        "device": "cpu",
        "session": 1,
        "reason": "the connection ended",
        "seconds": 1.235,
        "requests": 7,
    }


def test_few_refusals_are_logged_in_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("pjrt.remote.connection_log.time", SimpleNamespace(monotonic=lambda: now))
    with logged(logging.WARNING) as entries:
        log = ConnectionLog("cpu")
        log.opened(1, "peer", "", 25)
        for _ in range(25):
            log.refused("peer", "UNAUTHENTICATED", "why")
        now = 6.0
        log.refused("peer", "UNAUTHENTICATED", "why")
    assert len(entries) == 11
    assert entries[-1]["refusals_not_logged"] == 15

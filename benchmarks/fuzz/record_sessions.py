"""Record the messages of the tests of remote devices, as the corpus of the fuzz target ``remote``.

    python -m benchmarks.fuzz.record_sessions

It makes the tests of requests in this process and writes what the sessions received to ``sessions.bin``: parts of
sessions in which each kind of request occurs. Record again after a new kind of request, and not otherwise: the numbers
of findings count on the recording.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz.sessions import FILE, PART, STORE, Event, write
from pjrt.remote.server.memory import HostBuffers
from pjrt.remote.server.session import Session

_TESTS = ("test_array_requests.py", "test_executable_requests.py", "test_session.py")
_LARGEST = 6_000  # bytes of one event; larger programs and arrays teach nothing more
_EACH_KIND = 12  # the times that each kind of request is wanted


def main() -> int:
    """Record, and write the file."""
    streams: dict[int, list[Event]] = {}
    receive, store = Session.receive, HostBuffers.store
    owners: dict[int, int] = {}

    def receive_and_record(session: Session, request: Any) -> None:
        owners[id(session.host_buffers)] = session.id
        name = request.WhichOneof("request") or "none"
        streams.setdefault(session.id, []).append(Event(name, 0, request.SerializeToString()))
        receive(session, request)

    def store_and_record(buffers: HostBuffers, handle: int, data: Any) -> None:
        from_client = sys._getframe(1).f_globals["__name__"] != "pjrt.remote.server.requests"
        if from_client and id(buffers) in owners:
            streams[owners[id(buffers)]].append(Event(STORE, handle, bytes(memoryview(data).cast("B"))))
        store(buffers, handle, data)

    Session.receive, HostBuffers.store = receive_and_record, store_and_record  # type: ignore[method-assign]
    tests = Path(__file__).parents[2] / "tests" / "remote"
    failed = pytest.main(["-q", "-p", "no:cacheprovider", *(str(tests / name) for name in _TESTS)])
    parts = [stream[start : start + PART] for stream in streams.values() for start in range(0, len(stream), PART)]
    chosen = _choose([part for part in parts if all(len(event.data) <= _LARGEST for event in part)])
    write(chosen)
    kinds = Counter(event.kind for part in chosen for event in part)
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(chosen)} parts", *sorted(kinds.items()), sep="\n")
    return int(failed)


def _choose(parts: list[list[Event]]) -> list[list[Event]]:
    """Return few parts in which each kind occurs often enough: each time the part that adds most for its size."""
    wanted = Counter({event.kind: _EACH_KIND for part in parts for event in part})
    chosen: list[list[Event]] = []

    def gain(part: list[Event]) -> float:
        added = sum((Counter(event.kind for event in part) & +wanted).values())
        return added / (500 + sum(len(event.data) for event in part))

    while parts and gain(best := max(parts, key=gain)) > 0:
        wanted -= Counter(event.kind for event in best)
        chosen.append(best)
        parts.remove(best)
    return chosen


if __name__ == "__main__":
    sys.exit(main())

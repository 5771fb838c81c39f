"""The fuzz target ``remote``: mutated requests to the sessions of a server, in its process.

A round is a recorded part of a session with mutated requests between the recorded ones. It is given to a session of its
own, beside a session that keeps its arrays. A finding is an unforeseen error, a request without its one response, an
array of the other session that changed, its contents in a response, or memory that the session leaves behind.

Programs are mutated by the targets ``parse`` and ``cpu``; here their messages are mutated, and they are not.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

import pjrt
from benchmarks.fuzz.message_mutations import mutate_fields
from benchmarks.fuzz.mutations import mutate_bytes
from benchmarks.fuzz.sessions import STORE, Event, read
from pjrt import ifrt
from pjrt.api.errors import CancelledError, PjrtError
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_proto, shape_proto, sharding_proto
from pjrt.remote.security.limits import Limits
from pjrt.remote.server.requests import HANDLERS
from pjrt.remote.server.session import ServeOptions, Session

ROUND = 100
"""The number of mutated requests of a round."""

TAKEN, REFUSED, BARE = b"o", b"r", b"b"

_PATIENCE = 30.0
_FIRST_ROUNDS, _GROWTH = 30, 256 << 20
_SECRET = np.frombuffer(b"the other session's array, secret", np.uint8)
_LIMITS = Limits(session_bytes=256 << 20, session_arrays=20_000, host_buffer_bytes=16 << 20)
_REFERENCE_SHARE = 0.1
_COMPILE, _COMPILING_SHARE = "compile_request", 0.01


class Workers:
    """Threads for blocking requests that run in the thread of the caller: rounds are the same each time."""

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function now."""
        function(*arguments)

    def cancel(self) -> None:
        """Drop nothing: nothing waits."""

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call a function now: nothing is under way."""
        callback()


class Mistakes(logging.Handler):
    """Keeps the unforeseen errors that a server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error with its traceback."""
        if record.exc_info:
            self.found.append(f"{record.getMessage()}\n{logging.Formatter().formatException(record.exc_info)}")


class Connection:
    """A session and what it answers."""

    def __init__(self, client: ifrt.Client) -> None:
        self.sent = 0
        self.answered = 0
        self.responses: list[bytes] = []
        self._arrived = threading.Condition()
        self.session = Session(client, self._receive, Workers(), options=ServeOptions(limits=_LIMITS))  # type: ignore[arg-type]

    def _receive(self, response: Any) -> None:
        code = response.response_metadata.status.code
        with self._arrived:
            self.answered += 1
            self.responses.append(response.SerializeToString())
            self.last_code = code
            self._arrived.notify_all()

    def give(self, request: Any) -> None:
        """Give a request to the session."""
        self.sent += 1
        self.session.receive(request)

    def wait(self) -> bool:
        """Return whether every request gets its response in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self.answered >= self.sent, _PATIENCE)


class RemoteTarget:
    """The target: clients of two devices, and the recording.

    Args:
        seed: the seed of all mutations.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._parts = read()
        self._compiling = [part for part in self._parts if any(event.kind == _COMPILE for event in part)]
        self._quick = [part for part in self._parts if part not in self._compiling]
        self._stored = {event.handle: event.data for part in self._parts for event in part if event.kind == STORE}
        events = [event for part in self._parts for event in part if event.kind not in (STORE, "none")]
        self._by_kind = {kind: [event for event in events if event.kind == kind] for kind in {e.kind for e in events}}
        self._programs = sorted(
            {wire.IfrtRequest.FromString(event.data).compile_request.program.data for event in self._by_kind[_COMPILE]}
        )
        self._clients = {name: ifrt.Client(pjrt.client(name, num_devices=4)) for name in ("cpu", "reference")}
        self._rounds = self._resident = 0
        self._mistakes = Mistakes()
        logging.getLogger("pjrt.remote").addHandler(self._mistakes)
        logging.getLogger("pjrt.remote").propagate = False

    def round(self, number: int) -> list[bytes]:
        """Make a round, and return a letter for each of its mutated requests."""
        chance = random.Random(f"{self._seed}:{number}")
        client = self._clients["reference" if chance.random() < _REFERENCE_SHARE else "cpu"]
        other, secret_handle = self._other_session(client)
        connection = Connection(client)
        letters: list[bytes] = []
        # Compilations take far more time than all other requests.
        part = chance.choice(self._compiling if chance.random() < _COMPILING_SHARE else self._quick)
        while len(letters) < ROUND:
            for event in part:
                self._give_recorded(connection, event)
                for _ in range(chance.choice((0, 1, 2, 3))):
                    if len(letters) < ROUND:
                        letters.append(self._give_mutated(connection, event, part, chance))
        problems = self._end(connection, other, secret_handle) or self._grown()
        if problems:
            print(f"round {number}: {problems}", file=sys.stderr, flush=True)
            letters[-1] = BARE
        return letters

    def _grown(self) -> str:
        """Return what is wrong if the process has become much larger since its first rounds."""
        self._rounds += 1
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        if self._rounds <= _FIRST_ROUNDS:
            self._resident = resident
        elif resident > self._resident + _GROWTH:
            gained, self._resident = resident - self._resident, resident
            return f"the process has grown by {gained >> 20} MiB in {self._rounds} rounds"
        return ""

    def _give_recorded(self, connection: Connection, event: Event) -> None:
        try:
            if event.kind == STORE:
                connection.session.host_buffers.store(event.handle, event.data)
            else:
                connection.give(wire.IfrtRequest.FromString(event.data))
        except PjrtError:
            pass  # a mutated request has taken the handle

    def _give_mutated(self, connection: Connection, event: Event, part: list[Event], chance: random.Random) -> bytes:
        if event.kind in (STORE, "none") or chance.random() < 0.5:
            kind = chance.choice(sorted(self._by_kind))
            if kind == _COMPILE and chance.random() < 1 - _COMPILING_SHARE:
                return self._give_mutated(connection, event, part, chance)
            event = chance.choice(self._by_kind[kind])
        request = wire.IfrtRequest.FromString(event.data)
        if chance.random() < 0.8:
            self._renew(connection, request, chance)
        try:
            if chance.random() < 0.25:
                request = wire.IfrtRequest.FromString(mutate_bytes(request.SerializeToString(), chance))
            else:
                mutate_fields(request, chance, self._numbers(connection, part, chance))
        except DecodeError:
            return REFUSED
        if request.WhichOneof("request") == "compile_request":
            program = request.compile_request.program
            if program.data not in self._programs:
                program.data = chance.choice(self._programs)
        before = connection.answered
        connection.last_code = -1
        connection.give(request)
        if self._mistakes.found:
            print(f"{str(request)[:300]}\n{self._mistakes.found.pop()}", file=sys.stderr, flush=True)
            self._mistakes.found.clear()
            return BARE
        return TAKEN if connection.answered > before and connection.last_code == 0 else REFUSED

    def _renew(self, connection: Connection, request: Any, chance: random.Random) -> None:
        """Give a request handles of objects that are there, and new ones for what it makes, so that it can succeed."""
        handler = HANDLERS.get(request.WhichOneof("request"))
        if handler is None:
            return
        message, session = getattr(request, request.WhichOneof("request")), connection.session
        store = session.executables if "executable" in handler.kind else session.arrays
        there = list(store._objects)
        for name in handler.results + handler.futures:
            _replace(message, name, lambda _: chance.randrange(1 << 20, 1 << 61))
        for name in handler.inputs:
            if there:
                _replace(message, name, lambda _: chance.choice(there))
        if handler.host_buffers is not None:
            buffers = [message, *(buffer for spec in getattr(message, "specs", ()) for buffer in spec.host_buffers)]
            for buffer in (each for each in buffers if hasattr(each, "host_buffer_handle")):
                data, handle = self._stored.get(buffer.host_buffer_handle, b""), chance.randrange(1 << 20, 1 << 61)
                with contextlib.suppress(PjrtError):
                    session.host_buffers.store(handle, data)
                buffer.host_buffer_handle = handle

    def _numbers(self, connection: Connection, part: list[Event], chance: random.Random) -> list[int]:
        session = connection.session
        stores = (session.arrays, session.executables, session.futures, session.deletions, session.callbacks)
        handles = [handle for store in stores for handle in list(store._objects)[-20:]]
        return [*handles, *(event.handle for event in part), 1 << 62, chance.randrange(1 << 64)]

    def _other_session(self, client: ifrt.Client) -> tuple[Connection, int]:
        """Return a session with a secret array, whose handle is one that the recording uses too."""
        other = Connection(client)
        handle = 1
        other.session.host_buffers.store(handle, _SECRET)
        sharding = ifrt.SingleDeviceSharding(client.devices[0])
        request = wire.IfrtRequest()
        message = request.make_array_from_host_buffer_request
        message.host_buffer_handle = message.array_handle = handle
        message.dtype.CopyFrom(element_type_proto(pjrt.ElementType.U8))
        message.shape.CopyFrom(shape_proto(_SECRET.shape))
        message.sharding.CopyFrom(sharding_proto(sharding))
        other.give(request)
        return other, handle

    def _end(self, connection: Connection, other: Connection, secret_handle: int) -> str:
        """End both sessions, and return what is wrong; empty if nothing is."""
        session = connection.session
        problems = []
        # Requests that wait for host buffers that never come, and calls that the client never makes, fail now.
        session.host_buffers.give_up_after(0)
        for callback in session.callbacks.clear():
            callback.close(CancelledError("the round is over"))
        for call in session.calls.clear():
            call.results.set_error(CancelledError("the round is over"))
        deadline = time.monotonic() + _PATIENCE
        while not connection.answered >= connection.sent and time.monotonic() < deadline:
            session.host_buffers.give_up_after(0)
            with connection._arrived:
                connection._arrived.wait_for(lambda: connection.answered >= connection.sent, 0.05)
        if connection.answered != connection.sent:
            problems.append(f"{connection.sent} requests got {connection.answered} responses")
        secret = _SECRET.tobytes()
        if any(secret in response for response in connection.responses):
            problems.append("a response has the contents of the other session")
        array = other.session.arrays.get(secret_handle)
        if np.asarray(array.to_host().result(_PATIENCE)).tobytes() != secret:
            problems.append("the array of the other session has changed")
        arrays = [weakref.ref(value) for value in session.arrays._objects.values() if not isinstance(value, PjrtError)]
        session.close("the round is over")
        other.session.close("the round is over")
        if session.usage.bytes or len(session.arrays) or len(session.executables) or len(session.futures):
            problems.append(f"the session still uses {session.usage.bytes} bytes")
        del array, session
        connection.session = other.session = None  # type: ignore[assignment]
        gc.collect(0)
        if any(reference() is not None for reference in arrays):
            gc.collect()
            if left := sum(reference() is not None for reference in arrays):
                problems.append(f"{left} arrays live on after their session")
        if self._mistakes.found:
            problems.append(self._mistakes.found.pop())
            self._mistakes.found.clear()
        return "; ".join(problems)


def _replace(message: Any, name: str, new: Callable[[int], int]) -> None:
    """Replace the handle, or each handle, in a field."""
    value = getattr(message, name)
    if isinstance(value, int):
        setattr(message, name, new(value))
    else:
        handles = [new(handle) for handle in value]
        del value[:]
        value.extend(handles)

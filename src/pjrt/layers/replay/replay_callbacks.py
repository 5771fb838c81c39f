"""The functions that a replay gives the plugin in place of the framework's."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pjrt.capi.layer.schema import CALLBACKS, STRUCTS
from pjrt.capi.raw import KeyValueStore, call_function, read_struct
from pjrt.capi.raw.callback import address_of, callback
from pjrt.capi.raw.numbers import load
from pjrt.capi.raw.table import Error, Table
from pjrt.layers.recording.recorded_value import Function
from pjrt.layers.replay.struct_builder import element_size
from pjrt.layers.replay.struct_reader import Raw


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of the plugin to one of the functions.

    Attributes:
        error: the error that it was given.
        handle: the handle that it was given, such as the stream of a transfer.
        data: the host data that it was given.
    """

    error: Error | None = None
    handle: Raw | None = None
    data: bytes | None = None


@dataclass(slots=True)
class ReplayCallbacks:
    """All functions of a replay, by their numbers in the recording.

    Attributes:
        table: the plugin, whose errors they read.
        key_values: the values of the key-value store that they offer to the plugin.
        store: the key-value store.
    """

    table: Table
    key_values: dict[bytes, bytes] = field(default_factory=dict)
    store: KeyValueStore = field(init=False)
    _functions: dict[int, Any] = field(default_factory=dict)
    _invocations: dict[int, list[Invocation]] = field(default_factory=dict)
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        # The recorded processes wrote all values before; a key without one has none in the whole replay.
        self.store = KeyValueStore(self.key_values, waits=False)

    def address(self, function: Function) -> int:
        """Return the address of the function that stands for a recorded one."""
        if function.number not in self._functions:
            answer = functools.partial(_KINDS.get(function.kind, _ignore), self, function.number)
            # A callback that a later version added does nothing, and gets at most two arguments, as most do.
            kind = function.kind if function.kind in CALLBACKS else "PJRT_Chunk_deleter"
            self._functions[function.number] = callback(kind, answer)
        return address_of(self._functions[function.number])

    def knows(self, number: int) -> bool:
        """Whether the plugin was given the function."""
        return number in self._functions

    def has_been_called(self, number: int) -> bool:
        """Whether the plugin has called the function."""
        with self._condition:
            return bool(self._invocations.get(number))

    def wait(self, number: int, place: int) -> Invocation:
        """Return an invocation of a function by its place; wait until the plugin has made it."""
        with self._condition:
            while len(self._invocations.get(number, ())) <= place:
                self._condition.wait()
            return self._invocations[number][place]

    def add(self, number: int, invocation: Invocation) -> None:
        """Add an invocation, and wake those that wait for it."""
        with self._condition:
            self._invocations.setdefault(number, []).append(invocation)
            self._condition.notify_all()


def _on_ready(callbacks: ReplayCallbacks, number: int, error: int, _: int) -> None:
    callbacks.add(number, Invocation(callbacks.table.take_error(error) if error else None))


def _send(callbacks: ReplayCallbacks, number: int, chunk: int, *_: int) -> None:
    fields = read_struct("PJRT_Chunk", chunk).fields
    if fields["deleter"]:
        data = load(chunk + STRUCTS["PJRT_Chunk"].fields["data"].offset)
        call_function(fields["deleter"], data, fields["deleter_arg"] or 0)
    callbacks.add(number, Invocation(data=fields["data"] or b""))


def _receive(callbacks: ReplayCallbacks, number: int, stream: int, _: int) -> None:
    callbacks.add(number, Invocation(handle=Raw("PJRT_CopyToDeviceStream", stream)))


def _output(callbacks: ReplayCallbacks, number: int, _: int, __: int, data: int, *shape: int) -> None:
    dims, rank, kind = shape[:3]
    size = element_size(kind)
    for i in range(rank):
        size *= load(dims + 8 * i)
    callbacks.add(number, Invocation(data=ctypes.string_at(data, size) if data else b""))


def _ignore(callbacks: ReplayCallbacks, number: int, *_: int) -> None:
    """Do nothing, as for deleters: the replay owns the memory that it gave."""
    callbacks.add(number, Invocation())


def _key_values(method: str) -> Callable[..., int | None]:
    def answer(callbacks: ReplayCallbacks, number: int, args: int) -> int | None:
        callbacks.add(number, Invocation())
        error: int | None = getattr(callbacks.store, method)(args)
        return error

    return answer


_KINDS: Mapping[str, Callable[..., Any]] = {
    "PJRT_Event_OnReadyCallback": _on_ready,
    "PJRT_SendCallback": _send,
    "PJRT_RecvCallback": _receive,
    "PJRT_HloOutputCallback": _output,
    "PJRT_KeyValueGetCallback": _key_values("get"),
    "PJRT_KeyValueTryGetCallback": _key_values("try_get"),
    "PJRT_KeyValuePutCallback": _key_values("put"),
}

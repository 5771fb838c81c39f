"""The functions that a replay gives the plugin in place of the framework's."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pjrt.layers.recording.recorded_value import Function
from pjrt.layers.replay.plugin_table import PluginError, PluginTable
from pjrt.layers.replay.struct_builder import element_size
from pjrt.layers.replay.struct_reader import Raw

_P, _I64, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of the plugin to one of the functions.

    Attributes:
        error: the error that it was given.
        handle: the handle that it was given, such as the stream of a transfer.
        data: the host data that it was given.
    """

    error: PluginError | None = None
    handle: Raw | None = None
    data: bytes | None = None


@dataclass(slots=True)
class ReplayCallbacks:
    """All functions of a replay, by their numbers in the recording.

    Attributes:
        table: the plugin, whose errors they read.
        key_values: the key-value store that they offer to the plugin.
    """

    table: PluginTable
    key_values: dict[bytes, bytes] = field(default_factory=dict)
    _functions: dict[int, Any] = field(default_factory=dict)
    _invocations: dict[int, list[Invocation]] = field(default_factory=dict)
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _kept: list[Any] = field(default_factory=list)

    def address(self, function: Function) -> int:
        """Return the address of the function that stands for a recorded one."""
        if function.number not in self._functions:
            make = _KINDS.get(function.kind, _ignore)
            self._functions[function.number] = make(self, function.number)
        return int(ctypes.cast(self._functions[function.number], _P).value or 0)

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

    def keep(self, value: Any) -> None:
        """Keep an object as long as the replay lasts."""
        self._kept.append(value)


def _on_ready(callbacks: ReplayCallbacks, number: int) -> Any:
    def on_ready(error: int | None, _: int | None) -> None:
        callbacks.add(number, Invocation(callbacks.table.take_error(error) if error else None))

    return ctypes.CFUNCTYPE(None, _P, _P)(on_ready)


class _Chunk(ctypes.Structure):
    _fields_ = (("data", _P), ("size", _SIZE), ("deleter", _P), ("deleter_arg", _P))


def _send(callbacks: ReplayCallbacks, number: int) -> Any:
    def send(chunk: Any, _: int, __: int, ___: bool, ____: int) -> None:
        each = chunk.contents
        data = ctypes.string_at(each.data, each.size) if each.data else b""
        if each.deleter:
            ctypes.CFUNCTYPE(None, _P, _P)(each.deleter)(each.data, each.deleter_arg)
        callbacks.add(number, Invocation(data=data))

    prototype = ctypes.CFUNCTYPE(_P, ctypes.POINTER(_Chunk), _P, _SIZE, ctypes.c_bool, _P)
    return prototype(send)


def _receive(callbacks: ReplayCallbacks, number: int) -> Any:
    def receive(stream: int, _: int) -> None:
        callbacks.add(number, Invocation(handle=Raw("PJRT_CopyToDeviceStream", stream)))

    return ctypes.CFUNCTYPE(None, _P, _P)(receive)


def _output(callbacks: ReplayCallbacks, number: int) -> Any:
    def output(_: int, __: int, data: int, dims: Any, rank: int, kind: int, ___: int, ____: int) -> None:
        size = element_size(kind)
        for i in range(rank):
            size *= dims[i]
        callbacks.add(number, Invocation(data=ctypes.string_at(data, size) if data else b""))

    prototype = ctypes.CFUNCTYPE(None, _I64, _I64, _P, ctypes.POINTER(_I64), _SIZE, _INT, _I64, _P)
    return prototype(output)


class _GetArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE), ("extension_start", _P), ("key", _P), ("key_size", _SIZE), ("timeout_in_ms", _INT),
        ("callback_error", _P), ("user_arg", _P), ("value", _P), ("value_size", _SIZE), ("deleter", _P),
    )  # fmt: skip


class _TryGetArgs(ctypes.Structure):
    _fields_ = tuple(each for each in _GetArgs._fields_ if each[0] != "timeout_in_ms")


class _PutArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE), ("extension_start", _P), ("key", _P), ("key_size", _SIZE), ("value", _P),
        ("value_size", _SIZE), ("callback_error", _P), ("user_arg", _P),
    )  # fmt: skip


_Maker = ctypes.CFUNCTYPE(_P, _INT, ctypes.c_char_p, _SIZE)


def _getter(struct: type[ctypes.Structure]) -> Callable[[ReplayCallbacks, int], Any]:
    def make(callbacks: ReplayCallbacks, number: int) -> Any:
        delete = ctypes.CFUNCTYPE(None, _P)(lambda _: None)
        callbacks.keep(delete)

        def get(args: Any) -> int | None:
            each = args.contents
            key = ctypes.string_at(each.key, each.key_size)
            callbacks.add(number, Invocation())
            if key not in callbacks.key_values:
                message = b"the recording has no value for the key " + key
                maker = _Maker.from_address(each.callback_error)
                return int(maker(5, message, len(message)) or 0)
            value = ctypes.create_string_buffer(callbacks.key_values[key], len(callbacks.key_values[key]) + 1)
            callbacks.keep(value)
            each.value, each.value_size = ctypes.addressof(value), len(value) - 1
            each.deleter = ctypes.cast(delete, _P).value
            return None

        return ctypes.CFUNCTYPE(_P, ctypes.POINTER(struct))(get)

    return make


def _put(callbacks: ReplayCallbacks, number: int) -> Any:
    def put(args: Any) -> None:
        each = args.contents
        callbacks.key_values[ctypes.string_at(each.key, each.key_size)] = ctypes.string_at(each.value, each.value_size)
        callbacks.add(number, Invocation())

    return ctypes.CFUNCTYPE(_P, ctypes.POINTER(_PutArgs))(put)


def _ignore(callbacks: ReplayCallbacks, number: int) -> Any:
    """Return a function that does nothing, as for deleters: the replay owns the memory that it gave."""

    def ignore(*_: int) -> None:
        callbacks.add(number, Invocation())

    return ctypes.CFUNCTYPE(_P, _P, _P)(ignore)


_KINDS: Mapping[str, Callable[[ReplayCallbacks, int], Any]] = {
    "PJRT_Event_OnReadyCallback": _on_ready,
    "PJRT_SendCallback": _send,
    "PJRT_RecvCallback": _receive,
    "PJRT_HloOutputCallback": _output,
    "PJRT_KeyValueGetCallback": _getter(_GetArgs),
    "PJRT_KeyValueTryGetCallback": _getter(_TryGetArgs),
    "PJRT_KeyValuePutCallback": _put,
}

"""The counterparts of a replay: which object of this plugin stands for which one of the recording."""

from __future__ import annotations

from typing import Any

from pjrt.layers.recording.recorded_value import Function, Handle, Pointer, handles_in
from pjrt.layers.recording.recording import Call, Recording
from pjrt.layers.replay.replay_callbacks import ReplayCallbacks

_LEAST_SERIALIZED = 64
"""Texts of fewer bytes are names, not what a plugin serialized."""


class UnusableError(Exception):
    """A call cannot be made: this plugin lacks something that it needs."""


class LostError(Exception):
    """A call cannot be made: an earlier call of this replay failed."""


class Counterparts:
    """The objects, functions and addresses of this plugin, by those of the recording.

    Attributes:
        received: the addresses of the functions that the plugin gave, by their recorded numbers.
        device_ids: the identifiers of this plugin's devices, by the recorded ones.
        program_sizes: the bytes of this plugin's optimized programs, by the numbers of their executables.
    """

    def __init__(self, recording: Recording, callbacks: ReplayCallbacks) -> None:
        self.received: dict[int, int] = {}
        self.device_ids: dict[int, int] = {}
        self.program_sizes: dict[int, int] = {}
        self._recording, self._callbacks = recording, callbacks
        self._handles: dict[int, int] = {}
        self._lost: dict[int, int] = {}  # handles that are missing, and the call that should have made them
        self._addresses: dict[int, int] = {}
        self._serialized: dict[bytes, bytes] = {}

    def has(self, handle: Handle) -> bool:
        """Whether a handle has a counterpart."""
        return handle.number in self._handles

    def address(self, handle: Handle) -> int:
        """Return the address of a handle's counterpart.

        Raises:
            LostError: a call of this replay should have made it, and failed.
            UnusableError: the plugin never had it.
        """
        if handle.number in self._handles:
            return self._handles[handle.number]
        if handle.number in self._lost:
            raise LostError(f"it needs {handle}, which call {self._lost[handle.number]} did not make")
        raise UnusableError(f"it needs {handle}, which this plugin does not have")

    def memory(self, pointer: Pointer) -> int:
        """Return the address that stands for a recorded one.

        Raises:
            UnusableError: it is of memory that the recording does not describe.
        """
        if pointer.address not in self._addresses:
            raise UnusableError(f"it needs the memory at 0x{pointer.address:x} of the recorded process")
        return self._addresses[pointer.address]

    def known_memory(self, pointer: Pointer) -> int:
        """Return the address that stands for a recorded one; 0 if there is none."""
        return self._addresses.get(pointer.address, 0)

    def function(self, function: Function) -> int:
        """Return the address of the function that stands for one of the framework's."""
        return self._callbacks.address(function)

    def data(self, value: Any) -> bytes | memoryview | None:
        """Return the bytes of a text or a blob; of what the recorded plugin serialized, those of this plugin."""
        data = self._recording.data(value)
        if data is not None and self._serialized and len(data) >= _LEAST_SERIALIZED:
            return self._serialized.get(bytes(data), data)
        return data

    def learn(self, handle: Handle, address: int) -> None:
        """Take an address for the counterpart of a handle."""
        self._handles[handle.number] = address

    def learn_memory(self, pointer: Pointer, address: int) -> None:
        """Take an address for the counterpart of a recorded one."""
        self._addresses[pointer.address] = address

    def learn_serialized(self, recorded: bytes, here: bytes) -> None:
        """Take bytes for the counterpart of those that the recorded plugin serialized."""
        if len(recorded) >= _LEAST_SERIALIZED:
            self._serialized[recorded] = here

    def lose(self, handle: Handle, call: Call) -> None:
        """Note that a call did not make a handle."""
        if handle.number not in self._handles:
            self._lost.setdefault(handle.number, call.number)

    def lose_results(self, call: Call) -> None:
        """Note that a call made none of the handles of its results."""
        for handle in handles_in(call.results):
            self.lose(handle, call)

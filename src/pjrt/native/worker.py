"""The worker: the process that computes for devices in Python, whose clients stand behind the runtime in C.

The runtime starts it as ``python -m pjrt.native.worker SPEC FOLDER``. Its standard input is a socket, on which devices,
programs to compile and executables to load are asked for (see ``compiling``). Descriptor 3 is memory that both share:
there the commands are that follow each other fast. native/library/driver_worker.c has their form. Descriptor 4 is a
socket on which programs call functions of the framework's process (see ``questions``).
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client, LocalHandler
from pjrt.api.device import NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    CancelledError,
    InternalError,
    UnimplementedError,
    from_author,
)
from pjrt.api.future import Future
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.plugin import Plugin, Profiler
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.topology import TopologyDescription
from pjrt.api.waits import note_interruption
from pjrt.capi.client_factories import make_client, named_topology
from pjrt.capi.import_spec import find_attribute
from pjrt.host_memory.array import HostArray
from pjrt.native._commands import CommandLoop
from pjrt.native.compiling import checked_function, serve, take_connection
from pjrt.native.partitioners import Partitioners
from pjrt.native.questions import Questions
from pjrt.native.served import EXECUTE_OPTIONS, Factory, ProfilerSessions, ServedClient, own_layout

_NOWHERE = 2**64 - 1
_SIZE_MASK = 2**56 - 1


def main(spec: str, folder: str = "") -> None:
    """Serve the runtime until it closes its end of the socket.

    Args:
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of a function that makes clients, of a
            ``pjrt.Plugin``'s class, or of what ``pjrt.export`` returned.
        folder: a folder to import the module from; empty where it is installed.
    """
    connection = take_connection(folder)
    worker = Worker(factory_of(spec), mmap.mmap(3, os.fstat(3).st_size), socket.socket(fileno=4))

    def answer_requests() -> None:
        serve(connection, worker.answer)
        os._exit(0)  # the runtime is gone: nothing that computes is wanted

    signal.signal(signal.SIGURG, worker.cancel)
    told, tells = socket.socketpair()
    tells.setblocking(False)
    signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)

    def give_up_cancelled() -> None:
        # The main thread runs no handler while it waits for commands, and work that is under way needs none of it.
        while told.recv(4096):
            worker.give_up_cancelled()

    threading.Thread(target=give_up_cancelled, daemon=True).start()
    threading.Thread(target=answer_requests, daemon=True).start()
    worker.do_all()


def factory_of(spec: str) -> Factory:
    """Return the function that a spec names as one that makes clients or topologies; it is found when it is called."""

    def factory(options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client | TopologyDescription:
        found = find_attribute(spec)
        make: Factory | None = getattr(found, "make_for_framework", None)
        if make is not None:
            return make(options, store)
        return _made(checked_function(found, spec, "makes clients"), options, store, repr(spec))

    return factory


def _made(
    factory: Callable[..., Any], options: Mapping[str, NamedValue], store: KeyValueStore | None, whose: str
) -> Client | TopologyDescription:
    """Return a client of a function or of a plugin's class, or the topology that the options name."""
    plugin = factory() if isinstance(factory, type) and issubclass(factory, Plugin) else None
    name = options.get("topology")
    if isinstance(name, str):
        rest = {each: value for each, value in options.items() if each != "topology"}
        topology = plugin.topology(name, **rest) if plugin else named_topology(factory, name, rest)
        if topology is not None:
            return topology
    return make_client(plugin.client if plugin else factory, options, store, whose)


def _profiler(place: str) -> Callable[[bytes], Profiler]:
    """Return what makes profiling sessions: a function, or that of an exported plugin."""
    found = find_attribute(place)
    return getattr(found, "profiler", found)  # type: ignore[no-any-return]


class Worker(ServedClient, CommandLoop):
    """The worker's client, and what it is asked or commanded.

    Args:
        factory: makes a client of a framework's options and its key-value store, or the topology that they name.
        shared: the shared memory.
        questions: the socket for questions to the framework's process.
    """

    def __init__(self, factory: Factory, shared: mmap.mmap, questions: socket.socket) -> None:
        CommandLoop.__init__(self, shared)
        ServedClient.__init__(self, factory, self.executables)
        self._shared = shared
        self._asked = Questions(questions)
        self._partitioners = Partitioners(self._asked)
        self._sessions = ProfilerSessions(_profiler)

    @property
    def questions(self) -> Questions:
        return self._asked

    def answer(self, request: Any) -> Any:
        if request.method == "profile":
            return self._sessions.answer(request)
        with self._partitioners.asking(request):
            return super().answer(request)

    def _prepare(self, client: Client) -> bool:
        client.use_from_one_thread()
        self.devices = list(client.devices)
        return False

    def _handler(self, target: str, address: int) -> LocalHandler:
        return self._asked.handler(target)

    # Commands: on the main thread.

    def cancel(self, *signal: object) -> None:
        """End what is computed, if the runtime has cancelled it; the handler of the signal that says so."""
        if self.computing and self.is_cancelled(self.computing):
            note_interruption()
            raise KeyboardInterrupt

    def read_options(self, data: bytes) -> tuple[Any, bool, int]:
        """Return what the framework gave to an execution beside its arguments, whether a program without buffers can do
        without it, and the launch's id.
        """
        given = EXECUTE_OPTIONS.FromString(data)
        # Such a program asks for no context, and for no place of its call.
        return given, not (given.token or given.tasks or given.failed_code), given.launch_id

    def not_launched(self, fence: int, outputs: Sequence[int], error: BaseException) -> None:
        """Answer that an execution did not begin, or was cancelled; its results have the error, too."""
        known = CancelledError("the execution was cancelled") if self.is_cancelled(fence) else from_author(error)
        self.arrays.update(dict.fromkeys(outputs, known))
        self.fail(fence, known)

    def with_given(self, options: ExecuteOptions, message: Any) -> ExecuteOptions:
        """Return the options of an execution with what the framework gave to it beside its arguments."""
        return replace(options, **self.given(message))

    def fail(self, fence: int, error: BaseException) -> None:
        """Answer that the work with a fence has failed."""
        known = from_author(error)
        message = known.message.encode()[:1000].decode(errors="ignore").encode()  # the room of a driver's message
        parts = [message, bytes(-len(message) % 8)]
        for name, value in known.payloads.items():
            payload = name.encode() + b"\0" + value
            parts += [struct.pack("<II", len(payload) - len(value) - 1, len(value)), payload, bytes(-len(payload) % 8)]
        self.failed(fence, int(known.code), len(message), b"".join(parts))

    # Arrays.

    def from_heap(self, number: int, place: int, size: int, spec: ShapeSpec, device: int) -> Buffer:
        """Return a buffer of what the runtime wrote to the heap, which the device may use in place."""
        assert self._client is not None
        space = self.space(device, size >> 56 & 0x7F)
        if size & _SIZE_MASK != spec.size_in_bytes:
            found = size & _SIZE_MASK
            raise InternalError(f"expected {spec.size_in_bytes} bytes for an argument, found memory of {found} bytes")
        if spec.element_type is ElementType.TOKEN:
            return self._client.buffer_from_host(np.zeros(0, np.bool_), memory_space=space)
        dtype = spec.element_type.dtype
        if place == _NOWHERE:  # nobody wrote there
            zeros = np.zeros(spec.shape, dtype)
            return self._client.buffer_from_host(zeros, memory_space=space, layout=own_layout(spec))
        released = partial(self.release, place, number)
        try:
            array = np.frombuffer(self._shared, dtype, spec.size, place).reshape(spec.shape)
            # Only the memory of an argument that the runtime gives up is written to.
            return self._client.buffer_from_host(
                array,
                memory_space=space,
                layout=own_layout(spec),
                semantics=HostBufferSemantics.MUTABLE_ZERO_COPY,
                on_done_with_host_buffer=released,
            )
        except BaseException:
            released()
            raise

    def copy_out(self, fence: int, number: int, place: int, offset: int, size: int) -> None:
        """Write bytes of an array to the heap."""

        def write(values: HostArray) -> None:
            data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            if offset + size > data.size:  # the runtime knows the bounds alone
                raise UnimplementedError(
                    f"the array has the shape {values.shape}, which only the run has decided: a device that is "
                    "exported has arrays of the shapes that the program states"
                )
            np.frombuffer(self._shared, np.uint8, size, place)[:] = data[offset : offset + size]
            self.done(fence)

        def bring(future: Future[HostArray]) -> None:
            try:
                write(future.result())
            except Exception as error:  # whoever waits for the fence must learn of it
                self.fail(fence, error)

        value = self.value(number)
        if type(value) is np.ndarray:
            write(value)
        else:
            self.buffer(number).to_host().add_done_callback(bring)

    def copy(self, fence: int, number: int, copy: int, device: int, kind: int) -> None:
        """Copy an array to another device or kind of memory."""
        copied = self.buffer(number).copy_to(self.space(device, kind))
        self.finish([copy], [copied], fence, copied.ready())


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import worker

    worker.main(*sys.argv[1:])

"""The worker: the process that computes for devices in Python, whose clients stand behind the runtime in C.

The runtime starts it as ``python -m pjrt.native.worker SPEC FOLDER``. Its standard input is a socket, on which devices,
programs to compile and executables to load are asked for (see ``compiling``). Descriptor 3 is memory that both share:
there the commands are that follow each other fast. native/library/driver_worker.c has their form. Descriptor 4 is a
socket on which programs call functions of the framework's process (see ``questions``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client, LocalHandler
from pjrt.api.device import Device, MemorySpace, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    CancelledError,
    InternalError,
    PjrtError,
    from_author,
)
from pjrt.api.future import Future
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.loaded_executable import ExecuteOptions, FailedRunError, ValuePath
from pjrt.api.plugin import Plugin
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.topology import TopologyDescription
from pjrt.api.waits import note_interruption
from pjrt.capi.client_factories import make_client, named_topology
from pjrt.capi.import_spec import find_attribute
from pjrt.capi.library_files import library_of
from pjrt.host_memory.array import HostArray
from pjrt.native.compiling import checked_function, serve, take_connection
from pjrt.native.questions import Questions
from pjrt.native.served import EXECUTE_OPTIONS, Factory, ServedClient, own_layout

_LAUNCH, _FREE, _COPY_OUT, _COPY, _UNLOAD, _ASK = 1, 2, 3, 4, 5, 6
_IS_ON_HOST, _ADDRESS = 1, 2
_DONE, _RELEASE = 1, 2
_NOWHERE = 2**64 - 1
_SIZE_MASK, _IMPORTED, _IN_HEAP = 2**56 - 1, 2**63, 2**63

_HEAD = struct.Struct("<IIQ")
_LAUNCH_HEAD = struct.Struct("<IIIIQq")
_ANSWER = struct.Struct("<IIQII")


@dataclass(slots=True)
class _Loaded:
    """An executable that can be launched: what a launch needs of it, and how many devices of the runtime have it."""

    execute: Callable[..., list[Buffer]]
    parameters: Sequence[ShapeSpec]
    devices: Sequence[Device] | None  # those that it runs on; any, for a portable one
    path: ValuePath | None
    options: dict[frozenset[int], ExecuteOptions]
    users: int

    def runs_on(self, device: Device) -> bool:
        """Return whether it can be launched on a device."""
        return self.devices is None or device in self.devices


@dataclass(slots=True)
class _Value:
    """The value of a result that no buffer was made of yet: ``ValuePath`` has it."""

    value: Any
    make: Callable[[Any], Buffer]


def main(spec: str, folder: str = "") -> None:
    """Serve the runtime until it closes its end of the socket.

    Args:
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of a function that makes clients, of a
            ``pjrt.Plugin``'s class, or of what ``pjrt.export`` returned.
        folder: a folder to import the module from; empty where it is installed.
    """
    connection = take_connection(folder)

    def factory(options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client | TopologyDescription:
        found = find_attribute(spec)
        make: Callable[..., Client | TopologyDescription] | None = getattr(found, "make_for_framework", None)
        return (
            make(options, store)
            if make
            else _made(checked_function(found, spec, "makes clients"), options, store, repr(spec))
        )

    worker = Worker(factory, mmap.mmap(3, os.fstat(3).st_size), socket.socket(fileno=4))

    def answer_requests() -> None:
        serve(connection, worker.answer)
        os._exit(0)  # the runtime is gone: nothing that computes is wanted

    signal.signal(signal.SIGURG, worker.cancel)
    threading.Thread(target=answer_requests, daemon=True).start()
    worker.run()


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


class Worker(ServedClient):
    """The worker's client, its arrays and its executables.

    Args:
        factory: makes a client of a framework's options and its key-value store, or the topology that they name.
        shared: the shared memory.
        questions: the socket for questions to the framework's process.
        is_alone: whether nobody else uses the client.
    """

    def __init__(
        self,
        factory: Factory,
        shared: mmap.mmap,
        questions: socket.socket,
        *,
        is_alone: bool = True,
    ) -> None:
        super().__init__(factory)
        self._is_alone = is_alone
        self._working = threading.Lock()  # of the thread that does what is commanded
        self._helper = 0  # that thread, where it waits for a result and reads the answers itself
        self._asked = Questions(questions)
        self._shared = shared
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
        path = str(library_of(Path(__file__).parent))
        library, brief = ctypes.CDLL(path), ctypes.PyDLL(path)  # what is brief need not let go of the interpreter
        self._next, self._take = library.pjrt_worker_next, brief.pjrt_worker_take
        self._next.argtypes, self._next.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_int64
        self._take.argtypes, self._take.restype = [*self._next.argtypes, ctypes.c_uint64], ctypes.c_int64
        self._posted = brief.pjrt_worker_posted
        self._posted.argtypes, self._posted.restype = [ctypes.c_void_p], ctypes.c_uint64
        self._wait = library.pjrt_worker_wait
        self._wait.argtypes, self._wait.restype = [ctypes.c_void_p], ctypes.c_int
        self._answer = library.pjrt_worker_answer
        self._answer.argtypes, self._answer.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64], None
        self._try_answer = brief.pjrt_worker_try_answer
        self._try_answer.argtypes, self._try_answer.restype = [*self._answer.argtypes, ctypes.c_bool], ctypes.c_bool
        cancelled = brief.pjrt_worker_cancelled
        cancelled.argtypes, cancelled.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_uint64 * 256)
        self._cancelled_fences = cancelled(self._address).contents  # where the runtime writes them
        self._cancelled: frozenset[int] = frozenset()
        self._computing = 0  # the fence of what the main thread computes in a function of the device
        self._end_commands = library.pjrt_worker_end
        self._end_commands.argtypes, self._end_commands.restype = [ctypes.c_void_p], None
        self._is_over = False
        self._arrays: dict[int, Buffer | _Value | PjrtError] = {}

    @property
    def questions(self) -> Questions:
        return self._asked

    def _prepare(self, client: Client) -> bool:
        client.use_from_one_thread()
        return False

    def _handler(self, target: str, address: int) -> LocalHandler:
        return self._asked.handler(target)

    def _loaded(
        self,
        execute: Callable[..., list[Buffer]],
        parameters: Sequence[ShapeSpec],
        devices: Sequence[Device] | None,
        path: ValuePath | None,
    ) -> _Loaded:
        return _Loaded(execute, parameters, devices, path, {}, 1)

    # Commands: on the main thread.

    def run(self) -> None:
        """Do what is commanded until ``end`` is called."""
        if self._is_alone:
            self._do(self._next)
        while self._wait(self._address):
            with self._working:
                self._do_posted()

    def work(self) -> None:
        """Do what is commanded now, unless another thread is doing so."""
        if self._working.acquire(blocking=False):
            self._helper = threading.get_ident()
            try:
                self._do_posted()
            finally:
                self._helper = 0
                self._working.release()

    def _do_posted(self) -> None:
        """Do what is commanded already: whoever waits for a part of it does not do what others ask for meanwhile."""
        posted = self._posted(self._address)
        self._do(lambda address, ended: self._take(address, ended, posted))

    def _do(self, take: Callable[[int, int], int]) -> None:
        shared, address, head = self._shared, self._address, _HEAD.unpack_from
        ended = 0
        while (at := take(address, ended)) > 0:
            ended, kind, fence = head(shared, at)
            try:
                if kind == _LAUNCH:
                    self._launch(at + 16, fence)
                elif kind == _FREE:
                    self._arrays.pop(struct.unpack_from("<Q", shared, at + 16)[0], None)
                elif kind == _COPY_OUT:
                    self._check_wanted(fence)
                    self._copy_out(at + 16, fence)
                elif kind == _COPY:
                    self._check_wanted(fence)
                    self._copy(at + 16, fence)
                elif kind == _UNLOAD:
                    self.unload(struct.unpack_from("<Q", shared, at + 16)[0])
                elif kind == _ASK:
                    self._ask(at + 16, fence)
            except Exception as error:
                self._fail(fence, error)

    def cancel(self, *signal: object) -> None:
        """Do not do what the runtime has cancelled, or end it; the handler of the signal that says so."""
        self._cancelled = frozenset(self._cancelled_fences)
        if self._computing in self._cancelled and self._computing:
            note_interruption()
            raise KeyboardInterrupt

    def _check_wanted(self, fence: int) -> None:
        if fence in self._cancelled:
            raise _cancelled()

    def end(self) -> None:
        """Let ``run`` return, from another thread."""
        self._end_commands(self._address)

    def drop(self) -> None:
        """Let go of the arrays and executables, after ``run`` has returned: nobody hears of that any more."""
        self._is_over = True
        self._asked.close()
        self._arrays.clear()
        self._executables.clear()
        self._compiled.clear()

    def _launch(self, at: int, fence: int) -> None:
        number, num_inputs, num_outputs, size, executable, _ = _LAUNCH_HEAD.unpack_from(self._shared, at)
        num_words = 3 * num_inputs + num_outputs
        words = struct.unpack_from(f"<{num_words}Q", self._shared, at + 32)
        outputs = words[3 * num_inputs :]
        try:
            self._check_wanted(fence)
            loaded = self._executables[executable]
            given = None
            if size:
                start = at + 32 + 8 * num_words
                given = EXECUTE_OPTIONS.FromString(self._shared[start : start + size])
            # A program without buffers asks for no context, and for no place of its call.
            path = loaded.path if given is None or not (given.token or given.tasks or given.failed_code) else None
            launch_id = given.launch_id if given else 0
            if path is not None and self._run(loaded, path, words, num_inputs, number, fence, launch_id):
                return
            if given is not None and given.failed_code:
                arguments = self.failed_arguments(loaded.parameters, number, given)
            else:
                arguments = [
                    self._argument(words[3 * n : 3 * n + 3], loaded.parameters[n], number) for n in range(num_inputs)
                ]
            # What the runtime does not write in place, it may use again.
            written = set(outputs)
            kept = frozenset(n for n in range(num_inputs) if words[3 * n] not in written)
            options = loaded.options.get(kept) or loaded.options.setdefault(
                kept, ExecuteOptions(non_donatable_input_indices=kept)
            )
            if given is not None:
                options = replace(options, **self.given(given))
            futures: list[Future[None]] = []
            self._computing = fence
            results = loaded.execute(arguments, self.device(number), options, returned_futures=futures)
            self._computing = 0
            self._finish(outputs, results, fence, futures[0])
        except (Exception, KeyboardInterrupt) as error:
            self._computing = 0
            known = _cancelled() if fence in self._cancelled else from_author(error)
            self._arrays.update(dict.fromkeys(outputs, known))
            self._fail(fence, known)

    def _run(
        self,
        loaded: _Loaded,
        path: ValuePath,
        words: Sequence[int],
        num_inputs: int,
        device: int,
        fence: int,
        launch_id: int,
    ) -> bool:
        """Run a program without buffers; return whether it was started."""
        values = []
        find = self._arrays.get
        for n in range(0, 3 * num_inputs, 3):
            array = find(words[n])
            if type(array) is _Value:
                values.append(array.value)
                continue
            value = path.value(self._argument(words[n : n + 3], loaded.parameters[n // 3], device))
            if value is None:
                return False
            values.append(value)
        futures: list[Future[None]] = []
        outputs = words[3 * num_inputs :]
        try:
            self._computing = fence
            results = path.run(values, launch_id, futures)
            self._computing = 0
        except FailedRunError as error:
            self._computing = 0
            self._check_wanted(fence)
            self._finish(outputs, error.buffers, fence, error.buffers[0].ready())
            return True
        if results is None:
            return False
        self._arrays.update(zip(outputs, map(_Value, results, path.makers), strict=True))
        if futures:
            futures[0].add_done_callback(partial(self._end, fence))
        else:
            self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))
        return True

    def _finish(self, outputs: Sequence[int], results: Sequence[Buffer], fence: int, future: Future[None]) -> None:
        self._arrays.update(zip(outputs, results, strict=True))
        future.add_done_callback(partial(self._end, fence))

    def _end(self, fence: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._fail(fence, error)
        else:
            self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))

    def _fail(self, fence: int, error: Exception) -> None:
        known = from_author(error)
        message = known.message.encode()[:1000].decode(errors="ignore").encode()  # the room of a driver's message
        parts = [message, bytes(-len(message) % 8)]
        for name, value in known.payloads.items():
            payload = name.encode() + b"\0" + value
            parts += [struct.pack("<II", len(payload) - len(value) - 1, len(value)), payload, bytes(-len(payload) % 8)]
        body = b"".join(parts)
        self._say(_ANSWER.pack(24 + len(body), _DONE, fence, int(known.code), len(message)) + body)

    def _say(self, answer: bytes) -> None:
        if self._is_over:
            return
        wakes = self._helper != threading.get_ident()
        if not self._try_answer(self._address, answer, len(answer), wakes):
            self._answer(self._address, answer, len(answer))

    # Arrays.

    def _argument(self, words: Sequence[int], spec: ShapeSpec, device: int) -> Buffer:
        number, place, size = words
        if number not in self._arrays:
            space = self._spaces[device][size >> 56 & 0x7F]
            self._arrays[number] = self._from_heap(number, place, size, spec, space)
        return self._buffer(number)

    def _buffer(self, number: int) -> Buffer:
        """Return an array as a buffer.

        Raises:
            PjrtError: the array was to be the result of an execution that did not begin.
        """
        array = self._arrays[number]
        if isinstance(array, PjrtError):
            raise array
        if isinstance(array, _Value):
            array = self._arrays[number] = array.make(array.value)
        return array

    def _from_heap(self, number: int, place: int, size: int, spec: ShapeSpec, space: MemorySpace) -> Buffer:
        """Return a buffer of what the runtime wrote to the heap, which the device may use in place."""
        assert self._client is not None
        if size & _SIZE_MASK != spec.size_in_bytes:
            found = size & _SIZE_MASK
            raise InternalError(f"expected {spec.size_in_bytes} bytes for an argument, found memory of {found} bytes")
        if spec.element_type is ElementType.TOKEN:
            return self._client.buffer_from_host(np.zeros(0, np.bool_), memory_space=space)
        dtype = spec.element_type.dtype
        if place == _NOWHERE:  # nobody wrote there
            zeros = np.zeros(spec.shape, dtype)
            return self._client.buffer_from_host(zeros, memory_space=space, layout=own_layout(spec))
        released = partial(self._say, struct.pack("<IIQQQ", 32, _RELEASE, 0, place, number))
        try:
            if size & _IMPORTED:
                memory = (ctypes.c_char * spec.size_in_bytes).from_address(place)
                array = np.frombuffer(memoryview(memory), dtype, spec.size).reshape(spec.shape)
            else:
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

    def _copy_out(self, at: int, fence: int) -> None:
        number, place, offset, size = struct.unpack_from("<4Q", self._shared, at)

        def write(values: HostArray) -> None:
            data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            np.frombuffer(self._shared, np.uint8, size, place)[:] = data[offset : offset + size]
            self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))

        def bring(future: Future[HostArray]) -> None:
            error = future.exception()
            if error is not None:
                self._fail(fence, error)
            else:
                write(future.result())

        array = self._arrays[number]
        if type(array) is _Value and type(array.value) is np.ndarray:
            write(array.value)
        else:
            self._buffer(number).to_host().add_done_callback(bring)

    def _ask(self, at: int, fence: int) -> None:
        what, which, place = struct.unpack_from("<3Q", self._shared, at)
        answer = self.is_on_host(which >> 32, which & 0xFFFFFFFF) if what == _IS_ON_HOST else self._address_of(which)
        struct.pack_into("<Q", self._shared, place, answer)
        self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))

    def _address_of(self, number: int) -> int:
        """Return the address of an array on the host; for one in the heap its place there, with a mark."""
        place = self._buffer(number).unsafe_pointer() - self._address
        return place | _IN_HEAP if 0 <= place < len(self._shared) else place + self._address

    def _copy(self, at: int, fence: int) -> None:
        number, copy, device, kind = struct.unpack_from("<QQII", self._shared, at)
        copied = self._buffer(number).copy_to(self._spaces[device][kind])
        self._finish((copy,), (copied,), fence, copied.ready())


def _cancelled() -> CancelledError:
    return CancelledError("the execution was cancelled")


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import worker

    worker.main(*sys.argv[1:])

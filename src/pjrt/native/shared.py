"""The worker that several processes share: each of them has a session with the one client.

The runtime starts it as ``python -m pjrt.native.shared SPEC FOLDER``. Its standard input is a socket that listens. Each
process that connects sends the files that a worker of its own inherits: the memory that both share, a socket for
questions, and where lines are printed. It gets a file that can be read when this process has ended. Then the connection
carries its requests. The worker ends with its last session.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import secrets
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from pjrt.api.client import Client, LocalHandler
from pjrt.api.device import NamedValue
from pjrt.api.errors import AlreadyExistsError, CancelledError, InvalidArgumentError, UnimplementedError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.program import Program
from pjrt.api.topology import TopologyDescription
from pjrt.api.waits import note_interruption
from pjrt.capi.client_factories import PLACE_OPTIONS
from pjrt.host_memory.array import HostArray
from pjrt.native.compiling import serve, take_connection
from pjrt.native.partitioners import Partitioners
from pjrt.native.served import Factory
from pjrt.native.worker import Worker, factory_of
from pjrt.stablehlo.encodings import jaxlib

_BITS = 32
"""The bits of the number that a process gives to a function; those above it have the number of the session."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def main(spec: str, folder: str = "") -> None:
    """Serve all processes of this user that connect, until the last one leaves.

    Args:
        spec: as ``pjrt.native.worker`` takes it.
        folder: a folder to import the module from; empty where it is installed.
    """
    device = SharedDevice(factory_of(spec))
    listener = take_connection(folder)
    signal.signal(signal.SIGURG, device.cancel)
    while True:
        connection, _ = listener.accept()
        (_, user, _) = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.geteuid():
            device.begin(connection)
        else:
            connection.close()


class SharedDevice:
    """The client of a worker, and the sessions that use it.

    Args:
        factory: makes the client, or the topology that the options name.
    """

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._lock = threading.Lock()  # guards what follows
        self._client: Client | None = None
        self._options: Mapping[str, NamedValue] = {}
        self._sessions: dict[socket.socket, int] = {}  # and where the process of each prints; -1 for nowhere
        self.numbered: dict[int, Session] = {}
        """The sessions whose commands are done, by their numbers."""
        self._printer = -1
        self.turn = threading.Lock()
        """Held by the session that launches, from the first to the last launch of an execution of several devices."""
        self.dividing = threading.Lock()
        """Held while a program is compiled with custom calls that functions of the session's process divide."""

    def open(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client | TopologyDescription:
        """Return the client, which the first session's options make, or the topology that the options name.

        Raises:
            InvalidArgumentError: the client has other options.
            UnimplementedError: the process belongs to a job of several.
        """
        if options.get("topology"):
            return self._factory(options, None)
        if options.get("num_nodes") not in (None, 1):  # JAX gives a place and a store in any case
            raise UnimplementedError(
                f"expected a device that processes share to be in no job, found a job of {options['num_nodes']} "
                "processes; export it without --shared"
            )
        options = {name: value for name, value in options.items() if name not in PLACE_OPTIONS}
        with self._lock:
            if self._client is None:
                made = self._factory(options, None)
                if isinstance(made, TopologyDescription):
                    return made
                self._client, self._options = made, options
            if options != self._options:
                raise InvalidArgumentError(
                    f"expected the options with which another process has opened the device that both share, "
                    f"{dict(self._options)}, found {dict(options)}"
                )
            return self._client

    def register(self, target: str, handler: LocalHandler, traits: int) -> bool:
        """Register a handler with the client; return whether it takes any."""
        assert self._client is not None
        with self._lock, contextlib.suppress(AlreadyExistsError):
            try:
                self._client.register_ffi_handler(target, handler, traits=traits)
            except UnimplementedError:
                return False
        return True

    def call_back(self, target: str, *buffers: HostArray, callback: int, **attributes: Any) -> None:
        """Call a function of the session whose number is in that of the function: the handler of JAX's callbacks."""
        session = self.numbered.get(callback >> _BITS)
        if session is None:
            raise CancelledError("the process whose function the program calls has ended")
        session.questions.call(target, *buffers, callback=callback & (1 << _BITS) - 1, **attributes)

    def begin(self, connection: socket.socket) -> None:
        """Begin a session with a process, on a thread of its own."""
        with self._lock:
            self._sessions[connection] = -1
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), contextlib.closing(self._session(connection)) as session:
                ended = os.pidfd_open(os.getpid())
                socket.send_fds(connection, [b"\0"], [ended])
                os.close(ended)
                serve(connection, session.answer)
        finally:
            self._end(connection)

    def cancel(self, *signal: object) -> None:
        """End what sessions compute, if their processes have cancelled it; the handler of the signal that says so."""
        for session in list(self.numbered.values()):
            session.cancel()

    def _session(self, connection: socket.socket) -> Session:
        """Return a session with the process that has sent its files."""
        _, files, *_ = socket.recv_fds(connection, 1, 3)
        memory, questions, *prints = files or [-1, -1]
        if fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise OSError("the shared memory may shrink")  # reading behind its end would end this process
        with self._lock:
            self._sessions[connection] = prints[0] if prints else -1
            self._print()
        shared = mmap.mmap(memory, os.fstat(memory).st_size)
        os.close(memory)
        return Session(self, connection, shared, socket.socket(fileno=questions))

    def _print(self) -> None:
        """Let the process of the oldest session get what this one prints."""
        oldest = next((each for each in self._sessions.values() if each >= 0), -1)
        if oldest != self._printer and oldest >= 0:
            os.dup2(oldest, 1)
            os.dup2(oldest, 2)
            self._printer = oldest

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            prints = self._sessions.pop(connection)
            if not self._sessions:
                os._exit(0)  # whoever has connected just now starts another worker
            self._print()
            if prints >= 0:
                os.close(prints)
        connection.close()  # its process waits for this


class Session(Worker):
    """A session of one process with the device: its arrays, its executables, its handlers.

    Args:
        device: the device.
        connection: where the process asks.
        shared: the memory that is shared with the process.
        questions: the socket for questions to the process.
    """

    def __init__(
        self, device: SharedDevice, connection: socket.socket, shared: mmap.mmap, questions: socket.socket
    ) -> None:
        super().__init__(device.open, shared, questions)
        self.takes_turns = True
        self._partitioners = Partitioners(self._asked, device.dividing)
        self._device = device
        self._open_runs: dict[tuple[int, int], int] = {}  # launches of several devices, and how many are missing
        self._number = secrets.randbits(31)  # a serialized program finds no function of another process
        self._traits: dict[str, int] = {}  # of the handlers of the process
        self._renamed: dict[str, str] = {}  # the names that they have with the client
        device.numbered[self._number] = self
        self._commands = threading.Thread(target=self._do_commands, args=(connection,), daemon=True)
        self._commands.start()

    def _register(self, request: Any) -> None:
        self._traits.update(zip(request.handlers, request.handler_traits, strict=True))

    def _with_own_calls(self, program: Program) -> Program:
        """Return a program whose custom calls find the handlers of this session's process, and of no other one."""
        if not any(target.encode() in program.code for target in self._traits):
            return program
        from pjrt.stablehlo.ir import mlir_module  # here, because few programs have handlers
        from pjrt.stablehlo.reading.conversion import to_module

        module = to_module(program, trusted=True, legalized=False)
        with module as mlir:
            for operation in mlir_module.walk(mlir.operation):
                if "call_target_name" in operation.attributes:
                    self._own(operation.attributes)
        return Program(mlir_module.write_bytecode(module))

    def _own(self, attributes: Any) -> None:
        """Change a custom call: JAX's callbacks have the number of a function, and XLA knows their names."""
        ir = jaxlib.load("mlir.ir", "run programs that call functions of this process")
        target = attributes["call_target_name"].value
        if target not in self._traits:
            return
        facts = next((name for name in ("backend_config", "mhlo.backend_config") if name in attributes), None)
        if facts and isinstance(attributes[facts], ir.DictAttr) and "callback" in attributes[facts]:
            number = self._number << _BITS | attributes[facts]["callback"].value
            stated = {each.name: each.attr for each in attributes[facts]}
            stated["callback"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
            attributes[facts] = ir.DictAttr.get(stated)
            self._device.register(target, LocalHandler(partial(self._device.call_back, target)), self._traits[target])
            return
        if target not in self._renamed:
            name = f"{target}@{self._number:08x}"
            has_it = self._device.register(name, self._handler(target, 0), self._traits[target])
            self._renamed[target] = name if has_it else target
        attributes["call_target_name"] = ir.StringAttr.get(self._renamed[target])

    # Commands: on a thread of the session.

    def cancel(self, *signal: object) -> None:
        if self.computing and self.is_cancelled(self.computing):
            note_interruption()
            self.interrupt()
        self.give_up_cancelled()

    def _do_commands(self, connection: socket.socket) -> None:
        """Do what the process commands until the session ends. One that writes what cannot be loses its session."""
        try:
            self.do_all()
        except Exception:
            logging.getLogger("pjrt").exception("a process that shares the device has lost it")
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def before_launch(self, executable: int, run: int) -> None:
        """Wait until no other session launches. An execution of several devices is launched as a whole."""
        if not self._open_runs:
            self._device.turn.acquire()
        loaded = self.executables.get(executable)
        self._open_runs.setdefault((executable, run), loaded.num_devices if loaded else 1)

    def after_launch(self, executable: int, run: int) -> None:
        """Let others launch, where all devices have what they run together."""
        self._open_runs[executable, run] -= 1
        if self._open_runs[executable, run] == 0:
            del self._open_runs[executable, run]
            if not self._open_runs:
                self._device.turn.release()

    def close(self) -> None:
        """End what the process wanted, and let go of everything that it had."""
        self.end()
        self.interrupt()
        self._commands.join()
        del self._device.numbered[self._number]
        if self._open_runs:
            self._device.turn.release()
        self.arrays.clear()
        self.executables.clear()
        self._compiled.clear()
        self._asked.close()


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import shared

    shared.main(*sys.argv[1:])

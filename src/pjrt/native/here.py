"""Devices of objects of this process behind the runtime in C: a thread of this process is their worker.

The runtime asks for a client at a socket, and gives what a worker inherits as its descriptors: see
native/library/process.c. All plugins of the process share the socket.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pjrt import stablehlo
from pjrt.api.client import Client
from pjrt.api.device import Attributes, NamedValue
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.topology import TopologyDescription
from pjrt.capi.library_files import library_of, with_settings
from pjrt.native.compiling import serve
from pjrt.native.facts import plugin_facts
from pjrt.native.library import MARK
from pjrt.native.worker import Worker
from pjrt.system import open_library_content

Factory = Callable[[Mapping[str, NamedValue], KeyValueStore | None], Client | TopologyDescription]
"""Makes a client of a framework's options and its key-value store, or the topology that they name."""

_GIVEN = struct.Struct("4iII")

_lock = threading.Lock()
_plugins: dict[int, Here] = {}
_numbers = itertools.count()
_asks: int | None = None


class Here:
    """A plugin whose devices are objects of this process.

    Its table lives as long as the process, as the C API wants of tables.

    Args:
        factory: makes its clients, each when a framework asks for it.
        release: is given each client that its framework needs no more.
        attributes: what the plugin says about itself.
        platform_name: the platform's name that frameworks see; empty for that of the client.
    """

    def __init__(
        self, factory: Factory, release: Callable[[Client], None], attributes: Attributes, platform_name: str = ""
    ) -> None:
        self._factory, self._release = factory, release
        number = next(_numbers)
        _plugins[number] = self
        settings = {
            "driver": "worker",
            "here": f"{_socket()} {number}",
            "platform": platform_name,
            "stablehlo": f"{stablehlo.current_version()} {stablehlo.minimum_version()}",
            "attributes": plugin_facts(attributes).hex(),
        }
        content = with_settings(library_of(Path(__file__).parent), MARK, settings)
        library = ctypes.CDLL("pjrt", handle=open_library_content(content))
        python = ctypes.pythonapi
        is_ending = python.Py_IsFinalizing if sys.version_info >= (3, 13) else python._Py_IsFinalizing
        self._workers: dict[int, Worker] = {}
        self._work = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(self._do_work)
        functions = (
            python.PyGILState_Check, is_ending, python.PyEval_SaveThread, python.PyEval_RestoreThread, self._work
        )  # fmt: skip
        library.pjrt_native_interpreter(*(ctypes.cast(each, ctypes.c_void_p) for each in functions))
        library.GetPjrtApi.restype = ctypes.c_void_p
        self.address: int = library.GetPjrtApi()

    def _do_work(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is not None:
            worker.work()

    def _serve(self, number: int, requests: int, shared: int, questions: int, life: int) -> None:
        try:
            with socket.socket(fileno=requests) as connection, socket.socket(fileno=questions) as asks:
                memory = mmap.mmap(shared, os.fstat(shared).st_size)
                os.close(shared)
                worker = self._workers[number] = Worker(self._factory, memory, asks, is_alone=False)
                commands = threading.Thread(target=worker.run, name="pjrt-here", daemon=True)
                commands.start()
                serve(connection, worker.answer)
                worker.end()
                commands.join()
                worker.drop()
                if worker.client is not None:
                    self._release(worker.client)
        finally:
            self._workers.pop(number, None)
            os.close(life)


def _socket() -> int:
    """Return the descriptor of the socket at which a thread of this process waits for clients to make."""
    global _asks
    with _lock:
        if _asks is None:
            asked, asks = (each.detach() for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            threading.Thread(target=_listen, args=(asked,), name="pjrt-plugins", daemon=True).start()
            _asks = asks
        return _asks


def _listen(asked: int) -> None:
    while message := os.read(asked, _GIVEN.size):
        *given, plugin, number = _GIVEN.unpack(message)
        threading.Thread(target=_plugins[plugin]._serve, args=(number, *given), name="pjrt-client", daemon=True).start()

"""Devices of objects of this process behind the runtime in C, which calls them on its callers' threads."""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.client import Client
from pjrt.api.device import Attributes
from pjrt.api.plugin import Profiler
from pjrt.api.program import from_caller
from pjrt.capi import function_at
from pjrt.capi.library_files import library_of, with_settings
from pjrt.native._here import Arrays, Functions
from pjrt.native.compiling import ANSWER, answered
from pjrt.native.facts import plugin_facts
from pjrt.native.library import MARK, clients_here, heed_interrupts_of, served_here
from pjrt.native.questions import Questions
from pjrt.native.served import Factory, ProfilerSessions, ServedClient
from pjrt.system import open_library_content

_plugins: list[Here] = []


class Here:
    """A plugin whose devices are objects of this process.

    It lives as long as the process, as the C API wants of tables.

    Args:
        factory: makes its clients, each when a framework asks for it.
        release: is given each client that its framework needs no more.
        attributes: what the plugin says about itself.
        platform_name: the platform's name that frameworks see; empty for that of the client.
        profiler: makes a profiling session of serialized options, if the plugin has a profiler.
    """

    def __init__(
        self,
        factory: Factory,
        release: Callable[[Client], None],
        attributes: Attributes,
        platform_name: str = "",
        profiler: Callable[[bytes], Profiler] | None = None,
    ) -> None:
        self._factory, self._release = factory, release
        settings = {
            "driver": "here",
            "platform": platform_name,
            "stablehlo": f"{stablehlo.current_version()} {stablehlo.minimum_version()}",
            "attributes": plugin_facts(attributes).hex(),
        }
        content = with_settings(library_of(Path(__file__).parent), MARK, settings)
        library = ctypes.CDLL("pjrt", handle=open_library_content(content))
        python = ctypes.pythonapi
        is_ending = python.Py_IsFinalizing if sys.version_info >= (3, 13) else python._Py_IsFinalizing
        questions = python.PyGILState_Check, is_ending, python.Py_IsInitialized
        functions = *questions, python.PyEval_SaveThread, python.PyEval_RestoreThread
        library.pjrt_native_interpreter(*(ctypes.cast(each, ctypes.c_void_p) for each in functions))
        profile = partial(answered, ProfilerSessions(lambda _: profiler).answer) if profiler else None
        self._functions = Functions(self._open, profile)
        library.pjrt_native_here.argtypes, library.pjrt_native_here.restype = [ctypes.c_void_p], ctypes.c_void_p
        self._runtime = library.pjrt_native_here(self._functions.address)
        self._library = library
        library.GetPjrtApi.restype = ctypes.c_void_p
        self.address: int = library.GetPjrtApi()
        _plugins.append(self)

    def _open(self, driver: int, message: bytes) -> tuple[Arrays | None, bytes]:
        served = _Served(self._factory, self._release, driver, self._runtime)
        answer = served.answer_bytes(message)
        heed_interrupts_of(self._library)
        return (None if ANSWER.FromString(answer).code else served.arrays), answer


class _Served(ServedClient):
    """A client of this process, and its arrays: ``_here`` has what they are.

    Args:
        factory: makes the client.
        release: is given the client when its framework needs it no more.
        driver: the address of the runtime's driver.
        runtime: the address of the runtime's functions.
    """

    def __init__(self, factory: Factory, release: Callable[[Client], None], driver: int, runtime: int) -> None:
        super().__init__(factory, {})
        self._release = release
        self._questions: Questions | None = None
        self._on_host: dict[tuple[int, int], bool] = {}
        self.arrays = Arrays(self, driver, runtime)

    @property
    def questions(self) -> Questions:
        if self._questions is None:  # few programs ask anything
            self._questions = Questions(socket.socket(fileno=self.arrays.questions()))
        return self._questions

    def _prepare(self, client: Client) -> bool:
        clients_here.add(client)
        served_here.add(self)
        return type(client).create_execute_context is not Client.create_execute_context

    def _handler(self, target: str, address: int) -> Callable[..., Any] | int:
        return function_at(address) or address  # a Python function, where this package made the handler of one

    def answer_bytes(self, message: bytes) -> bytes:
        """Return the answer to a request of the runtime; an error becomes an answer, too."""
        with from_caller(framework=True):
            return answered(self.answer, message)

    def is_on_host(self, device: int, kind: int) -> bool:
        """Return whether this process can look at arrays in a memory."""
        found = self._on_host.get((device, kind))
        if found is None:
            assert self._client is not None
            empty = self._client.buffer_from_host(np.zeros(0, np.float32), memory_space=self._spaces[device][kind])
            found = self._on_host[device, kind] = empty.is_on_cpu
        return found

    def give_up_cancelled(self) -> None:
        """Have the client give up the work that the runtime has cancelled."""
        for future in self.arrays.cancelled():
            self.give_up(future, "Ctrl-C ended a wait for a device, and nothing holds the results of the launch")

    def close(self) -> None:
        """Let go of the client."""
        if self._questions is not None:
            self._questions.close()
        self._executables.clear()
        self._compiled.clear()
        if self._client is not None:
            self._release(self._client)

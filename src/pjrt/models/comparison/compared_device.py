"""Devices that are compared: programs in, whole arrays out, in this process or in a worker."""

from __future__ import annotations

import abc
import atexit
import contextlib
import functools
import hashlib
import os
import pickle
import re
import signal
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import pjrt.ifrt
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PjrtError,
)
from pjrt.api.program import Program
from pjrt.capi import load_plugin
from pjrt.models.model import put_on_each_replica as put_each
from pjrt.models.model import values_of_replicas
from pjrt.native.library import write_library
from pjrt.plugins.registry import client_with_devices
from pjrt.system import TemporaryFolder
from pjrt.system.python_process import Ended

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Row = Sequence[Array]
"""The arguments or results of one replica: whole arrays."""

_KEPT = 4
"""The number of executables that a device keeps: the search for a difference runs few programs several times."""


class ComparedDevice(abc.ABC):
    """A device that runs programs on whole arrays.

    Attributes:
        name: its name in reports.
        compilations: the number of programs that it has compiled.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.compilations = 0

    @property
    @abc.abstractmethod
    def platform_name(self) -> str:
        """The platform's name.

        Raises:
            PjrtError: the device's client cannot be made.
        """

    @abc.abstractmethod
    def run(self, program: Program, arguments: Sequence[Row]) -> list[list[Array]]:
        """Run a program, and return the results of each replica.

        Args:
            program: the program.
            arguments: the arguments of each replica; those of a single row are for all of them.

        Raises:
            PjrtError: the device cannot compile or run the program, or crashed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device. May be called again."""


class DeviceInProcess(ComparedDevice):
    """A device of a client in this process.

    Args:
        name: its name in reports.
        client: the client, or the name of a device, of which a client is made.
        compile_options: the compile options, which state the number of devices; they win over the programs.
        client_options: the options of a client that is made.
        owns_client: whether a client that is given is closed with the device, as one that is made here is.

    Raises:
        PjrtError: the client cannot be made, or has too few devices.
    """

    def __init__(
        self,
        name: str,
        client: Client | pjrt.ifrt.Client | str,
        compile_options: CompileOptions,
        client_options: Mapping[str, Any],
        *,
        owns_client: bool = False,
    ) -> None:
        super().__init__(name)
        self._options = compile_options
        count = compile_options.partitioning.num_devices
        if isinstance(client, str):
            client, owns_client = client_with_devices(client, count, client_options), True
        self._own = client if owns_client and isinstance(client, Client) else None
        self._client = client if isinstance(client, pjrt.ifrt.Client) else pjrt.ifrt.Client(client)
        if len(self._client.devices) < count:
            available = len(self._client.devices)
            if self._own is not None:
                self._own.close()
            raise InvalidArgumentError(f"the program needs {count} devices, {name} has {available}")
        self._executables: OrderedDict[bytes, pjrt.ifrt.LoadedExecutable] = OrderedDict()

    @property
    def platform_name(self) -> str:
        """The platform's name."""
        return self._client.platform_name

    def run(self, program: Program, arguments: Sequence[Row]) -> list[list[Array]]:
        """Run a program, and return the results of each replica."""
        executable = self._compiled(program)
        count = executable.pjrt_executable.num_replicas
        rows = list(arguments) if len(arguments) == count else [arguments[0]] * count
        arrays = [put_each(executable, index, column) for index, column in enumerate(zip(*rows, strict=True))]
        results = executable(*arrays)
        columns = [values_of_replicas(executable, index, result) for index, result in enumerate(results)]
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(count)]

    def _compiled(self, program: Program) -> pjrt.ifrt.LoadedExecutable:
        key = hashlib.sha256(program.code).digest()
        executable = self._executables.get(key)
        if executable is None:
            self.compilations += 1
            executable = self._executables[key] = self._client.compile(program, self._options)
            if len(self._executables) > _KEPT:
                self._executables.popitem(last=False)[1].delete()
        else:
            self._executables.move_to_end(key)
        return executable

    def close(self) -> None:
        """Unload the executables, and close a client that was made here."""
        while self._executables:
            self._executables.popitem()[1].delete()
        if self._own is not None:
            self._own.close()


# A device in a worker: if it crashes or hangs, that is an error of its runs, not the end of this process.

_OPENING_SECONDS = 60.0
"""The least time limit for the start of a worker: it imports libraries, which takes long on a busy machine."""

_LOST = re.compile(
    r"the process that computes gave no answer, (?:signal (\d+) ended it|it ended with exit status (\d+)).*?"
    r"it wrote (?:nothing|last:\n(.*))",
    re.DOTALL,
)
"""Matches the runtime's message about a worker that has ended."""


class DeviceInWorker(ComparedDevice):
    """A device whose client lives in a process of its own, a worker.

    The worker starts at once, and others may start meanwhile: whatever needs it first raises the error of a client that
    cannot be made. After a crash, or a run that takes too long, the next run begins with a new worker.

    Args:
        name: its name in reports.
        device: the name of the device, as of ``pjrt.client``.
        compile_options: the compile options, which state the number of devices; they win over the programs.
        client_options: the options of the client.
        time_limit: the seconds that a run may take, its compilation included.
    """

    def __init__(
        self,
        name: str,
        device: str,
        compile_options: CompileOptions,
        client_options: Mapping[str, Any],
        time_limit: float,
    ) -> None:
        super().__init__(name)
        self._options, self._time_limit, self._platform = compile_options, time_limit, ""
        count = compile_options.partitioning.num_devices
        self._task = pickle.dumps(([*filter(None, sys.path)], device, count, dict(client_options))).hex()
        self._number = tempfile.NamedTemporaryFile()  # noqa: SIM115  # the worker's; closed by `close`
        self._pool = ThreadPoolExecutor(1, "pjrt compare")
        self._opening: Future[DeviceInProcess] | None = self._pool.submit(self._open)

    @property
    def platform_name(self) -> str:
        """The platform's name; the worker is waited for."""
        if not self._platform:
            self._platform = self._opened().platform_name
        return self._platform

    def run(self, program: Program, arguments: Sequence[Row]) -> list[list[Array]]:
        """Run a program, and return the results of each replica."""
        device = self._opened()
        before = device.compilations
        try:
            return self._done(self._pool.submit(device.run, program, arguments), self._time_limit)
        finally:
            self.compilations += device.compilations - before

    def close(self) -> None:
        """End the worker."""
        self._end()
        self._pool.shutdown()
        self._number.close()

    def _open(self) -> DeviceInProcess:
        plugin = load_plugin(_library())
        try:
            client = plugin.client(task=self._task, number=self._number.name)
        except PjrtError as error:
            # The error as the device gave it: the plugin's names a file that the user does not know.
            raise error.__context__ if isinstance(error.__context__, PjrtError) else error from None
        return DeviceInProcess(self.name, client, self._options, {}, owns_client=True)

    def _opened(self) -> DeviceInProcess:
        if self._opening is None:
            self._opening = self._pool.submit(self._open)
        return self._done(self._opening, max(self._time_limit, _OPENING_SECONDS))

    def _done(self, work: Future[T], seconds: float) -> T:
        """Return the result of work on the other thread; end the worker if it is not done in time, or at Ctrl-C."""
        try:
            in_time = bool(wait([work], seconds).done)
        finally:
            self._stop(work)
        if not in_time:
            self._end()
            raise DeadlineExceededError(f"the device {self.name} was not done within {seconds:g} seconds")
        try:
            return work.result()
        except PjrtError as error:
            found = _LOST.search(error.message)
            if found is None:
                raise
            self._end()
            status = int(found[2]) if found[1] is None else -int(found[1])
            ended = Ended(status, b"", found[3] or "")
            raise InternalError(f"the device {self.name} crashed: {ended}") from None

    def _stop(self, work: Future[Any]) -> None:
        """Kill the worker until work with it is done, which may be to start it."""
        while not work.done():
            with contextlib.suppress(ProcessLookupError, ValueError):  # it has ended, or has not begun
                os.kill(int(Path(self._number.name).read_text()), signal.SIGKILL)
            wait([work], 0.05)

    def _end(self) -> None:
        if self._opening is not None:
            self._stop(self._opening)
            if self._opening.exception() is None:
                self._opening.result().close()
            self._opening = None
            Path(self._number.name).write_text("")


@functools.cache
def _library() -> Path:
    """Return the library of the workers; what they print is shown where one crashes."""
    folder = TemporaryFolder("compare")
    atexit.register(folder.close)
    place = f"{__name__}:{client_in_worker.__name__}"
    return write_library(folder.path / "device.so", place, driver="worker", label="")


def client_in_worker(task: str, number: str) -> Client:
    """Return the client of a device that is compared, in its worker.

    Args:
        task: where the other process finds modules, the name of the device, the least number of devices, and the
            options of the client, as a pickle.
        number: the file to write the number of this process to.
    """
    Path(number).write_text(str(os.getpid()))
    path, *device = pickle.loads(bytes.fromhex(task))
    sys.path += [each for each in path if each not in sys.path]
    return client_with_devices(*device)

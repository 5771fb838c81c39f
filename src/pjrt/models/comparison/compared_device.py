"""Devices that are compared: programs in, whole arrays out, in this process or in a subprocess."""

from __future__ import annotations

import abc
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import pjrt.ifrt
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program
from pjrt.models.replica_arrays import put_each, values_of_replicas
from pjrt.plugins.registry import client_with_devices

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
        """The platform's name."""

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

    Raises:
        PjrtError: the client cannot be made, or has too few devices.
    """

    def __init__(
        self,
        name: str,
        client: Client | pjrt.ifrt.Client | str,
        compile_options: CompileOptions,
        client_options: Mapping[str, Any],
    ) -> None:
        super().__init__(name)
        self._options = compile_options
        count = compile_options.partitioning.num_devices
        self._own: Client | None = None
        if isinstance(client, str):
            client = self._own = client_with_devices(client, count, client_options)
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

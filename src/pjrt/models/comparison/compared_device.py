"""Devices that are compared: programs in, whole arrays out, in this process or in a subprocess."""

from __future__ import annotations

import abc
import hashlib
import json
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

import pjrt.ifrt
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DeadlineExceededError, InternalError, InvalidArgumentError, PjrtError
from pjrt.api.program import Program
from pjrt.models.model import put_on_each_replica as put_each
from pjrt.models.model import values_of_replicas
from pjrt.plugins.registry import client_with_devices
from pjrt.system.python_process import PythonChild

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


# A device in a subprocess: if it crashes or hangs, that is an error of its runs, not the end of this process.

_LENGTH = struct.Struct("<Q")

_OPENING_SECONDS = 60.0
"""The least time limit for the start of a subprocess: it imports libraries, which takes long on a busy machine."""


class DeviceInSubprocess(ComparedDevice):
    """A device whose client lives in a subprocess.

    After a crash, or a run that takes too long, the next run begins with a new subprocess.

    Args:
        name: its name in reports.
        device: the name of the device, as of ``pjrt.client``.
        compile_options: the compile options, which state the number of devices; they win over the programs.
        client_options: the options of the client.
        time_limit: the seconds that a run may take, its compilation included.

    Raises:
        PjrtError: the client cannot be made.
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
        self._start = (name, device, compile_options, dict(client_options))
        self._time_limit = time_limit
        self._process: _Process | None = None
        self._platform = ""
        try:
            self._open()
        except _LostError as lost:
            self.close()
            raise lost.error from None

    @property
    def platform_name(self) -> str:
        """The platform's name."""
        return self._platform

    def run(self, program: Program, arguments: Sequence[Row]) -> list[list[Array]]:
        """Run a program, and return the results of each replica."""
        try:
            process = self._process or self._open()
            answer = process.ask(("run", (program, arguments)), self._time_limit)
        except _LostError as lost:
            self.close()
            self.compilations += 1
            raise lost.error from None
        self.compilations += int(answer["compilations"])
        if "error" in answer:
            raise PjrtError.of(answer["error"], answer["message"])
        rows: list[list[Array]] = answer["rows"]
        return rows

    def _open(self) -> _Process:
        process = self._process = _Process(self.name)
        answer = process.ask(("open", self._start), max(self._time_limit, _OPENING_SECONDS))
        if "error" in answer:
            self.close()
            raise PjrtError.of(answer["error"], answer["message"])
        self._platform = str(answer["platform"])
        return process

    def close(self) -> None:
        """End the subprocess."""
        if self._process is not None:
            self._process.end()
            self._process = None


class _LostError(PjrtError):
    """The subprocess crashed or took too long; ``error`` is the error of the device."""

    def __init__(self, error: PjrtError) -> None:
        super().__init__(error.message)
        self.error = error


class _Process:
    """The subprocess, and the two pipes to it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._child = PythonChild(__name__, _read_answer)

    def ask(self, question: Any, time_limit: float) -> dict[str, Any]:
        self._child.send(question)
        try:
            answer = self._child.next(time_limit)
        except TimeoutError:
            self.end()
            raise _LostError(
                DeadlineExceededError(f"the device {self._name} was not done within {time_limit:g} seconds")
            ) from None
        if answer is None:
            ended = self._child.ended()
            self.end()
            raise _LostError(InternalError(f"the device {self._name} crashed: {ended}"))
        return answer

    def end(self) -> None:
        self._child.close()


# Answers are no pickles: the subprocess may run code of others, whose objects this process should not make.


def _write_answer(file: IO[bytes], answer: Mapping[str, Any], rows: Sequence[Row] = ()) -> None:
    shapes = [[[ElementType.of(array.dtype).name, list(array.shape)] for array in row] for row in rows]
    header = json.dumps({**answer, "shapes": shapes}).encode()
    file.write(_LENGTH.pack(len(header)) + header)
    for row in rows:
        for array in row:
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            file.write(_LENGTH.pack(content.nbytes))
            file.write(content.data)
    file.flush()


def _read_answer(file: IO[bytes]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_read_exactly(file))
    answer["rows"] = [
        [
            np.frombuffer(_read_exactly(file), np.uint8).view(ElementType[name].dtype).reshape(shape)
            for name, shape in row
        ]
        for row in answer.pop("shapes")
    ]
    return answer


def _read_exactly(file: IO[bytes]) -> bytes:
    (count,) = _LENGTH.unpack(_some(file, _LENGTH.size))
    return _some(file, count)


def _some(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise EOFError
    return content


# In the subprocess.


def main() -> None:
    """Answer questions until there are none."""
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plugin prints must not come between the answers
    device: DeviceInProcess | None = None
    while True:
        try:
            kind, content = pickle.load(questions)
        except EOFError:
            break
        before = 0 if device is None else device.compilations
        rows: Sequence[Row] = ()
        facts: dict[str, Any] = {}
        try:
            if kind == "open":
                device = DeviceInProcess(*content)
                facts["platform"] = device.platform_name
            elif device is not None:
                rows = device.run(*content)
        except Exception as error:
            wrapped = PjrtError.wrap(error)
            facts |= {"error": int(wrapped.code), "message": wrapped.message}
        count = 0 if device is None else device.compilations
        _write_answer(answers, {**facts, "compilations": count - before}, rows)
    if device is not None:
        device.close()


if __name__ == "__main__":
    main()

"""Executables in files: what was compiled, with the facts that tell whether it fits a client."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pjrt.api.abi_version import ExecutableAbiVersion
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    UnimplementedError,
    unimplemented,
)
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program
from pjrt.api.topology import TopologyDescription
from pjrt.artifacts import file_format
from pjrt.artifacts.whole_file import read_plain_file, write_whole


def save_executable(
    executable: Executable,
    path: str | os.PathLike[str],
    *,
    compiled_for: Client | TopologyDescription | None = None,
    program: Program | str | bytes | None = None,
) -> None:
    """Writes an executable to a file, with what ``load_executable`` needs to tell whether a client can run it.

    The file appears whole or not at all.

    Args:
        executable: what to save.
        path: the file; replaced if it is there.
        compiled_for: the topology, or client, that it was compiled for; not needed for a loaded executable, which
            knows its client.
        program: the program, whose arguments' names and types are noted too; that needs jaxlib.

    Raises:
        UnimplementedError: the plugin cannot serialize executables.
        InvalidArgumentError: nothing says what it was compiled for, or the file cannot be written.
    """
    saved = SavedExecutable.of(executable, compiled_for=compiled_for, program=program)
    try:
        write_whole(Path(path), saved.to_bytes())
    except OSError as error:
        raise InvalidArgumentError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error


def load_executable(
    client: Client,
    path: str | os.PathLike[str],
    options: CompileOptions | None = None,
    *,
    any_version: bool = False,
) -> LoadedExecutable:
    """Loads what ``save_executable`` wrote.

    Args:
        client: where to run it.
        path: the file.
        options: compile options to take instead of those it was compiled with, such as another device assignment.
        any_version: whether to let the plugin judge an executable of another platform version.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file is no saved executable.
        DataLossError: it is damaged.
        FailedPreconditionError: it does not fit the client; the message says why.
    """
    return SavedExecutable.read(path).load(client, options, any_version=any_version)


class SavedExecutable(Executable):
    """An executable that was compiled before: its facts as they were noted then, and the plugin's bytes.

    What its compiler did not say, and layouts, shardings and the optimized program, which are not noted, are
    ``UnimplementedError``.
    """

    __slots__ = ("_code", "_header", "_source")

    def __init__(self, header: Mapping[str, Any], code: bytes, source: str = "") -> None:
        self._header = header
        self._code = code
        self._source = source

    @staticmethod
    def of(
        executable: Executable,
        *,
        compiled_for: Client | TopologyDescription | None = None,
        program: Program | str | bytes | None = None,
    ) -> SavedExecutable:
        """What ``save_executable`` saves."""
        arguments = {} if program is None else {"arguments": _arguments(Program.of(program))}
        if isinstance(executable, SavedExecutable):
            return SavedExecutable({**executable._header, **arguments}, executable._code)
        if compiled_for is None and isinstance(executable, LoadedExecutable):
            compiled_for = executable.client
        if compiled_for is None:
            raise InvalidArgumentError(
                f"nothing says what {executable.name!r} was compiled for: give the topology as compiled_for"
            )
        target = {
            "compiled_for": "client" if isinstance(compiled_for, Client) else "topology",
            "platform_name": compiled_for.platform_name,
            "platform_version": compiled_for.platform_version,
            "device_kind": device_kind(compiled_for),
        }
        return SavedExecutable({**_facts(executable), **target, **arguments}, executable.serialize())

    @staticmethod
    def read(path: str | os.PathLike[str]) -> SavedExecutable:
        """The executable in a file; the errors are those of ``load_executable``."""
        source = os.fspath(path)
        try:
            data = read_plain_file(path)
        except FileNotFoundError:
            raise NotFoundError(f"{source}: there is no such file; give one that save_executable wrote") from None
        except OSError as error:
            raise InvalidArgumentError(f"{source}: cannot be read: {error.strerror}") from error
        return SavedExecutable.from_bytes(data, source)

    @staticmethod
    def from_bytes(data: bytes, source: str = "the saved executable") -> SavedExecutable:
        """What ``to_bytes`` gave.

        Args:
            data: the bytes.
            source: where they come from, for messages.
        """
        header, code = file_format.unpack(data, source)
        return SavedExecutable(header, code, source)

    def to_bytes(self) -> bytes:
        """All of it as the bytes of a file."""
        return file_format.pack(self._header, self._code)

    def misfits(self, client: Client, *, any_version: bool = False) -> list[str]:
        """Why a client cannot run it, each reason with what was expected and what was found; empty if it fits."""
        found = {"platform_name": client.platform_name, "device_kind": device_kind(client)}
        if not any_version:
            # Some plugins' topologies state another version than their clients: like is compared with like.
            like = client.topology if self._header["compiled_for"] == "topology" else client
            found["platform_version"] = like.platform_version
        reasons = [
            f"it was compiled for {name.replace('_', ' ')} {self._header[name]!r}, the client has {value!r}"
            for name, value in found.items()
            if self._header[name] != value
        ]
        if not reasons and not any_version:
            reasons += self._abi_misfit(client)
        wanted = self.num_replicas * self.num_partitions
        if wanted > len(client.devices):
            reasons.append(f"it runs on {wanted} devices, the client has {len(client.devices)}")
        return reasons

    def load(
        self, client: Client, options: CompileOptions | None = None, *, any_version: bool = False
    ) -> LoadedExecutable:
        """As ``load_executable``."""
        reasons = self.misfits(client, any_version=any_version)
        if reasons:
            raise FailedPreconditionError(
                f"{self._source or 'the saved executable'}: {self.name!r} does not fit this client: "
                f"{'; '.join(reasons)}; compile it again for this client"
            )
        return client.deserialize(self._code, options or self._needed_options())

    def _abi_misfit(self, client: Client) -> list[str]:
        """The plugin's own reason why its runtime cannot run this, where it knows about such things."""
        try:
            runtime, needed = client.runtime_abi_version(), self.abi_version()
        except UnimplementedError:
            return []
        try:
            runtime.check_compatible_with(needed)
        except PjrtError as error:
            return [f"it was compiled for another runtime: {error.message}"]
        return []

    @property
    def platform_name(self) -> str:
        return str(self._header["platform_name"])

    @property
    def platform_version(self) -> str:
        """The version of the platform that it was compiled with."""
        return str(self._header["platform_version"])

    @property
    def device_kind(self) -> str:
        """The kind of device that it was compiled for."""
        return str(self._header["device_kind"])

    @property
    def arguments(self) -> Sequence[tuple[str, str]]:
        """The name, empty where there is none, and the type of each argument of the program."""
        return tuple((name, kind) for name, kind in self._fact("arguments"))

    @property
    def name(self) -> str:
        return str(self._header["name"])

    @property
    def num_replicas(self) -> int:
        return int(self._header["num_replicas"])

    @property
    def num_partitions(self) -> int:
        return int(self._header["num_partitions"])

    @property
    def num_outputs(self) -> int:
        return int(self._header["num_outputs"])

    @property
    def size_of_generated_code(self) -> int:
        return int(self._fact("size_of_generated_code"))

    @property
    def output_element_types(self) -> Sequence[ElementType]:
        return tuple(ElementType[name] for name in self._fact("output_element_types"))

    @property
    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        return tuple(tuple(shape) for shape in self._fact("output_shapes"))

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        return tuple(self._fact("output_memory_kinds"))

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        return tuple(self._fact("parameter_memory_kinds"))

    def cost_analysis(self) -> Mapping[str, float | int]:
        return dict(self._fact("cost_analysis"))

    def memory_stats(self) -> CompiledMemoryStats:
        return CompiledMemoryStats(**self._fact("memory_stats"))

    def serialize(self) -> bytes:
        return self._code

    def fingerprint(self) -> bytes:
        return base64.b64decode(self._fact("fingerprint"))

    def abi_version(self) -> ExecutableAbiVersion:
        platform_id, proto = self._fact("abi_version")
        return _SavedAbiVersion(platform_id, base64.b64decode(proto))

    def compile_options(self) -> CompileOptions:
        return CompileOptions.from_proto(base64.b64decode(self._fact("compile_options")))

    def _needed_options(self) -> CompileOptions | None:
        """The options to load it with; those of an executable for one device say nothing that its bytes do not."""
        if "compile_options" not in self._header:
            return None
        noted = self.compile_options()
        one_device = self.num_replicas * self.num_partitions == 1
        return None if one_device and not noted.compile_portable_executable else noted

    def _fact(self, name: str) -> Any:
        if name not in self._header:
            raise unimplemented(self.platform_name, f"Executable.{name}", "it was not noted when this was saved")
        return self._header[name]


class _SavedAbiVersion(ExecutableAbiVersion):
    """An ABI version as it was noted."""

    __slots__ = ("_platform_id", "_proto")

    def __init__(self, platform_id: int, proto: bytes) -> None:
        self._platform_id = platform_id
        self._proto = proto

    @property
    def platform_id(self) -> int:
        return self._platform_id

    def to_proto(self) -> bytes:
        return self._proto


def device_kind(target: Client | TopologyDescription) -> str:
    """The kind of a client's or topology's devices."""
    devices = target.devices if isinstance(target, Client) else target.device_descriptions
    return ", ".join(sorted({device.kind for device in devices}))


# What an executable says of itself, as JSON; what it does not offer is left out.
_QUESTIONS: dict[str, Callable[[Executable], Any]] = {
    "size_of_generated_code": lambda executable: executable.size_of_generated_code,
    "output_element_types": lambda executable: [kind.name for kind in executable.output_element_types],
    "output_shapes": lambda executable: [list(shape) for shape in executable.output_shapes],
    "output_memory_kinds": lambda executable: list(executable.output_memory_kinds),
    "parameter_memory_kinds": lambda executable: list(executable.parameter_memory_kinds),
    "cost_analysis": lambda executable: dict(executable.cost_analysis()),
    "memory_stats": lambda executable: _fields(executable.memory_stats()),
    "fingerprint": lambda executable: base64.b64encode(executable.fingerprint()).decode(),
    "abi_version": lambda executable: _noted(executable.abi_version()),
    "compile_options": lambda executable: base64.b64encode(executable.compile_options().to_proto()).decode(),
}


def _facts(executable: Executable) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": executable.name,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "num_outputs": executable.num_outputs,
    }
    for name, question in _QUESTIONS.items():
        try:
            facts[name] = question(executable)
        except PjrtError:
            # A fact is worth noting, and not worth failing for: some compilers answer these with an internal error.
            continue
    return facts


def _fields(stats: CompiledMemoryStats) -> dict[str, int]:
    return {name: getattr(stats, name) for name in stats.__dataclass_fields__}


def _noted(version: ExecutableAbiVersion) -> tuple[int, str]:
    return version.platform_id, base64.b64encode(version.to_proto()).decode()


def _arguments(program: Program) -> list[tuple[str, str]]:
    from pjrt import stablehlo

    return [(argument.name, str(argument.type)) for argument in stablehlo.signature(program).arguments]

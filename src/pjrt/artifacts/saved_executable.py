"""Saved executables: files with a compiled program, and the facts that decide whether it fits a client."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt.api.capability import Effort, Reason, ReasonKind, Support, Verdict
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
from pjrt.api.executable import CompiledMemoryStats, Executable, ExecutableAbiVersion
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.topology import TopologyDescription
from pjrt.artifacts import file_format
from pjrt.artifacts.file_format import SavedAbiVersion, Weights, facts_of
from pjrt.stablehlo.ir.types import TensorType
from pjrt.system import read_plain_file, write_whole

if TYPE_CHECKING:
    from pjrt.stablehlo.facts.signatures import CallSignature, Parameter, Result, Signature


def save_executable(
    executable: Executable,
    path: str | os.PathLike[str],
    *,
    compiled_for: Client | TopologyDescription | None = None,
    program: Program | CallSignature | str | bytes | None = None,
    weights: Weights | None = None,
) -> None:
    """Write an executable to a file, with the facts that ``load_executable`` needs to check that a client can run it.

    The file appears complete or not at all.

    Args:
        executable: the executable.
        path: the file; an existing file is replaced.
        compiled_for: the topology, or client, that it was compiled for; not needed for a loaded executable, which
            knows its client.
        program: the program, to save the names and types of its arguments and results too, which needs jaxlib; or its
            call signature. ``pjrt.load_model`` can call files that have it.
        weights: arrays for arguments of the program that are no parameters of its call signature, by their positions
            among the arguments. They are written to the file, too.

    Raises:
        UnimplementedError: the plugin cannot serialize executables.
        InvalidArgumentError: ``compiled_for`` is missing, or the file cannot be written.
    """
    saved = SavedExecutable.of(executable, compiled_for=compiled_for, program=program, weights=weights)
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
    """Load an executable that ``save_executable`` wrote.

    Args:
        client: the client to run it on.
        path: the file.
        options: compile options to use instead of its own, such as another device assignment.
        any_version: whether to let the plugin decide about an executable of another platform version.

    Raises:
        NotFoundError: the file does not exist.
        InvalidArgumentError: the file is not a saved executable.
        DataLossError: the file is damaged.
        FailedPreconditionError: the executable does not fit the client; the message gives the reason.
    """
    return SavedExecutable.read(path).load(client, options, any_version=any_version)


class SavedExecutable(Executable):
    """An executable that was compiled before: its facts, saved then, and the plugin's bytes.

    Facts that its compiler did not report, and layouts and the optimized program, which are not saved, raise
    ``UnimplementedError``.
    """

    __slots__ = ("_code", "_header", "_source", "_weights")

    def __init__(
        self, header: Mapping[str, Any], code: bytes, source: str = "", *, weights: Weights | None = None
    ) -> None:
        self._header = header
        self._code = code
        self._source = source
        self._weights: Weights = weights or {}

    @staticmethod
    def of(
        executable: Executable,
        *,
        compiled_for: Client | TopologyDescription | None = None,
        program: Program | CallSignature | str | bytes | None = None,
        weights: Weights | None = None,
    ) -> SavedExecutable:
        """Return what ``save_executable`` writes, as an object."""
        signature = {} if program is None else {"signature": _signature(program)}
        if isinstance(executable, SavedExecutable):
            kept = executable.weights if weights is None else weights
            return SavedExecutable({**executable._header, **signature}, executable._code, weights=kept)
        if compiled_for is None and isinstance(executable, LoadedExecutable):
            compiled_for = executable.client
        if compiled_for is None:
            raise InvalidArgumentError(
                f"the target of {executable.name!r} is unknown: give its client or topology as compiled_for"
            )
        target = {
            "compiled_for": "client" if isinstance(compiled_for, Client) else "topology",
            "platform_name": compiled_for.platform_name,
            "platform_version": compiled_for.platform_version,
            "device_kind": device_kind(compiled_for),
        }
        return SavedExecutable({**facts_of(executable), **target, **signature}, executable.serialize(), weights=weights)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> SavedExecutable:
        """Read the executable in a file; the errors are those of ``load_executable``."""
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
        """Return the executable of the bytes that ``to_bytes`` returned.

        Args:
            data: the bytes.
            source: their origin, for messages.
        """
        header, content = file_format.unpack(data, source)
        code, weights = file_format.split_weights(header, content, source)
        return SavedExecutable(header, code, source, weights=weights)

    def to_bytes(self) -> bytes:
        """Return the executable as the bytes of a file."""
        header = {name: fact for name, fact in self._header.items() if name not in ("weights", "code_size")}
        if not self._weights:
            return file_format.pack(header, self._code)
        header |= file_format.weight_facts(self._weights, len(self._code))
        return file_format.pack(header, b"".join([self._code, *file_format.weight_bytes(self._weights)]))

    def misfits(self, target: Client | TopologyDescription, *, any_version: bool = False) -> list[str]:
        """Return the reasons why a client cannot run the executable, or a client of a topology's devices; empty if it
        can.
        """
        facts = {"platform_name": target.platform_name, "device_kind": device_kind(target)}
        for_topology = self._header["compiled_for"] == "topology"
        # Some plugins' topologies report another version than their clients: compare like with like.
        if not any_version and isinstance(target, Client):
            facts["platform_version"] = (target.topology if for_topology else target).platform_version
        elif not any_version and for_topology:
            facts["platform_version"] = target.platform_version
        who = "client" if isinstance(target, Client) else "topology"
        reasons = [
            f"it was compiled for {name.replace('_', ' ')} {self._header[name]!r}, the {who} has {value!r}"
            for name, value in facts.items()
            if self._header[name] != value
        ]
        if isinstance(target, Client) and not reasons and not any_version:
            reasons += self._abi_misfit(target)
        count = len(target.devices if isinstance(target, Client) else target.device_descriptions)
        needed = self.num_replicas * self.num_partitions
        if needed > count:
            reasons.append(f"it runs on {needed} devices, the {who} has {count}")
        return reasons

    def support_by(self, target: Client | TopologyDescription) -> Support:
        """Return whether a client can run the executable, which is found by loading it.

        Args:
            target: the client; or a topology, whose facts alone decide.
        """
        reasons, effort = self.misfits(target), Effort.TYPES
        if isinstance(target, Client) and not reasons:
            effort = Effort.COMPILE
            try:
                self.load(target).delete()
            except PjrtError as error:
                reasons = [error.message]
        return Support.of(
            effort, [Reason(Verdict.NO, ReasonKind.COMPILE, target.platform_name, reason) for reason in reasons]
        )

    def load(
        self, client: Client, options: CompileOptions | None = None, *, any_version: bool = False
    ) -> LoadedExecutable:
        """Load the executable, like ``load_executable``."""
        reasons = self.misfits(client, any_version=any_version)
        if reasons:
            raise FailedPreconditionError(
                f"{self._source or 'the saved executable'}: {self.name!r} does not fit this client: "
                f"{'; '.join(reasons)}; compile it again for this client"
            )
        return client.deserialize(self._code, options or self._needed_options())

    def _abi_misfit(self, client: Client) -> list[str]:
        """Return the plugin's own reason why its runtime cannot run this; empty if it has no ABI versions."""
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
    def signature(self) -> CallSignature:
        """The arguments and results of the program, with names, types and nested structure.

        Raises:
            UnimplementedError: it was saved without its program.
        """
        return file_format.signature_from_json(self._fact("signature", "it was saved without its program"))

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The arrays that the program takes: whole arrays, also of a program for several partitions."""
        return self.signature.parameters

    @property
    def results(self) -> Sequence[Result]:
        """The arrays that the program returns: whole arrays, also of a program for several partitions."""
        return self.signature.results

    @property
    def weights(self) -> Weights:
        """The arguments of the program whose values are in the file, by their positions among the arguments."""
        return self._weights

    def program_signature(self) -> Signature:
        """Return the arguments and results of the entry function of the program, weights included.

        Raises:
            UnimplementedError: it was saved without its program.
        """
        types = {
            position: TensorType(each.shape, ElementType.of(each.dtype)) for position, each in self.weights.items()
        }
        return self.signature.program_signature(types)

    @property
    def parameter_names(self) -> Sequence[str]:
        return tuple(argument.name for argument in self.program_signature().arguments)

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
    def output_specs(self) -> Sequence[ShapeSpec]:
        types, shapes = self._fact("output_element_types"), self._fact("output_shapes")
        return tuple(ShapeSpec(tuple(shape), ElementType[name]) for shape, name in zip(shapes, types, strict=True))

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        return tuple(self._fact("output_memory_kinds"))

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        return tuple(self._fact("parameter_memory_kinds"))

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        return self._shardings("output_shardings")

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        return self._shardings("parameter_shardings")

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
        return SavedAbiVersion(platform_id, base64.b64decode(proto))

    def compile_options(self) -> CompileOptions:
        return CompileOptions.from_proto(base64.b64decode(self._fact("compile_options")))

    def _needed_options(self) -> CompileOptions | None:
        """Return the options to load it with; ``None`` for one device, where its bytes contain them all."""
        if "compile_options" not in self._header:
            return None
        options = self.compile_options()
        one_device = self.num_replicas * self.num_partitions == 1
        return None if one_device and not options.compile_portable_executable else options

    def _shardings(self, name: str) -> Sequence[bytes] | None:
        shardings = self._header.get(name)
        return None if shardings is None else tuple(map(base64.b64decode, shardings))

    def _fact(self, name: str, reason: str = "the fact was not saved") -> Any:
        if name not in self._header:
            raise unimplemented(self.platform_name, f"Executable.{name}", reason)
        return self._header[name]


def device_kind(target: Client | TopologyDescription) -> str:
    """Return the kind of a client's or topology's devices."""
    devices = target.devices if isinstance(target, Client) else target.device_descriptions
    return ", ".join(sorted({device.kind for device in devices}))


def _signature(program: Program | CallSignature | str | bytes) -> dict[str, Any]:
    from pjrt import stablehlo

    if not isinstance(program, stablehlo.CallSignature):
        program = stablehlo.CallSignature.of(stablehlo.signature(Program.of(program)))
    return file_format.signature_to_json(program)

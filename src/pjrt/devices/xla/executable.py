"""Executables of the ``cpu`` device: what can be known of a compiled program."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, UnimplementedError
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.program import Program, ProgramFormat
from pjrt.devices.xla import _raw, lifetime
from pjrt.devices.xla._donated import donated_parameters
from pjrt.devices.xla._errors import converted
from pjrt.devices.xla._raw import Described
from pjrt.devices.xla.memory_space import DEVICE, PINNED_HOST

PLATFORM = "cpu"


class Signature(NamedTuple):
    """What goes into and comes out of a program on one device."""

    parameters: list[Described]
    results: list[Described]
    donated: frozenset[int]
    """The parameters whose memory an execution takes over."""


class XlaExecutable(Executable):
    """A program compiled by XLA for the CPU.

    Attributes:
        assignment: the devices it was compiled for.
    """

    __slots__ = ("__dict__", "_gone", "_name", "_options", "_raw", "assignment")

    def __init__(self, raw: Any, assignment: DeviceAssignment, options: CompileOptions) -> None:
        self._raw = raw
        self._gone = ""
        self._name: str = raw.hlo_modules()[0].name
        self._options = options
        self.assignment = assignment

    @property
    def raw(self) -> Any:
        """jaxlib's loaded executable: XLA for the CPU has no other kind.

        Raises:
            FailedPreconditionError: its client was closed.
            SystemExit: the interpreter is ending, and the caller is a daemon thread; see ``lifetime.check_thread``.
        """
        lifetime.check_thread()
        if self._raw is None:
            raise FailedPreconditionError(self._gone)
        return self._raw

    def unload(self, reason: str) -> Any:
        """Lets go of the code for a reason, and returns it."""
        raw, self._raw = self._raw, None
        self._gone = reason
        return raw

    @functools.cached_property
    def signature(self) -> Signature:
        """The parameters and results on one device."""
        module = self._module.as_serialized_hlo_module_proto()
        try:
            parameters, results = _raw.signature(module)
        except Exception as error:  # of an element type that XLA compiles and jaxlib has no arrays of
            raise converted(error) from error
        return Signature(parameters, results, donated_parameters(module))

    @property
    def _module(self) -> Any:
        return self.raw.hlo_modules()[0]

    @property
    def platform_name(self) -> str:
        return PLATFORM

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_replicas(self) -> int:
        return self.assignment.num_replicas

    @property
    def num_partitions(self) -> int:
        return self.assignment.num_partitions

    @property
    def num_outputs(self) -> int:
        return len(self.signature.results)

    @property
    def size_of_generated_code(self) -> int:
        size: int = self.raw.size_of_generated_code_in_bytes()
        return size

    @property
    def output_element_types(self) -> Sequence[ElementType]:
        return [element_type_of(result) for result in self.signature.results]

    @property
    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        return [result.shape for result in self.signature.results]

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        return [memory_kind_of(result) for result in self.signature.results]

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        return [memory_kind_of(parameter) for parameter in self.signature.parameters]

    @property
    def output_layouts(self) -> Sequence[Layout]:
        return [TiledLayout(result.minor_to_major) for result in self.signature.results]

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        return [TiledLayout(parameter.minor_to_major) for parameter in self.signature.parameters]

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        return _serialized(self.raw.get_output_shardings())

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        return _serialized(self.raw.get_parameter_shardings())

    def cost_analysis(self) -> Mapping[str, float | int]:
        return dict(_asked(self.raw.cost_analysis))

    def memory_stats(self) -> CompiledMemoryStats:
        found = _asked(self.raw.get_compiled_memory_stats)
        return CompiledMemoryStats(
            **{name: getattr(found, name) for name in CompiledMemoryStats.__slots__ if hasattr(found, name)}
        )

    def optimized_program(self) -> Program:
        return Program(_asked(self._module.as_serialized_hlo_module_proto), ProgramFormat.HLO)

    def optimized_text(self) -> str:
        """The program as the compiler left it, as HLO text for people to read."""
        text: str = self._module.to_string()
        return text

    def serialize(self) -> bytes:
        serialized: bytes = _asked(self.raw.serialize)
        return serialized

    def fingerprint(self) -> bytes:
        found: bytes | str | None = self.raw.fingerprint
        if found is None:
            raise UnimplementedError("XLA has no fingerprint for this executable of the device 'cpu'")
        return found.encode() if isinstance(found, str) else found

    def compile_options(self) -> CompileOptions:
        return self._options


def element_type_of(described: Described) -> ElementType:
    """The element type of a parameter or result."""
    return ElementType.TOKEN if described.dtype is None else ElementType.of(described.dtype)


def memory_kind_of(described: Described) -> str:
    """The kind of memory of a parameter or result."""
    return PINNED_HOST if described.is_in_host_memory else DEVICE


def _serialized(shardings: Sequence[Any] | None) -> Sequence[bytes] | None:
    return None if shardings is None else [sharding.SerializeToString() for sharding in shardings]


def _asked(question: Any) -> Any:
    try:
        return question()
    except Exception as error:
        raise converted(error) from error

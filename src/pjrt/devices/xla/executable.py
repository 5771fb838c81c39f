"""Executables of the ``cpu`` device: compiled programs and their properties."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import FailedPreconditionError, UnimplementedError
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.devices.xla import _jaxlib, shutdown
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.device import DEVICE, PINNED_HOST
from pjrt.stablehlo.encodings.hlo_parameters import hlo_parameters
from pjrt.stablehlo.encodings.hlo_proto import BYTES, VARINT, fields, varint
from pjrt.stablehlo.encodings.jaxlib import load

if TYPE_CHECKING:
    from pjrt.api.compile_options import CompileOptions, DeviceAssignment


# HloModuleProto: the fields input_output_alias and buffer_donor. Each holds a list of entries.
_ALIAS, _DONOR, _ENTRIES = 8, 18, 1
# The fields of an entry: the number of the parameter, and its index where all parameters are one tuple.
_PARAMETER_NUMBER, _PARAMETER_INDEX = {_ALIAS: 2, _DONOR: 1}, {_ALIAS: 3, _DONOR: 2}


def donated_parameters(module: bytes) -> frozenset[int]:
    """Return the numbers of the parameters whose memory an execution takes, by aliasing or as a donor."""
    return frozenset(
        _parameter(module, *entry, _PARAMETER_NUMBER[field], _PARAMETER_INDEX[field])
        for field in (_ALIAS, _DONOR)
        for configuration in _messages(module, 0, len(module), field)
        for entry in _messages(module, *configuration, _ENTRIES)
    )


def _messages(module: bytes, begin: int, end: int, field: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each message in a field."""
    for number, kind, first, last in fields(module, begin, end):
        if number == field and kind == BYTES:
            yield first, last


def _parameter(module: bytes, begin: int, end: int, number_field: int, index_field: int) -> int:
    parameter, index = 0, None
    for field, kind, first, last in fields(module, begin, end):
        if field == number_field:
            parameter = first
        elif field == index_field:  # a list, packed or not; parameters that are one tuple are one place deep in it
            index = first if kind == VARINT else varint(module, first, last)[0]
    return parameter if index is None else index


class ValueShape(NamedTuple):
    """One parameter or result of an executable, on one device."""

    shape: tuple[int, ...]
    dtype: AnyDType | None
    """``None`` for a token."""
    minor_to_major: tuple[int, ...]
    dynamic_dimensions: tuple[int, ...]
    is_in_host_memory: bool


def program_shape(module: bytes) -> tuple[list[ValueShape], list[ValueShape]]:
    """Return the parameters and results of a compiled module, an ``HloModuleProto``, on one device."""
    shape = _jaxlib.hlo.XlaComputation(module).program_shape()
    parameters = shape.parameter_shapes()
    if len(parameters) == 1 and parameters[0].is_tuple():
        parameters = parameters[0].tuple_shapes()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return [_value_shape(p) for p in parameters], [_value_shape(r) for r in results]


def result_shapes(module: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the results of an MLIR module's main function; ``()`` for those that are no arrays."""
    ir = load("mlir.ir", "read the types of programs")
    main = next((each for each in module.body.operations if _is_main(each)), None)
    results = () if main is None else ir.FunctionType(main.attributes["function_type"].value).results
    return [tuple(each.shape) if isinstance(each, ir.RankedTensorType) else () for each in results]


def _is_main(operation: Any) -> bool:
    attributes = operation.attributes
    return bool(operation.operation.name == "func.func" and attributes["sym_name"].value == "main")


_HOST_MEMORY = ":S(5)"  # XLA's spelling of the host's memory space in a layout


def _value_shape(shape: Any) -> ValueShape:
    if not shape.is_array():
        return ValueShape((), None, (), (), False)
    layout = shape.layout()
    sizes = tuple(shape.dimensions())
    dynamic = tuple(d for d in range(len(sizes)) if shape.is_dynamic_dimension(d)) if shape.is_dynamic() else ()
    is_in_host_memory = _HOST_MEMORY in layout.to_string()
    return ValueShape(sizes, shape.numpy_dtype(), tuple(layout.minor_to_major()), dynamic, is_in_host_memory)


T = TypeVar("T")

PLATFORM = "cpu"

SERIALIZED = b"pjrt.cpu executable 1\n"
"""The beginning of a serialized executable. The size of the compile options follows, in eight bytes, then the options,
then the bytes of XLA, which ends the process if it loads them for another number of devices."""


class ProgramShape(NamedTuple):
    """The parameters and results of a program on one device."""

    parameters: list[ValueShape]
    results: list[ValueShape]
    donated: frozenset[int]
    """The numbers of the parameters whose memory an execution takes."""


class XlaExecutable(Executable):
    """A program compiled by XLA for the CPU.

    Args:
        jaxlib_executable: jaxlib's loaded executable.
        assignment: the devices it was compiled for.
        options: the compile options.
        result_shapes: the shapes of the whole results of a program for several partitions; ``None`` for other programs,
            and for one that was serialized.
        code: the serialized form that it was loaded from; ``None`` if it was compiled here.

    Attributes:
        assignment: the devices it was compiled for.
        code: the serialized form that it was loaded from, which is kept because XLA leaves the functions out when it
            serializes such an executable once more.
    """

    __slots__ = (
        "__dict__",
        "_jaxlib_executable",
        "_name",
        "_options",
        "_result_shapes",
        "_unloaded",
        "assignment",
        "code",
    )

    def __init__(
        self,
        jaxlib_executable: Any,
        assignment: DeviceAssignment,
        options: CompileOptions,
        result_shapes: Sequence[tuple[int, ...]] | None = None,
        code: bytes | None = None,
    ) -> None:
        self._jaxlib_executable = jaxlib_executable
        self._unloaded = ""
        self._name: str = jaxlib_executable.hlo_modules()[0].name
        self._options = options
        self._result_shapes = result_shapes
        self.assignment = assignment
        self.code = code

    @property
    def jaxlib_executable(self) -> Any:
        """jaxlib's loaded executable: XLA for the CPU has no other kind.

        Raises:
            FailedPreconditionError: the client was closed.
            SystemExit: the interpreter is ending, and the caller is a daemon thread; see ``shutdown.check_thread``.
        """
        shutdown.check_thread()
        if self._jaxlib_executable is None:
            raise FailedPreconditionError(self._unloaded)
        return self._jaxlib_executable

    def unload(self, reason: str) -> Any:
        """Release the code, and return jaxlib's executable; later uses raise the reason."""
        jaxlib_executable, self._jaxlib_executable = self._jaxlib_executable, None
        self._unloaded = reason
        return jaxlib_executable

    @functools.cached_property
    def program_shape(self) -> ProgramShape:
        """The parameters and results on one device."""
        module = self._module.as_serialized_hlo_module_proto()
        try:
            parameters, results = program_shape(module)
        except Exception as error:  # XLA compiles element types of which jaxlib has no arrays
            raise converted(error) from error
        return ProgramShape(parameters, results, donated_parameters(module))

    @property
    def _module(self) -> Any:
        return self.jaxlib_executable.hlo_modules()[0]

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
    def size_of_generated_code(self) -> int:
        size: int = self.jaxlib_executable.size_of_generated_code_in_bytes()
        return size

    @property
    def output_specs(self) -> Sequence[ShapeSpec]:
        return [ShapeSpec(result.shape, element_type_of(result)) for result in self.program_shape.results]

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        return [memory_kind_of(result) for result in self.program_shape.results]

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        return [memory_kind_of(parameter) for parameter in self.program_shape.parameters]

    @property
    def output_layouts(self) -> Sequence[Layout]:
        return [TiledLayout(result.minor_to_major) for result in self.program_shape.results]

    @property
    def parameter_specs(self) -> Sequence[ShapeSpec]:
        return [ShapeSpec(parameter.shape, element_type_of(parameter)) for parameter in self.program_shape.parameters]

    @property
    def parameter_names(self) -> Sequence[str]:
        return self._names

    @functools.cached_property
    def _names(self) -> Sequence[str]:
        return [parameter.name for parameter in hlo_parameters(self.optimized_program())]

    def donations(self) -> Mapping[int, int | None]:
        return dict.fromkeys(self.program_shape.donated)

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        return [TiledLayout(parameter.minor_to_major) for parameter in self.program_shape.parameters]

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        shardings = _serialized(self.jaxlib_executable.get_output_shardings())
        # Of a program without results XLA reports the sharding of the empty tuple.
        return [] if shardings is not None and len(shardings) == 1 and self.num_outputs == 0 else shardings

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        return _serialized(self.jaxlib_executable.get_parameter_shardings())

    def cost_analysis(self) -> Mapping[str, float | int]:
        return dict(_answer(self.jaxlib_executable.cost_analysis))

    def memory_stats(self) -> CompiledMemoryStats:
        stats = _answer(self.jaxlib_executable.get_compiled_memory_stats)
        return CompiledMemoryStats(
            **{name: getattr(stats, name) for name in CompiledMemoryStats._fields if hasattr(stats, name)}
        )

    def optimized_program(self) -> Program:
        return Program(_answer(self._module.as_serialized_hlo_module_proto), ProgramFormat.HLO)

    def optimized_text(self) -> str:
        """Return the program after the compiler's passes, as human-readable HLO text."""
        text: str = self._module.to_string()
        return text

    def serialize(self) -> bytes:
        self._check_even()
        code: bytes = _answer(self.jaxlib_executable.serialize) if self.code is None else self.code
        options = self._options.to_proto()
        return SERIALIZED + len(options).to_bytes(8, "little") + options + code

    def _check_even(self) -> None:
        """Refuse results whose shards differ in size: XLA ends the process when it serializes such an executable."""
        if self._result_shapes is None:
            return
        for number, (shape, sharding) in enumerate(zip(self._result_shapes, self.output_shardings or (), strict=False)):
            proto = _jaxlib.hlo.OpSharding()
            proto.ParseFromString(sharding)
            # Behind the dimensions of the value, the tiles may have one along which it is repeated.
            tiles = list(proto.tile_assignment_dimensions)[: len(shape)]
            if any(size % count for size, count in zip(shape, tiles, strict=False)):
                raise UnimplementedError(
                    f"XLA cannot serialize this executable of the device 'cpu': result {number} of shape {shape} is "
                    f"cut into {tiles} tiles, which do not divide it evenly. Compile it where it runs, or choose a "
                    f"sharding that divides the result"
                )

    def fingerprint(self) -> bytes:
        fingerprint: bytes | str | None = self.jaxlib_executable.fingerprint
        if fingerprint is None:
            raise UnimplementedError("XLA has no fingerprint for this executable of the device 'cpu'")
        return fingerprint.encode() if isinstance(fingerprint, str) else fingerprint

    def compile_options(self) -> CompileOptions:
        return self._options


def has_collectives(optimized_text: str) -> bool:
    """Return whether a program exchanges data between its devices."""
    return re.search(r" (all-|ragged-all-|reduce-scatter|collective-)[a-z-]*\(", optimized_text) is not None


def element_type_of(value: ValueShape) -> ElementType:
    """Return the element type of a parameter or result."""
    return ElementType.TOKEN if value.dtype is None else ElementType.of(value.dtype)


def memory_kind_of(value: ValueShape) -> str:
    """Return the kind of memory of a parameter or result."""
    return PINNED_HOST if value.is_in_host_memory else DEVICE


def _serialized(shardings: Sequence[Any] | None) -> Sequence[bytes] | None:
    """Return shardings, all of tiles: XLA before jaxlib 0.12 does not report those over a mesh so."""
    if shardings is None:
        return None
    from pjrt.stablehlo.transforms.partitioner import as_tiles  # most executables have none

    return [as_tiles(sharding.SerializeToString()) for sharding in shardings]


def _answer(question: Callable[[], T]) -> T:
    """Call a function of jaxlib's executable, and convert its errors."""
    try:
        return question()
    except Exception as error:
        raise converted(error) from error

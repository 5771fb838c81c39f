"""Code: what a compiler in Python returns for a driver, and the bytes that the runtime in C reads."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.stablehlo.facts.signatures import LAYOUT_ATTRIBUTE, Signature, text_of
from pjrt.stablehlo.ir.types import TensorType, TokenType, ValueType
from pjrt.stablehlo.transforms.partitioner import Partitioned

if TYPE_CHECKING:
    from pjrt.native.steps import Step
    from pjrt.stablehlo.ir.operation import ParsedProgram

T = TypeVar("T")
U = TypeVar("U")

_MARK = b"PJRT-NATIVE-1"

# The fields are read in C: see native/library/executable.c.
_CLASSES = message_classes(
    "pjrt_native_code",
    {
        "Value": {
            "type": (1, "int32"),
            "dims": (2, "[int64]"),
            "memory_kind": (3, "string"),
            "alias_plus_one": (4, "int64"),
            "sharding": (5, "optional bytes"),
            "minor_to_major": (6, "[int64]"),
            "is_on_host": (7, "bool"),
            "asked_layout": (8, "string"),
        },
        "Cost": {"name": (1, "string"), "value": (2, "double")},
        "Executable": {
            "mark": (1, "bytes"),
            "name": (2, "string"),
            "parameters": (3, "[Value]"),
            "outputs": (4, "[Value]"),
            "code": (5, "bytes"),
            "scratch": (6, "uint64"),
            "options": (7, "bytes"),
            "program": (8, "bytes"),
            "format": (9, "string"),
            "costs": (10, "[Cost]"),
            "donated": (11, "[uint64]"),
            "optimized": (13, "bytes"),
            "optimized_format": (14, "string"),
            "fingerprint": (15, "bytes"),
            "takes_any_memory": (16, "bool"),
            "memory": (20, "[int64]"),
            "is_sharded": (21, "bool"),
            "values": (17, "[Value]"),
            "steps": (18, "[bytes]"),
            "has_collectives": (19, "bool"),
            # Behind all others, of the bytes before it: fields alone look whole where the end is missing.
            "checksum": (12, "fixed32"),
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A program that was compiled for a driver.

    ``code`` or ``steps`` is required. What is left out is taken from the program: its parameters and results, which of
    them may share memory, and its name.

    Attributes:
        code: the bytes that the driver's function ``load`` gets.
        steps: what the driver and the host do one after the other, in the place of ``code``. Values have numbers: first
            the parameters, then the results, then those of ``values``. A step writes each one that is no parameter.
            Results share no memory with parameters.
        values: shape and element type of each value between steps.
        outputs: shape and element type of each result.
        aliases: result number by parameter number: these parameters are donated, and the driver may be given the memory
            of the parameter for the result. The code must be right in both cases.
        donated: further parameters that are donated.
        scratch: the bytes of memory that each run needs beside its arguments and results.
        parameter_memory_kinds: the kind of memory of each parameter; empty for the device's default.
        output_memory_kinds: the kind of memory of each result; empty for the device's default.
        parameter_layouts: the order of the dimensions in which the code takes a parameter, the most minor first, by its
            number; rows for those that are left out. The driver's function ``layout`` must have the order.
        output_layouts: the same of results.
        name: the program's name; by default that of the module, or `main` where it has none.
        cost: the cost of a run, by PJRT's keys such as ``flops``.
    """

    code: bytes | None = None
    steps: Sequence[Step] = ()
    values: Sequence[ShapeSpec] = ()
    outputs: Sequence[ShapeSpec] | None = None
    aliases: Mapping[int, int] | None = None
    donated: Collection[int] = ()
    scratch: int = 0
    parameter_memory_kinds: Sequence[str] = ()
    output_memory_kinds: Sequence[str] = ()
    parameter_layouts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    output_layouts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    name: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.code is None) == (not self.steps):
            raise InvalidArgumentError("Code: expected code or steps, found both or neither")
        if not isinstance(self.code, bytes | None):
            raise InvalidArgumentError(f"Code.code: expected bytes, found {type(self.code).__name__}")
        if self.scratch < 0:
            raise InvalidArgumentError(f"Code.scratch: expected a number of bytes, found {self.scratch}")

    def serialize(
        self,
        program: Program,
        options: CompileOptions,
        signature: Signature,
        partitioned: Partitioned | None = None,
        *,
        has_collectives: bool = False,
        has_layouts: bool = False,
    ) -> bytes:
        """Return the executable as the runtime reads it, and as it is serialized for a cache or a file.

        Args:
            program: the program that was compiled.
            options: the options that it was compiled with.
            signature: the program's parameters and results, on one device.
            partitioned: the program as one device runs it, where it is for several partitions.
            has_collectives: whether devices wait for one another while they run it.
            has_layouts: whether the driver has a layout of its own. Else a layout that a framework asks for is what it
                sees of an array, and the code knows nothing of it.

        Raises:
            InvalidArgumentError: the declarations do not fit the program.
            UnimplementedError: a parameter or result is no array of static shape, or the framework asks for a layout
                that the code does not take.
        """
        outputs = self.outputs
        if outputs is None:
            outputs = [spec_of(result.type, f"result {n}") for n, result in enumerate(signature.results)]
        aliases = self.aliases
        if aliases is None:
            aliases = {n: a.aliases_output for n, a in enumerate(signature.arguments) if a.aliases_output is not None}
        self._check_aliases(aliases, len(signature.arguments), outputs)
        parameters = [spec_of(argument.type, f"argument {n}") for n, argument in enumerate(signature.arguments)]
        modes = [argument.layout for argument in signature.arguments] + [result.layout for result in signature.results]
        asked = list(map(_layout, modes))
        parameters = _laid_out(parameters, self.parameter_layouts, asked, "argument", has_layouts)
        outputs = _laid_out(outputs, self.output_layouts, asked[len(parameters) :], "result", has_layouts)
        return serialize(
            self.code or b"",
            program,
            options,
            parameters=parameters,
            outputs=outputs,
            aliases=aliases,
            donated=self.donated,
            scratch=max([self.scratch, *(getattr(step, "scratch", 0) for step in self.steps)]),
            steps=self.steps,
            values=self.values,
            has_collectives=has_collectives,
            parameter_shardings=() if partitioned is None else partitioned.parameter_shardings,
            output_shardings=() if partitioned is None else partitioned.result_shardings,
            optimized=_readable(program) if partitioned is None else partitioned.optimized,
            parameter_memory_kinds=self.parameter_memory_kinds,
            output_memory_kinds=self.output_memory_kinds,
            asked_layouts=asked if has_layouts else (),
            name=self.name,
            cost=self.cost,
        )

    def _check_aliases(self, aliases: Mapping[int, int], num_parameters: int, outputs: Sequence[ShapeSpec]) -> None:
        for parameter, result in aliases.items():
            if not (0 <= parameter < num_parameters and 0 <= result < len(outputs)):
                raise InvalidArgumentError(
                    f"Code.aliases: the program has {num_parameters} parameters and {len(outputs)} results, found "
                    f"parameter {parameter} for result {result}"
                )
        if len(set(aliases.values())) < len(aliases):
            raise InvalidArgumentError(f"Code.aliases: expected one parameter for each result, found {dict(aliases)}")


def _readable(program: Program) -> Program | None:
    """Return a program in a format in which frameworks read those that are optimized; ``None`` for itself."""
    if program.format != ProgramFormat.HLO:
        return None
    from pjrt.stablehlo.reading.conversion import to_hlo  # few programs come in this format

    return to_hlo(program, with_config=True)


def serialize(
    code: bytes,
    program: Program,
    options: CompileOptions,
    *,
    parameters: Sequence[ShapeSpec],
    outputs: Sequence[ShapeSpec],
    aliases: Mapping[int, int],
    donated: Collection[int] = (),
    scratch: int = 0,
    parameter_memory_kinds: Sequence[str] = (),
    output_memory_kinds: Sequence[str] = (),
    parameter_shardings: Sequence[bytes] = (),
    output_shardings: Sequence[bytes] | None = None,
    optimized: Program | None = None,
    fingerprint: bytes = b"",
    takes_any_memory: bool = False,
    name: str = "main",
    cost: Mapping[str, float],
    memory: Sequence[int] = (),
    steps: Sequence[Step] = (),
    values: Sequence[ShapeSpec] = (),
    has_collectives: bool = False,
    asked_layouts: Sequence[TiledLayout | str] = (),
) -> bytes:
    """Return an executable as the runtime reads it.

    Args:
        code: what the driver loads.
        program: the program that was compiled.
        options: the options that it was compiled with.
        parameters: shape and element type of each parameter, on one device.
        outputs: shape and element type of each result, on one device.
        parameter_shardings: how each parameter is divided among devices, a serialized ``xla.OpSharding``; empty for
            programs of one partition.
        output_shardings: the same of each result; ``None`` if nothing is divided.
        optimized: the program after the compiler's optimizations, by default the original one.
        fingerprint: bytes that are equal for equal executables; by default all that is returned.
        memory: the bytes that one run needs, as ``CompiledMemoryStats`` has them; by default counted from the types.
        has_collectives: whether devices wait for one another while they run it, so that all need the same order.
        asked_layouts: the layouts that the framework asks for, of parameters and then of results; the driver must have
            the tiles of those that have some.
        takes_any_memory: whether arguments may be in other kinds of memory than the parameters state.
        aliases, donated, scratch, parameter_memory_kinds, output_memory_kinds, name, cost, steps, values: as ``Code``
            has them.
    """
    parameter_of = {result: parameter for parameter, result in aliases.items()}
    message = _CLASSES["Executable"](
        mark=_MARK,
        name=name,
        code=code,
        scratch=scratch,
        options=options.to_proto(),
        program=program.code,
        format=str(program.format),
        donated=sorted(donated),
        memory=memory,
        is_sharded=output_shardings is not None,
    )
    message.takes_any_memory = takes_any_memory
    message.has_collectives = has_collectives
    if fingerprint:
        message.fingerprint = fingerprint
    if optimized is not None:
        message.optimized, message.optimized_format = optimized.code, str(optimized.format)
    for number, spec in enumerate(parameters):
        value = _value(spec, _at(parameter_memory_kinds, number, ""), _at(parameter_shardings, number, None))
        value.asked_layout = _tiles(_at(asked_layouts, number, ""))
        message.parameters.append(value)
    for number, spec in enumerate(outputs):
        value = _value(spec, _at(output_memory_kinds, number, ""), _at(output_shardings or (), number, None))
        value.alias_plus_one = parameter_of.get(number, -1) + 1
        value.asked_layout = _tiles(_at(asked_layouts, len(parameters) + number, ""))
        message.outputs.append(value)
    specs = [*parameters, *outputs, *values]
    on_device = {number for step in steps if hasattr(step, "code") for number in (*step.inputs, *step.outputs)}
    for number, spec in enumerate(values, len(parameters) + len(outputs)):
        value = _value(spec, "", None)
        value.is_on_host = number not in on_device
        message.values.append(value)
    message.steps.extend(step.serialize(specs) for step in steps)
    for key, amount in cost.items():
        message.costs.append(_CLASSES["Cost"](name=key, value=float(amount)))
    content = bytes(message.SerializeToString())
    return content + bytes(_CLASSES["Executable"](checksum=zlib.crc32(content)).SerializeToString())


def _at(values: Sequence[T], number: int, default: U) -> T | U:
    return values[number] if number < len(values) else default


def spec_of(type_: ValueType, what: str) -> ShapeSpec:
    """Return the spec of a parameter or result.

    Raises:
        UnimplementedError: it is no array of static shape.
    """
    if isinstance(type_, TokenType):
        return ShapeSpec((), ElementType.TOKEN)
    if not isinstance(type_, TensorType) or not type_.is_static:
        raise UnimplementedError(f"{what}: expected an array of static shape, found {type_}")
    return ShapeSpec(type_.sizes, type_.element)


def asked_layouts(program: ParsedProgram) -> tuple[list[TiledLayout | str], list[TiledLayout | str]]:
    """Return the layouts that a framework asks for, of the arguments of a program and of its results.

    Each is a ``pjrt.TiledLayout``; ``"auto"``, where the compiler chooses; or empty, for rows.
    """
    entry = program.entry
    return (
        [_layout(text_of(each.get(LAYOUT_ATTRIBUTE))) for each in entry.argument_attributes],
        [_layout(text_of(each.get(LAYOUT_ATTRIBUTE))) for each in entry.result_attributes],
    )


def _layout(mode: str) -> TiledLayout | str:
    return TiledLayout.parse(mode) if mode.startswith("{") else mode.replace("default", "")


def _tiles(asked: TiledLayout | str) -> str:
    return str(replace(asked, element_bits=0)) if isinstance(asked, TiledLayout) and asked.tiles else ""


def is_taken(asked: TiledLayout | str, order: Sequence[int] | None) -> bool:
    """Return whether an array in an order, or in rows, is what is asked for."""
    if not isinstance(asked, TiledLayout):
        return True
    rows = TiledLayout.row_major(len(asked.minor_to_major))
    return asked.minor_to_major == (rows.minor_to_major if order is None else tuple(order))


def _laid_out(
    specs: Sequence[ShapeSpec],
    orders: Mapping[int, Sequence[int]],
    asked: Sequence[TiledLayout | str],
    what: str,
    has_layouts: bool,
) -> list[ShapeSpec]:
    laid_out = list(specs)
    for number, (spec, mode) in enumerate(zip(specs, asked, strict=False)):
        order = orders.get(number)
        if order is None and not has_layouts and isinstance(mode, TiledLayout):
            order = mode.minor_to_major
        if not is_taken(mode, order):
            raise UnimplementedError(
                f"{what} {number}: the layout {mode} is asked for, and the device's code has "
                + ("rows" if order is None else "the order " + str(TiledLayout(tuple(order))))
            )
        if order is not None:
            laid_out[number] = replace(spec, layout=TiledLayout(tuple(order)))
    return laid_out


def _value(spec: ShapeSpec, kind: str, sharding: bytes | None) -> Any:
    layout = spec.layout if isinstance(spec.layout, TiledLayout) and not spec.layout.is_row_major else None
    return _CLASSES["Value"](
        type=int(spec.element_type),
        dims=spec.shape,
        memory_kind=kind,
        sharding=sharding,
        minor_to_major=() if layout is None else layout.minor_to_major,
    )

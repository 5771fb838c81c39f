"""Code: what a compiler in Python returns for a driver, and the bytes that the runtime in C reads."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import Program
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import ShapeSpec
from pjrt.stablehlo.signatures import Signature
from pjrt.stablehlo.types import TensorType, ValueType

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
            # Behind all others, of the bytes before it: fields alone look whole where the end is missing.
            "checksum": (12, "fixed32"),
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A program that was compiled for a driver.

    Only ``code`` is required. What is left out is taken from the program: its parameters and results, which of them may
    share memory, and its name.

    Attributes:
        code: the bytes that the driver's function ``load`` gets.
        outputs: shape and element type of each result.
        aliases: result number by parameter number: these parameters are donated, and the driver may be given the memory
            of the parameter for the result. The code must be right in both cases.
        donated: further parameters that are donated.
        scratch: the bytes of memory that each run needs beside its arguments and results.
        parameter_memory_kinds: the kind of memory of each parameter; empty for the device's default.
        output_memory_kinds: the kind of memory of each result; empty for the device's default.
        name: the program's name.
        cost: the cost of a run, by PJRT's keys such as ``flops``.
    """

    code: bytes
    outputs: Sequence[ShapeSpec] | None = None
    aliases: Mapping[int, int] | None = None
    donated: Collection[int] = ()
    scratch: int = 0
    parameter_memory_kinds: Sequence[str] = ()
    output_memory_kinds: Sequence[str] = ()
    name: str = "main"
    cost: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.code, bytes):
            raise InvalidArgumentError(f"Code.code: expected bytes, found {type(self.code).__name__}")
        if self.scratch < 0:
            raise InvalidArgumentError(f"Code.scratch: expected a number of bytes, found {self.scratch}")

    def serialize(self, program: Program, options: CompileOptions, signature: Signature) -> bytes:
        """Return the executable as the runtime reads it, and as it is serialized for a cache or a file.

        Args:
            program: the program that was compiled.
            options: the options that it was compiled with.
            signature: the program's parameters and results.

        Raises:
            InvalidArgumentError: the declarations do not fit the program.
            UnimplementedError: a parameter or result is no array of static shape.
        """
        outputs = self.outputs
        if outputs is None:
            outputs = [_spec(result.type, f"result {n}") for n, result in enumerate(signature.results)]
        aliases = self.aliases
        if aliases is None:
            aliases = {n: a.aliases_output for n, a in enumerate(signature.arguments) if a.aliases_output is not None}
        self._check_aliases(aliases, len(signature.arguments), outputs)
        parameters = [_spec(argument.type, f"argument {n}") for n, argument in enumerate(signature.arguments)]
        parameter_of = {result: parameter for parameter, result in aliases.items()}
        message = _CLASSES["Executable"](
            mark=_MARK,
            name=self.name,
            code=self.code,
            scratch=self.scratch,
            options=options.to_proto(),
            program=program.code,
            format=str(program.format),
            donated=sorted(self.donated),
        )
        for number, spec in enumerate(parameters):
            message.parameters.append(_value(spec, _at(self.parameter_memory_kinds, number)))
        for number, spec in enumerate(outputs):
            value = _value(spec, _at(self.output_memory_kinds, number))
            value.alias_plus_one = parameter_of.get(number, -1) + 1
            message.outputs.append(value)
        for name, amount in self.cost.items():
            message.costs.append(_CLASSES["Cost"](name=name, value=float(amount)))
        content = bytes(message.SerializeToString())
        return content + bytes(_CLASSES["Executable"](checksum=zlib.crc32(content)).SerializeToString())

    def _check_aliases(self, aliases: Mapping[int, int], num_parameters: int, outputs: Sequence[ShapeSpec]) -> None:
        for parameter, result in aliases.items():
            if not (0 <= parameter < num_parameters and 0 <= result < len(outputs)):
                raise InvalidArgumentError(
                    f"Code.aliases: the program has {num_parameters} parameters and {len(outputs)} results, found "
                    f"parameter {parameter} for result {result}"
                )
        if len(set(aliases.values())) < len(aliases):
            raise InvalidArgumentError(f"Code.aliases: expected one parameter for each result, found {dict(aliases)}")


def _at(kinds: Sequence[str], number: int) -> str:
    return kinds[number] if number < len(kinds) else ""


def _spec(type_: ValueType, what: str) -> ShapeSpec:
    if not isinstance(type_, TensorType) or not type_.is_static:
        raise UnimplementedError(f"{what}: expected an array of static shape, found {type_}")
    return ShapeSpec(type_.sizes, type_.element)


def _value(spec: ShapeSpec, kind: str) -> Any:
    return _CLASSES["Value"](type=int(spec.element_type), dims=spec.shape, memory_kind=kind)

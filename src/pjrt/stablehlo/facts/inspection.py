"""Inspection: the facts about a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram
from pjrt.stablehlo.encodings import hlo_proto
from pjrt.stablehlo.encodings.format import Encoding, Version, artifact_version, encoding_of, has_resources
from pjrt.stablehlo.facts.outline import COLLECTIVES
from pjrt.stablehlo.facts.signatures import ArgumentInfo, ResultInfo, signature_of, text_of
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.mlir_attributes import left_out
from pjrt.stablehlo.ir.mlir_module import MlirModule
from pjrt.stablehlo.ir.operation import Operation, ParsedProgram
from pjrt.stablehlo.ir.sharding import Mesh
from pjrt.stablehlo.ir.types import FutureType, OpaqueType, TensorType, TupleType, ValueType
from pjrt.stablehlo.reading import conversion
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.reading.reader import as_program

SIDE_EFFECTS = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
"""The operations with side effects (a custom call may declare one, too)."""

_TERMINATORS = frozenset(("func.return", "stablehlo.return", "sdy.return"))
_SHOWN_LOCATIONS = 3


@dataclass(frozen=True, slots=True)
class OperationInfo:
    """The uses of one operation in a program.

    Attributes:
        name: the operation's name, such as ``stablehlo.add``.
        count: the number of times that it is in the program's text (not the times that it runs).
        locations: the locations of the first few.
    """

    name: str
    count: int
    locations: tuple[Location, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """The facts about a program.

    Attributes:
        name: the module's name.
        entry: the name of the function that is run.
        encoding: the encoding that the program is written in.
        size: the size of the program, in bytes.
        version: the StableHLO version of a portable artifact; None for other encodings.
        needed_version: the oldest StableHLO version that can hold it; None if no version can.
        not_portable_because: the reason why no version can hold it; empty if one can.
        arguments: the arguments of the entry function.
        results: the results of the entry function.
        functions: the names of all functions.
        operations: its operations, the most frequent first.
        custom_calls: the number of calls of each custom call target.
        constant_bytes: the size of its constants as arrays, in bytes.
        constants_left_out: the number of constants whose values were left out when the program was written.
        num_replicas: the number of replicas that it states.
        num_partitions: the number of partitions that it states.
        has_dynamic_shapes: whether a size in it is known only when it runs.
        collectives: the operations in it in which several devices take part.
        side_effects: the operations in it with side effects; custom calls by ``custom_call @target``.
        meshes: the meshes of devices that its shardings name.
    """

    name: str
    entry: str
    encoding: Encoding
    size: int
    version: Version | None
    needed_version: Version | None
    not_portable_because: str
    arguments: tuple[ArgumentInfo, ...]
    results: tuple[ResultInfo, ...]
    functions: tuple[str, ...]
    operations: tuple[OperationInfo, ...]
    custom_calls: Mapping[str, int]
    constant_bytes: int
    constants_left_out: int
    num_replicas: int
    num_partitions: int
    has_dynamic_shapes: bool
    collectives: tuple[str, ...]
    side_effects: tuple[str, ...]
    meshes: Mapping[str, Mesh]

    @property
    def num_operations(self) -> int:
        """The number of operations in the program's text, without the terminators of blocks."""
        return sum(operation.count for operation in self.operations)


def inspect(program: AnyProgram, *, trusted: bool = False) -> ProgramInfo:
    """Return the facts about a program in any encoding; for an HLO proto, about the StableHLO that it becomes.

    Args:
        program: the program.
        trusted: whether its bytes come from a compiler or framework and were not damaged since; see ``parse``.

    Raises:
        PjrtError: as for ``parse``.
        NotFoundError: the program has no function to run.
    """
    program = as_program(program)
    module = conversion.to_module(program, trusted=trusted)
    parsed = parse_module(module, largest_constant=0)
    signature_ = signature_of(parsed, module)
    operations = [operation for operation in parsed.walk() if operation.name not in _TERMINATORS]
    needed, reason = _needed_version(module)
    encoding = encoding_of(program)
    counts = parsed.num_replicas, parsed.num_partitions
    if encoding is Encoding.HLO_WITH_CONFIG:  # which states them beside the module
        counts = hlo_proto.device_counts(program.code)
    return ProgramInfo(
        name=parsed.name,
        entry=parsed.entry.name,
        encoding=encoding,
        size=len(program),
        version=artifact_version(program),
        needed_version=needed,
        not_portable_because=reason,
        arguments=signature_.arguments,
        results=signature_.results,
        functions=tuple(parsed.functions),
        operations=_operations(operations),
        custom_calls=Counter(_target(operation) for operation in operations if _is_custom_call(operation)),
        constant_bytes=sum(map(_constant_bytes, operations)),
        constants_left_out=len(left_out(module)) if has_resources(program.code) else 0,
        num_replicas=counts[0],
        num_partitions=counts[1],
        has_dynamic_shapes=_has_dynamic_shapes(parsed, operations),
        collectives=tuple(sorted({operation.name for operation in operations} & COLLECTIVES)),
        side_effects=_side_effects(operations),
        meshes=parsed.meshes,
    )


def _needed_version(module: MlirModule) -> tuple[Version | None, str]:
    try:
        return conversion.oldest_version(module), ""
    except InvalidArgumentError as error:
        return None, error.message


def _operations(operations: list[Operation]) -> tuple[OperationInfo, ...]:
    counts = Counter(operation.name for operation in operations)
    locations: dict[str, dict[str, Location]] = {name: {} for name in counts}
    for operation in operations:
        shown = locations[operation.name]
        if len(shown) < _SHOWN_LOCATIONS and operation.location.is_known:
            shown.setdefault(str(operation.location), operation.location)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OperationInfo(name, count, tuple(locations[name].values())) for name, count in ordered)


def _is_custom_call(operation: Operation) -> bool:
    return operation.name == "stablehlo.custom_call"


def _target(operation: Operation) -> str:
    return text_of(operation.attributes.get("call_target_name"))


def _constant_bytes(operation: Operation) -> int:
    if not operation.name.endswith(".constant"):
        return 0
    type_ = operation.results[0].type
    return type_.nbytes if isinstance(type_, TensorType) and type_.is_static else 0


def _has_dynamic_shapes(parsed: ParsedProgram, operations: list[Operation]) -> bool:
    values = [value.type for operation in operations for value in operation.results]
    for function in parsed.functions.values():
        values += [*function.type.arguments, *function.type.results]
    return any(map(_is_dynamic, values))


def _is_dynamic(type_: ValueType) -> bool:
    if isinstance(type_, TensorType):
        return not type_.is_static
    if isinstance(type_, TupleType | FutureType):
        return any(map(_is_dynamic, type_.elements))
    return isinstance(type_, OpaqueType) and ("?" in type_.text or "tensor<*" in type_.text)


def _side_effects(operations: list[Operation]) -> tuple[str, ...]:
    names = {operation.name for operation in operations} & SIDE_EFFECTS
    for operation in operations:
        if _is_custom_call(operation) and operation.attributes.get("has_side_effect", False):
            names.add(f"custom_call @{_target(operation)}")
    return tuple(sorted(names))

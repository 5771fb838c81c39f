"""The shardings that XLA notes in an HLO module which it has partitioned."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo import _hlo, _xla_protos
from pjrt.stablehlo.conversion import to_hlo
from pjrt.stablehlo.primitive_type import TUPLE
from pjrt.stablehlo.protobuf_wire import fields

# HloModuleProto; OpSharding.Type
_PROGRAM_SHAPE, _OUTPUT_SHARDING, _PARAMETER_SHARDINGS = 4, 12, 14
_READ = (_PROGRAM_SHAPE, _OUTPUT_SHARDING, _PARAMETER_SHARDINGS)
_TUPLE_SHARDING = 2


def with_shardings(
    program: Program, parameter_shardings: Sequence[bytes] | None, output_shardings: Sequence[bytes] | None
) -> Program:
    """Return an optimized program as an ``HloModuleProtoWithConfig`` with XLA's notes of its shardings.

    XLA reads the shardings of an executable there. StableHLO, HLO text and the programs of other compilers do not have
    these notes.

    Args:
        program: the program. Its bytes are trusted. The notes that it has already stay.
        parameter_shardings: the sharding of each parameter as a serialized ``xla.OpSharding``; ``None`` for no notes.
        output_shardings: the same for each result.

    Raises:
        PjrtError: as for ``to_hlo``.
    """
    program = to_hlo(program, with_config=True, trusted=True)
    place = _hlo.screen(program.code)
    module = program.code[place.begin : place.end]
    present = {number: module[begin:end] for number, _, begin, end in fields(module) if number in _READ}
    shape = _xla_protos.parse("ProgramShapeProto", present[_PROGRAM_SHAPE])
    notes = _xla_protos.new("HloModuleProto")
    if parameter_shardings is not None and _PARAMETER_SHARDINGS not in present:
        tupled = [parameter.element_type for parameter in shape.parameters] == [TUPLE]
        notes.spmd_parameters_shardings.extend([_of_tuple(parameter_shardings)] if tupled else parameter_shardings)
    if output_shardings is not None and _OUTPUT_SHARDING not in present:
        tupled = shape.result.element_type == TUPLE
        notes.spmd_output_sharding = _of_tuple(output_shardings) if tupled else output_shardings[0]
    if not notes.ByteSize():
        return program
    # Protobuf reads the fields of a message in any order, so the notes may stand behind all others.
    whole = _xla_protos.parse("HloModuleProtoWithConfig", program.code)
    whole.hlo_module = module + notes.SerializeToString()
    return Program(whole.SerializeToString(), ProgramFormat.HLO_WITH_CONFIG)


def _of_tuple(shardings: Sequence[bytes]) -> bytes:
    """Return the sharding of a tuple whose elements have these shardings."""
    message: bytes = _xla_protos.new("OpSharding", type=_TUPLE_SHARDING, tuple_shardings=shardings).SerializeToString()
    return message

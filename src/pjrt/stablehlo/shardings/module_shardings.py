"""The shardings that XLA notes in an HLO module which it has partitioned."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo import _hlo, _mlir, _xla_protos, jaxlib
from pjrt.stablehlo.conversion import to_hlo, to_module
from pjrt.stablehlo.primitive_type import TUPLE
from pjrt.stablehlo.protobuf_wire import fields
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.shardings.sharding import Sharding

# HloModuleProto; OpSharding.Type
_PROGRAM_SHAPE, _OUTPUT_SHARDING, _PARAMETER_SHARDINGS = 4, 12, 14
_READ = (_PROGRAM_SHAPE, _OUTPUT_SHARDING, _PARAMETER_SHARDINGS)
_TUPLE_SHARDING = 2
_NAMED_SHARDING = b"\x72"
"""How the field ``named_sharding`` of an ``OpSharding`` begins."""

_PURPOSE = "note the shardings of a program"


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


def with_notes(program: Program, parameter_notes: Sequence[bytes], result_notes: Sequence[bytes]) -> Program:
    """Return a program of whole values with XLA's notes of its shardings, as ``partition`` returns them.

    A program of StableHLO stays one, with the attributes for notes that XLA's converters know.
    """
    if program.format != ProgramFormat.MLIR:
        return with_shardings(program, parameter_notes, result_notes)
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    module = to_module(read(program), trusted=True)
    with module as mlir:
        texts = [ir.StringAttr.get(note) for note in parameter_notes]
        result = result_notes[0] if len(result_notes) == 1 else _of_tuple(result_notes)
        attributes = mlir.operation.attributes
        attributes["mhlo.spmd_parameters_shardings"] = ir.ArrayAttr.get(texts)
        attributes["mhlo.spmd_output_sharding"] = ir.StringAttr.get(result)
    return Program(_mlir.write_bytecode(module))


def as_tiles(sharding: bytes) -> bytes:
    """Return a serialized ``xla.OpSharding`` over the axes of a mesh as one of tiles, as XLA's executables report it.

    Shardings of other kinds stay as they are.
    """
    if _NAMED_SHARDING not in sharding or not _xla_protos.parse("OpSharding", sharding).HasField("named_sharding"):
        return sharding
    hlo = jaxlib.load_hlo(_PURPOSE)
    if not hasattr(hlo.HloSharding, "v3_to_v2_sharding"):  # jaxlib 0.9
        return Sharding.from_proto(sharding).to_proto()
    proto = hlo.OpSharding()
    proto.ParseFromString(sharding)
    tiles: bytes = hlo.HloSharding.v3_to_v2_sharding(hlo.HloSharding.from_proto(proto)).to_proto().SerializeToString()
    return tiles


def _of_tuple(shardings: Sequence[bytes]) -> bytes:
    """Return the sharding of a tuple whose elements have these shardings. XLA's has one also for the empty tuple."""
    elements = shardings or [b""]
    message: bytes = _xla_protos.new("OpSharding", type=_TUPLE_SHARDING, tuple_shardings=elements).SerializeToString()
    return message

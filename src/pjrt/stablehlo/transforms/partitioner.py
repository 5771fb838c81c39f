"""XLA's partitioner for any device: from the program of many devices to that of one, with explicit collectives.

A program with shardings is written for whole values. XLA's SPMD partitioner decides which device holds which part of
each value, and inserts the collectives that move parts. It belongs to XLA's compilers and has no entry point of its
own, so the program is compiled for the CPU, with as many virtual devices as it needs, and the module is taken from
between two of the compiler's passes, where XLA writes it to a file. Generating code would take ten times as long as
all that comes before it. An operation that XLA has no code for, a result of its own, ends the compilation there.

XLA notes the shardings in a module which it has partitioned; they are read here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pjrt.api.compile_options import CompileOptions, DeviceAssignment, OptionValue
from pjrt.api.errors import InternalError, InvalidArgumentError, UnimplementedError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo.encodings import hlo_proto, jaxlib
from pjrt.stablehlo.encodings.hlo_parameters import TUPLE
from pjrt.stablehlo.encodings.hlo_proto import fields, with_debug_options
from pjrt.stablehlo.facts.compatibility import with_advice
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.mlir_module import MlirModule, walk
from pjrt.stablehlo.ir.sharding import Sharding
from pjrt.stablehlo.reading.conversion import to_hlo, to_module, with_fitting_partitioner, with_partitioning
from pjrt.stablehlo.reading.reader import read
from pjrt.stablehlo.transforms.custom_calls import prepare_calls, register_batches, rename_calls
from pjrt.system import TemporaryFolder

# HloModuleProto; OpSharding.Type
_PROGRAM_SHAPE, _OUTPUT_SHARDING, _PARAMETER_SHARDINGS = 4, 12, 14
_READ = (_PROGRAM_SHAPE, _OUTPUT_SHARDING, _PARAMETER_SHARDINGS)
_TUPLE_SHARDING = 2
_NAMED_SHARDING = b"\x72"
"""How the field ``named_sharding`` of an ``OpSharding`` begins."""

_NOTES_PURPOSE = "note the shardings of a program"


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
    place = hlo_proto.screen(program.code)
    module = program.code[place.begin : place.end]
    present = {number: module[begin:end] for number, _, begin, end in fields(module) if number in _READ}
    shape = hlo_proto.parse_message("ProgramShapeProto", present[_PROGRAM_SHAPE])
    notes = hlo_proto.new_message("HloModuleProto")
    if parameter_shardings is not None and _PARAMETER_SHARDINGS not in present:
        tupled = [parameter.element_type for parameter in shape.parameters] == [TUPLE]
        notes.spmd_parameters_shardings.extend([_of_tuple(parameter_shardings)] if tupled else parameter_shardings)
    if output_shardings is not None and _OUTPUT_SHARDING not in present:
        tupled = shape.result.element_type == TUPLE
        notes.spmd_output_sharding = _of_tuple(output_shardings) if tupled else output_shardings[0]
    if not notes.ByteSize():
        return program
    # Protobuf reads the fields of a message in any order, so the notes may stand behind all others.
    whole = hlo_proto.parse_message("HloModuleProtoWithConfig", program.code)
    whole.hlo_module = module + notes.SerializeToString()
    return Program(whole.SerializeToString(), ProgramFormat.HLO_WITH_CONFIG)


def with_notes(program: Program, parameter_notes: Sequence[bytes], result_notes: Sequence[bytes]) -> Program:
    """Return a program with XLA's notes of the shardings of its whole values, as ``partition`` returns them.

    A program of StableHLO stays one, with the attributes for notes that XLA's converters know.
    """
    if program.format != ProgramFormat.MLIR:
        return with_shardings(program, parameter_notes, result_notes)
    ir = jaxlib.load("mlir.ir", _NOTES_PURPOSE)
    module = to_module(read(program), trusted=True)
    with module as mlir:
        texts = [ir.StringAttr.get(note) for note in parameter_notes]
        result = result_notes[0] if len(result_notes) == 1 else _of_tuple(result_notes)
        attributes = mlir.operation.attributes
        attributes["mhlo.spmd_parameters_shardings"] = ir.ArrayAttr.get(texts)
        attributes["mhlo.spmd_output_sharding"] = ir.StringAttr.get(result)
    return Program(mlir_module.write_bytecode(module))


def as_tiles(sharding: bytes) -> bytes:
    """Return a serialized ``xla.OpSharding`` over the axes of a mesh as one of tiles, as XLA's executables report it.

    Shardings of other kinds stay as they are.
    """
    if _NAMED_SHARDING not in sharding or not hlo_proto.parse_message("OpSharding", sharding).HasField(
        "named_sharding"
    ):
        return sharding
    hlo = jaxlib.load_hlo(_NOTES_PURPOSE)
    if not hasattr(hlo.HloSharding, "v3_to_v2_sharding"):  # jaxlib 0.9
        return Sharding.from_proto(sharding).to_proto()
    proto = hlo.OpSharding()
    proto.ParseFromString(sharding)
    tiles: bytes = hlo.HloSharding.v3_to_v2_sharding(hlo.HloSharding.from_proto(proto)).to_proto().SerializeToString()
    return tiles


def _of_tuple(shardings: Sequence[bytes]) -> bytes:
    """Return the sharding of a tuple whose elements have these shardings. XLA's has one also for the empty tuple."""
    elements = shardings or [b""]
    message: bytes = hlo_proto.new_message(
        "OpSharding", type=_TUPLE_SHARDING, tuple_shardings=elements
    ).SerializeToString()
    return message


_PURPOSE = "partition a program"
_STOP = "pjrt_no_code_after_partitioning"
_FUNCTION_FAILED = "INTERNAL: custom_partitioner: "
"""The beginning of XLA's message where a function that divides a custom call raised an exception."""
_DUMP = "*after_spmd-partitioning*.pb"


@dataclass(frozen=True)
class Partitioned:
    """A program as one of its partitions runs it.

    Attributes:
        module: the program in StableHLO, over the parts of values that one device holds. ``stablehlo.partition_id``
            tells the partition, and collectives name the partitions that take part.
        parameter_shardings: how each whole argument is spread over the partitions, as a serialized ``xla.OpSharding``.
        result_shardings: how each whole result is spread over them.
        notes: the same shardings, of the arguments and of the results, as XLA notes them in its module. Since jaxlib
            0.12 Shardy's are over the axes of a mesh there, while executables report tiles.
    """

    module: MlirModule
    parameter_shardings: tuple[bytes, ...]
    result_shardings: tuple[bytes, ...]
    notes: tuple[tuple[bytes, ...], tuple[bytes, ...]]

    @property
    def program(self) -> Program:
        """The module as a program."""
        return Program(mlir_module.write_bytecode(self.module))

    @property
    def optimized(self) -> Program:
        """The module with XLA's notes, as XLA's executables give their programs; JAX reads both."""
        return with_notes(self.program, *self.notes)


def partition(program: AnyProgram, options: CompileOptions | None = None) -> Partitioned:
    """Partition a program by its shardings, Shardy's or GSPMD's, and by what XLA propagates from them.

    Args:
        program: a program of whole values in any encoding. Its bytes are trusted as a compiler trusts them.
        options: the compile options. They say how many replicas and partitions there are, of which kind the shardings
            are, and where shardings may be propagated to; the program decides what they leave open. The options of
            another compiler (``option_overrides``) are ignored.

    Raises:
        UnimplementedError: XLA does not partition such programs; the message is XLA's.
        InvalidArgumentError: the program does not parse, its shardings are for another number of devices, or it needs
            a Python function of another process; see ``prepare_calls``.
        InternalError: a function of this process that divides a custom call raised an exception.
        FailedPreconditionError: jaxlib is missing.
    """
    program = Program.of(program)
    options = with_partitioning(program, options)
    module = to_module(read(program), trusted=True, legalized=False)
    options = with_fitting_partitioner(module, options)
    shardy = options.partitioning.use_shardy_partitioner
    with module as mlir:
        main = _main(mlir)
        num_results = len(_type(main).results)
        stated = {name: _stated(main, name) for name in ("arg_attrs", "res_attrs")}
        _prepare_calls(mlir, main)
        _append_stop(main, as_result=shardy)
    try:
        dumped = _compile_and_dump(mlir_module.write_bytecode(module), _options(options))
    except InvalidArgumentError as error:
        raise with_advice(error, program, options) from error
    hlo = read(Program(dumped, ProgramFormat.HLO))
    parameters, results = _shardings(hlo)
    results = results[:num_results]
    partitioned = to_module(hlo, trusted=True)
    with partitioned as mlir:
        main = _main(mlir)
        _remove_stop(main, num_results)
        _state(mlir, main, stated, options)
    return Partitioned(
        partitioned, tuple(map(as_tiles, parameters)), tuple(map(as_tiles, results)), (parameters, results)
    )


def _options(options: CompileOptions) -> CompileOptions:
    """Return the options for a compilation on virtual devices, of a program that may have one more result."""
    replicas, partitions = options.partitioning.num_replicas, options.partitioning.num_partitions
    ids = range(replicas * partitions)
    propagation = options.allow_spmd_sharding_propagation_to_output
    if len(propagation) > 1 and options.partitioning.use_shardy_partitioner:
        propagation = (*propagation, False)
    return replace(
        options,
        device_assignment=DeviceAssignment(
            tuple(tuple(ids[row * partitions : (row + 1) * partitions]) for row in range(replicas))
        ),
        device_ordinal=-1,
        use_spmd_partitioning=True,
        compile_portable_executable=False,
        allow_spmd_sharding_propagation_to_output=propagation,
        option_overrides={},
    )


def _compile_and_dump(code: bytes, options: CompileOptions) -> bytes:
    """Compile a program that stops after the partitioner, and return the ``HloProto`` that the partitioner left."""
    jax = jaxlib.load("_jax", _PURPOSE)
    register_batches()
    count = options.partitioning.num_devices
    client = jax.get_tfrt_cpu_client(asynchronous=False, num_devices=count)
    devices = jax.DeviceList(tuple(client.local_devices()))
    message = "the compiler ended without a message"
    with TemporaryFolder("partition") as folder:
        asked = with_debug_options(
            replace(options, option_overrides={**_OVERRIDES, "xla_dump_to": str(folder)}).to_proto()
        )
        try:
            client.compile_and_load(code, devices, jax.CompileOptions.ParseFromString(asked))
        except (RuntimeError, ValueError) as error:  # the stop at least
            message = jaxlib.without_stages(str(error))
        dumped = sorted(folder.rglob(_DUMP))
        if dumped:
            return dumped[-1].read_bytes()
    if _STOP in message:
        message = "the compiler of this jaxlib has no pass 'spmd-partitioning'"
    if message.startswith(_FUNCTION_FAILED):
        raise InternalError(message.removeprefix("INTERNAL: "))
    if message.startswith("INVALID_ARGUMENT"):
        raise InvalidArgumentError(f"XLA cannot partition this program: {message}")
    raise UnimplementedError(f"XLA does not partition this program: {message}")


_OVERRIDES: dict[str, OptionValue] = {
    "xla_dump_hlo_pass_re": "^spmd-partitioning$",
    "xla_dump_hlo_as_proto": True,
    "xla_dump_hlo_as_text": False,
    "xla_backend_optimization_level": 0,
}


def _shardings(hlo: Program) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the shardings of parameters and of results, the stop's included, that XLA notes in the module."""
    module = jaxlib.load_hlo(_PURPOSE).HloModule.from_serialized_hlo_module_proto(hlo.code)
    results = module.spmd_output_sharding
    elements = () if results is None else results.tuple_shardings or [results]
    return (
        tuple(sharding.SerializeToString() for sharding in module.spmd_parameters_shardings or ()),
        tuple(sharding.SerializeToString() for sharding in elements),
    )


# The program's main function.


def _main(mlir: Any) -> Any:
    for operation in mlir.body:
        if operation.operation.name == "func.func" and operation.attributes["sym_name"].value == "main":
            return operation.operation
    raise InvalidArgumentError("expected a program with a function 'main', found none")


def _type(main: Any) -> Any:
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    return ir.FunctionType(main.attributes["function_type"].value)


def _prepare_calls(mlir: Any, main: Any) -> None:
    """Prepare custom calls, and refuse those over which XLA ends the process.

    They ask functions of other processes, or are borders of GSPMD's into a part for one device that make no sense: XLA
    before 0.10 of jaxlib ends the process over those, and later ones refuse them.
    """
    arguments = list(main.regions[0].blocks[0].arguments)
    shardings = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else [{}] * len(arguments)
    targets = set()
    for operation in walk(mlir.operation):
        attributes = operation.attributes
        target = attributes["call_target_name"].value if "call_target_name" in attributes else ""
        targets.add(target)
        if target not in ("SPMDFullToShardShape", "SPMDShardToFullShape"):
            continue
        value = operation.operands[0]
        stated = next((own for own, of in zip(shardings, arguments, strict=True) if of == value), None)
        if stated is None:
            stated = getattr(value.owner, "attributes", {"mhlo.sharding": None})  # an argument of an inner block
        has_sharding = "mhlo.sharding" in stated or target == "SPMDShardToFullShape"
        if not has_sharding or value.type.rank != operation.results[0].type.rank:
            raise UnimplementedError(
                f"XLA does not partition this program: expected {target} of a value with a sharding, and a result of "
                f"the same rank, found {value.type} and {operation.results[0].type}"
            )
    rename_calls(mlir, prepare_calls(targets))


def _append_stop(main: Any, *, as_result: bool) -> None:
    """Add the operation that XLA partitions and has no code for.

    Nothing must use it and yet it must stay. Shardy keeps a result of the function's. GSPMD, by which a function of one
    result is not partitioned as one of two, keeps an operation with an effect, if it belongs to each device.
    """
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    block = main.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1]
    effect = "" if as_result else ', has_side_effect = true, mhlo.sharding = "{manual}"'
    attributes = f'{{call_target_name = "{_STOP}", api_version = 4 : i32{effect}}}'
    with ir.Location.unknown():
        stop = ir.Operation.create(
            "stablehlo.custom_call",
            results=[ir.Type.parse("tensor<f32>")] if as_result else [],
            attributes={each.name: each.attr for each in ir.DictAttr.parse(attributes)},
            ip=ir.InsertionPoint(end),
        )
        if as_result:
            _return(main, [*end.operands, stop.result])


def _remove_stop(main: Any, num_results: int) -> None:
    block = main.regions[0].blocks[0]
    results = list(block.operations[len(block.operations) - 1].operands)
    _return(main, results[:num_results])
    for operation in block.operations:
        if "call_target_name" in operation.attributes and operation.attributes["call_target_name"].value == _STOP:
            operation.operation.erase()
            return


def _return(main: Any, values: Sequence[Any]) -> None:
    """Make the function return these values, of which it states nothing yet."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    block = main.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1]
    with ir.Location.unknown():
        ir.Operation.create("func.return", operands=list(values), ip=ir.InsertionPoint(end))
        end.operation.erase()
        type_ = ir.FunctionType.get(_type(main).inputs, [value.type for value in values])
    main.attributes["function_type"] = ir.TypeAttr.get(type_)
    if "res_attrs" in main.attributes:
        kept = list(main.attributes["res_attrs"])[: len(values)]
        empty = [ir.DictAttr.get({})] * (len(values) - len(kept))
        main.attributes["res_attrs"] = ir.ArrayAttr.get([*kept, *empty])


# What a program states beside its types.

_SHARDINGS = ("sdy.sharding", "mhlo.sharding", "mhlo.frontend_attributes")


def _stated(main: Any, name: str) -> str | None:
    """Return what the function states about its arguments or results, but for shardings, as MLIR spells it."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    if name not in main.attributes:
        return None
    rows = [
        ir.DictAttr.get({each.name: each.attr for each in row if each.name not in _SHARDINGS})
        for row in main.attributes[name]
    ]
    return str(ir.ArrayAttr.get(rows))


def _state(mlir: Any, main: Any, stated: Mapping[str, str | None], options: CompileOptions) -> None:
    """State about a partitioned program what holds for it, and drop what would have it partitioned once more."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    for name, spelled in stated.items():
        if name in main.attributes:
            del main.attributes[name]
        if spelled is not None:
            main.attributes[name] = ir.Attribute.parse(spelled)
    attributes = mlir.operation.attributes
    for name in [attributes[number].name for number in range(len(attributes))]:
        if name.startswith("mhlo."):
            del attributes[name]
    for name, count in (
        ("mhlo.num_replicas", options.partitioning.num_replicas),
        ("mhlo.num_partitions", options.partitioning.num_partitions),
    ):
        attributes[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), count)

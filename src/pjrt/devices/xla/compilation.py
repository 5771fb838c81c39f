"""Compilation: from a program and its options to an executable."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect, expect_bytes, expect_int
from pjrt.api.compile_options import CompileOptions, DeviceAssignment, Partitioning
from pjrt.api.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PjrtError,
    StatusCode,
    UnimplementedError,
)
from pjrt.api.printable import perhaps
from pjrt.api.program import Program, ProgramFormat, is_for_stranger
from pjrt.api.shape_spec import TiledLayout
from pjrt.devices.xla import _jaxlib, faults
from pjrt.devices.xla._jaxlib import converted, status_of
from pjrt.devices.xla.executable import SERIALIZED, XlaExecutable, result_shapes
from pjrt.devices.xla.runtime import ArrayType
from pjrt.stablehlo import read, to_module, with_partitioning
from pjrt.stablehlo.encodings.hlo_parameters import HloCustomCall, custom_calls
from pjrt.stablehlo.encodings.hlo_proto import with_debug_options
from pjrt.stablehlo.encodings.jaxlib import load
from pjrt.stablehlo.ir.mlir_module import first_printed
from pjrt.stablehlo.ir.types import TupleType
from pjrt.stablehlo.reading.conversion import with_fitting_partitioner

if TYPE_CHECKING:
    from pjrt.devices.xla.runtime import Runtime
    from pjrt.stablehlo.facts.outline import Outline


JAX_ONLY = frozenset(
    {
        "xla_buffer_python_cpu_callback",
        "xla_ffi_partitioned_python_cpu_callback",
        "xla_ffi_python_cpu_callback",
    }
)
"""The targets that call a Python function by its index in a list that JAX gives to XLA when it compiles and executes.

Only JAX gives that list, and jaxlib does not check that there is one: without JAX such a call would end the process.
"""

_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"})
"""The targets that JAX writes into partitioned programs. XLA interprets them, and survives all that can be read."""

_OF_STABLEHLO = r"mhlo\.(?!topk$)\w+"
"""Operations that StableHLO has no name for, in JAX's spelling. XLA checks their operands, except those of ``topk``."""

_TOP_K = r"\{k = \d+ : i64, largest = (true|false)\}"

_IDLE = frozenset({"dce_sink"})
"""The targets whose handlers do nothing."""

_CALLS = re.compile(rb"custom[-_]call")  # the spellings of StableHLO and HLO

_registration_lock = threading.Lock()
_registered: set[str] = set()
"""The targets that were registered by ``register_handler``, for programs of strangers too."""


def register_handler(name: str, handler: Callable[..., Any] | int, traits: int) -> None:
    """Register an FFI handler with XLA in this process, for all clients and for ever: XLA cannot remove one.

    Raises:
        InvalidArgumentError: the handler is neither a function nor an address, or the address is null.
        AlreadyExistsError: the name has another handler.
    """
    expect(name, str, "the name of a custom call's target as a str")
    expect_int(traits, "the traits of an FFI handler as the bits of a whole number")
    if callable(handler):
        from pjrt.devices.xla.ffi_handler import handler_of  # here: few programs have handlers

        if name in _jaxlib.own_targets():  # registered with the first program that calls any
            raise AlreadyExistsError(f"jaxlib has a handler of its own for {name!r}; give yours another name")
        address = handler_of(handler, traits)
    elif isinstance(handler, int) and handler > 0:
        address = handler
    else:
        raise InvalidArgumentError(f"expected the address of an FFI handler or a Python function, found {handler!r}")
    try:
        _jaxlib.register_handler(name, address, traits)
    except Exception as error:
        raise converted(error) from error
    _registered.add(name)


def register_handlers(code: bytes) -> None:
    """Register the handlers that jaxlib has for the CPU and those that JAX has, if the program may call one.

    Raises:
        PjrtError: XLA rejects one of the handlers that JAX has.
    """
    if not _CALLS.search(code):
        return
    from pjrt.devices.xla import ffi_handler  # here: few programs call handlers

    with _registration_lock:
        try:
            _jaxlib.register_own_handlers()
            ffi_handler.register_csr_product()
            _jaxlib.register_handlers_of_jax()
        except Exception as error:
            raise converted(error) from error


def is_ordinary_call(target: str, attributes: str) -> bool:
    """Whether XLA's compiler leaves a call to its handler, or is known to survive its own treatment of the call.

    Args:
        target: the target of the call.
        attributes: the text of its ``mhlo.attributes``.
    """
    if target == "mhlo.topk":
        return re.fullmatch(_TOP_K, attributes) is not None
    if target in _MARKERS or re.fullmatch(_OF_STABLEHLO, target):
        return True
    return target in _jaxlib.jax.custom_call_targets(_jaxlib.FFI_PLATFORM)


def prepare_calls(module: bytes, given: Collection[str]) -> None:
    """Check the calls that a compiled program makes when it runs, and prepare their handlers.

    Args:
        module: the compiled program, a serialized ``HloModuleProto``.
        given: the targets that the program called before it was compiled. XLA has made the calls of others itself.

    Raises:
        InvalidArgumentError: a handler in C would leave the memory of its operands and results.
        UnimplementedError: the program calls a target that only JAX can serve, or one whose calls nobody can check.
        PermissionDeniedError: the program is a stranger's, and calls what is for this process alone.
        PjrtError: LAPACK cannot be loaded.
    """
    calls = custom_calls(module)
    for call in calls:
        _check_call(call, call.target in given)
    if calls and not _jaxlib.lapack_targets().isdisjoint(call.target for call in calls):
        with _registration_lock:
            try:
                _jaxlib.load_lapack()
            except Exception as error:
                raise converted(error) from error


def _check_call(call: HloCustomCall, is_given: bool) -> None:
    """Raise an error unless a call can do no harm, or is one that the user of this process answers for."""
    from pjrt.devices.xla import ffi_handler  # here: few programs call handlers

    target = call.target
    if target in JAX_ONLY:
        raise UnimplementedError(
            f"the program calls {target!r}, a Python function that only JAX's own CPU backend can find; register "
            "the function with client.register_ffi_handler(name, function) and call it by that name"
        )
    if target in ffi_handler.SIGNATURES:
        ffi_handler.check_signature(call)
    elif target in _jaxlib.own_targets():
        raise UnimplementedError(
            f"the program calls {target!r}, whose operands this version of pjrt cannot check; compile the program "
            "again if it was saved by another one, otherwise upgrade pjrt"
        )
    elif not is_given or target in _IDLE or target in _registered or target in _MARKERS:
        return  # XLA's own calls fit; a registered handler is the user's matter
    elif target not in _jaxlib.jax.custom_call_targets(_jaxlib.FFI_PLATFORM):
        raise UnimplementedError(
            f"the program calls {target!r}, which has no handler here; register one with "
            "client.register_ffi_handler(name, function)"
        )
    elif is_for_stranger():
        raise PermissionDeniedError(
            f"the program calls {target!r}, a handler in the server's process that is not for its clients; the "
            "server's owner may offer it with client.register_ffi_handler"
        )


_DEFAULT = CompileOptions().completed(Partitioning())


def compile_program(
    runtime: Runtime,
    program: Program,
    options: CompileOptions | None,
    inspect: Callable[[Any, CompileOptions], tuple[Outline, bytes]] | None = None,
) -> XlaExecutable:
    """Compile a program for the devices that the options name.

    XLA's compiler may end the process over a program that it does not survive. ``trial_compilation.compile_safely``
    protects against that, this function does not.

    Args:
        runtime: the runtime to compile with.
        program: the program.
        options: the options. What they leave to the program is read from it.
        inspect: looks at the program as MLIR module, and at the complete options. It returns the outline, and the
            serialized executable if that was made elsewhere; it may raise.

    Raises:
        InvalidArgumentError: the bytes are no program, the compiler rejects it, or a collective names a replica or
            partition that is not there.
        UnimplementedError: XLA would compute something wrongly; see ``faults``.
    """
    module = _module(program)
    options = with_partitioning(program, options, module)
    assignment, devices = _assigned(runtime, options)
    options = with_fitting_partitioner(module, options)
    register_handlers(program.code)
    outline, serialized = (None, b"") if inspect is None else inspect(module, options)
    if b"quant" in program.code and not serialized:
        from pjrt.devices.xla import quantization  # here: few programs have quantized types

        if quantization.write_out(module) and outline is not None:
            outline = type(outline).of(module)
    called = set() if outline is None else {target for target, _ in outline.custom_calls}
    if called:
        from pjrt.devices.xla import ffi_handler  # here: few programs call handlers

        ffi_handler.guard_csr_product(module, called)
    with module as mlir:
        _check_groups(mlir, options.partitioning, outline)
        if outline is not None and any(isinstance(type_, TupleType) for type_ in outline.types):
            _spread_tuples(mlir)
        faults.mend(mlir, options.partitioning.num_partitions, outline)
    jaxlib_options = _jaxlib_options(options, assignment)
    try:
        if serialized:
            code, _ = _unwrapped(serialized)
            compiled = runtime.jaxlib_client.deserialize_executable(code, devices, jaxlib_options)
            return _executable(compiled, assignment, options, code=code)
        with module as mlir:
            shapes = result_shapes(mlir) if options.partitioning.num_partitions > 1 else None
            compiled = runtime.jaxlib_client.compile_and_load(mlir, devices, jaxlib_options)
    except Exception as error:
        raise _explained(error) from error
    del mlir, module  # as large as the program's constants, and the next step needs as much memory
    return _executable(compiled, assignment, options, shapes, called=called)


def _spread_tuples(mlir: Any) -> None:
    """Let the main function take and return the elements of tuples in their place, as its executables do.

    XLA takes tuples at the border of a program from HLO alone. What a program states about a tuple is dropped.
    """
    ir = load("mlir.ir", "change programs for XLA's CPU compiler")
    functions = [each.operation for each in mlir.body if each.operation.name == "func.func"]
    main = next((each for each in functions if each.attributes["sym_name"].value == "main"), None)
    if main is None:
        return  # XLA's error says so
    signature = ir.FunctionType(main.attributes["function_type"].value)
    if not any(isinstance(type_, ir.TupleType) for type_ in (*signature.inputs, *signature.results)):
        return
    block = main.regions[0].blocks[0]
    operations = [each.operation for each in block.operations]
    begin, end = ir.InsertionPoint(operations[0]), operations[-1]

    def taken(type_: Any) -> Any:
        if not isinstance(type_, ir.TupleType):
            return block.add_argument(type_, ir.Location.unknown())
        parts = [taken(type_.get_type(number)) for number in range(type_.num_types)]
        return ir.Operation.create("stablehlo.tuple", [type_], parts, ip=begin).result

    def returned(value: Any) -> list[Any]:
        if not isinstance(value.type, ir.TupleType):
            return [value]
        parts: list[Any] = []
        for number in range(value.type.num_types):
            index = {"index": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)}
            part = ir.Operation.create(
                "stablehlo.get_tuple_element", [value.type.get_type(number)], [value], index, ip=ir.InsertionPoint(end)
            )
            parts += returned(part.result)
        return parts

    def state(name: str, types: Sequence[Any], counts: Sequence[int]) -> None:
        if name in main.attributes:
            rows = zip(types, counts, main.attributes[name], strict=True)
            none = ir.DictAttr.get({})
            kept = [[none] * count if isinstance(type_, ir.TupleType) else [own] for type_, count, own in rows]
            main.attributes[name] = ir.ArrayAttr.get([own for row in kept for own in row])

    with ir.Location.unknown(mlir.context):
        types, counts = [argument.type for argument in block.arguments], []
        for number, type_ in enumerate(types):
            before = len(block.arguments)
            block.arguments[number].replace_all_uses_with(taken(type_))
            counts.append(len(block.arguments) - before)
        for _ in types:
            block.erase_argument(0)
        state("arg_attrs", types, counts)
        parts = [returned(value) for value in end.operands]
        state("res_attrs", [value.type for value in end.operands], list(map(len, parts)))
        results = [value for row in parts for value in row]
        ir.Operation.create("func.return", operands=results, ip=ir.InsertionPoint(end))
        end.erase()
        signature = ir.FunctionType.get([each.type for each in block.arguments], [each.type for each in results])
        main.attributes["function_type"] = ir.TypeAttr.get(signature)


def deserialize(runtime: Runtime, serialized: bytes, options: CompileOptions | None) -> XlaExecutable:
    """Return the executable that ``serialize`` gave, on the devices that the options name.

    Args:
        runtime: the runtime of the client.
        serialized: the bytes, of this package or of XLA.
        options: the compile options; ``None`` takes those that the executable was compiled with.

    Raises:
        InvalidArgumentError: the bytes are not an executable of this version of XLA, or it is for other numbers of
            replicas and partitions than the options say.
        NotFoundError: the executable calls an FFI handler that is not registered.
    """
    serialized = expect_bytes(serialized, "a serialized executable as bytes")
    code, compiled_with = _unwrapped(serialized)
    options = compiled_with if options is None else options.completed(compiled_with.partitioning)
    if serialized is not code and (counts := _counts(options)) != _counts(compiled_with):
        raise InvalidArgumentError(
            f"the serialized executable is for {compiled_with.partitioning}, the options are for {counts[0]} replicas "
            f"× {counts[1]} partitions; compile the program again"
        )
    assignment, devices = _assigned(runtime, options)
    register_handlers(code)
    jaxlib_options = _jaxlib_options(options, assignment)
    try:
        compiled = runtime.jaxlib_client.deserialize_executable(code, devices, jaxlib_options)
    except Exception as error:
        status, message = status_of(error)
        if status is StatusCode.NOT_FOUND:
            raise converted(error) from error
        raise InvalidArgumentError(
            "expected an executable that was serialized by this version of XLA for the CPU, found "
            f"{len(serialized)} bytes that it cannot load: {message}" + ("" if status is None else f" ({status.name})")
        ) from error
    return _executable(compiled, assignment, options, code=code)


def _unwrapped(serialized: bytes) -> tuple[bytes, CompileOptions]:
    """Return XLA's bytes and the compile options; XLA's bytes alone are for one device."""
    if not serialized.startswith(SERIALIZED):
        return serialized, _DEFAULT
    begin = len(SERIALIZED) + 8
    end = begin + int.from_bytes(serialized[len(SERIALIZED) : begin], "little")
    return serialized[end:], CompileOptions.from_proto(serialized[begin:end]).completed(Partitioning())


def _counts(options: CompileOptions) -> tuple[int, int]:
    return options.partitioning.num_replicas, options.partitioning.num_partitions


def _executable(
    compiled: Any,
    assignment: DeviceAssignment,
    options: CompileOptions,
    result_shapes: Sequence[tuple[int, ...]] | None = None,
    code: bytes | None = None,
    called: Collection[str] = (),
) -> XlaExecutable:
    for module in compiled.hlo_modules():
        prepare_calls(module.as_serialized_hlo_module_proto(), called)
    return XlaExecutable(compiled, assignment, options, result_shapes, code)


def _check_groups(mlir: Any, counts: Partitioning, outline: Outline | None) -> None:
    """Refuse collectives that name a replica or partition that is not there: XLA fails over them, or gives zeros.

    Raises:
        InvalidArgumentError: there is such a collective.
    """
    from pjrt.stablehlo.facts.outline import COLLECTIVES  # here: `inspect` has imported it, if there is an outline

    if outline is not None and COLLECTIVES.isdisjoint(outline.operations):
        return
    from pjrt.stablehlo.ir.mlir_module import place_of, walk  # here: few programs have collectives

    for operation in walk(mlir.operation):
        if operation.name not in COLLECTIVES:
            continue
        attributes = operation.attributes
        name = "source_target_pairs" if "source_target_pairs" in attributes else "replica_groups"
        rows = np.asarray(attributes[name]) if "dense<" in str(attributes[name]) else np.empty((0, 0))
        count, kind = _processes(attributes, name, counts)
        for row in rows.tolist():
            if max(row, default=-1) >= count:
                place = place_of(str(operation.location))
                raise InvalidArgumentError(
                    f"{place}expected {name} of {operation.name} below {count}, the number of {kind}, found {row}; "
                    "change them, or compile the program for more"
                )


def _processes(attributes: Any, name: str, counts: Partitioning) -> tuple[int, str]:
    """Return how many processes a collective may name, and what they are."""
    replicas, partitions = counts.num_replicas, counts.num_partitions
    handle = str(attributes["channel_handle"]) if "channel_handle" in attributes else ""
    channel = re.search("handle = ([0-9]+)", handle)
    if channel is None or channel[1] == "0":
        return replicas, "replicas"
    if name == "source_target_pairs":
        return partitions, "partitions"
    return replicas * partitions, "replicas and partitions"


def _explained(error: Exception) -> PjrtError:
    """Return the error of a compilation.

    A pass of MLIR that fails gives the code UNKNOWN, and does not say that the program is the reason. And XLA shows the
    number by which MLIR marks a size that is not known.
    """
    code, message = status_of(error)
    if str(-(2**63)) in message:
        return UnimplementedError(
            "the device 'cpu' does not compile this program: a type in it has a size that is not known, and XLA cannot "
            "find it out; state the size, or use the device 'reference'"
        )
    for pattern, reason in _LACKS.items():
        if found := re.search(pattern, message):
            return UnimplementedError(
                f"the device 'cpu' does not compile this program: XLA's compiler {reason.format(*found.groups())}; use "
                "the device 'reference'"
            )
    if "'sharding-remover'" in message:
        return InvalidArgumentError(
            "the program cuts values into those of its partitions, and is compiled for one; compile it for as many "
            "partitions as its shardings name (num_partitions in the compile options)"
        )
    if unknown := re.search("No such compile option: '(.*)'", message):
        flags = dir(_jaxlib.jax.CompileOptions().executable_build_options.debug_options)
        return InvalidArgumentError(
            f"XLA has no flag {unknown[1]!r}{perhaps(unknown[1], flags)}; the fields of DebugOptions in XLA's "
            "xla.proto are its flags"
        )
    if message.startswith("Unknown MLIR failure"):
        message = "XLA's compiler gives up and states no reason; run it on 'reference'"
    if untranslated := re.search(_NO_HLO, first_printed(message)):
        place, operation = untranslated.groups()
        return UnimplementedError(
            f"the device 'cpu' does not compile this program: {place}{operation}: XLA must know the sizes of all "
            "values, or bounds of them; state them, or use the device 'reference'"
        )
    if code is StatusCode.UNKNOWN:
        return InvalidArgumentError(f"the device 'cpu' does not compile this program: {first_printed(message)}")
    if code is StatusCode.NOT_FOUND and re.search(_NO_HANDLER, message):
        return NotFoundError(f"{message}: give the client a function for it with register_ffi_handler")
    return converted(error)


_NO_HLO = r"(.*)'(stablehlo\.[a-z_]*dynamic\w*)' op (?:can't be translated to XLA HLO|expected bounded result)"
"""XLA's words for an operation whose sizes are computed by the program."""
_LACKS = {
    r"Failed to translate module to LLVM IR|failed to legalize operation 'math\.": "has no code for one of its types",
    "Unsupported reduction computation": "combines values of devices by add, multiply, maximum and minimum only, and "
    "booleans also by and and or",
    "HLO opcode `([a-z-]+)` is not supported": "has no code for {}",
    "does not support custom element sizes": "has no code for an operation that gives elements of less than a byte for "
    "larger ones, or the other way round",
}
"""XLA's words for what it lacks, and ours."""
_NO_HANDLER = "No registered implementation for .*custom call|No FFI handler registered"
"""XLA's words for a custom call that it does not know."""


def _module(program: Program) -> Any:
    """Return the program as the MLIR module that jaxlib compiles."""
    if program.format not in tuple(ProgramFormat):
        raise InvalidArgumentError(
            f"the device 'cpu' compiles programs in the formats {', '.join(ProgramFormat)}, found '{program.format}'"
        )
    # XLA compiles its own operations too, so they may stay.
    return to_module(read(program), trusted=True, legalized=False)


def _assigned(runtime: Runtime, options: CompileOptions) -> tuple[DeviceAssignment, Any]:
    """Return the assignment of devices, and the devices as jaxlib takes them.

    Raises:
        InvalidArgumentError: there is no such device, or none of them is of this process.
        UnavailableError: a process of the devices was lost.
    """
    assignment = options.device_assignment
    if assignment is None:
        counts = options.partitioning
        assignment = runtime.default_device_assignment(counts.num_replicas, counts.num_partitions)
        if assignment.device_ids == ((0,),) and options.device_ordinal > 0:
            assignment = DeviceAssignment(((options.device_ordinal,),))
    devices = [runtime.jaxlib_device(number) for row in assignment.device_ids for number in row]
    if runtime.peers is not None:
        runtime.peers.check_takes_part([device.process_index for device in devices])
    return assignment, _jaxlib.device_list(devices)


def _jaxlib_options(options: CompileOptions, assignment: DeviceAssignment) -> Any:
    """Return the options as jaxlib takes them: with a device assignment and never portable, which it cannot run."""
    if assignment.device_ids == ((0,),) and options == _DEFAULT:
        return _jaxlib.jax.CompileOptions()  # without protobuf, whose import would slow down the start
    complete = replace(options, device_assignment=assignment, compile_portable_executable=False, device_ordinal=-1)
    stated = _jaxlib.jax.CompileOptions.ParseFromString(with_debug_options(complete.to_proto()))
    build_options = stated.executable_build_options
    # HLO has a tuple where StableHLO has several arguments or results, or one.
    if build_options.result_layout is not None:
        results = _leaves(build_options.result_layout)
        build_options.result_layout = results[0] if len(results) == 1 else _jaxlib.hlo.Shape.tuple_shape(results)
    if stated.argument_layouts is not None:
        stated.argument_layouts = [leaf for layout in stated.argument_layouts for leaf in _leaves(layout)]
    return stated


def _leaves(shape: Any) -> list[Any]:
    """Return the shapes of the arrays in a shape of XLA's, which may be a tuple."""
    return [leaf for each in shape.tuple_shapes() for leaf in _leaves(each)] if shape.is_tuple() else [shape]


_COPY = """
func.func public @main(%x: tensor<{type}> {{mhlo.layout_mode = "{given}"}})
    -> (tensor<{type}> {{mhlo.layout_mode = "{wanted}"}}) {{
  return %x : tensor<{type}>
}}
"""


def relaid(array: _jaxlib.Array, array_type: ArrayType, layout: TiledLayout) -> tuple[_jaxlib.Array, ArrayType]:
    """Return a copy of an array of a type with another layout, in the device's default memory, and the copy's type."""
    runtime, space = array_type.runtime, array_type.memory_space.device.default_memory_space
    target = runtime.array_type(array_type.shape, array_type.element_type, space, layout.minor_to_major)
    key = (array_type, layout)
    program = runtime.relayouts.get(key)
    if program is None:
        handler = _jaxlib.result_handler(target.aval, space.placement.sharding)
        program = runtime.relayouts.setdefault(key, (_compiled(array_type, layout), handler))
    executable, handler = program
    (copied,) = executable.jaxlib_executable.execute_sharded([array]).consume_with_handlers([handler])
    return copied, target


def _compiled(array_type: ArrayType, layout: TiledLayout) -> XlaExecutable:
    spelled = "x".join([*map(str, array_type.shape), array_type.element_type.mlir])
    text = _COPY.format(type=spelled, given=array_type.layout, wanted=layout)
    place = DeviceAssignment(((array_type.memory_space.device.id,),))
    return compile_program(array_type.runtime, Program.of(text), CompileOptions(device_assignment=place))

"""The one module that touches MLIR's bindings and XLA's converters.

MLIR's objects are not safe to use from several threads at once, and keep their context alive. So each module gets a
context of its own, without worker threads, and whoever holds an ``MlirModule`` enters it, which takes its lock.
"""

from __future__ import annotations

import functools
import io
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError, InternalError, InvalidArgumentError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo.mlir_walk import walk
from pjrt.stablehlo.version import Version

_LONGEST_MESSAGE = 600
_FEW_ELEMENTS = 4


class MlirModule:
    """A program as jaxlib's MLIR bindings hold it, in a context of its own, with the lock that its objects need.

    Use it as ``with mlir_module as module: …``: the block holds the lock and has the module's context current.
    Nothing that comes out of ``module`` may be used outside of such a block, if other threads may be in one.
    """

    def __init__(self, module: Any, context: Any) -> None:
        self._module = module
        self._context = context
        self._lock = threading.RLock()

    def __enter__(self) -> Any:
        self._lock.acquire()
        self._context.__enter__()
        return self._module

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, traceback)
        self._lock.release()

    @property
    def context(self) -> Any:
        """The ``jaxlib.mlir.ir.Context``."""
        return self._context


def parse(code: bytes) -> MlirModule:
    """A module from MLIR text or MLIR bytecode of the dialects func, stablehlo, chlo, sdy, mhlo and quant.

    Raises:
        InvalidArgumentError: MLIR does not take it; the message is MLIR's own.
    """
    bindings = _bindings()
    context = _new_context(bindings)
    if b"quant" in code:
        _load_quant_dialect(bindings, context)
    with context:
        try:
            module = bindings.ir.Module.parse(code)
        except bindings.ir.MLIRError as error:
            raise InvalidArgumentError(_first_diagnostic(str(error))) from error
        except (MemoryError, RuntimeError, ValueError) as error:  # of the standard library of C++: senseless sizes
            raise InvalidArgumentError(f"MLIR's parser gives up: {_shortened(str(error))}") from error
    return MlirModule(module, context)


def parse_artifact(code: bytes) -> MlirModule:
    """A module from a portable artifact.

    Raises:
        InvalidArgumentError: it cannot be read; the message is MLIR's own.
    """
    bindings = _bindings()
    context = _new_context(bindings)
    with context, _diagnostics(context) as said:
        try:
            module = bindings.stablehlo.deserialize_portable_artifact(context, code)
        except ValueError as error:
            raise InvalidArgumentError(_join(said, str(error))) from error
        except (MemoryError, RuntimeError) as error:  # as in `parse`
            raise InvalidArgumentError(f"MLIR's reader gives up: {_join(said, str(error))}") from error
    return MlirModule(module, context)


def write_artifact(module: MlirModule, version: Version, *, other_dialects: bool = False) -> bytes:
    """The portable artifact of a module at a version; the module stays as it is.

    Args:
        module: the module; a copy of it is converted, because the conversion happens in place.
        version: the StableHLO version to write.
        other_dialects: whether operations and attributes of dialects other than StableHLO may stay in it as they are.

    Raises:
        InvalidArgumentError: the module holds what that version does not have; the message is MLIR's own.
    """
    bindings = _bindings()
    with module, _diagnostics(module.context) as said:
        try:
            copy = bindings.ir.Module.parse(write_bytecode(module))
            written: bytes = bindings.stablehlo.serialize_portable_artifact(copy, str(version), other_dialects)
        except (ValueError, bindings.ir.MLIRError) as error:
            raise InvalidArgumentError(_join(said, _first_diagnostic(str(error)))) from error
    return written


def without_chlo(module: MlirModule) -> MlirModule:
    """A copy of the module in which operations of the chlo dialect are written out in StableHLO.

    Raises:
        InvalidArgumentError: one cannot be.
    """
    copy = parse(write_bytecode(module))
    run_passes(copy, "builtin.module(func.func(chlo-legalize-to-stablehlo))")
    return copy


def without_values(module: MlirModule) -> MlirModule:
    """A copy of the module in which large constants are all zeros, where their type has a zero: what remains takes next
    to no memory and needs the same of its reader.
    """
    ir = _bindings().ir

    with module as mlir:
        copy = mlir.operation.clone()
        for operation in walk(copy.operation):
            if operation.name != "stablehlo.constant":
                continue
            type_ = operation.results[0].type
            zero = _ZEROS.get(str(ir.ShapedType(type_).element_type))
            if zero is not None and math.prod(ir.ShapedType(type_).shape) > _FEW_ELEMENTS:
                operation.attributes["value"] = ir.Attribute.parse(f"dense<{zero}> : {type_}")
        file = io.BytesIO()
        copy.operation.write_bytecode(file)
    return parse(file.getvalue())


_ZEROS = {
    **dict.fromkeys(("i2", "i4", "i8", "i16", "i32", "i64", "ui2", "ui4", "ui8", "ui16", "ui32", "ui64"), "0"),
    **dict.fromkeys(("bf16", "f16", "f32", "f64", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ"), "0.0"),
    **dict.fromkeys(("complex<f32>", "complex<f64>"), "(0.0, 0.0)"),
    "i1": "false",
}


def write_text(module: MlirModule, *, locations: bool, constants: bool = True) -> str:
    """The module as MLIR prints it, with large constants or with a hint of them only."""
    with module as mlir:
        text: str = mlir.operation.get_asm(
            enable_debug_info=locations, large_elements_limit=None if constants else _FEW_ELEMENTS
        )
    return text


def write_bytecode(module: MlirModule) -> bytes:
    """The module as MLIR bytecode."""
    with module as mlir:
        # Not a class of our own: its method would run in Python, inside of MLIR's C++ code, where a thread may not be
        # ended, as the end of the interpreter does with threads that run Python.
        file = io.BytesIO()
        mlir.operation.write_bytecode(file)
    return file.getvalue()


def run_passes(module: MlirModule, pipeline: str) -> None:
    """Runs a pipeline of StableHLO's or MHLO's passes on the module.

    Raises:
        InvalidArgumentError: a pass fails on it.
    """
    bindings = _bindings()
    _register_passes()
    with module as mlir, _diagnostics(module.context) as said:
        try:
            bindings.passmanager.PassManager.parse(pipeline).run(mlir.operation)
        except (bindings.ir.MLIRError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(_join(said, _first_diagnostic(str(error)))) from error


def hlo_to_mlir(proto: bytes) -> bytes:
    """MLIR bytecode for an ``HloModuleProto``; it may hold operations of the mhlo dialect and deprecated ones.

    Raises:
        InvalidArgumentError: XLA does not take it; the message is XLA's own.
    """
    xla = jaxlib.load("_jax", "convert HLO protos")
    try:
        converted: bytes = xla.mlir.hlo_to_stablehlo(proto)
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(_shortened(str(error))) from error
    return converted


def mlir_to_hlo(code: bytes, *, tuple_result: bool) -> bytes:
    """The ``HloModuleProto`` for MLIR bytecode.

    Raises:
        InvalidArgumentError: XLA does not take it; the message is XLA's own.
    """
    xla = jaxlib.load("_jax", "convert to HLO protos")
    try:
        computation = xla.mlir.mlir_module_to_xla_computation(code, use_tuple_args=False, return_tuple=tuple_result)
        converted: bytes = computation.as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(_shortened(str(error))) from error
    return converted


def legalize_hlo(module: MlirModule) -> None:
    """Rewrites what came from HLO into StableHLO alone: deprecated operations, and those of the mhlo dialect that
    have a counterpart.

    Raises:
        InvalidArgumentError: an operation has no counterpart (those of optimized HLO, such as fusions, have none).
    """
    with module as mlir:
        for operation in reversed(list(walk(mlir.operation))):  # what is inside before what holds it
            if operation.name == "stablehlo.custom_call":
                _take_tuple_apart(operation)
            else:
                _replace_mhlo(operation)
    run_passes(module, _LEGALIZATION)


_LEGALIZATION = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-deprecated-ops),hlo-legalize-to-stablehlo)"
)


def _replace_mhlo(operation: Any) -> None:
    """The operations of XLA that StableHLO's passes would leave as custom calls, by what they mean."""
    name = operation.name
    if name == "mhlo.copy":
        operation.results[0].replace_all_uses_with(operation.operands[0])
        operation.erase()
        return
    attributes = {}
    if name == "mhlo.topk" and operation.attributes["largest"].value:
        attributes["k"] = operation.attributes["k"]
    elif name != "mhlo.erf":
        return
    replacement = _bindings().ir.Operation.create(
        "chlo.erf" if name == "mhlo.erf" else "chlo.top_k",
        results=[result.type for result in operation.results],
        operands=list(operation.operands),
        attributes=attributes,
        loc=operation.location,
        ip=_bindings().ir.InsertionPoint(operation),
    )
    for old, new in zip(operation.results, replacement.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def _take_tuple_apart(operation: Any) -> None:
    """Give a custom call several results in place of one tuple: HLO has only the tuple."""
    ir = _bindings().ir
    if len(operation.results) != 1 or not isinstance(operation.results[0].type, ir.TupleType):
        return
    readers = [use.owner.operation for use in operation.results[0].uses]
    if any(reader.name != "stablehlo.get_tuple_element" for reader in readers):
        return
    tuple_, attributes = operation.results[0].type, operation.attributes
    replacement = ir.Operation.create(
        operation.name,
        results=[tuple_.get_type(number) for number in range(tuple_.num_types)],
        operands=list(operation.operands),
        attributes={attributes[n].name: attributes[n].attr for n in range(len(attributes))},
        loc=operation.location,
        ip=ir.InsertionPoint(operation),
    )
    for reader in readers:
        reader.results[0].replace_all_uses_with(replacement.results[reader.attributes["index"].value])
        reader.erase()
    operation.erase()


DEEPEST = 100
"""The most operations with regions that may lie one inside the other: readers of a program recurse into them."""


def check(module: MlirModule) -> None:
    """Refuses a module that MLIR's parser takes and its passes do not survive.

    Raises:
        DataLossError: its regions nest deeper than those of any program.
        InvalidArgumentError: it has a ``chlo.top_k`` of the ``k`` that stands for an unknown size: the parser takes it
            for any size, and the pass that writes it out ends the process.
    """
    depths: dict[Any, int] = {}
    with module as mlir:
        for operation in walk(mlir.operation):
            if len(operation.regions):
                depths[operation] = depth = depths[operation.parent] + 1 if depths else 0
                if depth > DEEPEST:
                    raise DataLossError(f"the program's regions are nested more than {DEEPEST} deep")
            elif operation.name == "chlo.top_k" and operation.attributes["k"].value < 0:
                raise InvalidArgumentError("expected a 'chlo.top_k' with k of at least 0, found a negative one")


def foreign_operations(module: MlirModule) -> list[str]:
    """The names of the operations that are of no dialect that belongs to StableHLO."""
    with module as mlir:
        names = {operation.name for operation in walk(mlir.operation)}
    return sorted(name for name in names if name.partition(".")[0] not in _OWN_DIALECTS)


_OWN_DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")


def device_counts(module: MlirModule) -> tuple[int, int]:
    """How many replicas and partitions the module says it is for; 1 where it does not say."""
    with module as mlir:
        return _count(mlir.operation, "mhlo.num_replicas"), _count(mlir.operation, "mhlo.num_partitions")


def _count(operation: Any, name: str) -> int:
    if name not in operation.attributes:
        return 1
    attribute = operation.attributes[name]
    if type(attribute).__name__ != "IntegerAttr":
        raise InvalidArgumentError(f"expected {name} to be a number, found {attribute}")
    return int(attribute.value)


def current_version() -> Version:
    """The newest StableHLO version that this jaxlib reads and writes."""
    return Version.parse(_bindings().stablehlo.get_current_version())


def minimum_version() -> Version:
    """The oldest StableHLO version that this jaxlib reads and writes."""
    return Version.parse(_bindings().stablehlo.get_minimum_version())


class _Bindings(NamedTuple):
    ir: Any
    passmanager: Any
    stablehlo: Any
    dialects: tuple[Any, ...]
    registry: Any


@functools.cache
def _bindings() -> _Bindings:
    # The native halves of the dialects: their Python halves define a class for each operation, which nothing here
    # needs, and take four times as long to import as all the rest.
    purpose = "read what is inside programs"
    ir = jaxlib.load("mlir.ir", purpose)
    dialects = tuple(jaxlib.load(f"mlir._mlir_libs._{name}", purpose) for name in ("stablehlo", "chlo", "sdy"))
    registry = ir.DialectRegistry()
    jaxlib.load("mlir._mlir_libs._jax_mlir_ext", purpose).register_dialects(registry)
    return _Bindings(ir, jaxlib.load("mlir.passmanager", purpose), dialects[0], dialects, registry)


@functools.cache
def _register_passes() -> None:
    _bindings().stablehlo.register_stablehlo_passes()
    jaxlib.load("mlir._mlir_libs._mlirHlo", "convert HLO protos").register_mhlo_passes()


def _new_context(bindings: _Bindings) -> Any:
    context = bindings.ir.Context()
    context.enable_multithreading(False)
    context.append_dialect_registry(bindings.registry)
    for dialect in bindings.dialects:
        dialect.register_dialect(context)
    jaxlib.load("mlir._mlir_libs._mlirHlo", "read what is inside programs").register_mhlo_dialect(context)
    context.load_all_available_dialects()
    return context


def _load_quant_dialect(bindings: _Bindings, context: Any) -> None:
    """The dialect of quantized types has no Python bindings; reading a portable artifact, any one, loads it."""
    bindings.stablehlo.deserialize_portable_artifact(context, _empty_artifact())


@functools.cache
def _empty_artifact() -> bytes:
    artifact: bytes = _bindings().stablehlo.serialize_portable_artifact_str("module {}", "1.0.0")
    return artifact


@contextmanager
def _diagnostics(context: Any) -> Iterator[list[str]]:
    """Collects what MLIR says, which would go to the standard error output otherwise."""
    said: list[str] = []

    def listen(diagnostic: Any) -> bool:
        said.append(f"{_place(str(diagnostic.location))}{diagnostic.message}")
        return True

    handler = context.attach_diagnostic_handler(listen)
    try:
        yield said
    finally:
        handler.detach()
    if handler.had_error:
        raise InternalError("the handler of MLIR's diagnostics failed")


def _place(location: str) -> str:
    """A diagnostic's location as a prefix; positions in text without a name are ``line:column``."""
    inside = location.removeprefix("loc(").removesuffix(")")
    if inside == "unknown" or inside.endswith(":0:0"):
        return ""
    return inside.removeprefix('"-":') + ": "


def _join(said: list[str], otherwise: str) -> str:
    return _shortened(said[0]) if said else _shortened(otherwise)


_DIAGNOSTIC = re.compile(r'error: (?:"-":(\d+:\d+)|[^\n]*?): (.*)', re.DOTALL)


def _first_diagnostic(message: str) -> str:
    """The first of the diagnostics that the bindings put into one exception."""
    found = _DIAGNOSTIC.search(message)
    if found is None:
        return _shortened(message)
    place = "" if found[1] in (None, "0:0") else f"line {found[1].replace(':', ', column ')}: "
    first = re.split(r"\n\s*(?:note|error): ", found[2])[0]
    return _shortened(place + first)


def _shortened(message: str) -> str:
    one_line = " ".join(message.split())
    return one_line if len(one_line) <= _LONGEST_MESSAGE else one_line[:_LONGEST_MESSAGE] + " …"

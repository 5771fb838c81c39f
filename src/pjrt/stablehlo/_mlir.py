"""The one module that touches MLIR's bindings; XLA's converters are in ``_hlo_conversion``.

MLIR's objects are not safe to use from several threads at once, and keep their context alive. So each module gets a
context of its own, without worker threads. The user of an ``MlirModule`` enters it, which takes its lock.
"""

from __future__ import annotations

import functools
import io
import threading
from types import TracebackType
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo._diagnostics import collected, first_in, first_of, place_of, shortened
from pjrt.stablehlo._verification import broken_rule
from pjrt.stablehlo.mlir_walk import walk_with_depths
from pjrt.stablehlo.version import Version

FEW_ELEMENTS = 4
"""Constants of more elements are large: they can be left out of text."""


class MlirModule:
    """A program as jaxlib's MLIR bindings hold it, in a context of its own, with the lock that its objects need.

    Use it as ``with mlir_module as module: …``: the block holds the lock and has the module's context current.
    Use nothing that comes out of ``module`` outside of such a block while other threads may be in one.
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
    """Return the module in MLIR text or MLIR bytecode of the dialects func, stablehlo, chlo, sdy, mhlo and quant.

    Raises:
        InvalidArgumentError: MLIR refuses the code; the message is MLIR's own.
    """
    bindings = _bindings()
    context = _new_context(bindings, code)
    if b"quant" in code:
        # The dialect of quantized types has no Python bindings; reading a portable artifact, any one, loads it.
        bindings.stablehlo.deserialize_portable_artifact(context, _empty_artifact())
    with context:
        try:
            module = bindings.ir.Module.parse(code)
        except bindings.ir.MLIRError as error:
            raise InvalidArgumentError(first_in(error)) from error
        except (MemoryError, RuntimeError, ValueError) as error:  # of the standard library of C++: senseless sizes
            raise InvalidArgumentError(f"MLIR's parser gives up: {shortened(str(error))}") from error
    return MlirModule(module, context)


def parse_artifact(code: bytes) -> MlirModule:
    """Return the module in a portable artifact.

    Raises:
        InvalidArgumentError: MLIR refuses the artifact; the message is MLIR's own.
    """
    bindings = _bindings()
    context = _new_context(bindings, code)
    with context, collected(context) as messages:
        try:
            module = bindings.stablehlo.deserialize_portable_artifact(context, code)
        except ValueError as error:
            raise InvalidArgumentError(first_of(messages, error)) from error
        except (MemoryError, RuntimeError) as error:  # as in `parse`
            raise InvalidArgumentError(f"MLIR's reader gives up: {first_of(messages, error)}") from error
    return MlirModule(module, context)


def write_artifact(module: MlirModule, version: Version, *, other_dialects: bool = False) -> bytes:
    """Return the portable artifact of a module at a version; the module stays as it is.

    Args:
        module: the module; a copy of it is converted, because the conversion happens in place.
        version: the StableHLO version to write.
        other_dialects: whether operations and attributes of dialects other than StableHLO may stay in it as they are.

    Raises:
        InvalidArgumentError: the module holds what that version does not have; the message is MLIR's own.
    """
    bindings = _bindings()
    with module, collected(module.context) as messages:
        try:
            copy = bindings.ir.Module.parse(write_bytecode(module))
            artifact: bytes = bindings.stablehlo.serialize_portable_artifact(copy, str(version), other_dialects)
        except (ValueError, bindings.ir.MLIRError) as error:
            raise InvalidArgumentError(first_of(messages, error)) from error
    return artifact


def write_text(module: MlirModule, *, locations: bool, constants: bool = True) -> str:
    """Return the module as MLIR prints it, with large constants or with their first elements only."""
    limit = None if constants else FEW_ELEMENTS
    with module as mlir:
        text: str = mlir.operation.get_asm(enable_debug_info=locations, large_elements_limit=limit)
    return text


def write_bytecode(module: MlirModule) -> bytes:
    """Return the module as MLIR bytecode."""
    with module as mlir:
        return bytecode_of(mlir.operation)


def bytecode_of(operation: Any) -> bytes:
    """Return an operation of MLIR's as MLIR bytecode; its module must be entered."""
    # Not a class of our own: its method would run in Python, inside of MLIR's C++ code. When the interpreter ends, it
    # ends threads that run Python, and in there a thread must not be ended.
    file = io.BytesIO()
    operation.write_bytecode(file)
    return file.getvalue()


def run_passes(module: MlirModule, pipeline: str) -> None:
    """Run a pipeline of StableHLO's or MHLO's passes on the module.

    Raises:
        InvalidArgumentError: a pass failed.
    """
    bindings = _bindings()
    _register_passes()
    with module as mlir, collected(module.context) as messages:
        try:
            bindings.passmanager.PassManager.parse(pipeline).run(mlir.operation)
        except (bindings.ir.MLIRError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(first_of(messages, error)) from error


DEEPEST = 100
"""The most operations with regions that may lie one inside the other: readers of a program recurse into them."""


def check(module: MlirModule) -> None:
    """Refuse a module that MLIR's parser accepts, and that breaks a rule or that MLIR's passes do not survive.

    Raises:
        DataLossError: the regions nest deeper than those of any program.
        InvalidArgumentError: an operation breaks a rule that MLIR does not check. Or a ``chlo.top_k`` has the ``k``
            that stands for an unknown size: the parser accepts it for any size, and the pass that writes it out ends
            the process.
    """
    with module as mlir:
        for operation, depth in walk_with_depths(mlir.operation):
            if depth > DEEPEST and len(operation.regions):
                raise DataLossError(f"the program's regions are nested more than {DEEPEST} deep")
            if operation.name == "chlo.top_k" and operation.attributes["k"].value < 0:
                raise InvalidArgumentError("expected a 'chlo.top_k' with k of at least 0, found a negative one")
            if problem := broken_rule(operation):
                place = place_of(str(operation.location))
                raise InvalidArgumentError(f"{place}'{operation.name}' op {problem}")


def device_counts(attributes: Any) -> tuple[int, int]:
    """Return how many replicas and partitions a module's attributes state; 1 where they state nothing.

    Raises:
        InvalidArgumentError: a count is not a number from 1 up.
    """
    return _count(attributes, "mhlo.num_replicas"), _count(attributes, "mhlo.num_partitions")


def _count(attributes: Any, name: str) -> int:
    if name not in attributes:
        return 1
    attribute = attributes[name]
    count = int(attribute.value) if type(attribute).__name__ == "IntegerAttr" else 0
    if count < 1:
        raise InvalidArgumentError(f"expected {name} of the program to be a number from 1 up, found {attribute}")
    return count


def current_version() -> Version:
    """Return the newest StableHLO version that this jaxlib reads and writes."""
    return Version.parse(_bindings().stablehlo.get_current_version())


def minimum_version() -> Version:
    """Return the oldest StableHLO version that this jaxlib reads and writes."""
    return Version.parse(_bindings().stablehlo.get_minimum_version())


def load_bindings() -> None:
    """Import MLIR's bindings, which otherwise happens when they are first used.

    Raises:
        FailedPreconditionError: jaxlib is missing.
    """
    _bindings()


class _Bindings(NamedTuple):
    ir: Any
    passmanager: Any
    stablehlo: Any
    registry: Any


@functools.cache
def _bindings() -> _Bindings:
    purpose = "read what is inside programs"
    ir = jaxlib.load("mlir.ir", purpose)
    registry = ir.DialectRegistry()
    jaxlib.load("mlir._mlir_libs._jax_mlir_ext", purpose).register_dialects(registry)
    return _Bindings(ir, jaxlib.load("mlir.passmanager", purpose), jaxlib.dialect("stablehlo"), registry)


@functools.cache
def _register_passes() -> None:
    _bindings().stablehlo.register_stablehlo_passes()
    jaxlib.load("mlir._mlir_libs._mlirHlo", "convert HLO protos").register_mhlo_passes()


def _new_context(bindings: _Bindings, code: bytes) -> Any:
    """Return a context for a program; what the program does not name costs no time to import."""
    context = bindings.ir.Context()
    context.enable_multithreading(False)
    context.append_dialect_registry(bindings.registry)
    bindings.stablehlo.register_dialect(context)
    for name in ("chlo", "sdy"):
        if name.encode() in code:
            jaxlib.dialect(name).register_dialect(context)
    jaxlib.load("mlir._mlir_libs._mlirHlo", "read what is inside programs").register_mhlo_dialect(context)
    # The dialects of the registry are loaded when a program or a pass first needs them: all of them take 1.4 ms.
    return context


@functools.cache
def _empty_artifact() -> bytes:
    artifact: bytes = _bindings().stablehlo.serialize_portable_artifact_str("module {}", "1.0.0")
    return artifact

"""The parser: from a program in any encoding to a ``ParsedProgram``.

As a program, this module is the subprocess in which ``safe_parse`` has a program parsed first.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from pjrt import system
from pjrt.api.errors import UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.format import Encoding, encoding_of
from pjrt.stablehlo.encodings.safe_parse import BY_PARSER, check_once, limit_memory, serve
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute, decode_attribute_of
from pjrt.stablehlo.ir.mlir_module import MlirModule, senseless_refused, walk
from pjrt.stablehlo.ir.operation import Block, Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import TensorType, ValueType, decode_function_type, decode_type
from pjrt.stablehlo.reading.conversion import parse_here, to_module
from pjrt.stablehlo.reading.reader import as_program


def parse(program: AnyProgram, *, trusted: bool = False) -> ParsedProgram:
    """Return the program as plain Python objects. An HLO proto becomes StableHLO on the way.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        trusted: whether the bytes come from a compiler or framework and were not damaged since; if not, those that
            are not text are first parsed in a subprocess, which costs a fraction of a second (see ``safe_parse``).

    Raises:
        InvalidArgumentError: the program does not parse, or is newer than this jaxlib reads.
        DataLossError: the program is truncated or corrupt.
        UnimplementedError: a region branches between blocks, which StableHLO has no operations for.
        FailedPreconditionError: jaxlib is missing.
    """
    program = as_program(program)
    return dataclasses.replace(parse_module(to_module(program, trusted=trusted)), source=program)


def parse_module(module: MlirModule, *, largest_constant: int | None = None, bodies: bool = True) -> ParsedProgram:
    """Return the program in a module that MLIR has parsed already.

    Args:
        module: the module.
        largest_constant: the most elements of a constant whose value is read; None for all. The attribute ``value`` of
            larger ones is None; of those whose elements are equal it is the one element, if one may be read.
        bodies: whether to read the bodies of functions; if not, each function looks as if it were only declared.
    """
    with module as mlir, senseless_refused():
        return _Parser(largest_constant, bodies).program(mlir.operation)


def read_constants(module: MlirModule) -> None:
    """Read the value of each constant of a module and release it, to check that all can be read."""
    with module as mlir, senseless_refused():
        for operation in walk(mlir.operation):
            if operation.name.endswith(".constant"):
                decode_attribute_of(operation, "value")


class OperationParser:
    """The parser of single operations, for a compiler that goes through a module itself."""

    def __init__(self) -> None:
        self._parser = _Parser(largest_constant=None, bodies=True)

    def parse(self, native: Any, operands: Sequence[Value], captured: Callable[[Any], Value]) -> Operation:
        """Return an operation of MLIR.

        Args:
            native: the operation; its module must be open.
            operands: the values that it takes.
            captured: gives the value for one of MLIR's that a region takes from outside.
        """
        names = _Names()
        names.values = _OpenValues(captured, zip(native.operands, operands, strict=True))
        return self._parser.operation(native, names)


class _Parser:
    """The parser of one module; types and locations that occur again are shared."""

    def __init__(self, largest_constant: int | None, bodies: bool) -> None:
        self._largest_constant = largest_constant
        self._bodies = bodies
        self._types: dict[Any, ValueType] = {}
        self._locations: dict[str, Location] = {}

    def program(self, module: Any) -> ParsedProgram:
        attributes = {name: decode_attribute_of(module, name) for name in module.attributes}
        functions: dict[str, Function] = {}
        declarations: list[Operation] = []
        for inner in module.regions[0].blocks[0].operations:
            operation = inner.operation
            if operation.name == "func.func":
                function = self._function(operation)
                functions[function.name] = function
            else:
                declarations.append(self.operation(operation, _Names()))
        name = module.attributes["sym_name"].value if attributes.pop("sym_name", "") else ""  # it raises, if not UTF-8
        return ParsedProgram(name, functions, attributes, tuple(declarations))

    def _function(self, operation: Any) -> Function:
        attributes = operation.attributes
        type_ = decode_function_type(attributes["function_type"].value)
        blocks = list(operation.regions[0].blocks)
        body, names = None, [""] * len(type_.arguments)
        if blocks:
            names = [self._location(argument).name for argument in blocks[0].arguments]
            if self._bodies:
                body = self._block(operation.regions[0], _Names())
        visibility = attributes["sym_visibility"].value if "sym_visibility" in attributes else "public"
        return Function(
            name=attributes["sym_name"].value,
            type=type_,
            is_public=visibility != "private",
            argument_names=tuple(names),
            argument_attributes=_dictionaries(operation, "arg_attrs", len(type_.arguments)),
            result_attributes=_dictionaries(operation, "res_attrs", len(type_.results)),
            body=body,
            location=self._location(operation),
        )

    def _block(self, region: Any, names: _Names) -> Block:
        blocks = list(region.blocks)
        if len(blocks) != 1:
            raise UnimplementedError(f"expected regions of one block each, as StableHLO has them, found {len(blocks)}")
        native, block = blocks[0], Block()
        block.arguments = tuple(
            names.add(argument, Value(self.type(argument.type), f"%arg{next(names.arguments)}", block, index))
            for index, argument in enumerate(native.arguments)
        )
        block.operations = tuple(self.operation(inner.operation, names) for inner in native.operations)
        return block

    def operation(self, native: Any, names: _Names) -> Operation:
        operation = Operation(
            native.name,
            tuple(names.values[operand] for operand in native.operands),
            self._attributes(native),
            self._location(native),
        )
        results = list(native.results)
        if results:
            prefix = f"%{next(names.results)}"
            operation.results = tuple(
                names.add(
                    result,
                    Value(self.type(result.type), f"{prefix}#{i}" if len(results) > 1 else prefix, operation, i),
                )
                for i, result in enumerate(results)
            )
        operation.regions = tuple(self._block(region, names) for region in native.regions)
        return operation

    def _attributes(self, native: Any) -> Mapping[str, Any]:
        if native.name.endswith(".constant") and self._is_left_out(native):
            value = self._one_element(native) if self._largest_constant else None
            return dict.fromkeys(native.attributes, value)
        return {name: decode_attribute_of(native, name) for name in native.attributes}

    def _is_left_out(self, constant: Any) -> bool:
        if not self._largest_constant:
            return self._largest_constant is not None
        type_ = self.type(constant.results[0].type)
        return isinstance(type_, TensorType) and type_.is_static and type_.size > self._largest_constant

    def _one_element(self, constant: Any) -> np.ndarray[Any, Any] | None:
        """Return the element of a constant whose elements are all equal, as an array of rank 0."""
        type_ = self.type(constant.results[0].type)
        try:
            value = constant.attributes["value"]
            if isinstance(type_, TensorType) and value.is_splat:
                return np.array(decode_attribute(value.get_splat_value()), type_.dtype)
        except (AttributeError, TypeError, ValueError):  # an element that the bindings or numpy have no object for
            pass
        return None

    def type(self, native: Any) -> ValueType:
        type_ = self._types.get(native)
        if type_ is None:
            type_ = self._types[native] = decode_type(native)
        return type_

    def _location(self, native: Any) -> Location:
        text = str(native.location)
        location = self._locations.get(text)
        if location is None:
            location = self._locations[text] = Location(text)
        return location


class _Names:
    """The values of one function, by MLIR's own, and the next free names."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}  # of the operations and block arguments that are parsed already
        self.arguments = count()
        self.results = count()

    def add(self, native: Any, value: Value) -> Value:
        self.values[native] = value
        return value


class _OpenValues(dict[Any, Value]):
    """The values that one operation can see; those from outside of it are made when they are asked for."""

    def __init__(self, captured: Callable[[Any], Value], values: Iterable[tuple[Any, Value]]) -> None:
        super().__init__(values)
        self._captured = captured

    def __missing__(self, native: Any) -> Value:
        value = self[native] = self._captured(native)
        return value


def _dictionaries(operation: Any, name: str, count: int) -> tuple[Mapping[str, Any], ...]:
    """Return the attributes of a function's arguments or results, one dictionary for each."""
    attributes = operation.attributes
    if name not in attributes:
        return ({},) * count
    return tuple(decode_attribute(inner) for inner in attributes[name])


# Vetting, see ``safe_parse``.

_FORK_TIME_LIMIT = 5.0
_LARGEST_IN_FORK = 500_000  # in bytes; a larger program may take longer than a fork may, and would be parsed again


def vet_in_fork(program: Program) -> None:
    """Vet a program in a fork of this process, where that is safe; ``vet`` then has nothing left to do.

    A large program, and one that does not pass, is left to ``vet``, which reports the reason. Call this before anything
    starts threads: a fork has none of them, and would wait for ever for the locks that they hold.
    """
    if len(program) > _LARGEST_IN_FORK or encoding_of(program) is Encoding.TEXT:
        return
    if threading.active_count() > 1 or "jaxlib._jax" in sys.modules:
        return  # text seldom needs it, and XLA's runtime has threads that Python does not count
    if not jaxlib.is_installed():
        return  # then a compiler reads the program, and nothing else
    mlir_module.load_bindings()  # both processes have them then

    def parse() -> None:
        limit_memory(len(program))
        _read_everything(parse_here(program))

    check_once(program, BY_PARSER, lambda: system.succeeds_in_fork(parse, _FORK_TIME_LIMIT))


def _main(format_: str, size: int) -> int:
    """Parse the program on the standard input."""
    return serve(size, lambda: _read_everything(parse_here(Program(sys.stdin.buffer.read(size), format_))))


def _read_everything(module: MlirModule) -> None:
    """Read everything in a module as this package would.

    Large things are read one after the other, and each is released before the next: the constants, the text.
    """
    parse_module(module, largest_constant=0)
    read_constants(module)
    mlir_module.write_text(module, locations=True, constants=False)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], int(sys.argv[2])))

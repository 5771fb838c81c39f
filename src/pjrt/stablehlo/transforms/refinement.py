"""Refinement: from a program with dynamic sizes to a static one, or for several platforms to one of them.

XLA propagates the shapes of the arguments through the program and evaluates the conditions that the program states
about them. Everything here needs jaxlib.

XLA does not survive every program here: it divides where a program that computes shapes divides by zero, and it
recurses into calls and copies each called function to its callers. Ordinary programs are recognized; every other
program is refined in a subprocess, which costs a fraction of a second. Where XLA gives up over a division, it is given
one that has a result for every divisor. As a program, this module is the subprocess.

XLA does not know the sizes of the results of some operations. Before the propagation, custom calls that state these
sizes take the place of such operations, and after it the operations come back.

``jax.export`` writes a program for several platforms once: its first argument is the index of the platform, and the
parts that differ between platforms are branches. A device that gets the branches of other platforms may refuse the
program over custom calls that only another platform has.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError, PjrtError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.api.shape_spec import Shapes
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.safe_parse import limit_memory, run_module
from pjrt.stablehlo.facts.outline import Outline
from pjrt.stablehlo.facts.signatures import ArgumentInfo, signature_of
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.argument_shapes import (
    Shape,
    StatedShape,
    is_assertion,
    is_dynamic,
    resolve_shapes,
    spelled_shape,
    without_advice,
)
from pjrt.stablehlo.ir.mlir_module import MlirModule, senseless_refused, walk
from pjrt.stablehlo.ir.types import TensorType
from pjrt.stablehlo.reading.conversion import to_module
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.reading.reader import read

_SELECTION_PURPOSE = "select the platform of a program"
_ATTRIBUTE = "jax.global_constant"
_PLATFORM_INDEX = "_platform_index"


def select_platform(program: AnyProgram, index: int, *, trusted: bool = False) -> Program:
    """Return a program for several platforms as the program for one of them, without the argument for the platform.

    Args:
        program: a program in any encoding. One without an argument for the platform is returned as it is.
        index: the index of the platform in the list that was given to ``jax.export``.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: the index is negative.
        PjrtError: as for ``to_module``.
    """
    if index < 0:
        raise InvalidArgumentError(f"expected the index of a platform, from 0 up, found {index}")
    program = read(program)
    if program.format != ProgramFormat.MLIR or _PLATFORM_INDEX.encode() not in program.code:
        return program
    module = to_module(program, trusted=trusted)
    with module as mlir, senseless_refused():
        mains = [function for function in _functions(mlir) if function.attributes["sym_name"].value == "main"]
        position = _position(mains[0]) if mains else None
        if position is None:
            return program
        for function in _functions(mlir):
            at = _position(function)
            if at is not None:
                _fix(function.regions[0].blocks[0], at, index)
        _drop_argument(mains[0], position)
    # A case of a constant becomes its branch; functions that only other branches call are not needed any more.
    mlir_module.run_passes(module, "builtin.module(canonicalize,symbol-dce)")
    return Program(mlir_module.write_bytecode(module))


def _functions(mlir: Any) -> Iterator[Any]:
    for inner in mlir.body:
        if inner.operation.name == "func.func" and len(inner.operation.regions[0].blocks):
            yield inner.operation


def _position(function: Any) -> int | None:
    """Return which of a function's arguments is the index of the platform."""
    if "arg_attrs" not in function.attributes:
        return None
    for position, row in enumerate(function.attributes["arg_attrs"]):
        if _ATTRIBUTE in row and row[_ATTRIBUTE].value == _PLATFORM_INDEX:
            type_ = function.regions[0].blocks[0].arguments[position].type
            if str(type_) not in ("tensor<i32>", "tensor<i64>"):
                raise InvalidArgumentError(f"expected an integer as the index of the platform, found {type_}")
            return position
    return None


def _fix(block: Any, position: int, index: int) -> None:
    """Replace the index of the platform inside of a function by a constant."""
    ir = jaxlib.load("mlir.ir", _SELECTION_PURPOSE)
    argument = block.arguments[position]
    value = ir.Attribute.parse(f"dense<{index}> : {argument.type}")
    begin = ir.InsertionPoint.at_block_begin(block)
    with ir.Location.unknown():
        constant = ir.Operation.create("stablehlo.constant", [value.type], attributes={"value": value}, ip=begin)
    argument.replace_all_uses_with(constant.result)


def _drop_argument(main: Any, position: int) -> None:
    ir = jaxlib.load("mlir.ir", _SELECTION_PURPOSE)
    block = main.regions[0].blocks[0]
    block.erase_argument(position)
    type_ = ir.FunctionType(main.attributes["function_type"].value)
    inputs = [each for number, each in enumerate(type_.inputs) if number != position]
    rows = [row for number, row in enumerate(main.attributes["arg_attrs"]) if number != position]
    with main.location:
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, type_.results))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(rows)


Size = int | tuple[Any, int]
"""A size: a number, or a dimension of a value."""

_ResultShape = Sequence[Size] | Any
"""A shape: its sizes, or a value of MLIR that has them."""

_PURPOSE = "refine the shapes of a program"
_TARGET = "pjrt.operation."


def hide(module: MlirModule) -> list[tuple[str, int, dict[str, str]]]:
    """Replace the operations of a module that XLA's propagation does not know; return what ``restore`` needs.

    A composite whose shapes are dynamic becomes a call: the propagation does not look into it.
    """
    with module as mlir:
        operations = [each for each in walk(mlir.operation) if any(map(_is_dynamic, each.results))]
        has_composites = any(each.name == "stablehlo.composite" for each in operations)
    if has_composites:
        mlir_module.run_passes(module, "builtin.module(func.func(stablehlo-legalize-composite-to-call))")
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    hidden: list[tuple[str, int, dict[str, str]]] = []
    with module as mlir, ir.Location.unknown():
        for operation in list(walk(mlir.operation)):
            function = _FUNCTIONS.get(operation.name)
            if function is None or not any(map(_is_dynamic, operation.results)):
                continue
            shapes = function(operation)
            if shapes is None:
                continue
            operands = list(operation.operands)
            places = range(len(operands), len(operands) + len(shapes))
            call = ir.Operation.create(
                "stablehlo.custom_call",
                [result.type for result in operation.results],
                [*operands, *(_tensor_of(ir, sizes, operation) for sizes in shapes)],
                {
                    "call_target_name": ir.StringAttr.get(f"{_TARGET}{len(hidden)}"),
                    "indices_of_shape_operands": ir.Attribute.parse(f"dense<{[*places]}> : tensor<{len(shapes)}xi64>"),
                },
                loc=operation.location,
                ip=ir.InsertionPoint(operation),
            )
            attributes = {name: str(operation.attributes[name]) for name in operation.attributes}
            hidden.append((operation.name, len(operands), attributes))
            _replace(operation, call)
    return hidden


def restore(code: bytes, hidden: Sequence[tuple[str, int, Mapping[str, str]]]) -> bytes:
    """Return a program, as bytecode, with the operations that ``hide`` replaced."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    module = mlir_module.parse(code)
    with module as mlir, ir.Location.unknown():
        for call in list(walk(mlir.operation)):
            target = str(call.attributes["call_target_name"].value) if call.name == "stablehlo.custom_call" else ""
            if not target.startswith(_TARGET):
                continue
            name, count, attributes = hidden[int(target.removeprefix(_TARGET))]
            operation = ir.Operation.create(
                name,
                [result.type for result in call.results],
                list(call.operands)[:count],
                {key: ir.Attribute.parse(text) for key, text in attributes.items()},
                loc=call.location,
                ip=ir.InsertionPoint(call),
            )
            _replace(call, operation)
    return mlir_module.write_bytecode(module)


def _replace(operation: Any, other: Any) -> None:
    for result, value in zip(operation.results, other.results, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()


def _is_dynamic(value: Any) -> bool:
    return "?" in str(value.type)


def _tensor_of(ir: Any, sizes: _ResultShape, operation: Any) -> Any:
    """Add operations that compute a shape before another operation; return it as a tensor of one dimension."""
    if not isinstance(sizes, Sequence):
        return sizes
    place: dict[str, Any] = {"loc": operation.location, "ip": ir.InsertionPoint(operation)}
    i32 = ir.IntegerType.get_signless(32)

    def constant(numbers: Sequence[int]) -> Any:
        value = ir.Attribute.parse(f"dense<{[*numbers]}> : tensor<{len(numbers)}xi32>")
        return ir.Operation.create("stablehlo.constant", [value.type], [], {"value": value}, **place).result

    def one(size: Size) -> Any:
        if isinstance(size, int):
            return constant([size])
        value, dimension = size
        attributes = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dimension)}
        scalar = ir.RankedTensorType.get([], i32)
        number = ir.Operation.create("stablehlo.get_dimension_size", [scalar], [value], attributes, **place).result
        return ir.Operation.create("stablehlo.reshape", [ir.RankedTensorType.get([1], i32)], [number], **place).result

    if not sizes:
        return constant([])
    dimension = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)}
    type_ = ir.RankedTensorType.get([len(sizes)], i32)
    return ir.Operation.create("stablehlo.concatenate", [type_], list(map(one, sizes)), dimension, **place).result


def _sizes(value: Any) -> list[Size]:
    return [(value, dimension) for dimension in range(len(value.type.shape))]


def _bits(value: Any) -> int:
    match = re.search(r"(\d+)", str(value.type.element_type))
    is_complex = str(value.type.element_type).startswith("complex")
    return (2 if is_complex else 1) * int(match[1]) if match else 0


def _bitcast_convert(operation: Any) -> Sequence[_ResultShape] | None:
    (operand,), (result,) = operation.operands, operation.results
    have, want, sizes = _bits(operand), _bits(result), _sizes(operand)
    if have == want:
        return None  # this one the propagation knows
    return [[*sizes, have // want]] if have > want else [sizes[:-1]]


def _torch_index_select(operation: Any) -> Sequence[_ResultShape]:
    values, indices = operation.operands
    dimension, batches = (operation.attributes[name].value for name in ("dim", "batch_dims"))
    return [[*_sizes(values)[:dimension], *_sizes(indices)[batches:], *_sizes(values)[dimension + 1 :]]]


def _einsum(operation: Any) -> Sequence[_ResultShape] | None:
    given, arrow, wanted = str(operation.attributes["einsum_config"].value).replace(" ", "").partition("->")
    if not arrow or "." in given:
        return None
    known: dict[str, Size] = {}
    for letters, operand in zip(given.split(","), operation.operands, strict=True):
        known.update(zip(letters, _sizes(operand), strict=True))
    return [[known[letter] for letter in wanted]]


def _like_operand(operation: Any) -> Sequence[_ResultShape] | None:
    """Return the shapes of results where the first one has that of the first operand, and the others are static."""
    first, *others = operation.results
    if not operation.operands or any(map(_is_dynamic, others)):
        return None
    if first.type.element_type != operation.operands[0].type.element_type:
        return None
    return [_sizes(operation.operands[0]), *(list(each.type.shape) for each in others)]


def _rng(operation: Any) -> Sequence[_ResultShape]:
    return [operation.operands[2]]


def _custom_call(operation: Any) -> Sequence[_ResultShape] | None:
    is_hint = str(operation.attributes["call_target_name"].value) in ("Sharding", "annotate_device_placement")
    return _like_operand(operation) if is_hint and "indices_of_shape_operands" not in operation.attributes else None


_FUNCTIONS: Mapping[str, Callable[[Any], Sequence[_ResultShape] | None]] = {
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.einsum": _einsum,
    "stablehlo.rng": _rng,
    "stablehlo.rng_bit_generator": _like_operand,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.unary_einsum": _einsum,
}


TIME_LIMIT = 120.0
"""The time limit of the subprocess, in seconds."""

_DIALECTS = frozenset(("builtin", "func", "stablehlo", "chlo", "sdy"))
_DEEPEST_CALLS = 50
_MOST_OPERATIONS = 200_000
_DIVISIONS = ("stablehlo.divide", "stablehlo.remainder")
_EXIT_REFUSED = 3


def propagate(module: MlirModule) -> bytes:
    """Return a module, whose main function has arguments of static shapes, with static shapes only, as bytecode.

    Raises:
        InvalidArgumentError: a condition that the program states about the shapes does not hold, shapes do not fit
            together, or a shape depends on more than the shapes of the arguments. The message is XLA's or the
            program's own.
        DeadlineExceededError: XLA does not finish.
    """
    hidden = hide(module)
    try:
        code = _propagate_safely(module)
        return restore(code, hidden) if hidden else code
    except InvalidArgumentError:
        # XLA stops at the first fault, which often follows from a condition that does not hold: ask for those alone.
        _propagate_safely(_conditions_of(module))
        raise


def _propagate_safely(module: MlirModule) -> bytes:
    code = mlir_module.write_bytecode(module)
    if _is_ordinary(module):
        return _propagate(code)
    try:
        return _propagate_in_subprocess(code)
    except InvalidArgumentError as error:
        # XLA ends its process over a division by zero, or leaves it alone, as its version is.
        if not error.message.startswith(_ENDS) and not error.message.endswith(_ON_VALUES):
            raise
        if not _guard_divisions(module):
            raise
    return _propagate_in_subprocess(mlir_module.write_bytecode(module))


def _guard_divisions(module: MlirModule) -> bool:
    """Give divisions of integers a result for every divisor, that of XLA's programs; return whether there are any.

    These are -1 by zero, and the smallest integer by -1; the remainders are the dividend and 0.
    """
    ir = jaxlib.load("mlir.ir", "refine the shapes of a program")
    functions: dict[tuple[str, Any], str] = {}
    with module as mlir, ir.Location.unknown():
        for operation in list(walk(mlir.operation)):
            type_ = operation.results[0].type if operation.name in _DIVISIONS else None
            if type_ is None or not type_.has_static_shape or not isinstance(type_.element_type, ir.IntegerType):
                continue
            name = functions.setdefault((operation.name, type_), f"pjrt.guarded_division.{len(functions)}")
            place: dict[str, Any] = {"ip": ir.InsertionPoint(operation), "loc": operation.location}
            callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
            call = ir.Operation.create("func.call", [type_], list(operation.operands), callee, **place)
            operation.results[0].replace_all_uses_with(call.result)
            operation.erase()
        for (kind, type_), name in functions.items():
            element = type_.element_type
            text = _GUARDED.format(
                name=name,
                kind=kind,
                type=type_,
                sign="UNSIGNED" if element.is_unsigned else "SIGNED",
                lowest=0 if element.is_unsigned else -(1 << element.width - 1),
                all_ones=(1 << element.width) - 1 if element.is_unsigned else -1,
                otherwise="%a" if kind == "stablehlo.remainder" else "%all_ones",
                flags=ir.RankedTensorType.get(type_.shape, ir.IntegerType.get_signless(1)),
            )
            guarded = ir.Module.parse(text)
            mlir.body.append(guarded.body.operations[0].operation.clone())
    return bool(functions)


_GUARDED = """
func.func private @{name}(%a: {type}, %b: {type}) -> {type} {{
  %zero = stablehlo.constant dense<0> : {type}
  %one = stablehlo.constant dense<1> : {type}
  %lowest = stablehlo.constant dense<{lowest}> : {type}
  %all_ones = stablehlo.constant dense<{all_ones}> : {type}
  %by_zero = stablehlo.compare EQ, %b, %zero, {sign} : ({type}, {type}) -> {flags}
  %of_lowest = stablehlo.compare EQ, %a, %lowest, {sign} : ({type}, {type}) -> {flags}
  %by_ones = stablehlo.compare EQ, %b, %all_ones, {sign} : ({type}, {type}) -> {flags}
  %overflows = stablehlo.and %of_lowest, %by_ones : {flags}
  %is_none = stablehlo.or %by_zero, %overflows : {flags}
  %divisor = stablehlo.select %is_none, %one, %b : {flags}, {type}
  %result = {kind} %a, %divisor : {type}
  %guarded = stablehlo.select %by_zero, {otherwise}, %result : {flags}, {type}
  return %guarded : {type}
}}
"""


def _conditions_of(module: MlirModule) -> MlirModule:
    """Return the part of a module that checks the conditions on shapes, without results."""
    ir = jaxlib.load("mlir.ir", "refine the shapes of a program")
    conditions = mlir_module.parse(mlir_module.write_bytecode(module))
    with conditions as mlir, ir.Location.unknown():
        functions = [each.operation for each in mlir.body if each.operation.name == "func.func"]
        main = next(function for function in functions if function.attributes["sym_name"].value == "main")
        *operations, end = main.regions[0].blocks[0].operations
        ir.Operation.create("func.return", ip=ir.InsertionPoint(end))
        end.operation.erase()
        type_ = ir.FunctionType.get(ir.FunctionType(main.attributes["function_type"].value).inputs, [])
        main.attributes["function_type"] = ir.TypeAttr.get(type_)
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
        for operation in reversed(operations):
            is_used = any(True for result in operation.operation.results for _ in result.uses)
            if not is_used and not is_assertion(operation.operation):
                operation.operation.erase()
    mlir_module.run_passes(conditions, "builtin.module(symbol-dce)")
    return conditions


_STILL_DYNAMIC = "op has dynamic shapes"
_ON_VALUES = ": its sizes depend on values, and only those that depend on shapes can be refined"
_ENDS = "XLA ends its process while it computes the program's shapes"
_FAILURE = re.compile(r'error: (?:(?:loc\(.*?\)|"[^"]*":\d+:\d+|<unknown>:0): )*(.*)')


def _propagate(code: bytes) -> bytes:
    xla = jaxlib.load("_jax", "refine the shapes of a program")
    try:
        refined: bytes = xla.mlir.refine_polymorphic_shapes(
            mlir_module=code, enable_shape_assertions=True, validate_static_shapes=True, enable_shardy=b"sdy" in code
        )
    except (RuntimeError, ValueError) as error:
        match = _FAILURE.search(str(error))
        message = without_advice(match[1] if match else str(error))
        if message.endswith(_STILL_DYNAMIC):
            message += _ON_VALUES
        raise InvalidArgumentError(message) from error
    return refined


def _propagate_in_subprocess(code: bytes) -> bytes:
    try:
        ended = run_module(__name__, str(len(code)), given=code, time_limit=TIME_LIMIT)
    except TimeoutError as error:
        raise DeadlineExceededError(f"XLA did not compute the program's shapes within {TIME_LIMIT:.0f} s") from error
    if ended is None:  # no Python can be started here
        return _propagate(code)
    if ended.status == _EXIT_REFUSED:
        raise InvalidArgumentError(ended.output.decode(errors="replace"))
    if ended.status:
        raise InvalidArgumentError(f"{_ENDS} ({ended})")
    return ended.output


def _is_ordinary(module: MlirModule) -> bool:
    """Whether a module is of the kind that XLA is known to survive."""
    outline = Outline.of(module)
    if any(name.partition(".")[0] not in _DIALECTS for name in outline.operations):
        return False
    if outline.functions.bodiless or outline.functions.depth() > _DEEPEST_CALLS:
        return False
    with module as mlir:
        return _inlined_size(mlir) <= _MOST_OPERATIONS and not any(map(_is_delicate, walk(mlir.operation)))


def _is_delicate(operation: Any) -> bool:
    """Whether XLA may end the process over an operation: a division of integers, or a custom call for refinement."""
    name = operation.name
    if name in _DIVISIONS:
        return _OF_INTEGERS.search(str(operation.results[0].type)) is not None
    return name == "stablehlo.custom_call" and "indices_of_shape_operands" in operation.attributes


_OF_INTEGERS = re.compile(r"[<x]u?i\d")


def _inlined_size(mlir: Any) -> int:
    """Return how many operations the main function has when each call is replaced by the function that is called."""
    sizes: dict[str, int] = {}
    calls: dict[str, Counter[str]] = {}
    for inner in mlir.body:
        if inner.operation.name != "func.func":
            continue
        name = inner.operation.attributes["sym_name"].value
        sizes[name], calls[name] = 0, Counter()
        for operation in walk(inner.operation):
            sizes[name] += 1
            if operation.name == "func.call":
                calls[name][operation.attributes["callee"].value] += 1
    inlined: dict[str, int] = {}

    def size_of(name: str) -> int:
        if name not in inlined:
            inlined[name] = sizes[name] + sum(count * size_of(callee) for callee, count in calls[name].items())
        return inlined[name]

    return size_of("main")


def _main(size: int) -> int:
    limit_memory(size)
    try:
        sys.stdout.buffer.write(_propagate(sys.stdin.buffer.read(size)))
    except PjrtError as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        return _EXIT_REFUSED
    return 0


def refine(program: AnyProgram, shapes: Shapes, *, trusted: bool = False) -> Program:
    """Return the program with static shapes, for these shapes of its arguments.

    Args:
        program: a program in any encoding. One that has static shapes only is returned as it is.
        shapes: the shapes of the arguments: a sequence with one for each (``None`` for one that is static), or a
            mapping. Its keys are indices and names of arguments, with shapes as values, and the symbols for sizes that
            the program states, as ``jax.export`` has them: ``{"b": 8}``. Sizes that follow from others need not be
            given.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: a shape does not fit its argument or contradicts a condition that the program states, a
            shape is missing, or sizes depend on more than the shapes of the arguments.
        PjrtError: as for ``to_module``.
    """
    program = read(program)
    module = to_module(program, trusted=trusted)
    outline = Outline.of(module)
    outline.check()
    arguments = _arguments(module)
    resolved = resolve_shapes(shapes, arguments)
    if not outline.has_dynamic_shapes and not any(is_dynamic(argument.shape) for argument in arguments):
        return program
    for argument, shape in zip(arguments, resolved, strict=True):
        argument.check_bounds(shape)
    if any(argument.bounds for argument in arguments):
        module = _without_bounds(module)
    _set_names(module, arguments)
    _set_shapes(module, resolved)
    try:
        return Program(propagate(module))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the program does not take arguments of these shapes ({_described(arguments, resolved)}): {error.message}"
        ) from error


@dataclass(frozen=True)
class _Argument:
    index: int
    name: str
    shape: StatedShape
    bounds: tuple[int | None, ...]

    @staticmethod
    def of(index: int, argument: ArgumentInfo) -> _Argument:
        bounds = argument.type.bounds if isinstance(argument.type, TensorType) else None
        return _Argument(index, argument.name, argument.symbolic_shape, bounds or ())

    @property
    def label(self) -> str:
        return self.name or str(self.index)

    def check_bounds(self, shape: Shape) -> None:
        """Raise an error if a size is above its upper bound."""
        if any(bound is not None and size > bound for size, bound in zip(shape, self.bounds, strict=False)):
            raise InvalidArgumentError(
                f"expected sizes within the bounds {spelled_shape(self.bounds)} of argument {self.label}, found "
                f"{spelled_shape(shape)}"
            )


def _arguments(module: MlirModule) -> list[_Argument]:
    signature = signature_of(parse_module(module, bodies=False), module)
    return [_Argument.of(index, argument) for index, argument in enumerate(signature.arguments)]


_BOUNDS = re.compile(r",\s*#stablehlo\.bounds<[^>]*>")


def _without_bounds(module: MlirModule) -> MlirModule:
    """Return the module with the same types, but without upper bounds: XLA takes a bounded size for a known one."""
    return mlir_module.parse(_BOUNDS.sub("", mlir_module.write_text(module, locations=True)).encode())


def _described(arguments: Sequence[_Argument], shapes: Sequence[Shape]) -> str:
    return ", ".join(
        f"{argument.label} {spelled_shape(shape)}"
        for argument, shape in zip(arguments, shapes, strict=True)
        if is_dynamic(argument.shape)
    )


def _set_names(module: MlirModule, arguments: Sequence[_Argument]) -> None:
    """Give the arguments of the main function their names.

    In a program of ``jax.export`` only the function that the main function wraps has them, and that is inlined.
    """
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    with module as mlir:
        block = _main_function(mlir).regions[0].blocks[0]
        for argument, named in zip(block.arguments, arguments, strict=True):
            if named.name:
                argument.set_location(ir.Location.name(named.name))


_WRAPPER = "stablehlo.shape_refinement_operand_wrapper"


def _set_shapes(module: MlirModule, shapes: Sequence[Shape]) -> None:
    """Give the arguments of the main function static shapes.

    Operations still expect the dynamic types: each argument reaches them through a custom call that refinement removes.
    """
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    with module as mlir, ir.Location.unknown():
        main = _main_function(mlir)
        block = main.regions[0].blocks[0]
        begin = ir.InsertionPoint.at_block_begin(block)
        for argument, shape in zip(block.arguments, shapes, strict=True):
            dynamic = argument.type
            if not isinstance(dynamic, ir.RankedTensorType) or dynamic.has_static_shape:
                continue
            argument.set_type(ir.RankedTensorType.get(shape, dynamic.element_type))
            sizes = ir.Attribute.parse(f"dense<{list(shape)}> : tensor<{len(shape)}xi64>")
            constant = ir.Operation.create("stablehlo.constant", [sizes.type], attributes={"value": sizes}, ip=begin)
            wrapper = ir.Operation.create(
                "stablehlo.custom_call",
                [dynamic],
                [argument, constant.result],
                {
                    "call_target_name": ir.StringAttr.get(_WRAPPER),
                    "indices_of_shape_operands": ir.Attribute.parse("dense<1> : tensor<1xi64>"),
                },
                ip=begin,
            )
            argument.replace_all_uses_except(wrapper.result, wrapper)
        results = ir.FunctionType(main.attributes["function_type"].value).results
        type_ = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        main.attributes["function_type"] = ir.TypeAttr.get(type_)


def _main_function(mlir: Any) -> Any:
    for inner in mlir.body:
        operation = inner.operation
        if operation.name == "func.func" and operation.attributes["sym_name"].value == "main":
            return operation
    raise InvalidArgumentError("expected a dynamic program with a function 'main', found none")


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))

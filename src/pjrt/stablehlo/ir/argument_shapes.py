"""The shapes of a dynamic program's arguments, from all shapes, some of them, or sizes of symbols.

``jax.export`` writes symbolic sizes, expressions such as ``2*b + 1`` that stand for sizes of dynamic arguments. Their
grammar is Python's, with ``^`` for powers and the functions ``floordiv``, ``mod``, ``max`` and ``min``.

It writes assertions, too: custom calls that state conditions on the shapes of the arguments. Beside the condition, each
has the message for shapes that do not meet it, and the message has the symbolic shapes of all dynamic arguments. No
other part of the program has them.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex

from pjrt.api.checks import expect_sequence
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.loaded_executable import choices
from pjrt.api.shape_spec import Shapes, expect_shape
from pjrt.stablehlo.ir.mlir_module import MlirModule, senseless_refused, walk

_LONGEST = 1000
_GREATEST_POWER = 64
_GREATEST_BASE = 1 << 63
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@functools.lru_cache(1024)
def symbols_in(size: str) -> frozenset[str]:
    """Return the symbols in a symbolic size.

    Raises:
        InvalidArgumentError: the text is no symbolic size.
    """
    names = (node.id for node in ast.walk(_parsed(size)) if isinstance(node, ast.Name))
    return frozenset(names) - _FUNCTIONS.keys()


def evaluate(size: str, sizes: Mapping[str, int]) -> int:
    """Return the value of a symbolic size for these sizes of its symbols.

    Raises:
        InvalidArgumentError: the text is no symbolic size, or divides by zero.
        KeyError: a symbol has no size.
    """
    try:
        return _value(_parsed(size), sizes)
    except (OverflowError, RecursionError, ValueError, ZeroDivisionError) as error:
        raise InvalidArgumentError(f"the size {size!r} has no value for {dict(sizes)}: {error}") from error


def solve(size: str, value: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the one symbol without a size and the size for which a symbolic size has a value.

    Returns:
        The symbol and its size; ``None`` if several symbols have no size, if all have, or if the symbolic size is not
        linear in the symbol.
    """
    unknown = symbols_in(size) - sizes.keys()
    if len(unknown) != 1:
        return None
    (symbol,) = unknown

    def at(number: int) -> int:
        return evaluate(size, {**sizes, symbol: number})

    try:
        begin = at(0)
        slope = at(1) - begin
    except InvalidArgumentError:
        return None
    if not slope or (value - begin) % slope:
        return None
    solution = (value - begin) // slope
    return (symbol, solution) if at(solution) == value else None


@functools.lru_cache(1024)
def _parsed(size: str) -> ast.expr:
    if len(size) <= _LONGEST and re.fullmatch(r"[\w\s+*^(),-]+", size):
        try:
            return ast.parse(size.strip().replace("^", "**"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    raise InvalidArgumentError(f"expected a symbolic size such as 'b' or '2*b + 1', found {size[:100]!r}")


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 <= power <= _GREATEST_POWER:
            base = _value(left, sizes)
            if abs(base) > _GREATEST_BASE:  # powers of powers would take for ever
                raise OverflowError(f"{base} to the power of {power}")
            return int(base**power)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(left, sizes), _value(right, sizes))
    raise InvalidArgumentError(f"expected a symbolic size such as 'b' or '2*b + 1', found {ast.unparse(node)[:100]!r}")


Shape = tuple[int, ...]

StatedShape = Sequence[int | str | None]
"""The shape that a program states: a size may be a symbolic size, or ``None`` if it is dynamic without a symbol."""


class StatedArgument(Protocol):
    """An argument as a program states it."""

    @property
    def name(self) -> str:
        """Its name; empty if it has none."""

    @property
    def shape(self) -> StatedShape:
        """Its shape."""


_NUMBERS = frozenset((int,))


def is_dynamic(shape: StatedShape) -> bool:
    """Whether a stated shape has a size that is not a number."""
    return not _NUMBERS.issuperset(map(type, shape))


def symbols_in_shape(shape: StatedShape) -> set[str]:
    """Return the symbols in the sizes of a stated shape."""
    return {symbol for size in shape if isinstance(size, str) for symbol in symbols_in(size)}


def spelled_shape(shape: StatedShape) -> str:
    """Return a stated shape as a message has it, such as ``[b, 16]``."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def resolve_shapes(shapes: Shapes, arguments: Sequence[StatedArgument]) -> tuple[Shape, ...]:
    """Return the shape of each argument of a program.

    Sizes that follow from others are computed: of a program whose arguments are ``(b, 16)`` and ``(b, 4)``, the shape
    of one of them is enough, or the size of ``b``.

    Args:
        shapes: the shapes that the user gives; see ``pjrt.api.shape_spec.Shapes``.
        arguments: the arguments that the program states.

    Raises:
        InvalidArgumentError: a shape does not fit its argument, a key of the mapping is unknown, shapes contradict each
            other, or a size is missing.
    """
    solver = _solver_of(shapes, arguments)
    resolved = solver.solution()
    missing = [solver.describe(index) for index, shape in enumerate(resolved) if shape is None]
    if missing:
        symbols = ", ".join(sorted(solver.symbols - solver.sizes.keys()))
        raise InvalidArgumentError(
            f"expected shapes for all dynamic arguments of the program, found none for {'; '.join(missing)}; give "
            "the shape by the argument's index or name" + (f", or a size for {symbols}" if symbols else "")
        )
    return tuple(shape for shape in resolved if shape is not None)


def known_shapes(shapes: Shapes, arguments: Sequence[StatedArgument]) -> tuple[Shape | None, ...]:
    """Return the shape of each argument of a program, or None for those that do not follow from the given shapes.

    Raises:
        InvalidArgumentError: as for ``resolve_shapes``, but for missing sizes.
    """
    return tuple(_solver_of(shapes, arguments).solution())


def _solver_of(shapes: Shapes, arguments: Sequence[StatedArgument]) -> _Solver:
    solver = _Solver(arguments)
    if isinstance(shapes, Mapping):
        for key, value in shapes.items():
            solver.take(key, value)
    else:
        shapes = expect_sequence(shapes, "shapes as a sequence, with one for each argument, or as a mapping")
        if len(shapes) != len(arguments):
            raise InvalidArgumentError(
                f"expected a shape for each of the {len(arguments)} arguments ({'; '.join(solver.descriptions())}), "
                f"found {len(shapes)} shapes"
            )
        for index, shape in enumerate(shapes):
            if shape is not None:
                solver.take_shape(index, shape)
    return solver


class _Solver:
    """The known facts about the shapes of a program's arguments.

    Attributes:
        sizes: the sizes of symbols.
        origins: for each symbol where its size is from, for messages.
        shapes: the shapes that were given, by the argument's index.
    """

    def __init__(self, arguments: Sequence[StatedArgument]) -> None:
        self.arguments = arguments
        self.stated = [tuple(argument.shape) for argument in arguments]
        self.symbols = {each for shape in self.stated if is_dynamic(shape) for each in symbols_in_shape(shape)}
        self.sizes: dict[str, int] = {}
        self.origins: dict[str, str] = {}
        self.shapes: dict[int, Shape] = {}

    def take(self, key: str | int, value: Sequence[int] | int) -> None:
        """Take an entry of a mapping."""
        index = self._index(key)
        value = expect_shape((value,) if isinstance(value, SupportsIndex) else value)
        if isinstance(key, str) and self._is_for_symbol(key, index, value):
            self._take_size(key, value[0], f"the size that was given for {key}")
        elif index is not None:
            self.take_shape(index, value)
        elif key in self.symbols:
            raise InvalidArgumentError(f"expected one size for the symbol {key}, found {spelled_shape(value)}")
        else:
            fixed = "" if any(map(is_dynamic, self.stated)) else "; the shapes of this program are fixed: give none"
            raise InvalidArgumentError(f"expected {self._keys(str(key))}, found a shape for {key!r}{fixed}")

    def _is_for_symbol(self, key: str, index: int | None, value: Sequence[int]) -> bool:
        return key in self.symbols and len(value) == 1 and (index is None or len(self.stated[index]) != 1)

    def take_shape(self, index: int, shape: Sequence[int]) -> None:
        """Take the shape of an argument."""
        sizes, stated = expect_shape(shape), self.stated[index]
        fits = sizes == stated or (
            len(sizes) == len(stated)
            and all(size == wanted or not isinstance(wanted, int) for size, wanted in zip(sizes, stated, strict=True))
        )
        if not fits:
            raise InvalidArgumentError(
                f"expected a shape that fits {self.describe(index)}, found {spelled_shape(sizes)}"
            )
        if self.shapes.setdefault(index, sizes) != sizes:
            raise InvalidArgumentError(
                f"expected one shape for {self.describe(index)}, found {spelled_shape(self.shapes[index])} and "
                f"{spelled_shape(sizes)}"
            )

    def solution(self) -> list[Shape | None]:
        """Return the shape of each argument, or None where a size of it is missing."""
        pending = [
            (index, wanted, size)
            for index, shape in self.shapes.items()
            for wanted, size in zip(self.stated[index], shape, strict=True)
            if isinstance(wanted, str)
        ]
        while True:  # each round finds the size of another symbol
            rest = [each for each in pending if not self._learn(*each)]
            if len(rest) == len(pending):
                break
            pending = rest
        indices = range(len(self.stated))
        return [self.shapes[index] if index in self.shapes else self._computed(index) for index in indices]

    def _learn(self, index: int, wanted: str, size: int) -> bool:
        """Take what the size of an argument says about symbols; return whether it says no more."""
        if symbols_in(wanted) <= self.sizes.keys():
            value = evaluate(wanted, self.sizes)
            if value != size:
                names = sorted(symbols_in(wanted))
                because = "; ".join(f"{name} = {self.sizes[name]} by {self.origins[name]}" for name in names)
                raise InvalidArgumentError(
                    f"the shapes contradict each other: expected {wanted} = {value} in {self.describe(index)}, found "
                    f"{size} in {spelled_shape(self.shapes[index])} ({because})"
                )
            return True
        solution = solve(wanted, size, self.sizes)
        if solution is not None:
            self._take_size(*solution, f"the shape {spelled_shape(self.shapes[index])} of {self.describe(index)}")
        return solution is not None

    def _take_size(self, symbol: str, size: int, origin: str) -> None:
        if self.sizes.setdefault(symbol, size) != size:
            raise InvalidArgumentError(f"expected one size for {symbol}, found {self.sizes[symbol]} and {size}")
        self.origins.setdefault(symbol, origin)

    def _computed(self, index: int) -> Shape | None:
        """Return the shape of an argument without a given one, if its sizes are known."""
        sizes = []
        for size in self.stated[index]:
            if isinstance(size, str) and symbols_in(size) <= self.sizes.keys():
                size = evaluate(size, self.sizes)
                if size < 0:
                    raise InvalidArgumentError(
                        f"expected sizes from 0 up, found {size} for {self.describe(index)} with {self.sizes}"
                    )
            if not isinstance(size, int):
                return None
            sizes.append(size)
        return tuple(sizes)

    def _index(self, key: str | int) -> int | None:
        """Return the index of the argument that a key of a mapping names."""
        if isinstance(key, int) or (key.isascii() and key.isdigit()):
            return int(key) if 0 <= int(key) < len(self.arguments) else None
        indices = [index for index, argument in enumerate(self.arguments) if argument.name == key]
        if len(indices) > 1:
            raise InvalidArgumentError(f"several arguments are called {key!r}: give the index, one of {indices}")
        return indices[0] if indices else None

    def _keys(self, key: str) -> str:
        names = [repr(argument.name) for argument in self.arguments if argument.name]
        keys = f"the index of an argument, from 0 to {len(self.arguments) - 1}"
        keys += f", or its name ({choices(names, repr(key))})" if names else ""
        return keys + (f", or a symbol ({', '.join(sorted(self.symbols))})" if self.symbols else "")

    def descriptions(self) -> Iterator[str]:
        """Yield a description of each argument."""
        return map(self.describe, range(len(self.arguments)))

    def describe(self, index: int) -> str:
        """Return the index, name and stated shape of an argument."""
        name = self.arguments[index].name
        return f"argument {index}{f' ({name})' if name else ''} of shape {spelled_shape(self.stated[index])}"


_TARGET = "shape_assertion"

_ADVICE = r"[\s.,]*Please see \S+ for more details\.?$"
_SPECIFICATIONS = "polymorphic shapes specifications: "
_SPECIFICATION = r"\.shape = \("


def symbolic_shapes(module: MlirModule, shapes: Sequence[StatedShape]) -> list[StatedShape]:
    """Return the shapes of a program's arguments with symbolic sizes where the program's shape assertions state them.

    Args:
        module: the program.
        shapes: the shapes of its arguments by their types.
    """
    dynamic = [index for index, shape in enumerate(shapes) if is_dynamic(shape)]
    if not dynamic:
        return list(shapes)
    with module as mlir, senseless_refused():
        message = next(_messages(mlir), "")
    stated = list(_specifications(message))
    if len(stated) != len(dynamic) or not all(map(_agree, stated, (shapes[index] for index in dynamic))):
        return list(shapes)
    symbolic = list(shapes)
    for index, shape in zip(dynamic, stated, strict=True):
        symbolic[index] = shape
    return symbolic


def is_assertion(operation: Any) -> bool:
    """Whether an operation of MLIR's is a shape assertion."""
    return operation.name == "stablehlo.custom_call" and bool(operation.attributes["call_target_name"].value == _TARGET)


def without_advice(message: str) -> str:
    """Return the message of a shape assertion without the address of JAX's documentation."""
    return re.sub(_ADVICE, "", message.strip()).replace(" (= ", " (").replace("), .", ")")


def _messages(mlir: Any) -> Iterator[str]:
    for operation in walk(mlir.operation):
        if is_assertion(operation) and "error_message" in operation.attributes:
            yield str(operation.attributes["error_message"].value)


def _specifications(message: str) -> Iterator[StatedShape]:
    """Yield the shapes in ``…specifications: args[0].shape = (b, 16),args[1].shape = (b,).``"""
    text = message.partition(_SPECIFICATIONS)[2]
    for match in re.finditer(_SPECIFICATION, text):
        yield tuple(int(size) if size.isdigit() else size for size in _sizes(text, match.end()))


def _sizes(text: str, begin: int) -> Iterator[str]:
    """Yield the sizes of a shape, up to the bracket that closes it."""
    depth = 0
    for end in range(begin, len(text)):
        character = text[end]
        if depth == 0 and character in ",)":
            if size := text[begin:end].strip():
                yield size
            if character == ")":
                return
            begin = end + 1
        depth += (character == "(") - (character == ")")


def _agree(symbolic: StatedShape, by_type: StatedShape) -> bool:
    return len(symbolic) == len(by_type) and all(
        isinstance(size, str) if stated is None else size == stated
        for size, stated in zip(symbolic, by_type, strict=True)
    )

"""The operations of random programs: for each kind, a function that writes one of them for random values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from benchmarks.fuzz.random_values import (
    FLOATS,
    INTEGERS,
    LARGEST,
    PARTS,
    PRED,
    WHOLES,
    Shape,
    UnsuitableError,
    Value,
    eps_of,
    info_of,
    is_float,
    join,
    like,
)
from pjrt import ElementType
from pjrt.conformance.operation_table import tensor

if TYPE_CHECKING:
    from benchmarks.fuzz.random_programs import RandomProgram

_FAR = 32
"""The error of a function such as a sine, in units in the last place of its largest result."""


def _integers(numbers: Sequence[int]) -> str:
    return f"array<i64{': ' if numbers else ''}{', '.join(map(str, numbers))}>"


def _region(operation: str, element: ElementType, attributes: str = "", result: ElementType | None = None) -> str:
    """Return a region of one operation on two scalars."""
    scalar, outer = tensor((), element), tensor((), result or element)
    return (
        f"({{ ^bb0(%l: {scalar}, %r: {scalar}): "
        f'%o = "stablehlo.{operation}"(%l, %r) {attributes} : ({scalar}, {scalar}) -> {outer} '
        f'"stablehlo.return"(%o) : ({outer}) -> () }})'
    )


Maker = Callable[["RandomProgram"], object]
_makers: list[Maker] = []


def _maker(weight: int) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        _makers.extend([maker] * weight)
        return maker

    return add


def make(program: RandomProgram) -> None:
    program.chance.choice(_makers)(program)


def _any(value: Value) -> bool:
    return True


# Elementwise operations.


@_maker(6)
def _unary(program: RandomProgram) -> None:
    x = program.pick(_any)
    element, chance = x.element, program.chance
    if element is PRED:
        program.add("not", [x], like(x))
    elif element.is_integer:
        names = ["not", "negate", "popcnt", "count_leading_zeros"] + (["abs", "sign"] if element.name[0] == "S" else [])
        program.add(chance.choice(names), [x], like(x))
    elif element.is_complex:
        name = chance.choice(("negate", "real", "imag", "abs", "chlo.conj"))
        outer = PARTS[element] if name in ("real", "imag", "abs") else element
        error = x.error + (eps_of(element) * x.most if name == "abs" else 0)
        program.add(name, [x], like(x, element=outer, error=error))
    else:
        exact = ["floor", "ceil", "round_nearest_afz", "round_nearest_even", "sign", "is_finite"]
        name = chance.choice(["abs", "negate", *(exact if not x.error else ()), "tanh", *_FUNCTIONS])
        if name == "is_finite":
            program.add(name, [x], Value("", x.shape, PRED))
        elif name in ("abs", "negate"):
            program.add(name, [x], like(x))
        elif name in exact:
            program.add(name, [x], like(x, most=x.most + 1 if x.most > 0.5 else 1.0))
        else:
            _function(program, name, x)


_FUNCTIONS: dict[str, tuple[float, Callable[[float], float]]] = {
    "tanh": (1, lambda most: 1),
    "logistic": (1, lambda most: 1),
    "sine": (1, lambda most: 1),
    "cosine": (1, lambda most: 1),
    "log_plus_one": (0, lambda most: 3),
    "exponential": (-1, lambda most: math.exp(min(most, 20))),
    "exponential_minus_one": (-1, lambda most: math.exp(min(most, 20))),
    "chlo.atan": (1, lambda most: 2),
    "chlo.asinh": (1, lambda most: most),
    "chlo.erf": (1.2, lambda most: 1),
    "chlo.sinh": (-1, lambda most: math.exp(min(most, 20))),
    "chlo.cosh": (-1, lambda most: math.exp(min(most, 20))),
    "chlo.square": (-2, lambda most: most * most),
}
"""The steepest slope of functions (-1: the largest result; -2: that of a square), and the largest result."""


def _function(program: RandomProgram, name: str, x: Value) -> None:
    if x.is_special:
        raise UnsuitableError
    if name == "log_plus_one":
        x = program.positive(x.shape, x.element)
    slope, outer = _FUNCTIONS[name]
    most = outer(x.most)
    steepest = most if slope == -1 else 2 * x.most if slope == -2 else slope
    error = x.error * steepest + _FAR * eps_of(x.element) * max(most, eps_of(x.element))
    program.add(name, [x], like(x, most=most + error, error=error, has_free_bits=True))


@_maker(2)
def _of_positive(program: RandomProgram) -> None:
    """Functions that are not smooth everywhere, where they are."""
    x = program.pick(lambda value: value.is_number and is_float(value.element))
    eps, name = eps_of(x.element), program.chance.choice(("sqrt", "rsqrt", "log", "cbrt", "divide", "atan2", "power"))
    y = program.positive(x.shape, x.element)
    if name == "divide":
        most = 2 * x.most
        program.add(name, [x, y], like(x, most=most, error=2 * x.error + 4 * eps * most, has_free_bits=True))
    elif name == "atan2":
        if x.error or x.has_free_bits:
            raise UnsuitableError
        program.add(name, [x, y], like(x, most=2, error=_FAR * eps * 2, has_free_bits=True))
    elif name == "power":
        if x.error or x.most > 4:
            raise UnsuitableError
        program.add(name, [y, x], like(x, most=82.0, error=_FAR * eps * 82, has_free_bits=True))
    else:
        program.add(name, [y], like(x, most=2.0, error=_FAR * eps * 2, has_free_bits=True))


@_maker(12)
def _binary(program: RandomProgram) -> None:
    x = program.pick(_any)
    y, element, chance = program.another(x.shape, x.element), x.element, program.chance
    outer = join([x, y], x.shape)
    if element is PRED:
        program.add(chance.choice(("and", "or", "xor", "maximum", "minimum", "add", "multiply")), [x, y], outer)
    elif element.is_integer:
        name = chance.choice(
            [
                *("add", "subtract", "multiply", "and", "or", "xor", "maximum", "minimum", "divide", "remainder"),
                *("power", "shift_left", "shift_right_logical", "shift_right_arithmetic", "chlo.mulhi"),
            ]
        )
        program.add(name, [x, _fitted(program, name, y)], outer)
    elif outer.is_special:
        if element.is_complex:
            raise UnsuitableError
        program.add(chance.choice(("maximum", "minimum")), [x, y], like(outer, has_free_bits=True))
    else:
        name = chance.choice(
            ("add", "subtract", "multiply") + (() if element.is_complex else ("maximum", "minimum", "remainder"))
        )
        if name == "remainder":
            if x.error:
                raise UnsuitableError
            program.add(name, [x, program.positive(x.shape, element)], like(x, most=3.0))
        elif name in ("maximum", "minimum"):
            program.add(name, [x, y], like(outer, has_free_bits=True))
        else:
            most = x.most * y.most if name == "multiply" else x.most + y.most
            error = x.error * y.most + y.error * x.most + x.error * y.error if name == "multiply" else x.error + y.error
            error += eps_of(element) * most
            program.add(name, [x, y], like(outer, most=most, error=error, has_free_bits=True))


def _fitted(program: RandomProgram, name: str, y: Value) -> Value:
    """Return second operands for which the specification says what the result is."""
    if name in ("divide", "remainder", "power") or name.startswith("shift"):
        info = ml_dtypes.iinfo(y.element.dtype)  # type: ignore[no-untyped-call]
        numbers = program.numbers(y.shape, y.element).astype(object)
        if name in ("divide", "remainder"):
            fitted = np.where((numbers == 0) | (numbers == -1), 1, numbers)
        elif name == "power":
            fitted = np.mod(numbers, min(int(info.max), 5))
        else:
            fitted = np.mod(numbers, y.element.bits)
        return program.source(y.shape, y.element, numbers=np.asarray(fitted).astype(y.element.dtype).reshape(y.shape))
    return y


@_maker(3)
def _compare(program: RandomProgram) -> None:
    x = program.pick(lambda value: not value.error)
    y = program.another(x.shape, x.element, lambda value: not value.error)
    names = ("EQ", "NE") if x.element.is_complex else ("EQ", "NE", "LT", "LE", "GT", "GE")
    program.add("compare", [x, y], Value("", x.shape, PRED), _direction(program.chance.choice(names)))


def _direction(name: str) -> str:
    return f"comparison_direction = #stablehlo<comparison_direction {name}>"


@_maker(3)
def _choose(program: RandomProgram) -> None:
    x = program.pick(_any)
    y = program.another(x.shape, x.element)
    if program.chance.random() < 0.6 or x.element is PRED or x.element.is_complex:
        where = program.another(x.shape if program.chance.random() < 0.8 else (), PRED)
        program.add("select", [where, x, y], join([x, y], x.shape))
        return
    low, high = sorted(program.numbers((2,), x.element).tolist())
    ends = [
        program.source((), x.element, is_tame=True, numbers=np.array(end).astype(x.element.dtype))
        for end in (low, high)
    ]
    program.add("clamp", [ends[0], x, ends[1]], like(join([*ends, x], x.shape), has_free_bits=True))


@_maker(4)
def _convert(program: RandomProgram) -> None:
    x = program.pick(_any)
    target = program.chance.choice(program.chance.choice((INTEGERS, FLOATS, (PRED,), program.elements[0])))
    element = x.element
    if element.is_complex or target.is_complex or (target is PRED and (x.error or x.is_special)):
        raise UnsuitableError
    if target is PRED:
        program.add("convert", [x], Value("", x.shape, PRED))
    elif target.is_integer:
        if is_float(element):
            info = ml_dtypes.iinfo(target.dtype)  # type: ignore[no-untyped-call]
            if x.error or x.is_special or x.most > int(info.max) or (not info.min and x.most):
                raise UnsuitableError
        program.add("convert", [x], Value("", x.shape, target))
    elif is_float(element):
        if x.is_special and target.bits < element.bits:
            raise UnsuitableError  # numbers between zero and the smallest normal one
        error = x.error + (eps_of(target) * x.most if x.error else 0)
        program.add("convert", [x], like(x, element=target, error=error, most=x.most * (1 + eps_of(target))))
    elif element is PRED or element.bits <= 4:
        program.add("convert", [x], Value("", x.shape, target, 1.0 if element is PRED else 16.0))
    else:
        raise UnsuitableError


@_maker(2)
def _bits(program: RandomProgram) -> None:
    x = program.pick(lambda v: not v.error and not v.has_free_bits and v.element is not PRED)
    if x.element.is_complex or x.is_special:
        raise UnsuitableError
    target = program.chance.choice([each for each in INTEGERS if each.bits <= 2 * x.element.bits])
    shape = x.shape
    if target.bits < x.element.bits:
        shape = (*shape, x.element.bits // target.bits)
    elif target.bits > x.element.bits:
        if not shape or shape[-1] * x.element.bits != target.bits:
            raise UnsuitableError
        shape = shape[:-1]
    program.add("bitcast_convert", [x], Value("", shape, target))


@_maker(1)
def _reduce_precision(program: RandomProgram) -> None:
    x = program.pick(lambda v: is_float(v.element) and v.is_number and not v.error)
    if x.element.bits < 16:
        raise UnsuitableError
    exponent, mantissa = program.chance.choice(((5, 10), (8, 7), (4, 3), (8, 2)))
    attributes = f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32"
    program.add("reduce_precision", [x], like(x, most=x.most * 1.5), attributes)


@_maker(1)
def _parts(program: RandomProgram) -> None:
    x = program.pick(lambda v: v.element in WHOLES and v.is_number)
    y = program.another(x.shape, x.element, lambda v: v.is_number)
    outer = join([x, y], x.shape)
    program.add("complex", [x, y], like(outer, element=WHOLES[x.element], most=2 * outer.most, error=2 * outer.error))


# Operations that move elements.


@_maker(3)
def _reshape(program: RandomProgram) -> None:
    x = program.pick(_any)
    sizes: list[int] = []
    rest = math.prod(x.shape)
    while rest > 1 and len(sizes) < 3:
        divisors = [each for each in range(1, rest + 1) if rest % each == 0][:12]
        sizes.append(program.chance.choice(divisors))
        rest //= sizes[-1]
    program.add("reshape", [x], like(x, (*sizes, rest) if rest != 1 or not sizes else tuple(sizes)))


@_maker(3)
def _transpose(program: RandomProgram) -> None:
    x = program.pick(lambda v: len(v.shape) > 1)
    order = program.chance.sample(range(len(x.shape)), len(x.shape))
    program.add("transpose", [x], like(x, tuple(x.shape[each] for each in order)), f"permutation = {_integers(order)}")


@_maker(3)
def _broadcast(program: RandomProgram) -> None:
    x = program.pick(lambda v: len(v.shape) < 4)
    rank = program.chance.randint(len(x.shape), 4)
    places = program.chance.sample(range(rank), len(x.shape))
    shape = [program.chance.choice((1, 2, 3, 5)) for _ in range(rank)]
    for place, size in zip(places, x.shape, strict=True):
        if size != 1 or program.chance.random() < 0.5:
            shape[place] = size
    if math.prod(shape) > 4 * LARGEST:
        raise UnsuitableError
    program.add("broadcast_in_dim", [x], like(x, tuple(shape)), f"broadcast_dimensions = {_integers(places)}")


@_maker(3)
def _slice(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape))
    starts = [program.chance.randint(0, size) for size in x.shape]
    limits = [program.chance.randint(start, size) for start, size in zip(starts, x.shape, strict=True)]
    steps = [program.chance.choice((1, 1, 2, 3)) for _ in x.shape]
    shape = tuple(-(-(end - start) // step) for start, end, step in zip(starts, limits, steps, strict=True))
    if 0 in shape and program.chance.random() < 0.9:
        raise UnsuitableError
    attributes = (
        f"start_indices = {_integers(starts)}, limit_indices = {_integers(limits)}, strides = {_integers(steps)}"
    )
    program.add("slice", [x], like(x, shape), attributes)


@_maker(3)
def _pad(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape))
    fill = program.another((), x.element)
    low, high = ([program.chance.choice((-2, -1, 0, 0, 1, 2)) for _ in x.shape] for _ in range(2))
    inner = [program.chance.choice((0, 0, 1, 2)) for _ in x.shape]
    shape = tuple(
        max(size + before + after + between * max(size - 1, 0), -1)
        for size, before, after, between in zip(x.shape, low, high, inner, strict=True)
    )
    if min(shape) < 0 or math.prod(shape) > 4 * LARGEST or (0 in shape and program.chance.random() < 0.9):
        raise UnsuitableError
    attributes = (
        f"edge_padding_low = {_integers(low)}, edge_padding_high = {_integers(high)}, "
        f"interior_padding = {_integers(inner)}"
    )
    program.add("pad", [x, fill], join([x, fill], shape), attributes)


@_maker(2)
def _concatenate(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape))
    at = program.chance.randrange(len(x.shape))
    parts = [x]
    for _ in range(program.chance.choice((1, 1, 2))):
        size = program.chance.choice((1, 2, 3, x.shape[at]))
        parts.append(program.another((*x.shape[:at], size, *x.shape[at + 1 :]), x.element))
    shape = (*x.shape[:at], sum(part.shape[at] for part in parts), *x.shape[at + 1 :])
    program.add("concatenate", parts, join(parts, shape), f"dimension = {at} : i64")


@_maker(2)
def _reverse(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape))
    dimensions = program.chance.sample(range(len(x.shape)), program.chance.randint(1, len(x.shape)))
    program.add("reverse", [x], like(x), f"dimensions = {_integers(dimensions)}")


def _index(program: RandomProgram, shape: Shape = ()) -> Value:
    return program.another(shape, program.chance.choice([each for each in INTEGERS if each.bits >= 8]))


@_maker(3)
def _dynamic_slice(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape))
    first = _index(program)
    starts = [first, *(program.another((), first.element) for _ in x.shape[1:])]
    shape = tuple(program.chance.randint(min(size, 1), size) for size in x.shape)
    if program.chance.random() < 0.5:
        program.add("dynamic_slice", [x, *starts], like(x, shape), f"slice_sizes = {_integers(shape)}")
    else:
        update = program.another(shape, x.element)
        program.add("dynamic_update_slice", [x, update, *starts], join([x, update], x.shape))


@_maker(1)
def _iota(program: RandomProgram) -> None:
    shape, element = program.shape(), program.element()
    if not shape or element is PRED or max(shape) > 16 or element.bits < 8:
        raise UnsuitableError
    at = program.chance.randrange(len(shape))
    program.add("iota", [], Value("", shape, element, float(max(shape))), f"iota_dimension = {at} : i64")


@_maker(1)
def _barrier(program: RandomProgram) -> None:
    x, y = program.pick(_any), program.pick(_any)
    program.add_many("optimization_barrier", [x, y], [like(x), like(y)])


@_maker(3)
def _gather(program: RandomProgram) -> None:
    """Gather windows: each index vector has a number for some of the dimensions, in any order."""
    x = program.pick(lambda v: bool(v.shape) and 0 not in v.shape)
    chance, rank = program.chance, len(x.shape)
    places = chance.sample(range(rank), chance.randint(1, rank))
    sizes = [1 if chance.random() < 0.5 else chance.randint(1, size) for size in x.shape]
    collapsed = [place for place in range(rank) if sizes[place] == 1 and chance.random() < 0.6]
    batch = [chance.choice((1, 2, 3)) for _ in range(chance.choice((0, 1, 1, 2)))]
    at = chance.randint(0, len(batch))
    indices = _index(program, (*batch[:at], len(places), *batch[at:]))
    kept = [sizes[place] for place in range(rank) if place not in collapsed]
    offsets = sorted(chance.sample(range(len(batch) + len(kept)), len(kept)))
    rest, windows = iter(batch), iter(kept)
    shape = tuple(next(windows if dimension in offsets else rest) for dimension in range(len(batch) + len(kept)))
    if math.prod(shape) > 4 * LARGEST:
        raise UnsuitableError
    numbers = f"offset_dims = {offsets}, collapsed_slice_dims = {collapsed}, start_index_map = {places}"
    attributes = (
        f"dimension_numbers = #stablehlo.gather<{numbers}, index_vector_dim = {at}>, slice_sizes = {_integers(sizes)}"
    )
    program.add("gather", [x, indices], like(x, shape), attributes)


@_maker(3)
def _scatter(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape) and 0 not in v.shape and v.is_number and not v.error)
    if x.element.is_complex:
        raise UnsuitableError
    chance, rank = program.chance, len(x.shape)
    places = chance.sample(range(rank), chance.randint(1, rank))
    sizes = [1 if chance.random() < 0.5 else chance.randint(1, size) for size in x.shape]
    inserted = [place for place in range(rank) if sizes[place] == 1 and chance.random() < 0.6]
    batch = [chance.choice((1, 2, 3)) for _ in range(chance.choice((0, 1, 1, 2)))]
    at = chance.randint(0, len(batch))
    indices = _index(program, (*batch[:at], len(places), *batch[at:]))
    kept = [sizes[place] for place in range(rank) if place not in inserted]
    windows = sorted(chance.sample(range(len(batch) + len(kept)), len(kept)))
    rest, left = iter(batch), iter(kept)
    shape = tuple(next(left if dimension in windows else rest) for dimension in range(len(batch) + len(kept)))
    updates = program.another(shape, x.element, lambda v: v.is_number and not v.error)
    reducer = chance.choice(("add", "maximum", "minimum") + (("and", "or", "multiply") if x.element.is_integer else ()))
    outer = join([x, updates], x.shape)
    if not x.element.is_integer:
        count = math.prod(batch) + 1
        most = count * outer.most if reducer == "add" else outer.most
        error = count * most * eps_of(x.element) if reducer == "add" else 0.0
        outer = like(outer, most=most, error=error, has_free_bits=True)
    numbers = (
        f"update_window_dims = {windows}, inserted_window_dims = {inserted}, "
        f"scatter_dims_to_operand_dims = {places}, index_vector_dim = {at}"
    )
    attributes = f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>"
    program.add("scatter", [x, indices, updates], outer, attributes, _region(reducer, x.element))


# Reductions, windows, products.


def _reducer(program: RandomProgram, x: Value) -> tuple[str, Value]:
    """Return the name of a reducer for a value, and a constant of its neutral element."""
    element = x.element
    names = ["add", "multiply"] if x.is_number else []
    if not element.is_complex:
        names += ["maximum", "minimum"]
    if element.is_integer or element is PRED:
        names += ["and", "or", "xor"]
    if not (element.is_integer or element is PRED) and "multiply" in names:
        names.remove("multiply")
    if element is PRED:
        names = ["and", "or"]
    name = program.chance.choice(names)
    if name in ("add", "or", "xor"):
        neutral = np.zeros((), element.dtype)
    elif name == "multiply":
        neutral = np.ones((), element.dtype)
    elif name == "and":
        neutral = np.array(True) if element is PRED else (~np.zeros((1,), np.int64)).astype(element.dtype)[0]
    elif element.is_integer:
        info = ml_dtypes.iinfo(element.dtype)  # type: ignore[no-untyped-call]
        neutral = np.array(info.min if name == "maximum" else info.max).astype(element.dtype)
    else:
        most = -float(info_of(element).max) if not x.is_special else -math.inf
        neutral = np.array(most if name == "maximum" else -most).astype(element.dtype)
        if x.is_special and not np.isinf(neutral.astype(np.float64)):
            raise UnsuitableError
    return name, program.source((), element, numbers=np.asarray(neutral))


def _reduced(x: Value, shape: Shape, name: str, count: int) -> Value:
    if x.element is PRED or x.element.is_integer:
        return like(x, shape)
    if name == "add":
        most = count * x.most
        return like(x, shape, most=most, error=count * x.error + count * most * eps_of(x.element), has_free_bits=True)
    return like(x, shape, has_free_bits=True)


@_maker(4)
def _reduce(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape) and 0 not in v.shape)
    dimensions = sorted(program.chance.sample(range(len(x.shape)), program.chance.randint(1, len(x.shape))))
    name, neutral = _reducer(program, x)
    shape = tuple(size for place, size in enumerate(x.shape) if place not in dimensions)
    count = math.prod(x.shape[place] for place in dimensions)
    program.add(
        "reduce",
        [x, neutral],
        _reduced(x, shape, name, count),
        f"dimensions = {_integers(dimensions)}",
        _region(name, x.element),
    )


@_maker(3)
def _reduce_window(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape) and 0 not in v.shape)
    chance = program.chance
    window = [chance.choice((1, 2, 2, 3)) for _ in x.shape]
    steps, dilations, bases = ([chance.choice((1, 1, 2)) for _ in x.shape] for _ in range(3))
    bases = [chance.choice((1, 1, 1, 2)) for _ in x.shape]
    padding = [(chance.choice((0, 0, 1, 2)), chance.choice((0, 0, 1, 2))) for _ in x.shape]
    shape = []
    for size, wide, step, apart, base, (low, high) in zip(
        x.shape, window, steps, dilations, bases, padding, strict=True
    ):
        room = (size - 1) * base + 1 + low + high - ((wide - 1) * apart + 1)
        if room < 0:
            raise UnsuitableError
        shape.append(room // step + 1)
    if math.prod(shape) > 4 * LARGEST:
        raise UnsuitableError
    name, neutral = _reducer(program, x)
    attributes = (
        f"window_dimensions = {_integers(window)}, window_strides = {_integers(steps)}, "
        f"base_dilations = {_integers(bases)}, window_dilations = {_integers(dilations)}, "
        f"padding = dense<{[list(pair) for pair in padding]}> : tensor<{len(padding)}x2xi64>"
    )
    outer = _reduced(x, tuple(shape), name, math.prod(window))
    if name in ("maximum", "minimum") and is_float(x.element) and not x.is_special:
        outer = like(outer, is_special=True, most=0.0)  # windows of padding alone have the neutral element
    if outer.is_special and outer.error:
        raise UnsuitableError
    program.add("reduce_window", [x, neutral], outer, attributes, _region(name, x.element))


@_maker(2)
def _sort(program: RandomProgram) -> None:
    x = program.pick(lambda v: bool(v.shape) and not v.error and not v.has_free_bits)
    if x.element is PRED or x.element.is_complex:
        raise UnsuitableError
    others = [program.pick(lambda v: v.shape == x.shape) for _ in range(program.chance.choice((0, 1, 1, 2)))]
    at, direction = program.chance.randrange(len(x.shape)), program.chance.choice(("LT", "GT"))
    arguments = []
    for number, value in enumerate([x, *others]):
        scalar = tensor((), value.element)
        arguments += [f"%l{number}: {scalar}", f"%r{number}: {scalar}"]
    scalar = tensor((), x.element)
    order = ", compare_type = #stablehlo<comparison_type TOTALORDER>" if is_float(x.element) else ""
    region = (
        f"({{ ^bb0({', '.join(arguments)}): "
        f'%o = "stablehlo.compare"(%l0, %r0) <{{{_direction(direction)}{order}}}> : ({scalar}, {scalar}) -> tensor<i1> '
        '"stablehlo.return"(%o) : (tensor<i1>) -> () })'
    )
    operands = [x, *others]
    program.add_many(
        "sort", operands, [like(each) for each in operands], f"dimension = {at} : i64, is_stable = true", region
    )


@_maker(1)
def _arg_max(program: RandomProgram) -> None:
    """A reduction of pairs: the first of the largest elements, and its index."""
    x = program.pick(lambda v: bool(v.shape) and 0 not in v.shape and v.is_number and not v.error)
    if x.element.is_complex:
        raise UnsuitableError
    at = program.chance.randrange(len(x.shape))
    index = Value("", x.shape, ElementType.S32)
    places = program.add("iota", [], index, f"iota_dimension = {at} : i64")
    if is_float(x.element):
        least = np.array(-float(info_of(x.element).max)).astype(x.element.dtype)
    else:
        least = np.array(ml_dtypes.iinfo(x.element.dtype).min).astype(x.element.dtype)  # type: ignore[no-untyped-call]
    starts = [
        program.source((), x.element, numbers=least),
        program.source((), ElementType.S32, numbers=np.array(0, np.int32)),
    ]
    one, two = tensor((), x.element), "tensor<i32>"
    region = (
        f"({{ ^bb0(%a: {one}, %b: {two}, %c: {one}, %d: {two}): "
        f'%g = "stablehlo.compare"(%a, %c) <{{{_direction("GT")}}}> : ({one}, {one}) -> tensor<i1> '
        f'%e = "stablehlo.compare"(%a, %c) <{{{_direction("EQ")}}}> : ({one}, {one}) -> tensor<i1> '
        f'%f = "stablehlo.compare"(%b, %d) <{{{_direction("LT")}}}> : ({two}, {two}) -> tensor<i1> '
        "%h = stablehlo.and %e, %f : tensor<i1> %i = stablehlo.or %g, %h : tensor<i1> "
        f"%m = stablehlo.select %i, %a, %c : tensor<i1>, {one} %n = stablehlo.select %i, %b, %d : tensor<i1>, {two} "
        f'"stablehlo.return"(%m, %n) : ({one}, {two}) -> () }})'
    )
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    program.add_many(
        "reduce",
        [x, places, *starts],
        [like(x, shape, has_free_bits=True), like(index, shape)],
        f"dimensions = {_integers([at])}",
        region,
    )


def _product(x: Value, y: Value, shape: Shape, count: int) -> Value:
    if x.element.is_integer:
        return join([x, y], shape)
    most = max(count, 1) * x.most * y.most
    error = count * (x.error * y.most + y.error * x.most + x.error * y.error) + (count + 1) * eps_of(x.element) * most
    return like(join([x, y], shape), most=most, error=error, has_free_bits=True)


@_maker(4)
def _dot(program: RandomProgram) -> None:
    x = program.pick(lambda v: v.is_number and bool(v.shape))
    chance, rank = program.chance, len(x.shape)
    places = chance.sample(range(rank), rank)
    batch = places[: chance.choice((0, 0, 1))]
    contracted = [place for place in places[len(batch) :] if chance.random() < 0.6]
    free = [chance.choice((1, 2, 3, 5)) for _ in range(chance.choice((0, 1, 1, 2)))]
    pieces = (
        [("b", place) for place in batch]
        + [("c", place) for place in contracted]
        + [("f", n) for n in range(len(free))]
    )
    chance.shuffle(pieces)
    other = tuple(free[n] if kind == "f" else x.shape[n] for kind, n in pieces)
    y = program.another(other, x.element, lambda v: v.is_number)
    where = {piece: place for place, piece in enumerate(pieces)}
    rest = [n for kind, n in pieces if kind == "f"]
    shape = (
        *(x.shape[place] for place in batch),
        *(x.shape[place] for place in range(rank) if place not in (*batch, *contracted)),
        *(free[n] for n in rest),
    )
    if math.prod(shape) > 4 * LARGEST or len(shape) > 6:
        raise UnsuitableError
    numbers = (
        f"lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {[where['b', each] for each in batch]}, "
        f"lhs_contracting_dimensions = {contracted}, "
        f"rhs_contracting_dimensions = {[where['c', each] for each in contracted]}"
    )
    count = math.prod(x.shape[place] for place in contracted)
    program.add(
        "dot_general", [x, y], _product(x, y, shape, count), f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
    )


@_maker(2)
def _convolution(program: RandomProgram) -> None:
    chance = program.chance
    x = program.pick(lambda v: v.is_number and len(v.shape) >= 2 and 0 not in v.shape)
    rank = len(x.shape) - 2
    letters = ["b", "f", *map(str, range(rank))]
    chance.shuffle(letters)
    sizes = dict(zip(letters, x.shape, strict=True))
    groups = chance.choice([n for n in (1, 1, 2, 3) if sizes["f"] % n == 0])
    batches = chance.choice([n for n in (1, 1, 2) if sizes["b"] % n == 0]) if groups == 1 else 1
    kernel = {"i": sizes["f"] // groups, "o": chance.choice((1, 2)) * groups * batches}
    steps, lefts, rights = ([chance.choice((1, 1, 2)) for _ in range(rank)] for _ in range(3))
    padding = [[chance.choice((-1, 0, 0, 1, 2)), chance.choice((-1, 0, 0, 1, 2))] for _ in range(rank)]
    flipped = [chance.random() < 0.2 for _ in range(rank)]
    outer = {"b": sizes["b"] // batches, "f": kernel["o"]}
    for place in range(rank):
        kernel[str(place)] = chance.choice((1, 2, 3))
        base = (sizes[str(place)] - 1) * lefts[place] + 1 + sum(padding[place])
        room = base - ((kernel[str(place)] - 1) * rights[place] + 1)
        if room < 0 or base < 1:
            raise UnsuitableError
        outer[str(place)] = room // steps[place] + 1
    kernels, outers = list(kernel), list(outer)
    chance.shuffle(kernels)
    chance.shuffle(outers)
    y = program.another(tuple(kernel[each] for each in kernels), x.element, lambda v: v.is_number)
    numbers = f"[{', '.join(letters)}]x[{', '.join(kernels)}]->[{', '.join(outers)}]"
    attributes = (
        f"dimension_numbers = #stablehlo.conv<{numbers}>, feature_group_count = {groups} : i64, "
        f"batch_group_count = {batches} : i64, window_strides = {_integers(steps)}, "
        f"lhs_dilation = {_integers(lefts)}, rhs_dilation = {_integers(rights)}"
    )
    if rank:
        attributes += f", padding = dense<{padding}> : tensor<{rank}x2xi64>"
        attributes += f", window_reversal = array<i1: {', '.join(str(each).lower() for each in flipped)}>"
    count = math.prod(size for letter, size in kernel.items() if letter != "o")
    result = _product(x, y, tuple(outer[each] for each in outers), count)
    program.add("convolution", [x, y], result, attributes)


# Control flow, random bits.


@_maker(2)
def _loop(program: RandomProgram) -> None:
    """A loop with a counter: integers that grow, or floats that stay small."""
    x = program.pick(lambda v: v.element.is_integer or (is_float(v.element) and v.is_number and not v.error))
    y = program.another(x.shape, x.element, lambda v: v.is_number)
    count = program.chance.choice((0, 1, 2, 5))
    if x.element.is_integer:
        name, outer = program.chance.choice(("add", "multiply", "xor", "subtract")), like(x)
    else:
        name, outer = program.chance.choice(("maximum", "minimum")), like(join([x, y], x.shape), has_free_bits=True)
    start = program.source((), ElementType.S32, numbers=np.array(0, np.int32))
    kind = x.type
    region = (
        f"({{ ^bb0(%i: tensor<i32>, %s: {kind}): %n = stablehlo.constant dense<{count}> : tensor<i32> "
        f'%p = "stablehlo.compare"(%i, %n) <{{{_direction("LT")}}}> : (tensor<i32>, tensor<i32>) -> tensor<i1> '
        '"stablehlo.return"(%p) : (tensor<i1>) -> () }, {'
        f" ^bb0(%i: tensor<i32>, %s: {kind}): %n = stablehlo.constant dense<1> : tensor<i32> "
        f"%j = stablehlo.add %i, %n : tensor<i32> %t = stablehlo.{name} %s, {y.name} : {kind} "
        f'"stablehlo.return"(%j, %t) : (tensor<i32>, {kind}) -> () }})'
    )
    program.used.add(y.name)
    program.add_many("while", [start, x], [Value("", (), ElementType.S32), outer], "", region)


@_maker(1)
def _branch(program: RandomProgram) -> None:
    """An `if` or a `case`, whose index may be out of range."""
    x = program.pick(_any)
    branches = [x, *(program.another(x.shape, x.element) for _ in range(program.chance.choice((1, 1, 2))))]
    name, index = "case", program.another((), ElementType.S32)
    if len(branches) == 2 and program.chance.random() < 0.7:
        name, index = "if", program.another((), PRED)
    region = ", ".join(f'{{ "stablehlo.return"({each.name}) : ({each.type}) -> () }}' for each in branches)
    program.used.update(each.name for each in branches)
    program.add(name, [index], join(branches, x.shape), "", f"({region})")


@_maker(1)
def _random_bits(program: RandomProgram) -> None:
    element = program.chance.choice([each for each in INTEGERS if each.bits >= 8])
    state = program.another((2,), ElementType.U64)
    program.add_many(
        "rng_bit_generator",
        [state],
        [like(state), Value("", program.shape(), element)],
        "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>",
    )

"""Time each operation of the reference device against the StableHLO project's interpreter in C++, on 65,536 elements.

The operations are those that the interpreter in C++ has: it lacks some, such as ``rng_bit_generator``.
"""

from __future__ import annotations

import math
import os
import time
import tracemalloc
from collections.abc import Iterator, Sequence

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: the time of all threads counts

import numpy as np

import pjrt
from benchmarks.reference import OURS, THEIRS, Case, ours, theirs
from benchmarks.side_by_side import Aim, Report, duration, main, mean_seconds, table, take_turns
from pjrt.api.element_type import ElementType

SIDE = 256
SIDE_OF_LARGE = 1536
"""The side of arrays whose memory is measured: against smaller ones, the memory of one block counts."""

_SLOWEST = 50
_MOST = 1.5

_FLOATS, _INTEGERS, _COMPLEX = "f32 f64 bf16 f16 f8E4M3FN", "i32 i8 ui64 i4", "complex<f32>"
_ELEMENTWISE = {
    "abs cbrt ceil floor round_nearest_afz round_nearest_even": (1, _FLOATS),
    "cosine exponential exponential_minus_one log log_plus_one logistic negate rsqrt sign sine sqrt tan tanh": (
        1,
        f"{_FLOATS} {_COMPLEX}",
    ),
    "maximum minimum remainder": (2, _FLOATS),
    "add atan2 divide multiply power subtract": (2, f"{_FLOATS} {_COMPLEX}"),
    "count_leading_zeros negate not popcnt": (1, _INTEGERS),
    "add and divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic shift_right_logical "
    "subtract xor": (2, _INTEGERS),
    "not": (1, "i1"),
    "and or xor": (2, "i1"),
}
_CONVERSIONS = "f32-i32 i32-f32 f32-bf16 bf16-f32 f32-f8E4M3FN i8-i32 i32-i4 f64-f32 i1-f32 f32-i1 f32-complex<f32>"
_REDUCERS = {
    "add": "%c = stablehlo.add %a, %b : tensor<{e}>",
    "maximum": "%c = stablehlo.maximum %a, %b : tensor<{e}>",
    "a body of two operations": "%d = stablehlo.abs %b : tensor<{e}> %c = stablehlo.maximum %a, %d : tensor<{e}>",
}
_COMPARISON = "%c = stablehlo.compare {direction}, %a, %b{total} : (tensor<{e}>, tensor<{e}>) -> tensor<i1>"


def cases(side: int) -> Iterator[Case]:
    """Return a program of each operation, on arrays of about ``side`` × ``side`` elements."""
    yield from _elementwise(side)
    yield from _conversions(side)
    yield from _movements(side)
    yield from _indexing(side)
    yield from _reductions(side)
    yield from _sorts(side)
    yield from _products(side)
    yield from _control_flow(side)


def _elementwise(side: int) -> Iterator[Case]:
    for names, (count, elements) in _ELEMENTWISE.items():
        for name in names.split():
            for element in elements.split():
                arguments = [_values(element, side, side, seed=seed) for seed in range(count)]
                yield _case(f"{name} {element}", name, arguments, _type(element, side, side))
    for element in ("f32", "bf16", "i32", _COMPLEX):
        t, p = _type(element, side, side), _type("i1", side, side)
        x, y = (_values(element, side, side, seed=seed) for seed in range(2))
        yield _case(f"select {element}", "select", [_values("i1", side, side), x, y], t)
        direction = "EQ" if element == _COMPLEX else "LT"
        attribute = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        yield _case(f"compare {element}", "compare", [x, y], p, attribute)
        if element != _COMPLEX:
            yield _case(f"clamp {element}", "clamp", [np.minimum(x, y), x, np.maximum(x, y)], t)
        if element in ("f32", "bf16"):
            yield _case(f"is_finite {element}", "is_finite", [x], p)
            attribute += ", compare_type = #stablehlo<comparison_type TOTALORDER>"
            yield _case(f"compare {element} in total order", "compare", [x, y], p, attribute)
    x, y = (_values("f32", side, side, seed=seed) for seed in range(2))
    yield _case("complex", "complex", [x, y], _type(_COMPLEX, side, side))
    for name in ("real", "imag"):
        yield _case(name, name, [_values(_COMPLEX, side, side)], _type("f32", side, side))


def _conversions(side: int) -> Iterator[Case]:
    for pair in _CONVERSIONS.split():
        source, target = pair.split("-")
        x = _values(source, side, side)
        yield _case(f"convert {source} to {target}", "convert", [x], _type(target, side, side))
    for source, target, shape, result in (
        ("f32", "i32", (side, side), (side, side)),
        ("f32", "i8", (side, side), (side, side, 4)),
        ("i8", "i16", (side, side, 2), (side, side)),
    ):
        name = f"bitcast_convert {source} to {target}"
        yield _case(name, "bitcast_convert", [_values(source, *shape)], _type(target, *result))
    x, t = _values("f32", side, side), _type("f32", side, side)
    yield _case("reduce_precision", "reduce_precision", [x], t, "exponent_bits = 5 : i32, mantissa_bits = 10 : i32")
    q = _type("!quant.uniform<i8:f32, 0.02:3>", side, side)
    quantize, back = f'"stablehlo.uniform_quantize"(%0) : ({t}) -> {q}', f"({q}) -> {t}"
    body = f'%q = {quantize}\n  %r = "stablehlo.uniform_dequantize"(%q) : {back}'
    yield Case("uniform_quantize, uniform_dequantize", _program([t], t, body), (x,))


def _movements(side: int) -> Iterator[Case]:
    half = side // 2
    for element in ("f32", "bf16", "i4"):
        x, t = _values(element, side, side), _type(element, side, side)
        both = "dimensions = array<i64: 0, 1>"
        slices = f"start_indices = array<i64: 0, 1>, limit_indices = array<i64: {side}, {half + 1}>"
        edges = "edge_padding_low = array<i64: 1, 1>, edge_padding_high = array<i64: 1, 2>"
        for name, arguments, result, attributes in (
            ("transpose", [x], t, "permutation = array<i64: 1, 0>"),
            ("reshape", [x], _type(element, side * side), ""),
            ("reverse", [x], t, both),
            ("slice", [x], _type(element, half, half), f"{slices}, strides = array<i64: 2, 1>"),
            ("concatenate", [x, x], _type(element, 2 * side, side), "dimension = 0 : i64"),
            ("broadcast_in_dim", [x[0]], t, "broadcast_dimensions = array<i64: 1>"),
            (
                "pad",
                [x, x[0, 0]],
                _type(element, 2 * side + 1, side + 3),
                f"{edges}, interior_padding = array<i64: 1, 0>",
            ),
        ):
            yield _case(f"{name} {element}", name, arguments, result, attributes)
    yield _case("iota", "iota", [], _type("i32", side, side), "iota_dimension = 1 : i64")


def _indexing(side: int) -> Iterator[Case]:
    random, half = np.random.default_rng(0), side // 2
    x, t, start = _values("f32", side, side), _type("f32", side, side), np.int32(3)
    sizes = f"slice_sizes = array<i64: {half}, {half}>"
    yield _case("dynamic_slice", "dynamic_slice", [x, start, start], _type("f32", half, half), sizes)
    update = _values("f32", half, half)
    yield _case("dynamic_update_slice", "dynamic_update_slice", [x, update, start, start], t)
    rows = random.integers(0, side, (side, 1), dtype=np.int32)
    pairs = random.integers(0, side, (side * side, 2), dtype=np.int32)
    for what, indices, result, width, gathered, scattered in (
        (
            "rows",
            rows,
            t,
            side,
            "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0]",
            "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]",
        ),
        (
            "elements",
            pairs,
            _type("f32", side * side),
            1,
            "collapsed_slice_dims = [0, 1], start_index_map = [0, 1]",
            "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1]",
        ),
    ):
        numbers = f"dimension_numbers = #stablehlo.gather<{gathered}, index_vector_dim = 1>"
        attributes = f"{numbers}, slice_sizes = array<i64: 1, {width}>"
        yield _case(f"gather of {what}", "gather", [x, indices], result, attributes)
        numbers = f"scatter_dimension_numbers = #stablehlo.scatter<{scattered}, index_vector_dim = 1>"
        updates = x if what == "rows" else x.reshape(-1)
        for name in ("add", "a body of two operations"):
            region = _region(_REDUCERS[name], "f32")
            yield _case(f"scatter of {what}, {name}", "scatter", [x, indices, updates], t, numbers, region)


def _reductions(side: int) -> Iterator[Case]:
    for element in ("f32", "bf16", "i32"):
        x, t, row = _values(element, side, side), _type(element, side, side), _type(element, side)
        zero = np.zeros((), x.dtype)
        for name, body in _REDUCERS.items():
            region = _region(body, element)
            for dimension in (0, 1):
                attribute = f"dimensions = array<i64: {dimension}>"
                yield _case(f"reduce {element} along {dimension}, {name}", "reduce", [x, zero], row, attribute, region)
            window = "window_dimensions = array<i64: 3, 3>, padding = dense<1> : tensor<2x2xi64>"
            yield _case(f"reduce_window {element}, {name}", "reduce_window", [x, zero], t, window, region)
        region = _region(_REDUCERS["add"], element).replace(f", %b: tensor<{element}>", "").replace("%b", "%a")
        yield _case(f"map {element}", "map", [x], t, "dimensions = array<i64: 0, 1>", region)
    select = _region(_COMPARISON.format(direction="GE", total="", e="f32"), "f32", "i1")
    regions = f"{select[:-1]}, {_region(_REDUCERS['add'], 'f32')[1:]}"
    window = "window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>"
    arguments = [_values("f32", side, side), _values("f32", side // 2, side // 2), np.float32(0)]
    yield _case("select_and_scatter", "select_and_scatter", arguments, _type("f32", side, side), window, regions)


def _sorts(side: int) -> Iterator[Case]:
    for element, total in (("f32", ""), ("f32", ", TOTALORDER"), ("bf16", ""), ("bf16", ", TOTALORDER"), ("i32", "")):
        region = _region(_COMPARISON.format(direction="LT", total=total, e=element), element, "i1")
        for dimension in (0, 1):
            name = f"sort {element} along {dimension}{' in total order' if total else ''}"
            attributes = f"dimension = {dimension} : i64, is_stable = true"
            arguments = [_values(element, side, side)]
            yield _case(name, "sort", arguments, _type(element, side, side), attributes, region)
    body = (
        "%d = stablehlo.multiply %a, %b : tensor<f32> %e = stablehlo.add %a, %d : tensor<f32> "
        "%f = stablehlo.add %b, %d : tensor<f32> "
        "%c = stablehlo.compare LT, %e, %f : (tensor<f32>, tensor<f32>) -> tensor<i1>"
    )
    region, x = _region(body, "f32", "i1"), _values("f32", side, side)
    attributes = "dimension = 1 : i64, is_stable = true"
    yield _case("sort f32, a comparator without keys", "sort", [x], _type("f32", side, side), attributes, region)


def _products(side: int) -> Iterator[Case]:
    half = side // 2
    for element in ("f32", "bf16", "i32", "i8", _COMPLEX):
        numbers = "#stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>"
        attribute = f"dot_dimension_numbers = {numbers}"
        arguments = [_values(element, side, side), _values(element, side)]
        name = f"dot_general {element}, matrix and vector"
        yield _case(name, "dot_general", arguments, _type(element, side), attribute)
        arguments = [_values(element, half, half, seed=seed) for seed in range(2)]
        yield _case(f"dot_general {element}, matrices", "dot_general", arguments, _type(element, half, half), attribute)
    for element in ("f32", "bf16", "i32"):
        shape = (1, half // 2, half // 2, 8)
        attributes = (
            "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, "
            "padding = dense<1> : tensor<2x2xi64>, batch_group_count = 1 : i64, feature_group_count = 1 : i64"
        )
        arguments = [_values(element, *shape), _values(element, 3, 3, 8, 8)]
        yield _case(f"convolution {element}", "convolution", arguments, _type(element, *shape), attributes)


def _control_flow(side: int) -> Iterator[Case]:
    x, t = _values("f32", side, side), _type("f32", side, side)
    branch = f"{{ %c = stablehlo.tanh %1 : {t} stablehlo.return %c : {t} }}"
    for name, chosen in (("if", np.True_), ("case", np.int32(0))):
        types = [_type("i1" if name == "if" else "i32"), t]
        body = f'%r = "stablehlo.{name}"(%0) ({branch}, {branch}) : ({types[0]}) -> {t}'
        yield Case(name, _program(types, t, body), (np.asarray(chosen), x))
    body = f"""%n = stablehlo.constant dense<4> : tensor<i32>
  %w:2 = stablehlo.while(%v = %1, %i = %0) : {t}, tensor<i32> cond {{
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %j = stablehlo.add %i, %i : tensor<i32>
    %u = stablehlo.tanh %v : {t}
    stablehlo.return %u, %j : {t}, tensor<i32>
  }}
  %r = stablehlo.optimization_barrier %w#0 : {t}"""
    yield Case("while", _program(["tensor<i32>", t], t, body), (np.asarray(np.int32(1)), x))


def _case(
    name: str, operation: str, arguments: Sequence[np.ndarray], result: str, attributes: str = "", regions: str = ""
) -> Case:
    """Return the program of one operation, in MLIR's generic form."""
    types = [_type(ElementType.of(x.dtype).mlir, *x.shape) for x in arguments]
    operands = ", ".join(f"%{number}" for number in range(len(types)))
    body = f'%r = "stablehlo.{operation}"({operands}) {regions} {{{attributes}}} : ({", ".join(types)}) -> {result}'
    if _COMPLEX in result:  # jaxlib cannot return complex numbers from the interpreter in C++
        real = result.replace(_COMPLEX, "f32")
        body = f"{body.replace('%r', '%z', 1)}\n  %r = stablehlo.real %z : ({result}) -> {real}"
        result = real
    return Case(name, _program(types, result, body), tuple(map(np.asarray, arguments)))


def _program(types: Sequence[str], result: str, body: str) -> str:
    parameters = ", ".join(f"%{number}: {type_}" for number, type_ in enumerate(types))
    return f"func.func @main({parameters}) -> {result} {{\n  {body}\n  return %r : {result}\n}}"


def _region(body: str, element: str, result: str | None = None) -> str:
    """Return a region of two scalars, of which ``%c`` is the result."""
    type_ = f"tensor<{element}>"
    return f"({{ ^bb0(%a: {type_}, %b: {type_}): {body.format(e=element)} {_returned(result or element)} }})"


def _returned(element: str) -> str:
    return f"stablehlo.return %c : tensor<{element}>"


def _type(element: str, *shape: int) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def _values(element: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers between 0 and 1, or between 1 and 7 if they are integers."""
    random, type_ = np.random.default_rng(seed), ElementType.from_mlir(element)
    if type_ is ElementType.PRED:
        return random.integers(0, 2, shape).astype(bool)
    if type_.is_integer:
        return random.integers(1, 8, shape).astype(type_.dtype)
    numbers = random.uniform(0.01, 1, shape)
    return (numbers + 1j * random.uniform(0.01, 1, shape) if type_.is_complex else numbers).astype(type_.dtype)


def memory(case: Case) -> float:
    """Return the bytes of arrays at most, divided by those of the live ones: arguments and results among them."""
    client = pjrt.client("reference")
    executable = client.compile(case.text)
    buffers = [client.buffer_from_host(array) for array in case.arguments]
    executable(*buffers)[0].ready().result()
    tracemalloc.start()
    (result,) = executable(*buffers)
    result.ready().result()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    inputs = sum(buffer.on_device_size for buffer in buffers)
    # Views are no live arrays, until a program returns them.
    live = max(inputs + result.on_device_size, executable.memory_stats().peak_memory_in_bytes)
    return round((inputs + peak) / live, 2)


def measure(quick: bool) -> Report:
    """Compare each operation of the reference device with the StableHLO project's interpreter."""
    report = Report(
        "Operations of the reference device",
        f"Each operation on {SIDE} × {SIDE} elements, as in the comparison of whole programs: from buffers to a ready "
        "result, beside `stablehlo.eval_module`. In seconds of the processor, which other work hardly changes. The "
        "slowest come first. Memory is that of all arrays at most, of that of the live ones, on "
        f"{SIDE_OF_LARGE} × {SIDE_OF_LARGE} elements.",
    )
    rows, large = [], {case.name: case for case in cases(32 if quick else SIDE_OF_LARGE)}
    for case in list(cases(32))[::40] if quick else cases(SIDE):
        mine = take_turns({OURS: ours(case)}, rounds=5, round_seconds=0.005, clock=time.process_time)[OURS].median
        other = mean_seconds(theirs(case), 1, time.process_time)
        rows.append((other / mine, case.name, mine, other, memory(large.pop(case.name))))
    rows.sort()
    lines = [
        (name, duration(mine), duration(other), f"{ratio:,.0f}×", f"{held:.2f}×")
        for ratio, name, mine, other, held in rows
    ]
    report.tables.append(table(["", OURS, THEIRS, "faster by", "memory"], lines))
    mean = math.exp(sum(math.log(row[0]) for row in rows) / len(rows))
    report.tables.append(f"The geometric mean is {mean:,.0f}×.")
    slow = [name for ratio, name, *_ in rows if ratio < _SLOWEST]
    reason = f"{len(slow)} of {len(rows)} are below: {', '.join(slow)}."
    report.aims.append(Aim(f"no operation below {_SLOWEST}×", rows[0][0], _SLOWEST, at_least=True, reason=reason))
    above = [f"{name} {held:.2f}" for _, name, *_, held in rows if held > _MOST]
    worst = max(held for *_, held in rows)
    report.aims.append(Aim(f"memory at most {_MOST}× of the live arrays", worst, _MOST, reason=f"{', '.join(above)}."))
    return report


if __name__ == "__main__":
    main(measure)

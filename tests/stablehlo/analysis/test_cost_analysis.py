"""The cost of programs, against XLA's own cost analysis of the same programs before it optimizes them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

from pjrt import InvalidArgumentError, Program, UnimplementedError, stablehlo
from pjrt.stablehlo.encodings import jaxlib

Numbers = tuple[int, int, int]


@functools.cache
def _client() -> Any:
    return jaxlib.load("_jax", "test").get_tfrt_cpu_client(asynchronous=False, num_devices=1)


def xla(text: str) -> Numbers:
    """XLA's FLOPs, transcendentals and bytes of a program."""
    jax_ = jaxlib.load("_jax", "test")
    classes = jax_ if hasattr(jax_, "HloModule") else jaxlib.load("_hlo", "test")
    module = classes.HloModule.from_serialized_hlo_module_proto(stablehlo.to_hlo(Program.of(text)).code)
    counts = jax_.hlo_module_cost_analysis(_client(), module)
    return tuple(int(counts.get(key, 0)) for key in ("flops", "transcendentals", "bytes accessed"))  # type: ignore[return-value]


def ours(text: str) -> Numbers:
    cost = stablehlo.cost(text)
    return cost.flops, cost.transcendentals, cost.bytes_accessed


def lowered(function: Any, *arguments: Any) -> str:
    return str(jax.jit(function).lower(*arguments).as_text())


def zeros(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


UNARY = """abs cbrt ceil cosine exponential exponential_minus_one floor log log_plus_one logistic negate
    round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh"""
BINARY = "add atan2 divide maximum minimum multiply power remainder subtract"
sizes = st.lists(st.integers(1, 7), max_size=3)


@settings(max_examples=25)
@given(name=st.sampled_from(f"{UNARY} {BINARY}".split()), shape=sizes, element=st.sampled_from(["f32", "f64", "bf16"]))
def test_elementwise_as_xla(name: str, shape: list[int], element: str) -> None:
    type_ = f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"
    operands = "%a, %b" if name in BINARY.split() else "%a"
    text = f"""func.func @main(%a: {type_}, %b: {type_}) -> {type_} {{
      %0 = stablehlo.{name} {operands} : {type_}
      return %0 : {type_}
    }}"""
    assert ours(text) == xla(text)


@settings(max_examples=15)
@given(batch=st.integers(1, 3), m=st.integers(1, 6), k=st.integers(1, 6), n=st.integers(1, 6))
def test_products_as_xla(batch: int, m: int, k: int, n: int) -> None:
    text = lowered(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), zeros(batch, m, k), zeros(batch, k, n))
    assert ours(text) == xla(text)
    assert ours(text)[0] == 2 * batch * m * n * k


@settings(max_examples=40)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(*[st.tuples(st.integers(-1, 4), st.integers(-1, 4))] * 2),
    base=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
)
def test_convolutions_as_xla(
    size: Any, kernel: Any, stride: Any, padding: Any, base: Any, window: Any, groups: tuple[int, int]
) -> None:
    for d in range(2):
        padded = (size[d] - 1) * base[d] + 1 + sum(padding[d])
        assume(padded >= (kernel[d] - 1) * window[d] + 1)
    text = lowered(
        lambda x, w: lax.conv_general_dilated(
            x, w, stride, padding, base, window, feature_group_count=groups[0], batch_group_count=groups[1]
        ),
        zeros(2, 4, *size),
        zeros(6, 4 // groups[0], *kernel),
    )
    assert ours(text) == xla(text)


PROGRAMS: dict[str, tuple[Any, ...]] = {
    "branches": (
        lambda p, x: lax.cond(p, lambda x: x @ x.T, lambda x: jnp.tanh(x) @ x.T, x),
        zeros(dtype=jnp.bool_),
        zeros(4, 8),
    ),
    "cumulative sum": (lambda x: jnp.cumsum(x, axis=1), zeros(4, 8)),
    "erf": (jax.scipy.special.erf, zeros(4, 8)),
    "fft": (jnp.fft.fft2, zeros(3, 4, 8, dtype=jnp.complex64)),
    "gather": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), zeros(9, 8), zeros(3, dtype=jnp.int32)),
    "loop of unknown length": (
        lambda x: lax.while_loop(lambda v: v.sum() < 10, lambda v: v @ v, x),
        zeros(8, 8),
    ),
    "map of a reduction": (lambda x: lax.reduce(x, 1.0, lambda a, b: jnp.tanh(a * b), (0,)), zeros(4, 8)),
    "maximum in windows": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"),
        zeros(4, 8),
    ),
    "reduce": (lambda x: x.sum(axis=1), zeros(4, 8)),
    "scatter": (lambda x, i: x.at[i].add(1.0, mode="drop"), zeros(9, 8), zeros(3, dtype=jnp.int32)),
    "slices": (
        lambda x, i: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i, 0), (2, 8))[:, 1:3], (i, i)),
        zeros(9, 8),
        zeros(dtype=jnp.int32),
    ),
    "sort": (lambda x: jnp.sort(x), zeros(4, 8)),
    "transpose": (lambda x: x.T, zeros(4, 8)),
}


@settings(max_examples=25)
@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2),
)
def test_windows_as_xla(sizes: Any, window: Any, stride: Any, padding: Any) -> None:
    assume(all(n + sum(pad) >= w for n, pad, w in zip(sizes, padding, window, strict=True)))
    text = lowered(lambda x: lax.reduce_window(x, 0.0, lax.add, window, stride, padding), zeros(*sizes))
    assert ours(text) == xla(text)


def test_windows_over_a_whole_dimension_as_xla() -> None:
    """Each result is the sum over the whole dimension, which XLA counts as one reduction."""
    text = lowered(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 9), (1, 1), ((0, 0), (4, 4))),
        zeros(3, 5),
    )
    assert ours(text) == xla(text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_as_xla(name: str) -> None:
    text = lowered(*PROGRAMS[name])
    assert ours(text) == xla(text)


RARER = {
    "bitcast_convert": ("%a: tensor<4x8xf32>", "stablehlo.bitcast_convert %a : (tensor<4x8xf32>) -> tensor<4x8xi32>"),
    "cholesky": ("%a: tensor<2x5x5xf32>", "stablehlo.cholesky %a, lower = true : tensor<2x5x5xf32>"),
    "optimization_barrier": ("%a: tensor<4x8xf32>", "stablehlo.optimization_barrier %a : tensor<4x8xf32>"),
    "rng": (
        "%a: tensor<f32>, %b: tensor<2xi64>",
        "stablehlo.rng %a, %a, %b, distribution = UNIFORM "
        ": (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<3x4xf32>",
    ),
    "triangular_solve": (
        "%a: tensor<4x4xf32>, %b: tensor<4x7xf32>",
        '"stablehlo.triangular_solve"(%a, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = '
        "#stablehlo<transpose NO_TRANSPOSE>} : (tensor<4x4xf32>, tensor<4x7xf32>) -> tensor<4x7xf32>",
    ),
}


@pytest.mark.parametrize("name", RARER)
def test_rarer_operations_as_xla(name: str) -> None:
    arguments, operation = RARER[name]
    result = operation.split()[-1]
    text = f"func.func @main({arguments}) -> {result} {{\n%0 = {operation}\nreturn %0 : {result}\n}}"
    assert ours(text) == xla(text)


def training_step(weights: dict[str, Any], x: Any, y: Any) -> Any:
    def loss(w: dict[str, Any]) -> Any:
        return ((jax.nn.softmax(jnp.tanh(x @ w["a"] + w["b"]) @ w["c"]) - y) ** 2).mean()

    return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, weights, jax.grad(loss)(weights))


def test_training_step_is_close_to_xla() -> None:
    weights = {"a": zeros(32, 64), "b": zeros(64), "c": zeros(64, 16)}
    text = lowered(training_step, weights, zeros(128, 32), zeros(128, 16))
    mine, theirs = ours(text), xla(text)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-4)  # XLA folds constants on the way
    assert mine[1] == theirs[1]
    assert mine[2] == pytest.approx(theirs[2], rel=0.05)  # XLA writes broadcasts as several instructions


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("start", "stop", "step"), [(0, 8, 2), (0, 7, 2), (8, 0, 2), (7, 0, 2), (3, 3, 1), (-2, 4, 3)])
@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "NE"])
def test_trip_counts(start: int, stop: int, step: int, direction: str, swapped: bool) -> None:
    sign = -1 if direction in ("GT", "GE") else 1
    compared = ("%limit", "%i") if swapped else ("%i", "%limit")
    spelled = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction) if swapped else direction
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %start = stablehlo.constant dense<{start}> : tensor<i32>
      %limit = stablehlo.constant dense<{stop}> : tensor<i32>
      %r:2 = stablehlo.while(%i = %start, %v = %x) : tensor<i32>, tensor<4xf32>
      cond {{
        %c = stablehlo.compare {spelled}, {compared[0]}, {compared[1]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %step = stablehlo.constant dense<{step}> : tensor<i32>
        %n = stablehlo.{"add" if sign > 0 else "subtract"} %i, %step : tensor<i32>
        %w = stablehlo.exponential %v : tensor<4xf32>
        stablehlo.return %n, %w : tensor<i32>, tensor<4xf32>
      }}
      return %r#1 : tensor<4xf32>
    }}"""
    tests = {
        "LT": lambda i: i < stop,
        "LE": lambda i: i <= stop,
        "GT": lambda i: i > stop,
        "GE": lambda i: i >= stop,
        "NE": lambda i: i != stop,
    }
    count, i = 0, start
    while tests[direction](i) and count < 100:
        count, i = count + 1, i + sign * step
    cost = stablehlo.cost(text)
    endless = count == 100
    assert cost.transcendentals == 4 * (1 if endless else count)
    assert bool(cost.notes) == endless


def test_loops_of_jax_are_counted_as_often_as_they_run() -> None:
    def loops(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return lax.fori_loop(0, 7, lambda _, v: jnp.tanh(v), carry), row

        return lax.scan(step, x, jnp.zeros((5, 4)))

    cost = stablehlo.cost(lowered(loops, zeros(4)))
    assert cost.transcendentals == 5 * 7 * 4
    (tanh,) = (each for each in cost.operations if each.name == "stablehlo.tanh")
    assert (tanh.times, tanh.transcendentals, tanh.note) == (35, 140, "")


def test_bound_that_the_caller_passes() -> None:
    text = """
    func.func @main(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
      %three = stablehlo.constant dense<3> : tensor<i32>
      %four = stablehlo.constant dense<4> : tensor<i32>
      %a = call @f(%x, %three) : (tensor<f32>, tensor<i32>) -> tensor<f32>
      %b = call @f(%x, %four) : (tensor<f32>, tensor<i32>) -> tensor<f32>
      return %a, %b : tensor<f32>, tensor<f32>
    }
    func.func private @f(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:3 = stablehlo.while(%i = %zero, %m = %n, %v = %x) : tensor<i32>, tensor<i32>, tensor<f32>
      cond {
        %c = stablehlo.compare LT, %i, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %j = func.call @next(%i) : (tensor<i32>) -> tensor<i32>
        %w = stablehlo.sine %v : tensor<f32>
        stablehlo.return %j, %m, %w : tensor<i32>, tensor<i32>, tensor<f32>
      }
      return %r#2 : tensor<f32>
    }
    func.func private @next(%i: tensor<i32>) -> tensor<i32> {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      return %j : tensor<i32>
    }"""
    cost = stablehlo.cost(text)
    (sine,) = (each for each in cost.operations if each.name == "stablehlo.sine")
    assert cost.transcendentals == sine.times == 7
    assert sine.function == "f"


def test_operations_with_their_places() -> None:
    text = """func.func @main(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>) -> tensor<4x2xf32> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32> loc("layer"("model.py":7:3))
      %unused = stablehlo.tanh %a : tensor<4x8xf32>
      return %0 : tensor<4x2xf32>
    }"""
    cost = stablehlo.cost(text)
    (dot,) = cost.operations  # what nothing uses is dropped, as by compilers
    assert (dot.name, dot.function, dot.times, dot.flops) == ("stablehlo.dot_general", "main", 1, 128)
    assert (dot.location.name, dot.location.file, dot.location.line) == ("layer", "model.py", 7)
    assert cost.as_dict() == {"flops": 128.0, "transcendentals": 0.0, "bytes accessed": 4.0 * (32 + 16 + 8)}


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda x: lax.linalg.cholesky(x), 512 / 3),
        (lambda x: lax.linalg.lu(x)[0], 2 * 512 / 3),
        (lambda x: lax.linalg.eigh(x)[1], 9 * 512),
        (lambda x: lax.linalg.svd(x)[1], 21 * 512),
    ],
)
def test_lapack(function: Any, flops: float) -> None:
    cost = stablehlo.cost(lowered(function, zeros(3, 8, 8)))
    (call,) = (each for each in cost.operations if "lapack" in each.name)
    assert call.flops == pytest.approx(3 * flops, abs=2)
    assert call.bytes_accessed >= 2 * 3 * 8 * 8 * 4
    assert not cost.notes


def test_unknown_custom_call_has_a_note() -> None:
    text = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @mystery(%a) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    cost = stablehlo.cost(text)
    (note,) = cost.notes
    assert note.name == "stablehlo.custom_call @mystery"
    assert (cost.flops, cost.bytes_accessed) == (0, 32)
    assert "not counted" in note.note


GROUPS = "replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>"
SUM = """({^bb0(%x: tensor<f32>, %y: tensor<f32>):
  %s = stablehlo.add %x, %y : tensor<f32>
  stablehlo.return %s : tensor<f32>})"""


@pytest.mark.parametrize(
    ("kind", "attributes", "body", "result", "sent"),
    [
        ("all_reduce", GROUPS, SUM, "8x4", 2 * 128 * 3 // 4),
        ("all_gather", GROUPS + ", all_gather_dim = 0 : i64", "", "32x4", 128 * 3),
        ("reduce_scatter", GROUPS + ", scatter_dimension = 0 : i64", SUM, "2x4", 128 * 3 // 4),
        (
            "all_to_all",
            GROUPS + ", split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 4 : i64",
            "",
            "2x16",
            128 * 3 // 4,
        ),
        ("collective_broadcast", GROUPS, "", "8x4", 128 * 3 // 4),
    ],
)
def test_collectives(kind: str, attributes: str, body: str, result: str, sent: int) -> None:
    text = f"""module attributes {{mhlo.num_replicas = 8 : i32}} {{
      func.func @main(%a: tensor<8x4xf32>) -> tensor<{result}xf32> {{
        %0 = "stablehlo.{kind}"(%a) {body} {{{attributes}}} : (tensor<8x4xf32>) -> tensor<{result}xf32>
        return %0 : tensor<{result}xf32>
      }}
    }}"""
    cost = stablehlo.cost(text)
    (collective,) = cost.collectives
    assert (collective.kind, collective.group_size, collective.times) == (kind, 4, 1)
    assert (collective.operand_bytes, collective.sent_bytes, cost.sent_bytes) == (128, sent, sent)
    if kind != "all_to_all":  # which XLA takes apart
        assert ours(text) == xla(text)


def test_permutation() -> None:
    text = """module attributes {mhlo.num_replicas = 4 : i32} { func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = "stablehlo.collective_permute"(%a) {source_target_pairs = dense<[[0, 1], [1, 0], [2, 2]]> : tensor<3x2xi64>}
        : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    } }"""
    (collective,) = stablehlo.cost(text).collectives
    assert (collective.group_size, collective.operand_bytes, collective.sent_bytes) == (3, 32, 32 * 2 // 3)


SHARDED = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(
    %a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %b: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
  ) -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32> loc("product"("model.py":3:1))
    return %0 : tensor<8x32xf32>
  }
}"""


def test_partitioned_program_is_counted_for_one_device() -> None:
    cost = stablehlo.cost(SHARDED)
    (dot,) = (each for each in cost.operations if each.name == "stablehlo.dot_general")
    assert dot.flops == 2 * 8 * 32 * 4
    assert (dot.location.file, dot.location.line) == ("model.py", 3)
    (total,) = cost.collective_totals
    assert (total.kind, total.group_size, total.times, total.operand_bytes) == ("all_reduce", 4, 1, 8 * 32 * 4)
    whole = stablehlo.cost(stablehlo.parse(Program.of(SHARDED)))
    assert whole.flops == 2 * 8 * 32 * 16
    assert not whole.collectives


def test_dynamic_shapes_are_refused() -> None:
    text = """func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.tanh %a : tensor<?xf32>
      return %0 : tensor<?xf32>
    }"""
    with pytest.raises(UnimplementedError, match=r"stablehlo\.tanh.*static shapes first \[<program>:2:12"):
        stablehlo.cost(text)


def test_recursion_is_refused() -> None:
    text = """func.func @main(%a: tensor<f32>) -> tensor<f32> {
      %0 = call @main(%a) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    with pytest.raises(InvalidArgumentError, match="calls itself"):
        stablehlo.cost(text)


def test_calls_of_calls_take_no_time() -> None:
    """Each function calls the one before twice: 2**40 runs are counted, not walked."""
    functions = "\n".join(
        f"""func.func private @f{n}(%a: tensor<f32>) -> tensor<f32> {{
          %0 = call @f{n - 1}(%a) : (tensor<f32>) -> tensor<f32>
          %1 = call @f{n - 1}(%0) : (tensor<f32>) -> tensor<f32>
          return %1 : tensor<f32>
        }}"""
        for n in range(1, 41)
    )
    text = f"""module {{
      func.func @main(%a: tensor<f32>) -> tensor<f32> {{
        %0 = call @f40(%a) : (tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32>
      }}
      {functions}
      func.func private @f0(%a: tensor<f32>) -> tensor<f32> {{
        %0 = stablehlo.tanh %a : tensor<f32>
        return %0 : tensor<f32>
      }}
    }}"""
    assert stablehlo.cost(text).transcendentals == 2**40


def test_exported_composites_are_counted() -> None:
    exported = jax.export.export(jax.jit(lambda x: jax.scipy.special.erf(x)))(zeros(4))
    cost = stablehlo.cost(Program.of(exported.mlir_module_serialized))
    assert cost.transcendentals + cost.flops >= 4


def test_values_of_large_constants_are_not_read() -> None:
    table = np.arange(64, dtype=np.float32)
    program = Program.of(lowered(lambda x: x + table, zeros(64)))
    parsed = stablehlo.parse(program)
    (constant,) = (each for each in parsed.walk() if each.name == "stablehlo.constant")
    assert constant.attributes["value"].shape == (64,)
    (counted,) = (each for each in stablehlo.cost(program).operations if each.name == "stablehlo.constant")
    assert counted.operation.attributes["value"] is None

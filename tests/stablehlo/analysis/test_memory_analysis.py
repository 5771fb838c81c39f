"""The peak of memory, against XLA's CPU compiler where both store the same arrays, and by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pjrt import InvalidArgumentError, UnimplementedError, stablehlo
from pjrt.stablehlo import ArrayRole, PeakMemory

KIB = 1024


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def both(function: Any, *arguments: Any, donate: Any = ()) -> tuple[PeakMemory, int]:
    """Our peak, and what XLA's compiler for CPUs allocates in all."""
    lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
    stats = lowered.compile().memory_analysis()
    assert stats is not None
    allocated = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return stablehlo.peak_memory(lowered.as_text()), allocated - stats.alias_size_in_bytes


def update(cache: Any, x: Any, i: Any) -> Any:
    cache = lax.dynamic_update_slice(cache, x, (i, 0))
    return cache, (cache * 2).sum()


CASES: dict[str, Any] = {
    "sum": (lambda a, b: a + b, array(256, 256), array(256, 256)),
    "product": (lambda a, b: a @ b, array(128, 256), array(256, 64)),
    "chain": (lambda a: jnp.sin(jnp.cos(a) * 2 + 1), array(256, 256)),
    "products": (lambda a, b, c: (a @ b) @ c, array(256, 256), array(256, 256), array(256, 256)),
    "layers": (
        lambda w, x: lax.scan(lambda h, v: (jnp.tanh(h @ v), None), x, w)[0],
        array(8, 256, 256),
        array(64, 256),
    ),
    "loop": (lambda x: lax.fori_loop(0, 10, lambda i, v: jnp.sin(v) @ v, x), array(256, 256)),
    "loop over a temporary": (lambda x: lax.fori_loop(0, 10, lambda i, v: v @ v, x @ x), array(256, 256)),
    "result twice": (lambda x: (y := x @ x, y), array(256, 256)),
    "sort": (lambda x: jnp.sort(x), array(1 << 14)),
    "branches": (
        lambda p, x: lax.cond(p, lambda x: x @ x, lambda x: jnp.sin(x @ x), x),
        array(dtype=bool),
        array(256, 256),
    ),
    "cache": (update, array(512, 64), array(1, 64), array(dtype=jnp.int32)),
}


@pytest.mark.parametrize("name", CASES)
def test_close_to_xla(name: str) -> None:
    peak, xla = both(*CASES[name])
    assert peak.nbytes == pytest.approx(xla, rel=0.03, abs=1 * KIB)
    assert peak.nbytes == sum(each.nbytes for each in peak.arrays)


@pytest.mark.parametrize("name", ["sum", "cache"])
def test_donated_arguments_close_to_xla(name: str) -> None:
    kept, _ = both(*CASES[name])
    peak, xla = both(*CASES[name], donate=0)
    assert peak.nbytes == pytest.approx(xla, rel=0.03, abs=1 * KIB)
    assert peak.nbytes < 0.8 * kept.nbytes


def test_training_step_is_near_xla() -> None:
    def step(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            h = x
            for each in w:
                h = jnp.tanh(h @ each)
            return ((h - y) ** 2).mean()

        return jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(loss)(w))

    peak, xla = both(step, [array(128, 128)] * 4, array(512, 128), array(512, 128), donate=0)
    assert 0.75 * xla < peak.nbytes < 1.25 * xla


sizes = st.integers(1, 40)


@settings(max_examples=15)
@given(
    m=st.integers(1, 40), k=st.integers(1, 40), n=st.integers(1, 40), element=st.sampled_from(["f32", "f64", "bf16"])
)
def test_all_arrays_of_one_product_are_in_memory(m: int, k: int, n: int, element: str) -> None:
    a, b, c = f"tensor<{m}x{k}x{element}>", f"tensor<{k}x{n}x{element}>", f"tensor<{m}x{n}x{element}>"
    peak = stablehlo.peak_memory(f"""func.func @main(%a: {a}, %b: {b}) -> {c} {{
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({a}, {b}) -> {c}
      return %0 : {c}
    }}""")
    size = {"f32": 4, "f64": 8, "bf16": 2}[element]
    assert (peak.argument_nbytes, peak.result_nbytes) == ((m * k + k * n) * size, m * n * size)
    assert peak.nbytes == peak.argument_nbytes + peak.result_nbytes == sum(each.nbytes for each in peak.arrays)


def test_a_softmax_in_a_wider_type_stores_the_narrow_scores() -> None:
    """The wide ones are computed from them for the maximum, the sum and the quotient, which takes their place."""

    def probabilities(q: Any, k: Any) -> Any:
        return jax.nn.softmax((q @ k.T).astype(jnp.float32)).astype(q.dtype)

    side = array(256, 64, dtype=jnp.bfloat16)
    peak = stablehlo.peak_memory(jax.jit(probabilities).lower(side, side).as_text())
    assert peak.nbytes == pytest.approx(2 * 256 * 64 * 2 + 256 * 256 * 2, rel=0.02)


NAMED = """func.func @main(
    %x: tensor<64x64xf32> loc("batch"("model.py":1:1)),
    %w: tensor<64x64xf32> {jax.buffer_donor = true} loc("weights['w']"("model.py":1:2))
  ) -> tensor<64x64xf32> {
  %table = stablehlo.constant dense<"0x__HEX__"> : tensor<256xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("layer"("model.py":7:3))
  %1 = stablehlo.reshape %table : (tensor<256xf32>) -> tensor<256x1xf32>
  %2 = stablehlo.slice %1 [0:64, 0:1] : (tensor<256x1xf32>) -> tensor<64x1xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<64x1xf32>) -> tensor<64x64xf32>
  %4 = stablehlo.add %0, %3 : tensor<64x64xf32> loc("bias"("model.py":8:3))
  %5 = stablehlo.dot_general %4, %x, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("layer"("model.py":9:3))
  return %5 : tensor<64x64xf32>
}""".replace("__HEX__", np.arange(256, dtype=np.float32).tobytes().hex())


def test_arrays_have_names_and_places() -> None:
    peak = stablehlo.peak_memory(NAMED)
    assert peak.operation is not None
    assert peak.operation.location.line == 7
    batch, weights, layer, table = peak.arrays
    assert [batch.name, weights.name] == ["batch", "weights['w']"]
    assert [batch.is_donated, weights.is_donated] == [False, True]
    assert (layer.name, layer.location.line, layer.shape) == ("stablehlo.dot_general", 7, (64, 64))
    roles = [each.role for each in peak.arrays]
    assert roles == [ArrayRole.ARGUMENT, ArrayRole.ARGUMENT, ArrayRole.TEMPORARY, ArrayRole.CONSTANT]
    assert peak.nbytes == 3 * 16 * KIB + KIB, "the donated weights are free before the last product needs memory"
    assert str(table) == "stablehlo.constant: tensor<256xf32>, 1024 bytes"


def test_a_result_is_told_from_a_temporary() -> None:
    peak = stablehlo.peak_memory("""func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      return %0 : tensor<4x4xf32>
    }""")
    assert [each.role for each in peak.arrays] == [ArrayRole.ARGUMENT, ArrayRole.RESULT]
    assert peak.arrays[0].name == "argument 0"


def test_an_argument_that_is_returned_is_copied_unless_it_is_donated() -> None:
    text = "func.func @main(%x: tensor<8xf32> ATTRIBUTES) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    copied = stablehlo.peak_memory(text.replace("ATTRIBUTES", ""))
    assert (copied.nbytes, [each.name for each in copied.arrays]) == (64, ["argument 0", "copy of argument 0"])
    assert stablehlo.peak_memory(text.replace("ATTRIBUTES", "{tf.aliasing_output = 0 : i32}")).nbytes == 32


def test_equal_elements_are_no_array() -> None:
    text = """func.func @main(%x: tensor<4096xELEMENT>) -> tensor<4096xELEMENT> {
      %c = stablehlo.constant dense<VALUE> : tensor<4096xELEMENT>
      %0 = stablehlo.add %x, %c : tensor<4096xELEMENT>
      return %0 : tensor<4096xELEMENT>
    }"""
    for element, value, size in (("f32", "2.5", 4), ("bf16", "2.5", 2), ("i64", "7", 8)):
        peak = stablehlo.peak_memory(text.replace("ELEMENT", element).replace("VALUE", value))
        assert peak.nbytes == 2 * 4096 * size


def test_arrays_inside_of_functions_and_loops_are_found() -> None:
    """The largest array is in a function that a loop's body calls."""
    text = """
    func.func @main(%x: tensor<8x8xf32>, %n: tensor<i32>) -> tensor<8x8xf32> {
      %r:2 = stablehlo.while(%i = %n, %v = %x) : tensor<i32>, tensor<8x8xf32>
      cond {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %c = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.subtract %i, %one : tensor<i32>
        %w = func.call @outer(%v) : (tensor<8x8xf32>) -> tensor<8x8xf32>
        stablehlo.return %j, %w : tensor<i32>, tensor<8x8xf32>
      }
      return %r#1 : tensor<8x8xf32>
    }
    func.func private @outer(%v: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = stablehlo.concatenate %v, %v, %v, %v, dim = 0
        : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<32x8xf32>
      %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [1]
        : (tensor<32x8xf32>, tensor<32x8xf32>) -> tensor<32x32xf32> loc("inner"("model.py":3:1))
      %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0]
        : (tensor<32x32xf32>, tensor<32x8xf32>) -> tensor<32x8xf32>
      %3 = stablehlo.slice %2 [0:8, 0:8] : (tensor<32x8xf32>) -> tensor<8x8xf32>
      return %3 : tensor<8x8xf32>
    }"""
    peak = stablehlo.peak_memory(text)
    assert peak.arrays[0].shape == (32, 32)
    assert (peak.arrays[0].location.file, peak.arrays[0].location.line) == ("model.py", 3)
    sizes = sorted((each.nbytes for each in peak.arrays if each.nbytes >= 256), reverse=True)
    assert sizes == [4 * KIB, KIB, KIB, 256], "the product, its two sides, and the argument; the loop's state is free"


SHARDED = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(
    %a: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc("rows"),
    %b: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>} loc("whole")
  ) -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}"""


def test_the_bytes_of_one_device() -> None:
    peak = stablehlo.peak_memory(SHARDED)
    assert [(each.name, each.shape) for each in peak.arrays[:2]] == [("whole", (64, 64)), ("rows", (16, 64))]
    assert peak.nbytes == 16 * KIB + 2 * 4 * KIB


def test_bad_programs_are_refused() -> None:
    with pytest.raises(UnimplementedError, match="expected a static shape"):
        stablehlo.peak_memory("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }")
    with pytest.raises(InvalidArgumentError, match="calls itself"):
        stablehlo.peak_memory("""func.func @main(%a: tensor<f32>) -> tensor<f32> {
          %0 = call @main(%a) : (tensor<f32>) -> tensor<f32>
          return %0 : tensor<f32>
        }""")


def test_the_memory_at_each_operation() -> None:
    peak = stablehlo.peak_memory("""
    func.func @main(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
      %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      %1 = call @square(%0) : (tensor<16x16xf32>) -> tensor<16x16xf32>
      %2 = stablehlo.tanh %1 : tensor<16x16xf32>
      return %2 : tensor<16x16xf32>
    }
    func.func private @square(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
      %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      return %0 : tensor<16x16xf32>
    }""")
    steps = [(step.operation.name.rpartition(".")[2], step.nbytes // KIB) for step in peak.steps]
    assert steps == [("dot_general", 2), ("dot_general", 3), ("call", 3), ("tanh", 2)]
    assert max(step.nbytes for step in peak.steps) == peak.nbytes


def test_a_call_is_one_step_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = "\n".join(f"%{n} = call @f(%{n - 1 if n else 'a'}) : (tensor<f32>) -> tensor<f32>" for n in range(20))
    text = f"""
    func.func @main(%a: tensor<f32>) -> tensor<f32> {{
      {calls}
      return %19 : tensor<f32>
    }}
    func.func private @f(%a: tensor<f32>) -> tensor<f32> {{
      %0 = stablehlo.tanh %a : tensor<f32>
      return %0 : tensor<f32>
    }}"""
    assert len(stablehlo.peak_memory(text).steps) == 40
    monkeypatch.setattr("pjrt.stablehlo.analysis.memory_analysis.MOST_STEPS", 10)
    assert len(stablehlo.peak_memory(text).steps) == 10 + 15

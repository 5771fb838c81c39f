"""Fingerprints of programs: what processes may lawfully state in different ways does not count, and all else does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from pjrt import stablehlo

TEXT = """module @sum { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32> } }"""
CALL = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @TARGET(%x) {api_version = 4 : i32, mhlo.backend_config = {CONFIG}}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32> }"""


def exported(function: object) -> bytes:
    traced = export.export(jax.jit(function))(jax.ShapeDtypeStruct((4,), np.float32))  # type: ignore[arg-type]
    return bytes(traced.mlir_module_serialized)


def times(factor: float) -> object:
    return lambda x: (x * factor).sum()


def test_source_locations_do_not_count() -> None:
    here = exported(times(2))
    there = exported(lambda x: (x * 2).sum())  # from another line
    assert here != there
    assert stablehlo.fingerprint(here, trusted=True) == stablehlo.fingerprint(there, trusted=True)


def test_encodings_do_not_count() -> None:
    artifact = stablehlo.serialize(TEXT, stablehlo.current_version())
    assert stablehlo.fingerprint(artifact) == stablehlo.fingerprint(TEXT)


def test_constants_operations_and_their_order_count() -> None:
    programs = [times(2), times(3), lambda x: (x + 2).sum(), lambda x: x.sum() * 2, lambda x: jnp.flip(x * 2).sum()]
    assert len({stablehlo.fingerprint(exported(each), trusted=True) for each in programs}) == len(programs)


def test_large_constants_count_to_the_last_element() -> None:
    large = np.random.default_rng(0).random(100_000, np.float32)
    other = large.copy()
    other[-1] += 1
    first, second = (exported(lambda x, c=c: x.sum() + c.sum()) for c in (large, other))
    assert stablehlo.fingerprint(first, trusted=True) != stablehlo.fingerprint(second, trusted=True)


@pytest.mark.parametrize(
    ("target", "are_equal"),
    [("pjrt_python_callback", True), ("xla_ffi_python_cpu_callback", True), ("solve", False)],
)
def test_numbers_of_callbacks_do_not_count(target: str, are_equal: bool) -> None:
    text = CALL.replace("TARGET", target)
    first, second = (stablehlo.fingerprint(text.replace("CONFIG", f"index = {n} : ui64")) for n in (1, 2))
    assert (first == second) is are_equal


def test_hlo_has_fingerprints_too() -> None:
    first, second = (stablehlo.to_hlo(text) for text in (TEXT, TEXT.replace("add", "multiply")))
    assert stablehlo.fingerprint(first) == stablehlo.fingerprint(first)
    assert stablehlo.fingerprint(first) != stablehlo.fingerprint(second)

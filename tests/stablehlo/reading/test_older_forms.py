"""Older forms of HLO, written in HLO's text and made protos by XLA itself."""

from __future__ import annotations

import numpy as np
import pytest

import pjrt
from pjrt.stablehlo import read, to_hlo, to_module
from pjrt.stablehlo.encodings.jaxlib import load
from pjrt.stablehlo.reading._hlo_conversion import modernized

X = np.arange(24, dtype=np.float32).reshape(6, 4)
U = -np.ones((2, 2), np.float32)

SLICE = """HloModule m, entry_computation_layout={(f32[6,4]{1,0}, s64[2]{0})->f32[2,2]{1,0}}
ENTRY main {
  x = f32[6,4]{1,0} parameter(0)
  i = s64[2]{0} parameter(1)
  ROOT r = f32[2,2]{1,0} dynamic-slice(x, i), dynamic_slice_sizes={2,2}
}"""
ONE = """HloModule m, entry_computation_layout={(f32[24]{0}, s64[1]{0})->f32[3]{0}}
ENTRY main {
  x = f32[24]{0} parameter(0)
  i = s64[1]{0} parameter(1)
  ROOT r = f32[3]{0} dynamic-slice(x, i), dynamic_slice_sizes={3}
}"""
UPDATES = """HloModule m, entry_computation_layout={(f32[6,4]{1,0}, s32[2]{0}, f32[2,2]{1,0})->f32[6,4]{1,0}}
body {
  a = f32[6,4]{1,0} parameter(0)
  i = s32[2]{0} parameter(1)
  u = f32[2,2]{1,0} parameter(2)
  ROOT r = f32[6,4]{1,0} dynamic-update-slice(a, u, i)
}
ENTRY main {
  x = f32[6,4]{1,0} parameter(0)
  i = s32[2]{0} parameter(1)
  u = f32[2,2]{1,0} parameter(2)
  c = f32[6,4]{1,0} call(x, i, u), to_apply=body
  j = s32[] constant(1)
  d = f32[6,4]{1,0} dynamic-slice(c, j, j), dynamic_slice_sizes={6,4}
  ROOT r = f32[6,4]{1,0} dynamic-update-slice(d, u, i)
}"""


def proto(text: str) -> bytes:
    try:
        hlo = load("_hlo", "make HLO protos")
    except pjrt.FailedPreconditionError:  # before jaxlib 0.10
        hlo = load("_jax", "make HLO protos")
    made: bytes = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return made


def updated() -> np.ndarray:
    expected = X.copy()
    expected[1:3, 2:4] = U
    return expected


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (SLICE, (X, np.array([3, 1])), X[3:5, 1:3]),
        (ONE, (X.reshape(-1), np.array([4])), X.reshape(-1)[4:7]),
        (UPDATES, (X, np.array([1, 2], np.int32), U), updated()),
    ],
    ids=["slice", "one dimension", "updates in two computations"],
)
def test_start_indices_in_one_vector(
    device: str, text: str, arguments: tuple[np.ndarray, ...], expected: np.ndarray
) -> None:
    with pjrt.client(device) as client:
        (result,) = client.compile(read(proto(text)))(*arguments)
        assert np.asarray(result).tolist() == expected.tolist()


def test_a_module_without_older_forms_stays_as_it_is() -> None:
    code = proto("""HloModule m, entry_computation_layout={(f32[24]{0}, s64[])->f32[3]{0}}
ENTRY main {
  x = f32[24]{0} parameter(0)
  i = s64[] parameter(1)
  ROOT r = f32[3]{0} dynamic-slice(x, i), dynamic_slice_sizes={3}
}""")
    assert modernized(code) is code


def test_a_proto_that_wants_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> bytes:
        raise MemoryError("std::bad_alloc")

    program = to_hlo("func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }")
    monkeypatch.setattr(load("_jax", "convert HLO protos").mlir, "hlo_to_stablehlo", fail)
    with pytest.raises(pjrt.InvalidArgumentError, match="bad_alloc"):
        to_module(program, trusted=True)

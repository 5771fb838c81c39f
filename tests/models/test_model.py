"""Models: calling the program in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import pjrt

ADD = """
func.func @main(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<3xf32> {jax.result_info = "result['sum']"}) {
  %0 = stablehlo.add %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""


def test_a_file_is_called(tmp_path: Path) -> None:
    (tmp_path / "add.mlir").write_text(ADD)
    with pjrt.load_model(tmp_path / "add.mlir", "cpu") as model:
        (total,) = model(np.float32([1, 2, 3]), np.float32([10, 20, 30]))
        np.testing.assert_array_equal(total, [11, 22, 33])
        (again,) = model(total, np.float32([1, 1, 1]))
        np.testing.assert_array_equal(again, [12, 23, 34])
        assert [each.shapes for each in model.compilations] == [((3,), (3,))]
        assert [result.name for result in model.results] == ["result['sum']"]

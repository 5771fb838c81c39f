"""Programs of the tests of the ``iree`` device. They are few, because each is compiled."""

from __future__ import annotations

DOUBLE = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""

EXP_F64 = """
func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
  %0 = stablehlo.exponential %x : tensor<4xf64>
  return %0 : tensor<4xf64>
}"""

SAME_AND_RESHAPED = """
func.func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<16xf32>) {
  %0 = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<16xf32>
  return %x, %0 : tensor<4x4xf32>, tensor<16xf32>
}"""

NUMBERS = """
func.func @main() -> tensor<3xi32> {
  %0 = stablehlo.iota dim = 0 : tensor<3xi32>
  return %0 : tensor<3xi32>
}"""

CHOLESKY = """
func.func @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2x2xf32>
  %1 = "stablehlo.cholesky"(%0) {lower = true} : (tensor<2x2xf32>) -> tensor<2x2xf32> loc("model.py":7:3)
  %2 = stablehlo.exponential %1 : tensor<2x2xf32>
  return %2 : tensor<2x2xf32>
}"""
"""A run for IREE, an operation that it lacks, and another run."""

FFT = """
func.func @main(%x: tensor<6xcomplex<f32>>) -> tensor<6xcomplex<f32>> {
  %0 = stablehlo.add %x, %x : tensor<6xcomplex<f32>>
  %1 = stablehlo.fft %0, type = FFT, length = [6] : (tensor<6xcomplex<f32>>) -> tensor<6xcomplex<f32>>
    loc("model.py":9:5)
  return %1 : tensor<6xcomplex<f32>>
}"""
"""An operation that only IREE's compiler finds out that it cannot compile: the length is no power of two."""

PRODUCT = """
func.func @main(%x: tensor<1536x1536xf32>, %y: tensor<1536x1536xf32>) -> tensor<1536x1536xf32> {
  %0 = stablehlo.dot %x, %y : (tensor<1536x1536xf32>, tensor<1536x1536xf32>) -> tensor<1536x1536xf32>
  return %0 : tensor<1536x1536xf32>
}"""
"""Work of a good part of a second."""

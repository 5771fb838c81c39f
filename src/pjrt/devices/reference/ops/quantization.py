"""Uniform-quantized types: conversion to and from real numbers, and every other op by way of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import Rule, op
from pjrt.devices.reference.numerics.element_types import compute_dtype
from pjrt.stablehlo.types import Quantization, TensorType, ValueType


@op("stablehlo.uniform_quantize", quantized=True)
def uniform_quantize(view: OpView) -> Kernel:
    """Real numbers, or integers that stand for some, as integers of another quantization."""
    operand, result = view.operand(), view.result()
    if result.quantization is None:
        raise view.invalid(f"expected a quantized result, found {result}")
    close = quantizer(result, result.quantization)
    if operand.quantization is None:
        return close
    open_ = dequantizer(operand, operand.quantization)
    return lambda x: close(open_(x))


@op("stablehlo.uniform_dequantize", quantized=True)
def uniform_dequantize(view: OpView) -> Kernel:
    """The real numbers that integers stand for."""
    operand = view.operand()
    if operand.quantization is None:
        raise view.invalid(f"expected a quantized operand, found {operand}")
    return dequantizer(operand, operand.quantization)


def on_expressed_types(view: OpView, rule: Rule) -> Kernel:
    """An op on quantized types as the specification defines it: on the expressed types, between two conversions."""
    kernel = rule.compile(view.with_types([expressed(t) for t in view.operands], [expressed(t) for t in view.results]))
    opening = [conversion(t, dequantizer) for t in view.operands]
    closing = [conversion(t, quantizer) for t in view.results]
    skipped = 1 if rule.environment or view.regions else 0

    def run(*args: Any) -> Any:
        wide = [convert(arg) for convert, arg in zip(opening, args[skipped:], strict=True)]
        found = kernel(*args[:skipped], *wide)
        if len(closing) == 1:
            return closing[0](found)
        return [convert(value) for convert, value in zip(closing, found, strict=True)]

    return run


def expressed(type_: ValueType) -> ValueType:
    """The type of the real numbers that a quantized type stands for; other types as they are."""
    if isinstance(type_, TensorType) and type_.quantization is not None:
        return TensorType(type_.shape, type_.quantization.expressed, None, type_.bounds)
    return type_


def dequantizer(type_: TensorType, quantization: Quantization) -> Callable[[Any], Any]:
    """From stored integers to real numbers: ``(stored - zero_point) * scale``."""
    wide = compute_dtype(quantization.expressed)
    scales, zeros = _parameters(type_, quantization, wide)
    dtype = quantization.expressed.dtype

    def run(x: Any) -> Any:
        return np.multiply(np.subtract(x.astype(wide), zeros), scales).astype(dtype, copy=False)

    return run


def quantizer(type_: TensorType, quantization: Quantization) -> Callable[[Any], Any]:
    """From real numbers to stored integers: the nearest one, ties to even, within the range of the storage."""
    wide = compute_dtype(quantization.expressed)
    scales, zeros = _parameters(type_, quantization, wide)
    storage, low, high = quantization.storage.dtype, quantization.storage_min, quantization.storage_max
    narrow = np.int64 if quantization.storage.bits >= 32 else np.int32

    def run(x: Any) -> Any:
        nearest = np.add(np.rint(np.divide(x.astype(wide), scales)), zeros)
        return np.clip(nearest, low, high).astype(narrow).astype(storage)

    return run


def _parameters(type_: TensorType, quantization: Quantization, wide: Any) -> tuple[Any, Any]:
    """Scales and zero points in a shape that broadcasts against the tensor."""
    scales, zeros = np.array(quantization.scales, wide), np.array(quantization.zero_points, wide)
    if quantization.axis is None:
        return scales[0], zeros[0]
    shape = [1] * type_.rank
    shape[quantization.axis] = len(scales)
    return scales.reshape(shape), zeros.reshape(shape)


def conversion(
    type_: ValueType, make: Callable[[TensorType, Quantization], Callable[[Any], Any]]
) -> Callable[[Any], Any]:
    """What ``make`` makes for a quantized type; nothing happens to values of other types."""
    if isinstance(type_, TensorType) and type_.quantization is not None:
        return make(type_, type_.quantization)
    return lambda value: value

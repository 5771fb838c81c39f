"""Uniform-quantized types: conversion to and from real numbers, and ops on them by way of real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.numerics.element_types import compute_dtype
from pjrt.stablehlo.types import Quantization, TensorType, ValueType

Convert = Callable[[Any], Any]


def on_expressed_types(view: OpView, environment: bool) -> Kernel:
    """Return the kernel of an op on quantized types, as the specification defines it: on the expressed types, between
    two conversions. With ``environment`` the op's kernel takes the environment first.
    """
    plain = view.derive(operands=[expressed(t) for t in view.operands], results=[expressed(t) for t in view.results])
    kernel = plain.compile()
    opening = [conversion(t, dequantizer) for t in view.operands]
    closing = [conversion(t, quantizer) for t in view.results]
    skipped = 1 if environment else 0

    def run(*args: Any) -> Any:
        wide = [convert(arg) for convert, arg in zip(opening, args[skipped:], strict=True)]
        values = kernel(*args[:skipped], *wide)
        if len(closing) == 1:
            return closing[0](values)
        return [convert(value) for convert, value in zip(closing, values, strict=True)]

    run.elementwise = False  # type: ignore[attr-defined]
    return run


def expressed(type_: ValueType) -> ValueType:
    """Return the type of the real numbers that a quantized type stands for; other types as they are."""
    if isinstance(type_, TensorType) and type_.quantization is not None:
        return TensorType(type_.shape, type_.quantization.expressed, None, type_.bounds)
    return type_


def dequantizer(type_: TensorType, quantization: Quantization) -> Convert:
    """Return the function from stored integers to real numbers: ``(stored - zero_point) * scale``."""
    wide = compute_dtype(quantization.expressed)
    scales, zeros = _parameters(type_, quantization, wide)
    dtype = quantization.expressed.dtype

    def run(x: Any) -> Any:
        value = np.array(x, wide)
        value -= zeros
        value *= scales
        return value.astype(dtype, copy=False)

    return run


def quantizer(type_: TensorType, quantization: Quantization) -> Convert:
    """Return the function from real numbers to stored integers: the nearest in the storage's range, ties to even."""
    wide = compute_dtype(quantization.expressed)
    scales, zeros = _parameters(type_, quantization, wide)
    storage, low, high = quantization.storage.dtype, quantization.storage_min, quantization.storage_max
    narrow = np.int64 if quantization.storage.bits >= 32 else np.int32
    exact = np.float64 if quantization.storage.bits >= 32 else wide  # f32 rounds the ends of the range of 32 bits

    def run(x: Any) -> Any:
        value = np.array(x, wide)
        value /= scales
        np.rint(value, out=value)
        value += zeros
        value = value.astype(exact, copy=False)
        np.clip(value, low, high, out=value)
        return value.astype(narrow).astype(storage)

    return run


def _parameters(type_: TensorType, quantization: Quantization, wide: Any) -> tuple[Any, Any]:
    """Return scales and zero points in a shape that broadcasts against the tensor."""
    scales, zeros = np.array(quantization.scales, wide), np.array(quantization.zero_points, wide)
    if quantization.axis is None:
        return scales[0], zeros[0]
    shape = [1] * type_.rank
    shape[quantization.axis] = len(scales)
    return scales.reshape(shape), zeros.reshape(shape)


def conversion(type_: ValueType, make: Callable[[TensorType, Quantization], Convert]) -> Convert:
    """Return ``make``'s function for a quantized type, and one that changes nothing for other types."""
    if isinstance(type_, TensorType) and type_.quantization is not None:
        return make(type_, type_.quantization)
    return lambda value: value

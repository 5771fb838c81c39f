"""Dense constants as numpy arrays.

jaxlib gives the common types a buffer. For the others (bf16, the 8-bit floats and below, 2- and 4-bit integers,
complex) it gives only text, so their spelling is parsed: up to a hundred elements it is a nested list, above that one
hexadecimal string of the raw bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError

_BUFFERED = frozenset(
    t.mlir
    for t in (
        ElementType.PRED,
        ElementType.S8,
        ElementType.S16,
        ElementType.S32,
        ElementType.S64,
        ElementType.U8,
        ElementType.U16,
        ElementType.U32,
        ElementType.U64,
        ElementType.F16,
        ElementType.F32,
        ElementType.F64,
    )
)


def decode_dense(attribute: Any) -> np.ndarray[Any, Any]:
    """A dense elements attribute, or its text, as a read-only array of the tensor's shape.

    Raises:
        UnimplementedError: the constant is stored in a way that cannot be read.
    """
    if not isinstance(attribute, str) and str(attribute.type.element_type) in _BUFFERED:
        array = np.array(attribute)  # a copy: the attribute's memory belongs to MLIR
    else:
        array = _parse(attribute if isinstance(attribute, str) else str(attribute))
    array.flags.writeable = False
    return array


_DENSE = re.compile(r"dense<(?P<body>.*)> : tensor<(?P<type>.*)>$", re.DOTALL)


def _parse(text: str) -> np.ndarray[Any, Any]:
    match = _DENSE.match(text)
    if match is None:
        raise UnimplementedError(f"expected a dense constant, found {text[:80]}")
    shape, element = _parse_shape(match["type"])
    body = match["body"].strip()
    is_raw = body.startswith('"0x')
    flat = _from_bytes(bytes.fromhex(body[3:-1]), element) if is_raw else _from_words(body, element)
    if flat.size == 1 and math.prod(shape) != 1:
        return np.full(shape, flat[0], element.dtype)
    return flat.reshape(shape)


def _parse_shape(spelled: str) -> tuple[tuple[int, ...], ElementType]:
    match = re.match(r"(?P<dims>(?:\d+x)*)(?P<element>.*)$", spelled)
    assert match is not None  # every string matches
    return tuple(int(d) for d in match["dims"].split("x")[:-1]), ElementType.from_mlir(match["element"])


def _from_bytes(raw: bytes, element: ElementType) -> np.ndarray[Any, Any]:
    """Elements below a byte are stored a byte each, so that numpy's item sizes fit as they are."""
    return np.frombuffer(raw, element.dtype).copy()


def _from_words(body: str, element: ElementType) -> np.ndarray[Any, Any]:
    if element.is_complex:
        half = ElementType.F32 if element is ElementType.C64 else ElementType.F64
        words = re.findall(r"[^\s,()\[\]]+", body)
        parts = np.array([_word(word, half) for word in words], half.dtype)
        return parts.view(element.dtype)
    return np.array([_word(word, element) for word in re.findall(r"[^\s,\[\]]+", body)], element.dtype)


def _word(word: str, element: ElementType) -> Any:
    if element.is_floating:
        if word.startswith("0x"):
            width = element.dtype.itemsize
            return np.frombuffer(int(word, 16).to_bytes(width, "little"), element.dtype)[0]
        return np.float64(word).astype(element.dtype)
    return int(word)

"""Dense constants as numpy arrays.

jaxlib gives constants of the common types as buffers. Of the others (bfloat16, floats of a byte or less, integers of
2 and 4 bits, complex numbers) it gives only text: a nested list, or for more than a hundred elements one hexadecimal
string of the raw bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.mlir_types import element_named

Array = np.ndarray[Any, Any]

_BUFFERED = frozenset(("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "f32", "f64", "index"))


def decode_dense(attribute: Any) -> Array:
    """Return a dense elements attribute as a read-only array of the tensor's shape.

    Raises:
        UnimplementedError: the constant is stored in an unsupported way.
    """
    if str(attribute.type.element_type) in _BUFFERED:
        array: Array = np.array(attribute)  # a copy: the attribute's memory belongs to MLIR
        array.flags.writeable = False
        return array
    return parse_dense(str(attribute))


_DENSE = r"dense<(?P<body>.*)> : tensor<(?P<dims>(?:\d+x)*)(?P<element>[^x].*)>$"


def parse_dense(text: str) -> Array:
    """Return the array that ``dense<…> : tensor<…>`` spells; it is read-only.

    Raises:
        UnimplementedError: the text is not that of a dense constant.
    """
    match = re.match(_DENSE, text, re.DOTALL)
    if match is None:
        raise UnimplementedError(f"expected a dense constant, found {text[:80]}")
    element = element_named(match["element"])
    shape = tuple(int(size) for size in match["dims"].split("x")[:-1])
    body = match["body"].strip()
    if body.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(body[3:-1]), element.dtype).copy()
    else:
        flat = _from_words(body, element)
    count = math.prod(shape)
    if flat.size == 1 and count != 1:
        array = np.full(shape, flat[0], element.dtype)
    elif flat.size == count:
        array = flat.reshape(shape)
    else:
        raise InvalidArgumentError(f"expected {count} elements in a constant of shape {shape}, found {flat.size}")
    array.flags.writeable = False
    return array


def _from_words(body: str, element: ElementType) -> Array:
    if element.is_complex:
        half = ElementType.F32 if element is ElementType.C64 else ElementType.F64
        parts = np.array([_word(word, half) for word in re.findall(r"[^\s,()\[\]]+", body)], half.dtype)
        return parts.view(element.dtype)
    return np.array([_word(word, element) for word in re.findall(r"[^\s,\[\]]+", body)], element.dtype)


def _word(word: str, element: ElementType) -> Any:
    if word in ("true", "false"):
        return word == "true"
    if not element.is_floating:
        return int(word)
    if word.startswith("0x"):
        return np.frombuffer(int(word, 16).to_bytes(element.dtype.itemsize, "little"), element.dtype)[0]
    return np.float64(word).astype(element.dtype)

"""MLIR's attributes as plain Python values, which ``attributes`` describes, and its constants as numpy arrays.

Use it to walk through a module of MLIR (see ``conversion.to_module``); ``parser.parse`` reads a whole program. An
attribute without a form there is no error: it becomes an ``Opaque`` with MLIR's spelling, which the caller may refuse.

jaxlib gives constants of the common types as buffers. Of the others (bfloat16, floats of a byte or less, integers of
2 and 4 bits, complex numbers) it gives only text: a nested list, or for more than a hundred elements one hexadecimal
string of the raw bytes. Tools of MLIR write large constants as resources beside the module, which XLA does not read:
``put_resources_in_place``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.ir.mlir_module import MlirModule, walk
from pjrt.stablehlo.ir.types import binding, decode_type, element_named

if TYPE_CHECKING:
    from pjrt.stablehlo.ir.attributes import Opaque


Array = np.ndarray[Any, Any]

_BUFFERED = frozenset(("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "f32", "f64", "index"))


def decode_dense(attribute: Any) -> Array:
    """Return a dense elements attribute as a read-only array of the tensor's shape.

    A large one whose elements are all equal is a view of one element.

    Raises:
        UnimplementedError: the constant is stored in an unsupported way.
    """
    if str(attribute.type.element_type) in _BUFFERED:
        elements: Array = np.asarray(attribute)
        if elements.size > _LARGEST_WITH_EQUAL_ELEMENTS and not any(elements.strides):
            return _repeated(elements[(0,) * elements.ndim], elements.shape)
        array = elements.copy()  # the attribute's memory belongs to MLIR
        array.flags.writeable = False
        return array
    return parse_dense(str(attribute))


_LARGEST_WITH_EQUAL_ELEMENTS = 1 << 16
"""The most elements of an array of equal ones that is made in full: computing with it is faster than with a view."""

_DENSE = r"dense<(?P<body>.*)> : tensor<(?P<dims>(?:\d+x)*)(?P<element>[^x].*)>$"


def parse_dense(text: str) -> Array:
    """Return the array that ``dense<…> : tensor<…>`` spells, as ``decode_dense`` does.

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
    if flat.size == 1 and count > _LARGEST_WITH_EQUAL_ELEMENTS:
        return _repeated(flat[0], shape)
    if flat.size == 1 and count != 1:
        array = np.full(shape, flat[0], element.dtype)
    elif flat.size == count:
        array = flat.reshape(shape)
    else:
        raise InvalidArgumentError(f"expected {count} elements in a constant of shape {shape}, found {flat.size}")
    array.flags.writeable = False
    return array


def _repeated(element: Any, shape: tuple[int, ...]) -> Array:
    """Return a read-only view of a copy of one element."""
    return np.broadcast_to(np.array(element), shape)


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


_RESOURCE = r'dense_resource<("[^"]*"|[^>]*)> : (.*)'
_BLOB = r'^ *("[^"]*"|[^\s":]+): "0x([0-9A-Fa-f]*)"'
_ALIGNMENT_DIGITS = 8
"""The digits before those of the values: the alignment of a resource, four bytes."""


def left_out(module: MlirModule) -> list[Any]:
    """Return the constants whose values were left out when a module was written, as operations of MLIR."""
    with module as mlir:
        return [operation for operation in walk(mlir.operation) if _resource_of(operation) is not None]


def put_resources_in_place(module: MlirModule) -> None:
    """Replace constants that name a resource by dense ones; those whose values were left out stay as they are.

    Raises:
        InvalidArgumentError: a resource has not as many bytes as its constant needs.
    """
    with module as mlir:
        found = [(operation, _resource_of(operation)) for operation in walk(mlir.operation)]
        named = [(operation, name) for operation, name in found if name is not None]
        if not named:
            return
        # MLIR's bindings give the bytes of a resource only as the end of the module's text.
        text = mlir.operation.get_asm(large_elements_limit=1)
        blobs = dict(re.findall(_BLOB, text[text.rfind("{-#") :], re.MULTILINE))
        ir = jaxlib.load("mlir.ir", "read programs")
        for operation, name in named:
            if name in blobs:
                type_ = ir.ShapedType(operation.results[0].type)
                dense = _dense_text(type_, name, blobs[name][_ALIGNMENT_DIGITS:], operation.location)
                # Parsed as an operation: the bindings have no object for a constant of complex numbers.
                text = f'"{operation.name}"() {{value = {dense} : {type_}}} : () -> {type_} {operation.location}'
                constant = ir.Operation.parse(text)
                ir.InsertionPoint(operation).insert(constant)
                operation.results[0].replace_all_uses_with(constant.results[0])
                operation.erase()


def _resource_of(operation: Any) -> str | None:
    """Return the name of the resource that has the value of a constant; None for all other operations."""
    if not operation.name.endswith(".constant") or "value" not in operation.attributes:
        return None
    try:
        value = operation.attributes["value"]
    except TypeError:  # a dense constant of complex numbers, which the bindings have no object for
        return None
    if type(value).__name__ != "Attribute":  # they have a class for all other constants
        return None
    match = re.match(_RESOURCE, str(value))
    return None if match is None else match[1]


def _dense_text(type_: Any, name: str, digits: str, location: object) -> str:
    """Return how MLIR spells a dense constant whose bytes a resource has."""
    element = str(type_.element_type)
    bits, count = 1 if element == "i1" else element_named(element).bits, math.prod(type_.shape)
    data = np.frombuffer(bytes.fromhex(digits), np.uint8)
    if bits < 8 and data.size == -(-count * bits // 8) != count:  # packed, the first element lowest
        parts = np.unpackbits(data, bitorder="little")[: count * bits].reshape(-1, bits)
        data = np.packbits(parts, axis=1, bitorder="little").reshape(-1)
    expected = count * max(bits, 8) // 8
    if data.size != expected:
        raise InvalidArgumentError(
            f"expected {expected} bytes in the resource {name} for a constant of type {type_}, found {data.size} "
            f"[{location}]"
        )
    if not count:
        return "dense<>"
    if bits == 1:
        return f"dense<{data.reshape(type_.shape).astype(bool).tolist()}>".lower()
    return f'dense<"0x{data.tobytes().hex()}">'


def decode_attribute_of(operation: Any, name: str) -> Any:
    """Return an attribute of an operation by its name, also of the kinds that the bindings have no object for.

    Raises:
        KeyError: the operation has no such attribute.
    """
    try:
        attribute = operation.attributes[name]
    except TypeError:  # the bindings have no object for a complex constant
        return _from_text(operation, name)
    return decode_attribute(attribute)


def decode_attribute(attribute: Any) -> Any:
    """Return an attribute as a plain Python value, by the table of ``attributes``."""
    decode = _DECODERS.get(type(attribute).__name__, _decode_other)
    try:
        return decode(attribute)
    except (PjrtError, TypeError):  # a constant inside another attribute that the bindings or numpy have no form for
        return _opaque(str(attribute))


def _opaque(text: str) -> Opaque:
    from pjrt.stablehlo.ir.attributes import Opaque  # here: a signature alone needs none of these classes

    return Opaque(text)


def _decode_string(attribute: Any) -> str | bytes:
    content = bytes(attribute.value_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


# StableHLO's records by their spelling: the dialect and the class in the bindings that read their fields. The class in
# ``attributes`` has the same name.
_RECORDS = {
    "dot": ("stablehlo", "DotDimensionNumbers"),
    "ragged_dot": ("chlo", "RaggedDotDimensionNumbers"),
    "dot_algorithm": ("stablehlo", "DotAlgorithm"),
    "conv": ("stablehlo", "ConvDimensionNumbers"),
    "gather": ("stablehlo", "GatherDimensionNumbers"),
    "scatter": ("stablehlo", "ScatterDimensionNumbers"),
    "channel_handle": ("stablehlo", "ChannelHandle"),
    "output_operand_alias": ("stablehlo", "OutputOperandAlias"),
    "result_accuracy": ("stablehlo", "ResultAccuracyAttr"),
}

_DIALECT_ATTRIBUTE = re.compile(r"#(?:stablehlo|chlo)(?:<\w+ (?P<value>\w+)>|\.(?P<kind>\w+)<)")


def _decode_other(attribute: Any) -> Any:
    """Return an attribute of StableHLO's or chlo's: an enum, a record, or an ``Opaque``.

    Enums print as ``#stablehlo<kind VALUE>`` or ``#stablehlo.kind<VALUE>``, records as ``#stablehlo.kind<…>``.
    """
    text = str(attribute)
    match = _DIALECT_ATTRIBUTE.match(text)
    if match is None:
        return _opaque(text)
    if match["value"] is not None:
        return match["value"]
    record = _RECORDS.get(match["kind"])
    if record is not None:
        return _decode_record(attribute, *record)
    inside = text[match.end() : -1]
    return inside if inside.isidentifier() else _opaque(text)


def _decode_record(attribute: Any, dialect: str, class_name: str) -> Any:
    from pjrt.stablehlo.ir import attributes

    typed = binding(dialect, class_name)(attribute)
    record = getattr(attributes, class_name.removesuffix("Attr"))
    return record(*(_plain(getattr(typed, field.name)) for field in fields(record)))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, (int, float, str)):
        return value
    return decode_attribute(value) if hasattr(value, "attr") or "Attr" in type(value).__name__ else decode_type(value)


def _from_text(operation: Any, name: str) -> Any:
    """Return an attribute cut out of the operation's generic form."""
    text: str = operation.get_asm(print_generic_op_form=True)
    match = re.search(rf"\b{re.escape(name)} = (dense<.*?> : tensor<[^<>]*(?:<[^<>]*>)?>)", text, re.DOTALL)
    if match is None:
        return _opaque(text[:80])
    return parse_dense(match[1])


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "BoolAttr": lambda a: bool(a.value),
    "IntegerAttr": lambda a: int(a.value),
    "FloatAttr": lambda a: float(a.value),
    "StringAttr": _decode_string,
    "FlatSymbolRefAttr": lambda a: str(a.value),
    "SymbolRefAttr": lambda a: str(a.value[-1]),
    "UnitAttr": lambda a: True,
    "TypeAttr": lambda a: decode_type(a.value),
    "ArrayAttr": lambda a: tuple(decode_attribute(inner) for inner in a),
    "DictAttr": lambda a: {item.name: decode_attribute(item.attr) for item in a},
    "DenseBoolArrayAttr": lambda a: tuple(bool(element) for element in a),
    "DenseElementsAttr": decode_dense,
    "DenseIntElementsAttr": decode_dense,
    "DenseFPElementsAttr": decode_dense,
    "DenseResourceElementsAttr": decode_dense,
    **{f"Dense{kind}ArrayAttr": tuple for kind in ("I8", "I16", "I32", "I64", "F32", "F64")},
}


_LONGEST_DICTIONARY = 1000
"""The characters of a dictionary that is read: MLIR's parser recurses into what nests."""


def dictionary_of(text: str) -> Mapping[str, Any] | None:
    """Return the values of a dictionary that MLIR spells, such as ``{a = 1 : i64, b = "c"}``; None for other text."""
    if len(text) > _LONGEST_DICTIONARY:
        return None
    ir = jaxlib.load("mlir.ir", "read attributes")
    with ir.Context() as context:
        try:
            attribute = ir.Attribute.parse(text, context)
        except (ir.MLIRError, ValueError):
            return None
        value = decode_attribute(attribute)
        return value if isinstance(value, Mapping) else None

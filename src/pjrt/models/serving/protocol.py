"""The Open Inference Protocol, version 2: its messages in JSON, and with the extension for binary data.

KServe and NVIDIA Triton speak it. Arrays are lists of numbers in JSON; or their bytes, row-major and little-endian,
which follow the JSON one after another, and whose number stands in ``binary_data_size``. The header of HTTP
``HEADER_LENGTH`` then has the size of the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType, are_python_numbers, number_array
from pjrt.api.errors import InvalidArgumentError, UnimplementedError, naming
from pjrt.stablehlo.facts.signatures import Parameter, Result

Array = np.ndarray[Any, Any]

HEADER_LENGTH = "Inference-Header-Content-Length"
_MOST_DIGITS = 20

_DATATYPES = {
    ElementType.PRED: "BOOL",
    ElementType.S8: "INT8",
    ElementType.S16: "INT16",
    ElementType.S32: "INT32",
    ElementType.S64: "INT64",
    ElementType.U8: "UINT8",
    ElementType.U16: "UINT16",
    ElementType.U32: "UINT32",
    ElementType.U64: "UINT64",
    ElementType.F16: "FP16",
    ElementType.BF16: "BF16",
    ElementType.F32: "FP32",
    ElementType.F64: "FP64",
}


def check_types(values: Sequence[Result]) -> None:
    """Check that the protocol has the element types of a model.

    Raises:
        UnimplementedError: it lacks one.
    """
    for value in values:
        if value.element_type not in _DATATYPES:
            raise UnimplementedError(
                f"expected element types of the Open Inference Protocol ({', '.join(_DATATYPES.values())}), found "
                f"{value}: convert it in the model"
            )


def metadata(
    name: str, platform: str, parameters: Sequence[Parameter], results: Mapping[str, Result]
) -> dict[str, Any]:
    """Return the message that describes a model. A dynamic size is -1."""

    def described(name: str, value: Result) -> dict[str, Any]:
        shape = [size if isinstance(size, int) else -1 for size in value.shape]
        return {"name": name, "datatype": _DATATYPES[value.element_type], "shape": shape}

    return {
        "name": name,
        "versions": ["1"],
        "platform": f"pjrt_{platform}",
        "inputs": [described(input_name(each), each) for each in parameters],
        "outputs": [described(name, value) for name, value in results.items()],
    }


def input_name(parameter: Parameter) -> str:
    """Return the name of an input: that of the parameter, or else ``input_0`` by its index."""
    return parameter.name or f"input_{parameter.index}"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for results.

    Attributes:
        id: the name that the client gave it; empty if it gave none.
        arrays: the arrays, one for each parameter.
        outputs: the names of the results to return, and whether each is returned as binary data.
    """

    id: str
    arrays: list[Array]
    outputs: dict[str, bool]


def read_request(
    body: bytes, header_length: str | None, parameters: Sequence[Parameter], results: Sequence[str]
) -> Request:
    """Return the request in the body of a message.

    Args:
        body: the body.
        header_length: the value of the header ``HEADER_LENGTH``; None if the message lacks it.
        parameters: the parameters of the model.
        results: the names of its results.

    Raises:
        InvalidArgumentError: the request is not of the protocol, or does not fit the model.
    """
    size = len(body)
    if header_length is not None:
        digits = header_length if header_length.isascii() and header_length.isdigit() else ""
        if not 0 < len(digits) < _MOST_DIGITS or int(digits) > size:
            raise InvalidArgumentError(
                f"expected a number up to the {size} bytes of the request as {HEADER_LENGTH}, found {header_length!r}"
            )
        size = int(digits)
    try:
        message = json.loads(body[:size])
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"expected a request in JSON, found {size} bytes: {error}") from error
    try:
        given = read_inputs(message["inputs"], memoryview(body)[size:], {input_name(each): each for each in parameters})
        options = message.get("parameters") or {}
        wanted = message.get("outputs") or [{"name": name} for name in results]
        all_binary = options.get("binary_data_output") is True
        outputs = {
            each["name"]: (each.get("parameters") or {}).get("binary_data", all_binary) is True for each in wanted
        }
        identity = str(message.get("id") or "")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"expected a request of the Open Inference Protocol with inputs, each with name, shape, datatype and data, "
            f"found another ({type(error).__name__}: {error})"
        ) from error
    check_outputs(outputs, results)
    return Request(identity, [given[input_name(each)] for each in parameters], outputs)


def check_outputs(wanted: Iterable[str], results: Sequence[str]) -> None:
    """Check that a model has the results that are asked for.

    Raises:
        InvalidArgumentError: it lacks one.
    """
    unknown = [name for name in wanted if name not in results]
    if unknown:
        raise InvalidArgumentError(f"expected outputs among {', '.join(results)}, found {unknown[0]!r}")


def read_inputs(messages: Any, binary: memoryview, known: Mapping[str, Parameter]) -> dict[str, Array]:
    """Return the arrays of a request by name: from the messages of its inputs, and the bytes of all of them in turn.

    Raises:
        InvalidArgumentError: they do not fit the parameters.
    """
    given: dict[str, Array] = {}
    begin = 0
    for each in messages:
        name = each["name"]
        if name not in known or name in given:
            found = f"{name!r} twice" if name in given else repr(name)
            raise InvalidArgumentError(f"expected inputs with the names {', '.join(known)}, found {found}")
        parameter = known[name]
        size = (each.get("parameters") or {}).get("binary_data_size")
        with naming(f"input {name}"):
            _check(parameter, each["datatype"], each["shape"])
            if size is None:
                given[name] = _of_numbers(each["data"], parameter, each["shape"])
                continue
            if type(size) is not int or not 0 <= size <= len(binary) - begin:
                raise InvalidArgumentError(
                    f"expected {size} bytes of binary data, found {len(binary) - begin} behind the JSON"
                )
            given[name] = _of_bytes(binary[begin : begin + size], parameter, each["shape"])
            begin += size
    missing = [name for name in known if name not in given]
    if missing:
        raise InvalidArgumentError(f"expected inputs with the names {', '.join(known)}, found none for {missing[0]}")
    if begin != len(binary):
        raise InvalidArgumentError(f"expected {begin} bytes of binary data behind the JSON, found {len(binary)}")
    return given


def _check(parameter: Parameter, datatype: Any, shape: Any) -> None:
    expected = _DATATYPES[parameter.element_type]
    if datatype != expected:
        raise InvalidArgumentError(f"expected the datatype {expected}, found {datatype!r}")
    fits = isinstance(shape, list) and len(shape) == len(parameter.shape)
    if not fits or not all(
        type(size) is int and size >= 0 and (size == wanted or not isinstance(wanted, int))
        for size, wanted in zip(shape, parameter.shape, strict=True)
    ):
        wanted = [size if isinstance(size, int) else -1 for size in parameter.shape]
        raise InvalidArgumentError(f"expected the shape {wanted}, where -1 is any size, found {shape}")


def _of_numbers(data: Any, parameter: Parameter, shape: Sequence[int]) -> Array:
    if data != [] and not are_python_numbers(data):
        raise InvalidArgumentError("expected numbers, or nested lists of them, as data")
    array = number_array(data, parameter.element_type)
    if array.size != math.prod(shape):
        raise InvalidArgumentError(f"expected {math.prod(shape)} numbers for the shape {shape}, found {array.size}")
    return array.reshape(shape)


def _of_bytes(data: memoryview, parameter: Parameter, shape: Sequence[int]) -> Array:
    dtype = parameter.element_type.dtype
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise InvalidArgumentError(f"expected {expected} bytes of binary data for the shape {shape}, found {len(data)}")
    return np.frombuffer(data, np.uint8).view(dtype).reshape(shape)


def datatype(array: Array) -> str:
    """Return the protocol's name of the element type of a result."""
    return _DATATYPES[ElementType.of(array.dtype)]


def write_response(name: str, request: Request, results: Mapping[str, Array]) -> tuple[bytes, int | None]:
    """Return the body of the answer to a request, and the size of its JSON; None if nothing but JSON is in it.

    Args:
        name: the name of the model.
        request: the request.
        results: all results, by name.

    Raises:
        InvalidArgumentError: a result has values that JSON lacks.
    """
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for output, is_binary in request.outputs.items():
        array = results[output]
        described: dict[str, Any] = {
            "name": output,
            "datatype": datatype(array),
            "shape": list(array.shape),
        }
        if is_binary:
            parts.append(np.ascontiguousarray(array).tobytes())
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = array.reshape(-1).tolist()
        outputs.append(described)
    message = {"model_name": name, "model_version": "1", "outputs": outputs}
    if request.id:
        message["id"] = request.id
    try:
        head = json.dumps(message, allow_nan=False).encode()
    except ValueError as error:
        raise InvalidArgumentError(
            "expected results that JSON can hold, found NaN or infinite values: ask for binary data"
        ) from error
    return b"".join([head, *parts]), len(head) if parts else None

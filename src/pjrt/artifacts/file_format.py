"""The file of a saved executable: a magic line, the length of a header, the header (JSON), the plugin's own bytes, and
a SHA-256 of all of it.

The checksum detects damage, not forgery: each fact of the header is checked before it is used.
"""

from __future__ import annotations

import base64
import json
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.executable import CompiledMemoryStats
from pjrt.artifacts import saved_weights

FORMAT_VERSION = 1

_MAGIC = b"pjrt executable\n"
_HASH_SIZE = 32


def is_saved_executable(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is a saved executable, damaged or not."""
    return beginning.startswith(_MAGIC)


def pack(header: Mapping[str, Any], code: bytes) -> bytes:
    """Return the bytes of a file.

    Args:
        header: the facts of the executable, as values of JSON.
        code: the plugin's own bytes.
    """
    written = json.dumps({**header, "format_version": FORMAT_VERSION}, sort_keys=True).encode()
    content = b"".join([_MAGIC, len(written).to_bytes(4, "little"), written, code])
    return content + _sha256(content)


def unpack(data: bytes, source: str) -> tuple[dict[str, Any], bytes]:
    """Return the header and the plugin's bytes that ``pack`` was given.

    Args:
        data: the bytes of a file.
        source: their origin, for messages.

    Raises:
        InvalidArgumentError: the bytes are not a saved executable.
        DataLossError: the file is damaged, or its header lacks a fact.
        FailedPreconditionError: another version of the format wrote it.
    """
    if not data.startswith(_MAGIC):
        raise InvalidArgumentError(
            f"{source}: expected a saved executable, found {len(data)} bytes that begin with {data[:16]!r}"
        )
    content, digest = data[:-_HASH_SIZE], data[-_HASH_SIZE:]
    if _sha256(content) != digest:
        raise DataLossError(f"{source}: the saved executable is damaged or cut off; compile and save it again")
    begin = len(_MAGIC) + 4
    end = begin + int.from_bytes(data[len(_MAGIC) : begin], "little")
    return _read_header(content[begin:end], source), content[end:]


def _sha256(content: bytes) -> bytes:
    # It loads OpenSSL, which programs without saved executables do not need.
    import hashlib

    return hashlib.sha256(content).digest()


def _is_count(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < 1 << 64


def _is_base64(value: Any) -> bool:
    try:
        base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        return False
    return isinstance(value, str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_compile_options(value: Any) -> bool:
    if not _is_base64(value):
        return False
    try:
        CompileOptions.from_proto(base64.b64decode(value))
    except PjrtError:
        return False
    return True


def _is_signature(value: Any) -> bool:
    from pjrt.artifacts import saved_signature

    try:
        saved_signature.from_json(value)
    except PjrtError:
        return False
    return True


_STATS = frozenset(CompiledMemoryStats._fields)

# The required and the optional facts of a header, with the check of each.
_NEEDED: dict[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "num_replicas": lambda value: _is_count(value, 1),
    "num_partitions": lambda value: _is_count(value, 1),
    "num_outputs": _is_count,
    "compiled_for": lambda value: value in ("client", "topology"),
    "platform_name": _is_text,
    "platform_version": _is_text,
    "device_kind": _is_text,
}
_OPTIONAL: dict[str, Callable[[Any], bool]] = {
    "size_of_generated_code": lambda value: type(value) is int,
    "output_element_types": lambda value: _is_list_of(
        value, lambda name: _is_text(name) and name in ElementType.__members__
    ),
    "output_shapes": lambda value: _is_list_of(value, lambda shape: _is_list_of(shape, lambda size: type(size) is int)),
    "output_memory_kinds": lambda value: _is_list_of(value, _is_text),
    "parameter_memory_kinds": lambda value: _is_list_of(value, _is_text),
    "cost_analysis": lambda value: (
        isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())
    ),
    "memory_stats": lambda value: (
        isinstance(value, dict) and value.keys() <= _STATS and all(type(number) is int for number in value.values())
    ),
    "fingerprint": _is_base64,
    "abi_version": lambda value: (
        isinstance(value, list) and len(value) == 2 and _is_count(value[0]) and _is_base64(value[1])
    ),
    "compile_options": _is_compile_options,
    "parameter_shardings": lambda value: _is_list_of(value, _is_base64),
    "output_shardings": lambda value: _is_list_of(value, _is_base64),
    "signature": _is_signature,
    "weights": saved_weights.is_facts,
    "code_size": _is_count,
}


def _read_header(data: bytes, source: str) -> dict[str, Any]:
    """The facts that a file states, each of its form.

    Raises:
        DataLossError: a fact is missing, or is none.
        FailedPreconditionError: they are of another version of this format.
    """
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(source, f"its header is not written in JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(source, f"its header is {reprlib.repr(header)}, which is no table")
    written = header.get("format_version")
    if written != FORMAT_VERSION:
        raise FailedPreconditionError(
            f"{source}: expected format {FORMAT_VERSION} of saved executables, found {reprlib.repr(written)}; "
            "load it with the version of pjrt that wrote it, or compile it again"
        )
    for name in _NEEDED:
        if name not in header:
            raise _damaged(source, f"its header does not say {name}")
    for name, is_right in {**_NEEDED, **_OPTIONAL}.items():
        if name in header and not is_right(header[name]):
            raise _damaged(source, f"its header says {reprlib.repr(header[name])} as {name}")
    if "signature" in header:
        _check_positions(header, source)
    return header


def _check_positions(header: Mapping[str, Any], source: str) -> None:
    """Raise an error unless each argument of the program is a parameter or a weight."""
    parameters = [each["argument"] for each in header["signature"]["parameters"] if each["argument"] is not None]
    positions = sorted([*parameters, *(position for position, _, _ in header.get("weights", ()))])
    if positions != list(range(len(positions))):
        raise _damaged(source, f"its header says {reprlib.repr(positions)} as the positions of arguments")


def _damaged(source: str, reason: str) -> DataLossError:
    return DataLossError(f"{source}: the saved executable is damaged: {reason}; compile and save it again")

"""The file of a saved executable: a magic line, the length of a header, the header (JSON), the plugin's own bytes,
those of weights, and a SHA-256 of all of it.

The header has the facts of the executable, and may have its call signature. The checksum detects damage, not forgery:
each fact of the header is checked before it is used.
"""

from __future__ import annotations

import base64
import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import CompiledMemoryStats, Executable, ExecutableAbiVersion
from pjrt.stablehlo.facts.signatures import CallSignature, Parameter, Result
from pjrt.stablehlo.ir.tree import DEEPEST, Tree, TreeKind

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


def unpack(data: bytes, source: str) -> tuple[dict[str, Any], memoryview]:
    """Return the header and the bytes behind it that ``pack`` was given; those share the memory of ``data``.

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
    content, digest = memoryview(data)[:-_HASH_SIZE], data[-_HASH_SIZE:]
    if _sha256(content) != digest:
        raise DataLossError(f"{source}: the saved executable is damaged or cut off; compile and save it again")
    begin = len(_MAGIC) + 4
    end = begin + int.from_bytes(data[len(_MAGIC) : begin], "little")
    return _read_header(bytes(content[begin:end]), source), content[end:]


Weights = Mapping[int, np.ndarray[Any, Any]]
"""Arrays by their positions among the arguments of the program."""


def weight_facts(weights: Weights, code_size: int) -> dict[str, Any]:
    """Return the facts of a header that describe weights.

    Args:
        weights: the weights.
        code_size: the number of bytes in front of them.
    """
    described = [
        [position, ElementType.of(array.dtype).name, list(array.shape)] for position, array in sorted(weights.items())
    ]
    return {"weights": described, "code_size": code_size}


def are_weight_facts(value: Any) -> bool:
    """Whether a value of a header describes weights."""
    return isinstance(value, list) and all(map(_is_weight, value))


def _is_weight(value: Any) -> bool:
    match value:
        case [int(position), str(kind), list(shape)]:
            return (
                position >= 0
                and kind in ElementType.__members__
                and ElementType[kind] not in (ElementType.INVALID, ElementType.TOKEN)
                and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
            )
    return False


def weight_bytes(weights: Weights) -> list[bytes | memoryview]:
    """Return the bytes of weights, in the order of their positions: row-major, a byte at least for each element."""
    return [np.ascontiguousarray(array).tobytes() for _, array in sorted(weights.items())]


def split_weights(header: Mapping[str, Any], content: memoryview, source: str) -> tuple[bytes, Weights]:
    """Return an executable's bytes and its weights, which share the memory of ``content``.

    Args:
        header: the header of the file.
        content: the bytes behind the header.
        source: their origin, for messages.

    Raises:
        DataLossError: the sizes in the header are not those of the bytes.
    """
    described: Sequence[Any] = header.get("weights", ())
    if not described:
        return bytes(content), {}
    begin = header.get("code_size", -1)
    weights: dict[int, np.ndarray[Any, Any]] = {}
    for position, name, shape in described:
        dtype, count = ElementType[name].dtype, math.prod(shape)
        end = begin + count * dtype.itemsize
        if not 0 <= begin <= end <= len(content) or position in weights:
            raise _damaged(source, "its weights are not of the sizes in its header")
        array = np.frombuffer(content, dtype, count, begin) if count else np.zeros(0, dtype)
        weights[position] = array.reshape(shape)
        begin = end
    if begin != len(content):
        raise _damaged(source, "its weights are not of the sizes in its header")
    return bytes(content[: header["code_size"]]), weights


def _sha256(content: bytes | memoryview) -> bytes:
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
    try:
        signature_from_json(value)
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
    "weights": are_weight_facts,
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


_QUESTIONS: dict[str, Callable[[Executable], Any]] = {
    "size_of_generated_code": lambda executable: executable.size_of_generated_code,
    "output_element_types": lambda executable: [kind.name for kind in executable.output_element_types],
    "output_shapes": lambda executable: [list(shape) for shape in executable.output_shapes],
    "output_memory_kinds": lambda executable: list(executable.output_memory_kinds),
    "parameter_memory_kinds": lambda executable: list(executable.parameter_memory_kinds),
    "parameter_shardings": lambda executable: _shardings(executable.parameter_shardings),
    "output_shardings": lambda executable: _shardings(executable.output_shardings),
    "cost_analysis": lambda executable: dict(executable.cost_analysis()),
    "memory_stats": lambda executable: executable.memory_stats()._asdict(),
    "fingerprint": lambda executable: base64.b64encode(executable.fingerprint()).decode(),
    "abi_version": lambda executable: _abi_version(executable.abi_version()),
    "compile_options": lambda executable: base64.b64encode(executable.compile_options().to_proto()).decode(),
}


def facts_of(executable: Executable) -> dict[str, Any]:
    """Return the facts of an executable; those that its compiler does not report are left out."""
    facts: dict[str, Any] = {
        "name": executable.name,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "num_outputs": executable.num_outputs,
    }
    for name, question in _QUESTIONS.items():
        try:
            facts[name] = question(executable)
        except PjrtError:
            # A fact is not worth a failure: some compilers answer these questions with an internal error.
            continue
    return facts


def _abi_version(version: ExecutableAbiVersion) -> tuple[int, str]:
    return version.platform_id, base64.b64encode(version.to_proto()).decode()


def _shardings(shardings: Sequence[bytes] | None) -> list[str]:
    if shardings is None:
        raise UnimplementedError("the executable does not report shardings")
    return [base64.b64encode(each).decode() for each in shardings]


class SavedAbiVersion(ExecutableAbiVersion):
    """A saved ABI version."""

    __slots__ = ("_platform_id", "_proto")

    def __init__(self, platform_id: int, proto: bytes) -> None:
        self._platform_id = platform_id
        self._proto = proto

    @property
    def platform_id(self) -> int:
        return self._platform_id

    def to_proto(self) -> bytes:
        return self._proto


def signature_to_json(signature: CallSignature) -> dict[str, Any]:
    """Return a call signature as a value of JSON."""
    return {
        "parameters": [
            {**_result_to_json(each), "donated": each.donated, "argument": each.argument}
            for each in signature.parameters
        ],
        "results": [_result_to_json(each) for each in signature.results],
        "input_tree": None if signature.input_tree is None else _tree_to_json(signature.input_tree),
        "output_tree": None if signature.output_tree is None else _tree_to_json(signature.output_tree),
        **({"updates": list(signature.updates.values())} if signature.updates else {}),
    }


def signature_from_json(value: Any, *, dynamic: bool = False) -> CallSignature:
    """Return the call signature in a value of JSON.

    Args:
        value: the value.
        dynamic: whether sizes may be known only when the program is called, as those of an executable may not.

    Raises:
        InvalidArgumentError: the value is no call signature.
    """
    try:
        parameters = tuple(
            Parameter(
                *_read_result(index, each),
                donated=_expect(bool, each["donated"]),
                argument=_read_position(each["argument"]),
            )
            for index, each in enumerate(_expect(list, value["parameters"]))
        )
        results = tuple(
            Result(*_read_result(index, each)) for index, each in enumerate(_expect(list, value["results"]))
        )
        taken, given = (
            None if value[name] is None else _read_tree(value[name], 0) for name in ("input_tree", "output_tree")
        )
        updated = [_read_count(each) for each in _expect(list, value.get("updates", []))]
        if len(updated) > len(results):
            raise ValueError(f"{len(updated)} new values among {len(results)} results")
        returned = results[: len(results) - len(updated)]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected the signature of a program, found {type(error).__name__}: {error}"
        ) from error
    for tree, leaves in ((taken, parameters), (given, returned)):
        if tree is not None and tree.num_leaves != len(leaves):
            raise InvalidArgumentError(f"expected {len(leaves)} leaves in {tree}, found {tree.num_leaves}")
    needed = (each for each in parameters if each.argument is not None)
    if not dynamic and any(each.is_dynamic for each in (*results, *needed)):
        raise InvalidArgumentError("expected static shapes of the arguments and results of an executable")
    return CallSignature(parameters, results, taken, given, dict(enumerate(updated, len(returned))))


def _result_to_json(value: Result) -> dict[str, Any]:
    return {
        "name": value.name,
        "element_type": value.element_type.name,
        "shape": list(value.shape),
        "sharding": value.sharding,
    }


def _read_result(index: int, value: Any) -> tuple[int, str, ElementType, tuple[int | str | None, ...], str]:
    shape = tuple(_read_size(size) for size in _expect(list, value["shape"]))
    return (
        index,
        _expect(str, value["name"]),
        ElementType[value["element_type"]],
        shape,
        _expect(str, value["sharding"]),
    )


def _read_size(size: Any) -> int | str | None:
    if size is None or isinstance(size, str):
        return size
    return _read_count(size)


def _read_position(value: Any) -> int | None:
    return None if value is None else _read_count(value)


def _read_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a number from 0 up, found {value!r}")
    return value


def _tree_to_json(tree: Tree) -> dict[str, Any]:
    written: dict[str, Any] = {"kind": tree.kind.value}
    if tree.children:
        written["children"] = [_tree_to_json(child) for child in tree.children]
    if tree.keys:
        written["keys"] = list(tree.keys)
    if tree.name:
        written["name"] = tree.name
    if tree.data:
        written["data"] = base64.b64encode(tree.data).decode()
    return written


def _read_tree(value: Any, depth: int) -> Tree:
    if depth > DEEPEST:
        raise ValueError(f"a tree of more than {DEEPEST} levels")
    return Tree(
        TreeKind(_expect(dict, value)["kind"]),
        tuple(_read_tree(child, depth + 1) for child in _expect(list, value.get("children", []))),
        tuple(_expect(str, key) for key in _expect(list, value.get("keys", []))),
        _expect(str, value.get("name", "")),
        base64.b64decode(_expect(str, value.get("data", "")), validate=True),
    )


def _expect(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value

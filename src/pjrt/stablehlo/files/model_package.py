"""Models in one file (``.pjrt``): a program, its weights, and how a caller sees its arguments and results.

The file is a zip archive without compression. Any tool unpacks it:

- ``pjrt_model.json``: the platforms, the arguments and results, and the names and types of the weights,
- ``program.mlirbc``: the program, as a portable artifact of StableHLO,
- ``weights.safetensors``: the weights, mapped into memory where the file is.

Nothing in it is code for Python. The archive's checksums detect damage; all sizes are checked against the file's before
anything is read.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, FailedPreconditionError, PjrtError
from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo.encodings.format import MODEL_FACTS, ZIP_MAGIC, ZIP_NAME
from pjrt.stablehlo.files.contents import FileContents, reading
from pjrt.stablehlo.files.safetensors import Array, read_safetensors, write_safetensors
from pjrt.system import writing_whole

FORMAT_VERSION = 1

_PROGRAM, _WEIGHTS = "program.mlirbc", "weights.safetensors"
_LARGEST_FACTS = 64 << 20
_CHUNK = 1 << 20
_TIME = (1980, 1, 1, 0, 0, 0)  # the same model is the same bytes


@dataclass(frozen=True, slots=True)
class ModelPackage(FileContents):
    """The contents of a model in one file.

    Attributes:
        program: the program.
        signature: the arguments and results as a value of JSON, unchecked.
        platforms: the platforms that the program is for. If there are several, its first argument is their index.
        weights: the weights, by their positions among the arguments of the program behind that index.
        weight_names: their names, by position.
        made_by: the writer of the file that it was made of, such as ``JAX 0.12.0``; empty if that is unknown.
    """

    kind = "model of pjrt"

    program: Program
    signature: Any
    platforms: tuple[str, ...] = ()
    weights: Mapping[int, Array] = field(default_factory=dict, repr=False)
    weight_names: Mapping[int, str] = field(default_factory=dict, repr=False)
    made_by: str = ""

    def stated_platforms(self) -> Sequence[str]:
        return self.platforms

    def stored_weights(self) -> Mapping[int, Array]:
        return self.weights

    def names_of_weights(self) -> Mapping[int, str]:
        return self.weight_names

    def writer(self) -> str:
        return self.made_by

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file. It appears complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        facts = {
            "format_version": FORMAT_VERSION,
            "platforms": list(self.platforms),
            "made_by": self.made_by,
            "signature": self.signature,
            "weights": [
                [position, self.weight_names[position], ElementType.of(array.dtype).name, list(array.shape)]
                for position, array in sorted(self.weights.items())
            ],
        }
        with writing_whole(Path(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, content in ((MODEL_FACTS, json.dumps(facts).encode()), (_PROGRAM, self.program.code)):
                archive.writestr(zipfile.ZipInfo(name, _TIME), content)
            with archive.open(zipfile.ZipInfo(_WEIGHTS, _TIME), "w", force_zip64=True) as member:
                arrays = {self.weight_names[position]: array for position, array in self.weights.items()}
                write_safetensors(member, arrays, file.tell())


def read_model_package(source: bytes | os.PathLike[str]) -> ModelPackage:
    """Return the contents of a model in one file; the program inside is not parsed, and the weights are mapped.

    Args:
        source: the bytes of the file, or its path.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is damaged or cut off.
        FailedPreconditionError: a later version of pjrt wrote it.
    """
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), np.frombuffer(source, np.uint8))
    with reading(source), Path(source).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _read(file, np.memmap(file, np.uint8, "r") if size else np.zeros(0, np.uint8))


def _read(file: IO[bytes], content: Array) -> ModelPackage:
    try:
        members = _members(file, content)
        if members.keys() != {MODEL_FACTS, _PROGRAM, _WEIGHTS}:
            raise ValueError(f"it has {', '.join(map(repr, members)) or 'nothing'}")
        if members[MODEL_FACTS].size > _LARGEST_FACTS:
            raise ValueError(f"{MODEL_FACTS} has {members[MODEL_FACTS].size} bytes")
        facts = json.loads(members[MODEL_FACTS].tobytes())
        written = facts["format_version"]
        if type(written) is int and written > FORMAT_VERSION:
            raise FailedPreconditionError(
                f"expected version {FORMAT_VERSION} of models in one file, found {written}: update pjrt"
            )
        arrays = read_safetensors(members[_WEIGHTS])
        described = facts["weights"]
        weights = {_position(position): _weight(arrays[name], kind, shape) for position, name, kind, shape in described}
        names = {position: name for position, name, _, _ in described}
        if not len(weights) == len(described) == len(arrays) == len(set(names.values())):
            raise ValueError(f"{len(described)} weights are described, and {len(arrays)} are there")
        return ModelPackage(
            Program(members[_PROGRAM].tobytes(), ProgramFormat.MLIR),
            facts["signature"],
            tuple(_text(name) for name in facts["platforms"]),
            weights,
            names,
            _text(facts["made_by"]),
        )
    except PjrtError:
        raise
    except Exception as error:  # the readers of archives, JSON and arrays raise what they are made of
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise DataLossError(f"the model is damaged or cut off: {reason}; save it again") from error


def _members(file: IO[bytes], content: Array) -> dict[str, Array]:
    """Return the bytes of each member of an archive, after a check of their sizes and checksums."""
    members: dict[str, Array] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
                raise ValueError(f"{info.filename!r} is compressed or encrypted")
            if info.filename in members:
                raise ValueError(f"{info.filename!r} is in it twice")
            local = content[info.header_offset : info.header_offset + ZIP_NAME].tobytes()
            begin = info.header_offset + ZIP_NAME + sum(struct.unpack("<HH", local[-4:].rjust(4, b"\0")))
            member = content[begin : begin + info.file_size]
            if not local.startswith(ZIP_MAGIC) or member.size != info.file_size:
                raise ValueError(f"{info.filename!r} lies outside of the file")
            if _checksum(member) != info.CRC:
                raise ValueError(f"{info.filename!r} has another checksum")
            members[info.filename] = member
    return members


def _checksum(content: Array) -> int:
    checksum = 0
    for begin in range(0, content.size, _CHUNK):
        checksum = zlib.crc32(content[begin : begin + _CHUNK].data, checksum)
    return checksum


def _weight(array: Array, kind: str, shape: Sequence[int]) -> Array:
    """Return a weight with its own type, which safetensors may lack."""
    dtype = ElementType[kind].dtype
    if array.dtype != dtype:
        array = array.view(dtype)
    if list(array.shape) != shape:
        array = array.reshape(shape)
    return array


def _position(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected the position of an argument, found {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value

"""Portable artifacts: writing a module at a StableHLO version, and finding the oldest version that can hold it."""

from __future__ import annotations

import math
import re

from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.mlir_walk import walk
from pjrt.stablehlo.version import Version

# Since this version artifacts may hold other dialects beside StableHLO, which XLA uses for shardings (sdy).
_MIXED_DIALECTS = Version(1, 11)
_OWN_DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")
# The last minor version of the series 0; the series 1 is still open.
_LAST_MINOR_OF_0 = 20


def write(module: MlirModule, version: Version) -> bytes:
    """Return the portable artifact of a module at a version.

    Raises:
        InvalidArgumentError: the module holds what that version does not have; the message names it.
    """
    try:
        return _attempt(module, version)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"StableHLO {version} cannot hold this program: {_culprit(error.message, module, version)}"
        ) from error


def needed_version(module: MlirModule) -> Version:
    """Return the oldest StableHLO version that can hold a module, found by trying.

    Raises:
        InvalidArgumentError: no version can hold it; the message says why.
    """
    module = _without_values(module)
    newest = _mlir.current_version()
    versions = _minor_versions(_mlir.minimum_version(), newest)
    if _can_write(module, versions[0]):  # the oldest first: it can hold most programs
        return versions[0]
    write(module, newest)
    low, high = 1, len(versions) - 1  # the last one can hold it, and each that is newer than one that can
    while low < high:
        middle = (low + high) // 2
        if _can_write(module, versions[middle]):
            high = middle
        else:
            low = middle + 1
    return versions[high]


def _minor_versions(oldest: Version, newest: Version) -> list[Version]:
    """Return the first version of each minor series between two versions, and the newest at the end."""
    series = [Version(0, minor) for minor in range(_LAST_MINOR_OF_0 + 1)]
    series += [Version(major, minor) for major in range(1, newest.major) for minor in range(newest.minor + 1)]
    series += [Version(newest.major, minor) for minor in range(newest.minor)]
    return [version for version in series if oldest <= version < newest] + [newest]


def _can_write(module: MlirModule, version: Version) -> bool:
    try:
        _attempt(module, version)
    except InvalidArgumentError:
        return False
    return True


def _attempt(module: MlirModule, version: Version) -> bytes:
    """Return the artifact of the module as it is, or with chlo written out, or with other dialects left in it."""
    try:
        return _mlir.write_artifact(module, version)
    except InvalidArgumentError:
        code = _mlir.write_bytecode(module)
        is_plain = b"chlo" not in code
        if is_plain and version < _MIXED_DIALECTS:
            raise
    plain = _mlir.parse(code)
    if not is_plain:
        _mlir.run_passes(plain, "builtin.module(func.func(chlo-legalize-to-stablehlo))")
    try:
        return _mlir.write_artifact(plain, version)
    except InvalidArgumentError:
        if version < _MIXED_DIALECTS or _foreign_operations(plain):
            raise
    return _mlir.write_artifact(plain, version, other_dialects=True)


def _without_values(module: MlirModule) -> MlirModule:
    """Return a copy of the module in which large constants are all zeros, where their type has a zero.

    The copy takes next to no memory and needs the same version of its reader.
    """
    ir = jaxlib.load("mlir.ir", "read programs")
    with module as mlir:
        copy = mlir.operation.clone()
        for operation in walk(copy.operation):
            if operation.name == "stablehlo.constant":
                type_ = ir.ShapedType(operation.results[0].type)
                zero = _ZEROS.get(str(type_.element_type))
                if zero is not None and math.prod(type_.shape) > _mlir.FEW_ELEMENTS:
                    operation.attributes["value"] = ir.Attribute.parse(f"dense<{zero}> : {type_}")
        code = _mlir.bytecode_of(copy)
    return _mlir.parse(code)


_ZEROS = {
    **dict.fromkeys(("i2", "i4", "i8", "i16", "i32", "i64", "ui2", "ui4", "ui8", "ui16", "ui32", "ui64"), "0"),
    **dict.fromkeys(("bf16", "f16", "f32", "f64", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ"), "0.0"),
    **dict.fromkeys(("complex<f32>", "complex<f64>"), "(0.0, 0.0)"),
    "i1": "false",
}


def _foreign_operations(module: MlirModule) -> list[str]:
    """Return the names of the operations of dialects that do not belong to StableHLO."""
    with module as mlir:
        names = {operation.name for operation in walk(mlir.operation)}
    return sorted(name for name in names if name.partition(".")[0] not in _OWN_DIALECTS)


_REFUSED_OPERATION = r"failed to legalize operation '(?:vhlo\.)?([\w.]+?)(?:_v\d+)?'"
_ELEMENT_TYPES = r"[<x](bf16|tf32|[fu]?i?\d+(?:E\d+M\d+\w*)?|complex<f\d+>|!quant\.[^>]*>)[,>]"


def _culprit(message: str, module: MlirModule, version: Version) -> str:
    """Return what a version lacks: dialects, or an operation, or the types that the operation is refused for."""
    foreign = _foreign_operations(module)
    if foreign:
        return f"it holds operations of other dialects: {', '.join(foreign)}"
    match = re.search(_REFUSED_OPERATION, message)
    if match is None:
        return message
    operation = match[1] if "." in match[1] else f"stablehlo.{match[1]}"
    if operation in ("stablehlo.func", "stablehlo.return", "stablehlo.call"):  # VHLO has them in its own dialect
        operation = operation.replace("stablehlo", "func")
    place = message[: match.start()].rstrip(": ")
    at = f" at {place}" if place else ""
    text = _mlir.write_text(module, locations=False, constants=False)
    types = [name for name in sorted(set(re.findall(_ELEMENT_TYPES, text))) if not _version_has_type(version, name)]
    if types:
        return f"it does not have the type {' and '.join(types)}, found in {operation}{at}"
    return f"it does not have the operation {operation}{at}, or not with these attributes"


def _version_has_type(version: Version, element_type: str) -> bool:
    text = f"module {{ func.func @main(%x: tensor<{element_type}>) {{ return }} }}"
    try:
        return _can_write(_mlir.parse(text.encode()), version)
    except InvalidArgumentError:  # not an element type on its own
        return True

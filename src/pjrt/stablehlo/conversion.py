"""Converting programs: to MLIR modules and text, to older versions, between StableHLO and HLO.

Everything here needs jaxlib, except for what can be answered without looking inside: an artifact that is old enough
already is returned as it is.
"""

from __future__ import annotations

import re

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo import _hlo, _mlir, jaxlib, safe_parse
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo._older_hlo import modernized
from pjrt.stablehlo.format import Encoding, artifact_version, encoding_of
from pjrt.stablehlo.version import Version


def to_module(program: Program, *, trusted: bool = False, legalized: bool = True) -> MlirModule:
    """The program as an MLIR module in a context of its own, to be used inside ``with … as module:``.

    An HLO proto becomes StableHLO on the way.

    Args:
        program: a program in any encoding.
        trusted: whether the bytes come from a compiler or framework and were not damaged since. If not, bytecode and
            protos are parsed in a process of their own first (see ``safe_parse``), because the native parsers do not
            withstand every damaged file. Text needs no trust.
        legalized: whether what came from HLO is to be StableHLO alone; if not, operations of XLA's own stay in it.

    Raises:
        InvalidArgumentError: the program does not parse, or is newer than this jaxlib reads; the message has both
            versions.
        DataLossError: it is truncated or corrupt, or nested too deep.
        FailedPreconditionError: jaxlib is not there.
    """
    if not trusted or encoding_of(program) is Encoding.TEXT:
        safe_parse.vet(program)
    return parse_here(program, legalized=legalized)


def parse_here(program: Program, *, legalized: bool = True) -> MlirModule:
    """Parse as ``to_module`` does, a program that was vetted or in a process that may end with the parser."""
    encoding = encoding_of(program)
    try:
        if encoding is Encoding.PORTABLE_ARTIFACT:
            module = _mlir.parse_artifact(program.code)
        elif encoding in (Encoding.HLO, Encoding.HLO_WITH_CONFIG):
            module = _parse_hlo(program, legalized)
        else:
            module = _mlir.parse(program.code)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"cannot read the {encoding}: {error.message}{_reason(program)}") from error
    _mlir.check(module)
    return module


def to_text(program: Program, *, locations: bool = False, trusted: bool = False) -> str:
    """The program as MLIR text.

    Args:
        program: a program in any encoding.
        locations: whether to print source locations too.
        trusted: as for ``to_module``.

    Raises:
        PjrtError: as for ``to_module``.
    """
    return _mlir.write_text(to_module(program, trusted=trusted), locations=locations)


def serialize(program: Program, version: Version | str | tuple[int, ...], *, trusted: bool = False) -> Program:
    """The program as a portable artifact that a reader of ``version`` can read.

    Args:
        program: a program in any encoding. An artifact that is old enough already is returned as it is, without
            looking inside.
        version: what the reader says, such as a plugin's ``stablehlo_current_version``. If it is newer than this
            jaxlib writes, the artifact is written at jaxlib's version, which a newer reader reads too.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: the program holds an operation or a type that ``version`` does not have; the message
            names it.
        PjrtError: as for ``to_module``.
    """
    target = Version.of(version)
    written_at = artifact_version(program)
    if written_at is not None and written_at <= target:
        return program
    oldest, newest = minimum_version(), current_version()
    if target < oldest:
        raise InvalidArgumentError(
            f"expected a StableHLO version from {oldest} to {newest} (what this jaxlib writes), found {target}"
        )
    return Program(_write(to_module(program, trusted=trusted), min(target, newest)), ProgramFormat.MLIR)


def to_hlo(
    program: Program, *, with_config: bool = False, tuple_result: bool = False, trusted: bool = False
) -> Program:
    """The program as an HLO proto: ``HloModuleProto``, or ``HloModuleProtoWithConfig`` with the configuration that
    the module implies.

    Args:
        program: a program in any encoding; an HLO proto is not looked into, only wrapped or unwrapped.
        with_config: whether the module's entry layout, replicas and partitions are to be stated beside it
            (``hlo_with_config``); an HLO proto without a configuration does not say its counts, which are 1 then.
        tuple_result: whether the entry computation returns one tuple, as PyTorch/XLA has it.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: XLA cannot convert it.
        PjrtError: as for ``to_module``.
    """
    encoding = encoding_of(program)
    if encoding in (Encoding.HLO, Encoding.HLO_WITH_CONFIG):
        outside = _hlo.screen(program.code)
        proto, replicas, partitions = program.code[outside.begin : outside.end], 1, 1
        if outside.has_config and with_config:
            return program
    else:
        module = to_module(program, trusted=trusted)
        replicas, partitions = _mlir.device_counts(module)
        proto = _mlir.mlir_to_hlo(_mlir.write_bytecode(module), tuple_result=tuple_result)
    if not with_config:
        return Program(proto, ProgramFormat.HLO)
    return Program(_hlo.with_config(proto, replicas, partitions), ProgramFormat.HLO_WITH_CONFIG)


def from_hlo(program: Program, *, trusted: bool = False) -> Program:
    """An HLO proto as StableHLO (MLIR bytecode), with deprecated operations and those of XLA's own that have a
    counterpart replaced.

    Other programs are returned as they are.

    Raises:
        InvalidArgumentError: an operation has no counterpart in StableHLO, as those of optimized HLO (fusions and
            the like).
        PjrtError: as for ``to_module``.
    """
    if encoding_of(program) not in (Encoding.HLO, Encoding.HLO_WITH_CONFIG):
        return program
    return Program(_mlir.write_bytecode(to_module(program, trusted=trusted)), ProgramFormat.MLIR)


def current_version() -> Version:
    """The newest StableHLO version that the jaxlib at hand reads and writes."""
    return _mlir.current_version()


def minimum_version() -> Version:
    """The oldest StableHLO version that the jaxlib at hand reads and writes."""
    return _mlir.minimum_version()


def needed_version(program: Program, *, trusted: bool = False) -> Version:
    """The oldest StableHLO version that can hold the program, found by trying.

    Raises:
        InvalidArgumentError: no version can; it holds operations of other dialects, for one. The message says which.
        PjrtError: as for ``to_module``.
    """
    return needed_version_of(to_module(program, trusted=trusted))


def needed_version_of(module: MlirModule) -> Version:
    """As ``needed_version``, of a module that is parsed already."""
    module = _mlir.without_values(module)
    newest = current_version()
    candidates = _minor_versions(minimum_version(), newest)
    _write(module, newest)
    low, high = 0, len(candidates) - 1  # the last one can; each that is newer than one that can, can
    while low < high:
        middle = (low + high) // 2
        if _can_write(module, candidates[middle]):
            high = middle
        else:
            low = middle + 1
    return candidates[high]


def _parse_hlo(program: Program, legalized: bool) -> MlirModule:
    outside = _hlo.screen(program.code)
    module = _mlir.parse(_mlir.hlo_to_mlir(modernized(program.code[outside.begin : outside.end])))
    if legalized:
        _mlir.legalize_hlo(module)
    return module


def _reason(program: Program) -> str:
    """Why an artifact may not be readable: it is newer or older than this jaxlib reads."""
    version = artifact_version(program)
    if version is None:
        return ""
    oldest, newest = minimum_version(), current_version()
    spelled = ".".join(map(str, jaxlib.version()))
    reads = f"jaxlib {spelled} reads StableHLO {oldest} to {newest}"
    if version > newest:
        return (
            f" (it is too new: written at StableHLO {version}, and {reads}; "
            "write it at an older version, or upgrade jaxlib)"
        )
    if version < oldest:
        return f" (it is too old: written at StableHLO {version}, and {reads})"
    return ""


# The last minor version of the series 0; the series 1 is still open.
_LAST_MINOR_OF_0 = 20


def _minor_versions(oldest: Version, newest: Version) -> list[Version]:
    """The first version of each minor series from one version to another, with that other at the end."""
    series = [Version(0, minor) for minor in range(_LAST_MINOR_OF_0 + 1)]
    series += [Version(major, minor) for major in range(1, newest.major) for minor in range(newest.minor + 1)]
    series += [Version(newest.major, minor) for minor in range(newest.minor)]
    return [version for version in series if oldest <= version < newest] + [newest]


# Since this version artifacts may hold other dialects beside StableHLO, which XLA uses for shardings (sdy).
_MIXED_DIALECTS = Version(1, 11)


def _can_write(module: MlirModule, version: Version) -> bool:
    try:
        _attempt(module, version)
    except InvalidArgumentError:
        return False
    return True


def _write(module: MlirModule, version: Version) -> bytes:
    try:
        return _attempt(module, version)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"StableHLO {version} cannot hold this program: {_culprit(error.message, module, version)}"
        ) from error


def _attempt(module: MlirModule, version: Version) -> bytes:
    """The artifact of the module as it is, or with chlo's operations written out, or with other dialects left in it."""
    try:
        return _mlir.write_artifact(module, version)
    except InvalidArgumentError:
        plain = _mlir.without_chlo(module)
    try:
        return _mlir.write_artifact(plain, version)
    except InvalidArgumentError:
        if version < _MIXED_DIALECTS or _mlir.foreign_operations(plain):
            raise
    return _mlir.write_artifact(plain, version, other_dialects=True)


_REFUSED_OPERATION = re.compile(r"failed to legalize operation '(?:vhlo\.)?([\w.]+?)(?:_v\d+)?'")
_ELEMENT_TYPES = re.compile(r"[<x](bf16|tf32|[fu]?i?\d+(?:E\d+M\d+\w*)?|complex<f\d+>|!quant\.[^>]*>)[,>]")


def _culprit(message: str, module: MlirModule, version: Version) -> str:
    """The operation that is refused and, where it is for their sake, the types; or what is foreign to StableHLO."""
    foreign = _mlir.foreign_operations(module)
    if foreign:
        return f"it holds operations of other dialects: {', '.join(foreign)}"
    found = _REFUSED_OPERATION.search(message)
    if found is None:
        return message
    types = [name for name in _element_types(module) if not _version_has_type(version, name)]
    operation = found[1] if "." in found[1] else f"stablehlo.{found[1]}"
    operation = {"stablehlo.func": "func.func", "stablehlo.return": "func.return", "stablehlo.call": "func.call"}.get(
        operation, operation
    )
    place = message[: found.start()].rstrip(": ")
    at = f" at {place}" if place else ""
    if types:
        return f"it does not have the type {' and '.join(types)}, found in {operation}{at}"
    return f"it does not have the operation {operation}{at}, or not with these attributes"


def _element_types(module: MlirModule) -> list[str]:
    text = _mlir.write_text(module, locations=False, constants=False)
    return sorted(set(_ELEMENT_TYPES.findall(text)))


def _version_has_type(version: Version, element_type: str) -> bool:
    text = f"module {{ func.func @main(%x: tensor<{element_type}>) {{ return }} }}"
    try:
        return _can_write(_mlir.parse(text.encode()), version)
    except InvalidArgumentError:  # not an element type on its own
        return True

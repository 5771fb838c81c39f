"""Converting programs: to MLIR modules and text, to older versions, between StableHLO and HLO.

Everything here needs jaxlib, except for what can be answered without looking inside: an artifact that is old enough
already is returned as it is.
"""

from __future__ import annotations

import re

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import _hlo, _mlir, jaxlib, safe_parse
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.format import HLO_ENCODINGS, Encoding, artifact_version, encoding_of, has_resources, is_vhlo
from pjrt.stablehlo.reader import as_program
from pjrt.stablehlo.shardings.stated_partitioning import has_mesh_shardings, has_shardings_of_both
from pjrt.stablehlo.version import Version


def to_module(program: AnyProgram, *, trusted: bool = False, legalized: bool = True) -> MlirModule:
    """Return the program as an MLIR module in a context of its own, to be used inside ``with … as module:``.

    An HLO proto becomes StableHLO on the way.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        trusted: whether the bytes come from a compiler or framework and were not damaged since. If not, bytecode and
            protos are first parsed in a subprocess (see ``safe_parse``), because the native parsers do not survive
            every damaged file. Text needs no trust.
        legalized: whether HLO must become StableHLO alone; if not, operations of XLA's own stay in it.

    Raises:
        InvalidArgumentError: the program does not parse, or is newer than this jaxlib reads; the message has both
            versions.
        DataLossError: the program is truncated or corrupt, or nested too deep.
        FailedPreconditionError: jaxlib is missing.
    """
    program = as_program(program)
    if not trusted or encoding_of(program) is Encoding.TEXT:
        safe_parse.vet(program)
    return parse_here(program, legalized=legalized)


def parse_here(program: Program, *, legalized: bool = True) -> MlirModule:
    """Parse as ``to_module`` does, a program that was vetted, or in a process that may end with the parser."""
    encoding = encoding_of(program)
    try:
        if encoding is Encoding.PORTABLE_ARTIFACT or is_vhlo(program.code):
            module = _mlir.parse_artifact(program.code)
        elif encoding in HLO_ENCODINGS:
            from pjrt.stablehlo._hlo_conversion import (
                from_hlo_proto,  # here and below: most programs need no conversion
            )

            module = from_hlo_proto(program.code, legalized=legalized)
        else:
            module = _mlir.parse(program.code)
        if has_resources(program.code):
            from pjrt.stablehlo._dense import put_resources_in_place

            put_resources_in_place(module)
        if b"device_ids" in program.code and encoding not in HLO_ENCODINGS:
            from pjrt.stablehlo._device_groups import list_groups

            list_groups(module)
        if has_shardings_of_both(program):
            from pjrt.stablehlo.shardings.shardy_form import drop_tiles

            drop_tiles(module)
        if has_mesh_shardings(program):
            from pjrt.stablehlo.shardings.shardy_form import to_shardy

            to_shardy(module)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"cannot read the {encoding}: {error.message}{_reason(program, error.message)}"
        ) from error
    _mlir.check(module)
    return module


def to_text(program: AnyProgram, *, locations: bool = False, trusted: bool = False) -> str:
    """Return the program as MLIR text.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        locations: whether to print source locations too.
        trusted: as for ``to_module``.

    Raises:
        PjrtError: as for ``to_module``.
    """
    return _mlir.write_text(to_module(program, trusted=trusted), locations=locations)


def serialize(program: AnyProgram, version: Version | str | tuple[int, ...], *, trusted: bool = False) -> Program:
    """Return the program as a portable artifact that a reader of ``version`` can read.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file. An artifact that is old enough
            already is returned as it is, without looking inside.
        version: the version that the reader declares, such as a plugin's ``stablehlo_current_version``. If it is newer
            than this jaxlib writes, the artifact is written at jaxlib's version, which a newer reader reads too.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: the program holds an operation or a type that ``version`` does not have; the message
            names it.
        PjrtError: as for ``to_module``.
    """
    program = as_program(program)
    target = Version.of(version)
    written_at = artifact_version(program)
    if written_at is not None and written_at <= target:
        return program
    oldest, newest = minimum_version(), current_version()
    if target < oldest:
        raise InvalidArgumentError(
            f"expected a StableHLO version from {oldest} to {newest} (what this jaxlib writes), found {target}"
        )
    from pjrt.stablehlo import _artifact

    return Program(_artifact.write(to_module(program, trusted=trusted), min(target, newest)), ProgramFormat.MLIR)


def to_hlo(
    program: AnyProgram, *, with_config: bool = False, tuple_result: bool = False, trusted: bool = False
) -> Program:
    """Return the program as an ``HloModuleProto``, or as an ``HloModuleProtoWithConfig``.

    Args:
        program: a program in any encoding; an HLO proto is not looked into, only wrapped or unwrapped.
        with_config: whether to state the module's entry layout, replicas and partitions beside it
            (``hlo_with_config``); for an HLO proto without a configuration the counts are 1.
        tuple_result: whether the entry computation returns one tuple, as PyTorch/XLA has it.
        trusted: as for ``to_module``.

    Raises:
        InvalidArgumentError: XLA cannot convert the program.
        PjrtError: as for ``to_module``.
    """
    program = as_program(program)
    if encoding_of(program) in HLO_ENCODINGS:
        place = _hlo.screen(program.code)
        if place.has_config and with_config:
            return program
        proto, counts = program.code[place.begin : place.end], (1, 1)
    else:
        module = to_module(program, trusted=trusted)
        from pjrt.stablehlo._hlo_conversion import to_hlo_proto

        proto = to_hlo_proto(module, tuple_result=tuple_result)
        with module as mlir:
            counts = _mlir.device_counts(mlir.operation.attributes)
    if not with_config:
        return Program(proto, ProgramFormat.HLO)
    return Program(_hlo.with_config(proto, *counts), ProgramFormat.HLO_WITH_CONFIG)


def from_hlo(program: AnyProgram, *, trusted: bool = False) -> Program:
    """Return an HLO proto as StableHLO (MLIR bytecode), and any other program as it is.

    Deprecated operations are replaced, and those of XLA's own that have a counterpart.

    Raises:
        InvalidArgumentError: an operation has no counterpart in StableHLO, as some that XLA's optimizations make.
        PjrtError: as for ``to_module``.
    """
    program = as_program(program)
    if encoding_of(program) not in HLO_ENCODINGS:
        return program
    return Program(_mlir.write_bytecode(to_module(program, trusted=trusted)), ProgramFormat.MLIR)


def current_version() -> Version:
    """Return the newest StableHLO version that the installed jaxlib reads and writes."""
    return _mlir.current_version()


def minimum_version() -> Version:
    """Return the oldest StableHLO version that the installed jaxlib reads and writes."""
    return _mlir.minimum_version()


def needed_version(program: AnyProgram, *, trusted: bool = False) -> Version:
    """Return the oldest StableHLO version that can hold the program, found by trying.

    Raises:
        InvalidArgumentError: no version can hold the program, because of operations of other dialects, for one. The
            message says which.
        PjrtError: as for ``to_module``.
    """
    from pjrt.stablehlo import _artifact

    return _artifact.needed_version(to_module(program, trusted=trusted))


def _reason(program: Program, message: str) -> str:
    """Return why an artifact may not be readable: it is newer or older than this jaxlib reads."""
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
    if re.search(r"(unregistered operation|failed to legalize operation) 'vhlo\.", message):
        return (
            f" (the operation is of a newer StableHLO, or damaged, and {reads}; write the program at an older version, "
            "or upgrade jaxlib)"
        )
    return ""

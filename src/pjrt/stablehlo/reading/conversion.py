"""Converting programs: to MLIR modules and text, to older versions, between StableHLO and HLO, to plain programs.

Everything here needs jaxlib, except for what can be answered without looking inside: an artifact that is old enough
already is returned as it is.

The partitioning that a program states stands here, too: one answer for clients, topologies, ``supports`` and the
command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from pjrt.api.compile_options import CompileOptions, Partitioning
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo.encodings import hlo_proto, jaxlib, safe_parse
from pjrt.stablehlo.encodings.format import (
    HLO_ENCODINGS,
    Encoding,
    Version,
    artifact_version,
    encoding_of,
    has_resources,
    is_vhlo,
)
from pjrt.stablehlo.encodings.hlo_proto import mesh_shardings_enabled
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.mlir_module import MlirModule, inline, top_level, walk
from pjrt.stablehlo.reading.reader import as_program, read

# As MLIR spells them, in text and among the strings of bytecode.
_NAMES = (b"mhlo.num_replicas", b"mhlo.num_partitions")
_OVER_MESH = re.compile(rb"\{\s*(?:mesh|maximal_mesh|single_device)\s*\[")
"""The beginning of a sharding over the axes of a mesh, as XLA spells it."""

_TILED = re.compile(r"\{devices=[^\"]*")
"""A sharding of GSPMD's that cuts a value."""

_ONE = re.compile(rb"mhlo\.num_(?:replicas|partitions)\s*=\s*1\s*:")


def partitioning_of(program: Program, module: MlirModule | None = None) -> Partitioning:
    """Return what a program states about its replicas, its partitions and the kind of its shardings.

    A program that states nothing, or that cannot be looked into (because it does not parse, or jaxlib is missing), is
    for one device. Programs whose bytes show that they state nothing are not parsed.

    Args:
        program: a program in any encoding. Its bytes are trusted, as a compiler trusts them.
        module: the program as an MLIR module, where the caller has parsed it already.

    Raises:
        InvalidArgumentError: the program states a count that is not a number from 1 up.
    """
    if program.format in (ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG):
        return _of_hlo(program)
    if not _may_state_something(program.code):
        return Partitioning()
    if module is None and not jaxlib.is_installed():
        from pjrt.stablehlo.reading.plain_signature import device_counts  # here: with jaxlib it is not needed

        return Partitioning(*device_counts(program), b"sdy" in program.code)
    try:
        parsed = module or to_module(read(program), trusted=True)
    except PjrtError:  # the compiler reports the reason, and better
        return Partitioning()
    with parsed as mlir:
        shardy = _over_mesh(program.code) or _has_shardy(mlir)
        stated = Partitioning(*mlir_module.device_counts(mlir.operation.attributes), shardy)
    if module is None:
        keep_module(program, parsed)
    return stated


def with_partitioning(
    program: AnyProgram, options: CompileOptions | None, module: MlirModule | None = None
) -> CompileOptions:
    """Return compile options that leave nothing to the program: what they do not state is read from it.

    Args:
        program: the program.
        options: the options; ``None`` for the default ones.
        module: the program as an MLIR module, where the caller has parsed it already.
    """
    chosen = CompileOptions.of(options)
    return chosen if chosen.states_partitioning else chosen.completed(partitioning_of(Program.of(program), module))


def with_fitting_partitioner(module: MlirModule, options: CompileOptions) -> CompileOptions:
    """Return compile options by which XLA does not have Shardy partition a program whose shardings are GSPMD's.

    Where XLA takes shardings over the axes of a mesh, as since jaxlib 0.12, it ends the process over such a program.
    Elsewhere it leaves the shardings out.

    Args:
        module: the program.
        options: the options; nothing is left to the program.

    Raises:
        InvalidArgumentError: the program has shardings of both kinds.
    """
    if not options.partitioning.use_shardy_partitioner:
        return options
    with module as mlir:
        functions = [each for each in top_level(mlir) if each.name == "func.func"]
        tiled = next((m for each in functions for m in _TILED.finditer(_spelled(each, "arg_attrs"))), None)
        if tiled is None or _SHARDY_IN_XLA in _spelled(mlir.operation, "mhlo.frontend_attributes"):
            return options
        if _has_shardy(mlir):
            if not mesh_shardings_enabled(options.to_proto()):
                return options
            raise InvalidArgumentError(f"expected shardings of one kind, found {tiled[0]} of GSPMD's beside Shardy's")
    return replace(options, use_shardy_partitioner=False)


def _may_state_something(code: bytes) -> bool:
    """Whether a program may be for several devices or have shardings of Shardy's: it would contain their names."""
    stated = sum(code.count(name) for name in _NAMES)
    return stated != len(_ONE.findall(code)) or b"sdy" in code or _over_mesh(code)


def _of_hlo(program: Program) -> Partitioning:
    try:
        with_config = program.format == ProgramFormat.HLO_WITH_CONFIG
        counts = hlo_proto.device_counts(program.code) if with_config else (1, 1)
        return Partitioning(
            *counts, _SHARDY_IN_XLA.encode() in program.code or hlo_proto.has_mesh_shardings(program.code)
        )
    except PjrtError:  # the compiler reports the reason, and better
        return Partitioning()


def has_mesh_shardings(program: Program) -> bool:
    """Whether a program may have shardings over the axes of a mesh in XLA's spelling."""
    if program.format in (ProgramFormat.HLO, ProgramFormat.HLO_WITH_CONFIG):
        return hlo_proto.has_mesh_shardings(program.code)
    return _over_mesh(program.code)


def has_shardings_of_both(program: Program) -> bool:
    """Whether a program of MLIR may have tiles of GSPMD's beside Shardy's shardings in the form for HLO."""
    code = program.code
    return program.format == ProgramFormat.MLIR and _SHARDY_IN_XLA.encode() in code and b"mhlo.sharding" in code


def _over_mesh(code: bytes) -> bool:
    """Whether MLIR may hold shardings of XLA's over the axes of a mesh, which are Shardy's in XLA's spelling."""
    return _OVER_MESH.search(code) is not None


def _has_shardy(mlir: Any) -> bool:
    """Whether shardings are Shardy's: as its dialect, or, in portable artifacts, as XLA's frontend attributes."""
    for operation in top_level(mlir):
        if operation.name == "sdy.mesh":
            return True
        if operation.name == "func.func" and any("sdy.sharding" in _spelled(operation, of) for of in _OF_VALUES):
            return True
    return _SHARDY_IN_XLA in _spelled(mlir.operation, "mhlo.frontend_attributes")


_SHARDY_IN_XLA = "xla.sdy.meshes"
_OF_VALUES = ("arg_attrs", "res_attrs")


def _spelled(operation: Any, name: str) -> str:
    return str(operation.attributes[name]) if name in operation.attributes else ""


# Since this version artifacts may hold other dialects beside StableHLO, which XLA uses for shardings (sdy).
_MIXED_DIALECTS = Version(1, 11)
_OWN_DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")
# The last minor version of the series 0; the series 1 is still open.
_LAST_MINOR_OF_0 = 20


def write_at(module: MlirModule, version: Version) -> bytes:
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


def oldest_version(module: MlirModule) -> Version:
    """Return the oldest StableHLO version that can hold a module, found by trying.

    Raises:
        InvalidArgumentError: no version can hold it; the message says why.
    """
    module = _without_values(module)
    newest = mlir_module.current_version()
    versions = _minor_versions(mlir_module.minimum_version(), newest)
    if _can_write(module, versions[0]):  # the oldest first: it can hold most programs
        return versions[0]
    write_at(module, newest)
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
        return mlir_module.write_artifact(module, version)
    except InvalidArgumentError:
        code = mlir_module.write_bytecode(module)
        is_plain = b"chlo" not in code
        if is_plain and version < _MIXED_DIALECTS:
            raise
    plain = mlir_module.parse(code)
    if not is_plain:
        _widen_functions(plain)
        mlir_module.run_passes(plain, "builtin.module(func.func(chlo-legalize-to-stablehlo))")
    try:
        return mlir_module.write_artifact(plain, version)
    except InvalidArgumentError:
        if version < _MIXED_DIALECTS or _foreign_operations(plain):
            raise
    return mlir_module.write_artifact(plain, version, other_dialects=True)


def _widen_functions(module: MlirModule) -> None:
    """Have functions of floats without infinity and NaN computed with f32: the pass counts on both."""
    with module as mlir:
        for operation in list(walk(mlir.operation)):
            if operation.name in mlir_module.CHLO_FUNCTIONS and str(operation.operands[0].type.element_type) in _FINITE:
                mlir_module.widen(operation)


_FINITE = ("f4E2M1FN", "f6E2M3FN", "f6E3M2FN")


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
                if zero is not None and math.prod(type_.shape) > mlir_module.FEW_ELEMENTS:
                    operation.attributes["value"] = ir.Attribute.parse(f"dense<{zero}> : {type_}")
        code = mlir_module.bytecode_of(copy)
    return mlir_module.parse(code)


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
    text = mlir_module.write_text(module, locations=False, constants=False)
    types = [name for name in sorted(set(re.findall(_ELEMENT_TYPES, text))) if not _version_has_type(version, name)]
    if types:
        return f"it does not have the type {' and '.join(types)}, found in {operation}{at}"
    return f"it does not have the operation {operation}{at}, or not with these attributes"


def _version_has_type(version: Version, element_type: str) -> bool:
    text = f"module {{ func.func @main(%x: tensor<{element_type}>) {{ return }} }}"
    try:
        return _can_write(mlir_module.parse(text.encode()), version)
    except InvalidArgumentError:  # not an element type on its own
        return True


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
    if legalized or encoding_of(program) not in HLO_ENCODINGS:
        known: MlirModule | None = program.read.pop(_MODULE, None)
        if known is not None:
            return known
    if not trusted or encoding_of(program) is Encoding.TEXT:
        safe_parse.vet(program)
    return parse_here(program, legalized=legalized)


_MODULE = "module"
_LARGEST_KEPT = 64 << 20


def keep_module(program: AnyProgram, module: MlirModule) -> None:
    """Leave a module in which nothing was changed for the next caller of ``to_module`` with the same ``Program``."""
    if isinstance(program, Program) and len(program) <= _LARGEST_KEPT:
        program.read[_MODULE] = module


@mlir_module.senseless_refused()
def parse_here(program: Program, *, legalized: bool = True) -> MlirModule:
    """Parse as ``to_module`` does, a program that was vetted, or in a process that may end with the parser."""
    encoding = encoding_of(program)
    try:
        if encoding is Encoding.PORTABLE_ARTIFACT or is_vhlo(program.code):
            module = mlir_module.parse_artifact(program.code)
        elif encoding in HLO_ENCODINGS:
            # Here and below: most programs need no conversion.
            from pjrt.stablehlo.reading._hlo_conversion import from_hlo_proto

            module = from_hlo_proto(program.code, legalized=legalized)
        else:
            module = mlir_module.parse(program.code)
        if has_resources(program.code):
            from pjrt.stablehlo.ir.mlir_attributes import put_resources_in_place

            put_resources_in_place(module)
        if b"device_ids" in program.code and encoding not in HLO_ENCODINGS:
            from pjrt.stablehlo.reading._hlo_conversion import list_groups

            list_groups(module)
        if has_shardings_of_both(program):
            from pjrt.stablehlo.reading._hlo_conversion import drop_tiles

            drop_tiles(module)
        if has_mesh_shardings(program):
            from pjrt.stablehlo.reading._hlo_conversion import to_shardy

            to_shardy(module)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"cannot read the {encoding}: {_reason(program, error.message)}{error.message.removesuffix('.')}"
            f"{_line(program, error.message)}"
        ) from error
    mlir_module.check(module)
    return module


ENTRY = "main"
"""The name of the function that compilers run."""


def with_entry(program: AnyProgram, name: str = "", *, trusted: bool = False) -> Program:
    """Return a program that runs another one of its functions: that is called ``main`` in it.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        name: the function; by default ``main``, or else the only public one.
        trusted: as for ``to_module``.

    Raises:
        NotFoundError: there is no such function, or there are several to choose from.
        PjrtError: as for ``to_module``.
    """
    copy = mlir_module.parse(mlir_module.write_bytecode(to_module(program, trusted=trusted)))
    with copy as mlir:
        functions = {each.attributes["sym_name"].value: each for each in top_level(mlir) if each.name == "func.func"}
        public = [each for each, function in functions.items() if "sym_visibility" not in function.attributes]
        chosen = name or (ENTRY if ENTRY in functions or len(public) != 1 else public[0])
        if chosen not in functions:
            advice = "" if name else "; choose one with --entry NAME, or with pjrt.stablehlo.with_entry"
            expected = f"a function {ENTRY} or one public function" if not name else f"one of {', '.join(functions)}"
            found = repr(name) if name else ", ".join(public) or "none that is public"
            raise NotFoundError(f"expected {expected} to run, found {found}{advice}")
        renamed = {ENTRY: _free_name(functions), chosen: ENTRY} if chosen != ENTRY else {}
        for operation in walk(mlir.operation) if renamed else ():
            _rename(operation, renamed)
        for each, function in functions.items():
            _drop(function, "sym_visibility")
            if each != chosen:
                function.attributes["sym_visibility"] = type(function.attributes["sym_name"]).get("private")
        return Program(mlir_module.bytecode_of(mlir.operation), ProgramFormat.MLIR)


def _free_name(names: Iterable[str]) -> str:
    return next(name for number in count() if (name := f"{ENTRY}_{number}") not in names)


def _rename(operation: Any, names: Mapping[str, str]) -> None:
    """Rename functions where an operation defines one or refers to one."""
    for name in list(operation.attributes):
        stated = operation.attributes[name]
        kind = type(stated)
        if kind.__name__ == "FlatSymbolRefAttr" or (name == "sym_name" and operation.name == "func.func"):
            operation.attributes[name] = kind.get(names.get(stated.value, stated.value))
        elif kind.__name__ == "ArrayAttr" and any(type(each).__name__ == "FlatSymbolRefAttr" for each in stated):
            operation.attributes[name] = kind.get([type(e).get(names.get(e.value, e.value)) for e in stated])


def to_text(program: AnyProgram, *, locations: bool = False, trusted: bool = False) -> str:
    """Return the program as MLIR text.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        locations: whether to print source locations too.
        trusted: as for ``to_module``.

    Raises:
        PjrtError: as for ``to_module``.
    """
    return mlir_module.write_text(to_module(program, trusted=trusted), locations=locations)


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

    return Program(write_at(to_module(program, trusted=trusted), min(target, newest)), ProgramFormat.MLIR)


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
        place = hlo_proto.screen(program.code)
        if place.has_config and with_config:
            return program
        proto, counts = program.code[place.begin : place.end], (1, 1)
    else:
        module = to_module(program, trusted=trusted)
        from pjrt.stablehlo.reading._hlo_conversion import to_hlo_proto

        proto = to_hlo_proto(module, tuple_result=tuple_result)
        with module as mlir:
            counts = mlir_module.device_counts(mlir.operation.attributes)
    if not with_config:
        return Program(proto, ProgramFormat.HLO)
    return Program(hlo_proto.with_config(proto, *counts), ProgramFormat.HLO_WITH_CONFIG)


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
    return Program(mlir_module.write_bytecode(to_module(program, trusted=trusted)), ProgramFormat.MLIR)


def current_version() -> Version:
    """Return the newest StableHLO version that the installed jaxlib reads and writes."""
    return mlir_module.current_version()


def minimum_version() -> Version:
    """Return the oldest StableHLO version that the installed jaxlib reads and writes."""
    return mlir_module.minimum_version()


def needed_version(program: AnyProgram, *, trusted: bool = False) -> Version:
    """Return the oldest StableHLO version that can hold the program, found by trying.

    Raises:
        InvalidArgumentError: no version can hold the program, because of operations of other dialects, for one. The
            message says which.
        PjrtError: as for ``to_module``.
    """

    return oldest_version(to_module(program, trusted=trusted))


_LONGEST_LINE = 120


def _line(program: Program, message: str) -> str:
    """Return the line of the text that a message names, to be read behind it."""
    place = re.match(r"line (\d+), column (\d+): ", message)
    if place is None:
        return ""
    lines = program.code.split(b"\n", int(place[1]))
    if len(lines) < int(place[1]):  # the end of the text
        return ""
    line, column = lines[int(place[1]) - 1].decode(errors="replace"), int(place[2])
    begin = max(0, column - _LONGEST_LINE // 2) if len(line) > _LONGEST_LINE else 0
    shown = line[begin : begin + _LONGEST_LINE].strip()
    return f"; in: {'… ' if begin else ''}{shown}{' …' if begin + _LONGEST_LINE < len(line) else ''}" if shown else ""


def _reason(program: Program, message: str) -> str:
    """Return why an artifact may not be readable: it is newer or older than this jaxlib reads."""
    version = artifact_version(program)
    if version is None:
        return ""
    oldest, newest = minimum_version(), current_version()
    spelled = ".".join(map(str, jaxlib.version()))
    reads = f"jaxlib {spelled} reads {oldest} to {newest}"
    if version > newest:
        return (
            f"written by a newer StableHLO (v{version}; {reads}): update jaxlib, or export for an older one. "
            "The reader says: "
        )
    if version < oldest:
        return f"written by a StableHLO that is too old (v{version}; {reads}). The reader says: "
    unknown = re.search(r"(?:unregistered operation|failed to legalize operation) '(vhlo\.\w+)", message)
    if unknown is not None:
        return (
            f"the operation {unknown[1]} is of a newer StableHLO, or damaged (v{version}; {reads}): update jaxlib, or "
            "export for an older one. The reader says: "
        )
    return ""


_HINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.all_slice"})
"""Shardy's operations that give back their operand, on one device."""

_GROUPS = frozenset({"sdy.sharding_group"})
_INLINED = frozenset({"sdy.manual_computation", "sdy.named_computation"})
_HINT_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"})
"""Targets of custom calls that give back their operand, on one device."""

_ATTRIBUTES = ("sdy.sharding", "sdy.sharding_rule", "mhlo.sharding", "mhlo.frontend_attributes", "mhlo.memory_kind")
_MODULE_ATTRIBUTES = (
    "mhlo.frontend_attributes",
    "mhlo.num_partitions",
    "mhlo.num_replicas",
    "mhlo.spmd_output_sharding",
    "mhlo.spmd_parameters_shardings",
    "mhlo.use_auto_spmd_partitioning",
)


def plain(program: AnyProgram, version: Version | str | None = None, *, trusted: bool = False) -> Program:
    """Return a program of one device without any trace of shardings, be they Shardy's or GSPMD's.

    What a program computes, its names and its donated arguments stay. Compilers other than XLA need this: Shardy's
    dialect alone, of which JAX writes an empty mesh, is an error to them.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        version: the StableHLO version of the reader: the result is a portable artifact at that version. By default the
            result is MLIR bytecode.
        trusted: as for ``parse``.

    Raises:
        InvalidArgumentError: the program is for several replicas or partitions (``partition`` makes it one of one
            device), or ``version`` lacks a part of it.
        PjrtError: as for ``parse``.
    """
    program = as_program(program)
    stated = partitioning_of(program)
    if stated.num_devices != 1:
        raise InvalidArgumentError(
            f"expected a program of one device, found one of {stated.num_replicas} replicas × {stated.num_partitions} "
            "partitions; make it one of a device with pjrt.stablehlo.partition"
        )
    module = to_module(program, trusted=trusted)
    copy = mlir_module.parse(mlir_module.write_bytecode(module))
    with copy as mlir:
        _strip(mlir.operation)
        code = mlir_module.bytecode_of(mlir.operation)
    stripped = Program(code, ProgramFormat.MLIR)
    return stripped if version is None else serialize(stripped, version, trusted=True)


def _strip(module: Any) -> None:
    for name in _MODULE_ATTRIBUTES:
        _drop(module, name)
    for operation in list(walk(module)):
        name = operation.name
        for attribute in _ATTRIBUTES:
            _drop(operation, attribute)
        if name == "func.func":
            _strip_function(operation)
        elif name == "sdy.mesh" or name in _GROUPS:
            operation.erase()
        elif name in _HINTS or _is_hint_call(operation):
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif name in _INLINED:
            inline(operation)


def _is_hint_call(operation: Any) -> bool:
    return (
        operation.name == "stablehlo.custom_call"
        and str(operation.attributes["call_target_name"].value) in _HINT_CALLS
        and len(operation.operands) == 1
        and str(operation.operands[0].type) == str(operation.results[0].type)
    )


def _strip_function(function: Any) -> None:
    """Drop the shardings of a function's arguments and results; other attributes stay."""
    for which in ("arg_attrs", "res_attrs"):
        if which not in function.attributes:
            continue
        array = function.attributes[which]
        kept = [
            type(each).get({item.name: item.attr for item in each if item.name not in _ATTRIBUTES}) for each in array
        ]
        function.attributes[which] = type(array).get(kept)


def _drop(operation: Any, name: str) -> None:
    if name in operation.attributes:
        del operation.attributes[name]


_CALLBACK_FACTS = ("backend_config", "mhlo.backend_config")
"""The attributes by which a call back into Python says which function: a number or an address in this process."""


def fingerprint(program: AnyProgram, *, trusted: bool = False) -> bytes:
    """Return 32 bytes that are equal for equal programs.

    What processes that run one program together may lawfully state in different ways does not count: source locations,
    and the numbers of functions of Python that the program calls back.

    Args:
        program: a program in any encoding, its text or bytes, or the path of its file.
        trusted: as for ``to_module``.

    Raises:
        PjrtError: as for ``to_module``.
    """
    import hashlib  # here: with OpenSSL it takes milliseconds

    module = to_module(program, trusted=trusted, legalized=False)
    with module as mlir:
        for operation in walk(mlir.operation):
            _forget_callback(operation)
    del mlir
    mlir_module.run_passes(module, "builtin.module(strip-debuginfo)")
    return hashlib.sha256(mlir_module.write_bytecode(module)).digest()


def _forget_callback(operation: Any) -> None:
    if operation.name not in ("stablehlo.custom_call", "mhlo.custom_call"):
        return
    attributes = operation.attributes
    if "callback" in attributes["call_target_name"].value:
        for name in _CALLBACK_FACTS:
            if name in attributes:
                del attributes[name]

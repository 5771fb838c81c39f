"""Encodings: how a program is written down, recognized by its bytes, and the StableHLO version that it states.

A portable artifact is MLIR bytecode whose producer names the StableHLO version. The container has no checksum, but
its sections must tile the file. ``screen_bytecode`` checks that in time that does not grow with the program: a
truncated file fails there, before a native parser sees it. What a damaged file has inside its sections is for
``safe_parse``.
"""

from __future__ import annotations

import codecs
import enum
import io
import re
import struct
from typing import IO, NamedTuple

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo.encodings import hlo_proto

_SPELLING = re.compile(r"(?:StableHLO_v|v)?(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class Version(NamedTuple):
    """A version of StableHLO (of VHLO, to be exact: the versioned dialect that portable artifacts are written in).

    Minor versions are backward compatible: a reader of version 1.17.0 reads artifacts of every version down to its
    minimum.

    Attributes:
        major: the first number.
        minor: the second number; a new operation, type or attribute raises it.
        patch: the third number; it changes nothing about what an artifact may contain.
    """

    major: int
    minor: int
    patch: int = 0

    @staticmethod
    def parse(text: str) -> Version:
        """Return the version in ``1.17.0``, ``v1.17.0`` or ``StableHLO_v1.17.0`` (as artifacts name their producer).

        Raises:
            InvalidArgumentError: the text spells no version.
        """
        match = _SPELLING.fullmatch(text.strip())
        if match is None:
            raise InvalidArgumentError(f"expected a StableHLO version such as '1.17.0', found {text!r}")
        return Version(*(int(number) for number in match.groups()))

    @staticmethod
    def of(version: Version | str | tuple[int, ...]) -> Version:
        """Return the version of a ``Version``, a spelling, or numbers (a plugin states three of them)."""
        if isinstance(version, Version):
            return version
        if isinstance(version, str):
            return Version.parse(version)
        numbers = tuple(version)
        if len(numbers) not in (2, 3) or not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise InvalidArgumentError(f"expected a StableHLO version as three numbers, found {version!r}")
        return Version(*numbers)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


JAX_FUNCTION_NAME, JAX_IN_TREE, JAX_OUT_TREE, JAX_MLIR_MODULE = 1, 2, 4, 13
"""The numbers of the fields that the root table has in each file."""

_TYPICAL = (JAX_FUNCTION_NAME, JAX_IN_TREE, JAX_OUT_TREE, JAX_MLIR_MODULE)
_MOST_FIELDS = 256
_LARGEST_OFFSET = 16


def looks_like_jax_export(beginning: bytes) -> bool:
    """Whether bytes begin like a file of ``jax.export``: with a root table that has the fields of one.

    The format has no word of its own to begin with. JAX writes the root table into the first few hundred bytes, and the
    offsets of its fields before it. But with two derivatives, the root table and that of the first one share these
    offsets, which may lie behind the bytes that are here.

    One of the fields may be missing: the reader then names it.
    """
    is_shared = False
    try:
        (root,) = struct.unpack_from("<I", beginning)
        (back,) = struct.unpack_from("<i", beginning, root)
        vtable = root - back
        is_shared = vtable > root
        if root % 4 or vtable < 4 or (is_shared and root > _LARGEST_OFFSET):
            return False
        size, table = struct.unpack_from("<HH", beginning, vtable)
        if size % 2 or not 4 + 2 * JAX_MLIR_MODULE < size <= 4 + 2 * _MOST_FIELDS:
            return False
        fields = struct.unpack_from(f"<{size // 2 - 2}H", beginning, vtable + 4)
    except struct.error:
        return is_shared
    missing = [slot for slot in _TYPICAL if not fields[slot]]
    return len(missing) <= 1 and all(offset == 0 or 4 <= offset < table for offset in fields)


BYTECODE_MAGIC = b"ML\xefR"

_NEWEST_CONTAINER = 6
_PRODUCER_PREFIX = "StableHLO_v"
_LONGEST_PRODUCER = 4096

_SECTIONS = (
    *("STRING", "DIALECT", "ATTR_TYPE", "ATTR_TYPE_OFFSET", "IR", "RESOURCE", "RESOURCE_OFFSET", "DIALECT_VERSIONS"),
    "PROPERTIES",
)
"""The names of the sections, by their numbers in a file."""

_REQUIRED = frozenset(("STRING", "DIALECT", "ATTR_TYPE", "ATTR_TYPE_OFFSET", "IR"))


class BytecodeHeader(NamedTuple):
    """The header of a bytecode file.

    Attributes:
        container: the version of the bytecode container (not of StableHLO).
        producer: what wrote the file, such as ``MLIR23.0.0git`` or ``StableHLO_v1.17.0``.
        end: where the first section begins.
    """

    container: int
    producer: str
    end: int

    @property
    def artifact_version(self) -> Version | None:
        """The StableHLO version, if the producer says that this is a portable artifact; None otherwise."""
        return Version.parse(self.producer) if self.producer.startswith(_PRODUCER_PREFIX) else None


def read_header(code: bytes) -> BytecodeHeader:
    """Return the header of bytes that begin with ``MAGIC``.

    Raises:
        DataLossError: the header is cut off or senseless.
    """
    container, begin = _varint(code, len(BYTECODE_MAGIC))
    end = code.find(b"\0", begin, begin + _LONGEST_PRODUCER)
    if end < 0:
        raise DataLossError(f"truncated MLIR bytecode: its header names no complete producer in {len(code)} bytes")
    try:
        header = BytecodeHeader(container, code[begin:end].decode(), end + 1)
        _ = header.artifact_version
    except ValueError as error:
        raise DataLossError(f"corrupt MLIR bytecode: the producer in its header is {code[begin:end]!r}") from error
    return header


def screen_bytecode(code: bytes) -> BytecodeHeader:
    """Return the header of bytecode, after a check that its sections tile the file.

    The sections of a container newer than this package knows are left to the parser.

    Raises:
        DataLossError: the bytes are truncated or corrupt; the message says where.
    """
    header = read_header(code)
    if header.container <= _NEWEST_CONTAINER:
        absent = _REQUIRED - read_sections(code, header.end).keys()
        missing = [name for name in _SECTIONS if name in absent]
        if missing:
            raise DataLossError(
                f"truncated MLIR bytecode: {len(code)} bytes without the section {' and '.join(missing)}"
            )
    return header


def _has_resource_section(code: bytes) -> bool:
    """Whether bytecode may have resources beside its operations, such as the values of large constants.

    Raises:
        DataLossError: as for ``screen``.
    """
    header = read_header(code)
    # MLIR writes the section in any case; the one byte of an empty one is the number of groups.
    return header.container > _NEWEST_CONTAINER or len(read_sections(code, header.end).get("RESOURCE_OFFSET", ())) > 1


def has_broken_string(code: bytes) -> bool:
    """Whether bytecode has a string that is not UTF-8.

    Raises:
        DataLossError: its outline is damaged.
    """
    header = read_header(code)
    if header.container > _NEWEST_CONTAINER:
        return False
    place = read_sections(code, header.end)["STRING"]
    if code[place.start : place.stop].isascii():
        return False
    count, position = _varint(code, place.start)  # then their lengths, and then all of them
    for _ in range(count):
        _, position = _varint(code, position)
    try:
        code[position : place.stop].decode()
    except UnicodeDecodeError:
        return True
    return False


def read_sections(code: bytes, position: int) -> dict[str, range]:
    """Return the places, by name, of the sections that begin at a position and fill the rest of the bytes.

    Raises:
        DataLossError: they do not fill it.
    """
    places: dict[str, range] = {}
    while position < len(code):
        number, is_aligned = code[position] & 0x7F, code[position] & 0x80
        name = _SECTIONS[number] if number < len(_SECTIONS) else ""
        if not name or name in places:
            raise DataLossError(f"corrupt MLIR bytecode: section {number} at byte {position} is unknown or there twice")
        length, position = _varint(code, position + 1)
        if is_aligned:
            alignment, position = _varint(code, position)
            position += -position % max(alignment, 1)
        position += length
        if position > len(code):
            raise DataLossError(f"truncated MLIR bytecode: section {name} ends at byte {position} of only {len(code)}")
        places[name] = range(position - length, position)
    return places


def _varint(code: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it.

    The trailing zero bits of its first byte count the bytes that follow; a first byte of zero has eight after it.
    """
    first = code[position] if position < len(code) else 0
    extra = (first & -first).bit_length() - 1 if first else 8
    end = position + 1 + extra
    if end > len(code):
        raise DataLossError(f"truncated MLIR bytecode: it ends inside a number, at byte {len(code)}")
    if not first:
        return int.from_bytes(code[position + 1 : end], "little"), end
    return int.from_bytes(code[position:end], "little") >> (extra + 1), end


class Encoding(enum.StrEnum):
    """The encoding of a program; finer than ``ProgramFormat``, which calls the first three ``mlir``."""

    TEXT = "MLIR text"
    BYTECODE = "MLIR bytecode"
    PORTABLE_ARTIFACT = "StableHLO portable artifact"
    HLO = "HLO proto"
    HLO_WITH_CONFIG = "HLO proto with configuration"

    @property
    def program_format(self) -> ProgramFormat:
        """PJRT's name of the format."""
        if self is Encoding.HLO:
            return ProgramFormat.HLO
        return ProgramFormat.HLO_WITH_CONFIG if self is Encoding.HLO_WITH_CONFIG else ProgramFormat.MLIR


HLO_ENCODINGS = frozenset((Encoding.HLO, Encoding.HLO_WITH_CONFIG))


_ENCODING = "encoding"


def is_recognized(program: Program) -> bool:
    """Return whether the encoding of a program is known, and fits its format."""
    return _ENCODING in program.read and program.read[_ENCODING].program_format == program.format


def encoding_of(program: Program | bytes) -> Encoding:
    """Return how a program is written down. That costs next to nothing and needs no other library.

    The outline of the bytes is checked, so a program with a truncated or corrupt outline is refused here. The inside of
    a sound outline is for a parser to judge.

    Raises:
        DataLossError: the bytes are of a known encoding, but truncated or corrupt.
        InvalidArgumentError: the bytes are of no known encoding; the message names what they look like.
    """
    if not isinstance(program, Program):
        return _recognized(program)
    found: Encoding | None = program.read.get(_ENCODING)
    if found is None:
        found = program.read[_ENCODING] = _recognized(program.code)
    return found


def _recognized(code: bytes) -> Encoding:
    if code.startswith(BYTECODE_MAGIC):
        is_artifact = screen_bytecode(code).artifact_version is not None
        return Encoding.PORTABLE_ARTIFACT if is_artifact else Encoding.BYTECODE
    if is_text(code):
        return Encoding.TEXT
    if hlo_proto.looks_like_hlo(code):
        return Encoding.HLO_WITH_CONFIG if hlo_proto.screen(code).has_config else Encoding.HLO
    raise _refusal(code)


def program_of(code: bytes) -> Program:
    """Return the program in bytes of any ``Encoding``, with the bytes as they are.

    But a byte order mark is removed, and of an XLA dump (``HloProto``) the program inside is taken.

    Raises:
        PjrtError: as for ``encoding_of``; and text that is not UTF-8 is refused.
    """
    encoding = encoding_of(code)
    if encoding is Encoding.TEXT:
        code = _clean_text(code)
    if encoding is Encoding.HLO:
        module = hlo_proto.screen(code)
        code = code[module.begin : module.end]
    program = Program(code, encoding.program_format)
    program.read[_ENCODING] = encoding
    return program


def _clean_text(code: bytes) -> bytes:
    if not code.isascii():
        _check_utf8(code)
    if b"\0" in code:
        raise DataLossError(f"corrupt MLIR text: a zero byte at byte {code.index(0)}")
    return code.removeprefix(BYTE_ORDER_MARK)


_PIECE = 1 << 20


def _check_utf8(code: bytes) -> None:
    """Refuse text that is not UTF-8, a piece at a time: the text as a ``str`` would take as much memory again."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(code), _PIECE):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(code[begin : begin + _PIECE], final=begin + _PIECE >= len(code))
        except UnicodeDecodeError as error:
            at = begin - pending + error.start
            wrong = code[at : at + error.end - error.start]
            raise DataLossError(f"corrupt MLIR text: expected UTF-8, found {wrong!r} at byte {at}") from error


def refuse_beginning(beginning: bytes, size: int) -> None:
    """Refuse a file that is no program by its first bytes, so that the others need not be read.

    Args:
        beginning: the first bytes.
        size: the number of bytes in all.

    Raises:
        InvalidArgumentError: no program begins like this; the message names what it looks like.
    """
    if beginning.startswith(BYTECODE_MAGIC) or is_text(beginning) or looks_like_jax_export(beginning):
        return
    if hlo_proto.looks_like_hlo(beginning) or looks_like_hlo_text(beginning):
        return
    blank = re.match(_BLANKS_AND_COMMENTS, beginning)
    if blank is not None and _is_cut_start(beginning[blank.end() :]):
        return
    raise _refusal(beginning, size)


def _is_cut_start(rest: bytes) -> bool:
    """Whether bytes, after which more follow, may be the beginning of a program's first word or of a long comment."""
    return len(rest) < _LONGEST_WORD and (not rest or b"\n" not in rest) and b"\0" not in rest


_LONGEST_WORD = 200


def artifact_version(program: Program | bytes) -> Version | None:
    """Return the StableHLO version that a portable artifact is written at; None for other encodings, which state none.

    Raises:
        DataLossError: the program is bytecode with a truncated header.
    """
    code = program.code if isinstance(program, Program) else program
    return read_header(code).artifact_version if code.startswith(BYTECODE_MAGIC) else None


def is_vhlo(code: bytes) -> bool:
    """Whether text or bytecode is in StableHLO's versioned dialect, as the inside of portable artifacts is."""
    if code.startswith(BYTECODE_MAGIC):
        return b"vhlo\0" in code and b"func_v" in code
    return b"vhlo.func_v" in code and is_text(code)


def has_resources(code: bytes) -> bool:
    """Whether a program of MLIR may have constants whose values are resources beside the module, or were left out."""
    if code.startswith(BYTECODE_MAGIC):
        return _has_resource_section(code) or b"__elided__" in code  # the name of resources that were left out
    return b"dense_resource<" in code


_MAY_HAVE_ENTRY = re.compile(rb"(?<![\w$.-])main(?![\w$.-])")


def may_lack_entry(program: Program) -> bool:
    """Whether a program of MLIR may have no function ``main``: its name is nowhere in the bytes."""
    return program.format == ProgramFormat.MLIR and _MAY_HAVE_ENTRY.search(program.code) is None


HLO_COMMENT = rb"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)"
HLO_BLANKS = rb"(?:\xef\xbb\xbf)?(?:\s|" + HLO_COMMENT + rb")*+"
"""Patterns of HLO text: a comment, and all that may stand in front of the module."""

_HLO_INSTRUCTION = rb"(?:ROOT\s+)?%?[\w.-]+\s*=\s*\(*[a-z]\w*\["
_HLO_COMPUTATION = rb"ENTRY\s+%?[\w.-]+\s*[({]|%[\w.-]+\s*[({]|[\w.-]+\s*\{\s*" + _HLO_INSTRUCTION
_HLO_START = HLO_BLANKS + rb"(?:HloModule\b|" + _HLO_COMPUTATION + rb")"
"""A module, or a computation where the line of the module was left out."""


def looks_like_hlo_text(code: bytes) -> bool:
    """Whether bytes begin as HLO text does, comments and a byte order mark aside."""
    return re.match(_HLO_START, code) is not None


def is_text(code: bytes) -> bool:
    """Whether the bytes begin as MLIR text does, comments and a byte order mark aside."""
    start = re.match(_BLANKS_AND_COMMENTS, code)
    return start is not None and re.compile(_MLIR_START, re.VERBOSE).match(code, start.end()) is not None


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_BLANKS_AND_COMMENTS = rb"(?:\xef\xbb\xbf)?(?:\s+|//[^\n]*(?:\n|\Z))*"

# A module, a function, any operation by its dialect, an alias of an attribute or type, or metadata before all of
# them.
_MLIR_START = rb"""module\b\s*(?:[@{]|attributes\b)
      | (?:[a-z_][a-z0-9_]*\.)+[a-z_][a-z0-9_]*\b (?= \s*[@({<%"\w] )
      | "[a-z_][a-z0-9_]*\.[\w.]+"\s*\(
      | [\#!][A-Za-z_][\w.$]*\s*=
      | \{-\#
    """

ZIP_MAGIC = b"PK\x03\x04"
ZIP_NAME = 30
"""The place of the name of an archive's first member."""

MODEL_FACTS = "pjrt_model.json"
"""The first member of a model in one file, a zip archive."""


def looks_like_model_package(beginning: bytes) -> bool:
    """Whether bytes begin like a model in one file, damaged or not."""
    return beginning.startswith(ZIP_MAGIC) and beginning.startswith(MODEL_FACTS.encode(), ZIP_NAME)


_EXPORT = "export the model that it was made of, with jax.export or torch.export"
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (rb"PK\x03\x04", f"a zip archive (such as .npz, .pt or .keras), but not of torch.export; {_EXPORT}"),
    (rb"\x89HDF\r\n", f"an HDF5 file (such as weights of Keras), which has no program; {_EXPORT}"),
    (rb"\x1f\x8b", "gzip data; decompress it first"),
    (rb"\x28\xb5\x2f\xfd", "Zstandard data; decompress it first"),
    (rb"\x93NUMPY", "a NumPy array"),
    (rb"\x7fELF", "a shared library or an executable"),
    (rb"\xcf\xfa\xed\xfe", "a shared library or an executable of macOS"),
    (rb"MZ", "a shared library or an executable of Windows"),
    (rb"BC\xc0\xde", "LLVM bitcode"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text; expected UTF-8"),
    (rb"....TFL3", f"a model of TensorFlow Lite; {_EXPORT}"),
    (rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]", f"what looks like an ONNX model; {_EXPORT}"),
    (rb"GGUF", f"a GGUF file, which has weights and no program; {_EXPORT}"),
    (rb".{8}\{\s*\"", "a safetensors file, which has weights and no program; give it with --input, beside its program"),
    (rb"\x80[\x02-\x05]", f"a pickle, which pjrt does not open; {_EXPORT}"),
    (rb"version https://git-lfs", "a pointer of Git LFS in the place of the file; get the file with 'git lfs pull'"),
    (rb"(?i)\s*<(?:!doctype html|html)\b", "a page of the web; download the file itself"),
    (rb"\s*<\?xml\b", f"XML (such as a model of OpenVINO); {_EXPORT}"),
    (rb"\s*\{", f"JSON (such as a model of TensorFlow.js); {_EXPORT}"),
)
"""Patterns of how files begin that people take for programs, and what each is."""

_EXPECTED = (
    "MLIR text, MLIR bytecode, a StableHLO portable artifact, HLO as a proto or text, a file of jax.export or of "
    "torch.export (.pt2), the folder of a SavedModel or of PyTorch/XLA, a model in one file (.pjrt), or a saved "
    "executable"
)


def check_archive(file: IO[bytes]) -> None:
    """Refuse a zip archive that is cut off: the list of what is in it stands at its end."""
    import zipfile  # few programs are in archives

    if not zipfile.is_zipfile(file):
        raise DataLossError("truncated zip archive (such as .pt2, .npz or .keras): it has no end; get the file again")


def _refusal(code: bytes, size: int | None = None) -> InvalidArgumentError | DataLossError:
    size = len(code) if size is None else size
    if not code:
        return InvalidArgumentError(f"expected a program ({_EXPECTED}), found nothing: 0 bytes")
    if code.startswith(ZIP_MAGIC) and size == len(code):
        check_archive(io.BytesIO(code))
    if BYTECODE_MAGIC.startswith(code):
        return DataLossError(f"truncated MLIR bytecode: it ends after {size} bytes, inside its first word")
    if looks_like_jax_export(code):
        return InvalidArgumentError(
            f"expected a program ({_EXPECTED}), found a jax.export file; pjrt.stablehlo.read returns the program in it"
        )
    if looks_like_hlo_text(code):
        return InvalidArgumentError(
            f"expected a program ({_EXPECTED}), found HLO text; pjrt.stablehlo.read returns it as an HLO proto"
        )
    for beginning, what in _FOREIGN:
        if re.match(beginning, code, re.DOTALL):
            return InvalidArgumentError(f"expected a program ({_EXPECTED}), found {what}")
    return InvalidArgumentError(f"expected a program ({_EXPECTED}), found {size} bytes that begin with {code[:16]!r}")

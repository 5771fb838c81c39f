"""Encodings: how a program is written down, recognized by its bytes."""

from __future__ import annotations

import enum
import re

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo import _bytecode, _hlo
from pjrt.stablehlo.files._jax_export_beginning import looks_like_jax_export
from pjrt.stablehlo.files.hlo_text import looks_like_hlo_text
from pjrt.stablehlo.version import Version


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


def encoding_of(program: Program | bytes) -> Encoding:
    """Return how a program is written down. That costs next to nothing and needs no other library.

    The outline of the bytes is checked, so a program with a truncated or corrupt outline is refused here. The inside of
    a sound outline is for a parser to judge.

    Raises:
        DataLossError: the bytes are of a known encoding, but truncated or corrupt.
        InvalidArgumentError: the bytes are of no known encoding; the message names what they look like.
    """
    code = program.code if isinstance(program, Program) else program
    if code.startswith(_bytecode.MAGIC):
        is_artifact = _bytecode.screen(code).artifact_version is not None
        return Encoding.PORTABLE_ARTIFACT if is_artifact else Encoding.BYTECODE
    if is_text(code):
        return Encoding.TEXT
    if _hlo.looks_like_hlo(code):
        return Encoding.HLO_WITH_CONFIG if _hlo.screen(code).has_config else Encoding.HLO
    raise _refusal(code)


def refuse_beginning(beginning: bytes, size: int) -> None:
    """Refuse a file that is no program by its first bytes, so that the others need not be read.

    Args:
        beginning: the first bytes.
        size: the number of bytes in all.

    Raises:
        InvalidArgumentError: no program begins like this; the message names what it looks like.
    """
    if beginning.startswith(_bytecode.MAGIC) or is_text(beginning) or looks_like_jax_export(beginning):
        return
    if _hlo.looks_like_hlo(beginning) or looks_like_hlo_text(beginning):
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
    return _bytecode.read_header(code).artifact_version if code.startswith(_bytecode.MAGIC) else None


def is_vhlo(code: bytes) -> bool:
    """Whether text or bytecode is in StableHLO's versioned dialect, as the inside of portable artifacts is."""
    if code.startswith(_bytecode.MAGIC):
        return b"vhlo\0" in code and b"func_v" in code
    return b"vhlo.func_v" in code and is_text(code)


def has_resources(code: bytes) -> bool:
    """Whether a program of MLIR may have constants whose values are resources beside the module, or were left out."""
    if code.startswith(_bytecode.MAGIC):
        return _bytecode.has_resources(code) or b"__elided__" in code  # the name of resources that were left out
    return b"dense_resource<" in code


def is_jax_export(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is one of ``jax.export``, damaged or not."""
    return looks_like_jax_export(beginning)


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

_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (ZIP_MAGIC, "a zip archive (such as .npz, .pt or .keras), but not of torch.export; export the model as StableHLO"),
    (b"\x89HDF\r\n", "an HDF5 file (such as weights of Keras)"),
    (b"\x1f\x8b", "gzip data; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data; decompress it first"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x7fELF", "a shared library or an executable"),
    (b"\xcf\xfa\xed\xfe", "a shared library or an executable of macOS"),
    (b"MZ", "a shared library or an executable of Windows"),
    (b"BC\xc0\xde", "LLVM bitcode"),
    (b"\xff\xfe", "UTF-16 text; expected UTF-8"),
    (b"\xfe\xff", "UTF-16 text; expected UTF-8"),
)

_EXPECTED = "MLIR text, MLIR bytecode, a StableHLO portable artifact, HLO as a proto or text, or a jax.export file"


def _refusal(code: bytes, size: int | None = None) -> InvalidArgumentError | DataLossError:
    size = len(code) if size is None else size
    if not code:
        return InvalidArgumentError(f"expected a program ({_EXPECTED}), found nothing: 0 bytes")
    if _bytecode.MAGIC.startswith(code):
        return DataLossError(f"truncated MLIR bytecode: it ends after {size} bytes, inside its first word")
    if looks_like_jax_export(code):
        return InvalidArgumentError(
            f"expected a program ({_EXPECTED}), found a jax.export file; pjrt.stablehlo.read returns the program in it"
        )
    if looks_like_hlo_text(code):
        return InvalidArgumentError(
            f"expected a program ({_EXPECTED}), found HLO text; pjrt.stablehlo.read returns it as an HLO proto"
        )
    if code[4:8] == b"TFL3":
        return InvalidArgumentError(f"expected a program ({_EXPECTED}), found a model of TensorFlow Lite")
    for beginning, what in _FOREIGN:
        if code.startswith(beginning):
            return InvalidArgumentError(f"expected a program ({_EXPECTED}), found {what}")
    return InvalidArgumentError(f"expected a program ({_EXPECTED}), found {size} bytes that begin with {code[:16]!r}")

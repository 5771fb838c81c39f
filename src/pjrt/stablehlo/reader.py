"""The reader of programs: from bytes, text and files."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PjrtError, naming
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import format, hlo_proto
from pjrt.stablehlo.files.hlo_text import looks_like_hlo_text, parse_hlo_text
from pjrt.stablehlo.format import (
    BYTE_ORDER_MARK,
    ZIP_MAGIC,
    Encoding,
    encoding_of,
    looks_like_jax_export,
    refuse_beginning,
)

SAVED_MODEL_FILE = "saved_model.pb"
"""The file in the folder of a SavedModel that has the program."""


def read(source: Program | str | bytes | bytearray | memoryview | os.PathLike[str]) -> Program:
    """Return the program in a text, in bytes or in a file, with the format that its bytes show.

    Nothing is parsed and no other library is needed, but for HLO text, which jaxlib turns into an HLO proto (see
    ``parse_hlo_text``). The outline of the bytes is checked, and the bytes stay as they are, with three exceptions: a
    byte order mark is removed, of an XLA dump (``HloProto``) and of a file of ``jax.export`` the program inside is
    taken, and a file of ``torch.export`` is converted (see ``read_torch_export``).

    Args:
        source: MLIR text, HLO text, the bytes of a program in any encoding, a path object of a file (a ``str`` is
            always text, see ``read_file``), or a ``Program``, whose format is corrected if its bytes show another; a
            program in a plugin's own format is returned as it is.

    Raises:
        DataLossError: the program is truncated or corrupt.
        InvalidArgumentError: the source is no program, or is not text, bytes or a path.
        NotFoundError: the file does not exist.
    """
    if isinstance(source, os.PathLike):
        return read_file(source)
    if isinstance(source, Program) and source.format not in tuple(ProgramFormat):
        return source
    if isinstance(source, str) and _names_a_file(source):
        raise InvalidArgumentError(
            f"expected the text of a program, found a path; read a file with pjrt.stablehlo.read_file({source!r})"
        )
    return _recognized(Program.of(source).code)


def as_program(program: AnyProgram) -> Program:
    """Return a program as it is; read text, bytes or the file at a path, as ``read`` does."""
    return program if isinstance(program, Program) else read(program)


def read_file(path: str | os.PathLike[str]) -> Program:
    """Return the program in a file, or in a folder of PyTorch/XLA or TensorFlow; the name does not matter.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError, InvalidArgumentError: as ``read``, with the path in the message.
        PjrtError: the file cannot be read.
    """
    if os.path.isdir(path):
        return _of_folder(path)
    if os.path.basename(path) == SAVED_MODEL_FILE:
        raise InvalidArgumentError(f"expected the folder of a SavedModel, found a file in it: {os.fspath(path)!r}")
    with reading(path):
        return _recognized(_content(path))


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put a file's path in front of the message of each error, and make errors of the file system errors of PJRT."""
    try:
        with naming(os.fspath(path)):
            yield
    except PjrtError:  # some of them are errors of Python's, too
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"expected a program, found no file at {os.fspath(path)!r}") from error
    except OSError as error:
        raise InvalidArgumentError(f"expected a program, cannot read {os.fspath(path)!r}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise InvalidArgumentError(f"expected a path, found {os.fspath(path)!r}: {error}") from error


def _of_folder(path: str | os.PathLike[str]) -> Program:
    from pjrt.stablehlo.files.saved_model import is_saved_model, read_saved_model
    from pjrt.stablehlo.files.torch_folder import is_torch_folder, read_torch_folder

    if is_saved_model(path):
        return read_saved_model(path).program
    if is_torch_folder(path):
        return read_torch_folder(path).program
    raise InvalidArgumentError(
        "expected a program, found a folder that is neither of PyTorch/XLA (functions/NAME.meta) nor a SavedModel of "
        f"TensorFlow (saved_model.pb): {os.fspath(path)!r}"
    )


_BEGINNING = 1 << 16


def _content(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a file; if the first show that it is no program, the others are not read."""
    with open(path, "rb") as file:
        beginning = file.read(_BEGINNING)
        if len(beginning) < _BEGINNING:
            return beginning
        if not file.seekable():  # a pipe
            refuse_beginning(beginning, len(beginning))
            return beginning + file.read()
        refuse_beginning(beginning, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return file.read()


def _recognized(code: bytes) -> Program:
    if code.startswith(format.BYTECODE_MAGIC):
        return Program(code, encoding_of(code).program_format)
    if code.startswith(ZIP_MAGIC):
        from pjrt.stablehlo.files.torch_export import is_torch_export, read_torch_export

        if is_torch_export(code):
            return read_torch_export(code).program
    if looks_like_jax_export(code):
        from pjrt.stablehlo.files.jax_export import read_jax_export

        return read_jax_export(code).program
    if looks_like_hlo_text(code):
        return parse_hlo_text(code)
    encoding = encoding_of(code)
    if encoding is Encoding.TEXT:
        return Program(_clean_text(code), ProgramFormat.MLIR)
    if encoding is Encoding.HLO:
        module = hlo_proto.screen(code)
        code = code[module.begin : module.end]
    return Program(code, encoding.program_format)


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


def _names_a_file(text: str) -> bool:
    """Whether a text that should be a program is a file's path instead."""
    try:
        return len(text) < 4096 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):
        return False

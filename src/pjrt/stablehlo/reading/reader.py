"""The reader of programs: from bytes, text and files."""

from __future__ import annotations

import os
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo.encodings.format import (
    BYTECODE_MAGIC,
    ZIP_MAGIC,
    check_archive,
    is_recognized,
    looks_like_hlo_text,
    looks_like_jax_export,
    looks_like_model_package,
    program_of,
    refuse_beginning,
)
from pjrt.stablehlo.files.contents import SAVED_MODEL_FILE, reading
from pjrt.stablehlo.files.hlo_text import parse_hlo_text


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
    if isinstance(source, Program) and (is_recognized(source) or source.format not in tuple(ProgramFormat)):
        return source
    if isinstance(source, str) and _names_a_file(source):
        raise InvalidArgumentError(
            f"expected the text of a program, found a path; read a file with pjrt.stablehlo.read_file({source!r})"
        )
    program = Program.of(source)
    found = _recognized(program.code)
    if found != program:
        return found
    program.read.update(found.read)
    return program


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
        if beginning.startswith(ZIP_MAGIC):
            check_archive(file)
        refuse_beginning(beginning, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return file.read()


def _recognized(code: bytes) -> Program:
    if code.startswith(BYTECODE_MAGIC):
        return program_of(code)
    if code.startswith(ZIP_MAGIC):
        from pjrt.stablehlo.files.model_package import read_model_package
        from pjrt.stablehlo.files.torch_export import is_torch_export, read_torch_export

        if looks_like_model_package(code):
            return read_model_package(code).program
        if is_torch_export(code):
            return read_torch_export(code).program
    if looks_like_jax_export(code):
        from pjrt.stablehlo.files.jax_export import read_jax_export

        return read_jax_export(code).program
    if looks_like_hlo_text(code):
        return parse_hlo_text(code)
    return program_of(code)


def _names_a_file(text: str) -> bool:
    """Whether a text that should be a program is a file's path instead."""
    try:
        return len(text) < 4096 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):
        return False

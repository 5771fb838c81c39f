"""Programs: the code that a device compiles (``PJRT_Program``), with its format."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from typing import TypeAlias

from pjrt.api.errors import InvalidArgumentError, NotFoundError


class ProgramFormat(enum.StrEnum):
    """The format of a program's bytes; the values are PJRT's own names.

    ``MLIR`` stands for StableHLO as MLIR text, MLIR bytecode and portable artifacts; the bytes tell them apart.
    """

    MLIR = "mlir"
    HLO = "hlo"
    HLO_WITH_CONFIG = "hlo_with_config"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Program:
    """A program to compile: its bytes and their format.

    Attributes:
        code: the bytes, unread and unchanged.
        format: one of ``ProgramFormat``, or the name of a plugin's own format.
    """

    code: bytes = field(repr=False)
    format: str = ProgramFormat.MLIR

    def __post_init__(self) -> None:
        if not isinstance(self.code, bytes):
            raise InvalidArgumentError(
                f"a program's code is bytes, found {type(self.code).__name__}; encode text as UTF-8"
            )
        if not isinstance(self.format, str) or not self.format:
            raise InvalidArgumentError(f"a program needs a format, such as 'mlir' or 'hlo', found {self.format!r}")

    def __len__(self) -> int:
        return len(self.code)

    @staticmethod
    def of(program: AnyProgram | bytearray | memoryview) -> Program:
        """Return the program that ``Client.compile`` was given; text and bytes without a format count as ``mlir``.

        ``pjrt.stablehlo.read`` inspects the bytes and recognizes HLO protos too.

        Args:
            program: a program, its text or bytes, or the path of its file as a path object; a ``str`` is always text.

        Raises:
            InvalidArgumentError: the argument is not a program, or the file cannot be read.
            NotFoundError: the file does not exist.
        """
        if isinstance(program, Program):
            return program
        if isinstance(program, str):
            return Program(program.encode())
        if isinstance(program, (bytes, bytearray, memoryview)):
            return Program(bytes(program))
        if isinstance(program, os.PathLike):
            return Program(_content(program))
        raise InvalidArgumentError(
            f"expected a program as pjrt.Program, str, bytes or a path, found {type(program).__name__}"
        )


def _content(path: os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise NotFoundError(f"expected a program, found no file at {os.fspath(path)!r}") from error
    except IsADirectoryError as error:
        raise InvalidArgumentError(
            f"expected a program, found a folder at {os.fspath(path)!r}; pjrt.load_model takes folders of PyTorch/XLA"
        ) from error
    except OSError as error:
        raise InvalidArgumentError(f"expected a program, cannot read {os.fspath(path)!r}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise InvalidArgumentError(f"expected a path, found {os.fspath(path)!r}: {error}") from error


AnyProgram: TypeAlias = Program | str | bytes | os.PathLike[str]
"""A program, its text or bytes, or the path of its file as a path object (a ``str`` is text)."""

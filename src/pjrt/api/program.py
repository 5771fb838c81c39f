"""Programs: the code that a device compiles (``PJRT_Program``), with its format."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pjrt.api.errors import InvalidArgumentError


class ProgramFormat(enum.StrEnum):
    """The format of a program's bytes; the values are PJRT's own names.

    ``MLIR`` stands for StableHLO as MLIR text, MLIR bytecode and portable artifacts; the bytes tell them apart.
    """

    MLIR = "mlir"
    HLO = "hlo"
    HLO_WITH_CONFIG = "hlo_with_config"


@dataclass(frozen=True, slots=True)
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
    def of(program: Program | str | bytes | bytearray | memoryview) -> Program:
        """Return the program that ``Client.compile`` was given; text and bytes without a format count as ``mlir``.

        ``pjrt.stablehlo.read`` inspects the bytes and recognizes HLO protos too.

        Raises:
            InvalidArgumentError: the argument is not a program.
        """
        if isinstance(program, Program):
            return program
        if isinstance(program, str):
            return Program(program.encode())
        if isinstance(program, (bytes, bytearray, memoryview)):
            return Program(bytes(program))
        raise InvalidArgumentError(f"expected a program as pjrt.Program, str or bytes, found {type(program).__name__}")

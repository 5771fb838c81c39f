"""Programs: the code that a device compiles (``PJRT_Program``), with its format."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pjrt.api.errors import InvalidArgumentError


class ProgramFormat(enum.StrEnum):
    """How a program's bytes are to be read; the values are PJRT's own names of the formats.

    ``MLIR`` covers StableHLO as MLIR text, MLIR bytecode and portable artifacts, which are told apart by looking at the
    bytes.
    """

    MLIR = "mlir"
    HLO = "hlo"
    HLO_WITH_CONFIG = "hlo_with_config"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compile: its bytes and their format.

    Attributes:
        code: the bytes, unread and unchanged.
        format: one of ``ProgramFormat`` or, for a plugin with a format of its own, that format's name.
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
        """Whatever ``Client.compile`` takes, as a ``Program``: text and bytes without a format are taken to be
        ``mlir``.

        (``pjrt.stablehlo.read`` looks at the bytes and can also tell an HLO proto.)
        """
        if isinstance(program, Program):
            return program
        if isinstance(program, str):
            return Program(program.encode())
        if isinstance(program, (bytes, bytearray, memoryview)):
            return Program(bytes(program))
        raise InvalidArgumentError(f"expected a program as pjrt.Program, str or bytes, found {type(program).__name__}")

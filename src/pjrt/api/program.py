"""Programs: the code that a device compiles (``PJRT_Program``), with its format, places in it, and whose it is."""

from __future__ import annotations

import contextlib
import contextvars
import enum
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

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
    read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The facts that the room ``stablehlo`` has read of the bytes, each once: the encoding, the module."""

    def __post_init__(self) -> None:
        if not isinstance(self.code, bytes):
            raise InvalidArgumentError(
                f"a program's code is bytes, found {type(self.code).__name__}; encode text as UTF-8"
            )
        if not isinstance(self.format, str) or not self.format:
            raise InvalidArgumentError(f"a program needs a format, such as 'mlir' or 'hlo', found {self.format!r}")

    def __len__(self) -> int:
        return len(self.code)

    def __reduce__(self) -> tuple[type[Program], tuple[bytes, str]]:
        return Program, (self.code, self.format)

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
        raise no_program_at(path) from error
    except IsADirectoryError as error:
        raise InvalidArgumentError(
            f"expected a program, found a folder at {os.fspath(path)!r}; pjrt.load_model takes folders of PyTorch/XLA"
        ) from error
    except OSError as error:
        raise InvalidArgumentError(f"expected a program, cannot read {os.fspath(path)!r}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise InvalidArgumentError(f"expected a path, found {os.fspath(path)!r}: {error}") from error


def no_program_at(path: str | os.PathLike[str]) -> NotFoundError:
    """Return the error for a path where no file is."""
    text = os.fspath(path)
    advice = "; it is an address: download the file first" if "://" in text else ""
    return NotFoundError(f"expected a program, found no file at {text!r}{advice}")


AnyProgram: TypeAlias = Program | str | bytes | os.PathLike[str]
"""A program, its text or bytes, or the path of its file as a path object (a ``str`` is text)."""


class SourceLocation(NamedTuple):
    """A place in the program's source.

    Attributes:
        name: the author's name of the place, such as ``jit(f)/dot_general``; empty if it has none.
        file: the file, ``-`` for the program's own text; empty if unknown.
        line: the line, from 1; 0 if unknown.
        column: the column, from 1; 0 if unknown.
    """

    name: str
    file: str
    line: int
    column: int

    def __str__(self) -> str:
        file = "<program>" if self.file == "-" else self.file
        at = (f"{file}:{self.line}:{self.column}" if self.column else f"{file}:{self.line}") if file else ""
        return f"{self.name} at {at}" if self.name and at else self.name or at


# What only the user of this process may ask of it, such as handlers in C whose operands nobody checks, is refused to
# strangers. Checks that cannot be made are no reason to compile their programs unseen. And what works for a stranger
# alone ends when it leaves, where it can be ended. A framework of this process may name its own functions by address.


class Stranger:
    """Someone whose programs are compiled here; its methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_left = False
        self._ends: list[Callable[[], object]] = []

    @property
    def has_left(self) -> bool:
        """Whether ``leave`` was called."""
        return self._has_left

    def leave(self) -> None:
        """End what works for the stranger alone."""
        with self._lock:
            self._has_left = True
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    @contextlib.contextmanager
    def served_by(self, end: Callable[[], object]) -> Iterator[None]:
        """Have a function called if the stranger leaves meanwhile, or has left; it ends what works for it."""
        with self._lock:
            self._ends.append(end)
        if self._has_left:
            self.leave()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._ends.remove(end)


@contextlib.contextmanager
def for_stranger(stranger: Stranger | None = None) -> Iterator[None]:
    """Let the programs that this thread compiles and runs meanwhile be those of a stranger."""
    token = _stranger.set(stranger or Stranger())
    try:
        yield
    finally:
        _stranger.reset(token)


_stranger: contextvars.ContextVar[Stranger | None] = contextvars.ContextVar("pjrt_stranger", default=None)


def the_stranger() -> Stranger | None:
    """Return whose programs this thread compiles and runs; ``None`` for those of the user of this process."""
    return _stranger.get()


def is_for_stranger() -> bool:
    """Return whether the program that this thread compiles is a stranger's."""
    return _stranger.get() is not None


@contextlib.contextmanager
def from_caller(*, framework: bool) -> Iterator[None]:
    """Let the programs that this thread compiles meanwhile come through the C API.

    The outermost caller counts: a plugin that passes a framework's program on to another passes on its functions, too.

    Args:
        framework: whether a framework of this process called; else a client of this package did, with any program.
    """
    token = _from_framework.set(framework) if _from_framework.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _from_framework.reset(token)


_from_framework: contextvars.ContextVar[bool | None] = contextvars.ContextVar("pjrt_from_framework", default=None)


def is_from_framework() -> bool:
    """Return whether a framework of this process asks for the program that this thread compiles."""
    return bool(_from_framework.get()) and not is_for_stranger()

"""The contents of files and folders that have more than a program, and the errors of reading files."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pjrt.api.errors import InvalidArgumentError, PjrtError, naming
from pjrt.api.program import Program, no_program_at

if TYPE_CHECKING:
    import numpy as np

SAVED_MODEL_FILE = "saved_model.pb"
"""The file in the folder of a SavedModel that has the program."""


class FileContents(abc.ABC):
    """A program, and the facts that its file states beside it. Each format has a subclass.

    Attributes:
        kind: the format, human-readable.
        program: the program.
    """

    __slots__ = ()

    kind: ClassVar[str]
    program: Program

    @abc.abstractmethod
    def stated_platforms(self) -> Sequence[str]:
        """Return the platforms that the program is for; nothing if it is for any."""

    @abc.abstractmethod
    def stored_weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        """Return the arrays in the file, by their positions among the arguments of the program."""

    def names_of_weights(self) -> Mapping[int, str]:
        """Return the names of arrays in the file, by their positions; arrays without a name are missing."""
        return {}

    def writer(self) -> str:
        """Return what wrote the file, such as ``JAX 0.12.0``; empty if the file does not state it."""
        return ""


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put a file's path in front of the message of each error, and make errors of the file system errors of PJRT."""
    try:
        with naming(os.fspath(path)):
            yield
    except PjrtError:  # some of them are errors of Python's, too
        raise
    except FileNotFoundError as error:
        raise no_program_at(path) from error
    except OSError as error:
        raise InvalidArgumentError(f"expected a program, cannot read {os.fspath(path)!r}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise InvalidArgumentError(f"expected a path, found {os.fspath(path)!r}: {error}") from error

"""The contents of files and folders that have more than a program."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pjrt.api.program import Program


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

    def writer(self) -> str:
        """Return what wrote the file, such as ``JAX 0.12.0``; empty if the file does not state it."""
        return ""

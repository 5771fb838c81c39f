"""StableHLO versions: three numbers that determine what a portable artifact may contain."""

from __future__ import annotations

import re
from typing import NamedTuple

from pjrt.api.errors import InvalidArgumentError

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

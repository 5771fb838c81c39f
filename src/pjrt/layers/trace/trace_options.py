"""The options of the trace layer, as Python values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pjrt.api.errors import InvalidArgumentError

_SIZE = re.compile(r"\d+(\.\d+)?([kKmMgG](iB)?)?")
_TIME = re.compile(r"\d+(\.\d+)?(ns|us|ms|s)")


@dataclass(frozen=True)
class TraceOptions:
    """The options of the trace layer: which calls it records, and into which file.

    ``docs/layers.md`` explains each option.

    Raises:
        InvalidArgumentError: the ring is no size, or ``slower`` is no time. The layer checks the rest.
    """

    file: str
    """The path of the trace file; ``%p`` in it stands for the number of the process."""
    ring: str = ""
    keep: str = ""
    functions: tuple[str, ...] = ()
    errors: bool = False
    slower: str = ""
    sample: int = 1
    text: int | None = None
    array: int | None = None
    ready: str = ""
    ask: bool = True
    on: bool = True

    def __post_init__(self) -> None:
        if self.ring and not _SIZE.fullmatch(self.ring):
            raise InvalidArgumentError(f"expected ring to be a size, such as 64m, found {self.ring!r}")
        if self.slower and not _TIME.fullmatch(self.slower):
            raise InvalidArgumentError(f"expected slower to be a time with a unit, such as 10us, found {self.slower!r}")

    def as_text(self) -> str:
        """Return the options in the form ``key=value,key=value``, without those that have their defaults."""
        return ",".join(f"{key}={_escaped(str(value))}" for key, value in self.as_dict().items())

    def as_dict(self) -> dict[str, str | int]:
        """Return the options by key, without those that have their defaults."""
        pairs: dict[str, str | int | None] = {
            "file": self.file,
            "ring": self.ring or None,
            "keep": self.keep or None,
            "functions": "|".join(self.functions) or None,
            "errors": 1 if self.errors else None,
            "slower": self.slower or None,
            "sample": self.sample if self.sample != 1 else None,
            "text": self.text,
            "array": self.array,
            "ready": self.ready or None,
            "ask": None if self.ask else 0,
            "on": None if self.on else 0,
        }
        return {key: value for key, value in pairs.items() if value is not None}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")

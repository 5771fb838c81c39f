"""The facts of an executable in the header of its file, as JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.api.executable import Executable, ExecutableAbiVersion

_QUESTIONS: dict[str, Callable[[Executable], Any]] = {
    "size_of_generated_code": lambda executable: executable.size_of_generated_code,
    "output_element_types": lambda executable: [kind.name for kind in executable.output_element_types],
    "output_shapes": lambda executable: [list(shape) for shape in executable.output_shapes],
    "output_memory_kinds": lambda executable: list(executable.output_memory_kinds),
    "parameter_memory_kinds": lambda executable: list(executable.parameter_memory_kinds),
    "parameter_shardings": lambda executable: _shardings(executable.parameter_shardings),
    "output_shardings": lambda executable: _shardings(executable.output_shardings),
    "cost_analysis": lambda executable: dict(executable.cost_analysis()),
    "memory_stats": lambda executable: executable.memory_stats()._asdict(),
    "fingerprint": lambda executable: base64.b64encode(executable.fingerprint()).decode(),
    "abi_version": lambda executable: _abi_version(executable.abi_version()),
    "compile_options": lambda executable: base64.b64encode(executable.compile_options().to_proto()).decode(),
}


def facts_of(executable: Executable) -> dict[str, Any]:
    """Return the facts of an executable; those that its compiler does not report are left out."""
    facts: dict[str, Any] = {
        "name": executable.name,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "num_outputs": executable.num_outputs,
    }
    for name, question in _QUESTIONS.items():
        try:
            facts[name] = question(executable)
        except PjrtError:
            # A fact is not worth a failure: some compilers answer these questions with an internal error.
            continue
    return facts


def _abi_version(version: ExecutableAbiVersion) -> tuple[int, str]:
    return version.platform_id, base64.b64encode(version.to_proto()).decode()


def _shardings(shardings: Sequence[bytes] | None) -> list[str]:
    if shardings is None:
        raise UnimplementedError("the executable does not report shardings")
    return [base64.b64encode(each).decode() for each in shardings]


class SavedAbiVersion(ExecutableAbiVersion):
    """A saved ABI version."""

    __slots__ = ("_platform_id", "_proto")

    def __init__(self, platform_id: int, proto: bytes) -> None:
        self._platform_id = platform_id
        self._proto = proto

    @property
    def platform_id(self) -> int:
        return self._platform_id

    def to_proto(self) -> bytes:
        return self._proto

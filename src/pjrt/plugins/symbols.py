"""Exported symbols of a plugin beside ``GetPjrtApi``, which may clash with those of a framework's libraries."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from pjrt.system import elf

_EXPECTED = frozenset({"GetPjrtApi", "_init", "_fini", "_edata", "_end", "__bss_start"})

_LIBRARIES = (
    ("protobuf", ("6google8protobuf", "__start_pb_", "__stop_pb_", "upb_", "_upb")),
    ("Abseil", ("4absl",)),
    ("MLIR", ("4mlir",)),
    ("LLVM", ("4llvm", "LLVM")),
    ("XLA", ("3xla", "3tsl", "10tensorflow")),
)
"""Libraries that plugins and frameworks both hold, and parts of the names of their functions in C++."""

_FRAMEWORKS = {
    "jaxlib": "libjax_common.so",
    "torch": "lib/libtorch_cpu.so",
    "tensorflow": "libtensorflow_framework.so.2",
}
"""Packages of frameworks, and the library in each that exports the most."""


@dataclass(frozen=True, slots=True)
class SymbolReport:
    """The dynamic symbols that a plugin's library defines.

    Attributes:
        exported: how many there are.
        needless: those that no caller of the C API needs.
        groups: how many of these are of a library that frameworks hold too, by its name.
        shared: those that a library of an installed framework defines too, by the framework's package.
    """

    exported: int
    needless: tuple[str, ...]
    groups: dict[str, int]
    shared: dict[str, tuple[str, ...]]


def symbol_report(path: Path) -> SymbolReport:
    """Return what a library exports, read from its file; nothing is loaded.

    Raises:
        OSError: the file cannot be read.
    """
    names = elf.exported_names(path)
    needless = tuple(sorted(set(names) - _EXPECTED))
    groups = {
        library: count
        for library, parts in _LIBRARIES
        if (count := sum(any(part in name for part in parts) for name in needless))
    }
    found = ((package, _library_of(package, file)) for package, file in _FRAMEWORKS.items())
    shared = {
        package: common
        for package, library in found
        if library is not None and (common := tuple(sorted(set(needless).intersection(elf.exported_names(library)))))
    }
    return SymbolReport(len(names), needless, groups, shared)


def _library_of(package: str, file: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder) / file).is_file():
            return path
    return None

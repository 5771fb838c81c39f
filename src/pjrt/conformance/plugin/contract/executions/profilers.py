"""Checks of the extension Profiler: a recorder of traces, with a table of functions of its own."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt.capi.layer.schema import FUNCTIONS, STRUCTS
from pjrt.capi.raw.numbers import load
from pjrt.capi.raw.struct_writer import StructWriter
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.subject import Subject

_FUNCTIONS = tuple(name for name, function in FUNCTIONS.items() if function.extension == "Profiler")
_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_TABLE_OF_EXTENSION, _FIRST_SLOT = 24, 16


class Profiler:
    """A profiler of the plugin, made by the check."""

    def __init__(self, subject: Subject) -> None:
        self._table = load(subject.require_extension("Profiler") + _TABLE_OF_EXTENSION)
        if not self._table:
            raise Unsupported("a profiler: the extension has no table of functions")
        self._subject = subject
        answer = self.attempt("PLUGIN_Profiler_Create", options=b"")
        if answer.error:
            raise Unsupported("a profiler: it cannot be made")
        self.handle = answer.number("profiler")

    def call(self, name: str, **fields: Any) -> _Answer:
        """Call a function with the profiler, which must succeed."""
        answer = self.attempt(name, profiler=self.handle, **fields)
        self._subject.expect(not answer.error, f"{name} to succeed", "an error")
        return answer

    def attempt(self, name: str, **fields: Any) -> _Answer:
        """Call a function of the table."""
        slot = load(self._table + _FIRST_SLOT + 8 * _FUNCTIONS.index(name))
        self._subject.expect(bool(slot), f"a function {name}", "null")
        return _Answer(name, slot, fields)


class _Answer:
    """A call of the profiler's table, and the memory of its arguments."""

    def __init__(self, name: str, slot: int, fields: dict[str, Any]) -> None:
        self._writer = StructWriter()
        self._spec = STRUCTS[FUNCTIONS[name].args]
        self._address = self._writer.build(self._spec.name, fields)
        self.error = int(_Function(slot)(self._address) or 0)

    def number(self, field: str) -> int:
        """Return a field of eight bytes."""
        return int(load(self._address + self._spec.fields[field].offset))


@check(
    "profiler.records",
    calls=_FUNCTIONS[3:],
    rule="A profiler is started and stopped, and then collects its data: first the size, then the bytes.",
)
def _records(subject: Subject) -> None:
    loaded = subject.compile("add")
    profiler = Profiler(subject)
    profiler.call("PLUGIN_Profiler_Start")
    expect_sum(subject, loaded)
    profiler.call("PLUGIN_Profiler_Stop")
    size = profiler.call("PLUGIN_Profiler_CollectData", buffer=0).number("buffer_size_in_bytes")
    subject.expect(size < 1 << 30, "the size of the data", str(size))
    memory = np.full(size + 64, 0xA5, np.uint8)
    profiler.call("PLUGIN_Profiler_CollectData", buffer=memory.ctypes.data, buffer_size_in_bytes=size)
    behind = bool((memory[size:] == 0xA5).all())
    subject.expect(behind, "memory behind the data as it was", "memory that was written")
    profiler.call("PLUGIN_Profiler_Destroy")


@check(
    "profiler.one_after_the_other",
    calls=_FUNCTIONS[3:],
    rule="Each profiler belongs to the caller, who destroys it; another may be made then.",
)
def _one_after_another(subject: Subject) -> None:
    for _ in range(3):
        profiler = Profiler(subject)
        profiler.call("PLUGIN_Profiler_Start")
        profiler.call("PLUGIN_Profiler_Stop")
        profiler.call("PLUGIN_Profiler_Destroy")


@check(
    "profiler.destroyed_before_it_starts",
    calls=("PLUGIN_Profiler_Create", "PLUGIN_Profiler_Destroy"),
    rule="A profiler may be destroyed without being started.",
)
def _unused(subject: Subject) -> None:
    Profiler(subject).call("PLUGIN_Profiler_Destroy")

"""Lists of ``PJRT_NamedValue`` that a plugin returns."""

from __future__ import annotations

from pjrt.capi import raw
from pjrt.capi.layer.schema import ENUMS, FUNCTIONS, STRUCTS
from pjrt.capi.raw.struct_reader import StructReader
from pjrt.conformance.plugin.subject import Subject

_TYPES = {number: name for name, number in ENUMS["PJRT_NamedValue_Type"]}
_PYTHON_TYPES = {0: (bytes, type(None)), 1: (int,), 2: (list, type(None)), 3: (float,), 4: (bool,)}


def expect_named_values(subject: Subject, result: raw.Result, field: str) -> dict[str, object]:
    """Return the values of a list by name; raise ``Failed`` if a name comes twice, or a value has no known type."""
    values: dict[str, object] = {}
    for each in result.fields[field] or ():
        name = (each.name or b"").decode("utf-8", "replace")
        subject.expect(name, "a value with a name", "none")
        subject.expect(name not in values, "names that come once", f"{name} twice")
        subject.expect(each.type in _TYPES, f"a type of {', '.join(_TYPES.values())}", f"{each.type} of {name}")
        subject.expect(isinstance(each.value, _PYTHON_TYPES[each.type]), f"a {_TYPES[each.type]} {name}", each.value)
        values[name] = each.value
    return values


def read_named_values(result: raw.Result, field: str, count: int) -> list[raw.Struct]:
    """Read a list of a result anew from the memory of the plugin."""
    offset = STRUCTS[FUNCTIONS[result.function].args].fields[field].offset
    address = int.from_bytes(result.struct_bytes[offset : offset + 8], "little")
    size = STRUCTS["PJRT_NamedValue"].size
    return [StructReader().read("PJRT_NamedValue", address + i * size) for i in range(count)]

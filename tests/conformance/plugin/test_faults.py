"""Each check of the official tier, and of the contract of clients, devices, errors and topologies, can fail.

A check passes on the tiny plugin, and fails when one function of it returns something wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FAULTS
from faulty_plugin import Change, FaultyPlugin
from tiny import build

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Check, Failed, Unsupported, all_checks
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject

PROGRAMS = Path(__file__).parent / "programs"
OPTIONS = {"num_devices": 2}
UNSUPPORTED = {
    "official.compile",  # programs of MHLO and HLO, which the tiny plugin does not read
    "official.compile_xla_computation",
    "official.gpu.create_topology",
    "official.gpu.create_explicit_topology",
    "official.gpu.valid_allocator_options",
    "official.gpu.invalid_allocator_options",
    "official.gpu.unavailable_platform_name",
    "official.gpu.create_client_with_kv_callback",
}
"""Checks that the tiny plugin lawfully leaves out."""

ADVICE = {"device.addressable_memories.kinds", "table.functions_of_its_version", "extensions.known_types"}
"""Checks that only give advice."""

OF_THE_TABLE = {
    "official.api_version",
    "official.field_offsets_and_sizes",
    "table.version.struct_size",
    "table.needed_functions",
    "extensions.chain_ends",
    "extensions.unique_types",
    "extensions.struct_size",
    "extensions.stable",
}
"""Checks that read the table itself."""

OF_THE_FILE = {"table.symbols"}
"""Checks that read the library's file."""

MODULES = ("clients", "devices", "table", "topologies")


def subject_with(library: Path, faults: Mapping[str, Change]) -> Subject:
    """Return the tiny plugin with faults."""
    return Subject(FaultyPlugin(raw.load(library), faults), OPTIONS, Samples(str(PROGRAMS)))


def module_of(check: Check) -> str:
    """Return the name of the module of a check."""
    run: Any = check.run
    function = next((each for each in getattr(run, "args", ()) if callable(each)), run)
    return str(getattr(function, "__module__", "")).rpartition(".")[2]


def test_each_check_has_a_fault() -> None:
    checks = [each for each in all_checks().values() if each.tier == "official" or module_of(each) in MODULES]
    names = {each.name.partition("[")[0] for each in checks}
    faults = {name.partition("[")[0] for name in FAULTS}
    assert names == faults | UNSUPPORTED | ADVICE | OF_THE_TABLE | OF_THE_FILE


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_passes_and_fails(name: str, tiny_library: Path) -> None:
    check = all_checks()[name]
    check.run(subject_with(tiny_library, {}))
    function, change = FAULTS[name]
    with pytest.raises(Failed) as failure:
        check.run(subject_with(tiny_library, {function: change}))
    assert failure.value.expected


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_a_plugin_may_leave_out(name: str, tiny_library: Path) -> None:
    check = next(each for each in all_checks().values() if each.name.partition("[")[0] == name)
    with pytest.raises(Unsupported):
        check.run(subject_with(tiny_library, {}))


class CopiedTable:
    """A copy of a plugin's table and of its extensions, to be written to."""

    def __init__(self, library: Path) -> None:
        plugin = raw.load(library)
        self._keep = plugin
        self.bytes = np.frombuffer(ctypes.string_at(plugin.address, plugin.table.size), np.uint64).copy()
        self.extensions = [
            np.frombuffer(ctypes.string_at(address, 4096), np.uint64)[:64].copy()
            for address in plugin.extensions.values()
        ]
        self.link()

    def link(self) -> None:
        """Chain the extensions, and begin the chain in the table."""
        addresses = [each.ctypes.data for each in self.extensions]
        self.bytes[1] = addresses[0]
        for each, successor in zip(self.extensions, [*addresses[1:], 0], strict=True):
            each[2] = successor

    def run(self, name: str) -> list[str]:
        """Make a check of the table, and return its advice."""
        plugin = raw.Plugin(self.bytes.ctypes.data, self)
        subject = Subject(plugin, OPTIONS, Samples(str(PROGRAMS)))
        all_checks()[name].run(subject)
        return subject.advice


def test_checks_of_the_table(tiny_library: Path) -> None:
    for name in sorted(OF_THE_TABLE | ADVICE):
        CopiedTable(tiny_library).run(name)

    def expect_failure(name: str, table: CopiedTable) -> Failed:
        with pytest.raises(Failed) as failure:
            table.run(name)
        return failure.value

    table = CopiedTable(tiny_library)
    table.bytes[4] = 1  # major version 1
    expect_failure("official.api_version", table)
    table = CopiedTable(tiny_library)
    table.bytes[0] -= 8
    expect_failure("official.field_offsets_and_sizes", table)
    table = CopiedTable(tiny_library)
    table.bytes[2] = 0
    failure = expect_failure("table.version.struct_size", table)
    assert (failure.expected, failure.found) == ("24 as the struct_size of PJRT_Api_Version in the table", "0")
    table = CopiedTable(tiny_library)
    table.bytes[5 + 131] = 0
    (advice,) = table.run("table.functions_of_its_version")
    assert advice == "expected no null pointers in the table, found null pointers for PJRT_Buffer_Bitcast (slot 131)"
    table = CopiedTable(tiny_library)
    table.bytes[5] = 0  # PJRT_Error_Destroy
    expect_failure("table.needed_functions", table)
    table = CopiedTable(tiny_library)
    table.extensions[-1][2] = table.extensions[0].ctypes.data
    expect_failure("extensions.chain_ends", table)
    table = CopiedTable(tiny_library)
    table.extensions[1][1] = table.extensions[0][1]
    expect_failure("extensions.unique_types", table)
    table = CopiedTable(tiny_library)
    table.extensions[2][0] = 20
    expect_failure("extensions.struct_size", table)
    for kind, fits in ((5, False), (0, True)):  # functions alone, and Gpu_Custom_Call, which ends with a truth value
        table = CopiedTable(tiny_library)
        table.extensions[0][0:2] = 33, kind
        if fits:
            table.run("extensions.struct_size")
        else:
            assert "whole pointers for FFI" in expect_failure("extensions.struct_size", table).expected


def test_a_library_with_symbols_of_a_framework(tiny_library: Path, tiny_cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "symbols.c"
    source.write_text('__attribute__((visibility("default"))) int upb_alloc_global;\n')
    clashing = build.build([*build.tiny_sources(), source], tiny_cache, "libclashing.so", [build.OTHER_NAME])
    check = all_checks()["table.symbols"]
    check.run(Subject(raw.load(tiny_library), OPTIONS, Samples(), str(tiny_library)))
    with pytest.raises(Failed) as failure:
        check.run(Subject(raw.load(clashing), OPTIONS, Samples(), str(clashing)))
    assert failure.value.found == "1 of protobuf"
    with pytest.raises(Unsupported):
        check.run(Subject(raw.load(tiny_library), OPTIONS, Samples(), "reference"))


def test_a_chain_that_changes(tiny_library: Path) -> None:
    table = CopiedTable(tiny_library)
    plugin = FaultyPlugin(raw.Plugin(table.bytes.ctypes.data, table), {})
    create = plugin.call

    def call(name: str, /, **fields: Any) -> raw.Result:
        if name == "PJRT_Client_Create":
            table.extensions.reverse()
            table.link()
        return create(name, **fields)

    plugin.call = call  # type: ignore[method-assign]
    with pytest.raises(Failed, match="the same extensions"):
        all_checks()["extensions.stable"].run(Subject(plugin, OPTIONS, Samples(str(PROGRAMS))))

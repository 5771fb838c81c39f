"""The statement of the ABI against the newest plugin, which says how long it wants its argument structs to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pjrt.abi.generated.version import API_VERSION
from pjrt.abi.schema import EXTENSIONS, TABLE

Ask = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.vendor

NEWER = json.loads((Path(__file__).parents[1] / "abi" / "data" / "pjrt_c_abi_0_117.json").read_text())

STAMPS = """
import ctypes, os, re
plugin = pjrt.load_plugin(library)
get = ctypes.CDLL(library).GetPjrtApi
get.restype = ctypes.c_void_p
table = get()
number = lambda address: ctypes.c_uint64.from_address(address).value
Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

def message(error):
    args = (ctypes.c_uint64 * 5)(40, 0, error, 0, 0)
    Function(number(table + 48))(ctypes.addressof(args))
    return ctypes.string_at(args[3], args[4]).decode()

def answer(function):
    # A struct that is stamped as too short is refused before it is read; where it is not, only this child may die.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        args = (ctypes.c_uint64 * 64)(8)
        error = Function(function)(ctypes.addressof(args))
        os.write(writer, message(error).encode()[:500] if error else b"")
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 500).decode()
    os.close(reader)
    os.waitpid(child, 0)
    return said

found["stamps"] = stamps = {}
found["functions"] = functions = {}
addresses = {name: number(table + 40 + 8 * slot) for slot, name in enumerate(names) if "Error" not in name}
link = number(table + 8)
while link:
    size, kind = number(link), ctypes.c_int.from_address(link + 8).value
    name = extensions[kind]
    if name != "Profiler":  # it has data, not functions
        functions[name] = (size - 24) // 8
        addresses.update({f"{name} {index}": number(link + 24 + 8 * index) for index in range(functions[name])})
    link = number(link + 16)
for name, address in addresses.items():
    if name.endswith("_Destroy") or name in dangerous or not address:
        continue
    if told := re.match(r"Unexpected (\\w+?)(?:_Args)? size: expected (\\d+), got 8", answer(address)):
        stamps[name if name.startswith("PJRT_") else told[1]] = int(told[2])
"""

OTHERWISE_CALLED = {
    "PJRT_PhaseCompile_Get_Phase_Names": "PJRT_PhaseCompile_Get_PhaseNames",
    "PJRT_TpuTopology_ProcessIdAndIndexOnProcessForLogiDeviceOfDefaultType": (
        "PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice"
    ),
    "PJRT_Client_MakeCrossHostReceiveBuffers": "PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers",
}
"""The plugin's names of structs that the headers call otherwise."""

NOT_CHECKED = [
    "PJRT_Client_CreateViewOfDeviceBuffer",
    "CrossHostTransfers 1",
    "CrossHostTransfers 3",
    "ExecutableMetadata 0",
    "ExecutableMetadata 1",
    "PhaseCompile 1",
    "PhaseCompile 4",
]
"""Functions that read their struct without looking at its stamp."""


def test_the_newest_plugin_takes_the_structs_that_are_stated(ask: Ask, libtpu: Path) -> None:
    found = ask(
        STAMPS,
        library=str(libtpu),
        names=[each.name for each in TABLE],
        extensions=[name for name, _ in EXTENSIONS],
        dangerous=NOT_CHECKED,
    )
    asked = {OTHERWISE_CALLED.get(name, name): size for name, size in found["stamps"].items()}
    facts = {name: size for name, size in NEWER["stamps"].items() if name in asked}
    assert len(asked) > 220
    assert asked == facts
    assert found["functions"] == NEWER["functions_of_extensions"]


@pytest.mark.parametrize("name", ["tpu", "cuda"])
def test_every_extension_of_a_vendor_is_known(ask: Ask, name: str) -> None:
    found = ask("plugin = pjrt.load_plugin(name)\nfound['extensions'] = plugin.extensions", name=name)
    assert len(found["extensions"]) == {"tpu": 18, "cuda": 11}[name]
    assert found["extensions"] == {each: dict(EXTENSIONS)[each] for each in found["extensions"]}


def test_the_version_is_that_of_the_newest_plugin(ask: Ask, libtpu: Path) -> None:
    assert tuple(ask("found['version'] = pjrt.load_plugin('tpu').api_version")["version"]) == API_VERSION

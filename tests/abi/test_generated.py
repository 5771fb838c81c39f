"""Generated files are up to date, and every call of the C API has the form that the funnel needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt
from pjrt import capi
from pjrt.abi.schema import EXTENSIONS, FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]
CAPI = ROOT / "src" / "pjrt" / "capi"
SOURCES = sorted(CAPI.glob("*.pyx"))
FACTS = json.loads((Path(__file__).parent / "data" / "pjrt_c_abi.json").read_text())


def test_generating_again_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate.py", "--verify"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def coverage() -> dict[str, list[str]]:
    page = (ROOT / "docs" / "api.md").read_text()
    rows = re.findall(r"^\| `(PJRT_\w+)` \|[^|]*\| (.*) \|$", page, re.M)
    return {function: re.findall(r"`([^`]+)`", names) for function, names in rows}


def test_the_coverage_page_lists_every_function_in_the_order_of_the_table() -> None:
    assert list(coverage()) == FACTS["api"]


@pytest.mark.parametrize("function", FACTS["api"])
def test_every_function_is_reached_by_a_name_that_exists(function: str) -> None:
    names = coverage()[function]
    assert names, f"no Python name reaches {function}"
    for name in names:
        owner, _, member = name.partition(":")[0].partition(".")
        found = getattr(pjrt, owner)
        if member:
            assert hasattr(found, member), f"{name}, which is to reach {function}, does not exist"


def extensions_of_the_page() -> dict[str, str]:
    """The extensions of the coverage page, and what stands beside them under Python."""
    page = (ROOT / "docs" / "api.md").read_text()
    return dict(re.findall(r"^\| \d+ \| (\w+) \| [^|]* \| ([^|]*) \|", page, re.M))


def test_every_extension_that_is_called_has_python_names_that_exist() -> None:
    text = "".join(path.read_text() for path in SOURCES)
    used = {*re.findall(r"SLOT_(\w+)", text), *re.findall(r'(?:Getter|Constant)\("(\w+)"', text)}
    called = {FUNCTIONS[name].extension for name in used & FUNCTIONS.keys()} - {""}
    called |= set(re.findall(r"PJRT_Extension_Type_(\w+)", text))
    listed = {name: re.findall(r"`([^`]+)`", used) for name, used in extensions_of_the_page().items()}
    assert {name for name, used in listed.items() if used} == called
    for name in (each for used in listed.values() for each in used):
        owner, _, member = name.partition(".")
        found = getattr(pjrt, owner) if hasattr(pjrt, owner) else getattr(capi, owner)
        assert not member or hasattr(found, member), name


def test_the_page_and_the_headers_know_the_same_extensions() -> None:
    assert list(extensions_of_the_page()) == [name for name, _ in EXTENSIONS]
    assert all(about for _, about in EXTENSIONS)


def calls() -> list[tuple[str, str, str]]:
    """Every call of the table: where it stands, its slot, and the variable that is passed."""
    found = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for slot, variable in re.findall(r"\.call\((?:self, )?SLOT_PJRT_(\w+), &(\w+)\)", line):
                found.append((f"{path.name}:{number}", slot, variable))
    return found


def getters() -> list[str]:
    """Return the functions of all plain getters."""
    return [name for path in SOURCES for name in re.findall(r'(?:Getter|Constant)\("(\w+)"', path.read_text())]


def test_every_call_is_made_with_its_own_struct() -> None:
    """A slot called with the struct of another would compile: the funnel takes any. So the names must agree."""
    assert len(calls()) > 110
    assert len(getters()) > 60
    for where, slot, variable in calls():
        name, _, number = where.partition(":")
        above = (CAPI / name).read_text().splitlines()[: int(number)]
        declared = [m[1] for line in above if (m := re.match(rf" *cdef PJRT_(\w+)_Args {variable}$", line))]
        started = [
            m[1] for line in above if (m := re.search(rf"start\(&{variable}, PJRT_(\w+)_Args_STRUCT_SIZE\)", line))
        ]
        in_signature = any(re.search(rf"PJRT_{slot}_Args \*?{variable}\b", line) for line in above)
        if slot == "LoadedExecutable_Execute" or slot.startswith("ExecutableMetadata_"):
            # The first is laid out by a method of its own; the structs of that extension have no size to stamp.
            assert declared[-1] == slot, where
            continue
        assert started[-1] == slot, f"{where}: PJRT_{slot} is called with the stamp of PJRT_{started[-1]}"
        assert in_signature or declared[-1] == slot, f"{where}: PJRT_{slot} is called with PJRT_{declared[-1]}_Args"


def test_no_struct_of_the_abi_is_spelled_outside_of_this_room() -> None:
    outside = [path for path in (ROOT / "src" / "pjrt").rglob("*.py*") if CAPI not in path.parents]
    assert outside
    writers = {"reproduction.py"}  # the text of a program in C, which is compiled against the vendor's header
    for path in outside:
        if path.suffix in (".py", ".pyx", ".pxd") and path.name not in writers:
            assert not re.search(r"PJRT_\w+_Args\b", path.read_text()), path

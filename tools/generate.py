"""Generate all files that follow from others, and parts of pages. Each has a note, and is not edited.

``python tools/generate.py`` writes what follows from the ABI headers, the coverage of the C API, the table of rules,
and the pictures. Named parts are made alone; ``operations``, which runs the reference device's tests, only when it is
named.
With ``--verify`` nothing is written, and a file that is out of date is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import abi_files
import pictures
from abi_headers import CAPI, INCLUDE, extensions, table, version

DOCS = CAPI.parents[2] / "docs"
RULES_HEAD = "| rule | severity | what happened | what the header requires |\n|---|---|---|---|\n"


def main() -> int:
    """Write the generated files, or check them with ``--verify``; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of: {', '.join(PARTS)}")
    parser.add_argument("--verify", action="store_true", help="write nothing; fail if a file is out of date")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are: {', '.join(PARTS)}")
    stale = []
    for part in options.parts or [part for part in PARTS if part != "operations"]:
        for path, text in PARTS[part]().items():
            if path.exists() and path.read_text() == text:
                continue
            if options.verify:
                stale.append(path)
            else:
                path.write_text(text)
    for path in stale:
        print(f"{path} is out of date: run python tools/generate.py", file=sys.stderr)
    return 1 if stale else 0


def with_part(page: Path, name: str, part: str) -> str:
    """Return a page with a generated part in the place of the one between its two comments."""
    before, begin, behind = page.read_text().partition(f"<!-- {name}: generated, do not edit -->\n")
    _, end, after = behind.partition(f"<!-- end of {name} -->\n")
    if not begin or not end:
        raise SystemExit(f"{page} lacks one of the comments around its part {name}")
    return f"{before}{begin}\n{part.strip()}\n\n{end}{after}"


def rules() -> dict[Path, str]:
    """Return the page of layers with the table of the rules that ``validate`` checks: those of the built library."""
    from pjrt.layers import rules

    page = DOCS / "layers.md"
    before, _, behind = page.read_text().partition(RULES_HEAD)
    rest = behind[behind.index("\n\n") + 1 :]
    rows = (f"| `{rule.name}` | {rule.severity} | {rule.description} | {rule.requirement} |\n" for rule in rules())
    return {page: before + RULES_HEAD + "".join(rows) + rest}


def operations() -> dict[Path, str]:
    """Run the tests of the reference device, and return its page with the table of operations."""
    import op_table

    page = DOCS / "devices" / "reference.md"
    return {page: with_part(page, "operations", op_table.generate())}


def coverage() -> dict[Path, str]:
    """Return the page of the API with the tables of the coverage of the C API."""
    page = DOCS / "api.md"
    return {page: with_part(page, "coverage", tables())}


# The coverage of the C API: which Python name reaches each function. It is made from the code: a call stands in a
# method (its class and name are the Python name), in a function whose docstring begins with the name, or beside a
# comment with the name. A plain getter is the property that it is assigned to.

EXTENSIONS = {
    "Profiler": ["Plugin.profiler"],
    "Stream": ["Device.stream_for_external_ready_events", "Buffer.wait_until_ready_on_stream"],
    "Layouts": [
        "Buffer.layout",
        "Client.default_layout",
        "TopologyDescription.default_layout",
        "Executable.output_layouts",
        "Executable.parameter_layouts",
    ],
    "FFI": ["Client.register_ffi_handler", "Client.register_ffi_type", "ExecuteContext.add_user_data"],
    "MemoryDescriptions": ["DeviceDescription.memory_space_descriptions"],
    "Triton": ["Plugin.compile_triton"],
    "RawBuffer": ["Buffer.raw"],
    "PhaseCompile": ["TopologyDescription.phase_compiler"],
    "CrossHostTransfers": [
        "Client.make_cross_host_receive_buffers",
        "Client.cross_host_receive_buffers",
        "Client.cross_host_send_buffers",
        "Buffer.copy_to_remote_device",
    ],
    "ExecutableMetadata": ["Executable.metadata"],
    "TpuTopology": ["TopologyDescription.tpu"],
    "TpuExecutable": [
        "Executable.tpu",
        "LoadedPlugin.tpu_executable",
        "LoadedPlugin.tpu_compilation_environments",
        "LoadedPlugin.tpu_compiler_setting",
    ],
    "Megascale": [
        "TopologyDescription.multi_slice",
        "MultiSliceConfig.global_device_id",
        "MultiSliceConfig.slice_and_device",
    ],
    "Shardings": ["Executable.output_shardings", "Executable.parameter_shardings"],
    "AbiVersion": [
        "Client.runtime_abi_version",
        "Executable.abi_version",
        "LoadedPlugin.runtime_abi_version",
        "LoadedPlugin.executable_abi_version",
    ],
    "MultiSlice": ["MultiSliceConfig"],
}
"""The part of the Python API that uses each extension of a loaded plugin."""

_CLASS = re.compile(r"^cdef class (\w+)")
_DEF = re.compile(r"^( *)(?:cdef [\w *.]+?|def )(\w+)\(")
_SLOT = re.compile(r"SLOT_PJRT_(\w+)")
_TABLE_CALL = re.compile(r"self\.table\.(PJRT_\w+)\(")
_MARK = re.compile(r"  # ([A-Za-z_][\w.]*(?::? .*)?)$")
_JOINED = re.compile(r"^class \w+\((\w+), (\w+)\):", re.M)
_GETTER = re.compile(r"^ *(?:cdef Getter )?(\w+) = (?:Getter|Constant)\(\"(PJRT_\w+)\"")
_DOCSTRING_NAME = re.compile(r'"""``([A-Z]\w+\.\w+)``')


def reached() -> dict[str, list[str]]:
    """Return for each function of the table the Python names that reach it, in the order of the code."""
    sources = [path.read_text() for path in sorted(CAPI.glob("*.pyx"))]
    public = dict(pair for text in sources for pair in _JOINED.findall(text))
    names: dict[str, list[str]] = {name: [] for name, _ in table()}
    for text in sources:
        for function, name in _calls(text, public):
            if function in names and name not in names[function]:
                names[function].append(name)
    return names


def _calls(text: str, public: dict[str, str]) -> list[tuple[str, str]]:
    """Return the calls of one module: the C function, and the Python name that it belongs to."""
    calls: list[tuple[str, str]] = []
    core = face = function = documented = ""
    for line in text.splitlines():
        if match := _CLASS.match(line):
            core = match[1]
        elif match := _JOINED.match(line):
            face = match[2]
        elif match := _DEF.match(line):
            core = core if match[1] else ""
            function, documented = match[2], ""
        elif match := _DOCSTRING_NAME.search(line):
            documented = match[1]
        mark = _MARK.search(line)
        for slot in [f"PJRT_{name}" for name in _SLOT.findall(line)] + _TABLE_CALL.findall(line):
            inside = f"{public[core]}.{function}" if core in public and not function.startswith("_") else documented
            if mark or inside:
                calls.append((slot, mark[1] if mark else inside))
        if match := _GETTER.search(line):
            calls.append((match[2], mark[1] if mark else f"{face}.{match[1]}"))
    return calls


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "**none**"


def _used(extension: str, is_stated: bool) -> str:
    """Return the Python names that use an extension of a loaded plugin, or how much of it the headers state."""
    if names := EXTENSIONS.get(extension):
        return _listed(names)
    return "layout stated" if is_stated else "known by name"


def tables() -> str:
    """Return both tables, of functions and of extensions, as Markdown."""
    names = reached()
    covered = sum(1 for reaching in names.values() if reaching)
    rows = "".join(
        f"| `{function}` | {f'0.{since}' if since else ''} | {_listed(names[function])} |\n"
        for function, since in table()
    )
    stated = {path.stem.replace("_", "") for path in (INCLUDE / "pjrt_abi" / "extensions").glob("*.h")}
    exported = "".join(path.read_text() for path in sorted((CAPI.parent / "native" / "library").glob("*.c")))
    kinds = "".join(
        f"| {number} | {name} | {about} | {_used(name, name.lower().replace('_', '') in stated)} | "
        f"{'yes' if f'PJRT_Extension_Type_{name}' in exported else ''} |\n"
        for number, (name, about) in enumerate(extensions())
    )
    return f"""
This package implements version {".".join(map(str, version()))} of the C API. The table shows the Python name that calls
each function of `PJRT_Api` in a loaded plugin: {covered} of {len(names)} functions. *Since* is the version that added
the function. With an older plugin the Python name raises `UnimplementedError`, which names this version.

| Function | Since | Python |
|---|---|---|
{rows}
### Extensions of the C API

`plugin.extensions` lists the extensions of a plugin with a description of each, and so does `pjrt plugins NAME`. The
column *Python* has the names that use an extension. *Layout stated* means that this package does not use the
extension, but states its layout in `abi/pjrt_abi/extensions` for code in C. *Known by name* means that it knows
only the name. The last column shows which extensions an exported device has; frameworks work without the others.

| Type | Name | Description | Python | Exported |
|---|---|---|---|---|
{kinds}"""


PARTS: dict[str, Callable[[], Mapping[Path, str]]] = {
    "abi": abi_files.generate,
    "coverage": coverage,
    "pictures": pictures.generate,
    "rules": rules,
    "operations": operations,
}
"""What is made, by name."""


if __name__ == "__main__":
    raise SystemExit(main())

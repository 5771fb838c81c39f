"""Findings in Python: of a wrapped plugin, from a file, and with lines of Python."""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_plugin import FakePlugin, call, write

import pjrt
from pjrt.abi import schema
from pjrt.layers import Finding, findings, read_findings, stack, wrap
from pjrt.layers.findings import _texts

X = np.arange(4, dtype=np.float32)


def misuse(plugin: pjrt.Plugin) -> None:
    buffer = plugin.client().buffer_from_host(X)
    donated = buffer.donate_with_control_dependency(pjrt.Future.completed(None))
    with contextlib.suppress(pjrt.PjrtError):
        buffer.unpadded_shape  # noqa: B018
    donated.delete()


def test_findings_of_a_wrapped_plugin(tiny_library: Path) -> None:
    plugin = wrap(tiny_library, ["validate"], validate={"stacks": "all", "limit": 3})
    assert findings(plugin) == []
    misuse(plugin)
    (finding,) = findings(plugin)
    assert str(finding).startswith(
        "use-after-donation: PJRT_Buffer_UnpaddedDimensions, argument buffer: the PJRT_Buffer at 0x"
    )
    assert any("test_findings.py" in frame and frame.endswith(" in misuse") for frame in finding.stack)
    assert finding.handle is not None
    assert finding.handle.made is not None
    assert finding.handle.ended is not None
    assert any(frame.endswith(" in misuse") for frame in finding.handle.made.stack)
    assert any(frame.endswith(" in misuse") for frame in finding.handle.ended.stack)


LINES = """
import sys
import numpy as np
from pjrt import Future, PjrtError
from pjrt.layers import findings, wrap

plugin = wrap(sys.argv[1], ["validate"])
buffer = plugin.client().buffer_from_host(np.arange(3.0))
donated = buffer.donate_with_control_dependency(Future.completed(None))

class Größe:
    def lesen(self):
        for each in self.schritte():
            pass

    def schritte(self):
        try:
            yield sorted([1], key=lambda 値: self.ende())
        except PjrtError:
            pass

    def ende(self):
        def 終わり_𠮷():
            return buffer.unpadded_shape
        終わり_𠮷()

Größe().lesen()
(finding,) = findings(plugin)
lines = [frame for frame in finding.stack if ".py:" in frame and "buffer.py" not in frame]
print(*(line.rpartition("/")[2] for line in lines), sep="\\n")
"""


def unescaped(line: str) -> str:
    """Return a line as all versions of Python write it: 3.11 and 3.12 escape letters, and leave out the class."""
    letters = re.sub(
        r"\\(?:x(\w\w)|u(\w{4})|U(\w{8}))", lambda found: chr(int("".join(filter(None, found.groups())), 16)), line
    )
    place, _, function = letters.partition(" in ")
    return f"{place} in {function.rpartition('.')[2]}"


def test_the_lines_of_python_are_there_while_the_gil_is_released(tiny_library: Path, tmp_path: Path) -> None:
    """Through generators, functions of C and names in any script."""
    file = tmp_path / "prüfung_λ.py"
    file.write_text(LINES, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", str(file), str(tiny_library)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [unescaped(line) for line in done.stdout.decode().splitlines()] == [
        "prüfung_λ.py:24 in 終わり_𠮷",
        "prüfung_λ.py:25 in ende",
        "prüfung_λ.py:18 in <lambda>",
        "prüfung_λ.py:18 in schritte",
        "prüfung_λ.py:13 in lesen",
        "prüfung_λ.py:27 in <module>",
    ]


def test_a_finding_is_the_error_of_the_call(tiny_library: Path) -> None:
    plugin = wrap(tiny_library, ["validate"], validate={"action": "error"})
    buffer = plugin.client().buffer_from_host(X)
    donated = buffer.donate_with_control_dependency(pjrt.Future.completed(None))
    with pytest.raises(pjrt.FailedPreconditionError, match="rule use-after-donation of the validate layer"):
        buffer.unpadded_shape  # noqa: B018
    donated.delete()


def test_an_exported_device_is_validated() -> None:
    plugin = wrap("reference", ["validate"], validate={"advice": "off", "limit": 4})
    misuse(plugin)
    assert [finding.rule for finding in findings(plugin)] == ["use-after-donation"]


def test_a_plugin_without_the_layer_has_no_findings(tiny_library: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r'no layer "validate"; wrap it with pjrt\.layers\.wrap'):
        findings(wrap(tiny_library, ["pass"]))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"action": "explode"}, 'action is "explode", expected one of report error abort'),
        ({"stacks": "some"}, 'stacks is "some", expected one of off findings all'),
        ({"advice": "perhaps"}, 'advice is "perhaps", expected one of off on 0 1'),
        ({"limit": "none"}, 'limit is "none", expected a number of findings, at least 1'),
        ({"colour": "red"}, 'unknown option "colour", expected action, stacks'),
    ],
)
def test_wrong_options_are_explained(options: dict[str, str], problem: str, tiny_library: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=problem):
        wrap(tiny_library, ["validate"], validate=options)


def write_findings(tiny_library: Path, file: Path) -> list[Finding]:
    plugin = wrap(tiny_library, ["validate"], validate={"file": file})
    misuse(plugin)
    return findings(plugin)


def test_a_file_has_the_same_findings(tiny_library: Path, tmp_path: Path) -> None:
    written = write_findings(tiny_library, tmp_path / "findings.jsonl")
    assert read_findings(tmp_path / "findings.jsonl") == written


def test_a_file_that_is_cut_off_has_the_findings_before(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "findings.jsonl"
    written = write_findings(tiny_library, file)
    file.write_bytes(file.read_bytes() * 2)
    file.write_bytes(file.read_bytes()[:-20])
    assert read_findings(file) == written


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "findings.jsonl"
    file.write_text('{"rule": 1}\n')
    with pytest.raises(pjrt.DataLossError, match="line 1 is no finding"):
        read_findings(file)


def test_a_file_that_cannot_be_written_is_reported(tiny_library: Path, tmp_path: Path) -> None:
    code = """
import sys
import numpy as np
import pjrt
buffer = pjrt.load_plugin(sys.argv[1]).client().buffer_from_host(np.arange(3.0))
donated = buffer.donate_with_control_dependency(pjrt.Future.completed(None))
try:
    buffer.unpadded_shape
except pjrt.PjrtError:
    pass
"""
    environment = {"PJRT_LAYERS": "validate", "PJRT_VALIDATE": f"file={tmp_path}/no/folder/findings.jsonl"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_library)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0
    assert "cannot be opened for writing; findings go to the error stream" in done.stderr
    assert "use-after-donation (error)" in done.stderr


def test_devices_of_a_second_client_at_the_same_addresses_are_live() -> None:
    """Keep the devices that a thread has seen no longer than their client lives."""
    client, devices = 0x1000, (ctypes.c_uint64 * 2)(0x2000, 0x2008)

    def create(address: int) -> None:
        write(address, schema.STRUCTS["PJRT_Client_Create_Args"].fields["client"].offset, client)

    def give_devices(address: int) -> None:
        write(address, 24, ctypes.addressof(devices))
        write(address, 32, len(devices))

    functions: dict[str, Callable[[int], int | None]] = {
        "PJRT_Client_Create": create,
        "PJRT_Client_Devices": give_devices,
        "PJRT_Client_Destroy": lambda _: None,
        "PJRT_Device_LocalHardwareId": lambda address: write(address, 24, 0),
    }
    fake = FakePlugin(functions)
    table = stack.wrap_table(fake.address, "fake", ["validate"], {})
    for _ in range(2):
        call(table, "PJRT_Client_Create")
        for _ in range(3):
            call(table, "PJRT_Client_Devices", client=client)
        call(table, "PJRT_Device_LocalHardwareId", device=devices[1])
        call(table, "PJRT_Client_Destroy", client=client)
    assert list(_texts(table)) == []

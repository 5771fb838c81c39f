"""Something fails at every place of a whole life with a plugin: no crash, no hang, nothing left over, and the plugin is
fit for use afterwards."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import build
from tiny.control import Control
from tiny.life import Life
from tiny.versions import function_names

import pjrt

RUNS_LIVES = """
import faulthandler, gc, json, sys
faulthandler.enable()
faulthandler.dump_traceback_later(200, exit=True)
sys.path.insert(0, {helpers!r})
import pjrt
from tiny.control import Control
from tiny.life import Life

control = Control({library!r})
control.strict()
plugin = pjrt.load_plugin({library!r})
unraisable = []
sys.unraisablehook = lambda entry: unraisable.append(str(entry.exc_value))


def live_through(function, code, skip):
    message = f"fault {{code}} at call {{skip}}"
    unraisable.clear()
    if function is not None:
        control.fault(function, code, message, skip=skip, count=1)
    errors = Life(plugin).run()
    control.clear()
    gc.collect()
    told = [str(error) for error in errors] + unraisable
    return told, any(message in each for each in told)


with control.counted():
    assert live_through(None, 0, 0) == ([], False), "a healthy life failed"
    counts = {{name: control.calls(name) for name in {functions!r}}}
report = {{"left": [], "silent": [], "sick": []}}
for number, (function, count) in enumerate(counts.items()):
    for skip in sorted({{0, count // 2, max(count - 1, 0)}}):
        told, known = live_through(function, 1 + (number + skip) % 16, skip)
        if count and not known:
            report["silent"].append(function)
        if left := control.live():
            report["left"].append([function, skip, left, told])
    if control.violations:
        report["left"].append([function, control.last_violation])
told, _ = live_through(None, 0, 0)
report["sick"] = told
print(json.dumps(report))
"""

NOT_TOLD = {
    "Plugin_Initialize": "was called when the plugin was loaded",
    "Plugin_Attributes": "was called when the plugin was loaded",
    "Event_Await": "is for plugins that leave OnReady out",
    "LoadedExecutable_Fingerprint": "is for plugins that leave Executable_Fingerprint out",
}
"""The functions whose faults a life may not hear of, and why."""


def live_through(control: Control) -> set[str]:
    """Load the plugin, live a life, and return the functions that were called."""
    control.strict()
    with control.counted():
        errors = Life(pjrt.load_plugin(control.path)).run()
    assert errors == []
    gc.collect()
    assert control.live() == {}
    assert control.violations == 0, control.last_violation
    return {name for name in function_names() if control.calls(name)}


def test_every_function_is_called_and_nothing_is_left(tiny_copy: Callable[..., Control]) -> None:
    called = live_through(tiny_copy())
    assert set(function_names()) - called == {"Event_Await", "LoadedExecutable_Fingerprint"}
    assert "Event_Await" in live_through(tiny_copy(null="PJRT_Event_OnReady"))
    assert "LoadedExecutable_Fingerprint" in live_through(tiny_copy(null="PJRT_Executable_Fingerprint"))


def test_a_fault_at_any_call_harms_nothing(tiny_library: Path, tmp_path: Path) -> None:
    library = tmp_path / "libtiny.so"
    library.write_bytes(tiny_library.read_bytes())
    fallible = [name for name in function_names() if name not in ("Error_Destroy", "Error_Message")]
    script = RUNS_LIVES.format(helpers=str(build.HERE.parent), library=str(library), functions=fallible)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["sick"] == []
    assert report["left"] == []
    assert set(report["silent"]) <= set(NOT_TOLD)


@pytest.mark.parametrize("kind", ["null", "legacy"])
def test_what_a_plugin_leaves_out_is_told(tiny_copy: Callable[..., Control], kind: str) -> None:
    optional = ("Buffer_Bitcast", "Client_DmaMap", "Executable_GetCostAnalysis", "Event_Create", "Device_MemoryStats")
    control = tiny_copy(null=[f"PJRT_{name}" for name in optional], legacy_errors=int(kind == "legacy"))
    errors = Life(pjrt.load_plugin(control.path)).run()
    gc.collect()
    assert control.live() == {}
    assert {error.code for error in errors} == {pjrt.StatusCode.UNIMPLEMENTED}
    assert len(errors) == 4  # two of the five are met in one step
    assert all(any(name in error.message for name in optional) for error in errors)

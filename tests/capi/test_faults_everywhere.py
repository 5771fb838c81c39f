"""Something fails at every place of a whole life with a plugin: no crash, no hang, nothing left over, and the plugin is
fit for use afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import build
from tiny.control import Control
from tiny.life import Life, X
from tiny.program import TinyProgram
from tiny.versions import function_names

import pjrt

RUNS_LIVES = """
import faulthandler, gc, json, sys
faulthandler.enable()
faulthandler.dump_traceback_later(270, exit=True)
sys.path.insert(0, {helpers!r})
import pjrt
from tiny.control import Control
from tiny.life import Life
from waiting import wait_until

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
    errors = [str(error) for error in Life(plugin).run()]
    if function in told_late:
        wait_until(lambda: any(message in each for each in errors + unraisable), message)
    control.clear()
    gc.collect()
    told = errors + unraisable
    return told, any(message in each for each in told)


# A stream ends with its callback, on the plugin's thread, which may be a moment after the life.
told_late = ("CopyToDeviceStream_Destroy",)
with control.counted():
    assert live_through(None, 0, 0) == ([], False), "a healthy life failed"
    counts = {{name: control.calls(name) for name in {functions!r}}}
report = {{"left": [], "silent": [], "sick": []}}
for number, (function, count) in enumerate(counts.items()):
    for skip in sorted({{0, max(count - 1, 0)}}):
        before, violations = control.live(), control.violations
        told, known = live_through(function, 1 + (number + skip) % 16, skip)
        if count and skip == 0 and not known:  # how often a function is called differs with the threads' pace
            report["silent"].append(function)
        if function in {leaves!r}:
            continue
        if left := control.left_over(before):
            report["left"].append([function, skip, left, told])
        if control.violations != violations:
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
    **{
        f"Event_{name}": "may be called for a future that nobody looks at, or not at all: events differ in their pace"
        for name in ("IsReady", "OnReady", "Error")
    },
    **dict.fromkeys(
        (
            "Buffer_Device",
            "Buffer_IsDeleted",
            "Buffer_Memory",
            "Device_LocalHardwareId",
            "Executable_OptimizedProgram",
            "Executable_OutputDimensions",
            "Executable_OutputElementTypes",
            "Executable_OutputMemoryKinds",
            "Executable_ParameterMemoryKinds",
        ),
        "is asked for a check first, which does without what a plugin does not tell",
    ),
    "Error_GetCode": "what an error cannot tell is left out of it",
    "Error_ForEachPayload": "what an error cannot tell is left out of it",
    **{
        f"CopyToDeviceStream_{name}": "fails inside of a callback, which is logged; the program ends with an error"
        for name in ("AddChunk", "TotalBytes", "GranuleSize", "CurrentBytes")
    },
}
"""The functions whose faults a life may not hear of, and why."""

LEAVES_SOMETHING = {
    "Client_FulfillAliasBuffer": "whether the plugin took the handle is not known, so it is not used again",
    "Buffer_DecreaseExternalReferenceCount": "the reference stays, and the plugin sees it when the buffer goes",
}
"""The functions whose failure cannot be made good, and why."""


def test_every_function_is_called_and_nothing_is_left(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy()
    control.strict()
    with control.counted():
        errors = Life(pjrt.load_plugin(control.path)).run()
    assert errors == []
    assert control.left_over({}) == {}
    assert control.violations == 0, control.last_violation
    called = {name for name in function_names() if control.calls(name)}
    assert set(function_names()) - called == {"Event_Await", "LoadedExecutable_Fingerprint"}


def test_a_life_without_being_told_of_events(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy(null="PJRT_Event_OnReady")
    assert Life(pjrt.load_plugin(control.path)).run() == []
    assert control.left_over({}) == {}
    assert control.violations == 0, control.last_violation


def test_what_stands_in_for_a_function_is_called(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy(null=["PJRT_Event_OnReady", "PJRT_Executable_Fingerprint"])
    with control.counted(), pjrt.load_plugin(control.path).client() as client:
        program = TinyProgram()
        x = program.parameter("f32[4]")
        program.do("sleep", 50)  # so that there is something to wait for
        loaded = client.compile(pjrt.Program(program.result(x).code, "tiny"))
        np.testing.assert_array_equal(loaded(X)[0].to_host().result(60), X)
        assert loaded.fingerprint()
    assert control.calls("Event_Await") > 0
    assert control.calls("LoadedExecutable_Fingerprint") == 1


@pytest.mark.full
def test_a_fault_at_any_call_harms_nothing(tiny_library: Path, tmp_path: Path) -> None:
    library = tmp_path / "libtiny.so"
    library.write_bytes(tiny_library.read_bytes())
    # A transfer whose descriptor cannot be handed over (Event_Set) stays pending; that is tried nowhere here.
    fallible = [name for name in function_names() if name not in ("Error_Destroy", "Error_Message", "Event_Set")]
    script = RUNS_LIVES.format(
        helpers=str(build.HERE.parent), library=str(library), functions=fallible, leaves=list(LEAVES_SOMETHING)
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["sick"] == []
    assert report["left"] == []
    assert sorted(set(report["silent"]) - set(NOT_TOLD)) == []


@pytest.mark.parametrize("kind", ["null", "legacy"])
def test_what_a_plugin_leaves_out_is_told(tiny_copy: Callable[..., Control], kind: str) -> None:
    optional = ("Buffer_Bitcast", "Client_DmaMap", "Executable_GetCostAnalysis", "Event_Create", "Device_MemoryStats")
    control = tiny_copy(null=[f"PJRT_{name}" for name in optional], legacy_errors=int(kind == "legacy"))
    errors = Life(pjrt.load_plugin(control.path)).run()
    assert control.left_over({}) == {}
    assert {error.code for error in errors} == {pjrt.StatusCode.UNIMPLEMENTED}
    assert len(errors) == len(optional)  # each is met in a step of its own
    assert all(any(name in error.message for name in optional) for error in errors)

"""Profiles of devices that run in C: what the runtime records itself, and what a driver tells of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import pjrt
from pjrt.api.client import Client
from pjrt.models import DeviceProfile

ADD = """
module @adds {
func.func @main(%x: tensor<3x200xf32>) -> tensor<3x200xf32> {
  %0 = stablehlo.add %x, %x : tensor<3x200xf32>
  %1 = stablehlo.multiply %0, %x : tensor<3x200xf32>
  return %1 : tensor<3x200xf32>
}}"""
X = np.ones((3, 200), np.float32)

Rows = dict[str, dict[str, list[tuple[str, float, float]]]]


def rows(space: bytes) -> Rows:
    """Return the names of events, and when they began and ended, by plane and line."""
    planes = jax.profiler.ProfileData.from_serialized_xspace(space).planes
    return {
        plane.name: {
            line.name: [(each.name, each.start_ns, each.start_ns + each.duration_ns) for each in line.events]
            for line in plane.lines
        }
        for plane in planes
    }


def names(events: list[tuple[str, float, float]]) -> list[str]:
    return [name for name, _, _ in events]


def run_on(client: Client, number: int, times: int) -> None:
    device = client.devices[number]
    executable = client.compile(ADD, pjrt.CompileOptions(device_assignment=[[device.id]]))
    x = client.buffer_from_host(X, device=device)
    for _ in range(times):
        (y,) = executable(x)
    np.testing.assert_array_equal(y, 2 * X)


@pytest.fixture
def plugin(chip_library: Path) -> pjrt.Plugin:
    """The plugin of the clients."""
    return pjrt.load_plugin(chip_library)


def test_a_session_has_what_the_devices_did(chip: Client, plugin: pjrt.Plugin) -> None:
    run_on(chip, 0, 1)
    profiler = plugin.profiler()
    with profiler:
        run_on(chip, 0, 3)
        run_on(chip, 1, 2)
    run_on(chip, 0, 1)
    recorded = rows(profiler.collect())
    assert set(recorded) == {"/device:CUSTOM:chip:0", "/device:CUSTOM:chip:1", "/device:CUSTOM:chip:host"}
    for number, times in ((0, 3), (1, 2)):
        lines = recorded[f"/device:CUSTOM:chip:{number}"]
        assert names(lines["launches"]) == ["adds"] * times
        assert names(lines["copies"]) == ["copy_in", "copy_out"]
        assert names(lines["instructions"]) == ["ADD", "MULTIPLY", "MOVE"] * times
        # A queue does one thing after the other, and a launch lasts as long as its instructions.
        for (_, _, end), (_, begin, _) in zip(lines["launches"], lines["launches"][1:], strict=False):
            assert begin >= end - 500  # nanoseconds since 1970 are no whole numbers here
        for n, (_, begin, end) in enumerate(lines["launches"]):
            for _, first, last in lines["instructions"][3 * n : 3 * n + 3]:
                assert begin - 500 <= first <= last <= end + 500
    assert names(recorded["/device:CUSTOM:chip:host"]["compilations"]) == ["adds"] * 2
    by_operation = DeviceProfile.of(profiler.collect()).by_operation
    assert {name: entry.calls for name, entry in by_operation.items()} == {
        "compilations: adds": 2,
        "launches: adds": 5,
        "copies: copy_in": 2,
        "copies: copy_out": 2,
        **{f"instructions: {name}": 5 for name in ("ADD", "MULTIPLY", "MOVE")},
    }


def test_sessions_at_the_same_time(chip: Client, plugin: pjrt.Plugin) -> None:
    first, second = plugin.profiler(), plugin.profiler()
    first.start()
    run_on(chip, 0, 1)
    second.start()
    run_on(chip, 0, 2)
    first.stop()
    run_on(chip, 0, 4)
    second.stop()
    for profiler, times in ((first, 3), (second, 6)):
        lines = rows(profiler.collect())["/device:CUSTOM:chip:0"]
        assert names(lines["launches"]) == ["adds"] * times
        assert len(lines["instructions"]) == 3 * times


def test_steps_of_the_host_are_seen(chip: Client, plugin: pjrt.Plugin) -> None:
    chip.register_ffi_handler("twice", lambda x, result: np.multiply(x, np.float32(2), out=result))
    text = ADD.replace("stablehlo.multiply %0, %x : tensor<3x200xf32>", "CALL").replace(
        "CALL", "stablehlo.custom_call @twice(%0) {api_version = 4 : i32} : (tensor<3x200xf32>) -> tensor<3x200xf32>"
    )
    executable = chip.compile(text)
    with plugin.profiler() as profiler:
        np.testing.assert_array_equal(executable(X)[0], 4 * X)
    recorded = rows(profiler.collect())
    assert names(recorded["/device:CUSTOM:chip:host"]["steps of the host"]) == ["adds"]
    assert names(recorded["/device:CUSTOM:chip:0"]["launches"]) == ["adds"]


LYING = """
import sys, numpy as np, pjrt
plugin = pjrt.load_plugin(sys.argv[1])
with plugin.client() as client:
    profiler = plugin.profiler()
    try:
        profiler.start()
    except pjrt.PjrtError as error:
        print(error)
    else:
        client.buffer_from_host(np.ones(4, np.float32)).to_host().result(60)
        profiler.stop()
        print(profiler.collect())
"""


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("trace_fails", "the trace buffer is broken"),
        ("trace_device", "the driver told of an event of device 77, line wheel, from 5 to 6"),
        ("trace_null", "the driver told of an event of device 0, line null, from 5 to 6"),
        ("trace_backwards", "the driver told of an event of device 0, line wheel, from 5 to 4"),
    ],
)
def test_a_lie_about_events(lying_library: Path, lie: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIE", lie)
    command = [sys.executable, "-c", LYING, str(lying_library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


TRACE = """
import sys, pathlib
import jax, jax.numpy as jnp, numpy as np, pjrt

platform = pjrt.frameworks.jax.register(sys.argv[1], platform="under_test")
x = jax.device_put(np.ones((3, 200), np.float32), jax.devices(platform)[0])

@jax.jit
def step(v):
    return v * 2 + 1

step(x).block_until_ready()
with jax.profiler.trace(sys.argv[2]):
    for _ in range(5):
        x = step(x)
    x.block_until_ready()
(path,) = pathlib.Path(sys.argv[2]).rglob("*.xplane.pb")
planes = {plane.name: plane for plane in jax.profiler.ProfileData.from_file(str(path)).planes}
host = [each.start_ns for line in planes["/host:CPU"].lines for each in line.events]
(plane,) = [plane for name, plane in planes.items() if name.startswith("/device:CUSTOM:") and name.endswith(":0")]
lines = {line.name: list(line.events) for line in plane.lines}
found = [each.name for each in lines["launches"]]
assert len(found) == 5 and all("step" in name for name in found), found
assert all(min(host) <= each.start_ns <= max(host) + 60e9 for each in lines["launches"])  # one clock
print("traced")
"""


@pytest.mark.full
def test_jax_shows_the_chip(chip_library: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRACE, str(chip_library), str(tmp_path)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "traced" in done.stdout

"""``pjrt trace``: programs that know nothing of it, and traces that were recorded before."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import pjrt

TINY = Path(__file__).parents[2] / "plugins"

JAX_SCRIPT = """
import sys
import jax, jax.numpy as jnp
y = jax.jit(lambda x: jnp.power(x, jnp.int32(2)))(3)
print("the result is", y)
sys.exit(5)
"""

TINY_SCRIPT = """
import os, sys
import numpy as np
import pjrt
from tiny import TinyProgram

client = pjrt.load_plugin(sys.argv[1]).client(num_devices=1)
made = TinyProgram("double")
x = made.parameter("f32[4]")
executable = client.compile(pjrt.Program(made.result(made.let("add", x, x)).code, format="tiny"))
(y,) = executable(np.arange(4, dtype=np.float32))
print("the result is", np.asarray(y).tolist())
"""


def trace(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pjrt", "trace", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TINY), "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_script.py"
    path.write_text(TINY_SCRIPT)
    return path


@pytest.mark.full
def test_an_unchanged_jax_script(tmp_path: Path) -> None:
    """The log has the parts and the nouns of PJRT's own example log, and the exit code is the script's."""
    (tmp_path / "train.py").write_text(JAX_SCRIPT)
    outputs = ("-o", "train.json", "-o", "train.log")
    done = trace(*outputs, "--summary", "--plugin", "cpu", "--", sys.executable, "train.py", folder=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "the result is 9\n" in done.stdout
    log = (tmp_path / "train.log").read_text()
    headings = [line for line in log.splitlines() if line.startswith("// ")]
    assert headings[0] == "// Load the plugin"
    assert {"// Load data onto the device"} <= set(headings)
    assert any(line.startswith("// Compile: jit") for line in headings)
    assert any(line.startswith("// RUN: jit") for line in headings)
    names = [line.split("(")[0].split()[-1] for line in log.splitlines() if "PJRT_" in line]
    order = [
        "PJRT_Client_Create",
        "PJRT_Client_PlatformName",
        "PJRT_Client_Devices",
        "PJRT_DeviceDescription_Id",
        "PJRT_Client_Compile",
        "PJRT_Client_BufferFromHostBuffer",
        "PJRT_LoadedExecutable_Execute",
        "PJRT_Buffer_ToHostBuffer",
        "PJRT_Client_Destroy",
    ]
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    assert "PJRT_Client_Compile(" in log
    assert " client=0x" in log.replace("(client", "( client")
    events = json.loads((tmp_path / "train.json").read_text())["traceEvents"]
    assert any(event["name"].startswith("LoadedExecutable_Execute jit") for event in events)
    assert "compilations" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.json", "train.log", "train.py"]


def test_a_trace_is_read_again(script: Path, tiny_library: Path, tmp_path: Path) -> None:
    command = (sys.executable, str(script), str(tiny_library))
    done = trace("-o", "run.trace", "--", *command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the result is [0.0, 2.0, 4.0, 6.0]\n"
    assert done.stderr.endswith("written to run.trace\n")
    again = pjrt("trace", "run.trace", folder=tmp_path)
    assert "PJRT_LoadedExecutable_Execute" in again.stdout
    assert "double" in again.stdout
    (summary,) = json.loads(pjrt("trace", "--json", "run.trace", folder=tmp_path).stdout)
    assert (summary["compilations"], summary["bytes_to_device"], summary["bytes_to_host"]) == (1, 16, 16)
    whole = (tmp_path / "run.trace").read_bytes()
    assert len(whole) < 1_000_000  # only what was used of the ring
    (tmp_path / "cut.trace").write_bytes(whole[:-40_000])
    cut = pjrt("trace", "--log", "cut.trace", folder=tmp_path)
    assert cut.returncode == 0
    assert cut.stdout.startswith("# the file is cut short: it has ")
    assert "PJRT_Client_Compile" in cut.stdout


def test_a_program_that_crashes_still_gives_its_trace(script: Path, tiny_library: Path, tmp_path: Path) -> None:
    """So does the process that it forked before."""
    child = "if os.fork() == 0:\n    client.devices[0].memory_stats()\n    os._exit(0)\nos.wait()\n"
    script.write_text(TINY_SCRIPT + child + "os.abort()\n")
    outputs = ("--log", "-o", "run.trace")
    done = trace(*outputs, "--", sys.executable, str(script), str(tiny_library), folder=tmp_path)
    assert done.returncode == 128 + 6, done.stderr
    assert "PJRT_LoadedExecutable_Execute" in done.stdout
    assert done.stdout.count("was killed, crashed, or still runs") == 2
    traces = sorted(path.name for path in tmp_path.glob("*.trace"))
    assert re.fullmatch(r"run-\d+\.trace run\.trace", " ".join(traces))
    forked = pjrt("trace", "--log", traces[0], folder=tmp_path)
    assert "PJRT_Device_MemoryStats" in forked.stdout
    assert "PJRT_Client_Create" not in forked.stdout


def test_what_is_recorded(script: Path, tiny_library: Path, tmp_path: Path) -> None:
    options = ("--log", "-f", "Client_*", "-f", "!*Destroy", "--text", "3")
    done = trace(*options, "--", sys.executable, str(script), str(tiny_library), folder=tmp_path)
    calls = [line.split()[2].partition("(")[0] for line in done.stdout.splitlines() if "PJRT_" in line]
    assert "PJRT_Client_Compile" in calls
    assert all(call.startswith("PJRT_Client_") for call in calls)
    assert 'platform_name="tin…"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-o", "x.png", "--", "true"), "--output x.png: expected a file name that ends in .json (for trace viewers)"),
        (("-o", "no/x.json", "--", "true"), "the folder no does not exist"),
        (("--slower", "5", "--", "true"), "expected slower to be a time with a unit, such as 10us, found '5'"),
        (("--", "true"), "true: expected a program that uses a PJRT plugin, found no call of one"),
        (("--", "no-such-program"), "there is no program 'no-such-program'"),
        (("missing.trace",), "missing.trace: there is no such trace file"),
        (("--off", "missing.trace"), "missing.trace: expected the trace file of a running process"),
        (("--log", "out.json"), "which cannot be read back; record with -o out.trace"),
        ((), "Missing argument"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("{}")
    done = pjrt("trace", *arguments, folder=tmp_path)
    assert done.returncode == 2, done.stdout
    assert expected in done.stderr
    assert "Traceback" not in done.stderr

"""`pjrt check`: verdicts, what decides them, exit codes; and the page on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pjrt
from pjrt import stablehlo

PAGE = Path(__file__).parents[3] / "docs" / "capability.md"
ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
CALL = ADD.replace(
    "stablehlo.add %x, %x : tensor<4xf32>", "stablehlo.custom_call @odd(%x) : (tensor<4xf32>) -> tensor<4xf32>"
)
DEVICE = """
import os, time

import numpy as np

import pjrt

HALF = frozenset({pjrt.ElementType.F16})


def compile(program, options):
    what = os.environ.get("HALF_COMPILER")
    if what == "hangs":
        time.sleep(600)
    if what == "crashes":
        print("Check failed: half is not whole", flush=True)
        os.abort()
    return lambda x: x


def make_client(**options):
    operations = {"stablehlo.add": HALF, "stablehlo.tanh": None}
    capabilities = pjrt.Capabilities(element_types=HALF, operations=operations)
    return pjrt.StableHloClient("half", compile=compile, capabilities=capabilities, **options)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "add.mlir").write_text(ADD)
    (tmp_path / "half.mlir").write_text(ADD.replace("f32", "f16"))
    (tmp_path / "tanh.mlir").write_text(ADD.replace("f32", "f16").replace("add %x, %x", "tanh %x"))
    (tmp_path / "call.mlir").write_text(CALL)
    (tmp_path / "half_device.py").write_text(DEVICE)
    (tmp_path / "half.toml").write_text('[plugins.half]\nfactory = "half_device:make_client"\n')
    return tmp_path


def check(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pjrt", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


def in_json(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(check(folder, *arguments, "--json", **environment).stdout)
    return found


@pytest.mark.full
def test_yes_is_exit_code_0(folder: Path) -> None:
    done = check(folder, "add.mlir", "-d", "cpu", "-d", "reference")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["cpu: yes (by compiling)", "reference: yes (by types and attributes)"]


@pytest.mark.full
def test_no_is_exit_code_1_and_says_where(folder: Path) -> None:
    done = check(folder, "call.mlir", "--device", "reference")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "reference: no (by types and attributes)",
        "  op          the device has no custom call 'odd'",
        "              at call.mlir:2:8",
    ]


def test_maybe_is_exit_code_3(folder: Path) -> None:
    done = check(folder, "add.mlir", "--device", "cpu", "--effort", "ops")
    assert done.returncode == 3
    assert done.stdout.startswith("cpu: maybe")


@pytest.mark.full
def test_the_worst_verdict_decides_the_exit_code(folder: Path) -> None:
    assert check(folder, "call.mlir", "-d", "reference", "-d", "cpu", "--effort", "types").returncode == 1
    assert check(folder, "add.mlir", "-d", "reference", "-d", "cpu", "--effort", "types").returncode == 3


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.mlir", "-d", "cpu"], "found no file"),
        (["half_device.py", "-d", "cpu"], "expected a program"),
        (["add.mlir", "-d", "nonesuch"], "nonesuch"),
        (["add.mlir", "-d", "cpu", "-O", "speed=9"], "speed"),
        (["add.mlir", "-d", "cpu", "--effort", "little"], "little"),
        (["add.mlir", "-d", "cpu", "--time-limit", "nan"], "nan is not in the range 0<x<=1000000"),
        (["add.mlir", "-d", "cpu", "--time-limit", "inf"], "inf is not in the range 0<x<=1000000"),
    ],
)
def test_an_error_is_exit_code_2_and_one_line(folder: Path, arguments: list[str], words: str) -> None:
    done = check(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_json_has_it_all(folder: Path) -> None:
    found = in_json(folder, "call.mlir", "-d", "reference")
    assert found == {
        "program": "call.mlir",
        "verdict": "no",
        "devices": [
            {
                "device": "reference",
                "verdict": "no",
                "effort": "types",
                "reasons": [
                    {
                        "verdict": "no",
                        "kind": "op",
                        "subject": "custom_call @odd",
                        "message": "the device has no custom call 'odd'",
                        "count": 1,
                        "locations": [{"name": "", "file": "call.mlir", "line": 2, "column": 8}],
                    }
                ],
            }
        ],
    }


@pytest.mark.full
def test_a_program_says_itself_how_many_devices_it_is_for(folder: Path) -> None:
    (folder / "two.mlir").write_text(f"module attributes {{mhlo.num_partitions = 2 : i32}} {{\n{ADD}}}")
    assert check(folder, "two.mlir", "-d", "cpu").returncode == 0  # the device makes two
    assert check(folder, "two.mlir", "-d", "cpu", "-O", "num_devices=1").returncode == 1
    assert check(folder, "two.mlir", "-d", "cpu", "-O", "num_devices=2").returncode == 0
    assert check(folder, "two.mlir", "-d", "cpu", "--num-partitions", "1").returncode == 0
    found = in_json(folder, "add.mlir", "-d", "reference", "--num-replicas", "3", "-O", "num_devices=1")
    assert found["devices"][0]["reasons"][0]["kind"] == "attribute"


@pytest.mark.full
def test_saved_executables_are_loaded(folder: Path) -> None:
    with pjrt.client("cpu") as client:
        pjrt.save_executable(client.compile(ADD), folder / "add.bin")
    done = check(folder, "add.bin", "-d", "cpu", "-d", "reference")
    assert done.returncode == 1
    assert "cpu: yes (by loading it)" in done.stdout
    assert "reference: no (by loading it)" in done.stdout
    assert "it was compiled for platform name 'cpu', the client has 'reference'" in done.stdout
    assert check(folder, "add.bin", "-t", "cpu:1").returncode == 0


@pytest.mark.full
def test_topologies(folder: Path) -> None:
    (folder / "two.mlir").write_text(f"module attributes {{mhlo.num_partitions = 2 : i32}} {{\n{ADD}}}")
    done = check(folder, "two.mlir", "-t", "cpu:4", "-t", "cpu:1")
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("cpu")] == [
        "cpu:4: yes (by compiling)",
        "cpu:1: no (by types and attributes)",
    ]


@pytest.mark.full
def test_an_artifact_that_is_too_new_says_both_versions(folder: Path) -> None:
    newest = stablehlo.current_version()
    code = stablehlo.serialize(stablehlo.read(ADD), newest).code
    beyond = code.replace(f"StableHLO_v{newest}".encode(), f"StableHLO_v{newest.major}.{newest.minor + 7}.0".encode())
    (folder / "new.stablehlo").write_bytes(beyond)
    assert check(folder, "new.stablehlo", "-d", "reference").returncode == 0  # nothing in it is new
    (folder / "new.stablehlo").write_bytes(beyond.replace(b"add_v1", b"new_v1"))
    done = check(folder, "new.stablehlo", "-d", "reference")
    assert done.returncode == 1
    assert re.search(rf"version +the program is written at StableHLO {newest.major}\.{newest.minor + 7}", done.stdout)
    assert f"reads up to {newest}" in done.stdout


# A device of one's own, whose compiler does what compilers do.


@pytest.fixture
def half(folder: Path) -> dict[str, str]:
    return {"PJRT_CONFIG": str(folder / "half.toml")}


@pytest.mark.full
def test_a_device_of_ones_own_is_taken_at_its_word(folder: Path, half: dict[str, str]) -> None:
    assert in_json(folder, "half.mlir", "-d", "half", **half)["verdict"] == "yes"
    found = in_json(folder, "add.mlir", "-d", "half", **half)["devices"][0]
    assert (found["verdict"], found["effort"], found["reasons"][0]["subject"]) == ("no", "types", "f32")
    assert in_json(folder, "tanh.mlir", "-d", "half", **half)["devices"][0]["effort"] == "compile"


@pytest.mark.full
def test_a_compiler_that_crashes_is_a_no_and_hurts_nobody_else(folder: Path, half: dict[str, str]) -> None:
    done = check(folder, "tanh.mlir", "-d", "half", "-d", "reference", HALF_COMPILER="crashes", **half)
    assert done.returncode == 1
    assert "half: no (by compiling)" in done.stdout
    assert "the compiler crashed: " in done.stdout
    assert "Check failed: half is not whole" in done.stdout
    assert "reference: yes" in done.stdout


@pytest.mark.full
def test_a_compiler_that_hangs_is_a_maybe(folder: Path, half: dict[str, str]) -> None:
    done = check(folder, "tanh.mlir", "-d", "half", "--time-limit", "5", HALF_COMPILER="hangs", **half)
    assert done.returncode == 3
    assert "the compiler was not done within 5 seconds" in done.stdout


@pytest.fixture
def unusable(folder: Path) -> dict[str, str]:
    """Two devices: one that crashes when it is loaded, and one that hangs."""
    (folder / "falls.py").write_text("import os\nprint('falling', flush=True)\nos.abort()\n")
    (folder / "hangs.py").write_text("import threading\nthreading.Event().wait()\n")
    (folder / "bad.toml").write_text("[plugins]\nfalls.factory = 'falls:make'\nhangs.factory = 'hangs:make'\n")
    return {"PJRT_CONFIG": str(folder / "bad.toml")}


@pytest.mark.full
def test_devices_that_cannot_be_asked_do_not_keep_the_others_from_it(folder: Path, unusable: dict[str, str]) -> None:
    names = ["falls", "nonesuch", "reference", "hangs"]
    named = [word for name in names for word in ("-d", name)]
    done = check(folder, "call.mlir", *named, "--time-limit", "15", **unusable)
    assert done.returncode == 2
    assert re.findall(r"^(\w+): (\w+)", done.stdout, re.MULTILINE) == [
        (name, "no" if name == "reference" else "error") for name in names
    ]
    after = dict(zip(done.stdout.splitlines(), done.stdout.splitlines()[1:], strict=False))
    assert "the process that loaded it crashed: " in after["falls: error"]
    assert "there is no device called 'nonesuch'" in after["nonesuch: error"]
    assert after["hangs: error"].endswith("was not done within 15 seconds")
    assert done.stderr == "pjrt: error: 3 of 4 gave no verdict: falls, nonesuch, hangs\n"


@pytest.mark.full
def test_the_error_of_a_device_in_json(folder: Path, unusable: dict[str, str]) -> None:
    done = check(folder, "add.mlir", "-d", "falls", "-d", "reference", "--json", **unusable)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert (found["verdict"], found["devices"][1]["verdict"]) == (None, "yes")
    assert (found["devices"][0]["device"], found["devices"][0]["verdict"]) == ("falls", None)
    assert found["devices"][0]["error"]["code"] == "INTERNAL"
    assert "crashed: " in found["devices"][0]["error"]["message"]
    alone = check(folder, "add.mlir", "-d", "falls", "--json", **unusable)
    assert (alone.returncode, json.loads(alone.stdout)["devices"]) == (2, found["devices"][:1])
    assert alone.stderr.startswith("pjrt: error: INTERNAL: falls: ")


# The page.


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.full
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    step, zero = blocks("mlir")
    (tmp_path / "step.mlir").write_text(step)
    (tmp_path / "zero.mlir").write_text(zero)
    commands = [part for block in blocks("console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert len(commands) == 4
    for command, _, output in (part.partition("\n") for part in commands):
        done = subprocess.run(
            [sys.executable, "-m", *command.split()], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        if "ends its process" in output:  # what a compiler trips over is another with each of its versions
            verdicts = dict(re.findall(r"^(\w+): (\w+)", done.stdout, re.MULTILINE))
            assert set(verdicts) == {"cpu", "reference"}
            assert verdicts["reference"] == "yes"
            continue
        expected = re.sub(r"─+|[\d.]+", "…", "".join(output.split())).split("…")
        assert re.match(".*".join(map(re.escape, expected)), "".join(done.stdout.split())), done.stdout

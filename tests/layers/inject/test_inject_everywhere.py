"""Faults by rule in whole programs: in each function, in several threads, by the environment, in written libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.abi.schema import FUNCTIONS

X = np.arange(4, dtype=np.float32)
TESTS = Path(__file__).resolve().parents[2]

NOT_REPORTED = {
    **{
        f"PJRT_Event_{name}": "may be called for a future that nobody looks at, or not at all: events differ in pace"
        for name in ("IsReady", "OnReady", "Error", "Await")
    },
    **{
        f"PJRT_{name}": "is asked for a check first, which does without what a plugin does not tell"
        for name in (
            "Buffer_Device",
            "Buffer_IsDeleted",
            "Buffer_Memory",
            "Device_LocalHardwareId",
            "Executable_OptimizedProgram",
            "Executable_OutputDimensions",
            "Executable_OutputElementTypes",
            "Executable_OutputMemoryKinds",
            "Executable_ParameterMemoryKinds",
            "RawBuffer_GetOnDeviceSizeInBytes",
        )
    },
    "PJRT_Error_GetCode": "what an error cannot tell is left out of it",
    "PJRT_Error_ForEachPayload": "what an error cannot tell is left out of it",
    **{
        f"PJRT_CopyToDeviceStream_{name}": "fails inside of a callback, which is logged; the program ends with an error"
        for name in ("AddChunk", "TotalBytes", "GranuleSize", "CurrentBytes")
    },
}
"""The functions whose failure a life need not hear of, and why."""

PENDING = "PJRT_Event_Set"
"""A transfer whose descriptor cannot be handed over stays pending, so that a life waits for its time limit."""


def run_program(name: str, tiny_library: Path, folder: Path, *arguments: str) -> Any:
    """Run a program on a copy of the tiny plugin in a subprocess, and return the JSON that it prints."""
    library = folder / "libtiny.so"
    library.write_bytes(tiny_library.read_bytes())
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), str(library), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS / "plugins")},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def lives(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of an error in each function, one life after the other."""
    return run_program("injected_lives.py", tiny_library, tmp_path_factory.mktemp("lives"), PENDING)


@pytest.mark.full
def test_every_function_was_tried(lives: Any) -> None:
    table = {name for name, each in FUNCTIONS.items() if not each.extension and each.result == "ERROR"}
    stand_ins = {"PJRT_Event_Await", "PJRT_LoadedExecutable_Fingerprint"}  # for functions that a plugin lacks
    assert table - set(lives["results"]) == {PENDING, "PJRT_Plugin_Initialize", *stand_ins}
    assert len(set(lives["results"]) - table) > 60


@pytest.mark.full
def test_an_error_anywhere_harms_nothing(lives: Any) -> None:
    results = lives["results"]
    assert sorted({name for name, result in results.items() if not result["reported"]} - set(NOT_REPORTED)) == []
    assert {name: result["left"] for name, result in results.items() if result["left"]} == {}
    breaches = {name: result["findings"] for name, result in results.items() if result["findings"]}
    # The reference stays, and the plugin sees it when the buffer goes: no caller can do more about it.
    assert set(breaches) == {"PJRT_Buffer_DecreaseExternalReferenceCount"}
    assert lives["last"] == []


def test_threads_under_all_kinds_of_faults(tiny_library: Path, tmp_path: Path) -> None:
    """All that waits ends with the clients, nothing is left, and no rule of the ABI is broken."""
    all_happened, outcomes, left, breaches = run_program("injected_threads.py", tiny_library, tmp_path)
    assert all_happened
    assert {"OK", "CANCELLED"} <= set(outcomes) <= {"OK", "CANCELLED", "INTERNAL", "ABORTED"}
    assert (left, breaches) == ({}, [])


READS = """
import sys
import numpy as np
import pjrt

try:
    pjrt.load_plugin(sys.argv[1]).client().buffer_from_host(np.arange(3.0))
except pjrt.PjrtError as error:
    print(error.message)
"""
RULE = {"call": "Client_BufferFromHostBuffer", "error": "UNAVAILABLE", "message": "by appointment, only"}


def test_rules_of_the_environment(tiny_library: Path) -> None:
    rules = "call=Client_BufferFromHostBuffer,error=UNAVAILABLE,message=by appointment\\, only"
    done = subprocess.run(
        [sys.executable, "-c", READS, str(tiny_library)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PJRT_LAYERS": "inject", "PJRT_INJECT": rules},
    )
    assert done.stdout == "by appointment, only\n"


def test_rules_of_a_written_library(tiny_library: Path, tmp_path: Path) -> None:
    written = pjrt.layers.write_library(tmp_path / "libfaulty.so", tiny_library, ["inject"], {"inject": [RULE]})
    with pjrt.load_plugin(written.path).client() as client, pytest.raises(pjrt.PjrtError, match="by appointment, only"):
        client.buffer_from_host(X)

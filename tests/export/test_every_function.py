"""Every function of the table of a device that offers next to nothing: each works, or says that the device does not
offer what was asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FUNCTIONS: list[str] = json.loads((HERE.parent / "abi" / "data" / "pjrt_c_abi.json").read_text())["api"]

REFUSED = re.compile(r"UNIMPLEMENTED: (the device .+|the memory .+ has no addresses)")

FOR_OLDER_CALLERS = {"PJRT_LoadedExecutable_Fingerprint"}
"""The functions that a client of today has no need of."""

MUST_WORK = re.compile(
    r"PJRT_(Error_|Event_|Plugin_|DeviceDescription_|Memory_|Client_(Create|Destroy|Platform\w+|ProcessIndex|Devices"
    r"|AddressableDevices|AddressableMemories|Lookup\w+|Compile|BufferFromHostBuffer|TopologyDescription)$"
    r"|Buffer_(Destroy|Dimensions|ElementType|Device|Memory|IsDeleted|IsOnCpu|OnDeviceSizeInBytes|ReadyEvent)$)"
)
"""The functions behind abstract members of the device API, which every device has."""


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[bool, str]]:
    """Each function with whether it was called and its outcome; a crash would have ended the process."""
    command = [sys.executable, "-X", "faulthandler", str(HERE / "every_function.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    found = json.loads(done.stdout)
    return {name: (called, answer) for name, (called, answer) in found.items()}


def test_no_function_is_forgotten(answers: dict[str, tuple[bool, str]]) -> None:
    assert list(answers) == FUNCTIONS
    assert len(FUNCTIONS) == 138


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_works_or_is_unimplemented(answers: dict[str, tuple[bool, str]], name: str) -> None:
    called, answer = answers[name]
    assert called or name in FOR_OLDER_CALLERS, f"{name} was not called"
    if MUST_WORK.match(name):
        assert answer == "works"
    else:
        assert answer == "works" or REFUSED.match(answer)

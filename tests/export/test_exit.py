"""The end of the interpreter while a framework is inside an exported device."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pjrt
from pjrt.api import waits
from pjrt.host import HostClient
from pjrt.native.library import wait_for_work

HERE = Path(__file__).parent

INSIDE = """
import ctypes, sys, threading
import pjrt
from every_function import Arguments, FUNCTIONS, HEADER
from pjrt.api import waits

waits.PATIENCE_SECONDS = 0.1
begun = threading.Event()

def make(**options):
    begun.set()
    while True:  # Python code, which is ended where it is when the interpreter is taken apart
        pass

exported = pjrt.export(make, name="spins")
slot = exported.address + HEADER + 8 * FUNCTIONS.index("PJRT_Client_Create")
function = ctypes.c_void_p(ctypes.c_uint64.from_address(slot).value)
call = ctypes.CDLL(sys.argv[1]).call
call.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
arguments = Arguments("PJRT_Client_Create_Args", {})
threading.Thread(target=call, args=(function, arguments.address), daemon=True).start()
begun.wait()
print("ends", flush=True)
"""


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with code that must not be unwound."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "the tests need a C compiler"
    target = tmp_path_factory.mktemp("unwound") / "libunwound.so"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fexceptions"]
    subprocess.run([compiler, *flags, str(HERE / "unwound.c"), "-o", str(target)], check=True, timeout=120)
    return target


def test_a_thread_that_python_ends_inside_is_not_unwound_through_the_framework(framework: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", INSIDE, str(framework)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_memory_that_is_lent_is_no_work_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_deadline", None)  # the clock of the end starts when it is asked for
    exported = pjrt.export(lambda **options: HostClient("lent", compile=lambda *_: None), name="lent")
    returned: list[bool] = []
    array = np.zeros(1 << 16, np.float32)
    with pjrt.capi.load_capsule(exported.capsule).client() as client:
        buffer = client.buffer_from_host(
            array,
            semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
            on_done_with_host_buffer=lambda: returned.append(True),
        )
        buffer.ready().result(60)
        assert wait_for_work()
        assert returned == []
        buffer.delete()
        del buffer
        gc.collect()
    assert returned == [True]

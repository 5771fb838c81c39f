"""The C heap: freed memory is there for the next allocation."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from pjrt.system import keep_freed_memory, release_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: with huge pages there are few faults in any case

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [libc.malloc(20 << 20) for _ in range(2)]
        for block in blocks:
            libc.memset(block, 1, 20 << 20)
        for block in blocks:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_freed_memory()
faults()
print(before, faults())
assert release_freed_memory()
assert faults() > 5_000
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_memory_is_kept() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    before, after = map(int, run.stdout.split())
    assert before > 10_000
    assert after < 1_000

"""Run one case of the callers in C against an exported device: ``run_caller.py LIBRARY DEVICE CASE``.

The functions are called without the GIL, as a framework calls them.
"""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import pjrt


def make_storing_client(key_value_store: pjrt.KeyValueStore | None = None) -> pjrt.Client:
    """Make a client that uses the framework's store first."""
    assert key_value_store is not None
    key_value_store.put("key", b"value")
    assert key_value_store.get("key", 1.0) == b"value"
    assert key_value_store.try_get("key") == b"value"
    with pytest.raises(pjrt.NotFoundError, match="no such key"):
        key_value_store.get("other", 1.0)
    return pjrt.client("reference")


def leak(library: ctypes.CDLL) -> None:
    """Print by how much three hundred lives of a caller make the process grow, in the round of least growth.

    A leak adds to each round; the memory that an allocator or a thread takes now and then does not.
    """

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    counted = []
    for _ in range(6):
        library.lives(300)
        gc.collect()
        counted.append((sys.getallocatedblocks(), pages()))
    print(*(min(after - before for before, after in pairwise(each)) for each in zip(*counted, strict=True)))


def be_interrupted(library: ctypes.CDLL) -> None:
    """Wait in C for an event that never comes, until Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    library.make_client()
    try:
        code = library.wait_for_ever()
        print("ended with", pjrt.StatusCode(code).name)
    except KeyboardInterrupt:
        print("interrupted")


def main() -> None:
    """Run the case; a case that fails ends the process with 1."""
    path, device, case = sys.argv[1:]
    library = ctypes.CDLL(path)
    library.use_table.argtypes = [ctypes.c_void_p]
    is_storing = case == "a_store_of_the_caller"
    exported = pjrt.export(make_storing_client if is_storing else lambda **o: pjrt.client(device, **o), name="device")
    library.use_table(exported.address)
    if case == "leak":
        leak(library)
    elif case == "be_interrupted":
        be_interrupted(library)
    else:
        getattr(library, case)()
        print("survived")


if __name__ == "__main__":
    main()

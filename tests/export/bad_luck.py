"""Runs one case of ``bad_luck.c`` against an exported device: ``bad_luck.py LIBRARY DEVICE CASE``.

The functions are called without the GIL, as a framework calls them.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import pjrt


def make_storing_client(key_value_store: pjrt.KeyValueStore | None = None) -> pjrt.Client:
    """A client that uses the framework's store first."""
    assert key_value_store is not None
    key_value_store.put("key", b"value")
    assert key_value_store.get("key", 1.0) == b"value"
    assert key_value_store.try_get("key") == b"value"
    try:
        key_value_store.get("other", 1.0)
    except pjrt.NotFoundError as error:
        assert "no such key" in error.message
        return pjrt.client("reference")
    raise AssertionError("a key that is not there was found")


def leak(library: ctypes.CDLL) -> None:
    """By how much one caller's thousand lives make the process grow."""
    from pathlib import Path

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    library.lives(300)
    gc.collect()
    blocks, before = sys.getallocatedblocks(), pages()
    library.lives(1500)
    gc.collect()
    print(sys.getallocatedblocks() - blocks, pages() - before)


def main() -> None:
    """Runs the case; a case that fails ends the process with 1."""
    path, device, case = sys.argv[1:]
    library = ctypes.CDLL(path)
    library.use_table.argtypes = [ctypes.c_void_p]
    is_storing = case == "a_store_of_the_caller"
    exported = pjrt.export(make_storing_client if is_storing else lambda **o: pjrt.client(device, **o), name="device")
    library.use_table(exported.address)
    if case == "leak":
        leak(library)
    else:
        getattr(library, case)()
        print("survived")


if __name__ == "__main__":
    main()

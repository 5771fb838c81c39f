"""Wait with the GIL held for threads that need it; the parent process ends this one if that hangs."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any


def in_library(path: str, ways: list[str]) -> None:
    """Call functions of ``waits.cpp``."""
    from pjrt.capi.export import release_gil_in_waits

    library = ctypes.PyDLL(path)  # its functions are called with the GIL
    replaced = release_gil_in_waits(path)
    assert replaced >= len(set(ways)), replaced
    assert release_gil_in_waits(path) == replaced
    for way in ways:
        called: list[int] = []
        callback = ctypes.CFUNCTYPE(None)(lambda noted=called: noted.append(threading.get_ident()))
        library[f"wait_by_{way}"](callback)
        (thread,) = called
        assert thread != threading.get_ident()
        print(way, flush=True)


def for_event() -> None:
    """Call ``PJRT_Event_Await`` on an event that a thread of Python sets."""
    from every_function import FUNCTIONS, HEADER

    import pjrt

    exported = pjrt.export(lambda: pjrt.client("reference"), name="waiting", platform_name="waiting")
    table = address_of(exported.capsule)

    def function(name: str, kind: Any) -> Any:
        return kind(ctypes.c_void_p, ctypes.c_void_p)(
            ctypes.c_void_p.from_address(table + HEADER + 8 * FUNCTIONS.index(name)).value
        )

    arguments = (ctypes.c_void_p * 5)(24)
    assert not function("PJRT_Event_Create", ctypes.CFUNCTYPE)(ctypes.addressof(arguments))
    setting = (ctypes.c_void_p * 6)(48, None, arguments[2])
    set_event, gate = function("PJRT_Event_Set", ctypes.CFUNCTYPE), threading.Lock()

    def set_when_let() -> None:
        with gate:
            set_event(ctypes.addressof(setting))

    thread = threading.Thread(target=set_when_let)
    waiting = (ctypes.c_void_p * 3)(24, None, arguments[2])
    with gate:
        thread.start()
        sys.setswitchinterval(1000)  # from here on the thread has the GIL only where this one lets go of it
    assert not function("PJRT_Event_Await", ctypes.PYFUNCTYPE)(ctypes.addressof(waiting))
    thread.join()
    print("set", flush=True)


def address_of(capsule: Any) -> int:
    get = ctypes.PyDLL(None).PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get(capsule, b"pjrt_c_api")
    return address


if __name__ == "__main__":
    if len(sys.argv) > 1:
        in_library(sys.argv[1], sys.argv[2:])
    else:
        for_event()

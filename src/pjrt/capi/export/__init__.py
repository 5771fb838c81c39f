"""The export half of the C ABI: any client of this package, shown to the world as a real PJRT plugin.

Handles are C structs at the head of Python objects, and carry what the getters answer, so that those need neither the
GIL nor Python. What must reach Python passes one entry (``_entry``), which turns exceptions into errors and turns calls
away once the interpreter has begun to end.
"""

from __future__ import annotations

from pjrt.capi.export._event import wait_for_pending
from pjrt.capi.export._library_waits import let_go_of_gil_in_waits
from pjrt.capi.export.exported import Exported, export
from pjrt.capi.export.loading import exported_at, load_exported
from pjrt.capi.export.writing import write_library

__all__ = [
    "Exported",
    "export",
    "exported_at",
    "let_go_of_gil_in_waits",
    "load_exported",
    "wait_for_pending",
    "write_library",
]

"""The export half of the C ABI: any client of this package as a real PJRT plugin.

Handles are C structs at the head of Python objects. They hold what the plain getters return (``_gen_handles``), so that
those need neither the GIL nor Python. Every other function is a trampoline (``_trampolines``): it calls Python, turns
exceptions into errors, and refuses calls once the interpreter has begun to end.
"""

from __future__ import annotations

from pjrt.capi._program import function_at
from pjrt.capi.export._event import fail_pending, wait_for_pending
from pjrt.capi.export._table import CAPSULE_NAME, Table, capsule_of

__all__ = [
    "CAPSULE_NAME",
    "Table",
    "capsule_of",
    "fail_pending",
    "function_at",
    "wait_for_pending",
]

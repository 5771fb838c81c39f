"""The C API by name, for authors of plugins who poke a plugin function by function.

``plugin = raw.load("libmine.so")``, then ``plugin.call("PJRT_Client_LookupDevice", client=client, id=-1)`` fills the
struct of the arguments, calls the function, and returns what it set: ``result.error``, or ``result.device``. No object
of this package stands between: handles are addresses, nothing is destroyed by itself, and wrong calls can be made.
"""

from __future__ import annotations

from pjrt.capi.raw.plugin import Plugin, Result, load
from pjrt.capi.raw.struct import Struct, call_function, callback_error, named_value, read_struct
from pjrt.capi.raw.table import Error, KeyValueStore, code_name

__all__ = [
    "Error",
    "KeyValueStore",
    "Plugin",
    "Result",
    "Struct",
    "call_function",
    "callback_error",
    "code_name",
    "load",
    "named_value",
    "read_struct",
]

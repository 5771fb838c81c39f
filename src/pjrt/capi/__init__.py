"""The C ABI of PJRT, both ways: vendors' plugins as clients here, clients as plugins in ``export``.

The layout of the ABI is stated once, in ``include/pjrt_abi``; the Cython declarations (``_gen_abi.pxd``) are generated
from it, and everything that touches a struct is compiled against it. One module a noun, each an extension module of its
own: a change then recompiles one noun, and none outgrows a reader. What they share is layered, lowest first: ``_gate``
(threads and the GIL), ``_api`` (the table, calls, errors), ``_scope`` (ownership), ``_values``, ``_getter`` (plain
getters), ``_memory`` and ``_event``; then the nouns.

A noun is a C-level class ``…Core`` with the calls, and a Python class that joins it with the abstract class of the
device API, and has its plain getters. This package translates and decides nothing: it must not know which device it
speaks to, or which framework.
"""

from __future__ import annotations

from pjrt.capi._dlopen import check_library_file
from pjrt.capi._plugin import LoadedPlugin, load_capsule, load_plugin, open_table, plugin_at

__all__ = ["LoadedPlugin", "check_library_file", "load_capsule", "load_plugin", "open_table", "plugin_at"]

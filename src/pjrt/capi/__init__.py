"""The C ABI of PJRT, both ways: vendors' plugins as clients here, clients as plugins in ``export``.

The layout of the ABI is stated once, in ``pjrt.abi``; the Cython declarations there (``generated/declarations.pxd``)
follow from it, and all that touches a struct is compiled against it. The extension modules are layered, lowest first:
``_api`` (the table, calls, errors, values, callbacks), ``_scope`` (ownership, plain getters, events), then the nouns
``_device``, ``_buffer``, ``_executable``, ``_client`` and ``_plugin``. ``_transfers`` and ``_extensions``, which few
programs need, are loaded when they are used.

A noun is a C-level class ``…Core`` with the calls, and a Python class that joins it with the abstract class of the
device API, and has its plain getters. This package translates and decides nothing: it must not know which device it
speaks to, or which framework.
"""

from __future__ import annotations

from pjrt.capi._plugin import LoadedPlugin, capsule_of, load_capsule, load_plugin, open_table, plugin_at
from pjrt.capi._program import function_at
from pjrt.capi.library_files import check_library_file

__all__ = [
    "LoadedPlugin",
    "capsule_of",
    "check_library_file",
    "function_at",
    "load_capsule",
    "load_plugin",
    "open_table",
    "plugin_at",
]

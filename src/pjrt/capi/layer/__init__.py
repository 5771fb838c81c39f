"""Layers: tables of the C API that stand before a plugin's table, see each call, and pass it on.

The layers, and the stack that they stand in, are a shared library in C (``library/``) that needs no Python. Here it is
bound: ``stack`` wraps tables, ``schema`` reads what the library knows of each function's arguments.
"""

from __future__ import annotations

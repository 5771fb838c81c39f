"""Named values: attributes and options of five types (``PJRT_NamedValue``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NamedValue = str | int | float | bool | Sequence[int]
"""The type of an attribute or option: a string, a 64-bit integer, a 32-bit float, a boolean or a list of 64-bit
integers.
"""

Attributes = Mapping[str, NamedValue]
"""Named values by name; lists arrive as tuples of ``int``."""

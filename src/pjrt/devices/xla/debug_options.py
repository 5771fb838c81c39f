"""The debug options of compilations: jaxlib's defaults where the caller states none.

With XLA's own defaults minimum, maximum and clamp lose a NaN, against StableHLO's specification; not with jaxlib's.
"""

from __future__ import annotations

import functools

from pjrt.devices.xla import _jaxlib
from pjrt.stablehlo.protobuf_wire import BYTES, fields

_BUILD_OPTIONS = 3
"""The number of ``executable_build_options`` in ``CompileOptionsProto``."""

_DEBUG_OPTIONS = 3
"""The number of ``debug_options`` in ``ExecutableBuildOptionsProto``."""


def with_debug_options(options: bytes) -> bytes:
    """Return a serialized ``CompileOptionsProto`` with jaxlib's default debug options, unless it has some."""
    # Messages one behind the other are merged when they are parsed.
    return options if _debug_options(options) else _defaults() + options


@functools.cache
def _defaults() -> bytes:
    """Return compile options with nothing but jaxlib's default debug options."""
    debug_options = _debug_options(_jaxlib.jax.CompileOptions().SerializeAsString())
    return _message(_BUILD_OPTIONS, _message(_DEBUG_OPTIONS, debug_options)) if debug_options else b""


def _debug_options(options: bytes) -> bytes:
    for number, kind, begin, end in fields(options):
        if (number, kind) != (_BUILD_OPTIONS, BYTES):
            continue
        for inner, inner_kind, inner_begin, inner_end in fields(options, begin, end):
            if (inner, inner_kind) == (_DEBUG_OPTIONS, BYTES):
                return options[inner_begin:inner_end]
    return b""


def _message(number: int, content: bytes) -> bytes:
    """Return a field with a message as its content."""
    head, length = bytearray([number << 3 | BYTES]), len(content)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + content

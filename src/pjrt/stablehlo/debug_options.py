"""The debug options of compilations by XLA: jaxlib's defaults where the caller states none.

With XLA's own defaults minimum, maximum and clamp lose a NaN, against StableHLO's specification; not with jaxlib's.
And XLA converts a program by the options that it is given, and compiles it by jaxlib's defaults where it is given none:
the two kinds of shardings that it then takes a program to have contradict each other.
"""

from __future__ import annotations

import functools

from pjrt.stablehlo import jaxlib
from pjrt.stablehlo.protobuf_wire import BYTES, VARINT, fields

_BUILD_OPTIONS = 3
"""The number of ``executable_build_options`` in ``CompileOptionsProto``."""

_DEBUG_OPTIONS = 3
"""The number of ``debug_options`` in ``ExecutableBuildOptionsProto``."""

_MESH_SHARDINGS = 452
"""The number of ``xla_enable_hlo_sharding_v3`` in ``DebugOptions``."""


def with_debug_options(options: bytes) -> bytes:
    """Return a serialized ``CompileOptionsProto`` with jaxlib's default debug options, unless it has some."""
    # Messages one behind the other are merged when they are parsed.
    return options if _debug_options(options) else _defaults() + options


def mesh_shardings_enabled(options: bytes) -> bool:
    """Whether XLA compiles shardings over the axes of a mesh by a serialized ``CompileOptionsProto``.

    jaxlib does so by default since 0.12. The options of JAX have what its own jaxlib does.
    """
    stated = fields(_debug_options(with_debug_options(options)))
    return any(bool(value) for number, kind, value, _ in stated if (number, kind) == (_MESH_SHARDINGS, VARINT))


@functools.cache
def _defaults() -> bytes:
    """Return compile options with nothing but jaxlib's default debug options."""
    serialized = jaxlib.load("_jax", "know the defaults of compile options").CompileOptions().SerializeAsString()
    debug_options = _debug_options(serialized)
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

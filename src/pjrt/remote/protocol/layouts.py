"""Layouts inside messages: XLA's spelling, its ``LayoutProto``, and IFRT's ``LayoutProto``."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.layout import Layout, TiledLayout
from pjrt.remote.protocol.messages import wire

_PJRT_LAYOUT = "xla::ifrt::PjRtLayout"


def layout_spelling(layout: Layout) -> bytes:
    """Return a layout as ``xla::PjRtLayout`` serializes it: XLA's spelling, such as ``{1,0}``.

    Raises:
        UnimplementedError: the layout is one of strides, which XLA does not have.
    """
    return str(_tiled(layout)).encode()


def layout_of_spelling(spelling: bytes) -> TiledLayout:
    """Return the layout with a spelling of XLA.

    Raises:
        InvalidArgumentError: the bytes are not the spelling of a layout.
    """
    return TiledLayout.parse(spelling.decode("utf-8", "replace"))


def xla_layout_proto(layout: Layout) -> Any:
    """Return a layout as an ``xla.LayoutProto``; raise the error of ``layout_spelling``."""
    tiled = _tiled(layout)
    return wire.XlaLayoutProto(
        minor_to_major=tiled.minor_to_major, tiles=[wire.TileProto(dimensions=tile) for tile in tiled.tiles]
    )


def layout_of_xla_proto(proto: Any) -> TiledLayout:
    """Return the layout in an ``xla.LayoutProto``.

    Raises:
        InvalidArgumentError: it does not name each dimension once.
    """
    return TiledLayout(tuple(proto.minor_to_major), tuple(tuple(tile.dimensions) for tile in proto.tiles))


def layout_proto(layout: Layout) -> Any:
    """Return a layout as an IFRT ``LayoutProto``; raise the error of ``layout_spelling``."""
    name, message = _PJRT_LAYOUT, wire.PjRtLayoutProto(xla_layout=xla_layout_proto(layout))
    return wire.LayoutProto(serialized_layout=wire.Serialized(type_name=name, data=message.SerializeToString()))


def layout_of(proto: Any) -> TiledLayout:
    """Return the layout in an IFRT ``LayoutProto``.

    Raises:
        InvalidArgumentError: the bytes are not a layout.
        UnimplementedError: the layout is of a kind that is not known here.
    """
    serialized = proto.serialized_layout
    kinds = {_PJRT_LAYOUT: wire.PjRtLayoutProto, "xla::ifrt::CompactLayout": wire.CompactLayoutProto}
    kind = kinds.get(serialized.type_name)
    if kind is None:
        raise UnimplementedError(
            f"expected a layout of one of the types {', '.join(kinds)}, found {serialized.type_name!r}"
        )
    try:
        message = kind.FromString(serialized.data)
    except DecodeError as error:
        raise InvalidArgumentError(f"expected a serialized {serialized.type_name}, found other bytes") from error
    if kind is wire.PjRtLayoutProto:
        return layout_of_xla_proto(message.xla_layout)
    return TiledLayout(tuple(reversed(message.major_to_minor)))


def _tiled(layout: Layout) -> TiledLayout:
    if not isinstance(layout, TiledLayout):
        raise UnimplementedError(f"expected a layout of tiles, which the protocol can carry, found {layout}")
    return layout

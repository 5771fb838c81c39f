"""The schema of the IFRT proxy protocol as the installed jaxlib has it: its library holds the descriptions of files."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from google.protobuf.message import DecodeError

FILES = (
    "xla/python/ifrt_proxy/common/ifrt_service.proto",
    "xla/python/ifrt_proxy/common/grpc_ifrt_service.proto",
    "xla/python/ifrt_proxy/common/array_util.proto",
    "xla/python/ifrt/sharding_serdes.proto",
    "xla/python/ifrt/layout_serdes.proto",
    "xla/python/pjrt_ifrt/pjrt_layout_serdes.proto",
    "xla/python/pjrt_ifrt/xla_compiler.proto",
    "xla/python/pjrt_ifrt/xla_host_callback.proto",
    "xla/python/pjrt_ifrt/xla_sharding.proto",
)
"""The files of the protocol, and those of objects in it; what they import comes with them."""

_LARGEST_FIELD = 14
"""The largest field number of a ``FileDescriptorProto``, ``edition``."""


def messages_of(library: Path) -> dict[str, descriptor_pb2.DescriptorProto]:
    """Return the messages of the protocol in jaxlib's library, by full name, also those inside others."""
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        wanted, seen = list(FILES), set(FILES)
        while wanted:
            described = _file(contents, wanted.pop())
            if described is None:
                continue
            for message in described.message_type:
                _add(messages, described.package, message)
            wanted += set(described.dependency) - seen
            seen |= set(described.dependency)
    return messages


def _add(messages: dict[str, descriptor_pb2.DescriptorProto], scope: str, message: Any) -> None:
    name = f"{scope}.{message.name}"
    messages[name] = message
    for inner in message.nested_type:
        _add(messages, name, inner)


def _file(contents: mmap.mmap, name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the description of a file, which begins with the file's name."""
    key = b"\n" + bytes([len(name)]) + name.encode()
    start = contents.find(key)
    while start >= 0:
        described = descriptor_pb2.FileDescriptorProto()
        try:
            described.ParseFromString(contents[start : start + _length(contents[start : start + 500_000])])
        except DecodeError:
            described.Clear()
        if described.name == name and (described.message_type or described.enum_type):
            return described
        start = contents.find(key, start + 1)
    return None


def _length(data: bytes) -> int:
    """Return how many bytes from the start on can be fields of one ``FileDescriptorProto``."""
    position = 0
    while position < len(data):
        try:
            tag, end = _DecodeVarint(data, position)
            number, wire_type = tag >> 3, tag & 7
            if not 0 < number <= _LARGEST_FIELD or wire_type not in (0, 2) or (number == 1 and position):
                break
            size, end = _DecodeVarint(data, end)
        except (IndexError, DecodeError):
            break
        if wire_type == 2:
            end += size
        if end > len(data):
            break
        position = end
    return position

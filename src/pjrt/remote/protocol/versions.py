"""Versions of the IFRT proxy protocol, and extensions of this package, on which the two ends of a session agree.

The versions are those of the protocol, and of the serialized IFRT objects in it. A server names an extension in the
attributes of its ``InitResponse``. Clients and servers without it never see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.program import Program
from pjrt.api.protobuf import message_classes
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import compile_options_proto, program_proto

OLDEST_PROTOCOL = 16
"""The oldest protocol that jaxlib 0.9 to 0.12 speak."""
NEWEST_PROTOCOL = 25
"""The newest protocol that jaxlib 0.10 speaks."""
NEWEST_SERDES = 3
"""The newest format of serialized shardings, shapes and the like; older ones have the same fields, or fewer."""

LARGE_TRANSFERS_BY_FILE = 17
COST_ANALYSIS = 18
PROGRAM_TEXT = 19
MPMD_EXECUTABLES = 20
EXECUTE_RESULT = 21
"""From this version on, the end of an execution is asked for by a request of its own."""
DEVICE_PLATFORM_NAME = 22
LAYOUT_OF_NEW_ARRAY = 23


class Version(NamedTuple):
    """The versions that both ends of a session speak (``IfrtProxyVersion``).

    Attributes:
        protocol: the version of the protocol.
        serdes: the version of the format of serialized IFRT objects.
    """

    protocol: int = NEWEST_PROTOCOL
    serdes: int = NEWEST_SERDES

    @staticmethod
    def from_proto(proto: Any) -> Version:
        """Return the versions in an ``IfrtProxyVersion``."""
        return Version(proto.protocol_version, proto.ifrt_serdes_version_number)

    def to_proto(self) -> Any:
        """Return the versions as an ``IfrtProxyVersion``."""
        return wire.IfrtProxyVersion(protocol_version=self.protocol, ifrt_serdes_version_number=self.serdes)


NEWEST = Version()


def agreed(oldest: Version, newest: Version, ours: Version = NEWEST) -> Version:
    """Return the newest versions that a client and this server speak.

    Args:
        oldest: the oldest versions of the client.
        newest: the newest versions of the client.
        ours: the newest versions of this server.

    Raises:
        FailedPreconditionError: the two ends share no version.
    """
    version = Version(min(newest.protocol, ours.protocol), min(newest.serdes, ours.serdes))
    if version.protocol < max(oldest.protocol, OLDEST_PROTOCOL) or version.serdes < oldest.serdes:
        raise FailedPreconditionError(
            f"expected a client of the IFRT proxy protocol {OLDEST_PROTOCOL} to {ours.protocol} with serialization "
            f"{ours.serdes} or older, found one of the protocol {oldest.protocol} to {newest.protocol} with "
            f"serialization {oldest.serdes} to {newest.serdes}; use a jaxlib of 0.9 to 0.12"
        )
    return version


# Batches: several requests in one message, and requests whose success is not answered. A step of a program is a few
# short requests, and the messages around them cost more than they do. A client names this extension in the
# ``initialization_data`` of its session, and may use it if the attributes in the ``InitResponse`` name it too.

BATCHES = "pjrt.batches"
"""The name of the extension in the ``initialization_data`` and in the client's attributes."""

ERRORS_ONLY = 1 << 63
"""The bit of a request's ``op_id`` that asks for a response only if the request fails."""

LARGEST_BATCHED_REQUEST = 1 << 12
"""The length of a request from which on it is a message by itself: to copy it costs more than a message."""

MOST_BATCHED_REQUESTS = 256
"""The requests that a batch may have: a server looks at the responses that wait only between messages."""

# No field of ``IfrtRequest`` has this number, so the first two bytes tell a batch from a request.
_BATCH_FIELD = 2000
_BATCH_TAG = bytes(((_BATCH_FIELD << 3 | 2) & 0x7F | 0x80, (_BATCH_FIELD << 3 | 2) >> 7))

_Batch: Any = message_classes("pjrt.remote.batches", {"Batch": {"requests": (_BATCH_FIELD, "[bytes]")}})["Batch"]


def batch(requests: Sequence[bytes]) -> bytes:
    """Return the message with several requests, each a serialized ``IfrtRequest``."""
    message: bytes = _Batch(requests=requests).SerializeToString()
    return message


def requests_in(message: bytes) -> Sequence[bytes]:
    """Return the requests in a message, which is a batch or one request.

    Raises:
        InvalidArgumentError: the batch is damaged, or has too many requests.
    """
    if not message.startswith(_BATCH_TAG):
        return (message,)
    try:
        requests: Sequence[bytes] = _Batch.FromString(message).requests
    except DecodeError as error:
        raise InvalidArgumentError(f"expected a batch of requests, found {error}") from None
    if len(requests) > MOST_BATCHED_REQUESTS:
        raise InvalidArgumentError(
            f"expected a batch of at most {MOST_BATCHED_REQUESTS} requests, found {len(requests)}"
        )
    return requests


# Inline bytes: a small array travels in the request that makes it, and in the response to the request that reads it.
# Each would be a call of its own otherwise, beside the session. A client sends them if the attributes name the
# extension, and states with a request to read how many bytes it takes.

INLINE = "pjrt.inline"
"""The name of the extension in the client's attributes."""

MOST_INLINE_BYTES = 1 << 15
"""The bytes of an array up to which it is in the message: a longer one would hold the session's other messages up."""

# Saved executables: the program, its options, and what the server's device has made of it. The IFRT proxy protocol has
# no request for them. An executable of a server without this extension is saved as its program, which is compiled again
# when it is loaded.

SAVED_EXECUTABLES = "pjrt.saved_executables"
"""The name of the extension in the client's attributes."""

_MAGIC = b"pjrt remote executable 1\n"


def load_request(program: Program, options: CompileOptions, serialized: bytes) -> Any:
    """Return the ``LoadExecutableRequest`` of an executable.

    Args:
        program: the program, in StableHLO.
        options: the options of its compilation.
        serialized: the device's bytes; empty if the server saves none.
    """
    return wire.LoadExecutableRequest(
        program=program_proto(program),
        compile_options=compile_options_proto(options),
        serialized_executable=serialized,
    )


def saved_executable(request: Any) -> bytes:
    """Return a ``LoadExecutableRequest`` as the bytes that a client keeps."""
    return _MAGIC + bytes(request.SerializeToString())


def saved_request_of(serialized: bytes) -> Any:
    """Return the ``LoadExecutableRequest`` in what ``saved_executable`` has returned.

    Raises:
        InvalidArgumentError: the bytes are something else, or are cut short.
    """
    if not isinstance(serialized, bytes) or not serialized.startswith(_MAGIC):
        raise InvalidArgumentError("expected a saved executable of a remote device, found other bytes")
    try:
        return wire.LoadExecutableRequest.FromString(serialized[len(_MAGIC) :])
    except DecodeError:
        raise InvalidArgumentError("expected a saved executable of a remote device, found a part of one") from None

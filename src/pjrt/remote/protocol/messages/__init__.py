"""The messages of the IFRT proxy protocol, stated by their field numbers, as classes: ``wire.InitRequest``.

An enumeration is a number here, a map is a list of keys and values, and a message that another package of ours reads
is its bytes: all three have the same serialized form as in the protocol's own schema.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from google.protobuf.message import DecodeError

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.protobuf import message_classes
from pjrt.remote.protocol.messages.arrays import ARRAYS
from pjrt.remote.protocol.messages.executables import EXECUTABLES
from pjrt.remote.protocol.messages.extensions import EXTENSIONS
from pjrt.remote.protocol.messages.session import SESSION
from pjrt.remote.protocol.messages.transport import TRANSPORT
from pjrt.remote.protocol.messages.values import VALUES

TABLE = {**VALUES, **SESSION, **ARRAYS, **EXECUTABLES, **EXTENSIONS, **TRANSPORT}
"""All messages; the name of a message inside another one has a dot, as ``InitResponse.Device``."""

wire: Any = SimpleNamespace(
    **{name.replace(".", "_"): kind for name, kind in message_classes("pjrt.remote", TABLE).items()}
)
"""The class of each message by its name; ``InitResponse.Device`` is ``wire.InitResponse_Device``."""


def parsed(kind: Any, serialized: Any) -> Any:
    """Return the message of a kind in bytes that somebody has sent.

    Raises:
        InvalidArgumentError: the bytes are not such a message.
    """
    try:
        return kind.FromString(serialized)
    except (DecodeError, TypeError) as error:
        raise InvalidArgumentError(f"expected a message of the kind {kind.DESCRIPTOR.name}, found {error}") from None

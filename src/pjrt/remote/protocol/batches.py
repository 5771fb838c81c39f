"""Batches: several requests in one message, and requests whose success is not answered.

A step of a program is a few short requests, and the messages around them cost more than they do. So clients of this
package have an extension of the IFRT proxy protocol. A client names it in the ``initialization_data`` of its session,
and may use it if the attributes in the ``InitResponse`` name it too. Other clients and servers never see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.protobuf import message_classes

ATTRIBUTE = "pjrt.batches"
"""The name of the extension in the ``initialization_data`` and in the client's attributes."""

ERRORS_ONLY = 1 << 63
"""The bit of a request's ``op_id`` that asks for a response only if the request fails."""

LARGEST_REQUEST = 1 << 12
"""The length of a request from which on it is a message by itself: to copy it costs more than a message."""

MOST_REQUESTS = 256
"""The requests that a batch may have: a server looks at the responses that wait only between messages."""

# No field of ``IfrtRequest`` has this number, so the first two bytes tell a batch from a request.
_FIELD = 2000
_TAG = bytes(((_FIELD << 3 | 2) & 0x7F | 0x80, (_FIELD << 3 | 2) >> 7))

_Batch: Any = message_classes("pjrt.remote.batches", {"Batch": {"requests": (_FIELD, "[bytes]")}})["Batch"]


def batch(requests: Sequence[bytes]) -> bytes:
    """Return the message with several requests, each a serialized ``IfrtRequest``."""
    message: bytes = _Batch(requests=requests).SerializeToString()
    return message


def requests_in(message: bytes) -> Sequence[bytes]:
    """Return the requests in a message, which is a batch or one request.

    Raises:
        InvalidArgumentError: the batch is damaged, or has too many requests.
    """
    if not message.startswith(_TAG):
        return (message,)
    try:
        requests: Sequence[bytes] = _Batch.FromString(message).requests
    except DecodeError as error:
        raise InvalidArgumentError(f"expected a batch of requests, found {error}") from None
    if len(requests) > MOST_REQUESTS:
        raise InvalidArgumentError(f"expected a batch of at most {MOST_REQUESTS} requests, found {len(requests)}")
    return requests

"""Calls of functions on a server that offers them, which the workers of a cluster do for their controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.future import Future, Promise
from pjrt.api.layout import TiledLayout
from pjrt.api.placement import choose_place
from pjrt.api.shape_spec import ShapeSpec
from pjrt.remote.client.buffer import BufferType, RemoteBuffer
from pjrt.remote.protocol.messages import wire

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient


def call_function(
    client: RemoteClient,
    function: bytes,
    arguments: Sequence[Buffer],
    results: Sequence[tuple[ShapeSpec, Device]],
    worker: int,
) -> tuple[Future[bytes], list[RemoteBuffer]]:
    """Send a call; see ``RemoteClient.call_function``."""
    connection = client.connection
    connection.check()
    connection.release_now()  # the function may ask for the memory that is in use
    request = wire.IfrtRequest()
    body = request.call_function_request
    body.function = function
    body.worker = worker
    for argument in arguments:
        if not isinstance(argument, RemoteBuffer) or argument.type.connection is not connection:
            raise InvalidArgumentError(f"expected a buffer of this client as an argument, found {argument!r}")
        body.array_handles.append(argument.use())
    buffers = []
    for spec, device in results:
        place, space = choose_place(client, device, None)
        layout = TiledLayout.row_major(len(spec.shape))
        buffer_type = BufferType(client, connection, place, space, spec.shape, spec.element_type, layout)  # type: ignore[arg-type]
        buffer = RemoteBuffer(buffer_type, connection.new_handle())
        body.result_specs.append(client.spec_proto(buffer_type))
        body.result_array_handles.append(buffer.handle())
        buffers.append(buffer)
    answer: Promise[bytes] = Promise()
    outcomes = [buffer.outcome() for buffer in buffers]

    def reply(response: Any, error: PjrtError | None) -> None:
        for keep in outcomes:
            keep(response, error)
        if error is None:
            answer.set_result(response.call_function_response.result)
        else:
            answer.set_error(error)

    connection.send(request, reply)
    return answer.future, buffers

"""Requests by which a client runs its functions that programs call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.future import Future
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import error_of
from pjrt.remote.server.array_memory import shortened
from pjrt.remote.server.host_callbacks import Call
from pjrt.remote.server.requests.table import handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


@handles("loaded_host_callback_poll")
def poll(session: Session, request: Any) -> Any:
    """Return the response when a program calls the function: the operands are then in a host buffer.

    A response without a call ends the client's polls. An error would not: the client polls again at once.
    """
    handle = request.loaded_host_callback_handle
    if handle not in session.callbacks:
        return wire.LoadedHostCallbackPollResponse()

    def hand_over(call: Call | None) -> Any:
        if call is None:
            if handle in session.callbacks:
                session.callbacks.forget(handle)
            return wire.LoadedHostCallbackPollResponse()
        session.host_buffers.store(request.operand_host_buffer_handle, call.operands)
        return wire.LoadedHostCallbackPollResponse(host_callback_execution_handle=session.calls.add(call))

    future: Future[Call | None] = session.callbacks.get(handle).poll()
    return future.then(hand_over)


@handles(
    "loaded_host_callback_return",
    host_buffers=lambda request: (
        (request.result_host_buffer_handle,) if request.HasField("result_host_buffer_handle") else ()
    ),
)
def return_results(session: Session, request: Any) -> Any:
    """Give a running program the results of a call, or its error."""
    call = session.calls.pop(request.host_callback_execution_handle)
    error = error_of(request.error)
    if error is None:
        call.results.set_result(bytes(session.host_buffers.take(request.result_host_buffer_handle)))
    else:
        call.results.set_error(shortened(error))
    return wire.LoadedHostCallbackReturnResponse()

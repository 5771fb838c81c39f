"""Requests about whether arrays are ready or deleted, and about futures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.remote.protocol.messages import wire
from pjrt.remote.server.requests.table import handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


@handles("check_value_ready", inputs=("value_handles",))
def check_value_ready(session: Session, request: Any) -> Any:
    """Return the response when all arrays have their values, or the error of one that has none."""
    arrays = session.arrays.get_all(request.value_handles)
    ready = session.client.get_ready_future(arrays)
    if ready.done():  # small programs often have ended before the client asks
        ready.result()
        return wire.CheckValueReadyResponse()
    return ready.then(lambda _: wire.CheckValueReadyResponse())


@handles("check_future", inputs=("future_handle",))
def check_future(session: Session, request: Any) -> Any:
    """Return the response when a future is done; it can be asked for once."""
    handle = request.future_handle
    futures = session.deletions if handle in session.deletions else session.futures
    return futures.pop(handle).then(lambda _: wire.CheckFutureResponse())


@handles("delete_array", inputs=("array_handle",), counted=False)
def delete_array(session: Session, request: Any) -> Any:
    """Delete arrays, and return the handle of a future that is done when they are deleted."""
    failures: list[Future[None]] = []
    for handle in request.array_handle:
        try:
            session.arrays.get(handle).delete()
        except PjrtError as error:
            failures.append(Future.failed(error))
    return wire.DeleteArrayResponse(deletion_future_handle=session.deletions.add(Future.all(failures)))


@handles("is_array_deleted", inputs=("array_handle",))
def is_array_deleted(session: Session, request: Any) -> Any:
    """Return whether an array was deleted or donated."""
    return wire.IsArrayDeletedResponse(deleted=session.arrays.get(request.array_handle).is_deleted)


@handles("destruct_array", inputs=("array_handle",), counted=False)
def destruct_array(session: Session, request: Any) -> Any:
    """Forget arrays that the client has forgotten. Arrays that share their memory keep it."""
    unknown = None
    for handle in request.array_handle:
        try:
            session.arrays.forget(handle)
        except PjrtError as error:
            unknown = unknown or error
    if unknown is not None:
        raise unknown
    return wire.DestructArrayResponse()

"""Requests that call a function of the server's owner: the workers of a cluster run functions of their controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec, format_shape
from pjrt.ifrt.array import Array
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import array_spec_of
from pjrt.remote.server.requests.table import Queue, handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import PassOnCall, Session


@handles(
    "call_function",
    inputs=("array_handles",),
    results=("result_array_handles",),
    blocking=lambda session, request: session.pass_on_call is None,
    queue=lambda session, request: Queue.CALLS,
)
def call_function(session: Session, request: Any) -> Any:
    """Call a function with the values of arrays, and make arrays of its results; return the rest as bytes."""
    if session.pass_on_call is not None:
        return _passed_on(session, request, session.pass_on_call)
    call = session.call_function
    if call is None:
        raise UnimplementedError("this server calls no functions of its clients; only the workers of a cluster do")
    specs = [array_spec_of(session.client, spec) for spec in request.result_specs]
    values = [array.to_host() for array in session.arrays.get_all(request.array_handles)]
    result, arrays = call(request.function, [value.result() for value in values])
    if len(arrays) != len(specs):
        raise InvalidArgumentError(f"expected {len(specs)} arrays of the function, found {len(arrays)}")
    outputs = []
    for array, spec in zip(arrays, specs, strict=True):
        value = np.asarray(array)
        if value.shape != spec.shape or value.dtype != spec.element_type.dtype:
            raise InvalidArgumentError(
                f"expected {format_shape(spec.element_type, spec.shape)} of the function, found an array of "
                f"{value.dtype}{list(value.shape)}"
            )
        outputs.append(session.client.make_array(value, spec.sharding))
    session.arrays.add_all(outputs, request.result_array_handles)
    return wire.CallFunctionResponse(result=result)


def _passed_on(session: Session, request: Any, pass_on: PassOnCall) -> Future[Any]:
    """Have another server call the function: the values of the arrays do not come here."""
    specs = [array_spec_of(session.client, spec) for spec in request.result_specs]
    arguments = [array.shards[0].buffer for array in session.arrays.get_all(request.array_handles)]
    results = [(ShapeSpec(spec.shape, spec.element_type), spec.sharding.devices[0]) for spec in specs]
    answer, buffers = pass_on(request.worker, request.function, arguments, results)
    arrays = [Array(session.client, spec, [buffer]) for spec, buffer in zip(specs, buffers, strict=True)]
    session.arrays.add_all(arrays, request.result_array_handles)
    return answer.then(lambda result: wire.CallFunctionResponse(result=result))

"""Requests that run executables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import ArraySpec
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import execute_options_of
from pjrt.remote.protocol.values import element_type_proto, shape_proto, sharding_proto
from pjrt.remote.server.requests.table import Queue, handles

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


def _queue(session: Session, request: Any) -> Queue | None:
    executable = session.executables.get(request.loaded_executable_handle).executable
    return None if executable.devices.is_fully_addressable else Queue.PROCESSES


@handles(
    "loaded_executable_execute",
    inputs=("loaded_executable_handle", "args_handles"),
    results=("result_array_handle",),
    futures=("result_status_handle",),
    queue=_queue,
)
def execute(session: Session, request: Any) -> Any:
    """Run an executable on arrays.

    From its second execution on, the client makes the handles of the results and waits for no response.
    """
    entry = session.executables.get(request.loaded_executable_handle)
    executable = entry.executable
    if request.device_ids and tuple(request.device_ids) != executable.devices.ids:
        raise InvalidArgumentError(
            f"{executable.name!r} is loaded on the devices {executable.devices.ids}; expected to run on these, found "
            f"{tuple(request.device_ids)}"
        )
    specs = filter(None, executable.output_specs)  # no None is compiled
    outputs = [] if request.result_array_handle else list(map(_output, specs))
    arguments = session.arrays.get_all(request.args_handles)
    options = execute_options_of(request.execute_options)
    status = None
    with session.as_stranger():
        if request.execute_options.fill_status:
            arrays, status = entry.execute(arguments, options)
        else:
            arrays = entry.launch(arguments, options)
    session.backlog.add(arrays)
    handles = session.arrays.add_all(arrays, request.result_array_handle)
    for output, handle in zip(outputs, handles, strict=False):
        output.array_handle = handle
    response = wire.LoadedExecutableExecuteResponse(outputs=outputs)
    # jaxlib's client ends its process if it finds the handle of a status that it did not ask for.
    if status is not None:
        response.status_handle = session.futures.add(status, request.result_status_handle)
    return response


def _output(spec: ArraySpec) -> Any:
    """Return the facts about a result that the client keeps for its arrays of later executions."""
    return wire.LoadedExecutableExecuteResponse_Output(
        dtype=element_type_proto(spec.element_type),
        shape=shape_proto(spec.shape),
        sharding=sharding_proto(spec.sharding),
    )


@handles("loaded_executable_fetch_execute_result", inputs=("result_status_handle",))
def fetch_execute_result(session: Session, request: Any) -> Any:
    """Return the response when an execution has ended; it can be asked for once."""
    status = session.futures.pop(request.result_status_handle)
    return status.then(lambda _: wire.LoadedExecutableFetchExecuteResultResponse())

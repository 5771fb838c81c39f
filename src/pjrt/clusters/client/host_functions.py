"""Functions on the hosts of a cluster: each runs in the worker of a host, near the devices and the host's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_all, unexpected
from pjrt.api.client import LocalHandler
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec, expect_spec
from pjrt.clusters.client.buffer import ClusterBuffer
from pjrt.clusters.client.device import ClusterDevice
from pjrt.clusters.client.member import Member, check_all, combined
from pjrt.clusters.host_calls import Function, result_of, written

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient


def call_on_hosts(client: ClusterClient, function: Function, arguments: Sequence[Any]) -> list[Any]:
    """Call a function on all hosts; see ``ClusterClient.call_on_hosts``."""
    workers = [worker for member in client.members for worker in member.workers]
    check_all(workers)
    with client.order:
        answers = [(worker, _send(worker, function, (tuple(arguments), None), ())[0]) for worker in workers]
    failures = [(worker, error) for worker, answer in answers if (error := answer.exception()) is not None]
    if failures:
        raise combined(failures, f"call {function!r}")
    return [result_of(answer.result()) for _, answer in answers]


def call_at(device: ClusterDevice, function: str) -> Any:
    """Return the result of a function with the id of a device, called on the host of the device.

    Raises:
        UnimplementedError: the member is no worker.
    """
    with device.client.order:
        answer, _ = _send(device.worker, function, ((device.id,), None), ())
    try:
        return result_of(answer.result())
    except PjrtError as error:
        device.fail(error)


def register_ffi_handler(client: ClusterClient, name: str, handler: Callable[..., Any] | int, traits: int) -> None:
    """Register an FFI handler on all hosts; see ``ClusterClient.register_ffi_handler``."""
    expect(name, str, "the name of a custom call as a string")
    if isinstance(handler, int) and not isinstance(handler, bool):
        raise UnimplementedError(
            f"the handler of {name!r} is code at an address of this process, which the hosts of a cluster do not have; "
            "load the library on each host with call_on_hosts(), and register it with pjrt.clusters.host_client()"
        )
    if not callable(handler):
        raise unexpected(handler, "a Python function as an FFI handler")
    register = "pjrt.clusters.workers.host_client:register_ffi_handler"
    if isinstance(handler, LocalHandler):
        if client.functions is None:
            raise UnimplementedError(f"the members of {client!r} call no functions of this process")
        register = "pjrt.clusters.workers.host_client:register_controller_handler"
        handler = client.functions.number_of(handler)
    call_on_hosts(client, register, (name, handler, traits))


def can_call(client: ClusterClient) -> bool:
    """Whether all members call functions, as workers do."""
    return all(hasattr(member.client, "call_function") for member in client.members)


def buffers_from_hosts(
    client: ClusterClient,
    function: Function,
    spec: ShapeSpec,
    arguments: Sequence[Sequence[Any]],
    devices: Sequence[ClusterDevice],
) -> list[Buffer]:
    """Return buffers whose values a function on their hosts makes; see ``ClusterClient.buffers_from_hosts``."""
    expect_spec(spec)
    for device in expect_all(devices, ClusterDevice, "a device of this client"):
        if device.client is not client:
            raise InvalidArgumentError(f"{device} belongs to another client; use one of client.devices")
    if len(arguments) != len(devices):
        raise InvalidArgumentError(f"expected arguments for each of {len(devices)} devices, found {len(arguments)}")
    places: dict[Member, list[int]] = {}
    for number, device in enumerate(devices):
        places.setdefault(device.worker, []).append(number)
    check_all(places)
    results: list[Any] = [None] * len(devices)
    with client.order:
        for worker, numbers in places.items():
            # Devices with the same arguments, as one object, share a call.
            calls = {id(arguments[number]): tuple(arguments[number]) for number in numbers}
            order = list(calls)
            calls_of_devices = [order.index(id(arguments[number])) for number in numbers]
            types = [(spec, devices[number].inner) for number in numbers]
            _, buffers = _send(worker, function, (list(calls.values()), calls_of_devices), types)
            for number, buffer in zip(numbers, buffers, strict=True):
                results[number] = ClusterBuffer(buffer, devices[number])
    return results


def pass_on_call(
    client: ClusterClient,
    process_index: int,
    call: bytes,
    arguments: Sequence[Buffer],
    results: Sequence[tuple[ShapeSpec, Device]],
) -> tuple[Future[bytes], Sequence[Buffer]]:
    """Pass on a call that the controller has written; see ``ClusterClient.pass_on_call``."""
    worker = next((w for member in client.members for w in member.workers if w.process_index == process_index), None)
    if worker is None:
        raise InvalidArgumentError(f"expected the process index of a worker below this one, found {process_index}")
    worker.check()
    values = [argument.inner for argument in arguments if isinstance(argument, ClusterBuffer)]
    devices = [device for _, device in results if isinstance(device, ClusterDevice)]
    types = [(spec, device.inner) for (spec, _), device in zip(results, devices, strict=True)]
    with client.order:
        answer, buffers = _call(worker, call, values, types)
    promise: Promise[bytes] = Promise()

    def settle(future: Future[bytes]) -> None:
        error = future.exception()
        if error is None:
            promise.set_result(future.result())
        else:  # without the host's name, which the controller adds
            promise.set_error(worker.copy_of_loss() if worker.is_loss(error) else error)

    answer.add_done_callback(settle)
    return promise.future, [ClusterBuffer(buffer, device) for buffer, device in zip(buffers, devices, strict=True)]


def _send(
    worker: Member, function: Function, arguments: Any, results: Sequence[tuple[ShapeSpec, Any]]
) -> tuple[Future[bytes], Sequence[Buffer]]:
    values: list[Buffer] = []

    def number_of(buffer: Buffer) -> int | None:
        if not isinstance(buffer, ClusterBuffer):
            raise InvalidArgumentError(f"expected buffers of this client among the arguments, found {buffer!r}")
        if buffer.device.worker is not worker:
            return None
        values.append(buffer.inner)
        return len(values) - 1

    return _call(worker, written(function, arguments, number_of), values, results)


def _call(
    worker: Member, call: bytes, values: Sequence[Buffer], results: Sequence[tuple[ShapeSpec, Any]]
) -> tuple[Future[bytes], Sequence[Buffer]]:
    send: Callable[..., tuple[Future[bytes], Sequence[Buffer]]] | None = getattr(worker.client, "call_function", None)
    if send is None:
        raise UnimplementedError(f"expected a worker that calls functions, found {worker.client!r} [{worker}]")
    try:
        return send(call, values, results, worker.process_index)
    except PjrtError as error:
        worker.fail(error)

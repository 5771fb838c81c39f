"""Devices of a cluster: their descriptions, their memory spaces, and the functions that run on their hosts.

Each is a device of one member. Functions run in the worker of a host, near its devices and its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_all, unexpected
from pjrt.api.client import LocalHandler
from pjrt.api.device import (
    AllocatorStats,
    DescribedDevice,
    Device,
    DeviceDescription,
    DeviceFacts,
    MemorySpace,
    MemorySpaceDescription,
    MemorySpaceFacts,
)
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec, expect_spec
from pjrt.clusters.calls import Function, result_of, written
from pjrt.clusters.client.buffer import ClusterBuffer
from pjrt.clusters.client.member import Member, check_all, combined

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient


class ClusterMemorySpace(MemorySpaceFacts):
    """A memory space of one member.

    Args:
        client: the client of the cluster.
        member: the member.
        inner: the memory space of the member's client.
        number: the id among the memory spaces of the cluster: several members may use the same numbers.
        kind_id: the number of its kind in the cluster.

    Attributes:
        member: the member.
        inner: the memory space of the member's client.
    """

    __slots__ = ("inner", "member")

    client: ClusterClient
    devices: Sequence[ClusterDevice]

    def __init__(self, client: ClusterClient, member: Member, inner: MemorySpace, number: int, kind_id: int) -> None:
        text, debug_string = f"{inner} ({member})", f"{inner.debug_string} ({member})"
        super().__init__(client, number, inner.kind, kind_id, text=text, debug_string=debug_string)
        self.member = member
        self.inner = inner


T = TypeVar("T")


class ClusterDeviceDescription(DeviceFacts):
    """A device of a member, with its host and its process.

    Args:
        inner: the description of the member's client.
        member: the member.
        spaces: the memory spaces of the device, its default one first.
    """

    __slots__ = ("text", "worker")

    def __init__(self, inner: DeviceDescription, member: Member, spaces: Sequence[ClusterMemorySpace]) -> None:
        self.worker = worker = member.worker_of(inner)
        self.text = member.describe(inner)
        memories = [MemorySpaceDescription(space.kind, space.kind_id) for space in spaces]
        attributes = {**inner.attributes, "host": worker.host, "process": worker.process_index}
        # Of process 0: one process, the controller, addresses all of them.
        super().__init__(inner.id, 0, inner.kind, memories, attributes, text=self.text)

    def __str__(self) -> str:
        return self.text if self.worker.loss is None else f"{self.text[:-1]}, lost)"


class ClusterDevice(DescribedDevice[ClusterMemorySpace]):
    """A device of a cluster.

    Args:
        client: the client of the cluster.
        member: the member that has the device.
        inner: the device of the member's client.
        number: the number of the device among those of the cluster.
        spaces: the cluster's memory spaces by those of the member's client.

    Attributes:
        member: the member that has the device.
        worker: the member of the worker that has the device: the same one, or one of a branch.
        inner: the device of the member's client.
        spaces: the cluster's memory spaces by those of the member's client.
    """

    __slots__ = ("inner", "member", "spaces", "worker")

    client: ClusterClient
    description: ClusterDeviceDescription

    def __init__(
        self,
        client: ClusterClient,
        member: Member,
        inner: Device,
        number: int,
        spaces: Mapping[MemorySpace, ClusterMemorySpace],
    ) -> None:
        memory_spaces = tuple(spaces[space] for space in inner.memory_spaces)
        description = ClusterDeviceDescription(inner.description, member, memory_spaces)
        super().__init__(client, description, memory_spaces, number)
        self.member = member
        self.inner = inner
        self.spaces = spaces
        self.worker = description.worker

    @property
    def default_memory_space(self) -> ClusterMemorySpace:
        return self.spaces[self.inner.default_memory_space]

    def memory_stats(self) -> AllocatorStats:
        return self._ask(self.inner.memory_stats)

    def clear_memory_stats(self) -> None:
        self._ask(self.inner.clear_memory_stats)

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        self.worker.check()
        try:
            return self.inner.poison_execution(launch_id, error)
        except PjrtError as failure:
            self.fail(failure)

    def _ask(self, question: Callable[[], T]) -> T:
        """Return the answer of the member's client; that of its worker where the way to it has no such request."""

        self.worker.check()
        try:
            return question()
        except UnimplementedError as error:
            if not hasattr(self.member.client, "call_function"):
                self.fail(error)
        except PjrtError as error:
            self.fail(error)
        answer: T = call_at(self, f"pjrt.clusters.workers.worker:{question.__name__}")
        return answer

    def named(self, error: PjrtError) -> PjrtError:
        """Return an error of the member's client with the name of this device."""
        return self.worker.named(error, self.description.text)

    def fail(self, error: PjrtError) -> NoReturn:
        """Raise an error of the member's client with the name of this device."""
        raise self.named(error) from None


class OutsideDevice(DescribedDevice[ClusterMemorySpace]):
    """A device of the job that no member of the cluster has: programs may run on it, but not from here.

    An inner node of a tree of controllers has the devices of its own workers, and compiles programs for all.

    Args:
        client: the client of the cluster.
        inner: the device of a member's client.
    """

    __slots__ = ()

    def __init__(self, client: ClusterClient, inner: Device) -> None:
        super().__init__(client, inner.description, (), -1, is_addressable=False)


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
    register = "pjrt.clusters.workers.worker:register_ffi_handler"
    if isinstance(handler, LocalHandler):
        if client.functions is None:
            raise UnimplementedError(f"the members of {client!r} call no functions of this process")
        register = "pjrt.clusters.workers.worker:register_controller_handler"
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

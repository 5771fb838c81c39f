"""Resharding: an array in another sharding (``xla::ifrt::Client::ReshardArrays``).

There are four ways, and the first that can is taken: copies between devices, where every shard of the target is a
shard of the source; a program in which the devices exchange parts by collectives, where they have memory of their own;
the host, where each process of the target has all values; and sending the whole array to the processes that lack it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.shape_spec import ShapeSpec
from pjrt.ifrt.array import Array, ArraySpec, contents, padded, reduction_of
from pjrt.ifrt.hlo_sharding import HloSharding, Mesh
from pjrt.ifrt.sharding import Sharding
from pjrt.ifrt.transfers import ProcessTransfers, buffer_shapes, parts_of_whole
from pjrt.stablehlo.ir.sharding import Sharding as Tiling
from pjrt.stablehlo.ir.types import TensorType

if TYPE_CHECKING:
    from pjrt.ifrt.client import Client

_Key = tuple[tuple[int, ...], Any, tuple[int, ...], Tiling, Tiling]


_PROGRAMS_KEPT = 128
"""The number of programs that a client keeps; the one that was not used for the longest time goes first."""


class _Program:
    """A program that is compiled when it is first needed, by the thread that has the lock."""

    __slots__ = ("executable", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.executable: LoadedExecutable | None = None


class Resharder:
    """Reshards the arrays of a client, and keeps the programs that it compiles for that.

    Args:
        client: the client.
        transfers: the transfers to and from other processes.
    """

    __slots__ = ("_client", "_lock", "_programs", "_transfers")

    def __init__(self, client: Client, transfers: ProcessTransfers) -> None:
        self._client = client
        self._transfers = transfers
        self._lock = threading.Lock()
        self._programs: OrderedDict[_Key, _Program] = OrderedDict()

    def reshard(self, array: Array, target: Sharding) -> Array:
        """Return a copy of an array in another sharding.

        Raises:
            UnimplementedError: one of the shardings does not know the places of its shards, or a process would need
                values that only others have.
        """
        spec = ArraySpec(array.shape, array.element_type, target)
        buffers = _by_copies(array, spec)
        if buffers is None and not _is_on_host(array):
            buffers = self._by_program(array, spec)
        if buffers is None:
            lacking = _lacking_processes(array, spec)
            buffers = self._by_sending(array, spec) if lacking else self._from_host(array.to_host(), spec)
        return Array(self._client, spec, buffers)

    def _by_program(self, array: Array, spec: ArraySpec) -> list[Buffer] | None:
        """Return the target's shards from a program that returns its argument in the target's sharding."""
        source, target = array.sharding, spec.sharding
        if not isinstance(source, HloSharding) or not isinstance(target, HloSharding):
            return None
        devices = source.devices
        if set(devices) != set(target.devices) or not _is_default_memory(source) or not _is_default_memory(target):
            return None
        place = {device: number for number, device in enumerate(target.devices)}
        order = [place[device] for device in devices]
        rank = len(array.shape)
        cut = source.tiling_of_rank(rank)
        goal = target.tiling_of_rank(rank)
        if goal.places:
            goal = replace(goal, places=tuple(goal.places[number] for number in order))
        key = (array.shape, array.element_type, devices.ids, cut, goal)
        if cut.terms or goal.terms:  # a sum, which no program can take or return: the host does it
            return None
        outputs = self._program(key).execute([[buffer] for buffer in array.buffers])
        by_device = dict(zip(devices.addressable_devices, (row[0] for row in outputs), strict=True))
        return [by_device[device] for device in target.devices.addressable_devices]

    def _program(self, key: _Key) -> LoadedExecutable:
        """Return the program of a key. Threads that need one program at a time compile it once."""
        with self._lock:
            program = self._programs.setdefault(key, _Program())
            self._programs.move_to_end(key)
            if len(self._programs) > _PROGRAMS_KEPT:
                self._programs.popitem(last=False)
        with program.lock:
            if program.executable is None:
                shape, element_type, ids, cut, goal = key
                text = _identity(TensorType(shape, element_type), cut, goal)
                options = CompileOptions(num_partitions=len(ids), device_assignment=DeviceAssignment((ids,)))
                program.executable = self._client.pjrt_client.compile(text, options)
            return program.executable

    def _by_sending(self, array: Array, spec: ArraySpec) -> list[Buffer]:
        """Return the target's shards from the whole array, which the devices of the source first have all of them, and
        then one device of each further process.

        Raises:
            UnimplementedError: the devices have no collectives or no transfers between processes.
        """
        source, target = array.sharding, spec.sharding
        first, holders = source.devices[0], {device.process_index for device in source.devices}
        replicated = ArraySpec(
            array.shape, array.element_type, Mesh(source.devices, {"all": len(source.devices)}).sharding()
        )
        whole: Buffer | None = None
        try:
            if source.devices.addressable_devices:
                rows = array.buffers if source.is_fully_replicated else self._by_program(array, replicated)
                if rows is None:
                    raise UnimplementedError(f"no program collects the parts of {source!r}")
                whole = rows[0]
            for process in sorted({device.process_index for device in target.devices} - holders):
                receiver = next(device for device in target.devices if device.process_index == process)
                if first.is_addressable and whole is not None:
                    self._transfers.send(whole, receiver)
                elif receiver.is_addressable:
                    space = receiver.default_memory_space
                    whole = self._transfers.receive(first, space, array.shape, array.element_type)
        except UnimplementedError as error:
            if target.devices.is_fully_addressable:
                array.to_host()  # raises the error about the parts that are missing here
            raise UnimplementedError(
                f"expected the whole array {array.spec} in process {min(_lacking_processes(array, spec))}, which has "
                f"devices of {target!r}; its values cannot be sent to another process, because {error.message}"
            ) from error
        if whole is None or not target.devices.addressable_devices:
            return []
        return self._from_host(whole.to_host(), spec)

    def _from_host(self, whole: Future[np.ndarray[Any, Any]], spec: ArraySpec) -> list[Buffer]:
        """Return the target's shards, which get their values when the host has the whole array."""
        client = self._client.pjrt_client
        spaces, shapes = spec.sharding.memory_spaces, buffer_shapes(spec)
        try:
            managers = [
                client.create_buffers_for_async_host_to_device(
                    [ShapeSpec(shape, spec.element_type)], memory_space=space
                )
                for shape, space in zip(shapes, spaces, strict=True)
            ]
        except UnimplementedError:  # a device that takes arrays only when they are there
            return list(self._client.make_array(whole.result(), spec.sharding).buffers)
        buffers = [manager.retrieve_buffer(0) for manager in managers]

        def fill(done: Future[Any]) -> None:
            for number, (manager, shape) in enumerate(zip(managers, shapes, strict=True)):
                with manager:
                    try:
                        manager.transfer_literal(0, padded(parts_of_whole(spec, done.result())[number], shape))
                    except PjrtError as error:
                        manager.set_buffer_error(0, error)

        whole.add_done_callback(fill)
        return buffers


def _by_copies(array: Array, spec: ArraySpec) -> list[Buffer] | None:
    """Return copies of shards where every shard of the target is a shard of the source; ``None`` otherwise."""
    source, target = array.sharding, spec.sharding
    if reduction_of(source) or reduction_of(target):
        return None
    if not source.devices.is_fully_addressable or not target.devices.is_fully_addressable:
        return None
    shards = {shard.domain: shard.buffer for shard in array.shards}
    domains = target.index_domains(spec.shape)
    if any(domain not in shards or shards[domain].shape != domain.shape for domain in domains):
        return None
    here = {(shard.domain, shard.buffer.memory_space): shard.buffer for shard in array.shards}
    return [
        here.get((domain, space), shards[domain]).copy_to(space)
        for domain, space in zip(domains, target.memory_spaces, strict=True)
    ]


def _lacking_processes(array: Array, spec: ArraySpec) -> list[int]:
    """Return the processes with devices of the target that lack a part of the array.

    The answer is the same in all processes.
    """
    parts = {part for part in contents(array.spec) if part.domain.size}
    lacking = []
    for process in sorted({device.process_index for device in spec.sharding.devices}):
        pairs = zip(contents(array.spec), array.sharding.devices, strict=True)
        if parts - {part for part, device in pairs if device.process_index == process}:
            lacking.append(process)
    return lacking


def _is_on_host(array: Array) -> bool:
    """Whether the host can read all of an array in place.

    It then cuts the parts anew faster than devices in its memory exchange them: for 64 MiB over eight devices a program
    takes up to six times as long, and has to be compiled first.
    """
    return array.sharding.devices.is_fully_addressable and all(buffer.is_on_cpu for buffer in array.buffers)


def _is_default_memory(sharding: Sharding) -> bool:
    return all(
        space is device.default_memory_space
        for space, device in zip(sharding.memory_spaces, sharding.devices.addressable_devices, strict=True)
    )


def _identity(type_: TensorType, source: Tiling, target: Tiling) -> str:
    """Return the program that takes an array in one sharding and returns it in another."""
    return f"""
func.func @main(%x: {type_} {{mhlo.sharding = "{source.to_text()}"}})
    -> ({type_} {{mhlo.sharding = "{target.to_text()}"}}) {{
  return %x : {type_}
}}"""

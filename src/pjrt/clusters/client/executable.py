"""Executables of a cluster: compiled by its members at the same time, saved, loaded and run.

The facts are those of one member, because all compile the same program. An execution is one call of each member that
takes part.
"""

from __future__ import annotations

import functools
import json
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt import stablehlo
from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.launch import CheckedExecutable, Parameters
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes, ShapeSpec
from pjrt.clusters.client.buffer import ClusterBuffer, MemberFuture
from pjrt.clusters.client.device import ClusterDevice
from pjrt.clusters.client.member import Member, check_all, combined
from pjrt.remote.protocol.programs import portable
from pjrt.stablehlo.encodings.format import Version
from pjrt.stablehlo.reading.conversion import with_partitioning

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient


_MAGIC = b"pjrt cluster executable 2\n"


def packed(executables: Mapping[int, bytes]) -> bytes:
    """Return the saved executables of members, by the numbers of their processes, as one value.

    Hosts of one kind that have compiled the same programs make equal executables: the value need not grow with them.
    """
    processes: dict[bytes, list[int]] = {}
    for index, blob in executables.items():
        processes.setdefault(blob, []).append(index)
    sizes = [[indices, len(blob)] for blob, indices in processes.items()]
    return b"".join((_MAGIC, json.dumps(sizes).encode(), b"\n", *processes))


def unpacked(serialized: bytes) -> dict[int, bytes]:
    """Return the saved executables that ``packed`` has put into one value.

    Raises:
        InvalidArgumentError: the bytes are something else, or are cut short.
    """
    if not isinstance(serialized, bytes) or not serialized.startswith(_MAGIC):
        raise InvalidArgumentError("expected a saved executable of a cluster, found other bytes")
    header, separator, rest = serialized[len(_MAGIC) :].partition(b"\n")
    try:
        sizes = [([int(i) for i in indices], int(size)) for indices, size in json.loads(header)] if separator else []
    except (ValueError, TypeError):
        sizes = []
    whole = sum(size for _, size in sizes) == len(rest)
    if not sizes or not whole or not all(indices and size >= 0 for indices, size in sizes):
        raise InvalidArgumentError("expected a saved executable of a cluster, found a part of one")
    executables, position = {}, 0
    for indices, size in sizes:
        executables.update(dict.fromkeys(indices, rest[position : position + size]))
        position += size
    return executables


T = TypeVar("T")

_MOST_THREADS = 64


def _fact(name: str) -> Any:
    """Return the property, or the method without arguments, of a cluster's executable that asks the first member's."""
    ask = operator.attrgetter(name) if isinstance(getattr(Executable, name), property) else operator.methodcaller(name)

    def fact(self: ClusterExecutable) -> Any:
        try:
            return ask(self.inner)
        except PjrtError as error:
            self.executables[0][0].fail(error)

    fact.__doc__ = getattr(Executable, name).__doc__
    return property(fact) if isinstance(ask, operator.attrgetter) else fact


class ClusterExecutable(Executable):
    """A program that members of a cluster have compiled.

    Args:
        executables: the executable of each member that takes part; the first one answers for all.
        program: the program; ``None`` for a saved executable.

    Attributes:
        executables: the executable of each member that takes part.
        program: the program; ``None`` for a saved executable.
    """

    __slots__ = ("executables", "program")

    def __init__(self, executables: Sequence[tuple[Member, Executable]], program: Program | None) -> None:
        self.executables = executables
        self.program = program

    @property
    def inner(self) -> Executable:
        """The executable that answers for all."""
        return self.executables[0][1]

    platform_name = _fact("platform_name")
    name = _fact("name")
    num_replicas = _fact("num_replicas")
    num_partitions = _fact("num_partitions")
    num_outputs = _fact("num_outputs")
    size_of_generated_code = _fact("size_of_generated_code")
    output_specs = _fact("output_specs")
    output_memory_kinds = _fact("output_memory_kinds")
    parameter_memory_kinds = _fact("parameter_memory_kinds")
    parameter_specs = _fact("parameter_specs")
    parameter_names = _fact("parameter_names")
    output_layouts = _fact("output_layouts")
    parameter_layouts = _fact("parameter_layouts")
    output_shardings = _fact("output_shardings")
    parameter_shardings = _fact("parameter_shardings")
    cost_analysis = _fact("cost_analysis")
    memory_stats = _fact("memory_stats")
    optimized_program = _fact("optimized_program")
    fingerprint = _fact("fingerprint")
    compile_options = _fact("compile_options")
    abi_version = _fact("abi_version")
    metadata = _fact("metadata")

    def serialize(self) -> bytes:
        with ThreadPoolExecutor(min(len(self.executables), _MOST_THREADS)) as threads:  # each waits for its member
            return packed(dict(threads.map(_serialized, self.executables)))


def _serialized(place: tuple[Member, Executable]) -> tuple[int, bytes]:
    member, executable = place
    try:
        return member.process_index, executable.serialize()
    except PjrtError as error:
        member.fail(error)


@dataclass(slots=True)
class Part:
    """The part of an executable on the devices of one member.

    Attributes:
        member: the member.
        executable: the executable of the member's client.
        places: for each of the member's devices the number of its row of arguments.
        devices: the member's devices, in the order of its executable.
    """

    member: Member
    executable: LoadedExecutable
    places: list[int]
    devices: list[ClusterDevice]


class ClusterLoadedExecutable(ClusterExecutable, CheckedExecutable):
    """A program on devices of a cluster.

    Args:
        client: the client of the cluster.
        executables: the executable of each member that takes part.
        program: the program; ``None`` for a saved executable.
    """

    __slots__ = (
        "__dict__", "_parameters", "_parts", "_workers", "addressable_devices", "client", "device_assignment",
        "executable", "is_deleted",
    )  # fmt: skip

    addressable_devices: Sequence[ClusterDevice]
    client: ClusterClient
    device_assignment: DeviceAssignment
    executable: ClusterExecutable
    is_deleted: bool

    def __init__(
        self, client: ClusterClient, executables: Sequence[tuple[Member, LoadedExecutable]], program: Program | None
    ) -> None:
        self.is_deleted = False
        first = executables[0][1]
        super().__init__(executables, program)
        self.executable = ClusterExecutable([(member, loaded.executable) for member, loaded in executables], program)
        self.client = client
        self.device_assignment = first.device_assignment
        self.addressable_devices = tuple(client.addressable(self.device_assignment))
        places = {device.id: place for place, device in enumerate(self.addressable_devices)}
        self._parts = []
        for member, executable in executables:
            numbers = [places[device.id] for device in executable.addressable_devices]
            devices = [self.addressable_devices[place] for place in numbers]
            self._parts.append(Part(member, executable, numbers, devices))
        self._workers = tuple(dict.fromkeys(device.worker for device in self.addressable_devices))
        self._parameters = Parameters(first.name, client, ClusterBuffer, _specs(first), frozenset())

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    # The start of an execution.

    def _check_usable(self) -> None:
        self.client.check()

    def _start(
        self, rows: Sequence[Sequence[Buffer]], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[list[Buffer]]:
        devices = self.addressable_devices
        checked = [self._checked(row, device, options) for row, device in zip(rows, devices, strict=True)]
        results: list[Any] = [None] * len(devices)
        ends: list[Any] | None = None if futures is None else [None] * len(devices)
        # All hosts get the programs in one order. What could fail was checked: a host must not wait for another one
        # that never got the program.
        with self.client.order:
            check_all(self._workers)
            for part in self._parts:
                self._run(part, checked, options, results, ends)
        if futures is not None:
            futures += ends or ()
        return results

    def _start_at(
        self, place: int, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        device = self.addressable_devices[place]
        part = next(part for part in self._parts if place in part.places)
        row = self._checked(arguments, device, options)
        with self.client.order:
            device.worker.check()
            return _run_at(part.executable.execute_sharded, row, device, options, futures)

    def _run(
        self,
        part: Part,
        rows: Sequence[Sequence[ClusterBuffer]],
        options: ExecuteOptions,
        results: list[Any],
        futures: list[Any] | None,
    ) -> None:
        """Run the program on the devices of a member, and put its results where those of its devices belong."""
        if options.send_callbacks or options.recv_callbacks or options.hlo_output_callbacks:
            options = _options_of(part, options)
        ends: list[Future[None]] | None = None if futures is None else []
        try:
            outputs = part.executable.execute(
                [[buffer.inner for buffer in rows[place]] for place in part.places], options, returned_futures=ends
            )
        except PjrtError as error:
            part.member.fail(error)
        for place, device, row in zip(part.places, part.devices, outputs, strict=True):
            results[place] = [ClusterBuffer(buffer, device) for buffer in row]
        if futures is not None and ends is not None:
            for place, device, end in zip(part.places, part.devices, ends, strict=True):
                futures[place] = MemberFuture(end, device)

    def _checked(
        self, row: Sequence[Buffer], device: ClusterDevice, options: ExecuteOptions
    ) -> Sequence[ClusterBuffer]:
        """Return the arguments on a device, which have their values or will get them."""
        buffers = _with_values(self._parameters.checked(row, device))
        if len(set(map(id, buffers))) < len(buffers):
            self._parameters.check_donated_once(buffers, self._donated - options.non_donatable_input_indices)
        return buffers

    @functools.cached_property
    def _donated(self) -> frozenset[int]:
        """The numbers of the parameters that the program donates; none for a saved executable, which has no program."""
        if self.program is None:
            return frozenset()
        arguments = stablehlo.signature(self.program, trusted=True).arguments
        return frozenset(n for n, each in enumerate(arguments) if each.aliases_output is not None or each.is_donor)

    # Its end.

    def delete(self) -> None:
        self.is_deleted = True
        for part in self._parts:
            part.executable.delete()


def _with_values(row: Sequence[ClusterBuffer]) -> Sequence[ClusterBuffer]:
    """Return buffers, none of which was deleted.

    Raises:
        FailedPreconditionError: one was.
    """
    for buffer in row:
        if buffer.inner.is_deleted:
            raise FailedPreconditionError(f"{buffer!r} was deleted or donated; its value is gone")
    return row


def _run_at(
    execute: Callable[..., list[Buffer]],
    row: Sequence[ClusterBuffer],
    device: ClusterDevice,
    options: ExecuteOptions,
    futures: list[Future[None]] | None,
) -> list[Buffer]:
    """Run a program on one device of a member, by ``execute_sharded`` or ``execute_portable`` of its executable."""
    ends: list[Future[None]] | None = None if futures is None else []
    try:
        results = execute([buffer.inner for buffer in row], device.inner, options, returned_futures=ends)
    except PjrtError as error:
        device.fail(error)
    if futures is not None and ends is not None:
        futures += [MemberFuture(end, device) for end in ends]
    return [ClusterBuffer(buffer, device) for buffer in results]


def _options_of(part: Part, options: ExecuteOptions) -> ExecuteOptions:
    """Return the options for the devices of one member: callbacks are listed by device."""
    rows: dict[str, Any] = {
        name: [getattr(options, name)[place] for place in part.places]
        for name in ("send_callbacks", "recv_callbacks", "hlo_output_callbacks")
        if getattr(options, name)
    }
    return replace(options, **rows)


def _specs(executable: LoadedExecutable) -> Sequence[ShapeSpec] | None:
    """Return the types of the parameters on one device; ``None`` if the member's client does not report them."""
    try:
        return executable.parameter_specs
    except UnimplementedError:
        return None


class ClusterPortableExecutable(ClusterExecutable, CheckedExecutable):
    """A program for any one device; a member compiles it when one of its devices is first used.

    Args:
        client: the client of the cluster.
        member: the member that has compiled it.
        executable: the executable of that member's client.
        program: the program.
        compile_at: compiles it at another member.
    """

    __slots__ = ("_compile_at", "_compiled", "_lock", "_parameters", "client", "executable", "is_deleted")

    client: ClusterClient
    executable: ClusterExecutable
    is_deleted: bool

    def __init__(
        self,
        client: ClusterClient,
        member: Member,
        executable: LoadedExecutable,
        program: Program,
        compile_at: Callable[[Member], LoadedExecutable],
    ) -> None:
        super().__init__([(member, executable)], program)
        self.executable = ClusterExecutable([(member, executable.executable)], program)
        self.client = client
        self._compiled = {member: executable}
        self._compile_at = compile_at
        self._lock = threading.Lock()
        self._parameters = Parameters(executable.name, client, ClusterBuffer, _specs(executable), frozenset())
        self.is_deleted = False

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    @property
    def addressable_devices(self) -> Sequence[Device]:
        return ()

    @property
    def device_assignment(self) -> DeviceAssignment:
        raise self._for_any_device()

    def _check_usable(self) -> None:
        self.client.check()

    def _start_on(
        self, device: Any, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        row = _with_values(self._parameters.checked(arguments, device))
        member = device.member
        with self._lock:
            executable = self._compiled.get(member)
            if executable is None:
                executable = self._compiled[member] = self._compile_at(member)
        with self.client.order:
            member.check()
            return _run_at(executable.execute_portable, row, device, options, futures)

    def delete(self) -> None:
        self.is_deleted = True
        with self._lock:
            for executable in self._compiled.values():
                executable.delete()


class Compiler:
    """Compiles programs on the members of a cluster.

    Args:
        client: the client of the cluster.
        num_members: the number of its members.
    """

    def __init__(self, client: ClusterClient, num_members: int) -> None:
        self._client = client
        # Each waits for a member, so it has a thread while that compiles.
        self._threads = ThreadPoolExecutor(min(num_members, _MOST_THREADS), "pjrt-cluster-compile")

    def compile(
        self, program: AnyProgram, options: CompileOptions | None, shapes: Shapes | None
    ) -> ClusterLoadedExecutable | ClusterPortableExecutable:
        """Return a program that is compiled at each member that takes part; wait for all of them.

        Raises:
            PjrtError: the program cannot be read, or the compiler of a member refuses it.
        """
        client = self._client
        source = Program.of(program) if shapes is None else stablehlo.refine(program, shapes)
        stated = with_partitioning(source, options)
        if stated.compile_portable_executable:
            return self._compile_portable(source, stated)
        if stated.device_assignment is None:
            stated = replace(stated, device_assignment=self._default_assignment(stated), device_ordinal=-1)
        assignment = stated.device_assignment
        assert assignment is not None
        members = self._members(assignment)
        portable = _portable(source, members)
        executables = self.at_all(
            members, lambda member: member.client.compile(portable, stated), "compile the program"
        )
        return ClusterLoadedExecutable(client, list(zip(members, executables, strict=True)), source)

    def load(self, executable: ClusterExecutable) -> ClusterLoadedExecutable:
        """Return an executable that members have compiled, loaded on their devices."""
        inner = dict(executable.executables)
        loaded = self.at_all(list(inner), lambda member: member.client.load(inner[member]), "load the program")
        return ClusterLoadedExecutable(self._client, list(zip(inner, loaded, strict=True)), executable.program)

    def deserialize(self, serialized: bytes, options: CompileOptions | None) -> ClusterLoadedExecutable:
        """Return a saved executable, loaded on the devices for which it was compiled, or on those of the options.

        Raises:
            InvalidArgumentError: the bytes are not a saved executable of a cluster, or one of another cluster.
            UnimplementedError: the clients of the members save none.
        """
        blobs = unpacked(serialized)
        settings = CompileOptions.of(options)
        if settings.device_assignment is not None:
            members = self._members(settings.device_assignment)
        else:
            members = [member for member in self._client.members if member.process_index in blobs]
            if len(members) < len(blobs):
                raise InvalidArgumentError(
                    f"expected an executable of some of the {len(self._client.members)} processes of this cluster, "
                    f"found one of the processes {sorted(blobs)}"
                )
        anything = next(iter(blobs.values()))
        loaded = self.at_all(
            members,
            lambda member: member.client.deserialize(blobs.get(member.process_index, anything), options),
            "load the program",
        )
        return ClusterLoadedExecutable(self._client, list(zip(members, loaded, strict=True)), None)

    def _members(self, assignment: DeviceAssignment) -> list[Member]:
        """Return the members that have some of the devices."""
        members = list(dict.fromkeys(device.member for device in self._client.addressable(assignment)))
        if not members:
            raise InvalidArgumentError(
                f"expected some of the devices of this client, found {assignment.device_ids}; use those of "
                "client.addressable_devices"
            )
        return members

    def at_all(self, members: Sequence[Member], function: Callable[[Member], T], action: str) -> list[T]:
        """Return the results of a function for each of several members, which is called in several threads.

        Args:
            members: the members.
            function: the function.
            action: a phrase for what it does, for errors.

        Raises:
            PjrtError: the function failed for a member; the error names the members.
        """
        check_all(members)
        if len(members) == 1:
            try:
                return [function(members[0])]
            except PjrtError as error:
                members[0].fail(error)
        futures = [self._threads.submit(function, member) for member in members]
        failures = []
        for member, future in zip(members, futures, strict=True):
            failure = future.exception()
            if failure is not None:
                failures.append((member, PjrtError.wrap(failure)))
        if failures:
            raise combined(failures, action)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _default_assignment(self, options: CompileOptions) -> DeviceAssignment:
        shape = options.partitioning
        if options.device_ordinal > 0 and shape.num_devices == 1:
            device = self._client.lookup_addressable_device(options.device_ordinal)
            return DeviceAssignment(((device.id,),))
        return self._client.default_device_assignment(shape.num_replicas, shape.num_partitions)

    def _compile_portable(self, program: Program, options: CompileOptions) -> ClusterPortableExecutable:
        def compile_at(member: Member) -> LoadedExecutable:
            member.check()
            here = member.client.addressable_devices[0]
            own = replace(options, device_assignment=None, device_ordinal=here.local_hardware_id)
            try:
                return member.client.compile(program, own)
            except PjrtError as error:
                member.fail(error)

        member = self._client.addressable_devices[0].member
        return ClusterPortableExecutable(self._client, member, compile_at(member), program, compile_at)


def _portable(program: Program, members: Sequence[Member]) -> Program:
    """Return the program as a portable artifact, so that it is converted once, and not for each of many members."""
    newest = members[0].client.attributes.get("stablehlo_current_version")
    if len(members) == 1 or not isinstance(newest, tuple):
        return program
    return portable(program, Version.of(newest))

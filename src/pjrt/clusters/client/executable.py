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
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pjrt import stablehlo
from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence, wrong_number_of_rows
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes, stands_for_token
from pjrt.clusters.client.buffer import ClusterBuffer, MemberFuture
from pjrt.clusters.client.device import ClusterDevice
from pjrt.clusters.client.member import Member, check_all, combined
from pjrt.remote.protocol.programs import portable
from pjrt.stablehlo.conversion import with_partitioning
from pjrt.stablehlo.format import Version

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
    output_element_types = _fact("output_element_types")
    output_shapes = _fact("output_shapes")
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


class ClusterLoadedExecutable(ClusterExecutable, LoadedExecutable):
    """A program on devices of a cluster.

    Args:
        client: the client of the cluster.
        executables: the executable of each member that takes part.
        program: the program; ``None`` for a saved executable.
    """

    __slots__ = (
        "__dict__", "_is_deleted", "_parts", "_types", "_workers", "addressable_devices", "client",
        "device_assignment", "executable",
    )  # fmt: skip

    addressable_devices: Sequence[ClusterDevice]
    client: ClusterClient
    device_assignment: DeviceAssignment
    executable: ClusterExecutable

    def __init__(
        self, client: ClusterClient, executables: Sequence[tuple[Member, LoadedExecutable]], program: Program | None
    ) -> None:
        self._is_deleted = False
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
        self._types = _types(first)

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    # Running it.

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        options = self._begin(options, returned_futures)
        rows: Any = expect_sequence(arguments, "one list of arguments a device")
        devices = self.addressable_devices
        if len(rows) != len(devices):
            raise wrong_number_of_rows(self.name, len(devices), len(rows))
        for row, device in zip(rows, devices, strict=True):
            self._check(row, device, options.non_donatable_input_indices)
        results: list[Any] = [None] * len(devices)
        futures: list[Any] | None = None if returned_futures is None else [None] * len(devices)
        # All hosts get the programs in one order. What could fail was checked: a host must not wait for another one
        # that never got the program.
        with self.client.order:
            check_all(self._workers)
            for part in self._parts:
                self._run(part, rows, options, results, futures)
        if returned_futures is not None:
            returned_futures += futures or ()
        return results

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        options = self._begin(options, returned_futures)
        part = next((part for part in self._parts if device in part.devices), None)
        if part is None or not isinstance(device, ClusterDevice):
            raise InvalidArgumentError(
                f"{self.name!r} does not run on {device}; it runs on {', '.join(map(str, self.addressable_devices))}"
            )
        row: Any = arguments
        self._check(row, device, options.non_donatable_input_indices)
        futures: list[Future[None]] | None = None if returned_futures is None else []
        with self.client.order:
            device.worker.check()
            try:
                results = part.executable.execute_sharded(
                    [buffer.inner for buffer in row], device.inner, options, returned_futures=futures
                )
            except PjrtError as error:
                device.fail(error)
        if returned_futures is not None and futures is not None:
            returned_futures += [MemberFuture(future, device) for future in futures]
        return [ClusterBuffer(buffer, device) for buffer in results]

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        raise InvalidArgumentError(
            f"{self.name!r} was compiled for its own devices; compile it with compile_portable_executable, or use "
            "execute_sharded"
        )

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

    def _begin(self, options: ExecuteOptions | None, returned_futures: list[Future[None]] | None) -> ExecuteOptions:
        if self._is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        self.client.check()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        return _DEFAULT if options is None else ExecuteOptions.of(options)

    def _check(self, row: Any, device: ClusterDevice, kept: frozenset[int]) -> None:
        """Raise an error unless buffers can be the arguments on a device; the ``kept`` ones are not donated."""
        expect_sequence(row, "the arguments as a list of buffers")
        types = self._types
        if types is not None and len(row) != len(types):
            raise InvalidArgumentError(f"{self.name!r} takes {len(types)} arguments, found {len(row)}")
        for number, buffer in enumerate(row):
            if type(buffer) is not ClusterBuffer:
                raise InvalidArgumentError(
                    f"argument {number} of {self.name!r} must be a buffer of this client, found "
                    f"{type(buffer).__name__}; make one with client.buffer_from_host"
                )
            if buffer.device is not device:
                raise self._misplaced(number, buffer, device)
            inner = buffer.inner
            if inner.is_deleted:
                raise FailedPreconditionError(f"{buffer!r} was deleted or donated; its value is gone")
            if types is not None:
                shape, element_type = types[number]
                if element_type is ElementType.TOKEN and stands_for_token(inner.element_type, inner.shape):
                    continue
                if inner.shape != shape or inner.element_type is not element_type:
                    raise InvalidArgumentError(
                        f"argument {number} of {self.name!r} must be {element_type.name.lower()}{list(shape)}, found "
                        f"{inner.element_type.name.lower()}{list(inner.shape)}"
                    )

        if len(set(map(id, row))) < len(row):
            self._check_donated_once(row, kept)

    def _check_donated_once(self, row: Sequence[ClusterBuffer], kept: frozenset[int]) -> None:
        for number in self._donated - kept:
            if sum(other is row[number] for other in row) > 1:
                raise InvalidArgumentError(
                    f"argument {number} of {self.name!r} is donated and must not be another argument as well; name it "
                    "in non_donatable_input_indices or pass a copy"
                )

    @functools.cached_property
    def _donated(self) -> frozenset[int]:
        """The numbers of the parameters that the program donates; none for a saved executable, which has no program."""
        if self.program is None:
            return frozenset()
        return frozenset(
            number
            for number, argument in enumerate(stablehlo.signature(self.program, trusted=True).arguments)
            if argument.aliases_output is not None or argument.is_donor
        )

    def _misplaced(self, number: int, buffer: ClusterBuffer, device: ClusterDevice) -> InvalidArgumentError:
        if buffer.client is not self.client:
            return InvalidArgumentError(
                f"argument {number} of {self.name!r} must be a buffer of this client, found one of another client"
            )
        return InvalidArgumentError(
            f"argument {number} of {self.name!r} is on {buffer.device}, the program runs on {device}; use "
            "buffer.copy_to(device)"
        )

    # Its end.

    @property
    def is_deleted(self) -> bool:
        return self._is_deleted

    def delete(self) -> None:
        self._is_deleted = True
        for part in self._parts:
            part.executable.delete()


def _options_of(part: Part, options: ExecuteOptions) -> ExecuteOptions:
    """Return the options for the devices of one member: callbacks are listed by device."""
    rows: dict[str, Any] = {
        name: [getattr(options, name)[place] for place in part.places]
        for name in ("send_callbacks", "recv_callbacks", "hlo_output_callbacks")
        if getattr(options, name)
    }
    return replace(options, **rows)


def _types(executable: LoadedExecutable) -> list[tuple[tuple[int, ...], ElementType]] | None:
    """Return the types of the parameters on one device; ``None`` if the member's client does not report them."""
    try:
        return [(spec.shape, spec.element_type) for spec in executable.parameter_specs]
    except UnimplementedError:
        return None


_DEFAULT = ExecuteOptions()


class ClusterPortableExecutable(ClusterExecutable, LoadedExecutable):
    """A program for any one device; a member compiles it when one of its devices is first used.

    Args:
        client: the client of the cluster.
        member: the member that has compiled it.
        executable: the executable of that member's client.
        program: the program.
        compile_at: compiles it at another member.
    """

    __slots__ = ("_compile_at", "_compiled", "_is_deleted", "_lock", "client", "executable")

    client: ClusterClient
    executable: ClusterExecutable

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
        self._is_deleted = False

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    @property
    def addressable_devices(self) -> Sequence[Device]:
        return ()

    @property
    def device_assignment(self) -> DeviceAssignment:
        self._refuse()

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        self._refuse()

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        self._refuse()

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        if self._is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        self.client.check()
        if not isinstance(device, ClusterDevice) or device.client is not self.client:
            raise InvalidArgumentError(f"{device} is no device of this client; use one of client.addressable_devices")
        row: Any = expect_sequence(arguments, "the arguments as a list of buffers")
        for number, buffer in enumerate(row):
            if type(buffer) is not ClusterBuffer or buffer.device is not device:
                place = buffer.device if isinstance(buffer, Buffer) else type(buffer).__name__
                raise InvalidArgumentError(
                    f"argument {number} of {self.name!r} must be a buffer on {device}, found {place}; use "
                    "buffer.copy_to(device)"
                )
        member = device.member
        with self._lock:
            executable = self._compiled.get(member)
            if executable is None:
                executable = self._compiled[member] = self._compile_at(member)
        futures: list[Future[None]] | None = None if returned_futures is None else []
        with self.client.order:
            member.check()
            try:
                results = executable.execute_portable(
                    [buffer.inner for buffer in row], device.inner, options, returned_futures=futures
                )
            except PjrtError as error:
                device.fail(error)
        if returned_futures is not None and futures is not None:
            returned_futures += [MemberFuture(future, device) for future in futures]
        return [ClusterBuffer(buffer, device) for buffer in results]

    def _refuse(self) -> NoReturn:
        raise FailedPreconditionError(
            f"{self.name!r} is a portable executable, which runs on a device of choice; use execute_portable"
        )

    @property
    def is_deleted(self) -> bool:
        return self._is_deleted

    def delete(self) -> None:
        self._is_deleted = True
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

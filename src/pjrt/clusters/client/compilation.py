"""Compilations for a cluster: the members that take part compile the same program at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pjrt import stablehlo
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes
from pjrt.clusters.client.executable import ClusterExecutable
from pjrt.clusters.client.loaded_executable import ClusterLoadedExecutable
from pjrt.clusters.client.member import Member, check_all, combined
from pjrt.clusters.client.portable_executable import ClusterPortableExecutable
from pjrt.clusters.client.serialization import unpacked
from pjrt.remote.protocol.programs import portable
from pjrt.stablehlo.conversion import with_partitioning
from pjrt.stablehlo.format import Version

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient

T = TypeVar("T")

_MOST_THREADS = 64


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

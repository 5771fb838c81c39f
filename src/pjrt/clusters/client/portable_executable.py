"""Portable executables of a cluster: they run on whichever device is named at an execution."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_sequence
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.clusters.client.buffer import ClusterBuffer
from pjrt.clusters.client.device import ClusterDevice
from pjrt.clusters.client.executable import ClusterExecutable
from pjrt.clusters.client.member import Member
from pjrt.clusters.client.member_future import MemberFuture

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient


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
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
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

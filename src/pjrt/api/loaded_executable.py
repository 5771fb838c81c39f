"""Loaded executables: compiled programs on their devices, ready to run (``PjRtLoadedExecutable``,
``PJRT_LoadedExecutable``).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.executable import Executable
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.placement import default_device

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device

Argument = Any
"""An argument of the short form ``executable(…)``: a ``Buffer``, or a numpy array or scalar that is put on the device
first.
"""


class LoadedExecutable(Executable):
    """A compiled program on its devices.

    Every way of running it returns at once with buffers that get their values later. If the execution fails, its error
    arrives at the outputs. Arguments that the program donates (by its aliasing, unless ``non_donatable_input_indices``
    says no) are used up by the call.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client whose devices it is loaded on."""

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    @property
    @abc.abstractmethod
    def executable(self) -> Executable:
        """What was compiled, without the devices (``PJRT_LoadedExecutable_GetExecutable``)."""

    @property
    @abc.abstractmethod
    def addressable_devices(self) -> Sequence[Device]:
        """The devices of this process that it runs on, in the order of arguments and results
        (``PJRT_LoadedExecutable_AddressableDevices``); empty for a portable executable."""

    @property
    @abc.abstractmethod
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        """The replica and partition of each addressable device
        (``PJRT_LoadedExecutable_AddressableDeviceLogicalIds``).
        """

    @property
    @abc.abstractmethod
    def device_assignment(self) -> DeviceAssignment:
        """All devices it runs on, in every process (``PJRT_LoadedExecutable_GetDeviceAssignment``)."""

    @abc.abstractmethod
    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        """Runs on all addressable devices (``PJRT_LoadedExecutable_Execute``).

        Args:
            arguments: one list of arguments a device, in the order of ``addressable_devices``; each argument is on that
                device.
            options: how to run it.
            returned_futures: if given, one future a device is appended: done when the execution is, failed if it
                failed.

        Returns:
            One list of results a device.
        """

    @abc.abstractmethod
    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        """Runs one device's share (``PjRtLoadedExecutable::ExecuteSharded``).

        The other devices' shares are run by further calls, from this thread or others; collectives wait for them.

        Args:
            arguments: the arguments, on that device.
            device: one of ``addressable_devices``.
            options: how to run it.
            returned_futures: if given, a future of the completion is appended.
        """

    @abc.abstractmethod
    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        """Runs a portable executable, one compiled with ``compile_portable_executable``, on a device of choice
        (``PjRtLoadedExecutable::ExecutePortable``). The arguments are as for ``execute_sharded``."""

    def __call__(self, *arguments: Argument) -> tuple[Buffer, ...]:
        """The short form for one device: takes numpy arrays as well as buffers, and returns a tuple of buffers.

        Raises:
            InvalidArgumentError: the program runs on more than one device; use ``execute``.
        """
        if self.is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        devices = self.addressable_devices
        if len(devices) > 1:
            raise InvalidArgumentError(
                f"executable(…) is for one device, this program runs on {len(devices)}; "
                "use execute with a list of arguments for each"
            )
        client = self.client
        if devices:
            run, device = self.execute_sharded, devices[0]
        else:
            run, device = self.execute_portable, default_device(client)
        buffers = [a if isinstance(a, Buffer) else client.buffer_from_host(a, device=device) for a in arguments]
        return tuple(run(buffers, device))

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether it was deleted (``PJRT_LoadedExecutable_IsDeleted``)."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Unloads it (``PJRT_LoadedExecutable_Delete``); executions under way finish first. May be called again."""

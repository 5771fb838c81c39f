"""Loaded executables: compiled programs on their devices (``PjRtLoadedExecutable``, ``PJRT_LoadedExecutable``)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.call_arguments import WITHOUT_TYPE, bound, explained
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.executable import Executable
from pjrt.api.placement import default_device

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.compile_options import DeviceAssignment
    from pjrt.api.device import Device
    from pjrt.api.execute_options import ExecuteOptions
    from pjrt.api.future import Future
    from pjrt.api.value_path import ValuePath

Argument = Any
"""An argument of the short form ``executable(…)``: a ``Buffer``; or a numpy array or scalar, a Python number or nested
lists of them, which are put on the device first.
"""


class LoadedExecutable(Executable):
    """A compiled program on its devices.

    Every way to run it returns at once, with buffers that get their values later. If the execution fails, waiting for
    an output raises its error. Arguments that the program donates (by its aliasing, unless
    ``non_donatable_input_indices`` names them) are used up by the call.
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
        """The compiled program without the devices (``PJRT_LoadedExecutable_GetExecutable``)."""

    @property
    @abc.abstractmethod
    def addressable_devices(self) -> Sequence[Device]:
        """The devices of this process that it runs on, in the order of arguments and results
        (``PJRT_LoadedExecutable_AddressableDevices``); empty for a portable executable.
        """

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
        """Run the program on all addressable devices (``PJRT_LoadedExecutable_Execute``).

        Args:
            arguments: one list of arguments a device, in the order of ``addressable_devices``; each argument is on that
                device.
            options: execute options.
            returned_futures: a list to which one future a device is appended: it is done when the execution is, and
                fails if the execution fails.

        Returns:
            One list of results a device.

        Raises:
            InvalidArgumentError: number, type or device of the arguments is wrong.
            FailedPreconditionError: an argument or the executable was deleted, or the client is closed.
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
        """Run the program on one of its devices (``PjRtLoadedExecutable::ExecuteSharded``).

        Further calls run it on the other devices, from this thread or others; collectives wait for them.

        Args:
            arguments: the arguments, on that device.
            device: one of ``addressable_devices``.
            options: execute options.
            returned_futures: a list to which a future of the completion is appended.

        Raises:
            PjrtError: for the reasons of ``execute``.
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
        """Run a portable executable, compiled with ``compile_portable_executable``, on any device
        (``PjRtLoadedExecutable::ExecutePortable``). The arguments are those of ``execute_sharded``.
        """

    def value_path(self) -> ValuePath | None:
        """Return a way to run the program without buffers, or ``None`` if it needs ``execute_sharded`` each time.

        A device need not have one. Exported plugins use it, because a buffer for each result of each execution takes
        longer than a tiny program.
        """
        return None

    def __call__(self, *arguments: Argument, **keywords: Argument) -> tuple[Buffer, ...]:
        """Run the program on one device: the short form, which takes numpy arrays and numbers as well as buffers.

        A numpy array must have the parameter's dtype. Python numbers (``3.0``, ``[1, 2]``) have none, and become the
        parameter's if that can hold them: floating-point types round, ``3.5`` for an ``s32`` is an error.

        Args:
            arguments: the arguments by position.
            keywords: arguments by name: one of ``parameter_names``, or its last key if no other has that key, such as
                ``w`` for ``weights['w']``.

        Returns:
            The results as a tuple of buffers.

        Raises:
            InvalidArgumentError: the program runs on more than one device (use ``execute``); an argument is of another
                type or shape, missing, given twice, or its name is unknown; or a type cannot hold a number.
            FailedPreconditionError: the executable was deleted.
            UnimplementedError: there are keywords, and the device does not report names.
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
        values: Sequence[Argument] = arguments
        buffers = [argument for argument in arguments if isinstance(argument, Buffer)]
        if keywords or len(buffers) != len(arguments):
            if keywords or not WITHOUT_TYPE.isdisjoint(map(type, arguments)):
                values = bound(self, arguments, keywords)
            buffers = [a if isinstance(a, Buffer) else client.buffer_from_host(a, device=device) for a in values]
        try:
            return tuple(run(buffers, device))
        except InvalidArgumentError as error:
            raise explained(error, self, values) from error

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether the executable was deleted (``PJRT_LoadedExecutable_IsDeleted``)."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Unload the executable (``PJRT_LoadedExecutable_Delete``). Executions under way finish; a second call does
        nothing.
        """

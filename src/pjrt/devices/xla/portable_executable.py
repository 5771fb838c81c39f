"""Portable executables: compiled once, run on whichever device is named."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.loaded_executable import Argument
from pjrt.devices.xla.compilation import deserialize
from pjrt.devices.xla.executable import XlaExecutable
from pjrt.devices.xla.loaded import XlaLoaded
from pjrt.devices.xla.loaded_executable import XlaLoadedExecutable

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice


class XlaPortableExecutable(XlaLoaded):
    """A program for one device of choice.

    jaxlib has no call to run an executable on another device than it was loaded on. So it is loaded on each device that
    is asked for, from its serialized form, when that device is first asked for.
    """

    __slots__ = ("_loaded", "_lock")

    def __init__(self, client: XlaClient, executable: XlaExecutable) -> None:
        super().__init__(client, executable)
        self._lock = threading.Lock()
        self._loaded: dict[Device, XlaLoadedExecutable] = {}
        client.adopt(self)

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return ()

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return ()

    @property
    def device_assignment(self) -> DeviceAssignment:
        raise FailedPreconditionError("a portable executable has no device assignment: name a device at each execution")

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        raise FailedPreconditionError("a portable executable runs on a device of choice; use execute_portable")

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        raise FailedPreconditionError("a portable executable runs on a device of choice; use execute_portable")

    def __call__(self, *arguments: Argument) -> tuple[Buffer, ...]:
        self._client.check_open()
        return super().__call__(*arguments)

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        loaded = self._loaded.get(device) or self._load(device)
        return loaded.execute_sharded(arguments, device, options, returned_futures=returned_futures)

    def _stop(self) -> None:
        for loaded in self._loaded.values():
            loaded.delete()
        self._loaded = {}

    def _load(self, device: Any) -> XlaLoadedExecutable:
        self._check_usable()
        expect(device, Device, "a device to run the program on")
        if device.client is not self._client:
            raise InvalidArgumentError(f"{device} belongs to another client; use one of client.addressable_devices")
        with self._lock:
            if device not in self._loaded:
                here = replace(
                    self.compile_options(),
                    device_assignment=DeviceAssignment(((device.id,),)),
                    compile_portable_executable=False,
                )
                loaded = XlaLoadedExecutable(self._client, deserialize(self._client, self.serialize(), here))
                self._loaded[device] = loaded
            return self._loaded[device]

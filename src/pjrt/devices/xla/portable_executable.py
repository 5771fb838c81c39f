"""Portable executables: compiled once, run on the device that each execution names."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pjrt.api.checks import expect
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.devices.xla.compilation import deserialize
from pjrt.devices.xla.device import XlaDevice
from pjrt.devices.xla.loaded_executable import XlaLoaded, XlaLoadedExecutable

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer
    from pjrt.api.client import Client
    from pjrt.api.future import Future
    from pjrt.api.loaded_executable import Argument, ExecuteOptions
    from pjrt.devices.xla.executable import XlaExecutable
    from pjrt.devices.xla.runtime import Runtime


class XlaPortableExecutable(XlaLoaded):
    """A program for one device of choice.

    jaxlib cannot run an executable on another device than the one that it was loaded on. So the program is loaded on
    each device from its serialized form when it first runs there. The device assignment is the one that it was compiled
    for: frameworks in C ask each executable for one, and TensorFlow ends the process over an error.
    """

    __slots__ = ("_loaded", "_lock")

    def __init__(self, client: Client, runtime: Runtime, executable: XlaExecutable) -> None:
        super().__init__(client, runtime, executable)
        self._lock = threading.Lock()
        self._loaded: dict[Device, XlaLoadedExecutable] = {}
        runtime.adopt(self)

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return ()

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return ()

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
        self._runtime.check_open()
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

    def _load(self, device: Device) -> XlaLoadedExecutable:
        self._check_usable()
        expect(device, Device, "a device to run the program on")
        if not isinstance(device, XlaDevice) or device.runtime is not self._runtime:
            raise InvalidArgumentError(f"{device} belongs to another client; use one of client.addressable_devices")
        with self._lock:
            if device not in self._loaded:
                here = replace(
                    self.compile_options(),
                    device_assignment=DeviceAssignment(((device.id,),)),
                    compile_portable_executable=False,
                )
                executable = deserialize(self._runtime, self.serialize(), here)
                self._loaded[device] = XlaLoadedExecutable(executable, [device])
            return self._loaded[device]

"""The runtime: IREE's devices, and modules loaded on them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from pjrt.devices.iree import packages
from pjrt.devices.iree.element_types import codes
from pjrt.system import after_fork_in_child

PURPOSE = "run programs"

_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for runtime in list(_runtimes):
        runtime.abandon()


after_fork_in_child(_after_fork_in_child)


class IreeDevice:
    """One device of IREE's runtime.

    Attributes:
        index: its index among the client's devices.
        hal: IREE's own device (``iree.runtime.HalDevice``).
        allocator: its allocator.
        lock: for calls: a module's context takes one call at a time.
    """

    __slots__ = ("allocator", "hal", "index", "lock")

    def __init__(self, index: int, hal: Any) -> None:
        self.index = index
        self.hal = hal
        self.allocator = hal.allocator
        self.lock = threading.Lock()


class Runtime:
    """IREE's runtime with a number of devices of one driver. They are opened at their first use.

    Args:
        driver: the name of the driver.
        num_devices: the number of devices.
    """

    def __init__(self, driver: str, num_devices: int) -> None:
        self.driver = driver
        self.num_devices = num_devices
        self._lock = threading.Lock()
        self._devices: list[IreeDevice] | None = None
        self._api: Any = None
        self._instance: Any = None
        self._types: dict[ElementType, int] = {}
        self._closed = False
        _runtimes.add(self)

    @property
    def api(self) -> Any:
        """The package ``iree.runtime``."""
        if self._api is None:
            self._api = _api()
            self._types = codes(self._api.HalElementType)
        return self._api

    @property
    def element_types(self) -> dict[ElementType, int]:
        """IREE's number of each element type."""
        assert self.api is not None
        return self._types

    @property
    def devices(self) -> list[IreeDevice]:
        """The devices.

        Raises:
            FailedPreconditionError: the runtime is not installed, or was closed.
            UnavailableError: the driver's library or its hardware is missing.
        """
        if self._devices is None:
            with self._lock:
                if self._closed:
                    raise FailedPreconditionError("the client was closed; its devices cannot be used any more")
                if self._devices is None:
                    self._devices = [IreeDevice(n, hal) for n, hal in enumerate(self._open())]
        return self._devices

    def load(self, vmfb: bytes, function: str, device: IreeDevice) -> tuple[Any, Any]:
        """Load a compiled module on a device, and return its context and its function.

        Raises:
            InvalidArgumentError: the module is damaged, or was compiled for another target.
        """
        api = self.api
        try:
            module = api.VmModule.copy_buffer(self._instance, vmfb)
            hal = api.create_hal_module(self._instance, device.hal)
            context = api.VmContext(self._instance, [hal, module])
            return context, module.lookup_function(function)
        except (RuntimeError, ValueError) as error:
            raise InvalidArgumentError(
                f"IREE's runtime cannot load the module on a device of the driver {self.driver!r}, which may be of "
                f"another target: {_first_line(error)}"
            ) from error

    def close(self) -> None:
        """Release the devices. Buffers and modules that live on keep theirs."""
        self._closed = True
        self._devices = None

    def abandon(self) -> None:
        """Have the devices never released: in the child of a fork, that would wait for the parent's threads."""
        for device in self._devices or ():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))

    def _open(self) -> list[Any]:
        api = self.api
        try:
            # A driver of this client's own. The devices of a driver share its threads, of which the child of a fork
            # has none.
            driver = packages.load("iree.runtime._binding", PURPOSE).create_hal_driver(self.driver)
            if self.driver.startswith("local-"):
                hals = [driver.create_default_device() for _ in range(self.num_devices)]
            else:
                ids = [each["device_id"] for each in driver.query_available_devices()]
                if len(ids) < self.num_devices:
                    raise UnavailableError(
                        f"expected {self.num_devices} devices of IREE's driver {self.driver!r}, found {len(ids)}; "
                        "give another num_devices"
                    )
                hals = [driver.create_device(number) for number in ids[: self.num_devices]]
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"IREE's driver {self.driver!r} cannot be used on this machine: {_first_line(error)}"
            ) from error
        self._instance = api.VmInstance()
        return hals


def _api() -> Any:
    api = packages.load("iree.runtime", PURPOSE)
    # At the end of the interpreter, buffers in global variables may be alive. They are no leak, and no user can act
    # on the list of them that would be printed.
    packages.load("iree.runtime._binding", PURPOSE).disable_leak_checker()
    return api


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]

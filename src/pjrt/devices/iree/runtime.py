"""IREE's runtime: devices, buffers as the handles of the author's contract, and programs on them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree import packages
from pjrt.host import Enqueued, Memory, RunContext
from pjrt.host_memory.array import HostArray, array_dtype
from pjrt.host_memory.external import ExternalMemory, from_dlpack
from pjrt.system import after_fork_in_child

if TYPE_CHECKING:
    from pjrt.api.device import MemorySpace


_NAMES = {
    ElementType.PRED: "BOOL_8",
    ElementType.S8: "SINT_8",
    ElementType.S16: "SINT_16",
    ElementType.S32: "SINT_32",
    ElementType.S64: "SINT_64",
    ElementType.U8: "UINT_8",
    ElementType.U16: "UINT_16",
    ElementType.U32: "UINT_32",
    ElementType.U64: "UINT_64",
    ElementType.F16: "FLOAT_16",
    ElementType.F32: "FLOAT_32",
    ElementType.F64: "FLOAT_64",
    ElementType.BF16: "BFLOAT_16",
    ElementType.C64: "COMPLEX_64",
    ElementType.C128: "COMPLEX_128",
    ElementType.F8E5M2: "FLOAT_8_E5M2",
    ElementType.F8E4M3FN: "FLOAT_8_E4M3_FN",
    ElementType.F8E5M2FNUZ: "FLOAT_8_E5M2_FNUZ",
    ElementType.F8E4M3FNUZ: "FLOAT_8_E4M3_FNUZ",
    ElementType.F8E8M0FNU: "FLOAT_8_E8M0_FNU",
}
"""The name of each type in ``iree.runtime.HalElementType``. Types of less than a byte are packed there, and take a byte
each here, so they are none of them.
"""

SUPPORTED = frozenset(_NAMES)
"""The types that arguments and results of modules may have."""


def codes(enumeration: type) -> dict[ElementType, int]:
    """Return IREE's number of each type.

    Args:
        enumeration: ``iree.runtime.HalElementType``.
    """
    return {element: int(getattr(enumeration, name)) for element, name in _NAMES.items()}


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


ALIGNMENT = 64
"""The alignment in bytes that the code of modules expects of arguments."""

_BYTES = np.dtype(np.uint8)


class Tensor:
    """An array in IREE's memory: a handle of the author's contract.

    Attributes:
        device: the device.
        spec: the shape and the element type.
        fence: reached when the memory has its contents (``iree.runtime.HalFence``); ``None`` if it has them.
        owner: the host array whose memory it is; ``None`` for memory of IREE's own. IREE does not keep the array alive.
    """

    __slots__ = ("_buffer", "_span", "_view", "device", "fence", "owner", "spec")

    def __init__(
        self,
        device: IreeDevice,
        spec: ShapeSpec,
        buffer: Any = None,
        view: Any = None,
        fence: Any = None,
        owner: HostArray | None = None,
    ) -> None:
        self.device = device
        self.spec = spec
        self._buffer = buffer
        self._view = view
        self._span: tuple[int, int] | None = None
        self.fence = fence
        self.owner = owner

    @property
    def buffer(self) -> Any:
        """The memory (``iree.runtime.HalBuffer``); that of a module's result is read from its view."""
        if self._buffer is None:
            self._buffer = self._view.get_buffer()
        return self._buffer

    def view(self, runtime: Runtime) -> Any:
        """Return the memory with its type (``iree.runtime.HalBufferView``), as modules take it."""
        if self._view is None:
            spec = self.spec
            code = runtime.element_types[spec.element_type]
            self._view = runtime.api.HalBufferView(self._buffer, list(spec.shape), code)
        return self._view

    def bytes(self) -> HostArray:
        """Return the bytes of the memory as an array; the host must see the memory."""
        size = self.spec.size_in_bytes
        array: HostArray = self.buffer.map().asarray([size], _BYTES)
        return array

    @property
    def span(self) -> tuple[int, int]:
        """The addresses at which the memory begins and ends; the host must see it.

        Raises:
            RuntimeError: IREE has not allocated the memory yet, which is that of a result.
        """
        if self._span is None:
            begin: int = self.bytes().__array_interface__["data"][0]
            self._span = begin, begin + self.spec.size_in_bytes
        return self._span

    def separate(self, runtime: Runtime) -> None:
        """Copy the contents into memory of its own."""
        shared = self.bytes()
        self._buffer = allocate(runtime, self.device, shared.nbytes, "DEVICE_LOCAL", "HOST_VISIBLE")
        self._view = self._span = self.fence = None
        np.copyto(self.bytes(), shared)


def duplicate(runtime: Runtime, tensor: Tensor) -> Tensor:
    """Return a tensor with the same contents in other memory; its fence is reached when they are there."""
    device, fence = tensor.device, runtime.api.HalFence
    kinds = ("DEVICE_LOCAL", "HOST_VISIBLE") if runtime.driver.startswith("local-") else ("DEVICE_LOCAL",)
    buffer = allocate(runtime, device, max(tensor.spec.size_in_bytes, 1), *kinds)
    done = fence.create_at(device.hal.create_semaphore(0), 1)
    device.hal.queue_copy(tensor.buffer, buffer, fence(0) if tensor.fence is None else tensor.fence, done)
    return Tensor(device, tensor.spec, buffer, fence=done)


def allocate(runtime: Runtime, device: IreeDevice, size: int, *kinds: str) -> Any:
    """Return new memory of IREE's (``iree.runtime.HalBuffer``).

    Args:
        runtime: the runtime.
        device: the device.
        size: the number of bytes.
        kinds: names of ``iree.runtime.MemoryType``.

    Raises:
        ResourceExhaustedError: the allocator has none.
    """
    api = runtime.api
    usage = int(api.BufferUsage.DEFAULT)
    if "HOST_VISIBLE" in kinds or "HOST_LOCAL" in kinds:
        usage |= int(api.BufferUsage.MAPPING)
    memory = sum(int(getattr(api.MemoryType, kind)) for kind in kinds)
    try:
        return device.allocator.allocate_buffer(memory, usage, size)
    except (RuntimeError, ValueError) as error:
        raise ResourceExhaustedError(f"IREE's allocator has no {size} bytes: {error}") from error


class IreeMemory(Memory):
    """The memory of IREE's devices, where the host sees it: that of the drivers of processors.

    Args:
        runtime: the runtime.
    """

    kinds = ("device", "pinned_host", "unpinned_host")
    is_on_host = True

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> Tensor:
        device = self._device(space)
        # A buffer of no bytes cannot be mapped.
        return Tensor(
            device, spec, allocate(self._runtime, device, max(spec.size_in_bytes, 1), "DEVICE_LOCAL", "HOST_VISIBLE")
        )

    def copy_in(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            np.copyto(handle.bytes(), array.reshape(-1).view(np.uint8))

    def copy_out(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            np.copyto(array.reshape(-1).view(np.uint8), handle.bytes())

    def host_view(self, handle: Tensor) -> HostArray | None:
        return handle.bytes() if handle.spec.size else np.empty(0, np.uint8)

    def import_array(self, array: HostArray, spec: ShapeSpec, space: MemorySpace) -> Tensor | None:
        if array.ctypes.data % ALIGNMENT:  # IREE takes it, and its code reads it with instructions that crash.
            return None
        device, api = self._device(space), self._runtime.api
        kind, usage = api.MemoryType, api.BufferUsage
        buffer = device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8),
            int(kind.HOST_LOCAL) | int(kind.DEVICE_VISIBLE),
            int(usage.DEFAULT) | int(usage.MAPPING),
        )
        return Tensor(device, spec, buffer, owner=array)

    def pointer(self, handle: Tensor) -> int:
        return handle.span[0]

    def to_dlpack(self, handle: Tensor) -> Any:
        spec = handle.spec
        if spec.element_type is ElementType.PRED or spec.element_type.dtype.kind in "iufc":
            memory = ExternalMemory(self.pointer(handle), spec.size_in_bytes, handle)
            return memory.array(spec.shape, array_dtype(spec.element_type))
        raise UnimplementedError(f"numpy exports no arrays of {spec.element_type.mlir} by DLPack")

    def from_dlpack(self, source: Any, space: MemorySpace) -> Tensor:
        array = from_dlpack(source)
        spec = ShapeSpec(array.shape, ElementType.of(array.dtype))
        if not array.flags.c_contiguous:
            raise UnimplementedError("IREE's memory holds row-major arrays only; use buffer_from_host")
        if not array.size:
            return self.allocate(spec, space)
        handle = self.import_array(ExternalMemory.over(array), spec, space)
        if handle is None:
            raise InvalidArgumentError(
                f"the array cannot be shared without a copy: its memory is not aligned to {ALIGNMENT} bytes; use "
                "buffer_from_host"
            )
        return handle

    def spec_of(self, handle: Tensor) -> ShapeSpec:
        return handle.spec

    def stats(self, space: MemorySpace) -> Mapping[str, int]:
        allocator = self._device(space).allocator
        if not allocator.has_statistics:
            return {}
        counts = allocator.statistics
        return {
            "pool_bytes": counts["device_bytes_allocated"] - counts["device_bytes_freed"],
            "peak_pool_bytes": counts["device_bytes_peak"],
        }

    def _device(self, space: MemorySpace) -> IreeDevice:
        return self._runtime.devices[space.devices[0].local_hardware_id]


class IreeGpuMemory(IreeMemory):
    """The memory of IREE's devices of other drivers: copies go through memory that both sides see."""

    is_on_host = False

    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> Tensor:
        device = self._device(space)
        return Tensor(device, spec, allocate(self._runtime, device, max(spec.size_in_bytes, 1), "DEVICE_LOCAL"))

    def copy_in(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            device = handle.device
            staging = device.allocator.allocate_host_staging_buffer_copy(device.hal, array.reshape(-1).view(np.uint8))
            return self._copy(device, staging, handle.buffer)
        return None

    def copy_out(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            device = handle.device
            staging = allocate(self._runtime, device, array.nbytes, "HOST_LOCAL", "DEVICE_VISIBLE")
            self._copy(device, handle.buffer, staging).wait()
            np.copyto(array.reshape(-1).view(np.uint8), staging.map().asarray([array.nbytes], _BYTES))

    def host_view(self, handle: Tensor) -> HostArray | None:
        return None

    def import_array(self, array: HostArray, spec: ShapeSpec, space: MemorySpace) -> Tensor | None:
        return None

    def pointer(self, handle: Tensor) -> int:
        return Memory.pointer(self, handle)

    def to_dlpack(self, handle: Tensor) -> Any:
        return Memory.to_dlpack(self, handle)

    def from_dlpack(self, source: Any, space: MemorySpace) -> Tensor:
        tensor: Tensor = Memory.from_dlpack(self, source, space)
        return tensor

    def _copy(self, device: IreeDevice, source: Any, target: Any) -> Any:
        """Copy on the device, and return the fence of the copy."""
        fence = self._runtime.api.HalFence
        done = fence.create_at(device.hal.create_semaphore(0), 1)
        device.hal.queue_copy(source, target, fence(0), done)
        return done


Call = Callable[[Sequence[Tensor]], Any]


class IreeProgram:
    """A compiled module, loaded on each device at its first run there.

    Args:
        runtime: the runtime.
        module: the module, as IREE's compiler writes it.
        function: the name of the function to call.
        results: the types of the results.
        asynchronous: whether the module was compiled for calls that return before their work is done.
        overwritten: the numbers of the arguments that a call may overwrite; it gets copies of them.

    Attributes:
        module: the module.
    """

    def __init__(
        self,
        runtime: Runtime,
        module: bytes,
        function: str,
        results: Sequence[ShapeSpec],
        asynchronous: bool,
        overwritten: Collection[int] = (),
    ) -> None:
        self.module = module
        self._runtime = runtime
        self._function = function
        self._results = tuple(results)
        self._overwritten = frozenset(overwritten)
        self._make = self._asynchronous if asynchronous else self._synchronous
        self._calls: dict[int, Call] = {}

    def run(self, *tensors: Tensor) -> Any:
        """Return the results for these arguments, on their device."""
        device = tensors[0].device
        if self._overwritten:
            tensors = tuple(
                duplicate(self._runtime, each) if number in self._overwritten else each
                for number, each in enumerate(tensors)
            )
        return (self._calls.get(device.index) or self._load(device))(tensors)

    def run_without_arguments(self, context: RunContext) -> Any:
        """Return the results of a program without arguments."""
        device = self._runtime.devices[context.device.local_hardware_id]
        return (self._calls.get(device.index) or self._load(device))(())

    def _load(self, device: IreeDevice) -> Call:
        with device.lock:
            call = self._calls.get(device.index)
            if call is None:
                call = self._calls[device.index] = self._make(device)
        return call

    # The two calls have the same steps. They are written out, because each runs in a few microseconds.

    def _synchronous(self, device: IreeDevice) -> Call:
        runtime, specs, lock = self._runtime, self._results, device.lock
        context, function = runtime.load(self.module, self._function, device)
        new_list, invoke, view_type = runtime.api.VmVariantList, context.invoke, runtime.api.HalBufferView
        count, numbered = len(specs), tuple(enumerate(specs))

        def call(tensors: Sequence[Tensor]) -> Any:
            inputs, outputs, shared = new_list(len(tensors)), new_list(count), False
            for tensor in tensors:
                inputs.push_ref(tensor.view(runtime))
                shared = shared or tensor.owner is not None
            with lock:
                invoke(function, inputs, outputs)
            results = [Tensor(device, spec, view=outputs.get_as_object(n, view_type)) for n, spec in numbered]
            if shared:
                _separate(runtime, results, tensors)
            return results

        return call

    def _asynchronous(self, device: IreeDevice) -> Call:
        runtime, specs, lock = self._runtime, self._results, device.lock
        context, function = runtime.load(self.module, self._function, device)
        new_list, invoke, view_type = runtime.api.VmVariantList, context.invoke, runtime.api.HalBufferView
        count, numbered = len(specs), tuple(enumerate(specs))
        new_semaphore, fence_type = device.hal.create_semaphore, runtime.api.HalFence

        def call(tensors: Sequence[Tensor]) -> Any:
            inputs, outputs, shared, fences = new_list(len(tensors) + 2), new_list(count), False, []
            for tensor in tensors:
                inputs.push_ref(tensor.view(runtime))
                shared = shared or tensor.owner is not None
                if tensor.fence is not None:
                    fences.append(tensor.fence)
            done = fence_type.create_at(new_semaphore(0), 1)
            # The work begins when the arguments are there; work on other arguments does not wait for it.
            inputs.push_ref(fence_type.join(fences) if fences else fence_type(0))
            inputs.push_ref(done)
            with lock:
                invoke(function, inputs, outputs)
            results = [
                Tensor(device, spec, view=outputs.get_as_object(n, view_type), fence=done) for n, spec in numbered
            ]
            if shared:
                _separate(runtime, results, tensors)
            return Enqueued(results, done)

        return call


def _separate(runtime: Runtime, results: Sequence[Tensor], arguments: Sequence[Tensor]) -> None:
    """Copy results that are memory of an argument, if that memory is its caller's: IREE returns an argument, or a
    reshaped one, as it is. The caller's memory has its contents, so nothing is waited for.
    """
    spans = [tensor.span for tensor in arguments if tensor.owner is not None]
    for result in results:
        try:
            begin = result.span[0] if result.spec.size else 0
        except RuntimeError:  # It has no memory yet, so it is not that of an argument.
            continue
        if any(first <= begin < end for first, end in spans):
            result.separate(runtime)

"""The client of the ``cpu`` device."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.alias_fulfillment import AliasFulfillment
from pjrt.api.attributes import Attributes
from pjrt.api.capability import Capabilities
from pjrt.api.checks import expect, expect_all, expect_int
from pjrt.api.client import Client
from pjrt.api.compatibility import Effort, Support, try_compiling
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.executable import Executable
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.memory_space import MemorySpace
from pjrt.api.partitioning import Partitioning
from pjrt.api.placement import choose_place
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec, expect_shape
from pjrt.devices.xla import _jaxlib, compilation, ffi, from_host, shutdown, special_buffers
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer
from pjrt.devices.xla.completion_watcher import CompletionWatcher
from pjrt.devices.xla.device import XlaDevice
from pjrt.devices.xla.executable import PLATFORM, XlaExecutable
from pjrt.devices.xla.loaded_executable import XlaLoadedExecutable
from pjrt.devices.xla.memory_space import XlaMemorySpace
from pjrt.devices.xla.relayout import compile_relayout
from pjrt.devices.xla.rendezvous import Rendezvous
from pjrt.devices.xla.topology import XlaTopology
from pjrt.devices.xla.transfer import XlaTransferManager
from pjrt.host_memory.dlpack import from_source

if TYPE_CHECKING:
    from pjrt.devices.xla.portable_executable import XlaPortableExecutable


_POLL_SECONDS = 0.001


class XlaClient(Client):
    """XLA's CPU runtime with a number of virtual devices.

    Attributes:
        ended: why the client cannot be used any more; empty as long as it can.
        watcher: notices that arrays have their values.
    """

    __slots__ = (
        "_devices",
        "_executables",
        "_jaxlib_client",
        "_lock",
        "_relayouts",
        "_rendezvous",
        "_rendezvous_lock",
        "_row_major",
        "_types",
        "ended",
        "watcher",
    )

    def __init__(self, num_devices: int = 1, asynchronous: bool = True) -> None:
        shutdown.check_not_forked()
        self.ended = ""
        self._lock = threading.Lock()
        self._jaxlib_client = _jaxlib.make_client(num_devices, asynchronous)
        self._devices = tuple(XlaDevice(self, device) for device in self._jaxlib_client.local_devices())
        self._row_major: dict[tuple[object, ...], ArrayType] = {}
        self._types: dict[tuple[object, ...], ArrayType] = {}
        self._executables: weakref.WeakSet[Any] = weakref.WeakSet()
        self._rendezvous: weakref.WeakValueDictionary[bytes, Rendezvous] = weakref.WeakValueDictionary()
        self._rendezvous_lock = threading.Lock()  # of its own: garbage that is collected meanwhile may want the other
        self._relayouts: dict[tuple[ArrayType, TiledLayout], XlaLoadedExecutable] = {}
        self.watcher = CompletionWatcher()
        shutdown.register(self)

    # What it is.

    @property
    def platform_name(self) -> str:
        return PLATFORM

    @property
    def platform_version(self) -> str:
        return version()

    @property
    def attributes(self) -> Attributes:
        return {"xla_version": 2}

    @property
    def devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def memory_spaces(self) -> Sequence[XlaMemorySpace]:
        return tuple(space for device in self._devices for space in device.memory_spaces)

    @property
    def topology(self) -> XlaTopology:
        return XlaTopology(len(self._devices), self.platform_version, self)

    @property
    def capabilities(self) -> Capabilities:
        return self.topology.capabilities

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        wanted = expect_int(num_replicas, "a number of replicas") * expect_int(num_partitions, "a number of partitions")
        if wanted > len(self._devices):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need {wanted} devices, the client has "
                f"{len(self._devices)}; make it with pjrt.client('cpu', num_devices={wanted})"
            )
        return DeviceAssignment.in_order([device.id for device in self._devices], num_replicas, num_partitions)

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        return TiledLayout.row_major(len(expect_shape(shape)))

    # Programs.

    def compile(self, program: Program | str | bytes, options: CompileOptions | None = None) -> LoadedExecutable:
        from pjrt.stablehlo import with_partitioning  # here and below: start-up would feel it

        read = Program.of(program)
        chosen = with_partitioning(read, options)
        return self._loaded(compilation.compile_program(self, read, chosen), chosen, read.code)

    def supports(
        self,
        program: Program | str | bytes,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        from pjrt.stablehlo import supports

        self.check_open()
        return supports(
            program,
            options,
            self.capabilities,
            effort=effort,
            compile=lambda: try_compiling(self, program, options),
        )

    def load(self, executable: Executable, options: CompileOptions | None = None) -> LoadedExecutable:
        if not isinstance(executable, XlaExecutable):
            raise InvalidArgumentError(
                f"expected an executable of the device 'cpu', found {executable!r}; use client.compile"
            )
        return self.deserialize(executable.serialize(), executable.compile_options() if options is None else options)

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> LoadedExecutable:
        chosen = CompileOptions.of(options).completed(Partitioning())
        return self._loaded(compilation.deserialize(self, serialized, chosen), chosen, serialized)

    def _loaded(self, executable: XlaExecutable, options: CompileOptions, code: bytes) -> LoadedExecutable:
        if options.compile_portable_executable:
            from pjrt.devices.xla.portable_executable import XlaPortableExecutable

            return XlaPortableExecutable(self, executable)
        places = sum(map(len, executable.assignment.device_ids))
        if places == 1:
            return XlaLoadedExecutable(self, executable)
        import hashlib  # here: start-up would feel it

        # Executables of the same program have one place where shares of their launches meet.
        key = hashlib.sha256(repr((options.to_proto(), executable.assignment)).encode() + code).digest()
        made = Rendezvous(places)
        with self._rendezvous_lock:
            meeting = self._rendezvous.setdefault(key, made)
        return XlaLoadedExecutable(self, executable, meeting)

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, *, traits: int = 0) -> None:
        self.check_open()
        ffi.register_handler(name, handler, traits)

    # Buffers.

    def buffer_from_host(
        self,
        array: Any,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        layout: Layout | None = None,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> XlaBuffer:
        space = self._space(device, memory_space)
        return from_host.buffer_from_host(self, array, space, layout, semantics, on_done_with_host_buffer)

    def buffer_from_dlpack(self, source: Any, *, device: Device | None = None) -> XlaBuffer:
        space = self._space(device, None)
        array = from_source(source)
        return special_buffers.over(self, array, self.array_type(array.shape, ElementType.of(array.dtype), space), None)

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> XlaBuffer:
        return special_buffers.uninitialized(self, spec, self._space(None, memory_space))

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> XlaBuffer:
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        return special_buffers.failed(self, error, spec, self._space(None, memory_space))

    def create_alias_buffer(
        self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> tuple[XlaBuffer, AliasFulfillment]:
        return special_buffers.alias(self, spec, self._space(None, memory_space))

    def create_view_of_device_buffer(
        self,
        pointer: int,
        spec: ShapeSpec,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        on_delete: Callable[[], object] | None = None,
        stream: int | None = None,
    ) -> XlaBuffer:
        return special_buffers.view(self, pointer, spec, self._space(device, memory_space), on_delete, stream)

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> XlaTransferManager:
        return XlaTransferManager(
            self, expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"), self._space(None, memory_space)
        )

    # Its end.

    @property
    def is_closed(self) -> bool:
        return bool(self.ended) and self.ended != shutdown.ENDING

    def close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.ended = "the client was closed; make a new one with pjrt.client('cpu')"
        self._wait()
        self._let_go()
        self._notify_closed()

    def abandon(self, reason: str) -> list[Any]:
        """Ends the client without waiting, because there is nobody left to wait for: in the child of a fork.

        Returns:
            What must not be taken apart.
        """
        self._lock = threading.Lock()  # whoever held it is not here
        jaxlib_client = self._devices[0].jaxlib_device.client
        if not self.ended:
            self.ended = reason
        self.watcher.abandon(reason)
        return [jaxlib_client, *jaxlib_client.live_arrays(), *jaxlib_client.live_executables(), *self._let_go()]

    def close_to_others(self) -> None:
        """From now on refuses all threads but the one that ends the interpreter."""
        self.watcher.is_ending = True
        if not self.ended:
            self.ended = shutdown.ENDING
        for executable in list(self._executables):
            executable.take_the_long_way()

    def finish(self, deadline: float) -> bool:
        """Waits for work under way and ends the threads that notice, because the interpreter ends.

        Args:
            deadline: until when to wait, as ``time.monotonic`` tells the time.

        Returns:
            Whether the work is done.
        """
        is_done = self._jaxlib_client is None or all(
            _comes(array, deadline) for array in self._jaxlib_client.live_arrays()
        )
        self.watcher.stop(deadline)
        return is_done

    def _wait(self) -> None:
        for array in self._jaxlib_client.live_arrays():
            with contextlib.suppress(Exception):  # a failed or deleted one is as good as done
                array.block_until_ready()

    def _let_go(self) -> list[Any]:
        """Lets go of jaxlib's client and executables, and returns the latter."""
        self._relayouts = {}
        self._jaxlib_client = None
        return [executable.unload(self.ended) for executable in list(self._executables)]

    # What the other modules of this room need.

    @property
    def jaxlib_client(self) -> Any:
        """jaxlib's client."""
        self.check_open()
        return self._jaxlib_client

    def check_open(self) -> None:
        """Returns if the client can be used.

        Raises:
            FailedPreconditionError: it was closed, or made in another process.
            SystemExit: the interpreter is ending, and the caller is a daemon thread; see ``shutdown.check_thread``.
        """
        if self.ended:
            if self.is_closed:
                raise FailedPreconditionError(self.ended)
            shutdown.check_thread()

    def adopt(self, executable: XlaLoadedExecutable | XlaPortableExecutable) -> None:
        """Has an executable unloaded when the client is closed."""
        self._executables.add(executable)

    def device_with_id(self, number: int) -> XlaDevice:
        """The device with an id.

        Raises:
            InvalidArgumentError: there is none.
        """
        if not 0 <= number < len(self._devices):
            raise InvalidArgumentError(
                f"the client has no device with id {number}: it has {len(self._devices)}; make it with "
                f"pjrt.client('cpu', num_devices=...)"
            )
        return self._devices[number]

    def array_type(
        self,
        shape: tuple[int, ...],
        element_type: ElementType,
        space: XlaMemorySpace,
        minor_to_major: tuple[int, ...] | None = None,
        dynamic_dimensions: tuple[int, ...] = (),
    ) -> ArrayType:
        """The one object for buffers of this type; the layout is row-major if not said."""
        if minor_to_major is None:
            minor_to_major = tuple(range(len(shape) - 1, -1, -1))
        key = (shape, element_type, space.id, minor_to_major, dynamic_dimensions)
        found = self._types.get(key)
        if found is None:
            made = ArrayType(shape, element_type, TiledLayout(minor_to_major), space, dynamic_dimensions)
            found = self._types.setdefault(key, made)
        return found

    def row_major_type(self, shape: tuple[int, ...], dtype: AnyDType, space: XlaMemorySpace) -> ArrayType:
        """As ``array_type`` of a row-major array, by its dtype.

        Raises:
            InvalidArgumentError: the dtype is not an element type.
        """
        key = (shape, dtype, space)
        found = self._row_major.get(key)
        if found is None:
            found = self._row_major[key] = self.array_type(shape, ElementType.of(dtype), space)
        return found

    def array_type_like(self, kind: ArrayType, space: XlaMemorySpace) -> ArrayType:
        """The same type in another memory space."""
        return self.array_type(
            kind.shape, kind.element_type, space, kind.layout.minor_to_major, kind.dynamic_dimensions
        )

    def space_of(self, place: Device | MemorySpace) -> XlaMemorySpace:
        """The memory space meant by a device (its default one) or a memory space of this client.

        Raises:
            InvalidArgumentError: it belongs to another client.
        """
        if isinstance(place, XlaDevice) and place.client is self:
            return place.default_memory_space
        if isinstance(place, XlaMemorySpace) and place.client is self:
            return place
        expect(place, (Device, MemorySpace), "a device or memory space of this client")
        raise InvalidArgumentError(
            f"{place!r} belongs to another client; use one of client.addressable_devices or client.memory_spaces, or "
            "copy by way of the host"
        )

    def relaid(self, buffer: XlaBuffer, layout: TiledLayout) -> XlaBuffer:
        """A copy of a buffer with another layout."""
        key = (buffer.type, layout)
        program = self._relayouts.get(key)
        if program is None:
            program = self._relayouts.setdefault(key, compile_relayout(self, buffer.type, layout))
        (made,) = program.execute_sharded([buffer], buffer.device)
        return made  # type: ignore[return-value]  # what this room's executables give are this room's buffers

    def bytes_in_use(self, device: XlaDevice) -> int:
        """The bytes of the live buffers of a device."""
        total = 0
        for array in self.jaxlib_client.live_arrays():
            devices = array._sharding._internal_device_list
            if device.jaxlib_device in devices and not array.is_deleted():
                total += _jaxlib.size_on_device(array)
        return total

    def _space(self, device: Device | None, memory_space: MemorySpace | None) -> XlaMemorySpace:
        self.check_open()
        if memory_space is None:
            if device is None:
                return self._devices[0].default_memory_space
            if type(device) is XlaDevice and device.client is self:
                return device.default_memory_space
        return self.space_of(choose_place(self, device, memory_space)[1])


def _comes(array: _jaxlib.Array, deadline: float) -> bool:
    """Whether an array has its value, or will never have one, by a time. jaxlib's own wait has no limit."""
    with contextlib.suppress(Exception):  # a failed or deleted one is as good as done
        while not array.is_ready():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
    return True


def version() -> str:
    """The platform's version, for people."""
    return f"XLA of jaxlib {_jaxlib.VERSION}"

"""The client of the ``cpu`` device."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt import stablehlo
from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.checks import expect, expect_all
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.executable import choose_place
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec, TiledLayout, expect_shape
from pjrt.devices.xla._jaxlib import HAS_TRANSFERS, PLATFORM_VERSION
from pjrt.devices.xla.buffer import PendingBuffer, XlaBuffer, buffer_from_host
from pjrt.devices.xla.device import XlaDevice, memory_space_of
from pjrt.devices.xla.executable import PLATFORM, XlaExecutable
from pjrt.devices.xla.loaded_executable import Rendezvous, XlaLoadedExecutable
from pjrt.devices.xla.runtime import Runtime

# The modules that most programs do without are imported in the methods that need them: that halves the time of a start.

if TYPE_CHECKING:
    from pjrt.api.buffer import AliasFulfillment, Buffer
    from pjrt.api.capability import Capabilities, Effort, Support
    from pjrt.api.device import Attributes, Device, MemorySpace
    from pjrt.api.executable import Executable
    from pjrt.api.future import Future
    from pjrt.api.loaded_executable import LoadedExecutable
    from pjrt.devices.xla.device import XlaMemorySpace, XlaPeerDevice
    from pjrt.devices.xla.peers import CrossHostTransfers, Peers
    from pjrt.devices.xla.special_buffers import XlaTransferManager
    from pjrt.devices.xla.topology import XlaTopology


class XlaClient(Client):
    """XLA's CPU runtime with a number of virtual devices.

    Args:
        num_devices: the number of devices of this process.
        asynchronous: whether executions return before they are finished.
        peers: the processes of a job that make such a client together, each with devices of its own; ``None`` for a
            process alone.
    """

    __slots__ = ("_all_devices", "_devices", "_local", "_lock", "_rendezvous", "_runtime", "_transfers")

    def __init__(self, num_devices: int = 1, asynchronous: bool = True, peers: Peers | None = None) -> None:
        self._runtime = runtime = Runtime(num_devices, asynchronous, peers)
        self._local = {device.id: XlaDevice(self, runtime, device) for device in runtime.jaxlib_devices}
        self._devices = tuple(self._local.values())
        self._all_devices: tuple[XlaDevice | XlaPeerDevice, ...] = (
            self._devices if peers is None else self._devices_of_job()
        )
        self._rendezvous: weakref.WeakValueDictionary[bytes, Rendezvous] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._transfers: CrossHostTransfers | None = None

    def _devices_of_job(self) -> tuple[XlaDevice | XlaPeerDevice, ...]:
        from pjrt.devices.xla.device import XlaPeerDevice

        every_device = self._runtime.all_devices.items()
        return tuple(self._local.get(number) or XlaPeerDevice(self, device) for number, device in every_device)

    @property
    def platform_name(self) -> str:
        return PLATFORM

    @property
    def platform_version(self) -> str:
        return PLATFORM_VERSION

    @property
    def attributes(self) -> Attributes:
        return {"xla_version": 2}

    @property
    def process_index(self) -> int:
        peers = self._runtime.peers
        return 0 if peers is None else peers.process_index

    @property
    def devices(self) -> Sequence[XlaDevice | XlaPeerDevice]:
        return self._all_devices

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    @property
    def memory_spaces(self) -> Sequence[XlaMemorySpace]:
        return tuple(space for device in self._devices for space in device.memory_spaces)

    @property
    def topology(self) -> XlaTopology:
        from pjrt.devices.xla.topology import XlaTopology

        counts = Counter(device.process_index for device in self._all_devices)
        return XlaTopology([counts[index] for index in sorted(counts)], self._runtime)

    @property
    def capabilities(self) -> Capabilities:
        return self.topology.capabilities

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        return self._runtime.default_device_assignment(num_replicas, num_partitions)

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        return TiledLayout.row_major(len(expect_shape(shape)))

    # Programs.

    def compile(
        self, program: AnyProgram, options: CompileOptions | None = None, *, shapes: Shapes | None = None
    ) -> LoadedExecutable:
        from pjrt.devices.xla.trial_compilation import compile_safely

        program = Program.of(program) if shapes is None else stablehlo.refine(program, shapes)
        executable = compile_safely(self._runtime, program, options)
        return self._loaded(executable, executable.compile_options(), program.code, program)

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        from pjrt.api.capability import try_compiling

        self._runtime.check_open()
        return stablehlo.supports(
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
        from pjrt.devices.xla.compilation import deserialize

        executable = deserialize(self._runtime, serialized, None if options is None else CompileOptions.of(options))
        return self._loaded(executable, executable.compile_options(), serialized)

    def _loaded(
        self, executable: XlaExecutable, options: CompileOptions, code: bytes, program: Program | None = None
    ) -> LoadedExecutable:
        if options.compile_portable_executable:
            from pjrt.devices.xla.loaded_executable import XlaPortableExecutable

            return XlaPortableExecutable(self, self._runtime, executable)
        ids = [number for row in executable.assignment.device_ids for number in row]
        devices = [self._local[number] for number in ids if number in self._local]
        if len(ids) == 1:
            return XlaLoadedExecutable(executable, devices)
        fingerprint = ""
        if self._runtime.peers is not None and len(devices) < len(ids):
            # A process may have been lost while the program was compiled.
            self._runtime.peers.check([self._runtime.jaxlib_device(number).process_index for number in ids])
            if program is not None:
                fingerprint = options.fingerprint(stablehlo.fingerprint(program, trusted=True))  # it was compiled
        import hashlib

        # Executables of the same program have one rendezvous, so that threads that each compile it meet in a launch.
        key = hashlib.sha256(repr((options.to_proto(), executable.assignment)).encode() + code).digest()
        new_rendezvous = Rendezvous(len(devices))
        with self._lock:
            rendezvous = self._rendezvous.setdefault(key, new_rendezvous)
        return XlaLoadedExecutable(executable, devices, rendezvous, fingerprint)

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, *, traits: int = 0) -> None:
        from pjrt.devices.xla.compilation import register_handler

        self._runtime.check_open()
        register_handler(name, handler, traits)

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
        return buffer_from_host(array, space, layout, semantics, on_done_with_host_buffer)

    def buffer_from_dlpack(self, source: Any, *, device: Device | None = None) -> XlaBuffer:
        from pjrt.devices.xla import special_buffers
        from pjrt.host_memory.external import from_dlpack

        space = self._space(device, None)
        array = from_dlpack(source)
        array_type = self._runtime.row_major_type(array.shape, array.dtype, space)
        return special_buffers.over(array, array_type, None)

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> XlaBuffer:
        from pjrt.devices.xla import special_buffers

        return special_buffers.uninitialized(spec, self._space(None, memory_space))

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> XlaBuffer:
        from pjrt.devices.xla.special_buffers import type_of_spec

        expect(error, PjrtError, "an error as pjrt.PjrtError")
        return PendingBuffer.failed(error, type_of_spec(spec, self._space(None, memory_space)))

    def create_alias_buffer(
        self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> tuple[XlaBuffer, AliasFulfillment]:
        from pjrt.devices.xla import special_buffers

        return special_buffers.alias(spec, self._space(None, memory_space))

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
        from pjrt.devices.xla import special_buffers

        return special_buffers.view(pointer, spec, self._space(device, memory_space), on_delete, stream)

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> XlaTransferManager:
        from pjrt.devices.xla.special_buffers import XlaTransferManager

        return XlaTransferManager(expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"), self._space(None, memory_space))

    # Other processes.

    def cross_host_send_buffers(
        self, buffers: Sequence[Buffer], destination_device_ids: Sequence[int], transfer_keys: Sequence[int]
    ) -> Sequence[Future[None]]:
        """Send buffers to devices of other processes, each under a key.

        Returns:
            A future for each buffer that is done when the receiver can fetch it. The buffer may be deleted then; its
            memory stays until it was fetched.
        """
        return self._cross_host_transfers().send(buffers, destination_device_ids, transfer_keys)

    def cross_host_receive_buffers(
        self, specs: Sequence[ShapeSpec], device: Device, source_device_ids: Sequence[int], transfer_keys: Sequence[int]
    ) -> Sequence[XlaBuffer]:
        space = self._space(device, None)
        return self._cross_host_transfers().receive(specs, space, source_device_ids, transfer_keys)

    def _cross_host_transfers(self) -> CrossHostTransfers:
        if self._transfers is None:
            if self._runtime.peers is None:
                raise unimplemented(PLATFORM, "cross-host transfers of a client of one process", "use buffer.copy_to")
            if not HAS_TRANSFERS:
                raise unimplemented(PLATFORM, "cross-host transfers with this jaxlib", "use 0.10 or newer")
            from pjrt.devices.xla.peers import CrossHostTransfers  # here: only jobs need it

            with self._lock:
                self._transfers = self._transfers or CrossHostTransfers(self._runtime, self._runtime.peers)
        return self._transfers

    def _space(self, device: Device | None, memory_space: MemorySpace | None) -> XlaMemorySpace:
        """Return the memory space that the caller has named, or the default one; the client must be open."""
        self._runtime.check_open()
        if memory_space is None:  # the common cases first, because each argument from the host passes here
            if device is None:
                return self._devices[0].default_memory_space
            if type(device) is XlaDevice and device.runtime is self._runtime:
                return device.default_memory_space
        return memory_space_of(choose_place(self, device, memory_space)[1], self._runtime)

    # The end.

    @property
    def is_closed(self) -> bool:
        return self._runtime.is_closed

    def close(self) -> None:
        if self._runtime.close("the client was closed; make a new one with pjrt.client('cpu')"):
            self._transfers = None
            self._notify_closed()

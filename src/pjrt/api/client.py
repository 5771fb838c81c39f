"""Clients: the way to the devices of one platform (``PjRtClient``, ``PJRT_Client``)."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pjrt.api.abi_version import RuntimeAbiVersion
from pjrt.api.alias_fulfillment import AliasFulfillment
from pjrt.api.attributes import Attributes
from pjrt.api.buffer import Buffer
from pjrt.api.capability import Capabilities
from pjrt.api.checks import expect_int
from pjrt.api.compatibility import Effort, Support, decide, only_format, try_compiling
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.cross_host import CrossHostReceive
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, NotFoundError, PjrtError, unimplemented
from pjrt.api.executable import Executable
from pjrt.api.execute_options import ExecuteContext
from pjrt.api.future import Future
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.memory_space import MemorySpace
from pjrt.api.process_info import ProcessInfo
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.topology import TopologyDescription
from pjrt.api.transfer import AsyncHostToDeviceTransferManager


class Client(abc.ABC):
    """The devices of one platform, with all that can be done on them; a context manager that closes.

    A client may be used from any number of threads. Buffers and executables keep their client alive.
    """

    __slots__ = ("__weakref__",)

    # What it is.

    @property
    @abc.abstractmethod
    def platform_name(self) -> str:
        """The platform, such as ``cpu`` or ``cuda`` (``PJRT_Client_PlatformName``)."""

    @property
    @abc.abstractmethod
    def platform_version(self) -> str:
        """The platform's version, for people (``PJRT_Client_PlatformVersion``)."""

    @property
    def library(self) -> str:
        """The path of the plugin's library; empty for a device that does not come from one."""
        return ""

    @property
    def process_index(self) -> int:
        """The number of this process among those of the job (``PJRT_Client_ProcessIndex``)."""
        return 0

    @property
    def attributes(self) -> Attributes:
        """What the client's plugin says of itself, such as ``stablehlo_current_version``
        (``PJRT_Plugin_Attributes``).
        """
        return {}

    @property
    @abc.abstractmethod
    def devices(self) -> Sequence[Device]:
        """All devices, also those of other processes (``PJRT_Client_Devices``)."""

    @property
    @abc.abstractmethod
    def addressable_devices(self) -> Sequence[Device]:
        """The devices that this process can use (``PJRT_Client_AddressableDevices``)."""

    @property
    @abc.abstractmethod
    def memory_spaces(self) -> Sequence[MemorySpace]:
        """The memory spaces that this process can use (``PJRT_Client_AddressableMemories``)."""

    @property
    @abc.abstractmethod
    def topology(self) -> TopologyDescription:
        """The description of the devices (``PJRT_Client_TopologyDescription``)."""

    @property
    def capabilities(self) -> Capabilities:
        """What the client says that its devices can do."""
        kinds = tuple(
            dict.fromkeys(space.kind for device in self.addressable_devices for space in device.memory_spaces)
        )
        known = Capabilities(num_devices=len(self.devices), memory_kinds=kinds or None)
        return known.completed(Capabilities.from_attributes(self.attributes))

    def lookup_device(self, device_id: int) -> Device:
        """The device with an id (``PJRT_Client_LookupDevice``).

        Raises:
            NotFoundError: there is none.
        """
        device_id = expect_int(device_id, "the id of a device as a whole number")
        for device in self.devices:
            if device.id == device_id:
                return device
        raise NotFoundError(
            f"'{self.platform_name}' has no device with id {device_id}; it has {[d.id for d in self.devices]}"
        )

    def lookup_addressable_device(self, local_hardware_id: int) -> Device:
        """The device of this process with a number of local hardware (``PJRT_Client_LookupAddressableDevice``).

        Raises:
            NotFoundError: there is none.
        """
        local_hardware_id = expect_int(local_hardware_id, "the number of local hardware as a whole number")
        for device in self.addressable_devices:
            if device.local_hardware_id == local_hardware_id:
                return device
        known = [d.local_hardware_id for d in self.addressable_devices]
        raise NotFoundError(
            f"'{self.platform_name}' has no device with local hardware id {local_hardware_id}; it has {known}"
        )

    @abc.abstractmethod
    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        """The devices that a program runs on when nothing else is said (``PJRT_Client_DefaultDeviceAssignment``).

        Raises:
            InvalidArgumentError: there are not that many devices.
        """

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        """The layout that such an array has on the devices when nothing else is said (Layouts extension)."""
        raise unimplemented(self.platform_name, "Client.default_layout")

    def runtime_abi_version(self) -> RuntimeAbiVersion:
        """The ABI version of the runtime, to compare executables with (AbiVersion extension)."""
        raise unimplemented(self.platform_name, "Client.runtime_abi_version")

    # Programs.

    @abc.abstractmethod
    def compile(self, program: Program | str | bytes, options: CompileOptions | None = None) -> LoadedExecutable:
        """Compiles a program and loads it on its devices (``PJRT_Client_Compile``).

        Args:
            program: the program; of text and bytes the format is told by looking at them.
            options: how to compile it; the defaults are for one device.

        Raises:
            InvalidArgumentError: it is no program, or not one that the device can read; with both versions where it is
                too new.
        """

    def supports(
        self,
        program: Program | str | bytes,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        """Whether the devices can run a program: ``compile`` asked beforehand, with reasons instead of an error.

        Args:
            program: as for ``compile``.
            options: as for ``compile``.
            effort: the effort to make; None for the cheapest that gives a yes or a no. ``Effort.COMPILE`` compiles in
                this process, with the same risk as ``compile``: ``pjrt check`` does it in another.

        Raises:
            InvalidArgumentError, DataLossError: it is no program, or the effort is none.
            FailedPreconditionError: the client is closed.
        """
        if self.is_closed:
            raise FailedPreconditionError(f"the client of '{self.platform_name}' is closed; make a new one")
        static_check = only_format(program, self.capabilities)
        return decide(effort, static_check, lambda: try_compiling(self, program, options))

    def load(self, executable: Executable, options: CompileOptions | None = None) -> LoadedExecutable:
        """Loads an executable that was compiled ahead of time (``PJRT_Client_Load``)."""
        raise unimplemented(self.platform_name, "Client.load")

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> LoadedExecutable:
        """Loads what ``Executable.serialize`` gave (``PJRT_Executable_DeserializeAndLoad``).

        Args:
            serialized: the bytes.
            options: compile options to take instead of those it was compiled with, such as another device assignment.
        """
        raise unimplemented(self.platform_name, "Client.deserialize")

    def create_execute_context(self) -> ExecuteContext:
        """A new context for ``ExecuteOptions.context`` (``PJRT_ExecuteContext_Create``)."""
        raise unimplemented(self.platform_name, "Client.create_execute_context")

    # Buffers.

    @abc.abstractmethod
    def buffer_from_host(
        self,
        array: Any,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        layout: Layout | None = None,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> Buffer:
        """Puts a host array on a device (``PJRT_Client_BufferFromHostBuffer``).

        Args:
            array: a numpy array (of any strides), or what ``numpy.asarray`` makes one of.
            device: where to; the first addressable device if neither this nor ``memory_space`` is said.
            memory_space: where to, more exactly; must belong to ``device`` if that is said too.
            layout: the layout on the device; its default if not said.
            semantics: what the device may assume about the array's memory, and for how long.
            on_done_with_host_buffer: called exactly once, when the device does not need the array's memory any more.
        """

    def buffer_from_dlpack(self, source: Any, *, device: Device | None = None) -> Buffer:
        """A buffer that shares memory with another library's array, by ``__dlpack__``, where that can be; otherwise
        an error.
        """
        raise unimplemented(self.platform_name, "Client.buffer_from_dlpack", "use buffer_from_host, which copies")

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> Buffer:
        """A buffer with memory and no particular value (``PJRT_Client_CreateUninitializedBuffer``)."""
        raise unimplemented(self.platform_name, "Client.create_uninitialized_buffer")

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> Buffer:
        """A buffer that has failed already: the error arrives wherever its value is used
        (``PJRT_Client_CreateErrorBuffer``).
        """
        raise unimplemented(self.platform_name, "Client.create_error_buffer")

    def create_alias_buffer(
        self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> tuple[Buffer, AliasFulfillment]:
        """A buffer that will become an alias of another, and the means to say of which
        (``PJRT_Client_CreateAliasBuffer``).
        """
        raise unimplemented(self.platform_name, "Client.create_alias_buffer")

    def create_view_of_device_buffer(
        self,
        pointer: int,
        spec: ShapeSpec,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        on_delete: Callable[[], object] | None = None,
        stream: int | None = None,
    ) -> Buffer:
        """A buffer over memory of the device that somebody else owns (``PJRT_Client_CreateViewOfDeviceBuffer``).

        Args:
            pointer: the address on the device; must stay valid until ``on_delete`` is called.
            spec: what lies there.
            device: the device; the first addressable one if not said.
            memory_space: the memory space; the device's default one if not said.
            on_delete: called exactly once, when the buffer does not use the memory any more.
            stream: the platform's stream on which the value becomes ready; ``None`` if it is.
        """
        raise unimplemented(self.platform_name, "Client.create_view_of_device_buffer")

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> AsyncHostToDeviceTransferManager:
        """New buffers to be filled piece by piece (``PJRT_Client_CreateBuffersForAsyncHostToDevice``)."""
        raise unimplemented(self.platform_name, "Client.create_buffers_for_async_host_to_device")

    # Memory of the host.

    def dma_map(self, memory: Any) -> None:
        """Makes host memory, an object with the buffer protocol, fit for direct transfers until ``dma_unmap``
        (``PJRT_Client_DmaMap``).
        """
        raise unimplemented(self.platform_name, "Client.dma_map")

    def dma_unmap(self, memory: Any) -> None:
        """Undoes ``dma_map`` of the same memory (``PJRT_Client_DmaUnmap``)."""
        raise unimplemented(self.platform_name, "Client.dma_unmap")

    # Other processes.

    def update_global_process_info(self, processes: Sequence[ProcessInfo]) -> None:
        """Tells the client the state of the job's processes (``PJRT_Client_UpdateGlobalProcessInfo``)."""
        raise unimplemented(self.platform_name, "Client.update_global_process_info")

    def make_cross_host_receive_buffers(self, specs: Sequence[ShapeSpec], device: Device) -> CrossHostReceive:
        """Buffers that another process fills with ``Buffer.copy_to_remote_device`` (CrossHostTransfers extension)."""
        raise unimplemented(self.platform_name, "Client.make_cross_host_receive_buffers")

    def cross_host_send_buffers(
        self, buffers: Sequence[Buffer], destination_device_ids: Sequence[int], transfer_keys: Sequence[int]
    ) -> Sequence[Future[None]]:
        """Sends buffers to devices of other processes, each under a key (CrossHostTransfers extension)."""
        raise unimplemented(self.platform_name, "Client.cross_host_send_buffers")

    def cross_host_receive_buffers(
        self, specs: Sequence[ShapeSpec], device: Device, source_device_ids: Sequence[int], transfer_keys: Sequence[int]
    ) -> Sequence[Buffer]:
        """Buffers for what other processes send under these keys (CrossHostTransfers extension)."""
        raise unimplemented(self.platform_name, "Client.cross_host_receive_buffers")

    # Functions of the host inside programs.

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, *, traits: int = 0) -> None:
        """Makes a function callable from programs by a custom call with this target name (FFI extension).

        Args:
            name: the custom call's target name.
            handler: the address of an XLA FFI handler, or a Python function, which is called with an FFI call frame's
                arguments.
            traits: the bits of ``XLA_FFI_Handler_Traits``.
        """
        raise unimplemented(self.platform_name, "Client.register_ffi_handler")

    def register_ffi_type(self, name: str) -> int:
        """Registers a type of user data for ``ExecuteContext.add_user_data`` and returns its id (FFI extension)."""
        raise unimplemented(self.platform_name, "Client.register_ffi_type")

    # Its end.

    @property
    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""

    def give_up_work(self, error: PjrtError, *, only_ask: bool = False) -> None:
        """Fail the executions that are not done with an error, because nobody waits for them any more.

        A framework's client is told so where Ctrl-C ended the framework's wait, and when the interpreter ends. Work
        that cannot be stopped goes on, and what comes of it is dropped.

        Args:
            error: why.
            only_ask: tell the functions that ask whether they should go on, and let all others come to their end.
        """
        return  # as it is of a client that can stop none

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the client (``PJRT_Client_Destroy``): waits for work under way, then gives the devices up; may be called
        again.

        Using the client, its buffers or executables afterwards is a ``FailedPreconditionError``. An implementation ends
        with ``_tell_closed``.
        """

    def add_close_callback(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` once, when the client has given its devices up: it was closed, or nobody has it any
        more. The end of the process is not told.
        """
        _finalizers.setdefault(self, []).append(_finalizer(self, callback))

    def _tell_closed(self) -> None:
        """Calls what ``add_close_callback`` was given: the last that ``close`` does."""
        for finalizer in _finalizers.pop(self, ()):
            finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<{type(self).__name__} {self.platform_name}, closed>"
        return f"<{type(self).__name__} {self.platform_name}, {len(self.devices)} devices>"


_finalizers: weakref.WeakKeyDictionary[Client, list[weakref.finalize[[], Client]]] = weakref.WeakKeyDictionary()


def _finalizer(client: Client, callback: Callable[[], object]) -> weakref.finalize[[], Client]:
    made = weakref.finalize(client, callback)
    made.atexit = False
    return made

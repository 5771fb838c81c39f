"""Clients: access to the devices of one platform (``PjRtClient``, ``PJRT_Client``)."""

from __future__ import annotations

import abc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.checks import expect_int
from pjrt.api.errors import FailedPreconditionError, NotFoundError, PjrtError, unimplemented
from pjrt.api.printable import html_table

if TYPE_CHECKING:
    from pjrt.api.buffer import AliasFulfillment, AsyncHostToDeviceTransferManager, Buffer, CrossHostReceive
    from pjrt.api.capability import Capabilities, Effort, Support
    from pjrt.api.compile_options import CompileOptions, DeviceAssignment
    from pjrt.api.device import Attributes, Device, MemorySpace
    from pjrt.api.element_type import ElementType
    from pjrt.api.executable import Executable, RuntimeAbiVersion
    from pjrt.api.future import Future
    from pjrt.api.key_value_store import ProcessInfo
    from pjrt.api.loaded_executable import ExecuteContext, LoadedExecutable
    from pjrt.api.program import AnyProgram
    from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec
    from pjrt.api.topology import TopologyDescription

_finalizers: weakref.WeakKeyDictionary[Client, list[weakref.finalize[[], Client]]] = weakref.WeakKeyDictionary()
"""The callbacks of the clients that are not closed."""


class Client(abc.ABC):
    """The devices of one platform, and everything that can be done on them; a context manager that closes the client.

    Any number of threads may use a client. Buffers and executables keep their client alive.
    """

    __slots__ = ("__weakref__",)

    # Its platform and devices.

    @property
    @abc.abstractmethod
    def platform_name(self) -> str:
        """The platform, such as ``cpu`` or ``cuda`` (``PJRT_Client_PlatformName``)."""

    @property
    @abc.abstractmethod
    def platform_version(self) -> str:
        """The platform's version, human-readable (``PJRT_Client_PlatformVersion``)."""

    @property
    def library(self) -> str:
        """The path of the plugin's library; empty for a device that is not loaded from one."""
        return ""

    @property
    def process_index(self) -> int:
        """The number of this process among those of the job (``PJRT_Client_ProcessIndex``)."""
        return 0

    @property
    def attributes(self) -> Attributes:
        """The attributes of the client's plugin, such as ``stablehlo_current_version`` (``PJRT_Plugin_Attributes``)."""
        return {}

    @property
    @abc.abstractmethod
    def devices(self) -> Sequence[Device]:
        """All devices, including those of other processes (``PJRT_Client_Devices``)."""

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
        """The declared abilities of the devices."""
        from pjrt.api.capability import Capabilities  # here, for a fast start

        kinds = tuple(
            dict.fromkeys(space.kind for device in self.addressable_devices for space in device.memory_spaces)
        )
        basics = Capabilities(num_devices=len(self.devices), memory_kinds=kinds or None)
        return basics.completed(Capabilities.from_attributes(self.attributes))

    def lookup_device(self, device_id: int) -> Device:
        """Return the device with an id (``PJRT_Client_LookupDevice``).

        Raises:
            NotFoundError: the client has no device with this id.
        """
        device_id = expect_int(device_id, "the id of a device as a whole number")
        for device in self.devices:
            if device.id == device_id:
                return device
        ids = [d.id for d in self.devices]
        raise NotFoundError(f"'{self.platform_name}' has no device with id {device_id}; it has {ids}")

    def lookup_addressable_device(self, local_hardware_id: int) -> Device:
        """Return the device of this process with a local hardware id (``PJRT_Client_LookupAddressableDevice``).

        Raises:
            NotFoundError: this process has no device with this id.
        """
        local_hardware_id = expect_int(local_hardware_id, "the number of local hardware as a whole number")
        for device in self.addressable_devices:
            if device.local_hardware_id == local_hardware_id:
                return device
        ids = [d.local_hardware_id for d in self.addressable_devices]
        raise NotFoundError(
            f"'{self.platform_name}' has no device with local hardware id {local_hardware_id}; it has {ids}"
        )

    @abc.abstractmethod
    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        """Return the default devices of a program (``PJRT_Client_DefaultDeviceAssignment``).

        Raises:
            InvalidArgumentError: the client has fewer devices than replicas × partitions.
        """

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        """Return the default layout on the devices of arrays of a type and shape (Layouts extension)."""
        raise unimplemented(self.platform_name, "Client.default_layout")

    def runtime_abi_version(self) -> RuntimeAbiVersion:
        """Return the ABI version of the runtime, to compare executables with (AbiVersion extension)."""
        raise unimplemented(self.platform_name, "Client.runtime_abi_version")

    # Programs.

    @abc.abstractmethod
    def compile(
        self, program: AnyProgram, options: CompileOptions | None = None, *, shapes: Shapes | None = None
    ) -> LoadedExecutable:
        """Compile a program and load it on its devices (``PJRT_Client_Compile``).

        Args:
            program: the program, its text or bytes, or the path of its file as a path object (a ``str`` is text). The
                format of text and bytes is detected.
            options: compile options; the defaults are for one device.
            shapes: the shapes of the arguments, for a program with dynamic shapes; see ``pjrt.stablehlo.refine``.

        Raises:
            InvalidArgumentError: the argument is not a program, not one that the device can read (if it is too new, the
                message has both versions), or not one for these shapes.
            PjrtError: the compiler refuses the program.
        """

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        """Return whether the devices can run a program: as ``compile`` would find out, but with reasons instead of an
        error.

        Args:
            program: as for ``compile``.
            options: as for ``compile``.
            effort: the effort to make; ``None`` for the cheapest that gives a yes or a no. ``Effort.COMPILE`` compiles
                in this process, with the same risk as ``compile``; ``pjrt check`` compiles in a subprocess.

        Raises:
            InvalidArgumentError: the argument is not a program, or the effort is unknown.
            DataLossError: the program's bytes are damaged.
            FailedPreconditionError: the client is closed.
        """
        if self.is_closed:
            raise FailedPreconditionError(f"the client of '{self.platform_name}' is closed; make a new one")
        from pjrt.api.capability import decide, only_format, try_compiling  # here, for a fast start

        static_check = only_format(program, self.capabilities)
        return decide(effort, static_check, lambda: try_compiling(self, program, options))

    def load(self, executable: Executable, options: CompileOptions | None = None) -> LoadedExecutable:
        """Load an executable that was compiled ahead of time (``PJRT_Client_Load``)."""
        raise unimplemented(self.platform_name, "Client.load")

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> LoadedExecutable:
        """Load the bytes of ``Executable.serialize`` (``PJRT_Executable_DeserializeAndLoad``).

        Args:
            serialized: the bytes.
            options: compile options to use instead of the executable's own, such as another device assignment.

        Raises:
            InvalidArgumentError: the bytes are not an executable of this platform.
        """
        raise unimplemented(self.platform_name, "Client.deserialize")

    def create_execute_context(self) -> ExecuteContext:
        """Return a new context for ``ExecuteOptions.context`` (``PJRT_ExecuteContext_Create``)."""
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
        """Put a host array on a device (``PJRT_Client_BufferFromHostBuffer``).

        Args:
            array: a numpy array of any strides, or anything that ``numpy.asarray`` accepts.
            device: the device; by default that of ``memory_space``, or the first addressable one.
            memory_space: the memory space; by default that of the device. It must belong to ``device`` if both are
                given.
            layout: the layout on the device; the device's default layout by default.
            semantics: how long the array's memory stays unchanged, and whether the device may use it in place.
            on_done_with_host_buffer: called exactly once, when the device does not need the array's memory any more.

        Raises:
            InvalidArgumentError: an argument is wrong, or the device and the memory space do not belong together.
            ResourceExhaustedError: the memory space is full.
        """

    def buffer_from_dlpack(self, source: Any, *, device: Device | None = None) -> Buffer:
        """Return a buffer that shares memory with another library's array, by ``__dlpack__``.

        Raises:
            InvalidArgumentError: the array cannot be shared without a copy; ``buffer_from_host`` copies.
        """
        raise unimplemented(self.platform_name, "Client.buffer_from_dlpack", "use buffer_from_host, which copies")

    def use_from_one_thread(self) -> None:  # noqa: B027 - a device that has threads of its own needs no such advice
        """Say that one thread alone executes programs, and has nothing else to do: it may compute them itself."""

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> Buffer:
        """Return a buffer with memory and no particular value (``PJRT_Client_CreateUninitializedBuffer``)."""
        raise unimplemented(self.platform_name, "Client.create_uninitialized_buffer")

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> Buffer:
        """Return a buffer that has failed: using its value raises the error (``PJRT_Client_CreateErrorBuffer``)."""
        raise unimplemented(self.platform_name, "Client.create_error_buffer")

    def create_alias_buffer(
        self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> tuple[Buffer, AliasFulfillment]:
        """Return a buffer that becomes an alias of another later, and the means to name that buffer
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
        """Return a buffer over memory of the device that the caller owns (``PJRT_Client_CreateViewOfDeviceBuffer``).

        Args:
            pointer: the address on the device; must stay valid until ``on_delete`` is called.
            spec: shape, type and layout of the array at the address.
            device: the device; the first addressable one by default.
            memory_space: the memory space; the device's default memory space by default.
            on_delete: called exactly once, when the buffer does not use the memory any more.
            stream: the platform's stream on which the value becomes ready; ``None`` if it is ready.
        """
        raise unimplemented(self.platform_name, "Client.create_view_of_device_buffer")

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> AsyncHostToDeviceTransferManager:
        """Return a manager of new buffers that are filled in pieces
        (``PJRT_Client_CreateBuffersForAsyncHostToDevice``).
        """
        raise unimplemented(self.platform_name, "Client.create_buffers_for_async_host_to_device")

    # Memory of the host.

    def dma_map(self, memory: Any) -> None:
        """Map host memory, an object with the buffer protocol, for direct transfers until ``dma_unmap``
        (``PJRT_Client_DmaMap``).
        """
        raise unimplemented(self.platform_name, "Client.dma_map")

    def dma_unmap(self, memory: Any) -> None:
        """Undo ``dma_map`` of the same memory (``PJRT_Client_DmaUnmap``)."""
        raise unimplemented(self.platform_name, "Client.dma_unmap")

    # Other processes.

    def update_global_process_info(self, processes: Sequence[ProcessInfo]) -> None:
        """Pass the state of the job's processes to the client (``PJRT_Client_UpdateGlobalProcessInfo``)."""
        raise unimplemented(self.platform_name, "Client.update_global_process_info")

    def make_cross_host_receive_buffers(self, specs: Sequence[ShapeSpec], device: Device) -> CrossHostReceive:
        """Return buffers that another process fills with ``Buffer.copy_to_remote_device`` (CrossHostTransfers
        extension).
        """
        raise unimplemented(self.platform_name, "Client.make_cross_host_receive_buffers")

    def cross_host_send_buffers(
        self, buffers: Sequence[Buffer], destination_device_ids: Sequence[int], transfer_keys: Sequence[int]
    ) -> Sequence[Future[None]]:
        """Send buffers to devices of other processes, each under a key (CrossHostTransfers extension)."""
        raise unimplemented(self.platform_name, "Client.cross_host_send_buffers")

    def cross_host_receive_buffers(
        self, specs: Sequence[ShapeSpec], device: Device, source_device_ids: Sequence[int], transfer_keys: Sequence[int]
    ) -> Sequence[Buffer]:
        """Return buffers for the values that other processes send under these keys (CrossHostTransfers extension)."""
        raise unimplemented(self.platform_name, "Client.cross_host_receive_buffers")

    # Host functions that programs call.

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, *, traits: int = 0) -> None:
        """Register a function that programs call by a custom call with this target name (FFI extension).

        Args:
            name: the custom call's target name.
            handler: the address of an XLA FFI handler, or a Python function that takes the arguments of the FFI call
                frame.
            traits: the bits of ``XLA_FFI_Handler_Traits``.

        Raises:
            AlreadyExistsError: the name has another handler.
        """
        raise unimplemented(self.platform_name, "Client.register_ffi_handler")

    def register_ffi_type(self, name: str) -> int:
        """Register a type of user data for ``ExecuteContext.add_user_data``; return its id (FFI extension)."""
        raise unimplemented(self.platform_name, "Client.register_ffi_type")

    # Its end.

    @property
    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""

    def give_up_work(self, error: PjrtError, *, only_ask: bool = False, of: Future[None] | None = None) -> None:
        """Fail the executions that are not done, because nobody waits for them any more.

        A framework's client gets this call when Ctrl-C ends the framework's wait, and when the interpreter ends. Work
        that cannot be stopped goes on, and its results are dropped.

        Args:
            error: the error that the executions fail with.
            only_ask: only ask device functions that check (``RunContext.check``) to end, and let all others finish.
            of: the future of an execution's end (``returned_futures``): only this one is given up. By default all are.
        """
        return  # The default is for clients that cannot stop any work.

    @abc.abstractmethod
    def close(self) -> None:
        """Close the client (``PJRT_Client_Destroy``): wait for work under way, then release the devices.

        Using the client, its buffers or executables afterwards raises a ``FailedPreconditionError``. A second call does
        nothing. An implementation ends with ``_notify_closed``.
        """

    def add_close_callback(self, callback: Callable[[], object]) -> None:
        """Have ``callback()`` called once, when the client was closed or collected and has released its devices.

        The end of the process does not call it.
        """
        finalizer = weakref.finalize(self, callback)
        finalizer.atexit = False
        _finalizers.setdefault(self, []).append(finalizer)

    def _notify_closed(self) -> None:
        """Call the callbacks of ``add_close_callback``; ``close`` does this last."""
        for finalizer in _finalizers.pop(self, ()):
            finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<{type(self).__name__} {self.platform_name}, closed>"
        return f"<{type(self).__name__} {self.platform_name}, {len(self.devices)} devices>"

    def _repr_html_(self) -> str:
        if self.is_closed:
            return html_table(f"{self.platform_name}, closed", ())
        kinds = Counter(device.kind for device in self.devices)
        memories = dict.fromkeys(space.kind for device in self.devices for space in device.memory_spaces)
        rows = [
            ("version", self.platform_version),
            ("devices", ", ".join(f"{count} × {kind}" for kind, count in kinds.items())),
            ("memory", ", ".join(memories)),
        ]
        return html_table(self.platform_name, rows)


class LocalHandler:
    """An FFI handler that only the process that registers it can run, such as one that uses its global variables.

    A client whose devices are in other processes has them call it here. It gets copies of the operands then, and what
    it writes into the results, which are zero before, goes back.

    Args:
        function: the handler, as ``Client.register_ffi_handler`` takes it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *buffers: Any, **attributes: Any) -> None:
        """Call the handler."""
        self._function(*buffers, **attributes)

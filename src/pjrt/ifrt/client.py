"""The IFRT client: arrays over the devices of a PJRT client (``xla::ifrt::Client``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import pjrt.api.client
from pjrt import stablehlo
from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.checks import expect, expect_all
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec
from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec, Tuple, Value, assembled, reshaped
from pjrt.ifrt.loaded_executable import LoadedExecutable
from pjrt.ifrt.reshard import Resharder
from pjrt.ifrt.sharding import DeviceList, Sharding, SingleDeviceSharding, SingleDeviceShardSemantics
from pjrt.ifrt.transfers import ProcessTransfers, buffer_shapes, copied, parts_of, parts_of_whole, put
from pjrt.stablehlo.facts.signatures import Signature, signature
from pjrt.stablehlo.reading.conversion import with_partitioning

if TYPE_CHECKING:
    from pjrt.ifrt.remap_plan import RemapPlan


class Client:
    """Global arrays and programs on them, over any client of the uniform device API.

    Args:
        client: the client whose devices are used; it stays the caller's, who closes it.

    Raises:
        InvalidArgumentError: the argument is not a ``pjrt.Client``.
    """

    __slots__ = ("__weakref__", "_resharder", "_transfers", "pjrt_client")

    runtime_type = "pjrt_ifrt"
    """The runtime below (``runtime_type``)."""

    def __init__(self, client: pjrt.api.client.Client) -> None:
        self.pjrt_client = expect(client, pjrt.api.client.Client, "a pjrt.Client, such as pjrt.client('cpu')")
        self._transfers = ProcessTransfers(self.pjrt_client)
        self._resharder = Resharder(self, self._transfers)

    # Devices.

    @property
    def devices(self) -> DeviceList:
        """All devices, also those of other processes."""
        return DeviceList(self.pjrt_client.devices)

    @property
    def addressable_devices(self) -> DeviceList:
        """The devices of this process."""
        return DeviceList(self.pjrt_client.addressable_devices)

    @property
    def process_index(self) -> int:
        """The number of this process in its job."""
        return self.pjrt_client.process_index

    @property
    def platform_name(self) -> str:
        """The platform's name."""
        return self.pjrt_client.platform_name

    @property
    def platform_version(self) -> str:
        """The platform's version, human-readable."""
        return self.pjrt_client.platform_version

    def lookup_device(self, device_id: int) -> Device:
        """Return the device with a global id.

        Raises:
            NotFoundError: the client has no such device.
        """
        return self.pjrt_client.lookup_device(device_id)

    def make_device_list(self, devices: Iterable[Device]) -> DeviceList:
        """Return a list of this client's devices (``MakeDeviceList``).

        Raises:
            InvalidArgumentError: a device belongs to another client.
        """
        device_list = DeviceList(devices)
        self._check_devices(device_list)
        return device_list

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        """Return the devices that a program runs on by default (``GetDefaultDeviceAssignment``)."""
        return self.pjrt_client.default_device_assignment(num_replicas, num_partitions)

    # Arrays from the host.

    def make_array(
        self,
        value: Any,
        sharding: Sharding | None = None,
        *,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> Array:
        """Put a whole array from the host on devices (``MakeArrayFromHostBuffer``).

        Args:
            value: a numpy array of any strides, or what ``numpy.asarray`` makes one of.
            sharding: the devices and the part of each; by default the first addressable device has all of it.
            semantics: what the devices may assume about the array's memory.
            on_done_with_host_buffer: called once, when no device needs the memory any more.

        Raises:
            InvalidArgumentError: the sharding is not for arrays of this shape, or names devices of another client.
            UnimplementedError: the sharding does not know the places of its shards.
        """
        array = np.asarray(value)
        if sharding is not None:
            expect(sharding, Sharding, "a sharding of pjrt.ifrt")
        sharding = sharding or SingleDeviceSharding(self.pjrt_client.addressable_devices[0])
        spec = ArraySpec(array.shape, ElementType.of(array.dtype), sharding)
        parts = parts_of_whole(spec, array)
        self._check_devices(spec.sharding.devices)
        return Array(self, spec, put(self.pjrt_client, spec, parts, semantics, on_done_with_host_buffer))

    def make_array_from_host_buffer_shards(
        self,
        spec: ArraySpec,
        shards: Sequence[Any],
        *,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> Array:
        """Put an array on devices, each shard from an array of its own (``MakeArraysFromHostBufferShards``).

        Args:
            spec: the array.
            shards: a numpy array for each addressable device, in the sharding's order.
            semantics: what the devices may assume about the arrays' memory.
            on_done_with_host_buffer: called once, when no device needs any of the memory any more.

        Raises:
            InvalidArgumentError: a shard is missing, or has another shape or element type than the spec says.
        """
        parts = parts_of(spec, shards)
        self._check_devices(spec.sharding.devices)
        return Array(self, spec, put(self.pjrt_client, spec, parts, semantics, on_done_with_host_buffer))

    # Arrays from arrays.

    def assemble_array_from_single_device_arrays(
        self,
        shape: Sequence[int],
        sharding: Sharding,
        arrays: Sequence[Array],
        semantics: ArrayCopySemantics = ArrayCopySemantics.REUSE_INPUT,
        *,
        element_type: ElementType | None = None,
        shard_semantics: SingleDeviceShardSemantics = SingleDeviceShardSemantics.ADDRESSABLE_SHARDS,
    ) -> Array:
        """Return one array of shards that are on their devices already (``AssembleArrayFromSingleDeviceArrays``).

        Args:
            shape: the shape of the whole array.
            sharding: the devices and the part of each.
            arrays: an array of one device for each shard, in the sharding's order.
            semantics: what happens to the shards' memory.
            element_type: the type of the elements; needed where no shard is in this process.
            shard_semantics: whether ``arrays`` has the shards of this process, or all of them.

        Raises:
            InvalidArgumentError: shards are missing, are on other devices, or do not fit; or all shards are asked for,
                and other processes have some.
        """
        expect_all(arrays, Array, "a shard as a pjrt.ifrt.Array")
        self._check_devices(sharding.devices)
        spec = assembled(shape, sharding, arrays, element_type, shard_semantics)
        buffers = [
            reshaped(buffer, spec.element_type, whole)
            for array, whole in zip(arrays, buffer_shapes(spec), strict=True)
            for buffer in array._taken(semantics)
        ]
        return Array(self, spec, buffers)

    def copy_arrays(
        self,
        arrays: Sequence[Array],
        devices: DeviceList | Iterable[Device] | None = None,
        memory_kind: str | None = None,
        semantics: ArrayCopySemantics = ArrayCopySemantics.ALWAYS_COPY,
    ) -> list[Array]:
        """Copy arrays to other devices or another kind of memory, shard by shard (``CopyArrays``).

        In a job, the processes of all these devices call it, with the same arguments.

        Args:
            arrays: arrays of one device list and one kind of memory.
            devices: as many devices; ``None`` keeps the arrays' own.
            memory_kind: the kind of memory there; ``None`` keeps the arrays' own.
            semantics: what happens to the arrays' memory; a shard that is in its place already is not copied unless
                a copy is asked for.

        Raises:
            InvalidArgumentError: the arrays differ in devices or memory kind, the number of devices is another one, or
                arrays or devices are of another client.
            UnimplementedError: a shard would move to another process, and the devices have no transfers between them.
        """
        self._check_arrays(arrays)
        places = {(array.sharding.devices, array.sharding.memory_kind) for array in arrays}
        if len(places) > 1:
            raise InvalidArgumentError(
                f"expected arrays of one device list and memory kind, found {[array.spec for array in arrays]}"
            )
        copies = []
        for array in arrays:
            target = array.sharding.with_device_assignment(devices, memory_kind)
            self._check_devices(target.devices)
            buffers = copied(array, target, semantics, self._transfers)
            copies.append(Array(self, replace(array.spec, sharding=target), buffers))
        return copies

    def remap_arrays(
        self, plan: RemapPlan, arrays: Sequence[Array], semantics: ArrayCopySemantics = ArrayCopySemantics.DONATE_INPUT
    ) -> list[Array]:
        """Return arrays made of the shards of others, without touching their data (``RemapArrays``).

        Args:
            plan: which shard of which input becomes which shard of which output.
            arrays: the inputs, as the plan describes them.
            semantics: ``DONATE_INPUT``; ``REUSE_INPUT`` for a single input.

        Raises:
            InvalidArgumentError: the plan is invalid, or the arrays are not what it describes.
        """
        from pjrt.ifrt.remap_plan import remapped  # few programs make arrays of shards of others

        return [Array(self, spec, buffers) for spec, buffers in remapped(plan, arrays, semantics)]

    def make_error_arrays(self, error: PjrtError, specs: Sequence[ArraySpec]) -> list[Array]:
        """Return arrays that have failed already: the error arrives where their values would (``MakeErrorArrays``)."""
        return [
            Array(
                self,
                spec,
                [
                    self.pjrt_client.create_error_buffer(
                        error, ShapeSpec(shape, spec.element_type, spec.layout), memory_space=space
                    )
                    for shape, space in zip(buffer_shapes(spec), spec.sharding.memory_spaces, strict=True)
                ],
            )
            for spec in specs
        ]

    def make_tuple(self, values: Sequence[Value]) -> Tuple:
        """Return several values as one (``MakeTuple``).

        Raises:
            InvalidArgumentError: a value is neither an array nor a tuple.
        """
        return Tuple(expect_all(values, (Array, Tuple), "an array or a tuple of pjrt.ifrt"))

    def get_ready_future(self, values: Sequence[Value]) -> Future[None]:
        """Return a future that is done when all values are ready (``GetReadyFuture``)."""
        if len(values) == 1:
            return values[0].ready()
        return Future.all([value.ready() for value in values])

    def reshard_arrays(
        self,
        arrays: Sequence[Array],
        shardings: Sequence[Sharding],
        semantics: ArrayCopySemantics = ArrayCopySemantics.ALWAYS_COPY,
    ) -> list[Array]:
        """Return the arrays in other shardings, on whatever devices of this client (``ReshardArrays``).

        In a job, the processes of all these devices call it, with the same arguments.

        Args:
            arrays: the arrays.
            shardings: a sharding for each.
            semantics: ``ALWAYS_COPY`` or ``DONATE_INPUT``.

        Raises:
            InvalidArgumentError: the numbers of arrays and shardings differ, the semantics is ``REUSE_INPUT``, an array
                is of another client, or a sharding is not for arrays of that shape or not on devices of this client.
            UnimplementedError: a sharding does not know the places of its shards, or values would have to move to
                another process in a way that the devices lack.
        """
        if semantics is ArrayCopySemantics.REUSE_INPUT:
            raise InvalidArgumentError("resharding makes new arrays: expected ALWAYS_COPY or DONATE_INPUT")
        if len(arrays) != len(shardings):
            raise InvalidArgumentError(f"expected a sharding for each of {len(arrays)} arrays, found {len(shardings)}")
        self._check_arrays(arrays)
        outputs = []
        for array, sharding in zip(arrays, shardings, strict=True):
            self._check_devices(sharding.devices)
            outputs.append(self._resharder.reshard(array, sharding))
            if semantics is ArrayCopySemantics.DONATE_INPUT:
                array._donate()
        return outputs

    # Programs.

    def compile(
        self, program: AnyProgram, options: CompileOptions | None = None, *, shapes: Shapes | None = None
    ) -> LoadedExecutable:
        """Compile a program for global arrays and load it on its devices (``CompileAndLoad``).

        Args:
            program: the program. Its shardings and its numbers of replicas and partitions are followed.
            options: the compile options; they win over the program.
            shapes: the shapes of the global arguments, for a program with dynamic shapes.

        Raises:
            InvalidArgumentError: the program is damaged, needs more devices than there are, or is not for these shapes.
        """
        program = Program.of(program) if shapes is None else stablehlo.refine(program, shapes)
        executable = self.pjrt_client.compile(program, with_partitioning(program, options))
        # The compiler has read the program by now; to try it in a subprocess first would cost every compilation 0.2 s.
        return LoadedExecutable(self, signature(program, trusted=True), executable)

    def deserialize(
        self, serialized: bytes, program: Program | Signature | str | bytes, options: CompileOptions | None = None
    ) -> LoadedExecutable:
        """Load what ``LoadedExecutable.serialize`` returned (``DeserializeLoadedExecutable``).

        Args:
            serialized: the bytes.
            program: the program that was compiled, or its signature: it has the global types, which executables do not
                keep.
            options: compile options to use in place of the original ones, such as another device assignment.

        Raises:
            InvalidArgumentError: the bytes are damaged, or from another platform.
        """
        return self.on_global_arrays(self.pjrt_client.deserialize(serialized, options), program)

    def on_global_arrays(
        self, executable: pjrt.api.loaded_executable.LoadedExecutable, program: Program | Signature | str | bytes
    ) -> LoadedExecutable:
        """Return an executable of the client below as one that takes and returns global arrays.

        Args:
            executable: the executable.
            program: the program that was compiled, or its signature.

        Raises:
            InvalidArgumentError: the executable is of another client.
        """
        if executable.client is not self.pjrt_client:
            raise InvalidArgumentError(f"expected an executable of {self.pjrt_client!r}, found {executable!r}")
        types = program if isinstance(program, Signature) else signature(Program.of(program))
        return LoadedExecutable(self, types, executable)

    def default_layout(self, spec: ArraySpec) -> Layout:
        """Return the layout that the shards of an array have by default (``GetDefaultLayout``)."""
        return self.pjrt_client.default_layout(spec.element_type, spec.sharding.shard_shape(spec.shape))

    def _check_arrays(self, arrays: Sequence[Array]) -> None:
        """Raise an error unless the arrays are of this client and have their values."""
        for array in expect_all(arrays, Array, "a pjrt.ifrt.Array"):
            if array.client.pjrt_client is not self.pjrt_client:
                raise InvalidArgumentError(
                    f"expected arrays of {self.pjrt_client!r}, found {array.spec} of {array.client.pjrt_client!r}"
                )
            array._check_alive()

    def _check_devices(self, devices: DeviceList) -> None:
        if devices.client is not self.pjrt_client:
            raise InvalidArgumentError(f"expected devices of {self.pjrt_client!r}, found {devices}")

    def __repr__(self) -> str:
        return f"<pjrt.ifrt.Client over {self.pjrt_client!r}>"

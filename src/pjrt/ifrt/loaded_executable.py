"""Programs on global arrays (``xla::ifrt::LoadedExecutable``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pjrt.api.loaded_executable
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.api.executable import CompiledMemoryStats
from pjrt.api.future import Future
from pjrt.api.loaded_executable import WITHOUT_TYPE, ExecuteOptions, bound, explained
from pjrt.api.shape_spec import stands_for_token
from pjrt.ifrt.array import Array, ArraySpec, reduction_of
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import ConcreteEvenSharding, DeviceList, Sharding, SingleDeviceSharding
from pjrt.stablehlo.facts.signatures import Signature
from pjrt.stablehlo.ir.sharding import Sharding as Tiling

if TYPE_CHECKING:
    from pjrt.ifrt.client import Client


class ExecuteResult(NamedTuple):
    """The results of an execution and its completion (``LoadedExecutable::ExecuteResult``).

    Attributes:
        outputs: the results.
        status: done when the execution is, failed if it failed.
    """

    outputs: list[Array]
    status: Future[None]


class LoadedExecutable:
    """A compiled program that takes and returns global arrays. Clients make it, with ``compile`` or ``deserialize``.

    Attributes:
        client: the client.
        devices: the devices, one for each partition, and the partitions of the next replica after those of the first.
        parameter_specs: the global array that each parameter takes.
        output_specs: the global array that each result is; None for a result whose shape is known only after a run.
        parameter_names: the name of each parameter in the author's program; empty where it is unknown.
    """

    __slots__ = (
        "__weakref__",
        "_accepted",
        "_donated",
        "_executable",
        "_of_kind",
        "client",
        "devices",
        "output_specs",
        "parameter_names",
        "parameter_specs",
    )

    def __init__(
        self, client: Client, types: Signature, executable: pjrt.api.loaded_executable.LoadedExecutable
    ) -> None:
        self.client = client
        self._executable = executable
        assignment = executable.device_assignment.device_ids
        self.devices = DeviceList([client.lookup_device(number) for row in assignment for number in row])
        self._of_kind: dict[str | None, Sharding] = {}  # the shardings on one device, by the kind of memory
        self.parameter_names = tuple(argument.name for argument in types.arguments)
        self._donated = frozenset(
            number
            for number, argument in enumerate(types.arguments)
            if argument.aliases_output is not None or argument.is_donor
        )
        self.parameter_specs = self._specs(
            types.arguments, executable.parameter_shardings, lambda: executable.parameter_memory_kinds
        )
        # For each parameter the sharding that last took its place: the same arguments come again and again.
        self._accepted: list[Sharding] = [spec.sharding for spec in self.parameter_specs]
        self.output_specs = self._output_specs(types.results)

    def _output_specs(self, results: Sequence[Any]) -> tuple[ArraySpec | None, ...]:
        """Return the global results.

        Raises:
            UnimplementedError: one has a dynamic size, on several devices.
        """
        executable = self._executable
        static = [result for result in results if _is_static(result)]
        if len(static) == len(results):
            return self._specs(results, executable.output_shardings, lambda: executable.output_memory_kinds)
        if len(self.devices) > 1:
            raise UnimplementedError(
                f"results of {self.name!r} have sizes that are known only after a run, and it runs on "
                f"{len(self.devices)} devices; compile it for one device, or for the shapes of its arguments"
            )
        specs = iter(self._specs(static, None, None))
        return tuple(next(specs) if _is_static(result) else None for result in results)

    def _specs(
        self, values: Sequence[Any], shardings: Sequence[bytes] | None, read_kinds: Callable[[], Sequence[str]] | None
    ) -> tuple[ArraySpec, ...]:
        """Return global arguments or results: their types are the program's, the rest is the executable's."""
        protos = [None] * len(values) if shardings is None else shardings
        kinds: Sequence[str | None] = [None] * len(values)  # the default kind
        if read_kinds is not None:
            with contextlib.suppress(UnimplementedError):  # of a device that does not report them
                kinds = read_kinds()
        return tuple(
            ArraySpec(
                value.shape,
                value.element_type,
                self._sharding(value.shape, None if value.element_type is ElementType.TOKEN else proto, kind),
            )
            for value, proto, kind in zip(values, protos, kinds, strict=True)
        )

    def _sharding(self, shape: tuple[int, ...], proto: bytes | None, memory_kind: str | None) -> Sharding:
        if len(self.devices) == 1:
            if memory_kind not in self._of_kind:
                self._of_kind[memory_kind] = SingleDeviceSharding(self.devices[0], memory_kind)
            return self._of_kind[memory_kind]
        if proto is not None and Tiling.is_maximal(proto):  # one device has the value, and the others arrays for it
            proto = None
        if self._executable.num_replicas == 1 and proto is not None:
            return HloSharding.from_proto(self.devices, proto, memory_kind)
        # Each replica has data of its own: the program states the shape of one replica's, and its partitions' shares.
        partitions = self._executable.num_partitions
        shard_shape = shape if proto is None else Tiling.from_proto(proto, partitions).shard_shape(shape)
        return ConcreteEvenSharding(self.devices, shape, shard_shape, memory_kind)

    @property
    def name(self) -> str:
        """The program's name."""
        return self._executable.name

    @property
    def pjrt_executable(self) -> pjrt.api.loaded_executable.LoadedExecutable:
        """The executable of the client below."""
        return self._executable

    @property
    def num_devices(self) -> int:
        """The number of devices that it runs on."""
        return len(self.devices)

    @property
    def addressable_devices(self) -> tuple[Device, ...]:
        """The devices of this process that it runs on."""
        return self.devices.addressable_devices

    @property
    def donatable_input_indices(self) -> frozenset[int]:
        """The parameters whose arrays an execution deletes (``GetDonatableInputIndices``)."""
        return self._donated

    def fingerprint(self) -> bytes:
        """Return bytes that are equal for equal executables (``Fingerprint``)."""
        return self._executable.fingerprint()

    def cost_analysis(self) -> Mapping[str, float | int]:
        """Return what one run costs on one device, by PJRT's keys (``GetCostAnalysis``)."""
        return self._executable.cost_analysis()

    def memory_stats(self) -> CompiledMemoryStats:
        """Return the memory that one run needs on one device (``GetCompiledMemoryStats``)."""
        return self._executable.memory_stats()

    def serialize(self) -> bytes:
        """Return the executable as bytes for ``Client.deserialize`` (``Serialize``)."""
        return self._executable.serialize()

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted."""
        return self._executable.is_deleted

    def delete(self) -> None:
        """Unload it (``Delete``); executions under way end first. May be called again."""
        self._executable.delete()

    def execute(self, arguments: Sequence[Array], options: ExecuteOptions | None = None) -> ExecuteResult:
        """Run the program (``Execute``).

        Args:
            arguments: a global array for each parameter. An array of another sharding than the parameter's is
                resharded first, unless its sharding does not know the places of its shards. Arrays that the program
                donates are deleted, unless they were resharded.
            options: how to run it.

        Raises:
            InvalidArgumentError: the number of arguments, a shape or an element type differs from the program's.
            FailedPreconditionError: an argument, or a shard of one, was deleted or donated.
        """
        futures: list[Future[None]] = []
        outputs = self._run(arguments, options, futures)
        return ExecuteResult(outputs, futures[0] if len(futures) == 1 else Future.all(futures))

    def launch(self, arguments: Sequence[Array], options: ExecuteOptions | None = None) -> list[Array]:
        """Run the program without a future of its completion (``Execute`` without ``fill_status``).

        That takes less time than ``execute``. The results have the error of an execution that fails. The arguments and
        errors are those of ``execute``.
        """
        return self._run(arguments, options)

    def __call__(self, *arguments: Any, **keywords: Any) -> tuple[Array, ...]:
        """Run the program on global arrays, whole numpy arrays or Python numbers, and return global arrays.

        Arguments are given by position or by name, and numbers take the parameter's type, as for
        ``pjrt.LoadedExecutable``.

        Raises:
            InvalidArgumentError: an argument is of another type or shape, missing, given twice, or its name is unknown.
        """
        values: Sequence[Any] = arguments
        if keywords or not WITHOUT_TYPE.isdisjoint(map(type, arguments)):
            values = bound(self, arguments, keywords)
        if len(values) != len(self.parameter_specs):
            raise self._wrong_count(len(values))
        arrays = [
            value if isinstance(value, Array) else self.client.make_array(value, spec.sharding)
            for value, spec in zip(values, self.parameter_specs, strict=True)
        ]
        try:
            return tuple(self._run(arrays))
        except InvalidArgumentError as error:
            raise explained(error, self, values) from error

    def _run(
        self,
        arguments: Sequence[Array],
        options: ExecuteOptions | None = None,
        futures: list[Future[None]] | None = None,
    ) -> list[Array]:
        try:
            rows = self._executable.execute(self._rows(arguments), options, returned_futures=futures)
        except FailedPreconditionError:
            # The device names a buffer that was deleted. To ask each buffer before would cost every execution.
            for array in arguments:
                array._check_alive()
            raise
        return [
            Array(self.client, spec or self._spec_of(rows[0][number]), [row[number] for row in rows])
            for number, spec in enumerate(self.output_specs)
        ]

    def _spec_of(self, buffer: Any) -> ArraySpec:
        """Return the global array that a buffer is, on the only device."""
        return ArraySpec(
            buffer.shape, buffer.element_type, self._sharding(buffer.shape, None, buffer.memory_space.kind)
        )

    def _rows(self, arguments: Sequence[Array]) -> list[list[Any]]:
        if len(arguments) != len(self.parameter_specs):
            raise self._wrong_count(len(arguments))
        columns = []
        for number, (array, spec) in enumerate(zip(arguments, self.parameter_specs, strict=True)):
            actual = array.spec
            if spec.element_type is ElementType.TOKEN and stands_for_token(actual.element_type, actual.shape):
                columns.append(array.buffers)
                continue
            if actual.shape != spec.shape or actual.element_type is not spec.element_type:
                raise InvalidArgumentError(f"argument {number} of {self.name!r} must be {spec}, found {actual}")
            sharding = actual.sharding
            if sharding is not spec.sharding and sharding is not self._accepted[number]:
                if _is_cut_alike(actual, spec):
                    self._accepted[number] = sharding
                else:
                    (array,) = self.client.reshard_arrays([array], [spec.sharding])
            columns.append(array.buffers)
        return [list(row) for row in zip(*columns, strict=True)] or [[] for _ in self.devices.addressable_devices]

    def _wrong_count(self, count: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self.name!r} has {len(self.parameter_specs)} parameters, found {count} arguments"
        )

    def __repr__(self) -> str:
        return f"<LoadedExecutable {self.name!r} on {self.devices}>"


def _is_static(result: Any) -> bool:
    return all(isinstance(size, int) for size in result.shape)


def _is_cut_alike(array: ArraySpec, parameter: ArraySpec) -> bool:
    """Whether the shards of an array are those that a parameter takes."""
    ours, theirs = array.sharding, parameter.sharding
    if ours == theirs:
        return True
    if (ours.devices, ours.memory_kind) != (theirs.devices, theirs.memory_kind):
        return False
    # The kinds may differ: JAX describes an array on one device of a server as one that is replicated there.
    if ours.is_fully_replicated and theirs.is_fully_replicated:
        return reduction_of(ours) is None is reduction_of(theirs)
    # A sharding that does not know the places of its shards does not contradict the program: shards of the same shapes
    # on the same devices are taken as they are, as other implementations of IFRT do.
    return isinstance(ours, ConcreteEvenSharding) and (
        ours.shard_shape(array.shape) == theirs.shard_shape(parameter.shape)
    )

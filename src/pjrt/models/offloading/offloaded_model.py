"""Models larger than the memory of the device, whose weights stay on the host."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import pjrt.api.client
import pjrt.ifrt
from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_int
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes as ArgumentShapes
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.models.binding import Argument, Binding, fitted
from pjrt.models.inputs import arrays_by_name
from pjrt.models.model import SHAPES_KEPT, CallableModel, Shapes
from pjrt.models.model_file import ModelFile
from pjrt.models.offloading.staged_program import Placement, StagedProgram
from pjrt.models.offloading.stages import OffloadPlan
from pjrt.stablehlo.facts.signatures import Parameter
from pjrt.stablehlo.ir.tree import NodeTypes

HostArray = np.ndarray[Any, Any]


class HostWeights:
    """The parameters of a model file that are weights, with their values, and those that are left for a call.

    Args:
        client: the client that runs the model.
        file: the model file. Weights that are in it are weights here.
        weights: further weights: a mapping as ``offload`` takes it, or the path of a file.

    Attributes:
        by_position: the values, by their position among the arguments of the program.
        parameters: the parameters that a call takes; ``index`` counts them alone.
        binding: finds the values of ``parameters`` among the arguments of a call.

    Raises:
        InvalidArgumentError: a weight is unknown, is given twice, or does not fit its parameter.
        NotFoundError: there is no such file.
    """

    def __init__(
        self,
        client: pjrt.ifrt.Client,
        file: ModelFile,
        weights: Mapping[Any, Any] | str | os.PathLike[str] | None,
    ) -> None:
        self._all = file.parameters
        values: Mapping[Any, Any] = arrays_by_name(weights) if isinstance(weights, str | os.PathLike) else weights or {}
        binding = Binding(file.parameters, file.input_tree)
        self._values: dict[int, HostArray] = {}
        for key, value in values.items():
            for index, leaf in binding.part(key, value).items():
                if index in self._values:
                    raise InvalidArgumentError(f"expected one value for {file.parameters[index]}, found two weights")
                array = np.asarray(fitted(client, file.parameters[index], leaf))
                self._values[index] = _contiguous(array)
        self.by_position: dict[int, HostArray] = {
            position: _contiguous(array) for position, array in file.weights.items()
        }
        for index, array in self._values.items():
            position = file.parameters[index].argument
            if position is not None:
                self.by_position[position] = array
        rest = [parameter for parameter in file.parameters if parameter.index not in self._values]
        self.parameters: Sequence[Parameter] = tuple(
            replace(parameter, index=index) for index, parameter in enumerate(rest)
        )
        self.binding = Binding(self.parameters, binding.tree_without(self._values.keys()))

    def all_shapes(self, shapes: Sequence[Sequence[int]]) -> Shapes:
        """Return the shape of each parameter of the model file.

        Args:
            shapes: the shapes of ``parameters``.

        Raises:
            InvalidArgumentError: the number of shapes differs.
        """
        if len(shapes) != len(self.parameters):
            raise InvalidArgumentError(f"expected {len(self.parameters)} shapes, found {len(shapes)}")
        others = iter(shapes)
        return tuple(
            self._values[each.index].shape if each.index in self._values else tuple(next(others)) for each in self._all
        )


def _contiguous(array: HostArray) -> HostArray:
    """Return an array that a device can read from begin to end; one that is so already is used in place."""
    return np.ascontiguousarray(array).reshape(array.shape)


WeightsArgument = Mapping[Any, Any] | str | os.PathLike[str]
"""Weights by the name, the number or the ``Parameter`` of an argument, or the path of a file of them."""


def offload(
    model: ModelFile | Program | str | bytes | os.PathLike[str],
    client: pjrt.api.client.Client | pjrt.ifrt.Client,
    /,
    *,
    weights: WeightsArgument | None = None,
    memory_limit: int | None = None,
    device: Device | None = None,
    prefetch: bool = True,
    host_memory_kind: str | None = None,
    compile_options: CompileOptions | None = None,
    shapes_kept: int = SHAPES_KEPT,
    node_types: NodeTypes | None = None,
    cache: CompilationCache | None = None,
) -> OffloadedModel:
    """Return a model that runs on a device whose memory cannot hold its weights.

    The program is divided into stages. The weights of a stage come from the host's memory while the stage before it
    runs, and are released when it has run. Activations stay on the device.

    Args:
        model: the path of a model file, or a program.
        client: the client, which stays the caller's.
        weights: the arguments that are weights: a mapping from the name of an argument, the number of a positional one,
            or a parameter of the model file, to its array or nested arrays; or the path of a ``.npz`` or
            ``.safetensors`` file with the names of parameters, such as ``params['w']``. Numpy arrays are used in place
            and must not change; those of a ``.safetensors`` file stay in the file until they are needed. Weights in
            the model's file need not be given.
        memory_limit: the most bytes of the device's memory to use; by default what is free of it now.
        device: the device; by default the first one of this process.
        prefetch: whether weights come while earlier stages run; without it, each stage waits for its own.
        host_memory_kind: the device's kind of host memory to keep the weights in, such as ``pinned_host``, from where
            some devices transfer faster; by default they stay where they are.
        compile_options: the compile options of each stage.
        shapes_kept: as of ``load_model``.
        node_types: as of ``load_model``.
        cache: a compilation cache on disk for the stages; None compiles in any case.

    Raises:
        NotFoundError: there is no such file, or the device has no such kind of memory.
        InvalidArgumentError: a weight is unknown, or does not fit its parameter; or the memory limit is unknown.
        ResourceExhaustedError: a stage that cannot be divided needs more memory than the limit.
        UnimplementedError: the program is for several devices, or has effects that are not results.
    """
    file = ModelFile.of(model)
    arrays = client if isinstance(client, pjrt.ifrt.Client) else pjrt.ifrt.Client(client)
    chosen = arrays.addressable_devices[0] if device is None else expect(device, Device, "a pjrt.Device")
    options = CompileOptions.of(compile_options).completed(file.partitioning)
    if options.partitioning.num_devices > 1:
        raise UnimplementedError(
            f"{file.source or 'the program'} is for {options.partitioning}: offloading runs programs of one "
            "device; use load_model with as many devices, each of which holds a part of the weights"
        )
    if file.signature.updates:
        raise UnimplementedError(
            f"{file.source or 'the program'} changes weights or arguments, which offloading does not keep; use "
            "load_model, with all weights on the device"
        )
    limit = _memory_limit(chosen, memory_limit)
    host_weights = HostWeights(arrays, file, weights)
    place = Placement(
        client=arrays.pjrt_client,
        device=chosen,
        space=chosen.default_memory_space,
        memory_limit=limit,
        host_space=None if host_memory_kind is None else chosen.memory_space(host_memory_kind),
        prefetch=prefetch,
        options=replace(options, device_assignment=DeviceAssignment(((chosen.id,),))),
        cache=cache,
    )
    return OffloadedModel(file, arrays, host_weights, place, shapes_kept=shapes_kept, node_types=node_types)


class OffloadedModel(CallableModel[StagedProgram]):
    """A model whose weights stay in the host's memory; ``offload`` makes it. Several threads may call it, in turns.

    A call takes the arguments that are no weights, and waits for the end: the caller's thread brings the weights.

    Args:
        file: the model file.
        client: the client.
        weights: the weights.
        place: the place of the stages.
        shapes_kept: as of ``load_model``.
        node_types: as of ``load_model``.

    Attributes:
        file: the model file.
        client: the client.
        device: the device that runs it.
        memory_limit: the most bytes of the device's memory that it uses.
    """

    def __init__(
        self,
        file: ModelFile,
        client: pjrt.ifrt.Client,
        weights: HostWeights,
        place: Placement,
        *,
        shapes_kept: int = SHAPES_KEPT,
        node_types: NodeTypes | None = None,
    ) -> None:
        super().__init__(file, weights.parameters, weights.binding, shapes_kept=shapes_kept, node_types=node_types)
        self.client = client
        self.device = place.device
        self.memory_limit = place.memory_limit
        self._weights = weights
        self._place = place
        self._sharding = pjrt.ifrt.SingleDeviceSharding(self.device)
        self._lock = threading.Lock()
        self._current: StagedProgram | None = None
        if not any(parameter.is_dynamic for parameter in file.parameters):
            self.plan()

    def plan(self, shapes: ArgumentShapes | None = None) -> OffloadPlan:
        """Return the stages, and the memory that they need; compile them unless they are kept.

        Args:
            shapes: as for ``pjrt.stablehlo.refine``, of ``parameters``; may be left out for a model without dynamic
                shapes.

        Raises:
            PjrtError: as of ``offload``, and if the compiler rejects a stage.
        """
        return self._executable(self._weights.all_shapes(self._resolved(shapes))).plan

    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        arrays = self.fitted(arguments)
        staged = self._executable(self._weights.all_shapes([array.shape for array in arrays]))
        placed = {
            parameter.argument: self._placed(array)
            for parameter, array in zip(self.parameters, arrays, strict=True)
            if parameter.argument is not None
        }
        with self._lock:
            if self._current is not None and self._current is not staged:
                self._current.release()
            self._current = staged
            buffers = staged.run(placed)
        return [self._array(buffer) for buffer in buffers]

    def values(self, results: Sequence[pjrt.ifrt.Array]) -> dict[str, HostArray]:
        """Return the values of flat results as numpy arrays by name; see ``CallSignature.result_names``."""
        return dict(zip(self.file.signature.result_names(), map(np.asarray, results), strict=True))

    def close(self) -> None:
        """Free the memory of the device and unload the executables; may be called again."""
        with self._lock:
            self._compilations.close()

    def _compile(self, shapes: Shapes) -> StagedProgram:
        program = self.file.program_for(self.client.platform_name, shapes)
        donated = {parameter.argument for parameter in self.parameters if parameter.donated}
        return StagedProgram(
            program, self._weights.by_position, frozenset(each for each in donated if each is not None), self._place
        )

    def _placed(self, argument: Argument) -> HostArray | Buffer:
        """Return an argument as an array of the host, or a buffer in the memory of the device."""
        if not isinstance(argument, pjrt.ifrt.Array):
            return argument
        if argument.sharding != self._sharding:
            (argument,) = self.client.reshard_arrays([argument], [self._sharding])
        return argument.buffers[0]

    def _array(self, buffer: Buffer) -> pjrt.ifrt.Array:
        spec = pjrt.ifrt.ArraySpec(buffer.shape, buffer.element_type, self._sharding)
        return pjrt.ifrt.Array(self.client, spec, [buffer])

    def __repr__(self) -> str:
        return f"<OffloadedModel {self.file!r} on {self.device}>"


def _memory_limit(device: Device, limit: int | None) -> int:
    """Return the bytes of a device's memory that may be used."""
    if limit is not None:
        if expect_int(limit, "the memory limit as a number of bytes") < 1:
            raise InvalidArgumentError(f"expected a memory limit of at least 1 byte, found {limit}")
        return limit
    try:
        stats = device.memory_stats()
    except UnimplementedError:
        stats = None
    if stats is not None and stats.bytes_limit:
        return stats.bytes_limit - stats.bytes_in_use
    stated = device.description.memory_limit_in_bytes
    if stated is None:
        raise InvalidArgumentError(f"the device {device} states no limit of its memory: give memory_limit, in bytes")
    return stated

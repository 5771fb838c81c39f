"""Offloading: a model whose weights are larger than the device's memory, run stage by stage."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

import pjrt.api.client
import pjrt.ifrt
from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_int
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes as ArgumentShapes
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.models.argument import Argument, all_fitted
from pjrt.models.compilations import Compilation, Compilations, Shapes
from pjrt.models.model import SHAPES_KEPT
from pjrt.models.model_file import ModelFile
from pjrt.models.offloading.host_weights import HostArray, HostWeights
from pjrt.models.offloading.offload_plan import OffloadPlan
from pjrt.models.offloading.staged_program import Placement, StagedProgram
from pjrt.stablehlo.call_signature import Parameter, Result
from pjrt.stablehlo.shapes.argument_shapes import resolve_shapes
from pjrt.stablehlo.tree import NodeTypes

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
    return OffloadedModel(
        ModelFile.of(model),
        client,
        weights=weights,
        memory_limit=memory_limit,
        device=device,
        prefetch=prefetch,
        host_memory_kind=host_memory_kind,
        compile_options=compile_options,
        shapes_kept=shapes_kept,
        node_types=node_types,
        cache=cache,
    )


class OffloadedModel:
    """A model whose weights stay in the host's memory; ``offload`` makes it. Several threads may call it, in turns.

    Attributes:
        file: the model file.
        client: the client.
        device: the device that runs it.
        memory_limit: the most bytes of the device's memory that it uses.
    """

    def __init__(
        self,
        file: ModelFile,
        client: pjrt.api.client.Client | pjrt.ifrt.Client,
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
    ) -> None:
        self.file = file
        self.client = client if isinstance(client, pjrt.ifrt.Client) else pjrt.ifrt.Client(client)
        self.device = self.client.addressable_devices[0] if device is None else expect(device, Device, "a pjrt.Device")
        options = CompileOptions.of(compile_options).completed(file.partitioning)
        if options.partitioning.num_devices > 1:
            raise UnimplementedError(
                f"{file.source or 'the program'} is for {options.partitioning}: offloading runs programs of one "
                "device; use load_model with as many devices, each of which holds a part of the weights"
            )
        self.memory_limit = _memory_limit(self.device, memory_limit)
        self._weights = HostWeights(self.client, file, weights)
        self._place = Placement(
            client=self.client.pjrt_client,
            device=self.device,
            space=self.device.default_memory_space,
            memory_limit=self.memory_limit,
            host_space=None if host_memory_kind is None else self.device.memory_space(host_memory_kind),
            prefetch=prefetch,
            options=replace(options, device_assignment=DeviceAssignment(((self.device.id,),))),
            cache=cache,
        )
        self._sharding = pjrt.ifrt.SingleDeviceSharding(self.device)
        self._node_types = node_types
        self._compilations = Compilations(shapes_kept, file.parameters)
        self._lock = threading.Lock()
        self._current: StagedProgram | None = None
        if not any(parameter.is_dynamic for parameter in file.parameters):
            self.plan()

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The arrays that a call takes, in order: those that are no weights."""
        return self._weights.parameters

    @property
    def results(self) -> Sequence[Result]:
        """The arrays that a call returns, in order."""
        return self.file.results

    @property
    def compilations(self) -> Sequence[Compilation]:
        """The compilations so far, the first one first: one for each set of shapes."""
        return self._compilations.records

    def plan(self, shapes: ArgumentShapes | None = None) -> OffloadPlan:
        """Return the stages, and the memory that they need; compile them unless they are kept.

        Args:
            shapes: as for ``pjrt.stablehlo.refine``, of ``parameters``; may be left out for a model without dynamic
                shapes.

        Raises:
            PjrtError: as of ``offload``, and if the compiler rejects a stage.
        """
        if shapes is None:
            return self._staged([each.sizes for each in self.parameters]).plan
        return self._staged(resolve_shapes(shapes, self.parameters)).plan

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the model, and wait for its end: the caller's thread brings the weights.

        Arguments and results are those of ``Model``; arguments that are weights are left out.

        Raises:
            InvalidArgumentError: arguments are missing, unknown or nested in another way, or one does not fit its
                parameter.
            FailedPreconditionError: an argument was deleted or donated, or the model is closed.
            PjrtError: a stage failed.
        """
        results = self.execute(self._weights.binding.leaves(arguments, keywords))
        tree = self.file.output_tree
        return tuple(results) if tree is None else tree.unflatten(results, self._node_types)

    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        """Run the model on a flat list of arrays, one for each of ``parameters``, and return a flat list of results.

        Raises:
            InvalidArgumentError: the number of arguments differs, or one does not fit its parameter.
        """
        arrays = all_fitted(self.client, self.parameters, arguments)
        staged = self._staged([array.shape for array in arrays])
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

    def _staged(self, shapes: Sequence[Sequence[int]]) -> StagedProgram:
        staged: StagedProgram = self._compilations.get(self._weights.all_shapes(shapes), self._compiled)
        return staged

    def _compiled(self, shapes: Shapes) -> StagedProgram:
        try:
            program = self.file.program_for(self.client.platform_name, shapes)
            donated = {parameter.argument for parameter in self.parameters if parameter.donated}
            return StagedProgram(
                program, self._weights.by_position, frozenset(each for each in donated if each is not None), self._place
            )
        except PjrtError as error:
            raise self.file.named(error) from error

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

    def __enter__(self) -> OffloadedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

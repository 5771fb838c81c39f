"""Models: a model file as a callable on a device, with its compilations, weights and replicas."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

import numpy as np

import pjrt.api.client
import pjrt.ifrt
from pjrt.api.checks import expect_int, unexpected
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, naming
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes as ArgumentShapes
from pjrt.models.binding import Argument, Binding, fitted, fitted_on_host, wrong_count
from pjrt.models.model_file import ModelFile
from pjrt.plugins import registry
from pjrt.plugins.registry import client_with_devices
from pjrt.stablehlo.facts.signatures import Parameter, Result, Signature
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.ir.argument_shapes import resolve_shapes
from pjrt.stablehlo.ir.sharding import REPLICATED, Sharding
from pjrt.stablehlo.ir.tree import NodeTypes

if TYPE_CHECKING:
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.artifacts.saved_executable import SavedExecutable
    from pjrt.stablehlo.files.torch_export import ExportedProgram


_log = logging.getLogger("pjrt.models")

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of a model.

    Attributes:
        model: the name of the program.
        shapes: the shapes of the arguments, one for each parameter.
        seconds: the time that it took; for a saved executable, the time to load it.
        dynamic: the shapes of the parameters with a dynamic size, by name; by index where a parameter has no name.
    """

    model: str
    shapes: Shapes
    seconds: float
    dynamic: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in self.dynamic.items())
        return f"compiled {self.model!r}{f' for {shapes}' if shapes else ''} in {self.seconds:.3f} s"


class Compilations:
    """A bounded number of executables by shapes. Several threads may use it; each executable is compiled once.

    Args:
        capacity: the number of executables that are kept; the least recently used one is dropped. Calls that use it
            end first, because they hold it.
        parameters: the parameters, to describe shapes.
    """

    def __init__(self, capacity: int, parameters: Sequence[Parameter]) -> None:
        if expect_int(capacity, "the number of executables to keep as a whole number") < 1:
            raise InvalidArgumentError(f"expected to keep at least 1 executable, found {capacity}")
        self._capacity = capacity
        self._parameters = parameters
        self._executables: OrderedDict[Shapes, concurrent.futures.Future[Any]] = OrderedDict()
        self._records: list[Compilation] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def records(self) -> tuple[Compilation, ...]:
        """All compilations so far, the first one first."""
        return tuple(self._records)

    def get(self, shapes: Shapes, compile_: Callable[[Shapes], Any]) -> Any:
        """Return the executable for these shapes; compile it if it is not kept.

        Args:
            shapes: the shapes of all arguments.
            compile_: compiles the program for shapes. While it runs, other threads that need the same executable wait
                for it.

        Raises:
            FailedPreconditionError: the model is closed.
            PjrtError: the compilation failed; the next call tries again.
        """
        with self._lock:
            if self._is_closed:
                raise FailedPreconditionError("the model is closed; load it again")
            future = self._executables.get(shapes)
            is_first = future is None
            if future is None:
                future = self._executables[shapes] = concurrent.futures.Future()
            else:
                self._executables.move_to_end(shapes)
        if is_first:
            self._fill(future, shapes, compile_)
        return future.result()

    def _fill(self, future: concurrent.futures.Future[Any], shapes: Shapes, compile_: Callable[[Shapes], Any]) -> None:
        begin = time.perf_counter()
        try:
            executable = compile_(shapes)
        except BaseException as error:
            with self._lock:
                if self._executables.get(shapes) is future:
                    del self._executables[shapes]
            interrupted = AbortedError("the compilation was interrupted in the thread that began it; call again")
            future.set_exception(error if isinstance(error, Exception) else interrupted)
            raise
        dynamic = {
            parameter.name or str(parameter.index): shape
            for parameter, shape in zip(self._parameters, shapes, strict=True)
            if parameter.is_dynamic
        }
        record = Compilation(executable.name, shapes, time.perf_counter() - begin, dynamic)
        with self._lock:
            self._records.append(record)
            while len(self._executables) > self._capacity:
                self._executables.popitem(last=False)
        _log.info("%s", record)
        future.set_result(executable)

    @property
    def newest(self) -> Any:
        """The executable that was used last; ``None`` before the first one."""
        with self._lock:
            done = [each for each in self._executables.values() if each.done() and not each.exception()]
        return done[-1].result() if done else None

    def close(self) -> None:
        """Drop all executables; later calls fail."""
        with self._lock:
            self._is_closed = True
            futures = [*self._executables.values()]
            self._executables.clear()
        for future in futures:
            if future.done() and not future.exception():
                future.result().delete()


# Arrays of replicas: whole arrays in and out of a program that runs several times, each replica on its own data.

Array = np.ndarray[Any, Any]


def put_on_replicas(executable: pjrt.ifrt.LoadedExecutable, index: int, value: Array) -> pjrt.ifrt.Array:
    """Return an argument on all devices: each replica gets the same value, cut over the replica's partitions.

    Args:
        executable: the executable.
        index: the position of the argument.
        value: the whole argument of one replica.
    """
    return put_on_each_replica(executable, index, [value] * executable.pjrt_executable.num_replicas)


def put_on_each_replica(executable: pjrt.ifrt.LoadedExecutable, index: int, values: Sequence[Array]) -> pjrt.ifrt.Array:
    """Return an argument on all devices: each replica gets its own value, cut over the replica's partitions.

    Args:
        executable: the executable.
        index: the position of the argument.
        values: the whole argument of each replica.
    """
    if executable.pjrt_executable.num_replicas == 1:
        return executable.client.make_array(values[0], executable.parameter_specs[index].sharding)
    tiling = _tiling(executable.pjrt_executable, "parameter_shardings", index)
    ids = executable.pjrt_executable.addressable_device_logical_ids
    shape = tiling.shard_shape(values[0].shape)
    shards = [np.ascontiguousarray(tiling.cut(values[row], partition)).reshape(shape) for row, partition in ids]
    return executable.client.make_array_from_host_buffer_shards(executable.parameter_specs[index], shards)


def values_of_replicas(executable: pjrt.ifrt.LoadedExecutable, index: int, result: pjrt.ifrt.Array) -> list[Array]:
    """Return the whole value of a result, one for each replica; wait for it.

    Args:
        executable: the executable.
        index: the position of the result.
        result: the result.
    """
    lower = executable.pjrt_executable
    if lower.num_replicas == 1:
        return [np.asarray(result)]
    tiling = _tiling(lower, "output_shardings", index)
    at = dict(zip(lower.addressable_device_logical_ids, result.buffers, strict=True))
    if tiling.is_replicated:
        return [np.asarray(at[replica, 0]) for replica in range(lower.num_replicas)]
    return [
        tiling.put_together(
            [np.asarray(at[replica, partition]) for partition in range(lower.num_partitions)], result.shape
        )
        for replica in range(lower.num_replicas)
    ]


def named_by_replica(names: Sequence[str], columns: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Return the results of all replicas by name; those of several have ``_of_replica_0`` behind the name.

    Args:
        names: the names of the results.
        columns: the value of each result on each replica.
    """
    return {
        f"{name}_of_replica_{number}" if len(column) > 1 else name: array
        for name, column in zip(names, columns, strict=True)
        for number, array in enumerate(column)
    }


def _tiling(executable: Any, name: str, index: int) -> Sharding:
    shardings = getattr(executable, name)
    return REPLICATED if shardings is None else Sharding.from_proto(shardings[index], executable.num_partitions)


class Weights:
    """The arrays of a file, each put on the devices once for each sharding that executables want it in.

    Args:
        arrays: the arrays, by their positions among the arguments of the program.
    """

    def __init__(self, arrays: Mapping[int, np.ndarray[Any, Any]]) -> None:
        self._arrays: dict[int, Array | pjrt.ifrt.Array] = dict(arrays)
        self._on_devices: dict[tuple[int, pjrt.ifrt.Sharding], pjrt.ifrt.Array] = {}
        self._lock = threading.Lock()

    @property
    def positions(self) -> frozenset[int]:
        """The positions of the weights among the arguments of the program."""
        return frozenset(self._arrays)

    def of(self, executable: pjrt.ifrt.LoadedExecutable) -> dict[int, pjrt.ifrt.Array]:
        """Return the weights as an executable takes them, by position."""
        placed = {}
        with self._lock:
            for position, array in self._arrays.items():
                sharding = executable.parameter_specs[position].sharding
                key = (position, sharding)
                if key not in self._on_devices:
                    self._on_devices[key] = put_on_replicas(executable, position, np.asarray(array))
                placed[position] = self._on_devices[key]
        return placed

    def value(self, position: int) -> Array:
        """Return the array at a position; wait for it."""
        return np.asarray(self._arrays[position])

    def replace(self, values: Mapping[int, Array | pjrt.ifrt.Array]) -> None:
        """Have other values, on the host or the devices, at some positions."""
        with self._lock:
            for position, value in values.items():
                for key in [each for each in self._on_devices if each[0] == position]:
                    del self._on_devices[key]  # a call that began may still read it
                self._arrays[position] = value
                if isinstance(value, pjrt.ifrt.Array):
                    self._on_devices[position, value.sharding] = value

    def delete(self) -> None:
        """Free the memory on the devices; may be called again."""
        with self._lock:
            for array in self._on_devices.values():
                array.delete()
            self._on_devices.clear()


Device: TypeAlias = str | Client | pjrt.ifrt.Client | None
"""The name of a device, as of ``pjrt.client``, or a client; None is the default device."""


def named_devices(devices: Sequence[Device]) -> list[tuple[str, str | Client | pjrt.ifrt.Client]]:
    """Return each device with a name that no other has: ``cpu``, then ``cpu (2)``.

    Raises:
        InvalidArgumentError: the devices are not a list, but one name or client.
        NotFoundError: there is no default device.
    """
    if isinstance(devices, str | Client | pjrt.ifrt.Client):
        raise unexpected(devices, "a list of devices such as ['cpu']")
    count: Counter[str] = Counter()
    named: list[tuple[str, str | Client | pjrt.ifrt.Client]] = []
    for each in devices:
        device = registry.default() if each is None else each
        name = device if isinstance(device, str) else device.platform_name
        count[name] += 1
        named.append((name if count[name] == 1 else f"{name} ({count[name]})", device))
    return named


# The model.

E = TypeVar("E")

SHAPES_KEPT = 16
"""The default for the number of sets of shapes whose executables a model keeps."""


class CallableModel(ABC, Generic[E]):
    """A program as a callable, with an executable of type ``E`` for each set of shapes.

    Args:
        file: the model file.
        parameters: the parameters that a call takes.
        binding: finds the values of ``parameters`` among the arguments of a call.
        shapes_kept: the number of executables that are kept.
        node_types: functions that make custom nodes of the results.

    Attributes:
        file: the model file.
        client: the client whose devices run it.
    """

    client: pjrt.ifrt.Client

    def __init__(
        self,
        file: ModelFile,
        parameters: Sequence[Parameter],
        binding: Binding,
        *,
        shapes_kept: int,
        node_types: NodeTypes | None,
    ) -> None:
        self.file = file
        self._parameters = parameters
        self._binding = binding
        self._node_types = node_types
        self._updates = file.signature.updates
        self._compilations = Compilations(shapes_kept, file.parameters)
        # For each parameter what the last array on the devices was: calls are mostly given arrays of the same kind.
        self._accepted: list[pjrt.ifrt.ArraySpec | None] = [None] * len(parameters)

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The arrays that a call takes, in order."""
        return self._parameters

    @property
    def results(self) -> Sequence[Result]:
        """The arrays that a call returns, in order."""
        return self.file.results

    @property
    def compilations(self) -> Sequence[Compilation]:
        """The compilations so far, the first one first: one for each set of shapes that was new.

        Each is logged, too, by the logger ``pjrt.models``.
        """
        return self._compilations.records

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the model, and return its results.

        An argument is nested as the file states; where the file states no structure, arguments are flat or nested, and
        a keyword is a parameter's name. An array is one of numpy or of another library, a number of Python or a list
        of such, or a result of a model on the same client, which stays on its devices. An array on the devices is
        deleted if the program donates its parameter.

        A program of ``torch.export`` may change an argument in place: a call writes into the array of numpy, or of
        another library that shares its memory with numpy.

        Returns:
            Arrays (``pjrt.ifrt.Array``) in the structure that the file states for results; a tuple where it states
            none.

        Raises:
            InvalidArgumentError: arguments are missing, unknown or nested in another way, or one does not fit its
                parameter.
            FailedPreconditionError: an argument was deleted or donated, or the model is closed.
            PjrtError: as of ``execute``.
        """
        leaves = self._binding.leaves(arguments, keywords)
        if not self._updates:
            results = self.execute(leaves)
        else:
            changed = self._changed_in_place(leaves)
            results = self.execute(leaves)
            for index, array in changed.items():
                array[...] = np.asarray(results[index])
            del results[len(results) - len(self._updates) :]
        tree = self.file.output_tree
        return tuple(results) if tree is None else tree.unflatten(results, self._node_types)

    def _changed_in_place(self, leaves: Sequence[Any]) -> dict[int, Array]:
        """Return the arrays of the caller that a call changes, by the indices of the results that are their values."""
        index_of = {parameter.argument: parameter.index for parameter in self.parameters}
        changed = {}
        for result, position in self._updates.items():
            if position in index_of:
                parameter, leaf = self.parameters[index_of[position]], leaves[index_of[position]]
                array = changed[result] = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
                if not (array.flags.writeable and np.shares_memory(array, np.asarray(leaf))):
                    raise InvalidArgumentError(
                        f"expected an array of numpy that can be written to as {parameter}, which the model changes in "
                        f"place, found {type(leaf).__name__}; or call execute, which returns the new value"
                    )
        return changed

    @abstractmethod
    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        """Run the model on a flat list of arrays, one for each of ``parameters``, and return a flat list of results.

        Behind what a call returns are the new values of weights and arguments that the program changes.

        Raises:
            InvalidArgumentError: the number of arguments differs, or one does not fit its parameter.
        """

    def fitted(self, arguments: Sequence[Any]) -> list[Argument]:
        """Return a flat list of arguments as arrays of the parameters' types, on the host or on the devices.

        Raises:
            InvalidArgumentError: the number of arguments differs, or one does not fit its parameter.
        """
        parameters, accepted = self.parameters, self._accepted
        if len(arguments) != len(parameters):
            raise wrong_count(parameters, len(arguments))
        arrays: list[Argument] = []
        for parameter, argument, spec in zip(parameters, arguments, accepted, strict=True):
            if type(argument) is pjrt.ifrt.Array and argument.spec is spec:  # its type and its client are right
                arrays.append(argument)
                continue
            array = fitted(self.client, parameter, argument)
            arrays.append(array)
            if type(array) is pjrt.ifrt.Array:
                accepted[len(arrays) - 1] = array.spec
        return arrays

    @abstractmethod
    def close(self) -> None:
        """Unload the executables. May be called again."""

    @abstractmethod
    def _compile(self, shapes: Shapes) -> E:
        """Return the program of the file, compiled for the shapes of all parameters of the file."""

    def _executable(self, shapes: Shapes) -> E:
        """Return the executable for the shapes of all parameters of the file; compile it unless it is kept."""
        executable: E = self._compilations.get(shapes, self._compiled)
        return executable

    def _compiled(self, shapes: Shapes) -> E:
        resolve_shapes(shapes, self.file.parameters)
        with naming(self.file.source):
            return self._compile(shapes)

    def _resolved(self, shapes: ArgumentShapes | None) -> Shapes:
        """Return the shapes of ``parameters``; None stands for their own, where none is dynamic."""
        if shapes is None:
            return tuple(parameter.sizes for parameter in self.parameters)
        return resolve_shapes(shapes, self.parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_model(
    model: ModelFile | Program | SavedExecutable | FileContents | ExportedProgram | str | bytes | os.PathLike[str],
    client: pjrt.api.client.Client | pjrt.ifrt.Client | str | None = None,
    /,
    *,
    compile_options: CompileOptions | None = None,
    shapes_kept: int = SHAPES_KEPT,
    node_types: NodeTypes | None = None,
    cache: CompilationCache | None = None,
    **client_options: Any,
) -> Model:
    """Return the program in a file as a callable. Nothing is compiled yet.

    Args:
        model: the path of a model file; or a program, the contents of a file, a saved executable, or a
            ``torch.export.ExportedProgram``.
        client: the client to run it on, which stays the caller's; or the name of a device, of which a client with
            enough devices is made, which ``Model.close`` closes. The default is the default device.
        compile_options: the compile options; they win over the program.
        shapes_kept: the number of executables that are kept, one for each set of shapes; the least recently used one
            is dropped.
        node_types: functions that make custom nodes of the results, by the names that their types were registered
            with; other custom nodes become a ``pjrt.stablehlo.CustomNode``.
        cache: a compilation cache on disk; None compiles in any case.
        client_options: options of the client that is made.

    Raises:
        NotFoundError: there is no such file, or no such device.
        InvalidArgumentError: the file is of no supported format, or the client has too few devices.
        FailedPreconditionError: the file has a saved executable that does not fit the client.
    """
    return Model(
        ModelFile.of(model),
        client,
        compile_options=compile_options,
        shapes_kept=shapes_kept,
        node_types=node_types,
        cache=cache,
        **client_options,
    )


class Model(CallableModel[pjrt.ifrt.LoadedExecutable]):
    """A program as a callable; ``load_model`` makes it. Several threads may call it.

    A call returns at once: the values may come later. Weights that the program changes keep their new values for the
    next call.

    Attributes:
        file: the model file.
        client: the client whose devices run it.
    """

    def __init__(
        self,
        file: ModelFile,
        client: pjrt.api.client.Client | pjrt.ifrt.Client | str | None = None,
        *,
        compile_options: CompileOptions | None = None,
        shapes_kept: int = SHAPES_KEPT,
        node_types: NodeTypes | None = None,
        cache: CompilationCache | None = None,
        **client_options: Any,
    ) -> None:
        super().__init__(
            file,
            file.parameters,
            Binding(file.parameters, file.input_tree),
            shapes_kept=shapes_kept,
            node_types=node_types,
        )
        self._cache = cache
        self._options = CompileOptions.of(compile_options).completed(file.partitioning)
        # A saved executable has its own options, which these replace as a whole.
        self._load_options = None if compile_options == CompileOptions() else compile_options
        self._weights = Weights(file.weights)
        self._changing = threading.Lock()  # held where a call takes weights and leaves new ones
        self._own_client: pjrt.api.client.Client | None = None
        if isinstance(client, str) or client is None:
            client = self._own_client = client_with_devices(
                client, self._options.partitioning.num_devices, client_options
            )
        elif client_options:
            raise InvalidArgumentError(
                f"expected options of a client only with a device's name, found {sorted(client_options)} with a client"
            )
        self.client = client if isinstance(client, pjrt.ifrt.Client) else pjrt.ifrt.Client(client)
        self._check_devices()

    def _check_devices(self) -> None:
        partitioning, count = self._options.partitioning, len(self.client.devices)
        if count < partitioning.num_devices:
            platform = self.client.platform_name
            if self._own_client is not None:
                self._own_client.close()
            raise InvalidArgumentError(
                f"{partitioning} need {partitioning.num_devices} devices, the client of {platform!r} has {count}: give "
                "it more, with the option num_devices where the device has it, or export the model for fewer"
            )

    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        arrays = self.fitted(arguments)
        # Shapes that were compiled for fit each other: only others need the time of a check.
        return self.run(self._executable(tuple(array.shape for array in arrays)), arrays)

    def put(self, value: Any, argument: str | int = 0) -> Any:
        """Return an argument of the model with its arrays on the devices, where each call finds them.

        So what stays the same is copied once: ``params = model.put(params)``. A call deletes an array on the devices
        if the program donates its parameter.

        Args:
            value: the argument, nested as a call takes it.
            argument: its name, or its number among the positional arguments; or the name of one parameter.

        Returns:
            The same nested structure of arrays (``pjrt.ifrt.Array``). An array that the program does not need stays on
            the host.

        Raises:
            InvalidArgumentError: there is no such argument, or its structure or an array does not fit; or the program
                is cut over several devices, its shapes are dynamic, and nothing was compiled yet.
        """
        leaves, whole = self._binding.part(argument, value), self._binding.whole(argument, value)
        parameters = self.parameters
        arrays = {index: fitted(self.client, parameters[index], leaf) for index, leaf in leaves.items()}
        return whole([self._put_early(parameters[index], array) for index, array in arrays.items()], self._node_types)

    def _put_early(self, parameter: Parameter, argument: Argument) -> Argument:
        """Return an argument on the devices, perhaps before anything is compiled."""
        if parameter.argument is None:
            return argument
        executable = self._compilations.newest
        if executable is None and not any(each.is_dynamic for each in self.parameters):
            executable = self.compile()
        if executable is not None:
            return self._put(executable, parameter.argument, argument)
        if self._options.partitioning.num_devices > 1:
            raise InvalidArgumentError(
                f"the shapes decide how {parameter} is cut over the devices, and nothing was compiled yet: call "
                "model.compile(…) with the sizes first"
            )
        if isinstance(argument, pjrt.ifrt.Array):
            return argument
        return self.client.make_array(argument, pjrt.ifrt.SingleDeviceSharding(self._one_device()))

    def _one_device(self) -> pjrt.api.device.Device:
        """Return the device of a program for one device."""
        options, client = self._options, self.client.pjrt_client
        if options.device_assignment is not None:
            return client.lookup_device(options.device_assignment.device_ids[0][0])
        if options.device_ordinal > 0:
            return client.lookup_addressable_device(options.device_ordinal)
        return client.addressable_devices[0]

    def placed(self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> list[Argument]:
        """Return arguments on the devices, as an executable takes them. Those that the program drops stay as they are.

        Args:
            executable: the executable, from ``compile``.
            arguments: the arguments, from ``fitted``.
        """
        return [
            argument if parameter.argument is None else self._put(executable, parameter.argument, argument)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
        ]

    def _put(self, executable: pjrt.ifrt.LoadedExecutable, position: int, argument: Argument) -> pjrt.ifrt.Array:
        if isinstance(argument, pjrt.ifrt.Array):
            return argument
        return put_on_replicas(executable, position, argument)

    def run(self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> list[pjrt.ifrt.Array]:
        """Run an executable of this model on a flat list of arguments, and return a flat list of its results.

        Args:
            executable: the executable, from ``compile``.
            arguments: the arguments, from ``fitted`` or ``placed``.
        """
        if not self._updates:
            return self._run(executable, arguments)
        with self._changing:
            results = self._run(executable, arguments)
            positions = self._weights.positions
            self._weights.replace({at: results[index] for index, at in self._updates.items() if at in positions})
        return results

    def _run(self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> list[pjrt.ifrt.Array]:
        flat, options = self.program_arguments(executable, arguments)
        return list(executable(*flat)) if options is None else executable.execute(flat, options).outputs

    @property
    def state(self) -> Mapping[str, Array]:
        """The weights that the program changes, by name, with the values that the next call begins with.

        Such as the statistics of a batch normalization, a cache, or ``torch.random``: a key of random numbers.
        """
        return {name: self._weights.value(position) for name, position in self._state_positions().items()}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Have the next call begin with other values of some weights in ``state``.

        Raises:
            InvalidArgumentError: the program changes no weight of a name, or a value does not fit it.
        """
        positions = self._state_positions()
        unknown = [name for name in values if name not in positions]
        if unknown:
            known = ", ".join(positions) or "none"
            raise InvalidArgumentError(f"expected weights that the program changes ({known}), found {unknown[0]!r}")
        given = {}
        for name, value in values.items():
            old = self._weights.value(positions[name])
            as_parameter = Parameter(0, name, ElementType.of(old.dtype), old.shape, argument=0)
            given[positions[name]] = np.array(fitted_on_host(as_parameter, value))  # the caller may change its own
        with self._changing:
            self._weights.replace(given)

    def _state_positions(self) -> dict[str, int]:
        positions, results = self._weights.positions, self.results
        return {results[index].name: at for index, at in self._updates.items() if at in positions}

    def program_arguments(
        self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]
    ) -> tuple[list[pjrt.ifrt.Array], ExecuteOptions | None]:
        """Return the arrays that an executable of this model takes, weights included, and how to execute it.

        Args:
            executable: the executable, from ``compile``.
            arguments: the arguments, from ``fitted`` or ``placed``.

        Returns:
            The arrays on the devices; and the options that keep the program from donating weights, None if it donates
            none.
        """
        row: dict[int, pjrt.ifrt.Array] = self._weights.of(executable)
        array_class = pjrt.ifrt.Array
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            position = parameter.argument
            if position is not None:
                row[position] = argument if type(argument) is array_class else self._put(executable, position, argument)
        flat = [row[position] for position in range(len(executable.parameter_specs))]
        kept = self._weights.positions & executable.donatable_input_indices
        return flat, ExecuteOptions(non_donatable_input_indices=kept) if kept else None

    def compile(self, shapes: ArgumentShapes | None = None) -> pjrt.ifrt.LoadedExecutable:
        """Return the executable for these shapes of the arguments; compile it unless it is kept.

        Args:
            shapes: as for ``pjrt.stablehlo.refine``, of the parameters; may be left out for a model without dynamic
                shapes.

        Raises:
            InvalidArgumentError: the shapes do not fit the parameters or each other, or the compiler rejects the
                program.
        """
        return self._executable(self._resolved(shapes))

    def _compile(self, shapes: Shapes) -> pjrt.ifrt.LoadedExecutable:
        if self.file.executable is not None:
            loaded = self.file.executable.load(self.client.pjrt_client, self._load_options)
            return self._with_weights(loaded, self.file.executable.program_signature())
        program = self.file.program_for(self.client.platform_name, shapes)
        if self._cache is None:
            executable = self.client.pjrt_client.compile(program, self._options)
        else:
            executable = self._cache.compile(self.client.pjrt_client, program, self._options)
        return self._with_weights(executable, self.file.signature_of(program))

    def _with_weights(self, executable: LoadedExecutable, signature: Signature) -> pjrt.ifrt.LoadedExecutable:
        """Return an executable of global arrays, with the weights on its devices before the first call."""
        loaded = self.client.on_global_arrays(executable, signature)
        self._weights.of(loaded)
        return loaded

    def values(self, executable: pjrt.ifrt.LoadedExecutable, results: Sequence[pjrt.ifrt.Array]) -> Mapping[str, Any]:
        """Return the whole values of results as numpy arrays, by name; wait for them.

        Args:
            executable: the executable that returned the results.
            results: the flat results.

        Returns:
            The values by the names of the results, such as ``result['logits']``; a result without a name is
            ``result_0`` by its index. The values of several replicas have ``_of_replica_0`` behind the name.
        """
        columns = [values_of_replicas(executable, *pair) for pair in enumerate(results)]
        return named_by_replica(self.file.signature.result_names(), columns)

    def close(self) -> None:
        """Unload the executables, and close the client if the model made it. May be called again."""
        self._compilations.close()
        self._weights.delete()
        if self._own_client is not None:
            self._own_client.close()

    def __repr__(self) -> str:
        return f"<Model {self.file!r} on {self.client.platform_name}>"

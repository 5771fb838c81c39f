"""The loaded executables of the host runtime: checks of arguments, and the paths for programs that return at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.future import Future
from pjrt.api.launch import CheckedExecutable, Parameters
from pjrt.api.loaded_executable import Argument, ExecuteOptions, FailedRunError, ValuePath
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.buffer import HostBuffer
from pjrt.host.device import HostDevice
from pjrt.host.device_memory import Allocation, Memory, has_layouts, is_in_rows
from pjrt.host.executable import Compiled, HostExecutable, LaidOutExecutable, without_traceback
from pjrt.host.execution import (
    DeviceExecution,
    DeviceRun,
    Execution,
    adopt,
    as_sequence,
    device_runs,
    hand_over,
    laid_out,
)
from pjrt.host.launch import Launch, RunContext
from pjrt.host.shutdown import runtime_lock
from pjrt.host.storage import READY, TOKEN, Storage
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy, array_dtype

if TYPE_CHECKING:
    from pjrt.host.client import HostClient
    from pjrt.host.execution import Output


def _as_token(source: Storage) -> Storage:
    """Return the token that an empty array stands for: it is ready, or fails, when the array does."""
    token = Storage(source.definition, TOKEN)
    token.queue = source.queue
    return token


# The value path of the host runtime: programs that return at once, run on the caller's thread.
#
# Its values are storages. It does what ``Execution`` does, for one device, arguments that are ready and none that is
# donated. It exists because an execution, a buffer for each result, and another thread take longer than a tiny program.

_DELETED = Storage(READY)


class HostValuePath(ValuePath):
    """The value path of a program on one device whose memory is numpy's.

    Args:
        compiled: the program.
        run: its run on the device.
        new_context: makes a context of runs, for a function that takes one.

    Attributes:
        is_closed: whether it runs nothing any more.
    """

    __slots__ = (
        "_alone", "_charges", "_client", "_context", "_device", "_function", "_makers", "_name", "_new_context",
        "_outputs", "_pace", "_parameters", "_queue", "_specs", "is_closed",
    )  # fmt: skip

    def __init__(self, compiled: Compiled, run: DeviceRun, new_context: Callable[[], RunContext]) -> None:
        outputs = run.outputs or ()
        self._function = compiled.run
        self._device = run.device
        self._client = run.device.client
        self._alone = not compiled.runs_on_caller
        self._pace = run.pace
        self._parameters = [
            (spec.shape, spec.element_type, array_dtype(spec.element_type)) for spec in compiled.parameters or ()
        ]
        self.is_closed = False
        self._name = compiled.name
        self._queue = run.device.compute
        self._specs = tuple(compiled.outputs or ())
        self._charges = [
            (output[0].account, spec.size_in_bytes) for spec, output in zip(self._specs, outputs, strict=True)
        ]
        self._outputs = [(run, output) for output in outputs]
        self._makers = [partial(self._maker, run, output) for output in outputs]
        self._new_context = new_context
        self._context = [new_context()] if compiled.takes_context else []

    @staticmethod
    def _maker(run: DeviceRun, output: Output, value: Any) -> HostBuffer:
        return _buffer(run, output, value)

    @staticmethod
    def of(
        compiled: Compiled, runs: Sequence[DeviceRun], new_context: Callable[[], RunContext]
    ) -> HostValuePath | None:
        """Return the value path of a program, or ``None`` if it needs executions."""
        if len(runs) != 1 or compiled.outputs is None or compiled.parameters is None:
            return None
        client = runs[0].device.client
        if client.memory is not None or compiled.aliases or compiled.donated:
            return None
        if not client.runs_on_caller and (compiled.takes_context or compiled.runs_on_caller is False):
            return None
        specs = (*compiled.outputs, *compiled.parameters)
        has_tokens = any(spec.element_type is ElementType.TOKEN for spec in specs)
        # With a limit, the memory of the results is reserved before the function is called.
        has_limits = any(space.account.limit is not None for space in runs[0].spaces)
        # A program without results has nothing that could hold its error.
        if has_tokens or has_limits or not compiled.outputs:
            return None
        return (ArrayPath if client.runs_on_caller else HostValuePath)(compiled, runs[0], new_context)

    @property
    def makers(self) -> Sequence[Callable[[Any], Buffer]]:
        return self._makers

    def call(self, arguments: Sequence[Argument]) -> list[Buffer] | None:
        """Run the program on buffers and numpy arrays, and return its results; ``None`` if nothing was started, because
        they are no arguments of it as they are, or an execution is needed.
        """
        if not self._may_run or len(arguments) != len(self._parameters):
            return None
        arrays: list[HostArray | None] = []
        array: HostArray | None
        for argument, (shape, element_type, dtype) in zip(arguments, self._parameters, strict=True):
            if type(argument) is np.ndarray:
                if argument.shape != shape or argument.dtype is not dtype:
                    return None
                array = aligned_copy(argument, dtype)  # as a buffer has it, which the function may keep
                array.flags.writeable = False
            elif isinstance(argument, HostBuffer):
                if argument.device is not self._device or argument.element_type is not element_type:
                    return None
                if argument.shape != shape or not _is_ready(argument._storage):
                    return None
                array = argument._storage.array
            else:
                return None
            arrays.append(array)
        return self.buffers(arrays)

    def buffers(self, arrays: Sequence[HostArray | None]) -> list[Buffer] | None:
        """Return the results for arguments that are ready, or that have failed with the program's error; ``None`` if
        the program was not run.
        """
        try:
            storages = self._run(arrays) if self._may_run else None
        except FailedRunError as failure:
            return failure.buffers
        return None if storages is None else [_buffer(*of, s) for of, s in zip(self._outputs, storages, strict=True)]

    @property
    def _may_run(self) -> bool:
        return (not self._alone or self._pace.is_quick) and not self.is_closed and not self._client._closed

    def run(self, values: list[Any], launch_id: int, futures: list[Future[None]]) -> list[Any] | None:
        if not self._may_run or not all(map(_is_ready, values)):
            return None
        return self._run([storage.array for storage in values])

    def _run(self, arrays: Sequence[HostArray | None]) -> list[Any] | None:
        queue = self._queue
        visit = queue.enter(alone=self._alone)
        if visit is None:
            return None
        begin = perf_counter()
        try:
            held = [as_sequence(self._function(*self._context, *arrays))]
            self._pace.note(perf_counter() - begin)
            is_exclusive = references.to_item(held, 0) == 1  # before the call below, which holds them too
            return self._adopted(held[0], is_exclusive)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure = self._failed(error)
        finally:
            queue.leave(visit)
        raise failure

    def _failed(self, error: BaseException) -> FailedRunError:
        """Return the error of a run, with the buffers that have it."""
        failure = error if isinstance(error, PjrtError) else without_traceback(error)
        if self._context:  # its launch may have been given up
            self._context = [self._new_context()]
        failed = [Storage(Future.failed(failure.with_traceback(None))) for _ in self._specs]
        return FailedRunError([_buffer(*of, storage) for of, storage in zip(self._outputs, failed, strict=True)])

    def value(self, buffer: Buffer) -> Any:
        return buffer._storage if isinstance(buffer, HostBuffer) else None

    def _adopted(self, results: Any, is_exclusive: bool) -> list[Any]:
        self._check_number(results)
        storages = []
        for number, (spec, (account, size)) in enumerate(zip(self._specs, self._charges, strict=True)):
            storage = Storage(READY, adopt(results, number, spec, is_exclusive))
            storage.charge(account, size)
            storages.append(storage)
        return storages

    def _check_number(self, results: Any) -> None:
        if len(results) != len(self._specs):
            raise InternalError(
                f"the device's function for {self._name!r} gave {len(results)} results, it declared {len(self._specs)}"
            )


class ArrayPath(HostValuePath):
    """The value path of a client that one thread uses, such as a worker's: its values are arrays.

    Whoever has such a client counts the memory of arrays.
    """

    __slots__ = ()

    @staticmethod
    def _maker(run: DeviceRun, output: Output, value: Any) -> HostBuffer:
        return _buffer(run, output, None if value is None else Storage(READY, value))

    def run(self, values: list[Any], launch_id: int, futures: list[Future[None]]) -> list[Any] | None:
        if self.is_closed or self._client._closed or self._queue.is_busy:
            return None
        try:
            held = [as_sequence(self._function(*self._context, *values))]
            is_exclusive = references.to_item(held, 0) == 1  # before the call below, which holds them too
            return self._adopted(held[0], is_exclusive)
        except BaseException as error:
            raise self._failed(error) from None

    def value(self, buffer: Buffer) -> Any:
        storage = buffer._storage if isinstance(buffer, HostBuffer) else None
        return storage.array if _is_ready(storage) else None

    def _adopted(self, results: Any, is_exclusive: bool) -> list[Any]:
        self._check_number(results)
        return [adopt(results, number, spec, is_exclusive) for number, spec in enumerate(self._specs)]


def _is_ready(storage: Storage | None) -> TypeGuard[Storage]:
    return storage is not None and storage.definition._done and storage.definition._error is None


def _buffer(run: DeviceRun, output: Output, storage: Storage | None) -> HostBuffer:
    space, shape, element_type, layout = output
    buffer = HostBuffer(run.device, space, shape, element_type, _DELETED if storage is None else storage, layout)
    if storage is None:
        buffer.delete()
    return buffer


# The short path: programs that return at once, run on the thread that executes them, without an execution.
#
# It does what ``DeviceExecution`` does, for one device, arguments that are ready and none that is donated. It exists
# because an execution takes longer than a tiny program.


class ShortPath:
    """The short path of a program on one device.

    Args:
        compiled: the program.
        run: its run on the device.
        memory: the memory of the client's devices.
    """

    __slots__ = ("_alone", "_count", "_function", "_memory", "_outputs", "_run")

    def __init__(self, compiled: Compiled, run: DeviceRun, memory: Memory) -> None:
        self._function = compiled.run
        self._alone = not compiled.runs_on_caller
        self._memory = memory
        self._run = run
        self._outputs = [
            (spec, output[0].size_of(spec), *output)
            for spec, output in zip(compiled.outputs or (), run.outputs or (), strict=True)
        ]
        self._count = len(self._outputs)

    @staticmethod
    def of(compiled: Compiled, runs: Sequence[DeviceRun], memory: Memory | None) -> ShortPath | None:
        """Return the short path of a program, or ``None`` if it needs executions."""
        if memory is None or len(runs) != 1 or compiled.outputs is None or compiled.parameters is None:
            return None
        if compiled.runs_on_caller is False or compiled.takes_context or compiled.takes_allocations:
            return None
        specs = (*compiled.outputs, *compiled.parameters)
        plain = all(spec.layout is None and spec.element_type is not ElementType.TOKEN for spec in specs)
        # With a limit, the memory of the results is reserved before the function is called.
        unlimited = all(space.account.limit is None for space in runs[0].spaces)
        if not plain or not unlimited or compiled.aliases or compiled.donated:
            return None
        return ShortPath(compiled, runs[0], memory)

    def call(self, inputs: Sequence[Storage]) -> Any:
        """Return what the program's function returns, or the exception that it raises; ``None`` if it was not called,
        because it takes long, an argument is not ready, or the device is at work; or there was no memory.
        """
        run = self._run
        if self._alone and not run.pace.is_quick:
            return None
        handles = []
        for storage in inputs:
            definition = storage.definition
            if not definition._done or definition._error is not None:
                return None
            handles.append(storage.array.handle)  # type: ignore[union-attr]  # an allocation: its type is checked
        queue = run.device.compute
        visit = queue.enter(alone=self._alone)
        if visit is None:
            return None
        begin = perf_counter()
        try:
            results = self._function(*handles)
            run.pace.note(perf_counter() - begin)
            return results
        except KeyboardInterrupt:
            raise
        except MemoryError:
            return None  # the device's thread can wait for memory: it holds nothing of the caller
        except BaseException as error:
            return error
        finally:
            queue.leave(visit)

    def buffers(self, results: Any, inputs: Sequence[Storage]) -> list[Buffer] | None:
        """Return the buffers of results, or ``None`` if they need an execution: they are wrong, not there yet, or
        handles of the arguments.
        """
        if type(results) is not list or len(results) != self._count:
            return None
        memory, device = self._memory, self._run.device
        handles = {id(storage.array.handle) for storage in inputs}  # type: ignore[union-attr]
        make, spec_of = device.client.buffer_type, memory.spec_of
        buffers: list[Buffer] = []
        for handle, (spec, size, space, shape, element_type, layout) in zip(results, self._outputs, strict=True):
            if id(handle) in handles or type(handle) is int or spec_of(handle) is not spec:
                return None
            handles.add(id(handle))
            storage = Storage(READY, Allocation(memory, handle, spec, space))  # type: ignore[arg-type]
            storage.charge(space.account, size)
            buffers.append(make(device, space, shape, element_type, storage, layout))
        return buffers


# The loaded executables of the host runtime.


class _LaidOutParameters(Parameters[HostBuffer]):
    """Parameters in a memory that lays out arrays its own way: the order of an argument's dimensions must agree."""

    def _check_type(self, number: int, buffer: HostBuffer, spec: ShapeSpec | None) -> None:
        super()._check_type(number, buffer, spec)
        own = None if is_in_rows(buffer._layout) else buffer._layout
        if spec is not None and spec.element_type is not ElementType.TOKEN and own != spec.layout:
            wanted = "in rows" if spec.layout is None else f"in the layout {spec.layout}"
            raise self._error(
                number, f"{wanted}, found the layout {buffer.layout}; compile the program for it, or copy"
            )


_MOST_OPEN_LAUNCHES = 1024
"""The most launches that may lack devices, where ``execute_sharded`` starts them one device at a time."""


class HostLoadedExecutable(LaidOutExecutable, CheckedExecutable):
    """A compiled program on its devices."""

    __slots__ = (
        "_caller_path", "_fingerprint", "_launches", "_parameters", "_processes", "_runs", "_short_path", "_started",
        "_tokens", "_value_path", "addressable_devices", "client", "device_assignment", "executable", "is_deleted",
    )  # fmt: skip

    addressable_devices: Sequence[HostDevice]
    client: HostClient
    device_assignment: DeviceAssignment
    executable: HostExecutable
    is_deleted: bool

    def __init__(self, client: HostClient, executable: HostExecutable) -> None:
        compiled = laid_out(executable.compiled, client.addressable_devices[0])
        super().__init__(compiled, executable.origin)
        self.client = client
        self.executable = executable
        assignment = self.device_assignment = _assignment(client, executable.origin.options)
        specs = compiled.parameters
        donated = frozenset(compiled.aliases) | frozenset(compiled.donated)
        checks = has_layouts(client.memory) and not compiled.takes_rows
        parameters = _LaidOutParameters if checks else Parameters[HostBuffer]
        self._parameters = parameters(compiled.name, client, HostBuffer, specs, donated)
        self._tokens = [n for n, spec in enumerate(specs or ()) if spec.element_type is ElementType.TOKEN]
        self.is_deleted = False
        self._runs = () if self.is_portable else device_runs(compiled, assignment, client.addressable_devices)
        self.addressable_devices = tuple(run.device for run in self._runs)
        self._processes = client.processes if client.processes.spans(assignment) else None
        self._fingerprint: str | None = None  # computed when it is first needed
        self._check_participants()
        self._short_path = ShortPath.of(compiled, self._runs, client.memory)
        self._value_path: HostValuePath | None = None
        if self._processes is None:
            self._value_path = HostValuePath.of(compiled, self._runs, self._lone_context)
        # The same, where its values are storages, for programs that are executed here.
        self._caller_path = None if client.runs_on_caller else self._value_path
        # For execute_sharded: how many runs each device has started, and the launches that lack devices.
        self._started: dict[Device, int] = dict.fromkeys(self.addressable_devices, 0)
        self._launches: dict[int, Launch] = {}

    # The program and its devices.

    @property
    def platform_name(self) -> str:
        return self.origin.platform_name

    @property
    def home(self) -> HostDevice:
        return self.client.addressable_devices[0]

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [(run.replica, run.partition) for run in self._runs]

    # Running it.

    def __call__(self, *arguments: Argument, **keywords: Argument) -> tuple[Buffer, ...]:
        path = self._caller_path
        results = None if path is None or keywords else path.call(arguments)
        return super().__call__(*arguments, **keywords) if results is None else tuple(results)

    def value_path(self) -> HostValuePath | None:
        return self._value_path

    # Its end.

    def delete(self) -> None:
        self.is_deleted = True
        if self._value_path is not None:
            self._value_path.is_closed = True

    # The start of an execution.

    def _check_usable(self) -> None:
        self.client.check_open()

    def _start(
        self, rows: Sequence[Sequence[Buffer]], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[list[Buffer]]:
        runs = self._runs
        if len(runs) == 1:
            return [self._start_at(0, rows[0], options, futures)]
        donated = self._parameters.donated(options)
        inputs = self._take(rows, self.addressable_devices, donated)
        launch = Launch(options.launch_id, self._processes)
        executions = [
            self._execution(run, row, donated, options, launch, place)
            for place, (run, row) in enumerate(zip(runs, inputs, strict=True))
        ]
        self.client.dispatcher.enqueue(executions)
        if futures is not None:
            futures.extend(execution.definition for execution in executions)
        return [run.buffers(execution) for execution, run in zip(executions, runs, strict=True)]

    def _start_at(
        self, place: int, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        return self._start_run(self._runs[place], arguments, options, futures)

    def _start_on(
        self, device: Any, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        return self._start_run(DeviceRun.of(self.compiled, device), arguments, options, futures)

    def _start_run(
        self, run: DeviceRun, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        device = run.device
        donated = self._parameters.donated(options)
        (inputs,) = self._take((arguments,), (device,), donated)
        outcome: Any = None
        buffers: list[Buffer] | None = None
        if self._short_path is not None and not options.launch_id:
            outcome = self._short_path.call(inputs)
            buffers = None if outcome is None else self._short_path.buffers(outcome, inputs)
        elif self._caller_path is not None and all(map(_is_ready, inputs)):
            buffers = self._caller_path.buffers([storage.array for storage in inputs])
        if buffers is not None:
            if futures is not None:
                futures.append(buffers[0].ready() if buffers else READY)
            return buffers
        launch = None
        if len(self._runs) > 1:
            launch = self._join_launch(device, options.launch_id)
        elif self.compiled.takes_context or options.launch_id:
            launch = Launch(options.launch_id, self._processes)
        execution = self._execution(run, inputs, donated, options, launch, 0)
        if outcome is not None and isinstance(execution, DeviceExecution):
            execution.outcome = outcome
            execution.run()
            hand_over(execution)
        else:
            self.client.dispatcher.enqueue((execution,))
        if futures is not None:
            futures.append(execution.definition)
        return run.buffers(execution)

    def _take(
        self, rows: Sequence[Sequence[Buffer]], devices: Sequence[HostDevice], donated: frozenset[int]
    ) -> list[list[Storage]]:
        """Return the storages of arguments, one list a device; the buffers of the donated ones are deleted.

        Everything is checked before anything is deleted, so that a call that raises changes nothing.

        Raises:
            InvalidArgumentError: number, type or device of the arguments is wrong, or a donated one is used twice.
            FailedPreconditionError: an argument was deleted or donated before.
        """
        parameters = self._parameters
        checked = [parameters.checked(row, device) for row, device in zip(rows, devices, strict=True)]
        if not donated:
            storages = [[buffer.use() for buffer in row] for row in checked]
        else:
            with runtime_lock:  # Of two calls that donate the same argument, one must fail.
                storages = [[buffer.use() for buffer in row] for row in checked]
                for row in checked:
                    parameters.check_donated_once(row, donated)
                for row in checked:
                    for number in donated:
                        if number < len(row):
                            row[number].delete()
        for number in self._tokens:
            for inputs in storages:
                inputs[number] = _as_token(inputs[number])
        return storages

    def _execution(
        self,
        run: DeviceRun,
        inputs: list[Storage],
        donated: frozenset[int],
        options: ExecuteOptions,
        launch: Launch | None,
        place: int,
    ) -> Execution:
        context = None
        if self.compiled.takes_context and launch is not None:
            context = RunContext(
                run, self.device_assignment, options, launch, place, self.name, self._fingerprint_in_job()
            )
        execution = Execution if self.client.memory is None else DeviceExecution
        return execution(self.compiled, run, inputs, donated, launch, context)

    def _lone_context(self) -> RunContext:
        """Return a context for runs with default options on the only device."""
        (run,) = self._runs
        return RunContext(run, self.device_assignment, ExecuteOptions(), Launch(), 0, self.name)

    def _fingerprint_in_job(self) -> str:
        """Return the program's fingerprint if it runs on devices of several processes; empty if not."""
        if self._fingerprint is None:
            self._fingerprint = self.client.fingerprint_of(self.executable) if self._processes is not None else ""
        return self._fingerprint

    def _join_launch(self, device: Device, launch_id: int) -> Launch:
        """Return the launch of a run that is started alone: the n-th runs of all devices are one launch."""
        with runtime_lock:
            number = self._started[device]
            self._started[device] = number + 1
            launch = self._launches.get(number)
            if launch is None:
                launch = self._launches[number] = Launch(launch_id, self._processes)
            if all(started > number for started in self._started.values()):
                del self._launches[number]
            elif len(self._launches) > _MOST_OPEN_LAUNCHES:
                # Forget the oldest: its other devices will hardly be started any more.
                del self._launches[next(iter(self._launches))]
            return launch

    def _check_participants(self) -> None:
        """Check that the devices that take part in a collective can meet.

        Raises:
            UnimplementedError: they are in processes that cannot exchange values.
        """
        participants = self.compiled.participants
        if self._processes is None or participants is None:
            return
        assignment = self.device_assignment
        for run in self._runs:
            place = (run.replica, run.partition)
            for group in participants(place, assignment.num_replicas, assignment.num_partitions):
                self._processes.roster(assignment, group, f"a collective of the program {self.name!r}")


def _assignment(client: HostClient, options: CompileOptions) -> DeviceAssignment:
    """Return the devices that a program runs on by its options.

    Raises:
        NotFoundError: the client has no device with one of the ids.
    """
    assignment = options.device_assignment
    how = options.partitioning
    if assignment is None and options.device_ordinal > 0 and how.num_devices == 1:
        device = client.lookup_addressable_device(options.device_ordinal)
        assignment = DeviceAssignment(((device.id,),))
    if assignment is None:
        assignment = client.default_device_assignment(how.num_replicas, how.num_partitions)
    for row in assignment.device_ids:
        for device_id in row:
            client.lookup_device(device_id)
    return assignment

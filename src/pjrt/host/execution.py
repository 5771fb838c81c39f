"""Executions: a program's run on one device, as a task for its work queue, once its inputs are ready."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    CancelledError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
)
from pjrt.api.future import Future, when_all_done
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.api.waits import server_here, time_left
from pjrt.host.device import HostDevice, HostMemorySpace
from pjrt.host.device_memory import (
    Allocation,
    HandleTable,
    Memory,
    handle_of,
    has_layouts,
    kept_spec,
)
from pjrt.host.executable import Compiled, without_traceback
from pjrt.host.fences import Completion, Enqueued, FenceWaiter, running, wait_for, waiting_function
from pjrt.host.shutdown import is_exiting, is_lost, runtime_lock
from pjrt.host.storage import READY, TOKEN, Storage, freeze, is_any_alone, take_writable
from pjrt.host.work_queue import Copy, Task, WorkQueue, wanted_executions
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy, array_dtype, is_laid_out, order_of_spec

if TYPE_CHECKING:
    from pjrt.host.launch import Launch, RunContext

Output = tuple[HostMemorySpace, tuple[int, ...], ElementType, TiledLayout | None]
"""The memory space, shape, element type and layout of an output; the layout is ``None`` if it is row-major."""


class Pace:
    """The time that a program's function takes on a device, as its last runs say.

    Attributes:
        seconds: the time of a run; endless before the first one. A slower run counts at most twice what it was before,
            because one run in many is interrupted by other threads.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """Note the time of a run."""
        self.seconds = min(seconds, 2 * self.seconds)

    @property
    def is_quick(self) -> bool:
        """Whether a run takes no longer than handing it over to another thread."""
        return self.seconds < _QUICK_SECONDS


_QUICK_SECONDS = 50e-6


class DeviceRun(NamedTuple):
    """A program on one device: what is the same in each execution there, worked out once.

    Attributes:
        device: the device.
        replica: the replica that it runs.
        partition: the partition of the replica.
        spaces: the memory of each output; the last one serves for all further outputs.
        outputs: the outputs; ``None`` if the program does not declare them.
        sizes: the bytes of each declared output.
        pace: how long the function takes.
    """

    device: HostDevice
    replica: int
    partition: int
    spaces: tuple[HostMemorySpace, ...]
    outputs: tuple[Output, ...] | None
    sizes: tuple[int, ...]
    pace: Pace

    @staticmethod
    def of(compiled: Compiled, device: HostDevice, replica: int = 0, partition: int = 0) -> DeviceRun:
        """Return the run of a program on a device.

        Raises:
            InvalidArgumentError: the device has no memory of a kind that the program declares.
        """
        try:
            for kind in compiled.parameter_memory_kinds or ():
                _space(device, kind)
            spaces = tuple(_space(device, kind) for kind in compiled.output_memory_kinds or (None,))
        except NotFoundError as error:
            raise InvalidArgumentError(f"the program asks for memory that is not there: {error.message}") from None
        specs = compiled.outputs
        outputs = None if specs is None else _outputs(spaces, specs)
        last = len(spaces) - 1
        sizes = tuple(spaces[min(n, last)].size_of(spec) for n, spec in enumerate(specs or ()))
        return DeviceRun(device, replica, partition, spaces, outputs, sizes, Pace())

    def buffers(self, execution: Execution) -> list[Buffer]:
        """Return the output buffers of an execution; wait for it if the program does not declare its outputs.

        Raises:
            PjrtError: the execution was waited for and has failed.
        """
        outputs = self.outputs
        if outputs is None:
            execution.definition.result()
            outputs = _outputs(self.spaces, [_spec_of(storage) for storage in execution.outputs or ()])
        device = self.device
        buffer_type = device.client.buffer_type
        return [
            buffer_type(device, space, shape, element_type, storage, layout)
            for (space, shape, element_type, layout), storage in zip(outputs, execution.outputs or (), strict=True)
        ]


def _spec_of(storage: Storage) -> ShapeSpec:
    """Return the type of an output that the program did not declare."""
    value: Any = storage.array
    return value.spec if isinstance(value, Allocation) else ShapeSpec.of(value)


def _space(device: HostDevice, kind: str | None) -> HostMemorySpace:
    return device.default_memory_space if kind is None else device.memory_space(kind)


def _outputs(spaces: tuple[HostMemorySpace, ...], specs: Sequence[ShapeSpec]) -> tuple[Output, ...]:
    last = len(spaces) - 1
    return tuple(
        (
            spaces[min(n, last)],
            spec.shape,
            spec.element_type,
            spaces[min(n, last)].layout(spec),
        )
        for n, spec in enumerate(specs)
    )


def laid_out(compiled: Compiled, device: HostDevice) -> Compiled:
    """Return a program with the types of its parameters and outputs as allocations of a device's own memory have them.

    Raises:
        InvalidArgumentError: the device has no memory of a kind that the program declares.
        UnimplementedError: the memory holds no arrays in a layout that the program declares.
    """
    memory = device.client.memory
    if memory is None or all(spec.layout is None for spec in (*(compiled.parameters or ()), *(compiled.outputs or ()))):
        return compiled
    author: Memory = memory

    def kept(specs: Sequence[ShapeSpec] | None, kinds: Sequence[str | None] | None) -> list[ShapeSpec] | None:
        if specs is None:
            return None
        named = kinds or [None]
        try:
            spaces = [_space(device, named[min(n, len(named) - 1)]) for n in range(len(specs))]
        except NotFoundError as error:
            raise InvalidArgumentError(f"the program asks for memory that is not there: {error.message}") from None
        if compiled.takes_rows and not has_layouts(author):  # what a framework asks for, the runtime in C converts
            return [_without_layout(spec) for spec in specs]
        return [kept_spec(author, spec, space) for spec, space in zip(specs, spaces, strict=True)]

    return replace(
        compiled,
        parameters=kept(compiled.parameters, compiled.parameter_memory_kinds),
        outputs=kept(compiled.outputs, compiled.output_memory_kinds),
    )


def device_runs(
    compiled: Compiled, assignment: DeviceAssignment, devices: Sequence[HostDevice]
) -> tuple[DeviceRun, ...]:
    """Return the runs on these devices, in the order of the assignment."""
    by_id = {device.id: device for device in devices}
    return tuple(
        DeviceRun.of(compiled, by_id[device_id], replica, partition)
        for replica, row in enumerate(assignment.device_ids)
        for partition, device_id in enumerate(row)
        if device_id in by_id
    )


# Executions: a program's run on one device, as a task for its work queue.

_log = logging.getLogger("pjrt")


class Execution:
    """Calls the program's function when its turn comes, and passes its results, or its error, to the outputs.

    Attributes:
        device: the device that runs it.
        definition: the definition event of all outputs: they come together.
        inputs: the arguments of the function; dropped as soon as it has returned.
        outputs: the storages of the results; ``None`` until it has run if the program does not declare them.
    """

    __slots__ = (
        "_compiled", "_context", "_donated", "_launch", "_pace", "_sizes", "_spaces", "definition", "device", "inputs",
        "outputs",
    )  # fmt: skip

    def __init__(
        self,
        compiled: Compiled,
        run: DeviceRun,
        inputs: list[Storage],
        donated: frozenset[int],
        launch: Launch | None,
        context: RunContext | None,
    ) -> None:
        self._compiled = compiled
        self.device = run.device
        self._donated = donated
        self._launch = launch
        self._context = context
        self.inputs = inputs
        self._spaces = run.spaces
        self._sizes = run.sizes
        self._pace = run.pace
        self.definition: Future[None] = Future()
        declared = compiled.outputs
        self.outputs = None if declared is None else [Storage(self.definition) for _ in declared]
        if launch is not None:
            launch.begin(self)
            if launch.launch_id:
                self.device.launches[self] = None

    @property
    def runs_on_caller(self) -> bool:
        """Whether it may run on the thread that enqueues it."""
        return self._compiled.runs_on_caller is True or (self.device.client.runs_on_caller and not self.spans_processes)

    @property
    def may_wait_for_caller(self) -> bool:
        """Whether the function may wait for what the caller does later: for values of the infeed, for example."""
        return self._compiled.takes_context

    @property
    def spans_processes(self) -> bool:
        """Whether devices of other processes take part in the launch."""
        return self._launch is not None and self._launch.processes is not None

    @property
    def launch_id(self) -> int:
        """The launch id that the caller gave, 0 for none."""
        return 0 if self._launch is None else self._launch.launch_id

    @property
    def is_wanted(self) -> bool:
        """Whether an owner of its results, or of values that are computed from them, is left."""
        return self in wanted_executions(self.device.client.dispatcher.unfinished())

    def run(self) -> None:
        """Do the work, on the device's thread."""
        error: PjrtError | None
        try:
            error = self._input_error() or self._compute()
        except PjrtError as raised:
            error = raised.with_traceback(None)
        except BaseException as raised:
            error = without_traceback(raised)
        if error is None:
            error = self._finish()
        if error is not None:
            self.fail(error)

    def fail(self, error: PjrtError) -> None:
        """Fail the outputs with this error, and end the waits of the launch's other devices."""
        self._give_up()
        if self._launch is not None:
            self._launch.abort(error)
        # Asked before the waiting threads get the error: one of them may end the interpreter at once.
        nobody_will_see = is_lost(error) and (self._launch is None or not self._launch.is_given_up)
        if self.definition._complete(None, error) and nobody_will_see:
            _log.error("an execution of %r failed while the interpreter ended: %s", self._compiled.name, error)

    def poison(self, error: PjrtError) -> bool:
        """Fail the outputs at once, whatever the function is doing; return whether they were still to come."""
        if not self.definition._complete(None, error):
            return False
        self.ask_to_end(error)
        return True

    def ask_to_end(self, error: PjrtError) -> None:
        """Ask the function and the other devices of the launch to end, because nobody waits for them any more."""
        if self._launch is not None:
            self._launch.give_up(error)

    def _finish(self) -> PjrtError | None:
        self._context = None
        self._leave_launch()
        if self.definition._complete(None):
            return None
        return self.definition._error  # It was poisoned while it ran.

    def _give_up(self) -> None:
        self.inputs = []
        self._context = None
        for storage in self.outputs or ():
            storage.array = None
            storage.give_back()
        self._leave_launch()

    def _leave_launch(self) -> None:
        if self._launch is not None:
            self._launch.end(self)
            self.device.launches.pop(self, None)

    def _input_error(self) -> PjrtError | None:
        for storage in self.inputs:
            error = storage.definition._error
            if error is not None:
                return error
        if self._launch is not None:
            self._launch.check_wanted()
        return self.definition._error  # It was poisoned or given up while it was waiting.

    def _compute(self) -> PjrtError | None:
        """Call the function and adopt its results; return the error that it raised."""
        compiled = self._compiled
        outputs = self.outputs
        if outputs is not None:
            self._reserve(outputs)
        arrays = self._arrays()
        begin = perf_counter()
        try:
            results = as_sequence(
                compiled.run(*arrays) if self._context is None else compiled.run(self._context, *arrays)
            )
        except BaseException as error:
            return without_traceback(error)
        self._pace.note(perf_counter() - begin)
        # From here on, donated arrays that the results reuse are held by the results alone.
        arrays.clear()
        self.inputs = []
        held = [results]
        del results
        exclusive = references.to_item(held, 0) == 1
        results = held[0]
        if outputs is None:
            self.outputs = self._adopt_undeclared(results, exclusive)
            return None
        declared = compiled.outputs
        assert declared is not None
        if len(results) != len(declared):
            raise InternalError(
                f"the device's function for {compiled.name!r} gave {len(results)} results, it declared {len(declared)}"
            )
        for number, spec in enumerate(declared):
            outputs[number].array = adopt(results, number, spec, exclusive)
        return None

    def _arrays(self) -> list[HostArray | None]:
        """Return the arguments of the function; for donated ones arrays that it may write to."""
        inputs = self.inputs
        arrays: list[HostArray | None] = [None if s.is_token else s.array for s in inputs]
        for number in self._donated:
            if number < len(inputs) and not inputs[number].is_token:
                arrays[number] = None
                arrays[number] = take_writable(inputs, number)
        return arrays

    def _reserve(self, outputs: list[Storage]) -> None:
        """Charge the memory of the outputs before anything is computed; that of aliased arguments is taken over, unless
        it lies in another order.
        """
        compiled = self._compiled
        inherited: set[int] = set()
        for parameter, output in compiled.aliases.items():
            order = None if compiled.parameters is None else compiled.parameters[parameter].layout
            is_same = compiled.outputs is None or compiled.outputs[output].layout == order
            if is_same and parameter in self._donated and parameter < len(self.inputs):
                inherited.add(output)
                outputs[output].take_charge_of(self.inputs[parameter])
        for number, size in enumerate(self._sizes):
            if number not in inherited:
                outputs[number].charge(self._space(number).account, size)

    def _adopt_undeclared(self, results: Any, exclusive: bool) -> list[Storage]:
        storages = []
        for number in range(len(results)):
            storage = Storage(self.definition)
            array = adopt(results, number, None, exclusive)
            storage.charge(self._space(number).account, array.nbytes)
            storage.array = array
            storages.append(storage)
        return storages

    def _space(self, number: int) -> HostMemorySpace:
        return self._spaces[min(number, len(self._spaces) - 1)]


def as_sequence(results: Any) -> Any:
    """Return the results of a device's function as a sequence: a single array becomes a list of one.

    Work that the function has enqueued is waited for.
    """
    if isinstance(results, Enqueued):
        wait_for(results.fence)
        return as_sequence(results.results)
    if isinstance(results, (tuple, list)):
        return results
    return [results]


def adopt(results: Any, number: int, spec: ShapeSpec | None, exclusive: bool) -> HostArray:
    """Return a result as the array of an output, without a copy if its memory has no other user.

    Args:
        results: the sequence that holds the result.
        number: the result's position in it.
        spec: the declared type; ``None`` accepts every type.
        exclusive: whether the caller is the sequence's only holder.
    """
    if spec is not None and spec.element_type is ElementType.TOKEN:
        return TOKEN
    mine = exclusive and references.to_item(results, number) == 1
    result = results[number]
    array: HostArray = result if type(result) is np.ndarray else np.asarray(result)
    if spec is None:
        ElementType.of(array.dtype)
    elif array.shape != spec.shape or not _has_dtype(array, spec.element_type):
        raise InternalError(
            f"the device's function gave {array.dtype}{list(array.shape)} for output {number}, it declared {spec}"
        )
    # An array that numpy made of another object is a view of that object, or owns its memory alone.
    flags = array.flags
    mine = mine and (flags.owndata or type(array.base) is np.ndarray) and references.is_sole_base(array)
    if spec is not None and spec.layout is not None:
        order = order_of_spec(spec)
        if not (mine and is_laid_out(array, order)):
            array = aligned_copy(array, array.dtype.newbyteorder("="), order)
        return freeze(array)
    if not (mine and flags.c_contiguous and flags.aligned and array.dtype.isnative):
        array = aligned_copy(array, array.dtype.newbyteorder("="))
    return freeze(array)


def _has_dtype(array: HostArray, element_type: ElementType) -> bool:
    expected = array_dtype(element_type)
    return array.dtype is expected or array.dtype.newbyteorder("=") == expected


# Executions on devices with memory of their own: programs take handles and return handles.


class DeviceExecution(Execution):
    """Calls a program's function with handles, and makes storages of the handles that it returns.

    A function that returns ``Enqueued`` has its outputs at once, and their definition when the fence says so.

    Attributes:
        outcome: what the function has returned or raised, if it was called before (see ``ShortPath``).
    """

    __slots__ = ("_completion", "_fence", "outcome")

    def __init__(self, *arguments: Any) -> None:
        self._fence: Any = None
        self.outcome: Any = None
        self._completion: Completion | None = None
        super().__init__(*arguments)

    def _compute(self) -> PjrtError | None:
        running.definition = self.definition
        try:
            return self._compute_on_device()
        finally:
            running.definition = None

    def _compute_on_device(self) -> PjrtError | None:
        compiled = self._compiled
        if self.outputs is not None:
            self._reserve(self.outputs)
        arguments = self._allocations()
        values = arguments if compiled.takes_allocations else list(map(handle_of, arguments))
        results, self.outcome = self.outcome, None
        if results is None:
            results = self._call(values)
        while isinstance(results, MemoryError) and self._may_call_again and self.device.wait_for_memory():
            results = self._call(values)
        steps = None if self._context is None else self._context.work
        if steps is not None and not steps.has_ended:
            self._end_with(steps)
        if isinstance(results, BaseException):
            if steps is not None and isinstance(results, KeyboardInterrupt):
                steps.cancel()
            return without_traceback(results)
        if self._completion is None and not all(storage.definition._done for storage in self.inputs):
            self._end_with(READY)  # what makes an argument is in the device's queue, and may still fail
        fence = None
        if isinstance(results, Enqueued):
            results, fence = results
        values = self._owned(as_sequence(results), arguments)
        if compiled.takes_rows:
            values = self._laid_out(values, fence)
        if steps is not None and steps.error is not None:
            return steps.error
        if fence is not None:
            waiting_function(fence)  # a wrong one is an error now
            completion = self._end_with(fence)
            # The completion holds the arguments that the caller keeps. It does not hold the others, nor the outputs:
            # later work of the device may be given them, and may use their memory again.
            held = {id(storage.array) for storage in self.inputs}
            for value in (*arguments, *values):
                if isinstance(value, Allocation) and id(value) not in held:
                    value.busy_until(completion)
        self._store(values)
        return None

    def poison(self, error: PjrtError) -> bool:
        if not super().poison(error):
            return False
        completion = self._completion
        if completion is not None:  # it has its fence already, and has not left the queue
            self.device.fences.cancel(completion)
        return True

    def ask_to_end(self, error: PjrtError) -> None:
        super().ask_to_end(error)
        context = self._context
        if context is not None and context.work is not None:
            context.work.cancel()  # it may wait for one of them

    def _end_with(self, fence: Any) -> Completion:
        """Have the execution end with a fence."""
        self._fence = fence
        self._completion = Completion(self.definition, self.inputs, self.launch_id, self._compiled.name)
        return self._completion

    def _call(self, values: Sequence[Any]) -> Any:
        """Return what the function returns, or the exception that it raises."""
        run = self._compiled.run
        begin = perf_counter()
        try:
            results = run(*values) if self._context is None else run(self._context, *values)
        except BaseException as error:
            return error
        self._pace.note(perf_counter() - begin)
        return results

    @property
    def _may_call_again(self) -> bool:
        """Whether a function that had no room may be called again: it has written to no argument, and to no host."""
        return self._context is None and not self._compiled.aliases and not self._compiled.donated

    def _finish(self) -> PjrtError | None:
        if self._completion is None:
            self.inputs = []
            return super()._finish()
        self._context = None
        self._leave_launch()
        self._wait_for_fence()
        return self.definition._error  # It was poisoned while it ran.

    def _give_up(self) -> None:
        if self._completion is not None:
            self._completion.definition = Future()  # its end must not define what fails here
        self._wait_for_fence()  # The work goes on, although its results are wrong.
        super()._give_up()

    def _wait_for_fence(self) -> None:
        """Leave enqueued work to the waiter for fences."""
        self.inputs = []
        fence, self._fence = self._fence, None
        if fence is not None and self._completion is not None:
            self.device.fences.add(fence, self._completion)

    def _allocations(self) -> list[Any]:
        """Return the arguments. The function may write to those that it declares as donated, so in place of one that
        the caller keeps, or that something else can see, it gets a copy.
        """
        inputs = self.inputs
        values: list[Any] = [None if s.is_token else s.array for s in inputs]
        for number in {*self._compiled.aliases, *self._compiled.donated}:
            if number < len(inputs) and not inputs[number].is_token:
                values[number] = None
                values[number] = self._own(inputs, number)
        if self._compiled.takes_rows:
            values = [_in_rows(value) if isinstance(value, Allocation) else value for value in values]
        return values

    def _own(self, inputs: list[Storage], number: int) -> Any:
        """Return the allocation of a storage that is donated, or a copy if something else uses it."""
        mine = number in self._donated and references.to_item(inputs, number) == 1 and inputs[number].mutable
        mine = mine and references.to_attribute(inputs[number], "array") == 1
        storage = inputs[number]
        value: Any = storage.array
        if mine and not value.is_shared:
            # The storage lives until the fence; the result alone may have the memory by then.
            storage.array = None
            value.lend()
            return value
        return value.copied(value.space)

    def _owned(self, results: Sequence[Any], arguments: list[Any]) -> list[Any]:
        """Return the results with an allocation for each handle, so that it is freed whatever comes next."""
        compiled = self._compiled
        declared = compiled.outputs or ()
        returned = [_without_layout(spec) for spec in declared] if compiled.takes_rows else declared
        memory = self._memory
        table = HandleTable(memory, arguments)
        values: list[Any] = []
        for number, result in enumerate(results):
            spec = returned[number] if number < len(declared) else None
            if spec is not None and spec.element_type is ElementType.TOKEN:
                values.append(TOKEN)
            elif result is None:
                values.append(None)
            elif isinstance(result, Allocation):
                space = self._space(number)
                values.append(result if result.space is space else result.copied(space))
            elif compiled.takes_allocations and isinstance(result, np.ndarray):
                values.append(Allocation.of_array(memory, result, spec or ShapeSpec.of(result), self._space(number)))
            else:
                values.append(table.own(result, spec, self._space(number)))
        return values

    def _laid_out(self, values: list[Any], fence: Any) -> list[Any]:
        """Return the results of a function that gives rows in the layouts that the program declares."""
        declared = self._compiled.outputs
        if declared is None or len(declared) != len(values) or all(spec.layout is None for spec in declared):
            return values
        wait_for(fence)
        return [
            value.copied(self._space(number), spec)
            if isinstance(value, Allocation) and spec.layout is not None
            else value
            for number, (value, spec) in enumerate(zip(values, declared, strict=True))
        ]

    def _store(self, values: list[Any]) -> None:
        """Check the results, and put them into the storages of the outputs.

        Raises:
            InternalError: the results are not those that the program declared.
        """
        compiled = self._compiled
        declared = compiled.outputs
        source = f"the device's function for {compiled.name!r}"
        if self.outputs is None or declared is None:
            self.outputs = [self._undeclared(number, value, source) for number, value in enumerate(values)]
            return
        if len(values) != len(declared):
            raise InternalError(f"{source} gave {len(values)} results, it declared {len(declared)}")
        for number, (value, spec) in enumerate(zip(values, declared, strict=True)):
            if value is None:
                raise InternalError(f"{source} gave None for output {number}, expected a handle of {spec}")
            if value is not TOKEN:
                value.check(f"{source}, output {number},", spec)
            self.outputs[number].array = value

    def _undeclared(self, number: int, value: Any, source: str) -> Storage:
        spec = None
        if value is not None:
            spec = value.spec = value.spec or self._memory.spec_of(value.handle)
        if spec is None:
            raise InternalError(
                f"{source} declares no outputs, and its memory does not know the types of handles: declare "
                "Compiled.outputs, or give the memory a method spec_of"
            )
        storage = Storage(self.definition)
        space = self._space(number)
        storage.charge(space.account, space.size_of(spec))
        storage.array = value
        return storage

    @property
    def _memory(self) -> Memory:
        memory = self.device.client.memory
        assert memory is not None  # else the execution is another one
        return memory


def _in_rows(allocation: Allocation) -> Allocation:
    """Return an allocation whose dimensions are in rows: itself, or a copy."""
    spec = allocation.spec
    return allocation if spec.layout is None else allocation.copied(allocation.space, _without_layout(spec))


def _without_layout(spec: ShapeSpec) -> ShapeSpec:
    return spec if spec.layout is None else ShapeSpec(spec.shape, spec.element_type)


# Dispatch: an execution goes to its device's queue when its inputs are ready.

_PendingLaunch = tuple[Execution, ...]
"""The executions of one launch, which are put on their queues together."""


class Dispatcher:
    """Puts executions on their devices' queues as soon as their inputs are ready, or sure to be ready in time.

    An input that an earlier task of the same queue makes will be ready when the queue comes to the execution. All other
    inputs are waited for outside of the queues: the head of a queue never waits for an input, so an input may come
    late, even from a program on the same device, and finds the queue running. The executions of one launch go to all of
    their queues at one moment, when the inputs of all are ready. So any two launches are in the same order on all
    devices that they share, and their collectives cannot wait for each other in a circle.

    Launches on devices of several processes are put in the order of the calls, even where the inputs of a later one are
    ready first: the calls come in one order in all processes, the inputs need not.

    Args:
        devices: the devices of the client that belong to this process.
    """

    __slots__ = ("_fences", "_gates", "_last_gate", "_putting", "_queues", "_ready", "_waiting")

    def __init__(self, devices: Sequence[HostDevice]) -> None:
        self._queues = tuple(queue for device in devices for queue in (device.compute, device.transfers))
        self._fences = tuple(device.fences for device in devices)
        self._waiting: set[_PendingLaunch] = set()
        # For each waiting launch on devices of several processes: done when it is put. The next one waits for that.
        self._gates: dict[_PendingLaunch, Future[None]] = {}
        self._last_gate: Future[None] | None = None
        # Launches that are ready to be put, in one order for all queues, and the lock of the caller that puts them.
        self._ready: deque[_PendingLaunch] = deque()
        self._putting = threading.Lock()

    def enqueue(self, executions: Sequence[Execution]) -> None:
        """Run the executions of one launch, each on its device, when their inputs are ready; do not wait for that."""
        missing: list[Future[None]] = []
        for execution in executions:
            compute = execution.device.compute
            missing += [
                storage.definition if storage.placed is None else storage.placed
                for storage in execution.inputs
                if not storage.definition._done and storage.queue is not compute
            ]
        across = executions[0].spans_processes if executions else False
        if not missing and len(executions) == 1 and not across:
            execution = executions[0]
            if execution.runs_on_caller and _run_here(execution):
                return
            try:
                _put(execution)
            except PjrtError as error:
                execution.fail(error)
                raise
            return
        launch = tuple(executions)
        if across:
            self._wait_for_turn(launch, missing)
        if missing:
            for execution in launch:
                execution.definition.need(*missing)
                if execution.device.client.memory is not None:
                    _place_later(execution, missing)
            self._waiting.add(launch)
            when_all_done(missing, lambda: self._stop_waiting(launch))
        else:
            self._release(launch)

    def finish(self, end_waiting: Callable[[], object]) -> None:
        """Wait for the work under way, cancel executions whose inputs will never come, and close the queues.

        Args:
            end_waiting: called when all that can run has run; it ends the waits that the caller knows of.
        """
        self._drain()
        end_waiting()
        self._drain()
        while self._waiting:
            error = CancelledError("the client was closed while the execution waited for its arguments")
            launch = self._waiting.pop()
            _fail(launch, error)
            self._end_turn(launch)
            self._drain()
        for queue in self._queues:
            queue.close()
        for fences in self._fences:
            fences.close()

    def give_up(self, error: PjrtError, only_ask: bool) -> None:
        """Fail all executions that are not done, and ask the running functions to end.

        Args:
            error: the reason.
            only_ask: ask the running functions only, and fail nothing.
        """
        if only_ask:
            for queue in self._queues:
                queue.ask_to_end(error)
            return
        for launch in list(self._waiting):
            self._waiting.discard(launch)
            _fail(launch, error)
            self._end_turn(launch)
        for queue in self._queues:
            for task in queue.tasks():
                if isinstance(task, Execution):
                    task.poison(error)
        for fences in self._fences:
            fences.poison(error)

    def give_up_one(self, definition: Future[None], error: PjrtError) -> None:
        """Fail the execution whose outputs an event defines, ask its function to end, and cancel what it enqueued."""
        for execution in self.unfinished():
            if execution.definition is definition:
                execution.poison(error)
        for fences in self._fences:
            fences.poison_one(definition, error)

    def unfinished(self) -> list[Execution]:
        """Return the executions that are not done, in no order."""
        tasks = [task for queue in self._queues for task in queue.tasks() if isinstance(task, Execution)]
        return tasks + [execution for launch in list(self._waiting) for execution in launch]

    def wait_for_memory(self, device: HostDevice) -> bool:
        """Wait until work of a device ends that alone holds memory; return whether there was such work.

        Callers run ahead of a device, and then most of its memory is that of arguments that nobody else holds. Work
        that waits for its inputs, or may wait for the caller, is not waited for.
        """
        here = server_here()
        if here is not None and here is not device.compute.server and here is not device.transfers.server:
            return False  # this thread may be the one that ends the work
        if device.fences.settle_for_memory():
            return True
        ends: list[Future[Any]] = device.fences.ends_of_holders()
        for queue in (device.compute, device.transfers):
            if not queue.is_current_thread:
                ends += [end for task in queue.tasks() if (end := _end_of_holder(task)) is not None]
        if not ends:
            return False
        first: Future[None] = Future()
        first.need(*ends)
        for end in ends:
            end.add_done_callback(lambda _: first._complete(None))
        try:
            first.result()
        except FailedPreconditionError:  # the work needs the calling thread
            return False
        return True

    def _drain(self) -> None:
        # Work on one queue may put more on another.
        workers: tuple[WorkQueue | FenceWaiter, ...] = (*self._queues, *self._fences)
        while any(worker.is_busy for worker in workers):
            for worker in workers:
                if not is_exiting():
                    worker.drain()
                elif not worker.drain(time_left()):
                    worker.abandon(CancelledError("the interpreter ended before the work was done"))

    def _stop_waiting(self, launch: _PendingLaunch) -> None:
        try:
            self._waiting.remove(launch)
        except KeyError:
            return  # It was cancelled.
        self._release(launch)

    def _wait_for_turn(self, launch: _PendingLaunch, missing: list[Future[None]]) -> None:
        """Have a launch on devices of several processes wait for the one before it, and the next one for this one."""
        with runtime_lock:
            last = self._last_gate
            if last is not None and not last._done:
                missing.append(last)
            if missing:
                gate: Future[None] = Future()
                gate.need(*missing)
                self._last_gate = self._gates[launch] = gate

    def _end_turn(self, launch: _PendingLaunch) -> None:
        gate = self._gates.pop(launch, None) if self._gates else None
        if gate is not None:
            gate._complete(None)

    def _release(self, launch: _PendingLaunch) -> None:
        """Put the executions of a launch on their queues.

        It never waits for another caller that does so: the garbage collector may run while executions are being put,
        drop a promise, and by that release another launch on the same thread. The caller that holds the lock puts that
        one too.
        """
        self._ready.append(launch)
        while self._ready:
            if not self._putting.acquire(blocking=False):
                return
            try:
                while self._ready:
                    launch = self._ready.popleft()
                    _put_all(launch)
                    self._end_turn(launch)
            finally:
                self._putting.release()


def _end_of_holder(task: Task) -> Future[Any] | None:
    """Return the end of a task that alone holds memory; ``None`` if it does not, or may wait for the caller."""
    if isinstance(task, Execution):
        return task.definition if not task.may_wait_for_caller and is_any_alone(task.inputs) else None
    if isinstance(task, Copy) and task.source is not None and references.to_attribute(task, "source") == 1:
        return task.future
    return None


def _put_all(launch: _PendingLaunch) -> None:
    try:
        for execution in launch:
            _put(execution)
    except PjrtError as error:
        _fail(launch, error.with_traceback(None))
    else:
        _are_placed(launch)


def _fail(launch: _PendingLaunch, error: PjrtError) -> None:
    for execution in launch:
        execution.fail(error)
    _are_placed(launch)


def _place_later(execution: Execution, missing: Sequence[Future[None]]) -> None:
    """Have copies to other devices, and executions behind this one, learn when it is put on its queue."""
    placed: Future[None] = Future()
    placed.need(*missing)
    for storage in execution.outputs or ():
        storage.placed = placed


def _are_placed(launch: _PendingLaunch) -> None:
    for execution in launch:
        for storage in execution.outputs or ():
            if storage.placed is not None:
                storage.placed._complete(None)


def _run_here(execution: Execution) -> bool:
    """Run an execution on the caller's thread, if its device is idle; return whether it was run."""
    queue = execution.device.compute
    visit = queue.enter()
    if visit is None:
        return False
    try:
        execution.run()
    finally:
        queue.leave(visit)
    hand_over(execution)
    return True


def hand_over(execution: Execution) -> None:
    """Let later executions of the device be enqueued behind one that has run on the caller's thread."""
    if not execution.definition._done:  # It has enqueued work, which later executions of the device need not wait for.
        for storage in execution.outputs or ():
            storage.queue = execution.device.compute


def _put(execution: Execution) -> None:
    # Read before the execution is put: it may be done, and its outputs gone, as soon as it is.
    outputs, queue = execution.outputs, execution.device.compute
    execution.definition.need(queue.server)
    queue.put(execution)
    # Only now: what other threads put because they see the queue here must come after the execution.
    for storage in outputs or ():
        storage.queue = queue

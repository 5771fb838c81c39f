"""Loaded executables of the ``cpu`` device, and their executions."""

from __future__ import annotations

import abc
import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.future import Future, Promise
from pjrt.api.launch import CheckedExecutable, Parameters
from pjrt.api.loaded_executable import (
    WITHOUT_TYPE,
    Argument,
    ExecuteOptions,
    FailedRunError,
    LoadedExecutable,
    ValuePath,
    bound,
    explained,
)
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import TURNS, collect_released, converted
from pjrt.devices.xla._short_path import ShortCall, ShortPath
from pjrt.devices.xla.buffer import (
    Part,
    PendingBuffer,
    ShardBuffer,
    Shards,
    Source,
    XlaBuffer,
    array_of,
    arrays_in_use,
    gathered,
    putter,
)
from pjrt.devices.xla.device import KINDS, XlaDevice
from pjrt.devices.xla.executable import XlaExecutable, element_type_of, has_collectives, memory_kind_of
from pjrt.devices.xla.future import ArrayFuture, completion, flattened, in_thread

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.devices.xla.executable import ValueShape
    from pjrt.devices.xla.runtime import ArrayType, Runtime


# The rendezvous of launches whose devices get their arguments one by one. jaxlib starts a program on all of its devices
# in one call, so the contributions wait until the last device has its arguments. To the threads that contribute it
# looks as if the collectives of the program waited, as they do on separate devices. Threads that each compile the same
# program for themselves, as those of PyTorch/XLA do, meet here too.


class Started(NamedTuple):
    """One device's part of a launch that has started."""

    sources: Sequence[Source]
    """The sources of its results."""
    completion: Future[None]
    """A future that is done when the execution is."""


class Contribution:
    """One device's part of a launch that starts later.

    Attributes:
        sources: the sources of its arguments.
        start: the promise that is kept when the launch starts.
    """

    __slots__ = ("sources", "start")

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.start: Promise[Started] = Promise()


class Rendezvous:
    """The incomplete launches of one program, compiled once or several times.

    Args:
        places: the number of devices.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._waiting: list[_Launch] = []

    def join(
        self, place: int, contribution: Contribution, non_donatable: frozenset[int], launch_id: int, joiner: Executor
    ) -> None:
        """Give one device's contribution to the first launch with this id that does not have it yet.

        Args:
            place: the index of the device.
            contribution: its contribution.
            non_donatable: the numbers of the arguments that are not donated.
            launch_id: the launch.
            joiner: the executor that contributes; it starts the launch if this contribution is the last one.
        """
        with self._lock:
            launch = next((w for w in self._waiting if w.launch_id == launch_id and place not in w.contributions), None)
            if launch is None:
                launch = _Launch(launch_id)
                self._waiting.append(launch)
            launch.contributions[place] = contribution
            launch.non_donatable |= non_donatable
            launch.joiners.add(joiner)
            if len(launch.contributions) < self._places:
                return
            self._waiting.remove(launch)
        contributions = [launch.contributions[number] for number in range(self._places)]
        joiner.start_when_there(contributions, launch.non_donatable, launch_id)

    def cancel(self, joiner: Executor, reason: str) -> None:
        """Fail the incomplete launches that an executor has contributed to."""
        with self._lock:
            cancelled = [launch for launch in self._waiting if joiner in launch.joiners]
            self._waiting = [launch for launch in self._waiting if joiner not in launch.joiners]
        for launch in cancelled:
            for contribution in launch.contributions.values():
                contribution.start.set_error(CancelledError(reason))


class _Launch:
    """A launch that lacks the arguments of at least one device."""

    def __init__(self, launch_id: int) -> None:
        self.launch_id = launch_id
        self.non_donatable: frozenset[int] = frozenset()
        self.joiners: set[Executor] = set()
        self.contributions: dict[int, Contribution] = {}


_ARRAY = _jaxlib.jax.ArrayImpl


class XlaValuePath(ValuePath):
    """The value path of a program on one device that donates nothing and has results.

    Args:
        start: jaxlib's function that executes the program.
        handlers: make arrays of the results.
        result_types: the types of the results.
        fail: returns the buffers of an execution that jaxlib refused, given the error.
    """

    __slots__ = ("_fail", "_handlers", "_makers", "_start", "_watcher")

    def __init__(
        self,
        start: Callable[..., Any],
        handlers: Sequence[Any],
        result_types: Sequence[ArrayType],
        fail: Callable[[PjrtError], Sequence[Buffer]],
    ) -> None:
        self._start: Callable[..., Any] | None = start
        self._handlers = handlers
        self._makers = [partial(_buffer, type_) for type_ in result_types]
        self._watcher = result_types[0].runtime.watcher
        self._fail = fail

    @property
    def makers(self) -> Sequence[Callable[[Any], Buffer]]:
        return self._makers

    def close(self) -> None:
        """Run nothing any more."""
        self._start = None

    def run(self, values: list[Any], launch_id: int, futures: list[Future[None]]) -> list[Any] | None:
        start = self._start
        if start is None:
            return None
        try:
            results: list[Any] = start(values).consume_with_handlers(self._handlers)
        except Exception as error:
            raise self._failure(error, values) from error
        if next(TURNS):
            collect_released()
        # All results of an execution are there at once. Small programs are mostly finished by now.
        first = results[0]
        try:
            if first.is_ready():
                first.block_until_ready()  # raises the error of the execution
                return results
        except Exception:
            pass  # the execution failed: the future below has its error
        futures.append(completion(results, self._watcher))
        return results

    def value(self, buffer: Buffer) -> Any:
        array = buffer.available_array() if isinstance(buffer, XlaBuffer) else None
        return array if type(array) is _ARRAY else None

    def _failure(self, error: Exception, values: list[Any]) -> Exception:
        if any(array.is_deleted() for array in values):
            return FailedPreconditionError("an argument was deleted or donated in another thread")
        return FailedRunError(list(self._fail(converted(error))))


def _buffer(array_type: ArrayType, array: Any) -> XlaBuffer:
    return XlaBuffer(array, array_type)


Futures = list[Future[None]] | None
"""The list that gets the futures of completions, if the caller wants them."""


class Results(NamedTuple):
    """The results of a launch."""

    arrays: list[_jaxlib.Array]
    """One array a result, with a shard on each device."""
    token: Any
    """A token of the completion, where there are no results to wait for."""


class Executor:
    """Executes one program on its devices.

    Args:
        executable: the program.
        devices: those of its devices that are of this process.
        rendezvous: the place where the devices' contributions to a launch meet.
        fingerprint: that of the program, which other processes run, too; empty if it is unknown.

    Attributes:
        donated: the numbers of the parameters whose memory the program takes.
        parameter_types: for each device the types of the parameters.
        result_types: for each device the types of the results.
    """

    __slots__ = (
        "_device_ids",
        "_executable",
        "_fingerprint",
        "_handlers",
        "_has_run",
        "_parameter_shardings",
        "_partners",
        "_peers",
        "_processes",
        "_rendezvous",
        "_start",
        "_watcher",
        "_window",
        "donated",
        "parameter_types",
        "result_types",
    )

    def __init__(
        self, executable: XlaExecutable, devices: Sequence[XlaDevice], rendezvous: Rendezvous, fingerprint: str
    ) -> None:
        shape = executable.program_shape
        runtime = devices[0].runtime
        self._executable = executable
        self._fingerprint = fingerprint
        self._watcher = runtime.watcher
        self._rendezvous = rendezvous
        # The devices of all processes: the arrays of a launch are spread over them, and only their shards are here.
        self._device_ids = tuple(number for row in executable.assignment.device_ids for number in row)
        self._peers = runtime.peers if len(self._device_ids) > 1 else None
        self._processes = frozenset(runtime.jaxlib_device(number).process_index for number in self._device_ids)
        self._partners = self._peers if len(self._processes) > 1 else None
        self._has_run = self._peers is None
        self._window = runtime.launch_window if len(self._device_ids) > 1 else None
        self._start = executable.jaxlib_executable.execute_sharded
        self.donated = shape.donated
        self.parameter_types = [[_array_type(p, device) for p in shape.parameters] for device in devices]
        self.result_types = [[_array_type(r, device) for r in shape.results] for device in devices]
        all_devices = [runtime.jaxlib_device(number) for number in self._device_ids]
        self._parameter_shardings = _shardings(self.parameter_types[0], all_devices)
        result_shardings = _shardings(self.result_types[0], all_devices)
        self._handlers = [
            _jaxlib.result_handler(result.aval, sharding)
            for result, sharding in zip(self.result_types[0], result_shardings, strict=True)
        ]

    def short_path(self) -> ShortPath:
        """Return the short path of the program, which is closed for a program on several devices.

        It returns the buffers of the results. It returns None and starts nothing if the execution has to take the long
        path: an argument is no buffer of this package, has the wrong type or no array yet, or is donated while a future
        waits for it.
        """
        parameters = self.parameter_types[0]
        putters = list(map(putter, parameters))
        path = ShortPath(self, self._start, self._handlers, parameters, putters, self.result_types[0], XlaBuffer)
        if len(self._device_ids) > 1:
            path.close()
        return path

    def value_path(self) -> XlaValuePath | None:
        """Return the value path of the program; ``None`` if it runs on several devices, donates, or has no results."""
        if len(self._device_ids) > 1 or self.donated or not self._handlers:
            return None
        (result_types,) = self.result_types
        return XlaValuePath(self._start, self._handlers, result_types, lambda error: self.failed(error, [])[0])

    def execute(
        self, rows: Sequence[Sequence[XlaBuffer]], non_donatable: frozenset[int], launch_id: int, futures: Futures
    ) -> list[list[Buffer]]:
        """Run the program on all devices.

        Args:
            rows: for each device its arguments, which are checked.
            non_donatable: the numbers of arguments that are not donated.
            launch_id: identifies the launch; 0 for none.
            futures: gets a future of the completion for each device.
        """
        sources = [[argument.source() for argument in row] for row in rows]
        if any(isinstance(source, Future) for row in sources for source in row) or self._waits():
            contributions = [
                self._contribution(row, own, non_donatable) for row, own in zip(rows, sources, strict=True)
            ]
            self.start_when_there(contributions, non_donatable, launch_id)
            return [self._pending(contribution, place, futures) for place, contribution in enumerate(contributions)]
        try:
            results = self._run(sources, non_donatable, launch_id)
        except PjrtError as error:
            failed = self.failed(error, rows, futures)
            self._part_failed(error)
            return failed
        for row in rows:
            mark_donated(row, self.donated - non_donatable)
        if futures is not None:
            futures.extend(self._completion(results) for _ in rows)
        return [list(row) for row in self._buffers(results)]

    def contribute(
        self, row: Sequence[XlaBuffer], place: int, non_donatable: frozenset[int], launch_id: int, futures: Futures
    ) -> list[Buffer]:
        """Give one device its arguments; the program runs when all devices have theirs."""
        contribution = self._contribution(row, [argument.source() for argument in row], non_donatable)
        self._rendezvous.join(place, contribution, non_donatable, launch_id, self)
        return self._pending(contribution, place, futures)

    def failed(self, error: PjrtError, rows: Sequence[Sequence[Any]], futures: Futures = None) -> list[list[Buffer]]:
        """Return the results of a launch that jaxlib refused: they hold the error, as if the execution had failed.

        Raises:
            FailedPreconditionError: another thread has deleted or donated an argument meanwhile.
        """
        for row in rows:
            for argument in row:
                if isinstance(argument, XlaBuffer):
                    argument.check_usable()
        if futures is not None:
            futures.extend(Future.failed(error) for _ in rows)
        return [[PendingBuffer.failed(error, type_) for type_ in types] for types in self.result_types]

    def stop(self, reason: str) -> None:
        """Fail the launches that lack the arguments of a device. Those that have all of them start when they come."""
        self._rendezvous.cancel(self, reason)

    def unload(self) -> None:
        """Start nothing any more."""
        self._start = _unloaded

    def start_when_there(
        self, contributions: Sequence[Contribution], non_donatable: frozenset[int], launch_id: int
    ) -> None:
        """Start a launch when all arguments have arrived.

        Args:
            contributions: those of all devices, in the order of the devices.
            non_donatable: the numbers of the arguments that no device donates.
            launch_id: the launch.
        """
        sources = [source for contribution in contributions for source in contribution.sources]
        all_arrived = Future.all(source for source in sources if isinstance(source, Future))

        def start(_: Future[None]) -> None:
            try:
                all_arrived.result()
                results = self._run([contribution.sources for contribution in contributions], non_donatable, launch_id)
                for contribution, row in zip(contributions, self._buffers(results), strict=True):
                    row_sources = [buffer.source() for buffer in row]
                    contribution.start.set_result(Started(row_sources, self._completion(results)))
            except Exception as error:
                failure = converted(error)
                self._part_failed(failure)
                for contribution in contributions:
                    if not contribution.start.future.done():
                        contribution.start.set_error(failure)

        def arrived(future: Future[None]) -> None:
            if self._partners is not None and self._waits():
                self._partners.launches.add(partial(start, future))
            else:
                start(future)

        all_arrived.add_done_callback(arrived)

    def _contribution(
        self, row: Sequence[XlaBuffer], sources: list[Source], non_donatable: frozenset[int]
    ) -> Contribution:
        """Return a device's part of a launch that starts later; the arguments that it donates are gone from now on."""
        donated, donations = self.donated - non_donatable, self._watcher.donations
        used = [
            array
            for number, source in enumerate(sources)
            if number not in donated and not isinstance(source, Future)
            for array in arrays_in_use(source)
        ]
        contribution = Contribution(sources)
        if used:
            donations.hold(used)
            contribution.start.future.add_done_callback(lambda _: donations.release(used))
        for number in donated:
            row[number].consume()
        return contribution

    def _pending(self, contribution: Contribution, place: int, futures: Futures) -> list[Buffer]:
        started = contribution.start.future
        if futures is not None:
            futures.append(flattened(started, lambda launch: launch.completion))
        return [
            PendingBuffer(started.then(lambda launch, number=number: launch.sources[number]), type_)  # type: ignore[misc]  # mypy cannot tell the type of a lambda's default
            for number, type_ in enumerate(self.result_types[place])
        ]

    def _run(self, rows: Sequence[Sequence[Source]], non_donatable: frozenset[int], launch_id: int) -> Results:
        """Start the program on all devices, from available sources of the arguments of each.

        Raises:
            PjrtError: the program could not be started, or its execution failed at once.
        """
        if self._meets():
            assert self._partners is not None
            self._partners.first_runs.meet(self._device_ids, self._processes, self._executable.name, self._fingerprint)
        columns = [list(column) for column in zip(*rows, strict=True)]
        for number in non_donatable & self.donated:  # a copy is donated instead
            columns[number] = self._copies(number, columns[number])
        donated = self.donated - non_donatable
        try:
            if not donated:
                return self._launch(self._arguments(columns), launch_id)

            def execute() -> tuple[_jaxlib.Array, Results]:
                # Another thread may have donated an argument since it was checked, and jaxlib crashes on an array whose
                # shards are gone.
                if any(array.is_deleted() for array in in_use):
                    raise FailedPreconditionError("an argument was deleted or donated in another thread")
                for number in donated:
                    if donations.holds([array for source in columns[number] for array in arrays_in_use(source)]):
                        columns[number] = self._copies(number, columns[number])
                results = self._launch(self._arguments(columns), launch_id)
                return results.arrays[0], results

            donations = self._watcher.donations
            in_use = [array for number in donated for source in columns[number] for array in arrays_in_use(source)]
            return donations.donate(in_use, execute)
        except Exception as error:
            raise converted(error) from error

    def _copies(self, number: int, column: Sequence[Source]) -> list[Source]:
        """Return copies of an argument on all devices, to donate in its place."""
        return [
            _jaxlib.copy(array_of(source), types[number].memory_space.placement)
            for source, types in zip(column, self.parameter_types, strict=True)
        ]

    def _launch(self, arrays: list[_jaxlib.Array], launch_id: int) -> Results:
        if self._partners is not None:
            self._partners.check(self._processes)
        if next(TURNS):
            collect_released()
        results = self._started(arrays, launch_id) if self._has_run else self._first_run(arrays, launch_id)
        if self._partners is not None:
            self._partners.begin_part(self._completion(results), self._part_failed)
        return results

    def _first_run(self, arrays: list[_jaxlib.Array], launch_id: int) -> Results:
        """Start the program for the first time: the groups of its collectives connect."""
        assert self._peers is not None
        self._has_run = True
        end = self._peers.begin_first_run(self._processes)
        try:
            results = self._started(arrays, launch_id)
        except BaseException:
            end()
            raise
        self._completion(results).add_done_callback(lambda _: end())
        return results

    def _part_failed(self, error: PjrtError) -> None:
        """Let no other process wait for this one's part of a launch, which has failed."""
        if self._partners is not None and self._exchanges_data():
            self._partners.part_failed(self._processes, error)

    def _waits(self) -> bool:
        """Whether the next launch must not start in the caller's thread, which may be needed where others come from."""
        return self._partners is not None and (self._partners.launches.are_waiting or self._meets())

    def _meets(self) -> bool:
        """Whether the processes meet before this launch."""
        return (
            self._partners is not None
            and not self._has_run
            and self._partners.first_runs.are_new(self._device_ids, self._fingerprint)
            and self._exchanges_data()
        )

    def _exchanges_data(self) -> bool:
        try:
            return has_collectives(self._executable.optimized_text())
        except FailedPreconditionError:  # the client was closed
            return False

    def _started(self, arrays: list[_jaxlib.Array], launch_id: int) -> Results:
        if self._window is not None:
            start = partial(_jaxlib.start, self._start, arrays, True, launch_id)
            launch, token = self._window.start(start)
        else:
            launch = _jaxlib.start(self._start, arrays, not self._handlers, launch_id)
            token = None if self._handlers else launch.consume_token()
        return Results(launch.consume_with_handlers(self._handlers), None if self._handlers else token)

    def start_donating_alone(
        self, arguments: Sequence[Buffer], arrays: list[_jaxlib.Array]
    ) -> list[_jaxlib.Array] | None:
        """Start a program on one device that donates, for the short path; do nothing, and return None, if an argument
        is given twice or a future may wait.

        Args:
            arguments: the arguments, which are marked as donated.
            arrays: their arrays.
        """
        if len(set(map(id, arrays))) < len(arrays):
            return None
        donations = self._watcher.donations
        with donations.lock:
            if donations.has_waiting:
                return None
            results: list[_jaxlib.Array] = self._start(arrays).consume_with_handlers(self._handlers)
        mark_donated(arguments, self.donated)
        return results

    def _arguments(self, columns: Sequence[Sequence[Source]]) -> list[_jaxlib.Array]:
        return [self._argument(number, column) for number, column in enumerate(columns)]

    def _argument(self, number: int, column: Sequence[Source]) -> _jaxlib.Array:
        if len(self._device_ids) == 1:
            return array_of(column[0])
        aval, sharding = self.parameter_types[0][number].aval, self._parameter_shardings[number]
        return gathered(column, self._device_ids, aval, sharding)

    def _buffers(self, results: Results) -> list[list[XlaBuffer]]:
        """Return the results as buffers, one list a device."""
        if len(self._device_ids) == 1:
            return [list(map(XlaBuffer, results.arrays, self.result_types[0]))]
        shards = [Shards(array, self._device_ids) for array in results.arrays]
        return [
            [ShardBuffer(Part(whole, place), type_) for whole, type_ in zip(shards, types, strict=True)]
            for place, types in enumerate(self.result_types)
        ]

    def _completion(self, results: Results) -> Future[None]:
        if results.token is not None:
            return in_thread(results.token.block_until_ready)
        return completion(results.arrays, self._watcher)


def mark_donated(arguments: Sequence[Buffer], donated: frozenset[int]) -> None:
    """Mark the arguments that were donated.

    XLA marks most of them, but leaves the memory of an array to its readers, and takes a copy for itself.
    """
    for number in donated:
        argument = arguments[number]
        if isinstance(argument, XlaBuffer) and not argument.is_deleted:
            argument.consume()


def _array_type(value: ValueShape, device: XlaDevice) -> ArrayType:
    space = device.memory_spaces[KINDS.index(memory_kind_of(value))]
    if value.dtype is None:
        # A token is empty. Frameworks and jaxlib begin a chain of tokens with an empty array of truth values.
        return device.runtime.array_type((0,), ElementType.PRED, space)
    return device.runtime.array_type(
        value.shape, element_type_of(value), space, value.minor_to_major, value.dynamic_dimensions
    )


def _shardings(types: Sequence[ArrayType], jaxlib_devices: Sequence[Any]) -> list[Any]:
    kinds = {type_.memory_space.kind for type_ in types}
    by_kind = {kind: _jaxlib.whole_on_each(jaxlib_devices, kind) for kind in kinds}
    return [by_kind[type_.memory_space.kind] for type_ in types]


def _unloaded(*_: Any, **__: Any) -> Any:
    raise FailedPreconditionError("the executable was deleted; compile it again")


_NO_OPTIONS = ExecuteOptions()
# JAX gives every execution a launch id, which has no meaning for the short path: one device needs no rendezvous.
_all_but_launch_id = attrgetter(*(f.name for f in dataclasses.fields(ExecuteOptions) if f.name != "launch_id"))
_DEFAULTS = _all_but_launch_id(_NO_OPTIONS)


class XlaLoaded(XlaExecutable, CheckedExecutable):
    """A program compiled by XLA for the CPU that a client holds until it is deleted or the client is closed."""

    __slots__ = ("_client", "_deleted", "_executable", "_runtime")

    def __init__(self, client: Client, runtime: Runtime, executable: XlaExecutable) -> None:
        options = executable.compile_options()
        super().__init__(executable.jaxlib_executable, executable.assignment, options, code=executable.code)
        self._client = client
        self._runtime = runtime
        self._deleted = False
        self._executable = executable

    @property
    def client(self) -> Client:
        return self._client

    @property
    def executable(self) -> XlaExecutable:
        return self._executable

    @property
    def device_assignment(self) -> DeviceAssignment:
        return self.assignment

    @property
    def is_deleted(self) -> bool:
        return self._deleted

    def delete(self) -> None:
        self._deleted = True
        self._stop()

    def unload(self, reason: str) -> Any:
        self.delete()
        self._executable.unload(reason)
        return super().unload(reason)

    def close_short_path(self) -> None:
        """Check at each execution from now on whether the runtime can be used, which the short path leaves out."""

    @abc.abstractmethod
    def _stop(self) -> None:
        """Start nothing any more. The code stays for as long as it runs or has properties to report."""

    def _check_usable(self) -> None:
        self._runtime.check_open()

    def _check_options(self, options: ExecuteOptions) -> None:
        if options.send_callbacks or options.recv_callbacks:
            raise unimplemented(
                self.platform_name, "ExecuteOptions.send_callbacks and recv_callbacks", "use an FFI handler"
            )
        if options.hlo_output_callbacks:
            raise unimplemented(self.platform_name, "ExecuteOptions.hlo_output_callbacks")
        if options.context is not None:
            raise unimplemented(self.platform_name, "ExecuteOptions.context")
        count = len(self.program_shape.parameters)
        for number in options.non_donatable_input_indices:
            if not 0 <= number < count:
                raise InvalidArgumentError(
                    f"non_donatable_input_indices has {number}, the program {self.name!r} takes {count} arguments"
                )


class XlaParameters(Parameters[XlaBuffer]):
    """The parameters of a program on one device, which have layouts and kinds of memory.

    Args:
        program: the program's name.
        device: the device.
        types: the parameters' types there.
        donated: the numbers of the parameters whose memory the program takes.
    """

    __slots__ = ("_types",)

    def __init__(self, program: str, device: XlaDevice, types: Sequence[ArrayType], donated: frozenset[int]) -> None:
        super().__init__(program, device.client, XlaBuffer, [None] * len(types), donated)
        self._types = types

    def checked(self, arguments: Sequence[Buffer], device: Device) -> Sequence[XlaBuffer]:
        # Most arguments have the parameter's type itself, which says the device as well: each type is one object.
        if type(arguments) is list and [getattr(buffer, "type", None) for buffer in arguments] == self._types:
            return arguments
        return super().checked(arguments, device)

    def _check_type(self, number: int, buffer: XlaBuffer, spec: Any) -> None:
        expected = self._types[number]
        if expected.accepts(buffer.type):
            return
        if buffer.shape == expected.shape and buffer.type.layout != expected.layout:
            raise self._error(
                number,
                f"{expected} with the layout {expected.layout}, found {buffer.type.layout}; pass layout= to "
                "client.buffer_from_host",
            )
        raise self._error(number, f"{expected}, found {buffer.type}")


class XlaLoadedExecutable(ShortCall, XlaLoaded):
    """A program compiled by XLA for the CPU, on its devices.

    Each way to run it tries the short path first (``Executor.short_path``): one device, and arguments that need no
    preparation.
    """

    __slots__ = ("_devices", "_executor", "_first", "_has_results", "_parameters", "_short_path", "_value_path")

    def __init__(
        self,
        executable: XlaExecutable,
        devices: Sequence[XlaDevice],
        rendezvous: Rendezvous | None = None,
        fingerprint: str = "",
    ) -> None:
        super().__init__(devices[0].client, devices[0].runtime, executable)
        self.__dict__["program_shape"] = executable.program_shape  # computed once for both
        self._devices = tuple(devices)
        self._first = self._devices[0]
        rendezvous = rendezvous or Rendezvous(len(self._devices))
        self._executor = Executor(executable, self._devices, rendezvous, fingerprint)
        self._has_results = bool(executable.program_shape.results)
        self._parameters = [
            XlaParameters(self.name, device, types, self._executor.donated)
            for device, types in zip(self._devices, self._executor.parameter_types, strict=True)
        ]
        self._short_path = self._executor.short_path()
        self._value_path = self._executor.value_path()
        self._runtime.adopt(self)

    def unload(self, reason: str) -> Any:
        self._executor.unload()
        return super().unload(reason)

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return self._devices

    # Running it.

    def call_long(self, arguments: tuple[Argument, ...], keywords: dict[str, Argument]) -> tuple[Buffer, ...]:
        """Run the program by a call (``executable(…)``) that the short path has left."""
        self._begin(None, None)
        if len(self._devices) > 1:
            return LoadedExecutable.__call__(self, *arguments, **keywords)
        values: Sequence[Argument] = arguments
        if keywords or not WITHOUT_TYPE.isdisjoint(map(type, arguments)):
            values = bound(self, arguments, keywords)
        put, here = self._client.buffer_from_host, self._first
        buffers = [a if isinstance(a, Buffer) else put(a, device=here) for a in values]
        results = self._short_path.run(buffers)
        if results is not None:
            return tuple(results)
        try:
            return tuple(self.execute_sharded(buffers, here))
        except InvalidArgumentError as error:
            raise explained(error, self, values) from error

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        if (
            (options is None or (type(options) is ExecuteOptions and _all_but_launch_id(options) == _DEFAULTS))
            and device is self._first
            # A program without results has no array whose readiness is its completion.
            and (returned_futures is None or (self._has_results and type(returned_futures) is list))
        ):
            results = self._short_path.run(arguments)
            if results is not None:
                if returned_futures is not None:
                    future = results[0].ready()
                    if isinstance(future, ArrayFuture):
                        future.siblings = [buffer.array for buffer in results[1:] if isinstance(buffer, XlaBuffer)]
                    returned_futures.append(future)
                return results
        return super().execute_sharded(arguments, device, options, returned_futures=returned_futures)

    def _start(self, rows: Sequence[Sequence[Buffer]], options: ExecuteOptions, futures: Futures) -> list[list[Buffer]]:
        # A launch can be poisoned by its id, which only the long path passes to jaxlib.
        if len(rows) == 1 and not options.launch_id:
            return [self.execute_sharded(rows[0], self._first, options, returned_futures=futures)]
        checked = [self._checked(row, place, options) for place, row in enumerate(rows)]
        return self._executor.execute(checked, options.non_donatable_input_indices, options.launch_id, futures)

    def _start_at(
        self, place: int, arguments: Sequence[Buffer], options: ExecuteOptions, futures: Futures
    ) -> list[Buffer]:
        row = self._checked(arguments, place, options)
        non_donatable, launch_id = options.non_donatable_input_indices, options.launch_id
        if len(self._devices) == 1:
            return self._executor.execute([row], non_donatable, launch_id, futures)[0]
        return self._executor.contribute(row, place, non_donatable, launch_id, futures)

    def _checked(self, arguments: Sequence[Buffer], place: int, options: ExecuteOptions) -> Sequence[XlaBuffer]:
        """Return the arguments on a device. Whether they have a value is asked where their sources are taken."""
        parameters = self._parameters[place]
        row = parameters.checked(arguments, self._devices[place])
        parameters.check_donated_once(row, parameters.donated(options))
        return row

    def value_path(self) -> XlaValuePath | None:
        return self._value_path

    def close_short_path(self) -> None:
        self._short_path.close()
        if self._value_path is not None:
            self._value_path.close()

    def _stop(self) -> None:
        self.close_short_path()
        self._executor.stop("the executable was deleted before all of its devices had been given their arguments")


class XlaPortableExecutable(XlaLoaded):
    """A program for one device of choice.

    jaxlib cannot run an executable on another device than the one that it was loaded on. So the program is loaded on
    each device from its serialized form when it first runs there. The device assignment is the one that it was compiled
    for: frameworks in C ask each executable for one, and TensorFlow ends the process over an error.
    """

    __slots__ = ("_loaded", "_lock")

    def __init__(self, client: Client, runtime: Runtime, executable: XlaExecutable) -> None:
        super().__init__(client, runtime, executable)
        self._lock = threading.Lock()
        self._loaded: dict[Device, XlaLoadedExecutable] = {}
        runtime.adopt(self)

    @property
    def addressable_devices(self) -> Sequence[XlaDevice]:
        return ()

    def _start_on(
        self, device: Any, arguments: Sequence[Buffer], options: ExecuteOptions, futures: Futures
    ) -> list[Buffer]:
        loaded = self._loaded.get(device) or self._load(device)
        return loaded.execute_sharded(arguments, device, options, returned_futures=futures)

    def _stop(self) -> None:
        for loaded in self._loaded.values():
            loaded.delete()
        self._loaded = {}

    def _load(self, device: XlaDevice) -> XlaLoadedExecutable:
        from pjrt.devices.xla.compilation import deserialize  # here: a start would be slower

        with self._lock:
            if device not in self._loaded:
                here = replace(
                    self.compile_options(),
                    device_assignment=DeviceAssignment(((device.id,),)),
                    compile_portable_executable=False,
                )
                executable = deserialize(self._runtime, self.serialize(), here)
                self._loaded[device] = XlaLoadedExecutable(executable, [device])
            return self._loaded[device]

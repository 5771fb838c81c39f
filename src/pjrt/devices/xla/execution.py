"""Executions: from arguments to buffers of results, at once or when all arguments have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.future import Future
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import TURNS, collect_released, converted
from pjrt.devices.xla._short_path import ShortPath
from pjrt.devices.xla.buffer import PendingBuffer, ShardBuffer, XlaBuffer
from pjrt.devices.xla.executable import XlaExecutable, element_type_of, has_collectives, memory_kind_of
from pjrt.devices.xla.future import completion, flattened, in_thread
from pjrt.devices.xla.memory_space import KINDS
from pjrt.devices.xla.rendezvous import Contribution, Rendezvous, Started
from pjrt.devices.xla.shards import Part, Shards, Source, array_of, arrays_in_use, gathered
from pjrt.devices.xla.value_path import XlaValuePath

if TYPE_CHECKING:
    from pjrt.devices.xla.array_type import ArrayType
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.value_shape import ValueShape

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
        path = ShortPath(self, self._start, self._handlers, self.parameter_types[0], self.result_types[0], XlaBuffer)
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
        if any(isinstance(source, Future) for row in sources for source in row):
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
        """Start a launch when all arguments have arrived; see ``rendezvous.Joiner``."""
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

        all_arrived.add_done_callback(start)

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
        if self._partners is not None and not self._has_run and self._exchanges_data():
            self._partners.check_program(self._device_ids, self._executable.name, self._fingerprint)
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

    def _exchanges_data(self) -> bool:
        try:
            return has_collectives(self._executable.optimized_text())
        except FailedPreconditionError:  # the client was closed
            return False

    def _started(self, arrays: list[_jaxlib.Array], launch_id: int) -> Results:
        launch = _jaxlib.start(self._start, arrays, not self._handlers, launch_id)
        token = None if self._handlers else launch.consume_token()
        return Results(launch.consume_with_handlers(self._handlers), token)

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

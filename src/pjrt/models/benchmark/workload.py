"""Workloads: the work that a benchmark repeats, one model with its arguments on one client's devices."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from pjrt import ifrt
from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.models.argument import Argument
from pjrt.models.model import Model

_Rows = list[list[Buffer]]
"""The buffers of an execution: a list for each device."""

_Call = tuple[_Rows, ExecuteOptions | None]
"""The arguments of an execution, and its options."""

_Execution = tuple[_Rows, list[Future[None]]]
"""The results of an execution on each device; the futures of its completion if the program has no results."""

_BATCHES = 8
"""The executions of a batch, as a multiple of those in flight: its begin and its end, when fewer are in flight, weigh
little.
"""


class Workload:
    """A model on its devices, and whole arguments for it.

    Each timed part waits for its results, and releases them after the clock has stopped.

    Args:
        model: the model.
        executable: an executable of the model.
        arguments: the arguments, as ``model.fitted`` returns them.
    """

    def __init__(self, model: Model, executable: ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> None:
        self._model = model
        self._executable = executable
        self._hosts = [np.asarray(argument) for argument in arguments]
        self._placed: list[Argument] = list(self._hosts)
        self._kept_call: _Call | None = None
        self._donates = any(parameter.donated for parameter in model.parameters)

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of this process that the program runs on."""
        return self._executable.addressable_devices

    @property
    def num_argument_bytes(self) -> int:
        """The bytes of the whole arguments."""
        return sum(host.nbytes for host in self._hosts)

    @property
    def num_result_bytes(self) -> int:
        """The bytes of the whole results, without those whose shapes are known only after a run."""
        specs = filter(None, self._executable.output_specs)
        return sum(math.prod(spec.shape) * spec.element_type.dtype.itemsize for spec in specs)

    def put(self) -> int:
        """Put all arguments on the devices and return the nanoseconds until they are there."""
        with _without_collector():
            begin = time.perf_counter_ns()
            arrays = [each for each in self._put(self._hosts) if isinstance(each, ifrt.Array)]
            for array in arrays:
                array.ready().result()
            nanoseconds = time.perf_counter_ns() - begin
        for array in arrays:
            array.delete()
        return nanoseconds

    def execute(self) -> int:
        """Run the program once and return the nanoseconds until all results are there.

        Arguments that the last execution donated are put on the devices again before the clock starts.
        """
        call = self._next_call()
        with _without_collector():
            begin = time.perf_counter_ns()
            execution = self._start(call)
            _wait(execution)
            nanoseconds = time.perf_counter_ns() - begin
        del execution
        return nanoseconds

    def execute_batch(self, in_flight: int) -> tuple[int, list[int]]:
        """Run the program several times with several executions in flight.

        Results are released while the clock runs, as soon as they are there: all of them together may be too large.
        A program that donates arguments runs once for each execution in flight, with arguments of its own.

        Returns:
            The nanoseconds until the last result is there, and those of each execution from its call to its results.
        """
        if self._donates:
            batch = [self._call(self._with_fresh_donated()) for _ in range(in_flight)]
        else:
            batch = [self._next_call()] * (in_flight * _BATCHES)
        pending: deque[tuple[int, _Execution]] = deque()
        times = []

        def finish() -> None:
            start, execution = pending.popleft()
            _wait(execution)
            times.append(time.perf_counter_ns() - start)

        with _without_collector():
            begin = time.perf_counter_ns()
            for call in batch:
                if len(pending) == in_flight:
                    finish()
                pending.append((time.perf_counter_ns(), self._start(call)))
            while pending:
                finish()
            nanoseconds = time.perf_counter_ns() - begin
        return nanoseconds, times

    def fetch(self) -> int:
        """Run the program once, and return the nanoseconds that the copy of all its results to the host takes."""
        results = self._model.run(self._executable, self._arguments())
        for result in results:
            result.ready().result()
        with _without_collector():
            begin = time.perf_counter_ns()
            values = self._model.values(self._executable, results)
            nanoseconds = time.perf_counter_ns() - begin
        del values
        return nanoseconds

    def _put(self, arguments: Sequence[Argument]) -> list[Argument]:
        return self._model.put(self._executable, arguments)

    def _arguments(self) -> list[Argument]:
        """Return the arguments on the devices; put those there that are not, or were donated."""
        self._placed = self._put(
            [
                host if isinstance(array, ifrt.Array) and array.is_deleted else array
                for host, array in zip(self._hosts, self._placed, strict=True)
            ]
        )
        return self._placed

    def _with_fresh_donated(self) -> list[Argument]:
        """Return the arguments on the devices, with new copies of those that the program donates."""
        pairs = zip(self._model.parameters, self._hosts, self._arguments(), strict=True)
        return self._put([host if parameter.donated else array for parameter, host, array in pairs])

    def _next_call(self) -> _Call:
        """Return the call with the arguments on the devices: the same one each time, unless the program donates."""
        if self._kept_call is None or self._donates:
            self._kept_call = self._call(self._arguments())
        return self._kept_call

    def _call(self, arguments: Sequence[Argument]) -> _Call:
        """Return the buffers of the arguments when they have their values, and how to execute."""
        arrays, options = self._model.program_arguments(self._executable, arguments)
        for array in arrays:
            array.ready().result()
        columns = [array.buffers for array in arrays]
        return [[column[number] for column in columns] for number in range(len(self.devices))], options

    def _start(self, call: _Call) -> _Execution:
        rows, options = call
        futures: list[Future[None]] = []
        asked = None if self._executable.output_specs else futures
        return self._executable.pjrt_executable.execute(rows, options, returned_futures=asked), futures


def _wait(execution: _Execution) -> None:
    """Wait for all results of an execution, or for its completion if it has none."""
    rows, futures = execution
    for row in rows:
        for result in row:
            result.ready().result()
    for future in futures:
        future.result()


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the collector of Python's reference cycles from running while the clock runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""The runner of a staged program: brings weights, starts stages, releases what they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.future import Future
from pjrt.models.offloading.schedule import Action, Schedule
from pjrt.models.offloading.stage_executables import StageExecutable
from pjrt.models.offloading.stages import Value

if TYPE_CHECKING:
    from pjrt.models.offloading.staged_program import Placement

HostArray = np.ndarray[Any, Any]


class StageRunner:
    """Runs a staged program, one run at a time.

    Args:
        place: the client, the memory and how to use it.
        runs: the stages with their executables.
        schedule: the steps of a run.
        host: the weights.
        resident: the weights that stay on the device between runs.
        arguments: the position of each argument.
        last_use: the last stage that uses a value.
        results: the values to return.
    """

    def __init__(
        self,
        place: Placement,
        runs: Sequence[StageExecutable],
        schedule: Schedule,
        host: Mapping[Value, HostArray],
        resident: frozenset[Value],
        arguments: Mapping[Value, int],
        last_use: Mapping[Value, int],
        results: Sequence[Value],
    ) -> None:
        self._place = place
        self._runs = runs
        self._schedule = schedule
        self._host: Mapping[Value, HostArray | Buffer] = host
        self._kept = resident
        self._arguments = arguments
        self._last_use = last_use
        self._results = results
        self._resident: dict[Value, Buffer] = {}
        self._device = place.device
        if place.host_space is not None:
            self._host = {
                value: place.client.buffer_from_host(array, memory_space=place.host_space)
                for value, array in host.items()
            }

    def results(self, arguments: Mapping[int, HostArray | Buffer]) -> list[Buffer]:
        """Run the program on arguments by position; wait for its end, and return the results."""
        for value in self._kept - self._resident.keys():
            self._resident[value] = self._bring(value)
        owned: set[Buffer] = set()
        try:
            return self._run(arguments, owned)
        finally:
            # After an error the device may still use them; it frees their memory when it does not.
            for buffer in owned:
                buffer.delete()

    def release(self) -> None:
        """Free the memory of the weights that stay on the device."""
        for buffer in self._resident.values():
            buffer.delete()
        self._resident.clear()

    def delete(self) -> None:
        """Free all memory that is in use between runs: that of the host, too."""
        self.release()
        for array in self._host.values():
            if isinstance(array, Buffer):
                array.delete()

    def _run(self, arguments: Mapping[int, HostArray | Buffer], owned: set[Buffer]) -> list[Buffer]:
        """Run the program; ``owned`` has the buffers to delete at any time."""
        values = dict(self._resident)
        passed: dict[Value, Buffer] = {}
        for value, position in self._arguments.items():
            values[value] = self._put(value, arguments[position], owned)
        under_way: dict[int, Future[None]] = {}
        loaded = -1
        for action, index in self._schedule.steps:
            run = self._runs[index]
            if action is Action.LOAD:
                loaded = index
                for value in run.stage.weights:
                    if value not in values:
                        values[value] = self._bring(value)
                        owned.add(values[value])
                if not self._place.prefetch:
                    Future.all([values[value].ready() for value in run.stage.weights]).result()
            elif action is Action.RUN:
                futures: list[Future[None]] = []
                buffers = run.executable.execute_sharded(
                    [values[value] for value in run.stage.inputs], self._device, run.options, returned_futures=futures
                )
                owned.update(buffers)
                under_way[index] = futures[0]
                for value, buffer in zip(run.results, buffers, strict=True):
                    # A result that is an argument of the program, or a weight, is a buffer beside the one it came from.
                    (passed if value in run.stage.inputs else values)[value] = buffer
            else:
                under_way.pop(index).result()
                needed = {value for later in self._runs[index + 1 : loaded + 1] for value in later.stage.weights}
                done = [value for value in run.stage.weights if value not in needed and value not in self._kept]
                done += [
                    value
                    for value in dict.fromkeys((*run.stage.inputs, *run.results))
                    if value not in self._host and self._last_use.get(value, -1) <= index
                ]
                for value in done:
                    buffer = values.pop(value)
                    owned.discard(buffer)
                    buffer.delete()
        return self._returned(values | passed, owned)

    def _put(self, value: Value, argument: HostArray | Buffer, owned: set[Buffer]) -> Buffer:
        if isinstance(argument, Buffer):
            if self._last_use[value] < len(self._runs):  # donated
                owned.add(argument)
            return argument
        # The caller waits until the end, so the array does not change before.
        semantics = HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
        buffer = self._place.client.buffer_from_host(argument, memory_space=self._place.space, semantics=semantics)
        owned.add(buffer)
        return buffer

    def _bring(self, value: Value) -> Buffer:
        source = self._host[value]
        if isinstance(source, Buffer):
            return source.copy_to(self._place.space)
        semantics = HostBufferSemantics.IMMUTABLE_ZERO_COPY
        return self._place.client.buffer_from_host(source, memory_space=self._place.space, semantics=semantics)

    def _returned(self, values: Mapping[Value, Buffer], owned: set[Buffer]) -> list[Buffer]:
        returned: list[Buffer] = []
        for value in self._results:
            buffer = values[value]
            if buffer in returned:
                buffer = buffer.copy_to(self._place.space)
            owned.discard(buffer)
            returned.append(buffer)
        return returned

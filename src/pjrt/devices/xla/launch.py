"""Launches: one run of an executable on all its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.element_type import ElementType
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import Source, XlaBuffer
from pjrt.devices.xla.errors import converted
from pjrt.devices.xla.executable import XlaExecutable, element_type_of, memory_kind_of
from pjrt.devices.xla.shards import Part, ShardBuffer, Shards, array_of, gathered, held

if TYPE_CHECKING:
    from pjrt.devices.xla._jaxlib import ValueShape
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice


class Results:
    """What a launch gave: one array a result, with a shard on each device, and a token of its completion where there
    are no results to tell it by.
    """

    __slots__ = ("arrays", "token")

    def __init__(self, arrays: list[_jaxlib.Array], token: Any) -> None:
        self.arrays = arrays
        self.token = token


class Launcher:
    """Runs one executable.

    Attributes:
        parameter_types: for each device the types of the parameters.
        result_types: for each device the types of the results.
        donated: the numbers of the parameters whose memory the program takes over.
        handlers: for each result what makes an array of it.
        start: jaxlib's function that starts it.
    """

    __slots__ = (
        "_client",
        "_parameter_shardings",
        "donated",
        "handlers",
        "parameter_types",
        "result_types",
        "start",
    )

    def __init__(self, client: XlaClient, executable: XlaExecutable, devices: Sequence[XlaDevice]) -> None:
        self._client = client
        program_shape = executable.program_shape
        self.start = executable.jaxlib_executable.execute_sharded
        self.donated = program_shape.donated
        self.parameter_types = [[_type(client, p, device) for p in program_shape.parameters] for device in devices]
        self.result_types = [[_type(client, r, device) for r in program_shape.results] for device in devices]
        self._parameter_shardings = _shardings(self.parameter_types[0], devices)
        self.handlers = [
            _jaxlib.result_handler(result.aval, sharding)
            for result, sharding in zip(self.result_types[0], _shardings(self.result_types[0], devices), strict=True)
        ]

    def run(self, rows: Sequence[Sequence[Source]], kept: frozenset[int], launch_id: int) -> Results:
        """Starts the program on all devices.

        Args:
            rows: for each device the sources of its arguments, all of which are there.
            kept: arguments that must not be donated.
            launch_id: tells executions apart; 0 is none.

        Raises:
            PjrtError: it could not be started; also the error of an execution that was over at once.
        """
        columns = [list(column) for column in zip(*rows, strict=True)]
        for number in kept & self.donated:
            columns[number] = [
                _jaxlib.copy(array_of(source), types[number].memory_space)
                for source, types in zip(columns[number], self.parameter_types, strict=True)
            ]
        arrays = [self._argument(number, column) for number, column in enumerate(columns)]
        donated = self.donated - kept
        try:
            if not donated:
                return self._start(arrays, launch_id)
            return self._start_donating(arrays, [s for n in donated for s in columns[n]], launch_id)
        except Exception as error:
            raise converted(error) from error

    def buffers(self, results: Results) -> list[list[XlaBuffer]]:
        """The results as buffers, one list a device."""
        if len(self.result_types) == 1:
            return [list(map(XlaBuffer, results.arrays, self.result_types[0]))]
        apart = [Shards(array) for array in results.arrays]
        return [
            [ShardBuffer(Part(shards, place), kind) for shards, kind in zip(apart, types, strict=True)]
            for place, types in enumerate(self.result_types)
        ]

    def _argument(self, number: int, column: Sequence[Source]) -> _jaxlib.Array:
        if len(column) == 1:
            return array_of(column[0])
        return gathered(column, self.parameter_types[0][number].aval, self._parameter_shardings[number])

    def _start(self, arrays: list[_jaxlib.Array], launch_id: int) -> Results:
        if next(_jaxlib.TURNS):
            _jaxlib.collect_released()
        started = _jaxlib.start(self.start, arrays, not self.handlers, launch_id)
        token = None if self.handlers else started.consume_token()
        return Results(started.consume_with_handlers(self.handlers), token)

    def start_donating_alone(self, arrays: list[_jaxlib.Array]) -> list[_jaxlib.Array] | None:
        """Starts a program for one device that donates, if no argument is given twice and nobody waits for arrays that
        may be donated; otherwise does nothing.
        """
        if len(set(map(id, arrays))) < len(arrays):
            return None
        donations = self._client.watcher.donations
        with donations.lock:
            if donations.has_waiting:
                return None
            results: list[_jaxlib.Array] = self.start(arrays).consume_with_handlers(self.handlers)
        return results

    def _start_donating(self, arrays: list[_jaxlib.Array], sources: Sequence[Source], launch_id: int) -> Results:
        def execute() -> tuple[_jaxlib.Array, Results]:
            results = self._start(arrays, launch_id)
            return results.arrays[0], results

        donated = [array for source in sources for array in held(source)]
        return self._client.watcher.donations.carry_out(donated, execute)


def _type(client: XlaClient, value: ValueShape, device: XlaDevice) -> ArrayType:
    space = client.space_of(device.memory_space(memory_kind_of(value)))
    if value.dtype is None:
        # A token has nothing in it; frameworks and jaxlib begin a chain of them with an array of no truth values.
        return client.array_type((0,), ElementType.PRED, space, (0,), ())
    element_type = element_type_of(value)
    return client.array_type(value.shape, element_type, space, value.minor_to_major, value.dynamic_dimensions)


def _shardings(types: Sequence[ArrayType], devices: Sequence[XlaDevice]) -> list[Any]:
    jaxlib_devices = [device.jaxlib_device for device in devices]
    kinds = {kind.memory_space.kind for kind in types}
    made = {kind: _jaxlib.whole_on_each(jaxlib_devices, kind) for kind in kinds}
    return [made[kind.memory_space.kind] for kind in types]

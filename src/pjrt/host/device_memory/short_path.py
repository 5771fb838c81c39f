"""The short path: programs that return at once, run on the thread that executes them, without an execution.

It does what ``DeviceExecution`` does, for one device, arguments that are ready and none that is donated. It exists
because an execution takes longer than a tiny program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType
from pjrt.host.compiled import Compiled
from pjrt.host.device_memory.allocation import Allocation
from pjrt.host.device_memory.memory import Memory
from pjrt.host.device_run import DeviceRun
from pjrt.host.storage import READY, Storage


class ShortPath:
    """The short path of a program on one device.

    Args:
        compiled: the program.
        run: its run on the device.
        memory: the memory of the client's devices.
    """

    __slots__ = ("_count", "_function", "_memory", "_outputs", "_run")

    def __init__(self, compiled: Compiled, run: DeviceRun, memory: Memory) -> None:
        self._function = compiled.run
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
        if not compiled.runs_on_caller or compiled.takes_context or compiled.takes_allocations:
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
        because an argument is not ready, or the device is at work.
        """
        handles = []
        for storage in inputs:
            definition = storage.definition
            if not definition._done or definition._error is not None:
                return None
            handles.append(storage.array.handle)  # type: ignore[union-attr]  # an allocation: its type is checked
        queue = self._run.device.compute
        visit = queue.enter()
        if visit is None:
            return None
        try:
            return self._function(*handles)
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

"""The value path of the host runtime: programs that return at once, run on the caller's thread.

Its values are storages. It does what ``Execution`` does, for one device, arguments that are ready and none that is
donated. It exists because an execution, and a buffer for each result, take longer than a tiny program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import FailedRunError, ValuePath
from pjrt.host.buffer import HostBuffer
from pjrt.host.compiled import Compiled
from pjrt.host.device_errors import without_traceback
from pjrt.host.execution import adopt, as_sequence
from pjrt.host.storage import READY, Storage
from pjrt.host_memory import references

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer
    from pjrt.host.device_run import DeviceRun, Output
    from pjrt.host.run_context import RunContext

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
        "_charges",
        "_client",
        "_context",
        "_function",
        "_makers",
        "_name",
        "_new_context",
        "_outputs",
        "_queue",
        "_specs",
        "is_closed",
    )

    def __init__(self, compiled: Compiled, run: DeviceRun, new_context: Callable[[], RunContext]) -> None:
        outputs = run.outputs or ()
        self._function = compiled.run
        self._client = run.device.client
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
        if not (client.runs_on_caller or (compiled.runs_on_caller and not compiled.takes_context)):
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

    def run(self, values: list[Any], launch_id: int, futures: list[Future[None]]) -> list[Any] | None:
        if self.is_closed or self._client._closed:
            return None
        for storage in values:
            definition = storage.definition
            if not definition._done or definition._error is not None:
                return None
        queue = self._queue
        visit = queue.enter()
        if visit is None:
            return None
        try:
            held = [as_sequence(self._function(*self._context, *[storage.array for storage in values]))]
            is_exclusive = references.to_item(held, 0) == 1  # before the call below, which holds them too
            return self._adopted(held[0], is_exclusive)
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
        is_there = storage is not None and storage.definition._done and storage.definition._error is None
        return storage.array if storage is not None and is_there else None

    def _adopted(self, results: Any, is_exclusive: bool) -> list[Any]:
        self._check_number(results)
        return [adopt(results, number, spec, is_exclusive) for number, spec in enumerate(self._specs)]


def _buffer(run: DeviceRun, output: Output, storage: Storage | None) -> HostBuffer:
    space, shape, element_type, layout = output
    buffer = HostBuffer(run.device, space, shape, element_type, _DELETED if storage is None else storage, layout)
    if storage is None:
        buffer.delete()
    return buffer

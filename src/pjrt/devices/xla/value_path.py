"""The value path of the ``cpu`` device: from arrays of jaxlib to arrays of jaxlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.loaded_executable import FailedRunError, ValuePath
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import TURNS, collect_released, converted
from pjrt.devices.xla.buffer import XlaBuffer
from pjrt.devices.xla.future import completion

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer
    from pjrt.api.future import Future
    from pjrt.devices.xla.array_type import ArrayType

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

"""Value paths: programs run without buffers, for callers that make a buffer only where one is needed."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer
    from pjrt.api.future import Future


class FailedRunError(Exception):
    """The error of ``ValuePath.run`` for an execution that failed at once.

    Attributes:
        buffers: the buffers of the results, which hold the error.
    """

    def __init__(self, buffers: list[Buffer]) -> None:
        super().__init__("the execution failed; its results hold the error")
        self.buffers = buffers


class ValuePath(abc.ABC):
    """A program on its one device, run from values to values.

    A value is the device's own object behind a buffer. A framework behind the C API runs the same program over and
    over, and passes most results only to other programs. So an exported plugin keeps values, and has a buffer made of a
    value when something other than a program uses it. Programs that donate arguments have no value path, nor have
    programs that ask for the execute context or the location of the call.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def makers(self) -> Sequence[Callable[[Any], Buffer]]:
        """For each result a function that makes a buffer of its value, and of ``None`` a deleted buffer. The functions
        do not hold the program.
        """

    @abc.abstractmethod
    def run(self, values: list[Any], launch_id: int, futures: list[Future[None]]) -> list[Any] | None:
        """Run the program with default options but for the launch id, and return the values of its results.

        Args:
            values: the arguments, from ``value`` or from an earlier call of ``run`` of any program of the client. Their
                buffers have types that ``LoadedExecutable.execute_sharded`` takes; that is not checked again.
            launch_id: the launch id, 0 for none.
            futures: a list to which a future of the completion is appended, unless the execution has succeeded already.

        Returns:
            The values, one a result; ``None`` if nothing was started, and ``execute_sharded`` has to run the program.

        Raises:
            FailedRunError: the execution failed at once.
            FailedPreconditionError: an argument was deleted meanwhile.
        """

    @abc.abstractmethod
    def value(self, buffer: Buffer) -> Any:
        """Return the value of a buffer; ``None`` if it has none now."""

"""Compilations: the executables of a model, one for each set of shapes that it was called with."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.checks import expect_int
from pjrt.api.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from pjrt.stablehlo.signatures import Parameter

_log = logging.getLogger("pjrt.models")

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of a model.

    Attributes:
        model: the name of the program.
        shapes: the shapes of the arguments, one for each parameter.
        seconds: the time that it took; for a saved executable, the time to load it.
        dynamic: the shapes of the parameters with a dynamic size, by name; by index where a parameter has no name.
    """

    model: str
    shapes: Shapes
    seconds: float
    dynamic: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in self.dynamic.items())
        return f"compiled {self.model!r}{f' for {shapes}' if shapes else ''} in {self.seconds:.3f} s"


class Compilations:
    """A bounded number of executables by shapes. Several threads may use it; each executable is compiled once.

    Args:
        capacity: the number of executables that are kept; the least recently used one is dropped. Calls that use it
            end first, because they hold it.
        parameters: the parameters, to describe shapes.
    """

    def __init__(self, capacity: int, parameters: Sequence[Parameter]) -> None:
        if expect_int(capacity, "the number of executables to keep as a whole number") < 1:
            raise InvalidArgumentError(f"expected to keep at least 1 executable, found {capacity}")
        self._capacity = capacity
        self._parameters = parameters
        self._executables: OrderedDict[Shapes, concurrent.futures.Future[Any]] = OrderedDict()
        self._records: list[Compilation] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def records(self) -> tuple[Compilation, ...]:
        """All compilations so far, the first one first."""
        return tuple(self._records)

    def get(self, shapes: Shapes, compile_: Callable[[Shapes], Any]) -> Any:
        """Return the executable for these shapes; compile it if it is not kept.

        Args:
            shapes: the shapes of all arguments.
            compile_: compiles the program for shapes. While it runs, other threads that need the same executable wait
                for it.

        Raises:
            FailedPreconditionError: the model is closed.
            PjrtError: the compilation failed; the next call tries again.
        """
        with self._lock:
            if self._is_closed:
                raise FailedPreconditionError("the model is closed; load it again")
            future = self._executables.get(shapes)
            is_first = future is None
            if future is None:
                future = self._executables[shapes] = concurrent.futures.Future()
            else:
                self._executables.move_to_end(shapes)
        if is_first:
            self._fill(future, shapes, compile_)
        return future.result()

    def _fill(self, future: concurrent.futures.Future[Any], shapes: Shapes, compile_: Callable[[Shapes], Any]) -> None:
        begin = time.perf_counter()
        try:
            executable = compile_(shapes)
        except BaseException as error:
            with self._lock:
                if self._executables.get(shapes) is future:
                    del self._executables[shapes]
            interrupted = AbortedError("the compilation was interrupted in the thread that began it; call again")
            future.set_exception(error if isinstance(error, Exception) else interrupted)
            raise
        dynamic = {
            parameter.name or str(parameter.index): shape
            for parameter, shape in zip(self._parameters, shapes, strict=True)
            if parameter.is_dynamic
        }
        record = Compilation(executable.name, shapes, time.perf_counter() - begin, dynamic)
        with self._lock:
            self._records.append(record)
            while len(self._executables) > self._capacity:
                self._executables.popitem(last=False)
        _log.info("%s", record)
        future.set_result(executable)

    def close(self) -> None:
        """Drop all executables; later calls fail."""
        with self._lock:
            self._is_closed = True
            futures = [*self._executables.values()]
            self._executables.clear()
        for future in futures:
            if future.done() and not future.exception():
                future.result().delete()

"""Let XLA, which divides a program in this process, ask functions of the framework's how custom calls are divided.

The framework registers them with the runtime, by the names of custom calls: JAX's ``custom_partitioning`` is one such
name. The runtime tells the names with its requests; see native/library/partitioner.c.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.native.questions import Questions
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.transforms.custom_calls import CallPartitioner, divide_in_batches, let_ask

_PURPOSE = "divide custom calls"
_MAY_BE_REPLICATED, _IN_BATCHES = 1, 2
_DIVIDE, _INFER, _PROPAGATE = 1, 2, 3


class Partitioners:
    """The names that the framework's process has functions for.

    Args:
        questions: asks that process.
        turn: held while XLA may ask: other processes, which share the device, have functions for the same names.
    """

    def __init__(self, questions: Questions, turn: threading.Lock | None = None) -> None:
        self._questions = questions
        self._turn = turn or threading.Lock()
        self._error: PjrtError | None = None
        self._asked: dict[str, CallPartitioner] = {}

    @contextlib.contextmanager
    def asking(self, request: Any) -> Iterator[None]:
        """Let XLA ask while a request of the runtime is answered, which may bring new names.

        Raises:
            PjrtError: as a function did that was asked, whatever XLA made of that.
        """
        self._error = None
        self._learn(request)
        asks = any(name.encode() in request.program for name in self._asked)
        with self._turn if asks else contextlib.nullcontext():
            for name, asked in self._asked.items() if asks else ():
                let_ask(name, asked)
            try:
                yield
            except Exception:
                if self._error is None:
                    raise
        if self._error is not None:
            raise self._error

    def _learn(self, request: Any) -> None:
        for name, traits in zip(request.partitioned, request.partitioned_traits, strict=True):
            if traits & _IN_BATCHES:
                divide_in_batches(name)
            else:
                self._asked[name] = CallPartitioner(
                    partial(self._divide, name),
                    partial(self._infer, name),
                    partial(self._propagate, name),
                    may_be_replicated=bool(traits & _MAY_BE_REPLICATED),
                )

    def _divide(
        self, name: str, shapes: Sequence[Any], shardings: Sequence[Any], result_shape: Any, result: Any, config: bytes
    ) -> tuple[bytes, list[Any], Any]:
        answer = self._ask(name, _DIVIDE, shapes, shardings, result_shape, result, config)
        return answer.module, [_read(each) for each in answer.operands], _read(answer.result)

    def _infer(
        self, name: str, shapes: Sequence[Any], shardings: Sequence[Any], result_shape: Any, config: bytes
    ) -> Any:
        try:
            answer = self._ask(name, _INFER, shapes, shardings, result_shape, None, config)
        except PjrtError:  # XLA would end the process over it
            return None
        return _read(answer.result) if answer.HasField("result") else None

    def _propagate(self, name: str, sharding: Any, shape: Any, config: bytes) -> Any:
        try:
            return _read(self._ask(name, _PROPAGATE, (), (), shape, sharding, config).result)
        except PjrtError:  # XLA would end the process over it
            return sharding

    def _ask(
        self,
        name: str,
        function: int,
        shapes: Sequence[Any],
        shardings: Sequence[Any],
        result_shape: Any,
        result: Any,
        config: bytes,
    ) -> Any:
        if self._error is None:
            operands = [
                (shape.to_serialized_proto(), _written(sharding))
                for shape, sharding in zip(shapes, shardings, strict=True)
            ]
            of_result = result_shape.to_serialized_proto(), _written(result)
            try:
                return self._questions.ask_partitioner(name, function, operands, of_result, config)
            except PjrtError as error:
                self._error = error
        raise self._error


def _written(sharding: Any) -> bytes | None:
    return None if sharding is None else sharding.to_proto().SerializeToString()


def _read(sharding: bytes) -> Any:
    hlo = jaxlib.load_hlo(_PURPOSE)
    proto = hlo.OpSharding()
    proto.ParseFromString(sharding)
    return hlo.HloSharding.from_proto(proto)

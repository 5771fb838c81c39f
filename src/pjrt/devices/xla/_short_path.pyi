from collections.abc import Sequence
from typing import Any

from pjrt.api.buffer import Buffer
from pjrt.api.future import Future

class ArrayHolder:
    array: Any
    type: Any
    def ready(self) -> Future[None]: ...

class Putter:
    def __init__(self, aval: Any, placement: Any) -> None: ...

class ShortPath:
    def __init__(
        self,
        executor: Any,
        start: Any,
        handlers: list[Any],
        parameter_types: list[Any],
        putters: list[Putter | None],
        result_types: list[Any],
        buffer_class: type[Buffer],
    ) -> None: ...
    def close(self) -> None: ...
    def run(self, arguments: Sequence[Any], puts: bool = False) -> list[Buffer] | None: ...

class ShortCall:
    def __call__(self, *arguments: Any, **keywords: Any) -> tuple[Buffer, ...]: ...

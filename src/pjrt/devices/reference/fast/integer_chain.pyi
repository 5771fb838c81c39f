from collections.abc import Iterable, Sequence
from typing import Any

OPERATIONS: dict[str, int]

class IntegerChain:
    def __init__(
        self,
        instructions: Sequence[tuple[int, int, int, int]],
        operands: int,
        results: Sequence[int],
        shape: tuple[int, ...],
        dtype: Any,
    ) -> None: ...
    def __call__(self, operands: Iterable[Any]) -> Any: ...

from collections.abc import Callable, Sequence
from typing import Any

from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.loaded_executable import ValuePath
from pjrt.api.shape_spec import ShapeSpec

class Loaded:
    execute: Callable[..., list[Buffer]]
    devices: Sequence[Device] | None
    users: int
    def __init__(
        self,
        execute: Callable[..., list[Buffer]],
        parameters: Sequence[ShapeSpec],
        devices: Sequence[Device] | None,
        path: ValuePath | None,
    ) -> None: ...
    def runs_on(self, device: Device) -> bool: ...

class Arrays:
    def __init__(self, served: Any, driver: int, runtime: int) -> None: ...
    @property
    def served(self) -> Any: ...
    def questions(self) -> int: ...

class Functions:
    def __init__(self, open: Callable[[int, bytes], tuple[Arrays | None, bytes]]) -> None: ...
    @property
    def address(self) -> int: ...

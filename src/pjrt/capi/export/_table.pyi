"""Types of the names of ``_table.pyx`` that Python uses."""

from typing import Any

CAPSULE_NAME: str

class Table:
    plugin: Any
    def __init__(self, plugin: Any) -> None: ...
    @property
    def address(self) -> int: ...

def capsule_of(table: int) -> object: ...

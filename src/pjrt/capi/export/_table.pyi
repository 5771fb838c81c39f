"""Types of the names of ``_table.pyx`` that Python uses."""

from pjrt.capi.export.exported_plugin import ExportedPlugin

CAPSULE_NAME: str

class Table:
    plugin: ExportedPlugin
    def __init__(self, plugin: ExportedPlugin) -> None: ...
    @property
    def address(self) -> int: ...

def capsule_of(table: int) -> object: ...

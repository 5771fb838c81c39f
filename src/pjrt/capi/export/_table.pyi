from pjrt.capi.export.exported import Exported

CAPSULE_NAME: str

class Table:
    plugin: Exported
    def __init__(self, plugin: Exported) -> None: ...
    @property
    def address(self) -> int: ...
    def capsule(self) -> object: ...

"""What a loaded executable of the ``cpu`` device is and how it ends, on devices of its own or of choice."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.devices.xla.executable import XlaExecutable

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient


class XlaLoaded(XlaExecutable, LoadedExecutable):
    """A program compiled by XLA for the CPU that a client holds until it is deleted or the client is closed."""

    __slots__ = ("_client", "_deleted", "_executable")

    def __init__(self, client: XlaClient, executable: XlaExecutable) -> None:
        super().__init__(executable.jaxlib_executable, executable.assignment, executable.compile_options())
        self._client = client
        self._deleted = False
        self._executable = executable

    @property
    def client(self) -> XlaClient:
        return self._client

    @property
    def executable(self) -> XlaExecutable:
        return self._executable

    @property
    def is_deleted(self) -> bool:
        return self._deleted

    def delete(self) -> None:
        self._deleted = True
        self._stop()

    def unload(self, reason: str) -> Any:
        self.delete()
        self._executable.unload(reason)
        return super().unload(reason)

    def take_the_long_way(self) -> None:
        """Looks at each execution whether anything can be executed at all, which the short way leaves out."""

    @abc.abstractmethod
    def _stop(self) -> None:
        """Sees to it that nothing is started any more. The code stays for as long as it runs or can be asked about."""

    def _check_usable(self) -> None:
        self._client.check_open()
        if self._deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")

"""The end of an execution; the client asks the server for it when the caller asks for it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.remote.client.connection import Connection
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.versions import EXECUTE_RESULT


class ExecutionFuture(Future[None]):
    """A future that is done when an execution has ended, and fails if the execution failed.

    Args:
        connection: the server's connection.

    Attributes:
        handle: the handle of the execution's status on the server, which can be asked once.
    """

    __slots__ = ("_connection", "_is_asked", "handle")

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._is_asked = False
        self.handle = connection.new_handle()

    def _poll(self) -> None:
        self._ask()

    def _block(self, timeout: float | None) -> None:
        self._ask()
        super()._block(timeout)

    def _watch(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._connection.send(_question(self._connection, self.handle), self._arrive)

    def _arrive(self, _: Any, error: PjrtError | None) -> None:
        self._complete(None, error)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The server keeps a status until it is asked, or until the interpreter's end has ended the session. Then the
        # names of the module may be gone, but for those bound as defaults.
        if not getattr(self, "_is_asked", True) and not is_finalizing():
            connection = self._connection
            connection.release(functools.partial(_forget, connection, self.handle))


def _forget(connection: Connection, handle: int) -> None:
    connection.send(_question(connection, handle))


def _question(connection: Connection, handle: int) -> Any:
    request = wire.IfrtRequest()
    if connection.version.protocol >= EXECUTE_RESULT:
        request.loaded_executable_fetch_execute_result_request.result_status_handle = handle
    else:
        request.check_future_request.future_handle = handle
    return request

"""FFI handlers that belong to one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LocalHandler:
    """An FFI handler that only the process that registers it can run, such as one that uses its global variables.

    A client whose devices are in other processes has them call it here. It gets copies of the operands then, and what
    it writes into the results, which are zero before, goes back.

    Args:
        function: the handler, as ``Client.register_ffi_handler`` takes it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *buffers: Any, **attributes: Any) -> None:
        """Call the handler."""
        self._function(*buffers, **attributes)

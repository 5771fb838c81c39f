"""The requests of the IFRT proxy protocol; each module has the handlers of one noun, and importing it declares them."""

from __future__ import annotations

from pjrt.remote.server.requests import (  # noqa: F401
    array_operations,
    array_states,
    clients,
    compilations,
    executable_facts,
    executions,
    functions,
    host_callbacks,
    host_transfers,
    saved_executables,
)
from pjrt.remote.server.requests.table import HANDLERS, Handler

__all__ = ["HANDLERS", "Handler"]

"""Requests that save executables and load saved ones: an extension of this package to the IFRT proxy protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.errors import UnimplementedError
from pjrt.remote.protocol.messages import wire
from pjrt.remote.server.requests.compilations import compiled, received
from pjrt.remote.server.requests.table import handles
from pjrt.stablehlo.entry_signature import signature

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


@handles("serialize_executable", blocking=True)
def serialize(session: Session, request: Any) -> Any:
    """Return an executable as the device's bytes."""
    _check(session)
    executable = session.executables.get(request.loaded_executable_handle).executable
    return wire.SerializeExecutableResponse(serialized_executable=executable.serialize())


@handles("load_executable", blocking=True)
def load(session: Session, request: Any) -> Any:
    """Load an executable from the device's bytes, and return what a compilation of its program returns."""
    _check(session)
    with session.as_stranger():
        program, options = received(session, request)
        executable = session.client.pjrt_client.deserialize(request.serialized_executable, options)
    types = signature(program, trusted=True)
    loaded = session.client.on_global_arrays(executable, types)
    return wire.LoadExecutableResponse(compiled=compiled(session, loaded, size=request.ByteSize()))


def _check(session: Session) -> None:
    if not session.saves_executables:
        raise UnimplementedError(
            "this server neither saves executables nor loads saved ones, which hold machine code; keep the program and "
            "compile it again, or start the server with --save-executables if you trust its clients"
        )

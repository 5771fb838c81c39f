"""Requests that compile programs and forget executables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.program import Program
from pjrt.ifrt.loaded_executable import LoadedExecutable
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import callback_signature_of, compile_options_of, program_of
from pjrt.remote.protocol.values import status_proto
from pjrt.remote.security.allowed_options import taken_options
from pjrt.remote.server.executables import SessionExecutable
from pjrt.remote.server.host_callbacks import HostCallback
from pjrt.remote.server.requests.table import handles
from pjrt.stablehlo import vet

if TYPE_CHECKING:
    from pjrt.remote.server.session import Session


@handles("compile", blocking=True)
def compile_program(session: Session, request: Any) -> Any:
    """Compile a program, and return the handle of its executable."""
    callbacks = [HostCallback(callback_signature_of(serialized)) for serialized in request.host_callbacks]
    with session.as_stranger():
        executable = session.client.compile(*received(session, request))
    return compiled(session, executable, callbacks, size=request.program.ByteSize())


def received(session: Session, request: Any) -> tuple[Program, CompileOptions]:
    """Return the program and the compile options of a request, after the checks that the server makes.

    Raises:
        PermissionDeniedError: clients may not set one of the options.
        PjrtError: the program does not pass; see ``pjrt.stablehlo.vet``.
    """
    program, options = program_of(request.program), compile_options_of(request.compile_options)
    if session.allow_options is not None:
        options = taken_options(options, session.allow_options)
    if session.vet_programs:
        vet(program)
    return program, options


def compiled(
    session: Session, executable: LoadedExecutable, callbacks: Sequence[HostCallback] = (), *, size: int
) -> Any:
    """Keep an executable for the client, and return its handle and the first facts about it (``CompileResponse``).

    Args:
        session: the session of the client.
        executable: the executable.
        callbacks: the functions of the client that the program calls.
        size: the bytes of the program that the client sent, which count as memory of the session.

    Raises:
        UnimplementedError: the shape of a result is known only after a run. Clients learn shapes before.
    """
    if None in executable.output_specs:
        executable.delete()
        raise UnimplementedError(
            f"a server does not run {executable.name!r}: the shape of a result is known only after a run; give the "
            "shapes of the arguments, as in compile(program, shapes=…)"
        )
    response = wire.CompileResponse(
        loaded_executable_handle=session.executables.add(SessionExecutable(executable, callbacks, size=size)),
        loaded_host_callback_handles=[session.callbacks.add(callback) for callback in callbacks],
        name=executable.name,
        num_devices=executable.num_devices,
        device_ids=executable.devices.ids,
        addressable_device_ids=[device.id for device in executable.addressable_devices],
        ready_future_handle=session.futures.add(Future.completed(None)),
    )
    try:
        if fingerprint := executable.fingerprint():
            response.fingerprint_value = fingerprint
    except UnimplementedError:  # without a fingerprint, as here, JAX goes on; with an error it does not
        pass
    except PjrtError as error:
        response.fingerprint_error.CopyFrom(status_proto(error))
    return response


@handles("loaded_executable_delete", inputs=("loaded_executable_handle",))
def delete(session: Session, request: Any) -> Any:
    """Unload an executable, and return the handle of a future that is done when it is unloaded."""
    session.executables.get(request.loaded_executable_handle).delete()
    return wire.LoadedExecutableDeleteResponse(future_handle=session.futures.add(Future.completed(None)))


@handles("loaded_executable_is_deleted", inputs=("loaded_executable_handle",))
def is_deleted(session: Session, request: Any) -> Any:
    """Return whether an executable was deleted."""
    executable = session.executables.get(request.loaded_executable_handle).executable
    return wire.LoadedExecutableIsDeletedResponse(is_deleted=executable.is_deleted)


@handles("loaded_executable_destruct", inputs=("loaded_executable_handle",))
def destruct(session: Session, request: Any) -> Any:
    """Forget an executable that the client has forgotten; executions under way end first."""
    session.executables.pop(request.loaded_executable_handle).release()
    return wire.LoadedExecutableDestructResponse()

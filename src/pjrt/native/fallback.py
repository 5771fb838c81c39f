"""The process that runs the host's steps: programs that a driver's code does not cover, by the reference interpreter.

The runtime starts it as ``python -m pjrt.native.fallback SPEC FOLDER``, one for each device that needs it. Its standard
input is a socket for programs (see ``compiling``). Descriptor 4 is a socket on which they call handlers of the
framework's process (see ``questions``).
"""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
from typing import Any

import numpy as np

from pjrt.api.errors import AlreadyExistsError, InternalError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program
from pjrt.devices.reference.client import ReferenceClient
from pjrt.native.compiling import ANSWER, serve, take_connection
from pjrt.native.questions import Questions, arrays_of

_KEPT = 256


def main(spec: str, folder: str = "") -> None:
    """Run programs until the runtime closes its end.

    Args:
        spec: the place of the device's compiler, which is not needed here.
        folder: the folder that it is imported from.
    """
    connection = take_connection(folder)
    questions = Questions(socket.socket(fileno=4))
    client = ReferenceClient()

    @functools.lru_cache(_KEPT)
    def compiled(program: bytes) -> LoadedExecutable:
        return client.compile(Program(program, format="mlir"))

    def answer(request: Any) -> Any:
        for target in request.handlers:
            with contextlib.suppress(AlreadyExistsError):
                client.register_ffi_handler(target, questions.handler(target))
        if request.method != "run":
            raise InternalError(f"the process for the host's steps knows no request {request.method!r}")
        arguments = [client.buffer_from_host(array) for array in arrays_of(request.data)]
        futures: list[Future[None]] = []
        (results,) = compiled(request.program).execute([arguments], returned_futures=futures)
        futures[0].result()  # a program without results has effects
        return ANSWER(data=b"".join(np.ascontiguousarray(result).tobytes() for result in results))

    serve(connection, answer)


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import fallback

    fallback.main(*sys.argv[1:])

"""The compiler: from StableHLO text to a module of IREE's virtual machine, in a subprocess or in this process."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.devices.iree import packages

PURPOSE = "compile programs"

_ERROR = 2
"""The severity of errors among those of IREE's diagnostics: note, warning, error, remark."""


class CompilationError(Exception):
    """A program that the compiler did not compile; its argument is what the compiler printed."""


class CrashError(Exception):
    """A crash of the compiler."""


def in_subprocess(code: bytes, flags: Sequence[str]) -> bytes:
    """Return the compiled module of a program. The compiler runs as a program of its own: it may crash.

    Starting it takes about 50 ms; compiling takes ten times as long even for the smallest program.

    Args:
        code: the program, as StableHLO text.
        flags: flags of the compiler.

    Raises:
        CompilationError: the compiler refused the program or a flag.
        CrashError: the compiler crashed.
        FailedPreconditionError: the compiler is not installed.
    """
    done = subprocess.run([_program(), "-", *flags], input=code, capture_output=True, check=False)
    if done.returncode == 0:
        return done.stdout
    messages = done.stderr.decode(errors="replace")
    if (done.returncode < 0 or done.returncode > 1) and "error:" not in messages:
        raise CrashError(_crash(done.returncode, messages))
    raise CompilationError(messages)


def in_process(code: bytes, flags: Sequence[str]) -> bytes:
    """Return the compiled module of a program, as ``in_subprocess`` does. A crash of the compiler ends this process.

    Raises:
        CompilationError, FailedPreconditionError: as for ``in_subprocess``.
    """
    api = packages.load("iree.compiler.api", PURPOSE)
    library = _library()
    session = api.Session()
    try:
        try:
            session.set_flags(*flags)
        except ValueError as error:
            raise CompilationError(str(error)) from None
        invocation = session.invocation()
        messages: list[str] = []
        lock = threading.Lock()

        def collect(severity: int, text: int, size: int, _: object) -> None:
            with lock:  # The compiler's threads call it.
                if severity == _ERROR:
                    messages.append(ctypes.string_at(text, size).decode(errors="replace"))

        callback = _Diagnostic(collect)  # kept until the session is closed
        library.ireeCompilerInvocationEnableCallbackDiagnostics(invocation._inv_p, 0, callback, None)
        source = api.Source.wrap_buffer(session, code + b"\0")
        if not invocation.parse_source(source) or not invocation.execute():
            raise CompilationError("\n".join(messages))
        output = api.Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())
    finally:
        session.close()


_Diagnostic: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
"""IREE's function type for diagnostics: severity, text, its size, and a pointer of the user."""


@functools.cache
def _library() -> Any:
    """Return IREE's compiler as a library, with the function that its Python package does not declare."""
    library = packages.load("iree.compiler.api.ctypes_dl", PURPOSE)._dylib
    function = library.ireeCompilerInvocationEnableCallbackDiagnostics
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, _Diagnostic, ctypes.c_void_p]
    return library


@functools.cache
def _program() -> str:
    """Return the path of the program ``iree-compile``, without importing the compiler, which takes longer than it."""
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ImportError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "_mlir_libs" / "iree-compile"
        if path.exists():
            return str(path)
    raise FailedPreconditionError(
        f"the package {packages.COMPILER} is needed to {PURPOSE}, and it is not installed: "
        f"pip install '{packages.EXTRA}'"
    )


def _crash(status: int, messages: str) -> str:
    lines = [line for line in messages.splitlines() if line.strip()]
    return (
        f"IREE's compiler ended with {'signal' if status < 0 else 'exit code'} {abs(status)}; it printed "
        f"{(lines[0] if lines else 'nothing')[:300]!r}"
    )

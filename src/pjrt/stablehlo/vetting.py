"""Vetting: parsing a program in a process of its own first, so that one that is damaged harms nothing.

The native parsers of MLIR and XLA trust their input. What ``encoding_of`` refuses they never see, which is
everything that is truncated or random. But a sound outline can hold a damaged inside: of files with one flipped bit,
about one in a hundred makes the parser crash or run for ever. ``vet`` lets that happen elsewhere and reports it as
an error. It costs a fraction of a second for the process, once for each program: what was found sound is remembered.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING

from pjrt.api.errors import DataLossError, PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo.encoding import Encoding, encoding_of

if TYPE_CHECKING:
    import subprocess

TIME_LIMIT = 60.0
"""Seconds that the parser may take at least; large programs get more, in proportion."""

_SECONDS_PER_MEGABYTE = 2.0
_REMEMBERED = 1024

_lock = threading.Lock()
_sound: dict[bytes, None] = {}


def vet(program: Program, *, time_limit: float | None = None) -> None:
    """Raises what is wrong with a program, without risk for this process.

    Text is not vetted: its parser withstands what it is given, up to the nesting that ``vet`` checks. Where no
    Python can be started (a program that embeds Python may have none at hand), nothing is vetted.

    Args:
        program: a program in any encoding.
        time_limit: the seconds that the parser may take, ``TIME_LIMIT`` or more for large programs if not given.

    Raises:
        DataLossError: the program makes the parser crash or run for ever.
        PjrtError: as for ``to_module``.
    """
    if encoding_of(program) is Encoding.TEXT:
        _check_nesting(program.code)
        return
    import hashlib  # here, because importing it costs more than all else that reading a program needs

    digest = hashlib.blake2b(program.code, digest_size=16).digest()
    with _lock:
        if digest in _sound:
            return
    if _parses_elsewhere(program, time_limit or TIME_LIMIT + _SECONDS_PER_MEGABYTE * len(program) / 1e6):
        with _lock:
            _sound[digest] = None
            if len(_sound) > _REMEMBERED:
                del _sound[next(iter(_sound))]


def _parses_elsewhere(program: Program, time_limit: float) -> bool:
    """Whether the program was parsed in another process; False if there is none to be had."""
    import subprocess  # here, for the same reason

    if not sys.executable:
        return False
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    command = [sys.executable, "-P", "-m", "pjrt.stablehlo._vet", program.format]
    try:
        done = subprocess.run(
            command, input=program.code, capture_output=True, timeout=time_limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataLossError(
            f"corrupt program: the parser was not done with its {len(program)} bytes after {time_limit:.0f} s"
        ) from error
    except OSError:
        return False
    _raise_for(done, program)
    return True


def _raise_for(done: subprocess.CompletedProcess[bytes], program: Program) -> None:
    if done.returncode == 0:
        return
    if done.returncode == EXIT_REFUSED:
        code, _, message = done.stdout.decode(errors="replace").partition(" ")
        raise PjrtError.of(int(code), message)
    if done.returncode < 0 or done.returncode > 128:  # killed by a signal, as an abort or a segmentation fault is
        raise DataLossError(
            f"corrupt program: its {len(program)} bytes make the native parser crash (exit status {done.returncode})"
        )
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    raise DataLossError(f"the program could not be parsed in a process of its own: {last}")


EXIT_REFUSED = 3
"""How the other process says that the program was refused properly: then it prints status code and message."""

_DEEPEST = 400
_BRACKETS = {ord(c): 1 for c in "([{<"} | {ord(c): -1 for c in ")]}>"}


def _check_nesting(code: bytes) -> None:
    """Refuses text that nests deeper than any program: the native parser recurses, and its stack ends."""
    if max(code.count(bracket) for bracket in (b"(", b"[", b"{", b"<")) <= _DEEPEST:
        return
    depth = 0
    for byte in _QUOTED_OR_COMMENT.sub(b"", code).translate(None, _NO_BRACKETS):
        depth += _BRACKETS[byte]
        if depth > _DEEPEST:
            raise DataLossError(f"corrupt MLIR text: brackets nested more than {_DEEPEST} deep")


_QUOTED_OR_COMMENT = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*|->')
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in _BRACKETS)

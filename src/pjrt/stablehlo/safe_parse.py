"""Vetting: parsing a program in a process of its own first, so that one that is damaged harms nothing.

The native parsers of MLIR and XLA trust their input. What ``encoding_of`` refuses they never see, which is
everything that is truncated or random. But a sound outline can hold a damaged inside: of files with one flipped bit,
about one in a hundred makes the parser crash or run for ever. ``vet`` lets that happen elsewhere and reports it as
an error. It costs a fraction of a second for the process, once for each program: what was found sound is remembered.

Text is another matter: its parser withstands what it is given, but for nesting, which ``check_nesting`` refuses, and
for what ``is_delicate`` finds, which is vetted like anything else.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pjrt.api.errors import DataLossError, PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo.format import Encoding, encoding_of

if TYPE_CHECKING:
    from pjrt.system.python_process import Ended

TIME_LIMIT = 60.0
"""Seconds that the parser may take at least; large programs get more, in proportion."""

_SECONDS_PER_MEGABYTE = 2.0
_REMEMBERED = 1024

_lock = threading.Lock()
_sound: dict[bytes, None] = {}


def vet(program: Program, *, time_limit: float | None = None) -> None:
    """Raises what is wrong with a program, without risk for this process.

    Text is parsed elsewhere only if it is delicate (see ``is_delicate``). Where no Python can be started (a program
    that embeds Python may have none at hand), nothing is vetted.

    Args:
        program: a program in any encoding.
        time_limit: the seconds that the parser may take, ``TIME_LIMIT`` or more for large programs if not given.

    Raises:
        DataLossError: the program makes the parser crash or run for ever.
        PjrtError: as for ``to_module``.
    """
    if encoding_of(program) is Encoding.TEXT:
        check_nesting(program.code)
        if not is_delicate(program.code):
            return
    check_once(program, b"parser", lambda: _parse_elsewhere(program, time_limit))


def check_once(program: Program, what: bytes, look: Callable[[], bool]) -> None:
    """Looks at a program in some way if it was not found sound in that way before; remembers it if it is.

    Args:
        program: the program.
        what: the way of looking, with all else that the answer depends on.
        look: looks at it and raises what is wrong; returns whether it could look.
    """
    import hashlib  # here, because importing it costs more than all else that reading a program needs

    digest = hashlib.blake2b(program.code, digest_size=16, key=hashlib.blake2b(what, digest_size=32).digest()).digest()
    with _lock:
        if digest in _sound:
            return
    if look():
        with _lock:
            _sound[digest] = None
            if len(_sound) > _REMEMBERED:
                del _sound[next(iter(_sound))]


def _parse_elsewhere(program: Program, time_limit: float | None) -> bool:
    """Whether the program was parsed in another process; False if there is none to be had."""
    from pjrt.system.python_process import run_module  # here, for the same reason

    limit = time_limit or TIME_LIMIT + _SECONDS_PER_MEGABYTE * len(program) / 1e6
    try:
        # It is told the size, because reading what has no known end takes twice the memory.
        ended = run_module(__name__, program.format, str(len(program)), given=program.code, time_limit=limit)
    except TimeoutError as error:
        raise DataLossError(
            f"corrupt program: the parser was not done with its {len(program)} bytes after {limit:.0f} s"
        ) from error
    if ended is None:
        return False
    _raise_for(ended, program)
    return True


def _raise_for(ended: Ended, program: Program) -> None:
    if ended.status == 0:
        return
    if ended.status == _EXIT_REFUSED:
        code, _, message = ended.output.decode(errors="replace").partition(" ")
        raise PjrtError.of(int(code), message)
    if ended.crashed:
        raise DataLossError(
            f"corrupt program: its {len(program)} bytes make the native parser crash (exit status {ended.status})"
        )
    raise DataLossError(f"the program could not be parsed in a process of its own: {ended.reason}")


_EXIT_REFUSED = 3
"""How the other process says that the program was refused properly: then it prints status code and message."""


# Text.

_DEEPEST = 400


def check_nesting(code: bytes) -> None:
    """Refuses text that nests deeper than any program: the native parser recurses, and its stack ends.

    Raises:
        DataLossError: it does.
    """
    if max(code.count(bracket) for bracket in (b"(", b"[", b"{", b"<")) <= _DEEPEST:
        return
    opened = bytearray()
    for byte in _QUOTED_OR_COMMENT.sub(b"", code).translate(None, _NO_BRACKETS):
        opening = _OPENING.get(byte)
        if opening is None:
            opened.append(byte)
            if len(opened) > _DEEPEST:
                raise DataLossError(f"corrupt MLIR text: brackets nested more than {_DEEPEST} deep")
        elif byte == _GREATER:  # it closes only what is open: in '->' and '>=' it is no bracket
            if opened.endswith(b"<"):
                opened.pop()
        else:  # whatever '<' is open inside was no bracket
            at = opened.rfind(opening)
            if at >= 0 and not opened[at + 1 :].strip(b"<"):
                del opened[at:]


_QUOTED_OR_COMMENT = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->')
_OPENING = dict(zip(b")]}>", b"([{<", strict=True))
_GREATER = ord(">")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}<>")


def is_delicate(code: bytes) -> bool:
    """Whether text has what MLIR's parser or its Python bindings may not survive.

    That is a string that is not UTF-8, spelled with escapes (the bindings end the process where it is a name or part
    of a diagnostic), an affine map, which StableHLO has none of (its parser recurses without brackets), a number
    of a dimension that no array has (the parser makes room for as many), and an ``all_to_all`` where a type has a size
    of 0 (the verifier divides by the sizes of ``replica_groups``).
    """
    if b"affine_" in code or _SENSELESS_DIMENSION.search(code):
        return True
    if _ALL_TO_ALL.search(code) and _ZERO_SIZE.search(code):
        return True
    return bool(_HIGH_ESCAPE.search(code)) and any(not _is_utf8(quoted) for quoted in _QUOTED.findall(code))


_SENSELESS_DIMENSION = re.compile(rb"dim_numbers\s*=[^\n>]*?\d{5}")


_ALL_TO_ALL = re.compile(rb'all_to_all|\\[0-9A-Fa-f]{2}(?:[^"\\\n]|\\.)*"(?:\s|//[^\n]*\n)*\(')
"""The operation's name, or a quoted name that escapes may spell."""

_ZERO_SIZE = re.compile(rb"[<x](?:\s|//[^\n]*\n)*0+(?:\s|//[^\n]*\n)*x")


_HIGH_ESCAPE = re.compile(rb"\\[89A-Fa-f][0-9A-Fa-f]")
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")
_QUOTED = re.compile(rb'"(?:[^"\\\n]|\\.)*"')


def _is_utf8(quoted: bytes) -> bool:
    plain = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]) if len(found[1]) == 2 else found[1], quoted)
    try:
        plain.decode()
    except UnicodeDecodeError:
        return False
    return True


# The subprocess.


def _main() -> int:
    """Parse the program on the standard input: its format and its size in bytes are arguments.

    Everything in it is read, as this package would: one large thing after the other, and each is released at once.
    """
    from pjrt.stablehlo._mlir import write_text
    from pjrt.stablehlo.conversion import parse_here
    from pjrt.stablehlo.parser import parse_module, read_constants

    format_, size = sys.argv[1], int(sys.argv[2])
    _limit_memory(size)
    try:
        module = parse_here(Program(sys.stdin.buffer.read(size), format_))
        parse_module(module, constants=False)
        read_constants(module)
        write_text(module, locations=True, constants=False)
    except PjrtError as error:
        sys.stdout.write(f"{int(error.code)} {error.message}")
        sys.stdout.flush()
        return _EXIT_REFUSED
    return 0


_LEAST_MEMORY = 8 << 30
_TIMES_THE_PROGRAM = 16


def _limit_memory(size: int) -> None:
    """Make the parser fail where it would take all memory of the machine for a small program (on Linux only)."""
    if sys.platform != "linux":
        return
    import resource

    limit = max(_LEAST_MEMORY, _TIMES_THE_PROGRAM * size)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    sys.exit(_main())

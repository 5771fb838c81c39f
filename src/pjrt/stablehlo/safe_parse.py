"""Parsing a program in a subprocess first, so that a damaged program harms nothing.

The native parsers of MLIR and XLA trust their input. They never see what ``encoding_of`` refuses: everything that is
truncated or random. But a sound outline can hold a damaged inside: of files with one flipped bit, about one in a
hundred makes a parser crash or run for ever. ``vet`` lets that happen in a subprocess and reports it as an error. The
subprocess costs a fraction of a second, once for each program: sound programs are remembered.

The parser of text survives any input but deep nesting, which ``check_nesting`` refuses, and what ``is_delicate``
recognizes, which is vetted like anything else.

As a program, this module is the subprocess.
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
"""The least time limit of the parser, in seconds; large programs get more, in proportion."""

_SECONDS_PER_MEGABYTE = 2.0
_REMEMBERED = 1024

_lock = threading.Lock()
_sound: dict[bytes, None] = {}


def vet(program: Program, *, time_limit: float | None = None) -> None:
    """Check that a program can be parsed, without risk for this process.

    Text is parsed in the subprocess only if it is delicate (see ``is_delicate``). Where no subprocess can be started (a
    program that embeds Python may have no Python to start), nothing is checked.

    Args:
        program: a program in any encoding.
        time_limit: the parser's time limit in seconds; by default ``TIME_LIMIT``, or more for large programs.

    Raises:
        DataLossError: the program makes the parser crash or run for ever.
        PjrtError: as for ``to_module``.
    """
    if encoding_of(program) is Encoding.TEXT:
        check_nesting(program.code)
        if not is_delicate(program.code):
            return
    check_once(program, b"parser", lambda: _parse_in_subprocess(program, time_limit))


def check_once(program: Program, kind: bytes, check: Callable[[], bool]) -> None:
    """Check a program unless it passed a check of this kind before; remember it if it passes.

    Args:
        program: the program.
        kind: the kind of check, with everything else that its result depends on.
        check: raises what is wrong with the program; returns whether the check was possible.
    """
    import hashlib  # here, because importing it costs more than all else that reading a program needs

    digest = hashlib.blake2b(program.code, digest_size=16, key=hashlib.blake2b(kind, digest_size=32).digest()).digest()
    with _lock:
        if digest in _sound:
            return
    if check():
        with _lock:
            _sound[digest] = None
            if len(_sound) > _REMEMBERED:
                del _sound[next(iter(_sound))]


def _parse_in_subprocess(program: Program, time_limit: float | None) -> bool:
    """Parse the program in a subprocess; return False if none can be started."""
    # The size is an argument, because reading input of an unknown size takes twice the memory.
    arguments = (program.format, str(len(program)))
    return run("pjrt.stablehlo.safe_parse", *arguments, given=program.code, time_limit=time_limit) is not None


def run(module: str, *arguments: str, given: bytes, time_limit: float | None) -> Ended | None:
    """Run a module that parses a program (see ``serve``) in a subprocess; return None if none can be started.

    Args:
        module: the module's name.
        arguments: its arguments.
        given: the program, which it reads from its standard input.
        time_limit: as for ``vet``.

    Raises:
        DataLossError: the program makes the parser crash or run for ever.
        PjrtError: the parser refuses the program.
    """
    from pjrt.system.python_process import run_module  # here, for the same reason

    size = len(given)
    limit = time_limit or TIME_LIMIT + _SECONDS_PER_MEGABYTE * size / 1e6
    try:
        ended = run_module(module, *arguments, given=given, time_limit=limit)
    except TimeoutError as error:
        raise DataLossError(
            f"corrupt program: the parser was not done with its {size} bytes after {limit:.0f} s"
        ) from error
    if ended is None:
        return None
    if ended.status == _EXIT_REFUSED:
        code, _, message = ended.output.decode(errors="replace").partition(" ")
        raise PjrtError.of(int(code), message)
    if ended.crashed:
        raise DataLossError(
            f"corrupt program: its {size} bytes make the native parser crash (exit status {ended.status})"
        )
    if ended.status:
        raise DataLossError(f"the program could not be parsed in a subprocess: {ended.reason}")
    return ended


_EXIT_REFUSED = 3
"""The subprocess's exit status for a program that was refused properly; its output is status code and message."""


# Text.

_DEEPEST = 400


def check_nesting(code: bytes) -> None:
    """Refuse text that nests deeper than any program: the native parser recurses, and its stack would overflow.

    Raises:
        DataLossError: the brackets nest too deep.
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
        elif byte == _GREATER:  # it closes only an open '<': in '->' and '>=' it is no bracket
            if opened.endswith(b"<"):
                opened.pop()
        else:  # any '<' that is still open inside was no bracket
            at = opened.rfind(opening)
            if at >= 0 and not opened[at + 1 :].strip(b"<"):
                del opened[at:]


_QUOTED_OR_COMMENT = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->')
_OPENING = dict(zip(b")]}>", b"([{<", strict=True))
_GREATER = ord(">")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}<>")


def is_delicate(code: bytes) -> bool:
    """Whether text holds something that MLIR's parser or its Python bindings may not survive.

    That is a string that is not UTF-8, spelled with escapes (the bindings end the process where it is a name or part
    of a diagnostic), an affine map, which StableHLO does not have (its parser recurses without brackets), a dimension
    number that no array has (the parser allocates as many dimensions), and an ``all_to_all`` where a type has a size
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
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]) if len(match[1]) == 2 else match[1], quoted)
    try:
        plain.decode()
    except UnicodeDecodeError:
        return False
    return True


# The subprocess.


def _main(format_: str, size: int) -> int:
    """Parse the program on the standard input, and read everything in it as this package would.

    Large things are read one after the other, and each is released before the next: the program, its constants, its
    text.
    """
    from pjrt.stablehlo._mlir import write_text
    from pjrt.stablehlo.conversion import parse_here
    from pjrt.stablehlo.parser import parse_module, read_constants

    def parse() -> None:
        module = parse_here(Program(sys.stdin.buffer.read(size), format_))
        parse_module(module, largest_constant=0)
        read_constants(module)
        write_text(module, locations=True, constants=False)

    return serve(size, parse)


def serve(size: int, parse: Callable[[], None]) -> int:
    """Parse a program in this subprocess; return the exit status that ``run`` understands.

    Args:
        size: the program's size in bytes, which bounds the memory.
        parse: reads the program and parses it. It raises a ``PjrtError`` for a program that it refuses.
    """
    limit_memory(size)
    try:
        parse()
    except PjrtError as error:
        sys.stdout.write(f"{int(error.code)} {error.message}")
        sys.stdout.flush()
        return _EXIT_REFUSED
    return 0


_LEAST_MEMORY = 8 << 30
_TIMES_THE_PROGRAM = 16


def limit_memory(size: int) -> None:
    """Make the parser fail where it would take all memory of the machine for a small program (on Linux only)."""
    if sys.platform != "linux":
        return
    import resource

    limit = max(_LEAST_MEMORY, _TIMES_THE_PROGRAM * size)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], int(sys.argv[2])))

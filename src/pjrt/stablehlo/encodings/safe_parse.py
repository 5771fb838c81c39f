"""Parsing a program in a subprocess first, so that a damaged program harms nothing.

The native parsers of MLIR and XLA trust their input. They never see what ``encoding_of`` refuses: everything that is
truncated or random. But a sound outline can hold a damaged inside: of files with one flipped bit, about one in a
hundred makes a parser crash or run for ever. ``vet`` lets that happen in a subprocess and reports it as an error. The
subprocess costs a fraction of a second, once for each program: sound programs are remembered.

The parser of text survives any input but what ``check_text`` refuses, and what ``is_delicate`` recognizes, which is
vetted like anything else.

The subprocess is the module ``parser``, run as a program. A process that has no threads yet, as a command at its start,
can vet a program in a fork of itself instead, which takes a tenth of that time (``parser.vet_in_fork``).
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pjrt.api.errors import CancelledError, DataLossError, FailedPreconditionError, PjrtError, ResourceExhaustedError
from pjrt.api.program import Program, the_stranger
from pjrt.stablehlo.encodings.format import Encoding, encoding_of, has_broken_string

if TYPE_CHECKING:
    from pjrt.system.python_process import Ended

TIME_LIMIT = 60.0
"""The least time limit of the parser, in seconds; large programs get more, in proportion."""

_SECONDS_PER_MEGABYTE = 20.0  # bytecode has up to 100,000 operations in it: 4 s on a machine that does nothing else
_REMEMBERED = 1024

BY_PARSER = b"parser"
"""The kind of check that ``vet`` is."""

_lock = threading.Lock()
_sound: dict[tuple[bytes, int, int], None] = {}


def vet(program: Program, *, time_limit: float | None = None) -> None:
    """Check that a program can be parsed, without risk for this process.

    Text is parsed in the subprocess only if it is delicate (see ``is_delicate``). A program that embeds Python may know
    no Python to start: then nothing is checked, unless the program is a stranger's.

    Args:
        program: a program in any encoding.
        time_limit: the parser's time limit in seconds; by default ``TIME_LIMIT``, or more for large programs.

    Raises:
        DataLossError: the program makes the parser crash or run for ever.
        ResourceExhaustedError: the subprocess cannot be started.
        PjrtError: as for ``to_module``.
    """
    if encoding_of(program) is Encoding.TEXT:
        check_text(program.code)
        if not is_delicate(program.code):
            return
    check_once(program, BY_PARSER, lambda: _parse_in_subprocess(program, time_limit))


def vet_if_delicate(program: Program) -> None:
    """Vet bytecode with a string that is not UTF-8, which ends the process where it is the name of an operation.

    Others have such strings, too, as the configuration of custom calls. Nothing is done for a program without one. Text
    is vetted by ``to_module``.

    Raises:
        PjrtError: as for ``vet``.
    """
    if encoding_of(program) in (Encoding.BYTECODE, Encoding.PORTABLE_ARTIFACT) and has_broken_string(program.code):
        vet(program)


def check_once(program: Program, kind: bytes, check: Callable[[], bool]) -> None:
    """Check a program unless it passed a check of this kind before; remember it if it passes.

    Args:
        program: the program.
        kind: the kind of check, with everything else that its result depends on.
        check: raises what is wrong with the program; returns whether the check was possible.
    """
    # Python's own hash has 64 bits and a key of this process. Those of hashlib would take milliseconds to import.
    key = (kind, len(program.code), hash(program.code))
    with _lock:
        if key in _sound:
            return
    if check():
        with _lock:
            _sound[key] = None
            if len(_sound) > _REMEMBERED:
                del _sound[next(iter(_sound))]


def _parse_in_subprocess(program: Program, time_limit: float | None) -> bool:
    """Parse the program in a subprocess; return False if this process knows no Python to start."""
    # The size is an argument, because reading input of an unknown size takes twice the memory.
    arguments = (program.format, str(len(program)))
    return run("pjrt.stablehlo.reading.parser", *arguments, given=program.code, time_limit=time_limit) is not None


def run(module: str, *arguments: str, given: bytes, time_limit: float | None) -> Ended | None:
    """Run a module that parses a program (see ``serve``) in a subprocess; return None if there is no Python to start.

    Args:
        module: the module's name.
        arguments: its arguments.
        given: the program, which it reads from its standard input.
        time_limit: as for ``vet``.

    Raises:
        DataLossError: the program makes the parser crash or run for ever.
        ResourceExhaustedError: the subprocess cannot be started.
        PjrtError: the parser refuses the program.
    """
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


def run_module(module: str, *arguments: str, given: bytes, time_limit: float | None) -> Ended | None:
    """Run a module as ``system.python_process.run_module`` does, for work that must not be done in this process.

    Raises:
        TimeoutError: the subprocess took too long.
        ResourceExhaustedError: it cannot be started. What it would check is not known to be harmless then.
        FailedPreconditionError: there is no Python to start, and the program is a stranger's.
        CancelledError: the stranger whose program it is has left; the subprocess was ended.
    """
    from pjrt.system import python_process  # here: most programs need no subprocess

    stranger = the_stranger()
    meanwhile = (lambda kill: contextlib.nullcontext()) if stranger is None else stranger.served_by
    try:
        ended = python_process.run_module(module, *arguments, given=given, time_limit=time_limit, meanwhile=meanwhile)
    except TimeoutError:
        raise
    except OSError as error:
        raise ResourceExhaustedError(
            f"cannot start the subprocess that looks at the program first: {error.strerror or error}; close other "
            "programs and files, or raise the limits of this process"
        ) from error
    if stranger is not None and stranger.has_left:
        raise CancelledError("the one whose program it is has left, and the subprocess that looks at it was ended")
    if ended is None and stranger is not None:
        raise FailedPreconditionError(
            f"expected a Python to start, which looks at programs of others first; found none at {sys.executable!r}"
        )
    return ended


_EXIT_REFUSED = 3
"""The subprocess's exit status for a program that was refused properly; its output is status code and message."""


# Text.

_DEEPEST = 400


def check_text(code: bytes) -> None:
    """Refuse text that nests deeper than any program, and resources that end within a string.

    The native parser recurses, and its stack would overflow. After a string of resources it looks for what follows,
    beyond the end of the text. What it finds there is left to chance: another process may survive what ends this one.

    Raises:
        DataLossError: the brackets nest too deep, or the last string has no end.
    """
    if b"{-#" in code and b'"' in re.sub(_QUOTED_OR_COMMENT, b"", code[code.rfind(b"\n") + 1 :]):
        raise DataLossError("corrupt MLIR text: the last string of its resources has no end")
    if max(code.count(bracket) for bracket in (b"(", b"[", b"{", b"<")) <= _DEEPEST:
        return
    opened = bytearray()
    for byte in re.sub(_QUOTED_OR_COMMENT, b"", code).translate(None, _NO_BRACKETS):
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


_QUOTED_OR_COMMENT = rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->'
_OPENING = dict(zip(b")]}>", b"([{<", strict=True))
_GREATER = ord(">")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}<>")


def is_delicate(code: bytes) -> bool:
    """Whether text holds something that MLIR's parser or its Python bindings may not survive.

    That is a string that is not UTF-8, spelled with escapes (the bindings end the process where it is a name or part
    of a diagnostic), an affine map, which StableHLO does not have (its parser recurses without brackets), a dimension
    number that no array has (the parser allocates as many dimensions), an ``all_to_all`` where a type has a size of 0
    (the verifier divides by the sizes of ``replica_groups``), and VHLO (its conversion takes much for granted).
    """
    if b"affine_" in code or b"vhlo." in code or re.search(_SENSELESS_DIMENSION, code):
        return True
    if re.search(_ALL_TO_ALL, code) and re.search(_ZERO_SIZE, code):
        return True
    return bool(re.search(_HIGH_ESCAPE, code)) and any(not _is_utf8(quoted) for quoted in re.findall(_QUOTED, code))


_SENSELESS_DIMENSION = rb"dim_numbers\s*=[^\n>]*?\d{5}"

_ALL_TO_ALL = rb'all_to_all|\\[0-9A-Fa-f]{2}(?:[^"\\\n]|\\.)*"(?:\s|//[^\n]*\n)*\('
"""The operation's name, or a quoted name that escapes may spell."""

_ZERO_SIZE = rb"[<x](?:\s|//[^\n]*\n)*0+(?:\s|//[^\n]*\n)*x"

_HIGH_ESCAPE = rb"\\[89A-Fa-f][0-9A-Fa-f]"
_ESCAPE = rb"\\([0-9A-Fa-f]{2}|.)"
_QUOTED = rb'"(?:[^"\\\n]|\\.)*"'


def _is_utf8(quoted: bytes) -> bool:
    plain = re.sub(_ESCAPE, lambda match: bytes([int(match[1], 16)]) if len(match[1]) == 2 else match[1], quoted)
    try:
        plain.decode()
    except UnicodeDecodeError:
        return False
    return True


# The subprocess.


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

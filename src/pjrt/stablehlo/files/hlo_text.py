"""HLO text: XLA's human-readable form of HLO, as its dumps and bug reports have it (``HloModule …``).

XLA's own parser turns it into an HLO proto. The parser trusts its input, so it runs in a subprocess: as a program, this
module is the subprocess.
"""

from __future__ import annotations

import re
import sys
import warnings

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.program import Program, ProgramFormat
from pjrt.stablehlo.encodings import hlo_proto, jaxlib, safe_parse
from pjrt.stablehlo.encodings.format import HLO_BLANKS, HLO_COMMENT

_PURPOSE = "read or write HLO text"
_HEADER = rb"(?m)^HloModule\b[^\n]*"
_COUNTS = rb"\b(replica_count|num_partitions)=(\d{1,6})\b"
_ELIDED = rb"\bconstant\(\s*\{\s*\.\.\.\s*\}\s*\)"


def parse_hlo_text(code: bytes, *, time_limit: float | None = None, trusted: bool = False) -> Program:
    """Return the HLO proto of a module in HLO text; with a configuration, if it is for several replicas or partitions.

    Args:
        code: the text.
        time_limit: the parser's time limit in seconds; by default as for ``vet``.
        trusted: whether the text comes from a compiler and was not changed since: then no subprocess parses it first.

    Warns:
        UserWarning: a dump left the values of constants out (``constant({...})``), so the program computes nonsense.

    Raises:
        InvalidArgumentError: the text has a syntax error, whose line is in the message, or several modules.
        DataLossError: the text is not UTF-8, or makes the parser crash or run for ever.
        FailedPreconditionError: jaxlib is missing.
    """
    try:
        code.decode()
    except UnicodeDecodeError as error:
        raise DataLossError(f"corrupt HLO text: expected UTF-8, found {code[error.start : error.end]!r}") from error
    _check_modules(code)
    elided = re.search(_ELIDED, code)
    if elided is not None:
        warnings.warn(
            f"the HLO text leaves out the values of {len(re.findall(_ELIDED, code))} constants (the first in line "
            f"{_line_of(code, elided.start())}), so its results mean nothing; dump it with "
            "XLA_FLAGS=--xla_dump_large_constants, or as a proto",
            stacklevel=2,
        )
    proto = None if trusted else _parse_in_subprocess(code, time_limit)
    if proto is None:
        proto = parse_here(code)
    counts = {name: int(count) for name, count in re.findall(_COUNTS, _header(code))}
    replicas, partitions = (max(counts.get(name, 1), 1) for name in (b"replica_count", b"num_partitions"))
    if (replicas, partitions) == (1, 1):
        return Program(proto, ProgramFormat.HLO)
    return Program(hlo_proto.with_config(proto, replicas, partitions), ProgramFormat.HLO_WITH_CONFIG)


def to_hlo_text(program: Program) -> str:
    """Return the HLO text of an HLO proto, such as an executable's optimized program.

    Args:
        program: the program. Its bytes are trusted.

    Raises:
        InvalidArgumentError: XLA refuses the proto.
        FailedPreconditionError: jaxlib is missing.
    """
    place = hlo_proto.screen(program.code)
    hlo = jaxlib.load_hlo(_PURPOSE)
    try:
        module = hlo.HloModule.from_serialized_hlo_module_proto(program.code[place.begin : place.end])
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(f"expected an HLO proto, and XLA refuses it: {error}") from error
    text: str = module.to_string()
    return text


def _header(code: bytes) -> bytes:
    match = re.search(_HEADER, re.sub(HLO_COMMENT, b"", code))
    return b"" if match is None else match[0]


def _check_modules(code: bytes) -> None:
    plain = re.sub(HLO_COMMENT, lambda comment: b"\n" * comment[0].count(b"\n"), code)
    lines = [_line_of(plain, match.start()) for match in re.finditer(_HEADER, plain)]
    if len(lines) > 1:
        raise InvalidArgumentError(
            f"expected one module in HLO text, found {len(lines)}, in the lines {', '.join(map(str, lines[:9]))}: "
            "write each into a file"
        )


def _line_of(code: bytes, position: int) -> int:
    return code.count(b"\n", 0, position) + 1


def parse_here(code: bytes) -> bytes:
    """Return the serialized ``HloModuleProto`` for a text, parsed in this process.

    Raises:
        InvalidArgumentError: the text has a syntax error.
        FailedPreconditionError: jaxlib is missing.
    """
    text = code.decode("utf-8-sig")
    if re.match(HLO_BLANKS + rb"HloModule\b", code) is None:
        text = f"HloModule without_a_name {text}"  # in the first line, so that errors name the right ones
    try:
        proto: bytes = jaxlib.load_hlo(_PURPOSE).hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(_explained(str(error), text)) from error
    return proto


_STEP = r"was parsing (\d+):(\d+): error: (.*)"
_MOST_STEPS = 3
_LONGEST_LINE = 120


def _explained(message: str, text: str) -> str:
    """Return XLA's message for a syntax error as one line with the place, and the line of the text."""
    steps = [match.groups() for match in re.finditer(_STEP, message)]
    if not steps:
        return f"cannot read the HLO text: {message.splitlines()[0][:300] if message else 'no reason given'}"
    number, column, _ = steps[0]
    reasons = list(dict.fromkeys(reason.strip(" :") for _, _, reason in steps))[:_MOST_STEPS]
    lines = text.splitlines()
    line = lines[int(number) - 1].strip()[:_LONGEST_LINE] if 0 < int(number) <= len(lines) else "the end of the text"
    return f"cannot read the HLO text: line {number}, column {column}: {'; '.join(reasons)}; in: {line}"


def _parse_in_subprocess(code: bytes, time_limit: float | None) -> bytes | None:
    ended = safe_parse.run(__name__, str(len(code)), given=code, time_limit=time_limit)
    return None if ended is None else ended.output


def _main(size: int) -> int:
    """Write the proto of the text on the standard input."""

    def parse() -> None:
        sys.stdout.buffer.write(parse_here(sys.stdin.buffer.read(size)))
        sys.stdout.flush()

    return safe_parse.serve(size, parse)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))

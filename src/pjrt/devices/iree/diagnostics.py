"""Diagnostics of IREE's compiler: the error that it reports, and the operation that it means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.devices.author.declined import DeclinedError
from pjrt.stablehlo.operation import Operation, ParsedProgram

_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?:error: )?(?P<text>.*)", re.DOTALL)
_NAME = re.compile(r"operation '(?P<name>[\w.]+)'|'(?P<op>[a-z_]+\.[\w.]+)' op ")
_DUMP = re.compile(r": (?:%[\w:]+ = )?\"[\w.]+\"\(.*", re.DOTALL)
_FLAG = re.compile(r"[Uu]nknown command line argument|for the --\S+ option|Unable to parse flags|Error parsing flags")
_TARGET = re.compile(r"[Uu]nknown \w+ target|target not set|missing GPU target|[Nn]o such target")
_LONGEST = 600


class Diagnostic(NamedTuple):
    """The first error of a compilation.

    Attributes:
        text: the error.
        file, line: the place; empty and 0 if the compiler states none.
        operation: the name of the operation in it; empty if it names none.
    """

    text: str
    file: str
    line: int
    operation: str

    @staticmethod
    def first_of(messages: str) -> Diagnostic:
        """Return the first error in what the compiler printed."""
        lines = [line.strip() for line in messages.splitlines() if line.strip() and not line.endswith("flags:")]
        text = next((line for line in lines if "error:" in line), lines[0] if lines else "no reason was reported")
        match = _PLACE.match(text)
        file, number = (match["file"], int(match["line"])) if match is not None else ("", 0)
        body = match["text"] if match is not None else text.removeprefix("<unknown>:0: ").removeprefix("error: ")
        name = _NAME.search(body)
        return Diagnostic(
            _DUMP.sub("", body)[:_LONGEST], file, number, "" if name is None else name["name"] or name["op"]
        )


def compile_error(messages: str, program: ParsedProgram) -> PjrtError:
    """Return the error for what the compiler printed about a program that it did not compile."""
    diagnostic = Diagnostic.first_of(messages)
    if _FLAG.search(messages):
        return InvalidArgumentError(f"IREE's compiler does not take its flags: {diagnostic.text}")
    if _TARGET.search(messages):
        return InvalidArgumentError(f"IREE's compiler does not compile for the target: {diagnostic.text}")
    operations = program.entry.body.operations if program.entry.body is not None else ()
    reasons = _reasons(diagnostic, operations)
    spelled = ", ".join(
        dict.fromkeys(f"{operations[number].name} at {operations[number].location}" for number in reasons)
    )
    where = spelled or (f"{diagnostic.file}:{diagnostic.line}" if diagnostic.file else program.entry.name)
    return DeclinedError(f"IREE does not compile {where}: {diagnostic.text}", reasons)


def _reasons(diagnostic: Diagnostic, operations: Sequence[Operation]) -> list[int]:
    """Return the positions of the operations that a diagnostic means: of its name, or else at its place."""
    here = [
        number
        for number, operation in enumerate(operations[:-1])
        if any(_is_at(each, diagnostic) for each in (operation, *operation.walk()))
    ]
    named = [
        number
        for number in here or range(len(operations) - 1)
        if any(each.name == diagnostic.operation for each in (operations[number], *operations[number].walk()))
    ]
    return named or here


def _is_at(operation: Operation, diagnostic: Diagnostic) -> bool:
    return bool(diagnostic.file) and any(
        (place.file, place.line) == (diagnostic.file, diagnostic.line) for place in operation.location.places
    )

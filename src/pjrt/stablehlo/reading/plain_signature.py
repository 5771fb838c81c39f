"""The arguments and results of programs of which no other library is needed to read them: MLIR text and HLO protos.

Of text the head of the entry function is read, and nothing else. A compiler reads the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program
from pjrt.stablehlo.encodings.format import HLO_ENCODINGS, Encoding, encoding_of
from pjrt.stablehlo.encodings.hlo_parameters import hlo_parameters, hlo_results
from pjrt.stablehlo.ir.types import TensorType, TokenType, ValueType, element_named

_ENTRY = re.compile(r"\bfunc\.func\s+(?:public\s+)?@(?:main|\"main\")\s*\(")
_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKENS = re.compile(rf"{_STRING}|->|[()\[\]{{}}<>,]")
_COMMENTS = re.compile(rf"({_STRING})|//[^\n]*")
_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)\s*x\s*)*)([A-Za-z]\w*(?:<\w+>)?)\s*(?:,.*)?>", re.DOTALL)
_COUNT = r"mhlo\.num_{}\s*=\s*(\d+)"


def can_read(program: Program) -> bool:
    """Whether ``plain_types`` reads a program of this encoding."""
    return encoding_of(program) in (Encoding.TEXT, *HLO_ENCODINGS)


Value = tuple[str, ValueType, str]
"""The name of an argument or result, its type, and its attributes as text."""


def plain_types(program: Program) -> tuple[list[Value], list[Value]]:
    """Return the arguments and the results of a program, each with its name, its type and its attributes as text.

    Raises:
        DataLossError: an HLO proto is truncated or corrupt.
        InvalidArgumentError: the text has no function ``main``, or has a type that is not known here.
    """
    if encoding_of(program) is Encoding.TEXT:
        return _of_text(program.code.decode(errors="replace"))
    arguments = [
        (each.name, TensorType(each.spec.shape, each.spec.element_type), "") for each in hlo_parameters(program)
    ]
    return list(arguments), [("", TensorType(each.shape, each.element_type), "") for each in hlo_results(program)]


def device_counts(program: Program) -> tuple[int, int]:
    """Return the numbers of replicas and partitions that MLIR text states; 1 where it states none."""
    code = _COMMENTS.sub(r"\1", program.code.decode(errors="replace")) if encoding_of(program) is Encoding.TEXT else ""
    found = [re.search(_COUNT.format(name), code) for name in ("replicas", "partitions")]
    replicas, partitions = (int(match[1]) if match else 1 for match in found)
    return replicas, partitions


def _of_text(code: str) -> tuple[list[Value], list[Value]]:
    code = _COMMENTS.sub(r"\1", code)
    match = _ENTRY.search(code)
    if match is None:
        raise InvalidArgumentError("expected a function func.func @main in the text of the program, found none")
    end = _closing(code, match.end() - 1)
    names = dict(re.findall(r'^(#loc\w*)\s*=\s*loc\("((?:[^"\\]|\\.)*)"', code, re.MULTILINE))
    arguments = []
    for part in _split(code[match.end() : end]):
        _, _, stated = part.partition(":")
        type_, rest = _type(stated)
        arguments.append((_name(rest, names), type_, rest))
    return arguments, _results(code[end + 1 :])


def _results(code: str) -> list[Value]:
    code = code.lstrip()
    if not code.startswith("->"):
        return []
    code = code[2:].lstrip()
    inside = code[1 : _closing(code, 0)] if code.startswith("(") else code
    parts = _split(inside) if code.startswith("(") else [code]
    results: list[Value] = []
    for part in parts:
        type_, rest = _type(part)
        attributes = rest if code.startswith("(") else ""  # what follows one result is the function's
        info = re.search(rf"jax\.result_info\s*=\s*({_STRING})", attributes)
        results.append((_unquoted(info[1]) if info else "", type_, attributes))
    return results


def _name(rest: str, names: dict[str, str]) -> str:
    """Return the name in an argument's location, which may stand elsewhere."""
    stated = re.search(rf"loc\(\s*(?:({_STRING})|(#loc\w*))", rest)
    if stated is None:
        return ""
    return _unquoted(stated[1]) if stated[1] else names.get(stated[2], "")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _type(stated: str) -> tuple[ValueType, str]:
    """Return the type at the beginning of a text, and what follows it."""
    stated = stated.strip()
    if stated.startswith("!stablehlo.token"):
        return TokenType(), stated.removeprefix("!stablehlo.token")
    end = _closing(stated, stated.find("<")) + 1 if stated.startswith("tensor<") else 0
    match = _TENSOR.fullmatch(stated[:end])
    if match is None:
        raise InvalidArgumentError(
            f"expected a tensor as an argument or result, found {stated[:40]!r}; jaxlib reads other types"
        )
    sizes = [size.strip() for size in match[1].split("x")[:-1]]
    shape = tuple(None if size == "?" else int(size) for size in sizes)
    return TensorType(shape, element_named(match[2])), stated[end:]


_PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


def _closing(code: str, opening: int) -> int:
    """Return the position of the bracket that closes the one at a position.

    Raises:
        InvalidArgumentError: there is none.
    """
    depth = 0
    for match in _TOKENS.finditer(code, max(opening, 0)):
        depth += (match[0] in _PAIRS) - (match[0] in _PAIRS.values())
        if not depth:
            return match.start()
    raise InvalidArgumentError("expected the end of a bracket in the text of the program, found the end of the text")


def _split(inside: str) -> Iterator[str]:
    """Yield the parts between the commas that stand in no bracket."""
    begin = depth = 0
    for match in _TOKENS.finditer(inside):
        depth += (match[0] in _PAIRS) - (match[0] in _PAIRS.values())
        if match[0] == "," and not depth:
            yield inside[begin : match.start()]
            begin = match.end()
    if inside[begin:].strip():
        yield inside[begin:]

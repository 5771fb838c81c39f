"""Mutated programs: a seed and a number determine each, so that a finding can be made again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from pjrt import stablehlo
from pjrt.stablehlo.ir import mlir_module

CORPUS = Path(__file__).with_name("corpus.mlir")
SEPARATOR = "// -----\n"

_SHARE_OF_REBUILT = 0.002
_SHARE_OF_BROKEN = 0.05
_SHARE_OF_UNUSUAL = 0.2

_TYPES = [
    "i1",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "ui4",
    "ui8",
    "ui16",
    "ui32",
    "ui64",
    "bf16",
    "f16",
    "f32",
    "f64",
    "f8E4M3FN",
    "f8E5M2",
    "complex<f32>",
    "complex<f64>",
]
_UNUSUAL_TYPES = [
    "i2",
    "ui2",
    "f4E2M1FN",
    "f6E2M3FN",
    "f6E3M2FN",
    "f8E3M4",
    "f8E4M3",
    "f8E4M3FNUZ",
    "f8E4M3B11FNUZ",
    "f8E5M2FNUZ",
    "f8E8M0FNU",
    "index",
    "none",
    "i128",
    "i7",
    "tf32",
    "!quant.uniform<i8:f32,2.0:1>",
    "!stablehlo.token",
    "tuple<tensor<f32>>",
    "vector<4xf32>",
    "tensor<f32>",
    "complex<f16>",
]
"""Types of which most programs are refused, or compiled in a process of their own first."""

_NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "8",
    "16",
    "100",
    "127",
    "128",
    "255",
    "256",
    "1000",
    "65535",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4294967296",
    "1000000000000",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "0x7F",
    "1.0e400",
    "?",
]
_STRINGS = ('"\\00"', '""', '"x"', '"\\F0\\9F\\98\\80"', '"' + "n" * 5000 + '"')
_BROKEN_STRINGS = ('"\\FF"', '"\\C3\\28"')
"""Strings that are not UTF-8. A program with one is parsed in a process of its own first, which takes as long as a
hundred others."""

_NUMBER = re.compile(r"(?<![\w.#%@^])-?\d+(?![\w.])")
_SIZE = re.compile(r"(?<=[<x])\d+(?=x)")
_ELEMENT = re.compile(r"(?<=[<x])(?:bf16|u?i\d+|f\d+(?:E\w+)?|complex<f\d+>)(?=[>,])")
_OPERATION = re.compile(r"\b(?:stablehlo|chlo|func|sdy)\.[a-z_]\w*")
_VALUE = re.compile(r"%[\w#]+")
_STRING = re.compile(r'"[^"\n]*"')
_WORD = re.compile(r"[\w.]+|[^\w\s]")
_TYPE = re.compile(r"tensor<[^<>]*(?:<[^<>]*>)?[^<>]*>")
_ATTRIBUTE = re.compile(r"\{[^{}]*\}|<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)")


class Mutator:
    """The mutator that makes program ``number`` of a seed.

    Args:
        seed: the seed.
        binary: the share of programs that are bytecode, portable artifacts or HLO protos.
    """

    def __init__(self, seed: int, binary: float) -> None:
        self._seed = seed
        self._binary = binary
        self._texts = CORPUS.read_text().split(SEPARATOR)
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._operations = sorted({name for text in self._texts for name in _OPERATION.findall(text)})
        self._lines = [line for text in self._texts for line in text.splitlines() if "=" in line]

    def program(self, number: int) -> bytes:
        """Return the bytes of one program; most are mutated in one to four places."""
        chance = random.Random(f"{self._seed}:{number}")
        which = chance.randrange(len(self._texts))
        if chance.random() < self._binary:
            return mutate_bytes(self._binary_form(which, chance.randrange(3)), chance)
        text = self._texts[which]
        for _ in range(chance.choice((1, 1, 1, 1, 1, 2, 2, 3, 4))):
            kinds = _REBUILT if chance.random() < _SHARE_OF_REBUILT else _OF_TEXT
            text = chance.choice(kinds)(self, text, chance)
        code = text.encode(errors="surrogateescape")
        return chance.choice(OF_BYTES)(code, chance) if chance.random() < 0.1 else code

    def binary_program(self, number: int, form: int) -> bytes:
        """Return the bytes of one program in a form: bytecode, portable artifact or HLO proto, by 0 to 2."""
        chance = random.Random(f"{self._seed}:{form}:{number}")
        return mutate_bytes(self._binary_form(chance.randrange(len(self._texts)), form), chance)

    def _binary_form(self, which: int, form: int) -> bytes:
        """Return a program of the corpus as bytecode, portable artifact or HLO proto, or else as bytecode."""
        code = self._encoded.get((which, form))
        if code is None:
            code = self._encoded[which, form] = _encode(self._texts[which], form)
        return code

    # Mutations of text: each takes the text and a source of chance.

    def number(self, text: str, chance: random.Random) -> str:
        """Replace one number by another."""
        return _replace_one(_NUMBER, text, chance, lambda _: chance.choice(_NUMBERS))

    def size(self, text: str, chance: random.Random) -> str:
        """Replace one size of one type."""
        return _replace_one(_SIZE, text, chance, lambda _: chance.choice(_NUMBERS))

    def every_size(self, text: str, chance: random.Random) -> str:
        """Replace a size everywhere, so that types still agree."""
        sizes = _SIZE.findall(text)
        if not sizes:
            return text
        old, new = chance.choice(sizes), chance.choice(_NUMBERS)
        return _SIZE.sub(lambda match: new if match[0] == old else match[0], text)

    def element(self, text: str, chance: random.Random) -> str:
        """Replace one element type."""
        return _replace_one(_ELEMENT, text, chance, lambda _: _other_type(chance))

    def every_element(self, text: str, chance: random.Random) -> str:
        """Replace an element type everywhere."""
        elements = _ELEMENT.findall(text)
        if not elements:
            return text
        old, new = chance.choice(elements), _other_type(chance)
        return _ELEMENT.sub(lambda match: new if match[0] == old else match[0], text)

    def operation(self, text: str, chance: random.Random) -> str:
        """Replace one operation."""
        return _replace_one(_OPERATION, text, chance, lambda _: chance.choice(self._operations))

    def value(self, text: str, chance: random.Random) -> str:
        """Replace one use of a value by that of another."""
        names = _VALUE.findall(text)
        return _replace_one(_VALUE, text, chance, lambda _: chance.choice(names)) if names else text

    def string(self, text: str, chance: random.Random) -> str:
        """Replace one string by a strange one."""
        return _replace_one(_STRING, text, chance, lambda _: _strange_string(chance))

    def name(self, text: str, chance: random.Random) -> str:
        """Give a location or a symbol a strange name."""
        strange = _strange_string(chance)
        if chance.random() < 0.5:
            return _replace_one(re.compile(r"(?=\n)"), text, chance, lambda _: f" loc({strange})")
        return _replace_one(re.compile(r"@\w+"), text, chance, lambda _: f"@{strange}")

    def callee(self, text: str, chance: random.Random) -> str:
        """Replace a symbol by another, which makes recursion."""
        names = re.findall(r"@\w+", text)
        return _replace_one(re.compile(r"@\w+"), text, chance, lambda _: chance.choice(names)) if names else text

    def word(self, text: str, chance: random.Random) -> str:
        """Double, leave out or replace one word."""
        words = _WORD.findall(text)
        how = chance.randrange(3)
        return _replace_one(
            _WORD, text, chance, lambda match: (match[0] * 2, "", chance.choice(words) if words else "")[how]
        )

    def line(self, text: str, chance: random.Random) -> str:
        """Leave out, double or move a line, or take one from another program."""
        lines = text.splitlines(keepends=True)
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        how = chance.randrange(4)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(other, lines[at])
        elif how == 2:
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines.insert(at, chance.choice(self._lines) + "\n")
        return "".join(lines)

    def type(self, text: str, chance: random.Random) -> str:
        """Replace a type by another of the program's types everywhere."""
        types = _TYPE.findall(text)
        if not types:
            return text
        old, new = chance.choice(types), chance.choice(types)
        return text.replace(old, new)

    def group(self, text: str, chance: random.Random) -> str:
        """Leave out the text between two brackets, or nest or repeat it many times."""
        many = chance.choice((2, 50, 300, 1000))

        def changed(match: re.Match[str]) -> str:
            inside, how = match[0], chance.randrange(4)
            opening, closing = inside[0], inside[-1]
            return (
                opening + closing,
                opening * many + inside + closing * many,
                opening * many,
                opening + ", ".join([inside[1:-1]] * min(many, 50)) + closing,
            )[how]

        return _replace_one(_ATTRIBUTE, text, chance, changed)

    def chain(self, text: str, chance: random.Random) -> str:
        """Return a chain of many functions, of which each calls the next."""
        many, last = chance.choice((3, 30, 300, 3000)), chance.choice(("end", "f0", "main", "f1"))
        kind = "tensor<f32>"
        functions = [
            f"func.func private @f{i}(%a: {kind}) -> {kind} {{ %0 = func.call @{called}(%a) : ({kind}) -> {kind}\n"
            f"return %0 : {kind} }}\n"
            for i, called in enumerate([*(f"f{i}" for i in range(1, many)), last])
        ]
        end = f"func.func private @end(%a: {kind}) -> {kind} {{ return %a : {kind} }}\n"
        call = f"%0 = func.call @f0(%a) : ({kind}) -> {kind}"
        main = f"func.func @main(%a: {kind}) -> {kind} {{ {call}\nreturn %0 : {kind} }}"
        return "".join(functions) + end + main

    def depth(self, text: str, chance: random.Random) -> str:
        """Return many regions, one in the other, or one chain of many operations."""
        many = chance.choice((10, 100, 500, 3000))
        if chance.random() < 0.5:
            lines = [f"%v{i} = stablehlo.add %{f'v{i - 1}' if i else 'a'}, %a : tensor<4xf32>\n" for i in range(many)]
            body = "".join(lines) + f"return %v{many - 1} : tensor<4xf32>"
            return f"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{ {body} }}"
        inside = "stablehlo.return %a : tensor<f32>"
        opening = "".join(f'%r{i} = "stablehlo.if"(%p) ({{ ' for i in range(many))
        closing = "".join(
            f"}}, {{ {inside} }}) : (tensor<i1>) -> tensor<f32> "
            + (f"stablehlo.return %r{i} : tensor<f32> " if i else "")
            for i in reversed(range(many))
        )
        return (
            f"func.func @main(%p: tensor<i1>, %a: tensor<f32>) -> tensor<f32> {{ {opening}{inside} {closing}"
            "return %r0 : tensor<f32> }"
        )


def _other_type(chance: random.Random) -> str:
    return chance.choice(_UNUSUAL_TYPES if chance.random() < _SHARE_OF_UNUSUAL else _TYPES)


def _strange_string(chance: random.Random) -> str:
    return chance.choice(_BROKEN_STRINGS if chance.random() < _SHARE_OF_BROKEN else _STRINGS)


def _encode(text: str, form: int) -> bytes:
    program = stablehlo.read(text)
    try:
        if form == 1:
            return stablehlo.serialize(program, stablehlo.current_version(), trusted=True).code
        if form == 2:
            return stablehlo.to_hlo(program, trusted=True).code
    except Exception:  # no such form: a custom dialect, dynamic shapes
        pass
    return mlir_module.write_bytecode(stablehlo.to_module(program, trusted=True))


def _replace_one(
    pattern: re.Pattern[str], text: str, chance: random.Random, new: Callable[[re.Match[str]], str]
) -> str:
    matches = list(pattern.finditer(text))
    if not matches:
        return text
    match = chance.choice(matches)
    return text[: match.start()] + new(match) + text[match.end() :]


def _flip(code: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(code))
    return code[:at] + bytes([code[at] ^ 1 << chance.randrange(8)]) + code[at + 1 :]


def _set(code: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(code))
    return code[:at] + bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))]) + code[at + 1 :]


def _insert(code: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(code))
    return code[:at] + chance.randbytes(chance.choice((1, 1, 4))) + code[at:]


def _remove(code: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(code))
    return code[:at] + code[at + chance.choice((1, 1, 4, 64)) :] or code


def _cut(code: bytes, chance: random.Random) -> bytes:
    return code[: chance.randrange(1, len(code) + 1)]


def _copy(code: bytes, chance: random.Random) -> bytes:
    at, other = chance.randrange(len(code)), chance.randrange(len(code))
    return code[:other] + code[at : at + chance.randrange(1, 64)] + code[other:]


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes that differ in one to sixteen places."""
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        data = chance.choice(OF_BYTES)(data or b"\0", chance)
    return data


OF_BYTES = (_flip, _flip, _set, _set, _insert, _remove, _copy, _cut)
_OF_TEXT: tuple[Callable[[Mutator, str, random.Random], str], ...] = (
    *(Mutator.number, Mutator.size, Mutator.element, Mutator.operation, Mutator.value, Mutator.string) * 2,
    *(Mutator.every_size, Mutator.every_element, Mutator.type) * 4,
    *(Mutator.word, Mutator.line, Mutator.callee, Mutator.name, Mutator.group),
    *(Mutator.number,) * 4,
    *(Mutator.line,) * 2,
)
_REBUILT: tuple[Callable[[Mutator, str, random.Random], str], ...] = (Mutator.chain, Mutator.depth)

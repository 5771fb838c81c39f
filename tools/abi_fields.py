"""Fields, structs and functions of the ABI headers, and how they are read from C."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FUNCTION_POINTER = re.compile(r"(?P<result>.*?)\(\*(?P<name>\w+)\)\((?P<parameters>.*)\)$")

_SIGNED = {"int", "int32_t", "int64_t", "intptr_t"}
_UNSIGNED = {"size_t", "uint8_t", "uint32_t", "uint64_t", "uintptr_t"}


class HeaderError(Exception):
    """A header has a field that neither the rules nor its marks explain."""


@dataclass
class Field:
    """A field of a struct, or a parameter of a callback."""

    name: str
    ctype: str
    marks: list[str] = field(default_factory=list)
    offset: int = 0
    size: int = 0
    kind: str = ""
    direction: str = "IN"
    element: str = ""
    element_size: int = 0
    type: str = ""
    count: str = ""
    inner_count: str = ""
    owner: str = ""
    variant: int = -1
    bits: list[str] = field(default_factory=list)

    def named(self, word: str) -> str:
        """Return the name behind a mark such as ``count``; empty if the field has no such mark."""
        return next((mark.split()[1] for mark in self.marks if mark.split()[0] == word), "")


@dataclass
class Struct:
    """A struct of the headers, or the parameters of a callback."""

    name: str
    fields: list[Field]
    size: int = 0
    alignment: int = 1
    parameters: bool = False

    def field(self, name: str) -> Field:
        """Return the field of a name."""
        return next(each for each in self.fields if each.name == name)

    def index(self, name: str) -> int:
        """Return the index of the field of a name; -1 for an empty name."""
        return next(i for i, each in enumerate(self.fields) if each.name == name) if name else -1


@dataclass
class Function:
    """A function of the table or of an extension, or a callback."""

    name: str
    args: str
    slot: str = ""
    extension: str = ""
    minor: int = 0
    result: str = "ERROR"
    parameters: tuple[tuple[str, str], ...] = ()
    c_result: str = ""
    is_typedef: bool = False


def split_parameters(text: str) -> list[str]:
    """Split parameters at commas that are not inside of parentheses."""
    out, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            out.append(text[start:i])
            start = i + 1
    out.append(text[start:])
    return [each.strip() for each in out if each.strip() not in ("", "void")]


def read_parameter(text: str, index: int) -> tuple[str, str, list[str]]:
    """Return the type, the name and the marks of a parameter."""
    text, *marks = text.rstrip("\N{SECTION SIGN}").split("\N{SECTION SIGN}")
    match = re.fullmatch(r"(.*?[ *])(\w+)", text)
    if match is None or text.endswith("*"):
        return text, f"argument{index}", marks
    return match[1].strip(), match[2], marks


def read_fields(body: str) -> list[Field]:
    """Return the fields in the body of a struct; members of a union know their place in it."""
    fields: list[Field] = []
    variant = -1
    for raw in body.split(";"):
        marks: list[str] = []
        chunk = raw
        if match := re.match(r"\N{SECTION SIGN}(.*?)\N{SECTION SIGN}", chunk):
            marks = [mark.strip() for mark in match[1].split(",")]
            chunk = chunk[match.end() :]
        if fields and marks:
            fields[-1].marks = marks
        chunk = " ".join(chunk.split())
        if "union {" in chunk:
            variant, chunk = 0, chunk.replace("union {", "").strip()
        if chunk.startswith("}"):
            variant, chunk = -1, chunk[1:].strip()
        if not chunk:
            continue
        fields.append(_read_field(chunk, variant))
        variant += variant >= 0
    return fields


def _read_field(text: str, variant: int) -> Field:
    if match := FUNCTION_POINTER.match(text):
        return Field(match["name"], text, variant=variant)
    if match := re.fullmatch(r"(.*?)(\w+)(\[\d+\])", text):
        return Field(match[2], f"{match[1].strip()}{match[3]}", variant=variant)
    match = re.fullmatch(r"(.*?[ *])(\w+)", text)
    if match is None:
        raise HeaderError(f"not a field: {text}")
    return Field(match[2], match[1].strip(), variant=variant)


def scalar_kind(base: str) -> str:
    """Return the kind of a number of a C type."""
    if base in ("bool",):
        return "BOOL"
    if base == "float":
        return "FLOAT"
    if base in _SIGNED:
        return "SIGNED"
    if base in _UNSIGNED:
        return "UNSIGNED"
    raise HeaderError(f"the type {base} is unknown")

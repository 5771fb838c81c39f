"""Checks of ``struct_size``: of argument structs that are too short, right, and longer than the plugin knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.layer.schema import FUNCTIONS, STRUCTS, Field
from pjrt.conformance.plugin.check import Failed, Unsupported, check
from pjrt.conformance.plugin.examples import EXAMPLES, arguments_of, is_repeatable
from pjrt.conformance.plugin.subject import Subject

_SIZED = tuple(name for name in EXAMPLES if "struct_size" in STRUCTS[FUNCTIONS[name].args].fields)
_OLDER = tuple(
    name for name in _SIZED if any("LATER" in each.marks for each in STRUCTS[FUNCTIONS[name].args].fields.values())
)
_LENIENT = frozenset({"PJRT_Client_CreateViewOfDeviceBuffer"})
"""Functions that do not look at the size in XLA's own plugins, either."""

_HEAD = 8
_MORE = 16
_MARK = 0x5AFE5AFE
_MARK_OF_COUNTS = 3
_UNKNOWN_EXTENSION = np.array([24, 987654, 0], np.uint64)
"""A ``PJRT_Extension_Base`` of a type that does not exist."""


def _first_size(function: str) -> int:
    """Return the size of the first version of a function's argument struct."""
    struct = STRUCTS[FUNCTIONS[function].args]
    fields = list(struct.fields.values())
    later = next((i for i, each in enumerate(fields) if "LATER" in each.marks), len(fields))
    return fields[later - 1].offset + fields[later - 1].size


def _behind(function: str, size: int) -> dict[str, Field]:
    """Return the output fields behind a size, which a caller of that size does not have."""
    fields = STRUCTS[FUNCTIONS[function].args].fields
    kinds = ("STRUCT_VALUE", "FLOAT")
    return {
        name: field
        for name, field in fields.items()
        if field.direction == "OUT" and field.offset >= size and field.kind not in kinds
    }


def _mark(field: Field) -> int:
    return _MARK_OF_COUNTS if field.kind in ("COUNT", "BOOL") else _MARK


def _call(subject: Subject, function: str, size: int, arguments: dict[str, Any]) -> raw.Result:
    """Call a function with a struct of a size; raise ``Failed`` if it writes behind that."""
    marks = {name: _mark(field) for name, field in _behind(function, size).items()}
    result = subject.attempt(function, **{**marks, **arguments, "struct_size": size})
    for name, field in _behind(function, size).items():
        after = int.from_bytes(result.struct_bytes[field.offset : field.offset + field.size], "little")
        if name not in arguments and after != _mark(field) & (1 << 8 * field.size) - 1:
            raise Failed(f"nothing written behind the struct_size {size}", f"{name} written")
    return result


def _refuse_unimplemented(function: str, error: raw.Error | None) -> None:
    if error is not None and error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"{function} is unimplemented")


@check(
    "struct_size.too_short",
    calls=_SIZED,
    rule="A function neither reads nor writes behind the struct_size of its arguments. A struct that ends before the "
    "fields that each version has (0, its head, or one byte too few) is an error with the code INVALID_ARGUMENT.",
    over=_SIZED,
)
def _too_short(subject: Subject, function: str) -> None:
    least = _first_size(function)
    arguments = arguments_of(subject, function)
    for size in sorted({0, _HEAD, least - 1}):
        result = _call(subject, function, size, arguments)
        if FUNCTIONS[function].result == "NOTHING":  # it can return no error, and may have done its work
            arguments = arguments_of(subject, function)
            continue
        _refuse_unimplemented(function, result.error)
        found = str(result.error or "that it succeeded")
        refused = result.error is not None and result.error.code == StatusCode.INVALID_ARGUMENT
        expected = f"{function} to fail with INVALID_ARGUMENT for a struct_size of {size} instead of {least}"
        if function in _LENIENT:
            subject.advise(refused, expected, found)
            return  # what it makes of memory that is not the caller's is no question
        subject.expect(refused, expected, found)


@check(
    "struct_size.right_and_longer",
    calls=EXAMPLES,
    rule="A function that is called with right arguments succeeds; one that a plugin leaves out returns UNIMPLEMENTED. "
    "A caller of a later version stamps a greater struct_size, and may link an extension of an unknown type: both are "
    "accepted.",
    over=EXAMPLES,
)
def _right_and_longer(subject: Subject, function: str) -> None:
    struct = STRUCTS[FUNCTIONS[function].args]
    if function == "PJRT_Client_Create":
        subject.new_client()  # unsupported where the plugin's hardware is missing
    longer = {"struct_size": struct.size + _MORE}
    variants: dict[str, dict[str, Any]] = {"right arguments": {}}
    if "struct_size" in struct.fields:
        variants[f"a struct_size of {struct.size + _MORE}"] = longer
    if "extension_start" in struct.fields:
        variants["an extension of an unknown type"] = {**longer, "extension_start": _UNKNOWN_EXTENSION}
    used = [arguments_of(subject, function)]  # memory of an earlier call stays: the plugin may use it still
    for number, (what, fields) in enumerate(variants.items()):
        if number and not is_repeatable(function):
            used.append(arguments_of(subject, function))
        result = subject.attempt(function, **{**used[-1], **fields})
        if FUNCTIONS[function].result != "NOTHING":
            _refuse_unimplemented(function, result.error)
            subject.expect(result.error is None, f"{function} to succeed with {what}", str(result.error))


@check(
    "struct_size.of_an_older_caller",
    calls=_OLDER,
    rule="Fields that later versions added are behind the struct of an older caller: they are not written. The call "
    "succeeds, or is an error with the code INVALID_ARGUMENT.",
    over=_OLDER,
)
def _older(subject: Subject, function: str) -> None:
    arguments = arguments_of(subject, function)
    result = _call(subject, function, _first_size(function), arguments)
    _refuse_unimplemented(function, result.error)
    if result.error is not None:
        subject.expect_code(result.error, "INVALID_ARGUMENT", function)


@check(
    "struct_size.of_programs",
    calls=("PJRT_Client_Compile",),
    rule="The struct of a program states its size, too: one that is too short is an error with the code "
    "INVALID_ARGUMENT, and a longer one is accepted.",
)
def _programs(subject: Subject) -> None:
    arguments = arguments_of(subject, "PJRT_Client_Compile")
    program = arguments["program"]
    for size in (0, _HEAD, STRUCTS["PJRT_Program"].size - 1):
        short = raw.Struct("PJRT_Program", {**program.fields, "struct_size": size})
        subject.fails("PJRT_Client_Compile", "INVALID_ARGUMENT", **{**arguments, "program": short})
    longer = raw.Struct("PJRT_Program", {**program.fields, "struct_size": STRUCTS["PJRT_Program"].size + _MORE})
    subject.call("PJRT_Client_Compile", **{**arguments, "program": longer})

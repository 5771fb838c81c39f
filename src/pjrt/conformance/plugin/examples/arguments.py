"""The arguments of right calls, by the names of the functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt.capi.layer.schema import FUNCTIONS, STRUCTS, Function
from pjrt.conformance.plugin.examples.extension_arguments import EXTENSION_ARGUMENTS
from pjrt.conformance.plugin.examples.handles import HANDLES
from pjrt.conformance.plugin.examples.table_arguments import TABLE_ARGUMENTS
from pjrt.conformance.plugin.subject import Subject

Arguments = Callable[[Subject], dict[str, Any]]
_STATED: dict[str, Arguments] = {**TABLE_ARGUMENTS, **EXTENSION_ARGUMENTS}
_LEFT_OUT = frozenset({"Profiler", "Megascale", "Collectives", "MultiSlice"})
"""Extensions whose objects no plugin makes without its hardware, or whose functions are in a table of their own."""


def arguments_of(subject: Subject, function: str) -> dict[str, Any]:
    """Return the arguments of a right call of a function; those of each call are new.

    Raises:
        Unsupported: the plugin lacks the function, or has no object of a kind that the call needs.
        Failed: a call that makes such an object failed.
    """
    extension = FUNCTIONS[function].extension
    if extension:
        subject.require_extension(extension)
    subject.require(function)
    arguments = {field: HANDLES[kind](subject) for field, kind in _handles(FUNCTIONS[function]).items()}
    stated = _STATED.get(function)
    return arguments if stated is None else {**arguments, **stated(subject)}


def is_repeatable(function: str) -> bool:
    """Whether a function can be called again with the same arguments: it takes handles alone, and leaves them."""
    marks = {mark for field in STRUCTS[FUNCTIONS[function].args].fields.values() for mark in field.marks}
    return function not in _STATED and not marks & {"DESTROYS", "DELETES", "CONSUMES", "DONATES"}


def _handles(function: Function) -> dict[str, str]:
    """Return the kinds of the handles that a function needs, by field; not those that the stated arguments have."""
    if function.name in _STATED:
        return {}
    fields = STRUCTS[function.args].fields.values()
    needed = (each for each in fields if each.kind == "HANDLE" and each.direction != "OUT")
    return {each.name: each.type for each in needed if "NULLABLE" not in each.marks or each.name == function.handle}


def _has_example(function: Function) -> bool:
    if function.name in _STATED:
        return True
    if function.extension in _LEFT_OUT or any(kind not in HANDLES for kind in _handles(function).values()):
        return False
    fields = STRUCTS[function.args].fields.values()
    return all(
        each.kind in ("STRUCT_SIZE", "EXTENSIONS", "HANDLE") or each.direction == "OUT" or "NULLABLE" in each.marks
        for each in fields
    )


EXAMPLES = tuple(name for name, function in FUNCTIONS.items() if _has_example(function))
"""The functions of which there is an example, in the order of the table."""

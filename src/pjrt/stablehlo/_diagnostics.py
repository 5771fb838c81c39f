"""The messages of MLIR's diagnostics, in one line each, and the errors of its bindings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError

_LONGEST = 600


@contextmanager
def collected(context: Any) -> Iterator[list[str]]:
    """Collect the diagnostics of a context, which go to the standard error output otherwise."""
    messages: list[str] = []

    def listen(diagnostic: Any) -> bool:
        messages.append(f"{place_of(str(diagnostic.location))}{diagnostic.message}")
        return True

    handler = context.attach_diagnostic_handler(listen)
    try:
        yield messages
    finally:
        handler.detach()
    if handler.had_error:
        raise InternalError("the handler of MLIR's diagnostics failed")


@contextmanager
def senseless_refused() -> Iterator[None]:
    """Convert errors that the bindings raise for names and values that only damaged programs have."""
    try:
        yield
    except PjrtError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the program holds something senseless: {type(error).__name__}: {error}") from error


def place_of(location: str) -> str:
    """Return a diagnostic's location as a prefix; positions in text without a name are ``line:column``.

    Of a chain of calls, which may fill the whole message, the innermost is left.
    """
    inside, *callers = location.removeprefix("loc(").removesuffix(")").split(" at callsite(")
    if callers:
        inside = inside.replace("callsite(", "")
        inside += ")" * (inside.count("(") - inside.count(")"))
    if inside == "unknown" or inside.endswith(":0:0"):
        return ""
    return inside.removeprefix('"-":') + ": "


def first_of(messages: list[str], error: Exception) -> str:
    """Return the first of the collected messages; the first diagnostic in an exception's text if there are none."""
    return shortened(messages[0]) if messages else first_in(error)


_DIAGNOSTIC = r'error: (?:"-":(\d+:\d+)|[^\n]*?): (.*)'


def first_in(error: Exception) -> str:
    """Return the first of the diagnostics that the bindings put into one exception."""
    text = str(error)
    match = re.search(_DIAGNOSTIC, text, re.DOTALL)
    if match is None:
        return shortened(text)
    place = "" if match[1] in (None, "0:0") else f"line {match[1].replace(':', ', column ')}: "
    return shortened(place + re.split(r"\n\s*(?:note|error): ", match[2])[0])


def shortened(message: str) -> str:
    """Return a message in one line of limited length."""
    one_line = " ".join(message.split())
    return one_line if len(one_line) <= _LONGEST else one_line[:_LONGEST] + " …"

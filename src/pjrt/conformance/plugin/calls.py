"""Calls of the plugin under test, and what a check requires of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.outcome import Failed, Unsupported

Codes = str | int | Iterable[str | int]
"""Status codes: one or several, by their names or numbers."""


class Calls:
    """The plugin under test in the process of one check.

    Args:
        plugin: the plugin, whose functions can be called without any rule, too.

    Attributes:
        plugin: the plugin.
        advice: what the plugin should do, but need not.
    """

    def __init__(self, plugin: raw.Plugin) -> None:
        self.plugin = plugin
        self.advice: list[str] = []
        self._optional: set[str] = set()
        self._cleanups: list[Callable[[], object]] = []

    def call(self, function: str, /, **fields: Any) -> raw.Result:
        """Call a function, which must succeed; return its result.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the plugin lacks the function; or it answers UNIMPLEMENTED, and ``require`` named it.
        """
        result = self.attempt(function, **fields)
        if result.error is not None:
            self._refuse_unimplemented(function, result.error)
            raise Failed(f"{function} to succeed", str(result.error))
        return result

    def fails(self, function: str, codes: Codes, /, **fields: Any) -> raw.Error:
        """Call a function, which must fail with one of the codes; return the error.

        Raises:
            Failed: the call succeeded, or failed with another code.
            Unsupported: the plugin lacks the function; or it answers UNIMPLEMENTED, and ``require`` named it.
        """
        result = self.attempt(function, **fields)
        names = _names(codes)
        if result.error is None:
            raise Failed(f"{function} to fail with {' or '.join(names)}", "that it succeeded")
        self.expect_code(result.error, codes, function)
        return result.error

    def expect_code(self, error: raw.Error, codes: Codes, function: str) -> None:
        """Raise ``Failed`` unless an error has one of the codes."""
        names = _names(codes)
        if raw.code_name(error.code) not in names:
            self._refuse_unimplemented(function, error)
            raise Failed(f"{function} to fail with {' or '.join(names)}", str(error))

    def attempt(self, function: str, /, **fields: Any) -> raw.Result:
        """Call a function, which may succeed or fail; return its result.

        Raises:
            Unsupported: the plugin lacks the function.
        """
        if not self.plugin.has(function):
            raise Unsupported(f"the plugin lacks {function}")
        return self.plugin.call(function, **fields)

    def require(self, *functions: str) -> None:
        """Raise ``Unsupported`` if the plugin lacks a function.

        From here on a call of it that answers UNIMPLEMENTED is unsupported, too, and not a failure.
        """
        for function in functions:
            if not self.plugin.has(function):
                raise Unsupported(f"the plugin lacks {function}")
        self._optional.update(functions)

    def require_extension(self, name: str) -> int:
        """Return the address of an extension; raise ``Unsupported`` if the plugin lacks it."""
        if name not in self.plugin.extensions:
            raise Unsupported(f"the plugin lacks the extension {name}")
        return self.plugin.extensions[name]

    def expect(self, condition: object, expected: str, found: object) -> None:
        """Raise ``Failed`` unless a condition holds.

        Args:
            condition: whether the plugin did what it must.
            expected: what the rule requires, as a noun: "an id of at least 0".
            found: what there is instead.
        """
        if not condition:
            raise Failed(expected, found if isinstance(found, str) else repr(found))

    def advise(self, condition: object, expected: str, found: object) -> None:
        """Note what the plugin should do, but need not, unless a condition holds."""
        if not condition:
            self.advice.append(f"expected {expected}, found {found}")

    def finally_(self, cleanup: Callable[[], object]) -> None:
        """Have a function called after the check, whatever its outcome, such as one that lets a thread go on."""
        self._cleanups.append(cleanup)

    def clean_up(self) -> None:
        """Call the functions that ``finally_`` was given, the last one first."""
        while self._cleanups:
            self._cleanups.pop()()

    def _refuse_unimplemented(self, function: str, error: raw.Error) -> None:
        if error.code == StatusCode.UNIMPLEMENTED and function in self._optional:
            raise Unsupported(f"{function} is unimplemented")


def _names(codes: Codes) -> list[str]:
    several = (codes,) if isinstance(codes, (str, int)) else codes
    return [raw.code_name(each) if isinstance(each, int) else each for each in several]

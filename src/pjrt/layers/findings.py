"""Findings of the layer ``validate``: what was done against the rules of the ABI, where, and to which handle."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.capi import LoadedPlugin
from pjrt.capi.environment import layers_library


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that the layer ``validate`` checks.

    Attributes:
        name: the rule's name, such as ``use-after-destroy``.
        severity: ``error`` of the framework, ``fault`` of the plugin, ``leak``, or ``advice``: allowed by the header,
            but some plugins do not survive it.
        forwarded: whether the plugin still gets the call in the mode ``report``. It does not where it would crash.
        description: what happened.
        requirement: what the header requires.
    """

    name: str
    severity: str
    forwarded: bool
    description: str
    requirement: str


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call: where a handle was made, or where it ended.

    Attributes:
        function: the function of the C API.
        thread: the system's number of the thread.
        stack: the call stack, innermost first: lines of Python, then functions of C. Empty if it was not recorded.
    """

    function: str
    thread: int
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundHandle:
    """The handle that a finding is about.

    Attributes:
        address: its value.
        kind: its type, such as ``PJRT_Buffer``.
        state: ``live``, ``deleted``, ``donated``, ``consumed`` or ``destroyed``.
        made: the call that returned it.
        ended: the call that deleted it, took it or destroyed it; ``None`` if it lives.
    """

    address: int
    kind: str
    state: str
    made: CallSite | None
    ended: CallSite | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule.

    Attributes:
        rule: the rule's name; ``rules`` explains it.
        severity: that of the rule.
        function: the function, or the callback, that was called.
        argument: the argument; ``None`` if the finding is about no single one.
        message: what was done.
        requirement: what the header requires.
        plugin: the plugin's name or path.
        thread: the system's number of the thread.
        stack: the call stack, innermost first: lines of Python, then functions of C.
        handle: the handle; ``None`` if the finding is about none.
    """

    rule: str
    severity: str
    function: str
    argument: str | None
    message: str
    requirement: str
    plugin: str
    thread: int
    stack: tuple[str, ...]
    handle: FoundHandle | None

    def __str__(self) -> str:
        place = f", argument {self.argument}" if self.argument else ""
        return f"{self.rule}: {self.function}{place}: {self.message}"


def rules() -> tuple[Rule, ...]:
    """Return the rules that the layer ``validate`` checks."""
    found: list[Rule] = []
    while row := _functions().pjrt_validate_rule(len(found)):
        rule = row.contents
        texts = (rule.description.decode(), rule.requirement.decode())
        found.append(Rule(rule.name.decode(), _SEVERITIES[rule.severity], bool(rule.forwarded), *texts))
    return tuple(found)


def findings(plugin: LoadedPlugin) -> list[Finding]:
    """Return the findings of a plugin that ``wrap`` returned, the oldest first: the first 1000 of them.

    Raises:
        InvalidArgumentError: the plugin has no layer ``validate``.
    """
    return [_finding(json.loads(text)) for text in _texts(plugin.address)]


def read_findings(path: str | os.PathLike[str]) -> list[Finding]:
    """Return the findings of a file that the layer wrote: its option ``file``.

    A last line without an end is left out: the process ended while it wrote.

    Raises:
        OSError: the file cannot be read.
        DataLossError: a line is no finding.
    """
    lines = Path(path).read_text(errors="replace").split("\n")[:-1]
    read = []
    for number, line in enumerate(lines, 1):
        try:
            read.append(_finding(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise DataLossError(
                f"{os.fspath(path)}: line {number} is no finding ({error}); expected a JSON object for each line, as "
                "the layer validate writes them with its option file="
            ) from None
    return read


def _finding(fields: Mapping[str, Any]) -> Finding:
    handle = fields.get("handle")
    return Finding(
        rule=fields["rule"],
        severity=fields["severity"],
        function=fields["function"],
        argument=fields.get("argument"),
        message=fields["message"],
        requirement=fields["requirement"],
        plugin=fields["plugin"],
        thread=fields["thread"],
        stack=tuple(fields["stack"]),
        handle=_handle(handle) if handle else None,
    )


def _handle(fields: Mapping[str, Any]) -> FoundHandle:
    return FoundHandle(
        address=int(fields["address"], 16),
        kind=fields["kind"],
        state=fields["state"],
        made=_site(fields, "made"),
        ended=_site(fields, "ended"),
    )


def _site(fields: Mapping[str, Any], which: str) -> CallSite | None:
    function = fields.get(f"{which}_by")
    return CallSite(function, fields[f"{which}_thread"], tuple(fields[f"{which}_stack"])) if function else None


# What the library of layers says.

_SEVERITIES = ("error", "fault", "leak", "advice")
"""The severities of rules, in the order of the C enum."""


class _CRule(ctypes.Structure):
    """The C struct ``pjrt_rule``."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("severity", ctypes.c_int),
        ("forwarded", ctypes.c_bool),
        ("description", ctypes.c_char_p),
        ("requirement", ctypes.c_char_p),
    ]


@functools.cache
def _functions() -> ctypes.CDLL:
    functions = layers_library()
    functions.pjrt_validate_rule.restype = ctypes.POINTER(_CRule)
    functions.pjrt_validate_rule.argtypes = (ctypes.c_int,)
    functions.pjrt_validate_count.restype = ctypes.c_int64
    functions.pjrt_validate_count.argtypes = (ctypes.c_void_p,)
    functions.pjrt_validate_finding.restype = ctypes.c_char_p
    functions.pjrt_validate_finding.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return functions


def _texts(address: int) -> list[str]:
    """Return the findings that the layer of a wrapped table kept, as JSON objects, the oldest first."""
    if _functions().pjrt_validate_count(address) < 0:
        raise InvalidArgumentError(
            'the plugin has no layer "validate"; wrap it with pjrt.layers.wrap(plugin, ["validate"])'
        )
    texts: list[str] = []
    while (text := _functions().pjrt_validate_finding(address, len(texts))) is not None:
        texts.append(text.decode(errors="replace"))
    return texts

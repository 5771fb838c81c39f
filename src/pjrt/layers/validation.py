"""The layer ``validate`` in Python: its rules, and the findings of a wrapped table as JSON."""

from __future__ import annotations

import ctypes
import functools

from pjrt.api.errors import InvalidArgumentError
from pjrt.layers.stack import library_path

SEVERITIES = ("error", "fault", "leak", "advice")
"""The severities of rules, in the order of the C enum."""


class _Rule(ctypes.Structure):
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
    functions = ctypes.CDLL(str(library_path()))  # the same one that wraps: the linker knows it
    functions.pjrt_validate_rule.restype = ctypes.POINTER(_Rule)
    functions.pjrt_validate_rule.argtypes = (ctypes.c_int,)
    functions.pjrt_validate_count.restype = ctypes.c_int64
    functions.pjrt_validate_count.argtypes = (ctypes.c_void_p,)
    functions.pjrt_validate_finding.restype = ctypes.c_char_p
    functions.pjrt_validate_finding.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return functions


def rule_rows() -> list[tuple[str, str, bool, str, str]]:
    """Return each rule: name, severity, whether the call is still made, what happened, what the header requires."""
    rows: list[tuple[str, str, bool, str, str]] = []
    while row := _functions().pjrt_validate_rule(len(rows)):
        rule = row.contents
        texts = (rule.description.decode(), rule.requirement.decode())
        rows.append((rule.name.decode(), SEVERITIES[rule.severity], bool(rule.forwarded), *texts))
    return rows


def num_findings(address: int) -> int:
    """Return how many findings the layer of a wrapped table made, also those that it did not keep.

    Raises:
        InvalidArgumentError: the table has no layer ``validate``.
    """
    count: int = _functions().pjrt_validate_count(address)
    if count < 0:
        raise InvalidArgumentError(
            'the plugin has no layer "validate"; wrap it with pjrt.layers.wrap(plugin, ["validate"])'
        )
    return count


def finding_texts(address: int) -> list[str]:
    """Return the findings that the layer of a wrapped table kept, as JSON objects, the oldest first.

    Raises:
        InvalidArgumentError: the table has no layer ``validate``.
    """
    num_findings(address)
    texts: list[str] = []
    while (text := _functions().pjrt_validate_finding(address, len(texts))) is not None:
        texts.append(text.decode(errors="replace"))
    return texts

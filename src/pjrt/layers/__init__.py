"""Layers at the C ABI: what stands between a framework and any plugin, to see, check, record and disturb their calls.

``wrap`` puts layers before a plugin in this process. ``PJRT_LAYERS=trace,validate`` in the environment does it for
whatever this package loads or exports. The layers themselves are C without Python (``library/``). This package
wraps plugins, and reads and replays what layers write. It knows no one plugin and no framework. For the layers and
their options see ``docs/layers.md``.
"""

from __future__ import annotations

from pjrt.layers.findings import CallSite, Finding, FoundHandle, Rule, findings, read_findings, rules
from pjrt.layers.program import program_environment, run_program
from pjrt.layers.stack import flush, layer_names
from pjrt.layers.wrapping import InjectionRule, WrittenLibrary, disable, enable, inject, injections, wrap, write_library

__all__ = [
    "CallSite",
    "Finding",
    "FoundHandle",
    "InjectionRule",
    "Rule",
    "WrittenLibrary",
    "disable",
    "enable",
    "findings",
    "flush",
    "inject",
    "injections",
    "layer_names",
    "program_environment",
    "read_findings",
    "rules",
    "run_program",
    "wrap",
    "write_library",
]

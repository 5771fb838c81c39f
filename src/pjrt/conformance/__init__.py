"""Conformance: whether a device or a plugin is right, by the reference interpreter and by what the C API requires.

``check_device("my.py:make_client")`` is ``pjrt test-device``; ``check_plugin("libmine.so")`` is ``pjrt conform``. The
table of operations (``operations``, ``cases_of``) has the smallest programs of each operation of StableHLO, with
arguments and the accuracy that results must have; it knows no device. This package must not know any one device but the
judge, ``reference``.

Names are imported at their first use: the processes of checks run modules of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.conformance.device.checks import Finding, Kind
    from pjrt.conformance.device.plan import Choice
    from pjrt.conformance.device.run import Report, check_device
    from pjrt.conformance.operation_table import OperationCase, cases_of, operations
    from pjrt.conformance.plugin.report import PluginReport
    from pjrt.conformance.plugin.run import check_plugin
    from pjrt.conformance.plugin.samples import write_programs
    from pjrt.conformance.plugin.zygote import UnloadableError

__all__ = [
    "Choice",
    "Finding",
    "Kind",
    "OperationCase",
    "PluginReport",
    "Report",
    "UnloadableError",
    "cases_of",
    "check_device",
    "check_plugin",
    "operations",
    "write_programs",
]

_HOMES = {
    ".device.checks": "Finding Kind",
    ".device.plan": "Choice",
    ".device.run": "Report check_device",
    ".operation_table": "OperationCase cases_of operations",
    ".plugin.report": "PluginReport",
    ".plugin.run": "check_plugin",
    ".plugin.samples": "write_programs",
    ".plugin.zygote": "UnloadableError",
    # pytest looks for its hooks in the module that -p names.
    ".pytest_plugin": "pytest_addoption pytest_configure pytest_collection_modifyitems pytest_sessionfinish",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

"""Expectations of XLA's test of the C API: the table and the plugin, with versions, sizes and attributes."""

from __future__ import annotations

from pjrt.api.api_version import API_VERSION
from pjrt.capi.layer.schema import FUNCTIONS
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_FIRST_SLOT = 40
_REQUIRED_ATTRIBUTES = ("xla_version", "stablehlo_current_version", "stablehlo_minimum_version")


@check(
    "official.api_version",
    calls=(),
    rule="The plugin states the version of the C API that it was compiled with: its major version is 0. XLA's test "
    "wants the minor version of the header of the caller, too, which is advice here: an older or newer plugin is not "
    "wrong.",
)
def _api_version(subject: Subject) -> None:
    major, minor = subject.plugin.api_version
    subject.expect(major == API_VERSION[0], f"the major version {API_VERSION[0]}", major)
    subject.expect(minor > 0, "a minor version above 0", minor)
    subject.advise(minor == API_VERSION[1], f"the minor version {API_VERSION[1]} of this package's header", minor)


@check(
    "official.field_offsets_and_sizes",
    calls=(),
    rule="The table of each minor version has the functions of that version, in whole slots: its struct_size reaches "
    "behind the last of them.",
)
def _field_offsets_and_sizes(subject: Subject) -> None:
    _, minor = subject.plugin.api_version
    functions = [each for each in FUNCTIONS.values() if not each.extension and each.minor <= minor]
    least = _FIRST_SLOT + 8 * len(functions)
    size = subject.plugin.table.size
    subject.expect(size >= least, f"a table of at least {least} bytes", size)
    subject.expect(size % 8 == 0, "a table of whole pointers", f"{size} bytes")


@check(
    "official.plugin_attributes",
    calls=("PJRT_Plugin_Attributes",),
    rule="Each attribute of the plugin has a name of its own. XLA's test wants xla_version, stablehlo_current_version "
    "and stablehlo_minimum_version among them, which is advice for plugins that are not built on XLA.",
)
def _plugin_attributes(subject: Subject) -> None:
    attributes = subject.call("PJRT_Plugin_Attributes").attributes or []
    names = [each.name.decode() for each in attributes]
    subject.expect(len(set(names)) == len(names), "attributes with different names", names)
    missing = [name for name in _REQUIRED_ATTRIBUTES if name not in names]
    subject.advise(not missing, f"the attributes {', '.join(_REQUIRED_ATTRIBUTES)}", f"none named {', '.join(missing)}")


@check(
    "official.error_to_status",
    calls=("PJRT_Error_Destroy", "PJRT_Plugin_Attributes"),
    rule="A null pointer in place of an error is success, and destroying it does nothing.",
)
def _error_to_status(subject: Subject) -> None:
    subject.call("PJRT_Plugin_Attributes")
    subject.call("PJRT_Error_Destroy", error=0)

"""Checks of the plugin's table and of its chain of extensions."""

from __future__ import annotations

import threading

from pjrt.capi.layer.schema import ENUMS, FUNCTIONS
from pjrt.capi.raw.numbers import load, load_number
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject, expect_named_values, read_named_values

_ATTRIBUTES = "PJRT_Plugin_Attributes"
_INITIALIZE = "PJRT_Plugin_Initialize"
_VERSION = 16
_VERSION_SIZE = 24
_EXTENSION_SIZE = 24
_TYPE = 8
_NEXT = 16
_MOST_EXTENSIONS = 1000
_TYPES = {number: name for name, number in ENUMS["PJRT_Extension_Type"]}
_OF_FUNCTIONS = {each.extension for each in FUNCTIONS.values()}
# Without these no caller can do anything; XLA's client of the C API calls them without asking.
_NEEDED = (
    "PJRT_Error_Destroy",
    "PJRT_Error_Message",
    "PJRT_Error_GetCode",
    "PJRT_Plugin_Initialize",
    "PJRT_Plugin_Attributes",
    "PJRT_Event_Destroy",
    "PJRT_Event_Await",
    "PJRT_Client_Create",
    "PJRT_Client_Destroy",
    "PJRT_Client_Devices",
    "PJRT_Client_AddressableDevices",
    "PJRT_Client_Compile",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_Buffer_Destroy",
    "PJRT_Buffer_ToHostBuffer",
    "PJRT_LoadedExecutable_Destroy",
    "PJRT_LoadedExecutable_Execute",
)


def _chain(subject: Subject) -> list[int]:
    """Return the addresses of the extensions; raise ``Failed`` if their chain has no end."""
    chain: list[int] = []
    at = load(subject.plugin.address + 8)
    while at:
        subject.expect(at not in chain, "a chain of extensions that ends", "one that leads back to itself")
        subject.expect(len(chain) < _MOST_EXTENSIONS, "a chain of extensions that ends", f"{_MOST_EXTENSIONS} of them")
        chain.append(at)
        at = load(at + _NEXT)
    return chain


@check("table.version.struct_size", calls=(), rule="The version in the table states its own size.")
def _version_size(subject: Subject) -> None:
    size = load(subject.plugin.address + _VERSION)
    subject.expect(size == _VERSION_SIZE, f"{_VERSION_SIZE} as the struct_size of PJRT_Api_Version in the table", size)


@check("table.needed_functions", calls=_NEEDED, rule="The table has the functions without which no program can run.")
def _needed(subject: Subject) -> None:
    missing = [name for name in _NEEDED if not subject.plugin.has(name)]
    subject.expect(not missing, "the functions", f"null pointers for {', '.join(missing)}")


@check(
    "table.functions_of_its_version",
    calls=(),
    rule="A table has a function for each slot of its version; one that a plugin does not implement returns "
    "UNIMPLEMENTED. Null pointers are a common way to leave out functions: this is advice.",
)
def _functions(subject: Subject) -> None:
    _, minor = subject.plugin.api_version
    table = [name for name, each in FUNCTIONS.items() if not each.extension and each.minor <= minor]
    missing = [f"{name} (slot {slot})" for slot, name in enumerate(table) if not subject.plugin.has(name)]
    shown = ", ".join(missing[:5]) + (" and others" if len(missing) > 5 else "")
    subject.advise(not missing, "no null pointers in the table", f"null pointers for {shown}")


@check(
    "plugin.initialize.again",
    calls=(_INITIALIZE,),
    rule="The plugin is set up once: a framework that calls the function again does no harm.",
)
def _initialize_again(subject: Subject) -> None:
    for _ in range(2):
        subject.call(_INITIALIZE)
    subject.call(_ATTRIBUTES)


@check(
    "plugin.initialize.in_a_thread",
    calls=(_INITIALIZE, _ATTRIBUTES),
    rule="The functions of a plugin can be called from any thread.",
)
def _initialize_in_a_thread(subject: Subject) -> None:
    errors: list[object] = []

    def ask() -> None:
        errors.extend(subject.attempt(name).error for name in (_INITIALIZE, _ATTRIBUTES))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    subject.expect(errors == [None, None], "two calls that succeed", errors)


@check(
    "plugin.attributes.types",
    calls=(_ATTRIBUTES,),
    rule="The attributes of a plugin have names of their own, known types, and values of these types.",
)
def _attributes(subject: Subject) -> None:
    values = expect_named_values(subject, subject.call(_ATTRIBUTES), "attributes")
    for name in ("stablehlo_current_version", "stablehlo_minimum_version"):
        if name in values:
            version = values[name]
            right = isinstance(version, list) and len(version) == 3
            subject.expect(right, f"three numbers of a version as {name}", version)


@check(
    "plugin.attributes.stablehlo_versions",
    calls=(_ATTRIBUTES,),
    rule="The oldest version of StableHLO that a plugin reads is not newer than the newest.",
)
def _stablehlo_versions(subject: Subject) -> None:
    values = expect_named_values(subject, subject.call(_ATTRIBUTES), "attributes")
    newest, oldest = values.get("stablehlo_current_version"), values.get("stablehlo_minimum_version")
    if isinstance(newest, list) and isinstance(oldest, list):
        subject.expect(oldest <= newest, f"a minimum of at most {newest}", oldest)


@check(
    "plugin.attributes.lifetime",
    calls=(_ATTRIBUTES,),
    rule="The attributes of a plugin live as long as the process: what was returned stays, whatever is called later.",
)
def _lifetime(subject: Subject) -> None:
    first = subject.call(_ATTRIBUTES)
    client = subject.new_client()
    subject.call("PJRT_Client_Destroy", client=client)
    subject.call(_ATTRIBUTES)
    again = read_named_values(first, "attributes", first.num_attributes)
    subject.expect(again == (first.attributes or []), "the attributes of the first call", repr(again))


@check("extensions.chain_ends", calls=(), rule="The chain of extensions has an end.")
def _chain_ends(subject: Subject) -> None:
    _chain(subject)


@check("extensions.unique_types", calls=(), rule="Each type of extension comes at most once in the chain.")
def _unique_types(subject: Subject) -> None:
    types = [load_number(at + _TYPE, 4, signed=True) for at in _chain(subject)]
    subject.expect(len(set(types)) == len(types), "different types", [_TYPES.get(each, each) for each in types])


@check(
    "extensions.known_types",
    calls=(),
    rule="The type of an extension is at least 0; a type that this package does not know may be of a later version.",
)
def _known_types(subject: Subject) -> None:
    for at in _chain(subject):
        number = load_number(at + _TYPE, 4, signed=True)
        subject.expect(number >= 0, "a type of at least 0", number)
        subject.advise(number in _TYPES, "types of extensions that this package knows", number)


@check(
    "extensions.struct_size",
    calls=(),
    rule="Each extension states a size that has room for the head of an extension. Where an extension is known to hold "
    "functions alone, the size ends behind a whole function.",
)
def _extension_sizes(subject: Subject) -> None:
    for at in _chain(subject):
        size = load(at)
        name = _TYPES.get(load_number(at + _TYPE, 4, signed=True), "an extension")
        subject.expect(_EXTENSION_SIZE <= size < 1 << 16, f"a size of at least {_EXTENSION_SIZE} for {name}", size)
        whole = name not in _OF_FUNCTIONS or size % 8 == 0
        subject.expect(whole, f"a size of whole pointers for {name}", size)


@check(
    "extensions.stable",
    calls=(_INITIALIZE,),
    rule="The chain of extensions lives as long as the process, and stays as it is.",
)
def _stable(subject: Subject) -> None:
    before = _chain(subject)
    subject.new_client()
    subject.expect(_chain(subject) == before, "the same extensions as before", "others")

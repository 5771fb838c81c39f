"""The requirements of a plugin's table and its extensions, of the sizes of all argument structs, and of errors."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.abi.schema import ENUMS, FUNCTIONS, STRUCTS, Field
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.struct import load, load_number
from pjrt.conformance.plugin.check import Failed, Unsupported, check
from pjrt.conformance.plugin.examples import EXAMPLES, arguments_of, is_repeatable
from pjrt.conformance.plugin.examples.handles import error as make_error
from pjrt.conformance.plugin.subject import Subject, expect_named_values, read_named_values
from pjrt.plugins.registry import declaration
from pjrt.plugins.symbols import symbol_report

# The plugin's table and its chain of extensions.

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


@check("table.version.struct_size", calls=())
def _version_size(subject: Subject) -> None:
    """The version in the table states its own size."""
    size = load(subject.plugin.address + _VERSION)
    subject.expect(size == _VERSION_SIZE, f"{_VERSION_SIZE} as the struct_size of PJRT_Api_Version in the table", size)


@check("table.needed_functions", calls=_NEEDED)
def _needed(subject: Subject) -> None:
    """The table has the functions without which no program can run."""
    missing = [name for name in _NEEDED if not subject.plugin.has(name)]
    subject.expect(not missing, "the functions", f"null pointers for {', '.join(missing)}")


@check("table.functions_of_its_version", calls=())
def _functions(subject: Subject) -> None:
    """A table has a function for each slot of its version; one that a plugin does not implement returns UNIMPLEMENTED.
    Null pointers are a common way to leave out functions: this is advice.
    """
    _, minor = subject.plugin.api_version
    table = [name for name, each in FUNCTIONS.items() if not each.extension and each.minor <= minor]
    missing = [f"{name} (slot {slot})" for slot, name in enumerate(table) if not subject.plugin.has(name)]
    shown = ", ".join(missing[:5]) + (" and others" if len(missing) > 5 else "")
    subject.advise(not missing, "no null pointers in the table", f"null pointers for {shown}")


@check("table.symbols", calls=())
def _symbols(subject: Subject) -> None:
    """The plugin's library exports no symbols of protobuf, Abseil, MLIR, LLVM or XLA, nor others that a library of an
    installed framework defines: in one process the plugin and the framework might call each other's.
    """
    library = declaration(subject.name).library
    if library is None:
        raise Unsupported("a library of the plugin's own")
    report = symbol_report(Path(library))
    found = [f"{count} of {name}" for name, count in report.groups.items()]
    found += [f"{', '.join(names[:3])} as in {package}" for package, names in report.shared.items()]
    subject.expect(not found, "no symbols of a framework's libraries", "; ".join(found))


@check("plugin.initialize.again", calls=(_INITIALIZE,))
def _initialize_again(subject: Subject) -> None:
    """The plugin is set up once: a framework that calls the function again does no harm."""
    for _ in range(2):
        subject.call(_INITIALIZE)
    subject.call(_ATTRIBUTES)


@check("plugin.initialize.in_a_thread", calls=(_INITIALIZE, _ATTRIBUTES))
def _initialize_in_a_thread(subject: Subject) -> None:
    """The functions of a plugin can be called from any thread."""
    errors: list[object] = []

    def ask() -> None:
        errors.extend(subject.attempt(name).error for name in (_INITIALIZE, _ATTRIBUTES))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    subject.expect(errors == [None, None], "two calls that succeed", errors)


@check("plugin.attributes.types", calls=(_ATTRIBUTES,))
def _attributes(subject: Subject) -> None:
    """The attributes of a plugin have names of their own, known types, and values of these types."""
    values = expect_named_values(subject, subject.call(_ATTRIBUTES), "attributes")
    for name in ("stablehlo_current_version", "stablehlo_minimum_version"):
        if name in values:
            version = values[name]
            right = isinstance(version, list) and len(version) == 3
            subject.expect(right, f"three numbers of a version as {name}", version)


@check("plugin.attributes.stablehlo_versions", calls=(_ATTRIBUTES,))
def _stablehlo_versions(subject: Subject) -> None:
    """The oldest version of StableHLO that a plugin reads is not newer than the newest."""
    values = expect_named_values(subject, subject.call(_ATTRIBUTES), "attributes")
    newest, oldest = values.get("stablehlo_current_version"), values.get("stablehlo_minimum_version")
    if isinstance(newest, list) and isinstance(oldest, list):
        subject.expect(oldest <= newest, f"a minimum of at most {newest}", oldest)


@check("plugin.attributes.lifetime", calls=(_ATTRIBUTES,))
def _plugin_attributes_lifetime(subject: Subject) -> None:
    """The attributes of a plugin live as long as the process: what was returned stays, whatever is called later."""
    first = subject.call(_ATTRIBUTES)
    client = subject.new_client()
    subject.call("PJRT_Client_Destroy", client=client)
    subject.call(_ATTRIBUTES)
    again = read_named_values(first, "attributes", first.num_attributes)
    subject.expect(again == (first.attributes or []), "the attributes of the first call", repr(again))


@check("extensions.chain_ends", calls=())
def _chain_ends(subject: Subject) -> None:
    """The chain of extensions has an end."""
    _chain(subject)


@check("extensions.unique_types", calls=())
def _unique_types(subject: Subject) -> None:
    """Each type of extension comes at most once in the chain."""
    types = [load_number(at + _TYPE, 4, signed=True) for at in _chain(subject)]
    subject.expect(len(set(types)) == len(types), "different types", [_TYPES.get(each, each) for each in types])


@check("extensions.known_types", calls=())
def _known_types(subject: Subject) -> None:
    """The type of an extension is at least 0; a type that this package does not know may be of a later version."""
    for at in _chain(subject):
        number = load_number(at + _TYPE, 4, signed=True)
        subject.expect(number >= 0, "a type of at least 0", number)
        subject.advise(number in _TYPES, "types of extensions that this package knows", number)


@check("extensions.struct_size", calls=())
def _extension_sizes(subject: Subject) -> None:
    """Each extension states a size that has room for the head of an extension. Where an extension is known to hold
    functions alone, the size ends behind a whole function.
    """
    for at in _chain(subject):
        size = load(at)
        name = _TYPES.get(load_number(at + _TYPE, 4, signed=True), "an extension")
        subject.expect(_EXTENSION_SIZE <= size < 1 << 16, f"a size of at least {_EXTENSION_SIZE} for {name}", size)
        whole = name not in _OF_FUNCTIONS or size % 8 == 0
        subject.expect(whole, f"a size of whole pointers for {name}", size)


@check("extensions.stable", calls=(_INITIALIZE,))
def _stable(subject: Subject) -> None:
    """The chain of extensions lives as long as the process, and stays as it is."""
    before = _chain(subject)
    subject.new_client()
    subject.expect(_chain(subject) == before, "the same extensions as before", "others")


# ``struct_size``: of argument structs that are too short, right, and longer than the plugin knows.

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


@check("struct_size.too_short", calls=_SIZED, over=_SIZED)
def _too_short(subject: Subject, function: str) -> None:
    """A function neither reads nor writes behind the struct_size of its arguments. A struct that ends before the fields
    that each version has (0, its head, or one byte too few) is an error with the code INVALID_ARGUMENT.
    """
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


@check("struct_size.right_and_longer", calls=EXAMPLES, over=EXAMPLES)
def _right_and_longer(subject: Subject, function: str) -> None:
    """A function that is called with right arguments succeeds; one that a plugin leaves out returns UNIMPLEMENTED. A
    caller of a later version stamps a greater struct_size, and may link an extension of an unknown type: both are
    accepted.
    """
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


@check("struct_size.of_an_older_caller", calls=_OLDER, over=_OLDER)
def _older(subject: Subject, function: str) -> None:
    """Fields that later versions added are behind the struct of an older caller: they are not written. The call
    succeeds, or is an error with the code INVALID_ARGUMENT.
    """
    arguments = arguments_of(subject, function)
    result = _call(subject, function, _first_size(function), arguments)
    _refuse_unimplemented(function, result.error)
    if result.error is not None:
        subject.expect_code(result.error, "INVALID_ARGUMENT", function)


@check("struct_size.of_programs", calls=("PJRT_Client_Compile",))
def _programs(subject: Subject) -> None:
    """The struct of a program states its size, too: one that is too short is an error with the code INVALID_ARGUMENT,
    and a longer one is accepted.
    """
    arguments = arguments_of(subject, "PJRT_Client_Compile")
    program = arguments["program"]
    for size in (0, _HEAD, STRUCTS["PJRT_Program"].size - 1):
        short = raw.Struct("PJRT_Program", {**program.fields, "struct_size": size})
        subject.fails("PJRT_Client_Compile", "INVALID_ARGUMENT", **{**arguments, "program": short})
    longer = raw.Struct("PJRT_Program", {**program.fields, "struct_size": STRUCTS["PJRT_Program"].size + _MORE})
    subject.call("PJRT_Client_Compile", **{**arguments, "program": longer})


# The errors that functions return.

_DESTROY = "PJRT_Error_Destroy"
_MESSAGE = "PJRT_Error_Message"
_CODE = "PJRT_Error_GetCode"
_PAYLOADS = "PJRT_Error_ForEachPayload"
_FUNCTIONS = (_DESTROY, _MESSAGE, _CODE)
_CODES = {number: name for name, number in ENUMS["PJRT_Error_Code"] if number}
_THREADS = 16


@check("error.destroy.null", calls=(_DESTROY,))
def _destroy_null(subject: Subject) -> None:
    """An error to destroy can be a null pointer."""
    for _ in range(3):
        subject.call(_DESTROY, error=0)


@check("error.code.known", calls=(_CODE,))
def _code(subject: Subject) -> None:
    """An error has a status code of absl, other than OK."""
    error = make_error(subject)
    code = subject.call(_CODE, error=error).code
    subject.expect(code in _CODES, "a code from 1 to 16", code)


@check("error.message.text", calls=(_MESSAGE,))
def _message(subject: Subject) -> None:
    """An error has a human-readable message: text that is not empty."""
    error = make_error(subject)
    result = subject.call(_MESSAGE, error=error)
    subject.expect(result.message, "a message", repr(result.message))
    subject.expect(result.message_size == len(result.message), "the message's size", result.message_size)
    text = result.message.decode("utf-8", "replace")
    subject.expect(text.encode() == result.message, "a message in UTF-8", repr(result.message))
    subject.expect(b"\0" not in result.message, "a size without the zero byte behind it", repr(result.message))


@check("error.lives_until_destroyed", calls=_FUNCTIONS)
def _error_lives_until_destroyed(subject: Subject) -> None:
    """Code and message of an error live until it is destroyed, whatever other errors come and go."""
    first = make_error(subject)
    before = subject.call(_MESSAGE, error=first)
    code = subject.call(_CODE, error=first).code
    for _ in range(100):
        subject.call(_DESTROY, error=make_error(subject))
    after = subject.call(_MESSAGE, error=first)
    subject.expect(after.struct_bytes == before.struct_bytes, "the same message at the same place", "another one")
    subject.expect(after.message == before.message, repr(before.message), repr(after.message))
    subject.expect(subject.call(_CODE, error=first).code == code, f"the code {code}", "another one")
    subject.call(_DESTROY, error=first)


@check("error.independent", calls=_FUNCTIONS)
def _independent(subject: Subject) -> None:
    """Each error belongs to the caller: two calls return two errors, and destroying one leaves the other."""
    first, second = make_error(subject), make_error(subject)
    subject.expect(first != second, "two errors", "the same error twice")
    subject.call(_DESTROY, error=first)
    message = subject.call(_MESSAGE, error=second).message
    subject.expect(message, "the message of the second error", repr(message))
    subject.call(_DESTROY, error=second)


@check("error.outlives_the_client", calls=(*_FUNCTIONS, "PJRT_Client_Destroy"))
def _outlives_client(subject: Subject) -> None:
    """An error belongs to the caller, and outlives the client of the call."""
    client = subject.new_client()
    error = subject.plugin.error_address("PJRT_Client_LookupDevice", client=client, id=-1)
    subject.expect(error, "PJRT_Client_LookupDevice to fail", "that it succeeded")
    subject.call("PJRT_Client_Destroy", client=client)
    message = subject.call(_MESSAGE, error=error).message
    subject.expect(message, "the message of the error", repr(message))
    subject.call(_DESTROY, error=error)


@check("error.names_what_was_wrong", calls=(_MESSAGE, "PJRT_Client_LookupDevice"))
def _names(subject: Subject) -> None:
    """A message tells what was wrong. Advice: the message for an unknown id names the id."""
    error = subject.fails("PJRT_Client_LookupDevice", tuple(_CODES.values()), client=subject.client, id=7654321)
    subject.advise("7654321" in error.message, "the id in the message", repr(error.message))


@check("error.in_threads", calls=_FUNCTIONS)
def _in_threads(subject: Subject) -> None:
    """Errors can be made, read and destroyed in several threads at once, and each has its own message."""
    subject.client  # noqa: B018  # made in one thread
    wrong: list[str] = []

    def fail(number: int) -> None:
        for _ in range(20):
            error = subject.attempt("PJRT_Client_LookupDevice", client=subject.client, id=-number).error
            if error is None or not error.message:
                wrong.append(f"{error} for the id {-number}")

    threads = [threading.Thread(target=fail, args=(number + 1,)) for number in range(_THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    subject.expect(not wrong, "an error with a message for each call", "; ".join(wrong[:3]))


@check("error.destroyed_in_another_thread", calls=_FUNCTIONS)
def _another_thread(subject: Subject) -> None:
    """An error can be destroyed in another thread than the one that got it."""
    errors = [make_error(subject) for _ in range(10)]

    def destroy() -> None:
        for error in errors:
            subject.attempt(_MESSAGE, error=error)
            subject.attempt(_DESTROY, error=error)

    thread = threading.Thread(target=destroy)
    thread.start()
    thread.join()
    subject.call("PJRT_Client_Devices", client=subject.client)


@check("error.for_each_payload.texts", calls=(_PAYLOADS,))
def _payloads(subject: Subject) -> None:
    """The visitor is called once for each payload of an error, with its key and value, during the call."""
    subject.require(_PAYLOADS)
    error = make_error(subject)
    keys: list[bytes] = []

    def visit(key: int, key_size: int, value: int, value_size: int, user_arg: int) -> None:
        keys.append(ctypes.string_at(key, key_size))
        ctypes.string_at(value, value_size)

    subject.call(_PAYLOADS, error=error, visitor=visit, user_arg=0)
    first = list(keys)
    subject.call(_PAYLOADS, error=error, visitor=visit, user_arg=0)
    subject.expect(len(set(first)) == len(first), "each key once", first)
    subject.expect(sorted(keys[len(first) :]) == sorted(first), "the same payloads each time", keys)


@check("error.for_each_payload.user_arg", calls=(_PAYLOADS, "PJRT_Client_CreateErrorBuffer", "PJRT_Event_Await"))
def _payloads_of_a_buffer(subject: Subject) -> None:
    """The visitor gets the pointer that the caller gave, and the payloads of an error buffer arrive with its error,
    each once.
    """
    from pjrt.capi import raw

    subject.require(_PAYLOADS, "PJRT_Client_CreateErrorBuffer")
    buffer = subject.call(
        "PJRT_Client_CreateErrorBuffer",
        client=subject.client,
        error_code="DATA_LOSS",
        error_message="lost",
        shape_dims=[4],
        shape_element_type="F32",
        memory=subject.memory,
        payload=[raw.named_value("the key", "the value")],
    ).buffer
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer).event
    error = subject.plugin.error_address("PJRT_Event_Await", event=event)
    subject.expect(error, "the buffer's event to have an error", "none")
    payloads: list[tuple[bytes, bytes, int]] = []

    def visit(key: int, key_size: int, value: int, value_size: int, user_arg: int) -> None:
        payloads.append((ctypes.string_at(key, key_size), ctypes.string_at(value, value_size), user_arg))

    subject.call(_PAYLOADS, error=error, visitor=visit, user_arg=4711)
    keys = [key for key, _, _ in payloads]
    subject.expect(len(set(keys)) == len(keys), "each key once", keys)
    for _, value, user_arg in payloads:
        subject.expect(user_arg == 4711, "the user_arg 4711", user_arg)
        subject.expect(value, "a value", repr(value))
    subject.advise(payloads, "the payload 'the key' of the error buffer", "none")

"""Checks of the extension FFI: types, user data, and handlers that programs call."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.errors import InternalError
from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.samples import HANDLER
from pjrt.conformance.plugin.subject import Subject

_TYPE, _DATA, _HANDLER = "PJRT_FFI_Type_Register", "PJRT_FFI_UserData_Add", "PJRT_FFI_Register_Handler"
_X = np.arange(4, dtype=np.float32)
_numbers = itertools.count(1)


def compiled_with_handler(subject: Subject, sample: str) -> int:
    """Return the executable of a program that calls the handler, which is registered here.

    A plugin of another format has its own way to fail in its program ``fails``, and needs no handler for it.
    """
    if subject.program(sample).format == "mlir" or sample == "calls_handler":
        register(subject, HANDLER, _multiply)
    return subject.compile(sample)


def register(subject: Subject, name: str, function: Callable[..., Any]) -> None:
    """Register a Python function as a handler of the client's platform.

    Raises:
        Unsupported: the plugin lacks the extension, or its programs do not run in the host's memory.
    """
    subject.require_extension("FFI")
    subject.require(_HANDLER)
    try:
        from pjrt.devices.xla.ffi_handler import handler_of
    except ImportError as error:
        raise Unsupported(f"a handler needs jaxlib: {error}") from error
    platform = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    on_host = subject.call("PJRT_Buffer_IsOnCpu", buffer=subject.buffer(_X)).is_on_cpu
    if not on_host:
        raise Unsupported("a handler of this package reads the host's memory, and the plugin's buffers are elsewhere")
    subject.call(_HANDLER, target_name=name, handler=handler_of(function, 0), platform_name=bytes(platform), traits=0)


def _multiply(x: Any, out: Any, *, fails: bool = False) -> None:
    if fails:
        raise InternalError("the wheel came off")
    np.multiply(x, 2, out=out)


def _type(subject: Subject, name: str, number: int = 0) -> Any:
    subject.require_extension("FFI")
    # The header does not say that the information may be null, and plugins of XLA read it.
    return subject.attempt(_TYPE, type_name=name, type_id=number, type_info=raw.Struct("PJRT_FFI_Type_Info"))


def _new_name() -> str:
    return f"pjrt_conformance_type_{next(_numbers)}"


@check(
    "ffi.type_register.assigns_an_id",
    calls=(_TYPE,),
    rule="With type_id 0 the plugin assigns an id to the type; different names have different ids.",
)
def _assigns(subject: Subject) -> None:
    subject.require(_TYPE)
    numbers = []
    for _ in range(3):
        answer = _type(subject, _new_name())
        subject.expect(answer.error is None, "a registered type", str(answer.error))
        numbers.append(answer.type_id)
    subject.expect(len(set(numbers)) == 3 and 0 not in numbers, "3 different ids, none 0", str(numbers))


@check(
    "ffi.type_register.twice",
    calls=(_TYPE,),
    rule="A name that is registered again keeps its id, or is refused with an error.",
)
def _twice(subject: Subject) -> None:
    name = _new_name()
    first, second = _type(subject, name), _type(subject, name)
    subject.expect(first.error is None, "a registered type", str(first.error))
    if second.error is None:
        subject.expect(second.type_id == first.type_id, f"the id {first.type_id}", str(second.type_id))


@check(
    "ffi.type_register.another_id",
    calls=(_TYPE,),
    rule="A type_id other than 0 must be the one that the name has; another is refused with an error.",
)
def _another_id(subject: Subject) -> None:
    name = _new_name()
    first = _type(subject, name)
    subject.expect(first.error is None, "a registered type", str(first.error))
    answer = _type(subject, name, first.type_id + 1000)
    subject.expect(answer.error is not None, "an error", f"the name with the id {first.type_id + 1000}")


@check(
    "ffi.user_data_add",
    calls=(_TYPE, _DATA, "PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy"),
    rule="User data is added to an execute context by the id of its type; the context does not own it.",
)
def _user_data(subject: Subject) -> None:
    subject.require(_DATA, "PJRT_ExecuteContext_Create")
    number = _type(subject, _new_name()).type_id
    context = subject.call("PJRT_ExecuteContext_Create").context
    memory = ctypes.create_string_buffer(b"user data")
    subject.call(_DATA, context=context, user_data={"type_id": number, "data": ctypes.addressof(memory)})
    subject.call("PJRT_ExecuteContext_Destroy", context=context)
    subject.expect(memory.value == b"user data", "the data as it was", repr(memory.value))


@check(
    "ffi.user_data_add.twice",
    calls=(_TYPE, _DATA),
    rule="A context has one entry of user data for each type; a second one is refused, or replaces the first.",
)
def _user_data_twice(subject: Subject) -> None:
    subject.require(_DATA, "PJRT_ExecuteContext_Create")
    number = _type(subject, _new_name()).type_id
    context = subject.call("PJRT_ExecuteContext_Create").context
    data = {"type_id": number, "data": 8}
    subject.call(_DATA, context=context, user_data=data)
    subject.attempt(_DATA, context=context, user_data=data)
    subject.call("PJRT_ExecuteContext_Destroy", context=context)


@check(
    "ffi.handler.is_called",
    calls=(_HANDLER, "PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute"),
    rule="A registered handler is called by programs that name it, with their arguments and results.",
)
def _is_called(subject: Subject) -> None:
    loaded = compiled_with_handler(subject, "calls_handler")
    for factor in (1, 5):
        Launch(subject, loaded, [[subject.buffer(_X * factor)]]).expect(_X * factor * 2)


@check(
    "ffi.handler.error",
    calls=(_HANDLER, "PJRT_LoadedExecutable_Execute", "PJRT_Event_Await"),
    rule="The error of a handler is the error of the execution; the client goes on.",
)
def _handler_error(subject: Subject) -> None:
    register(subject, HANDLER, _multiply)
    loaded = subject.compile("fails")
    launch = Launch(subject, loaded, [[subject.buffer(_X)]], with_events=True)
    launch.expect_error(None, "the wheel came off")
    expect_sum(subject, subject.compile("add"))


@check(
    "ffi.handler.registered_again",
    calls=(_HANDLER,),
    rule="A name whose handler is registered again keeps it; another handler is refused, or takes its place.",
)
def _registered_again(subject: Subject) -> None:
    register(subject, HANDLER, _multiply)
    register(subject, HANDLER, _multiply)
    Launch(subject, subject.compile("calls_handler"), [[subject.buffer(_X)]]).expect(_X * 2)


@check(
    "ffi.handler.unknown",
    calls=("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute"),
    rule="A program that calls a handler of an unknown name is refused: it does not compile, or its execution fails.",
)
def _unknown(subject: Subject) -> None:
    answer = subject.attempt_compile(subject.program("calls_handler"))
    if answer.error is None:
        Launch(subject, answer.executable, [[subject.buffer(_X)]]).expect_error()
    expect_sum(subject, subject.compile("add"))

"""Checks of the errors that functions return."""

from __future__ import annotations

import ctypes
import threading

from pjrt.capi.layer.schema import ENUMS
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.examples.handles import error as make_error
from pjrt.conformance.plugin.subject import Subject

_DESTROY = "PJRT_Error_Destroy"
_MESSAGE = "PJRT_Error_Message"
_CODE = "PJRT_Error_GetCode"
_PAYLOADS = "PJRT_Error_ForEachPayload"
_FUNCTIONS = (_DESTROY, _MESSAGE, _CODE)
_CODES = {number: name for name, number in ENUMS["PJRT_Error_Code"] if number}
_THREADS = 16


@check("error.destroy.null", calls=(_DESTROY,), rule="An error to destroy can be a null pointer.")
def _destroy_null(subject: Subject) -> None:
    for _ in range(3):
        subject.call(_DESTROY, error=0)


@check("error.code.known", calls=(_CODE,), rule="An error has a status code of absl, other than OK.")
def _code(subject: Subject) -> None:
    error = make_error(subject)
    code = subject.call(_CODE, error=error).code
    subject.expect(code in _CODES, "a code from 1 to 16", code)
    subject.call(_DESTROY, error=error)


@check("error.message.text", calls=(_MESSAGE,), rule="An error has a human-readable message: text that is not empty.")
def _message(subject: Subject) -> None:
    error = make_error(subject)
    result = subject.call(_MESSAGE, error=error)
    subject.expect(result.message, "a message", repr(result.message))
    subject.expect(result.message_size == len(result.message), "the message's size", result.message_size)
    text = result.message.decode("utf-8", "replace")
    subject.expect(text.encode() == result.message, "a message in UTF-8", repr(result.message))
    subject.expect(b"\0" not in result.message, "a size without the zero byte behind it", repr(result.message))
    subject.call(_DESTROY, error=error)


@check(
    "error.lives_until_destroyed",
    calls=_FUNCTIONS,
    rule="Code and message of an error live until it is destroyed, whatever other errors come and go.",
)
def _lifetime(subject: Subject) -> None:
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


@check(
    "error.independent",
    calls=_FUNCTIONS,
    rule="Each error belongs to the caller: two calls return two errors, and destroying one leaves the other.",
)
def _independent(subject: Subject) -> None:
    first, second = make_error(subject), make_error(subject)
    subject.expect(first != second, "two errors", "the same error twice")
    subject.call(_DESTROY, error=first)
    message = subject.call(_MESSAGE, error=second).message
    subject.expect(message, "the message of the second error", repr(message))
    subject.call(_DESTROY, error=second)


@check(
    "error.outlives_the_client",
    calls=(*_FUNCTIONS, "PJRT_Client_Destroy"),
    rule="An error belongs to the caller, and outlives the client of the call.",
)
def _outlives_client(subject: Subject) -> None:
    client = subject.new_client()
    error = subject.plugin.error_address("PJRT_Client_LookupDevice", client=client, id=-1)
    subject.expect(error, "PJRT_Client_LookupDevice to fail", "that it succeeded")
    subject.call("PJRT_Client_Destroy", client=client)
    message = subject.call(_MESSAGE, error=error).message
    subject.expect(message, "the message of the error", repr(message))
    subject.call(_DESTROY, error=error)


@check(
    "error.names_what_was_wrong",
    calls=(_MESSAGE, "PJRT_Client_LookupDevice"),
    rule="A message tells what was wrong. Advice: the message for an unknown id names the id.",
)
def _names(subject: Subject) -> None:
    error = subject.fails("PJRT_Client_LookupDevice", tuple(_CODES.values()), client=subject.client, id=7654321)
    subject.advise("7654321" in error.message, "the id in the message", repr(error.message))


@check(
    "error.in_threads",
    calls=_FUNCTIONS,
    rule="Errors can be made, read and destroyed in several threads at once, and each has its own message.",
)
def _in_threads(subject: Subject) -> None:
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


@check(
    "error.destroyed_in_another_thread",
    calls=_FUNCTIONS,
    rule="An error can be destroyed in another thread than the one that got it.",
)
def _another_thread(subject: Subject) -> None:
    errors = [make_error(subject) for _ in range(10)]

    def destroy() -> None:
        for error in errors:
            subject.attempt(_MESSAGE, error=error)
            subject.attempt(_DESTROY, error=error)

    thread = threading.Thread(target=destroy)
    thread.start()
    thread.join()
    subject.call("PJRT_Client_Devices", client=subject.client)


@check(
    "error.for_each_payload.texts",
    calls=(_PAYLOADS,),
    rule="The visitor is called once for each payload of an error, with its key and value, during the call.",
)
def _payloads(subject: Subject) -> None:
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
    subject.call(_DESTROY, error=error)


@check(
    "error.for_each_payload.user_arg",
    calls=(_PAYLOADS, "PJRT_Client_CreateErrorBuffer", "PJRT_Event_Await"),
    rule="The visitor gets the pointer that the caller gave, and the payloads of an error buffer arrive with its "
    "error, each once.",
)
def _payloads_of_a_buffer(subject: Subject) -> None:
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
    subject.call(_DESTROY, error=error)
    subject.call("PJRT_Event_Destroy", event=event)
    subject.destroy_buffers(buffer)

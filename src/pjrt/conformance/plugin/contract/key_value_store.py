"""Checks of the key-value store that the caller gives to clients: several processes find each other through it."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.layer.schema import STRUCTS
from pjrt.capi.raw.struct_reader import StructReader
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.compilation import expect_sum
from pjrt.conformance.plugin.outcome import Unsupported
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_Client_Create",)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_MakeError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_PATIENCE = 10.0


class Store:
    """A key-value store in this process, as callbacks of ``PJRT_Client_Create``.

    Attributes:
        handed_out: how many values were given to the plugin.
        freed: how many times the plugin called the deleter on each value that it was given.
        user_args: the user data of the calls.
    """

    def __init__(self, failure: StatusCode | None = None) -> None:
        self._failure = failure
        self._changed = threading.Condition()
        self._values: dict[bytes, bytes] = {}
        self._memories: dict[int, Any] = {}
        self._function = _Deleter(self._free)
        self.freed: dict[int, int] = {}
        self.user_args: set[int] = set()

    @property
    def handed_out(self) -> int:
        """How many values were given to the plugin."""
        return len(self._memories)

    def arguments(self, user_arg: int = 0) -> dict[str, Any]:
        """Return the fields of ``PJRT_Client_Create`` for this store."""
        return {
            "kv_get_callback": self._get,
            "kv_get_user_arg": user_arg,
            "kv_put_callback": self._put,
            "kv_put_user_arg": user_arg,
            "kv_try_get_callback": self._try_get,
            "kv_try_get_user_arg": user_arg,
        }

    def _get(self, address: int) -> int:
        return self._answer("PJRT_KeyValueGetCallback_Args", address)

    def _try_get(self, address: int) -> int:
        return self._answer("PJRT_KeyValueTryGetCallback_Args", address)

    def _put(self, address: int) -> int:
        call = StructReader().read("PJRT_KeyValuePutCallback_Args", address)
        self.user_args.add(call.user_arg or 0)
        if self._failure is not None:
            return self._error(call, self._failure, b"the store is closed")
        with self._changed:
            self._values[bytes(call.key)] = bytes(call.value or b"")
            self._changed.notify_all()
        return 0

    def _answer(self, kind: str, address: int) -> int:
        fields = STRUCTS[kind].fields
        call = StructReader().read(
            kind, address, [name for name in fields if name not in ("value", "value_size", "value_deleter_callback")]
        )
        self.user_args.add(call.user_arg or 0)
        if self._failure is not None:
            return self._error(call, self._failure, b"the store is closed")
        key = bytes(call.key)
        seconds = min(call.timeout_in_ms / 1000, _PATIENCE) if "timeout_in_ms" in fields else 0
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, seconds):
                code = StatusCode.DEADLINE_EXCEEDED if seconds else StatusCode.NOT_FOUND
                return self._error(call, code, b"there is no such key")
            value = self._values[key]
        memory = ctypes.create_string_buffer(value, max(1, len(value)))
        place = ctypes.addressof(memory)
        self._memories[place] = memory
        for name, number in (
            ("value", place),
            ("value_size", len(value)),
            ("value_deleter_callback", ctypes.cast(self._function, ctypes.c_void_p).value or 0),
        ):
            ctypes.c_uint64.from_address(address + fields[name].offset).value = number
        return 0

    def _error(self, call: raw.Struct, code: StatusCode, message: bytes) -> int:
        function = ctypes.c_uint64.from_address(call.callback_error).value
        return int(_MakeError(function)(code, message, len(message)) or 0)

    def _free(self, value: int | None) -> None:
        self.freed[value or 0] = self.freed.get(value or 0, 0) + 1


def _create(subject: Subject, store: Store, user_arg: int = 0, **options: Any) -> raw.Result:
    values = [raw.named_value(name, value) for name, value in {**subject.options, **options}.items()]
    return subject.attempt("PJRT_Client_Create", create_options=values, **store.arguments(user_arg))


def _expect_freed(subject: Subject, store: Store) -> None:
    wrong = {place: count for place, count in store.freed.items() if count != 1}
    subject.expect(
        len(store.freed) == store.handed_out and not wrong,
        f"each of {store.handed_out} values freed once",
        f"{len(store.freed)} freed, {len(wrong)} of them more than once",
    )


@check(
    "key_value_store.one_process",
    calls=_CALLS,
    rule="A client may be given a store that it does not need.",
)
def _one_process(subject: Subject) -> None:
    subject.call("PJRT_Client_Destroy", client=subject.client)
    store = Store()
    answer = _create(subject, store)
    subject.expect(answer.error is None, "a client", str(answer.error))
    index = subject.call("PJRT_Client_ProcessIndex", client=answer.client).process_index
    subject.expect(index == 0, "process 0", str(index))
    subject.call("PJRT_Client_Destroy", client=answer.client)
    _expect_freed(subject, store)


@check(
    "key_value_store.user_data",
    calls=_CALLS,
    rule="kv_get_user_arg, kv_put_user_arg and kv_try_get_user_arg are passed to the callbacks unchanged.",
)
def _user_data(subject: Subject) -> None:
    store = Store()
    _clients_of_job(subject, store, user_arg=12345)
    if not store.user_args:
        raise Unsupported("a job of several processes through the key-value store: the plugin does not use the store")
    subject.expect(store.user_args == {12345}, "{12345}", str(store.user_args))


_OPTIONS = (("num_nodes", "node_id"), ("num_processes", "process_index"))
"""The options by which plugins name the processes of a job: those of XLA's plugins, and others."""


def _clients_of_job(subject: Subject, store: Store, user_arg: int = 0) -> list[int]:
    """Return the clients of a job of two processes, each made in its own thread of this process."""
    subject.new_client()  # a plugin that makes no client at all is unsupported for that reason
    reasons = []
    for count, index in _OPTIONS:
        answers: dict[int, raw.Result] = {}

        def create(number: int, answers: dict[int, raw.Result] = answers, names: Any = (count, index)) -> None:
            answers[number] = _create(subject, store, user_arg, **{names[0]: 2, names[1]: number})

        threads = [threading.Thread(target=create, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [answer.error for answer in answers.values() if answer.error is not None]
        if errors:
            reasons.append(str(errors[0]))
            continue
        clients = [int(answers[number].client) for number in range(2)]
        indices = [subject.call("PJRT_Client_ProcessIndex", client=each).process_index for each in clients]
        if indices == [0, 1]:
            return clients
        reasons.append(f"clients made with {count}=2 have the process indices {indices}")
    raise Unsupported(f"a job of several processes through the key-value store: {reasons[0]}")


@check(
    "key_value_store.two_processes",
    calls=(*_CALLS, "PJRT_Client_Devices", "PJRT_Client_AddressableDevices"),
    rule="The clients of a job find each other through the store: each has the devices of all, and its own are "
    "addressable.",
)
def _two(subject: Subject) -> None:
    clients = _clients_of_job(subject, Store())
    all_devices, own = [], []
    for client in clients:
        all_devices.append(len(subject.call("PJRT_Client_Devices", client=client).devices))
        own.append(len(subject.call("PJRT_Client_AddressableDevices", client=client).addressable_devices))
    subject.expect(
        all_devices == [sum(own)] * 2, f"{sum(own)} devices in each client", f"{all_devices}, addressable {own}"
    )


@check(
    "key_value_store.values_are_freed",
    calls=_CALLS,
    rule="The plugin copies a value, and calls its deleter exactly once.",
)
def _freed(subject: Subject) -> None:
    store = Store()
    _clients_of_job(subject, store)
    if not store.handed_out:
        raise Unsupported("a job of several processes through the key-value store: the plugin reads no value")
    _expect_freed(subject, store)


@check(
    "key_value_store.error",
    calls=_CALLS,
    rule="An error of the store is the error of PJRT_Client_Create where the client needs the store; the plugin goes on.",
)
def _error(subject: Subject) -> None:
    _clients_of_job(subject, Store())
    store = Store(StatusCode.UNAVAILABLE)
    for count, index in _OPTIONS:
        answer = _create(subject, store, **{count: 2, index: 0})
        if store.user_args and answer.error is not None:
            subject.expect("the store is closed" in answer.error.message, "the store is closed", str(answer.error))
    expect_sum(subject, subject.compile("add"))

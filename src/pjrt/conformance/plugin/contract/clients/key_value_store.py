"""Checks of the key-value store that the caller gives to clients: several processes find each other through it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

from pjrt.abi.schema import CALLBACKS, STRUCTS
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.struct import StructReader
from pjrt.conformance.plugin.check import Failed, Unsupported, check
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.other_process import call_in_another_process
from pjrt.conformance.plugin.subject import Subject
from pjrt.system import TemporaryFolder

_CALLS = ("PJRT_Client_Create",)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_MakeError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_PATIENCE = 10.0
_USER_ARG = 12345
_OPTIONS = (("num_nodes", "node_id"), ("num_processes", "process_index"))
"""The options by which plugins name the processes of a job: those of XLA's plugins, and others."""


class Store:
    """A key-value store in a folder, so that several processes share it, as callbacks of ``PJRT_Client_Create``.

    Args:
        folder: the folder.
        failure: the code with which every call fails; ``None`` for a store that works.

    Attributes:
        freed: how many times the plugin called the deleter on each value that it was given.
        user_args: the user data of the calls.
    """

    def __init__(self, folder: str, failure: StatusCode | None = None) -> None:
        self._folder = Path(folder)
        self._failure = failure
        self._memories: dict[int, Any] = {}
        self._function = _Deleter(self._free)
        self.freed: dict[int, int] = {}
        self.user_args: set[int] = set()

    @property
    def handed_out(self) -> int:
        """The number of values that were given to the plugin."""
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
        return self._answer("PJRT_KeyValueGetCallback", address)

    def _try_get(self, address: int) -> int:
        return self._answer("PJRT_KeyValueTryGetCallback", address)

    def _put(self, address: int) -> int:
        call = StructReader().read(CALLBACKS["PJRT_KeyValuePutCallback"].args, address)
        self.user_args.add(call.user_arg or 0)
        if self._failure is not None:
            return _error(call, self._failure, b"the store is closed")
        partial = self._folder / f"{os.getpid()}.{threading.get_ident()}.partial"
        partial.write_bytes(bytes(call.value or b""))
        partial.replace(self._place(call.key))
        return 0

    def _answer(self, callback: str, address: int) -> int:
        kind = CALLBACKS[callback].args
        fields = STRUCTS[kind].fields
        call = StructReader().read(kind, address, [name for name in fields if not name.startswith("value")])
        self.user_args.add(call.user_arg or 0)
        if self._failure is not None:
            return _error(call, self._failure, b"the store is closed")
        place = self._place(call.key)
        waits = "timeout_in_ms" in fields
        end = time.monotonic() + (min(call.timeout_in_ms / 1000, _PATIENCE) if waits else 0)
        while not place.exists():
            if time.monotonic() >= end:
                code = StatusCode.DEADLINE_EXCEEDED if waits else StatusCode.NOT_FOUND
                return _error(call, code, b"there is no such key")
            time.sleep(0.002)
        value = place.read_bytes()
        memory = ctypes.create_string_buffer(value, max(1, len(value)))
        self._memories[ctypes.addressof(memory)] = memory
        for name, number in (
            ("value", ctypes.addressof(memory)),
            ("value_size", len(value)),
            ("value_deleter_callback", ctypes.cast(self._function, ctypes.c_void_p).value or 0),
        ):
            ctypes.c_uint64.from_address(address + fields[name].offset).value = number
        return 0

    def _place(self, key: bytes) -> Path:
        return self._folder / f"key-{bytes(key).hex()[-200:]}"

    def _free(self, value: int | None) -> None:
        self.freed[value or 0] = self.freed.get(value or 0, 0) + 1


def _error(call: raw.Struct, code: StatusCode, message: bytes) -> int:
    # The plugin passes a pointer to its function.
    function = ctypes.c_uint64.from_address(call.callback_error).value
    return int(_MakeError(function)(code, message, len(message)) or 0)


def _create(subject: Subject, store: Store, user_arg: int = 0, **options: Any) -> raw.Result:
    values = [raw.named_value(name, value) for name, value in {**subject.options, **options}.items()]
    return subject.attempt("PJRT_Client_Create", create_options=values, **store.arguments(user_arg))


def member(subject: Subject, folder: str, names: tuple[str, str], number: int) -> dict[str, Any]:
    """Be one process of a job of two, in a process of its own; return the facts about its client."""
    store = Store(folder)
    answer = _create(subject, store, _USER_ARG, **{names[0]: 2, names[1]: number})
    if answer.error is not None:
        return {"error": str(answer.error)}
    client = answer.client
    return {
        "error": "",
        "index": subject.call("PJRT_Client_ProcessIndex", client=client).process_index,
        "devices": len(subject.call("PJRT_Client_Devices", client=client).devices),
        "own": len(subject.call("PJRT_Client_AddressableDevices", client=client).addressable_devices),
        "handed_out": store.handed_out,
        "freed": list(store.freed.values()),
        "user_args": sorted(store.user_args),
    }


def _job(subject: Subject) -> list[dict[str, Any]]:
    """Return the facts about the clients of a job of two processes.

    Raises:
        Unsupported: the plugin knows none of the options for jobs.
    """
    reason = ""
    for names in _OPTIONS:
        facts: dict[int, Any] = {}
        with TemporaryFolder("conform") as folder:

            def run(number: int, folder: str = str(folder), names: Any = names, facts: dict[int, Any] = facts) -> None:
                try:
                    facts[number] = call_in_another_process(subject, member, folder, names, number)
                except (Failed, Unsupported) as problem:
                    facts[number] = problem

            threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for each in facts.values():
            if isinstance(each, Exception):
                raise each
        errors = [each["error"] for each in facts.values() if each["error"]]
        if not errors and [facts[number]["index"] for number in range(2)] == [0, 1]:
            return [facts[0], facts[1]]
        reason = reason or (errors[0] if errors else f"the plugin takes no notice of the option {names[1]}")
    raise Unsupported(f"a job of several processes through the key-value store: {reason}")


@check("key_value_store.one_process", calls=_CALLS)
def _one_process(subject: Subject) -> None:
    """A client may be given a store that it does not need."""
    subject.call("PJRT_Client_Destroy", client=subject.client)
    with TemporaryFolder("conform") as folder:
        store = Store(str(folder))
        answer = _create(subject, store)
        subject.expect(answer.error is None, "a client", str(answer.error))
        index = subject.call("PJRT_Client_ProcessIndex", client=answer.client).process_index
        subject.expect(index == 0, "process 0", str(index))
        subject.call("PJRT_Client_Destroy", client=answer.client)
    freed = list(store.freed.values())
    subject.expect(freed == [1] * store.handed_out, "each value freed once", str(freed))


@check(
    "key_value_store.two_processes",
    calls=(*_CALLS, "PJRT_Client_ProcessIndex", "PJRT_Client_Devices", "PJRT_Client_AddressableDevices"),
)
def _two(subject: Subject) -> None:
    """The clients of a job find each other through the store: each has the devices of all, and its own are addressable.
    The plugin calls the deleter of each value once, and passes on the user data of the callbacks.
    """
    facts = _job(subject)
    own = [each["own"] for each in facts]
    devices = [each["devices"] for each in facts]
    subject.expect(devices == [sum(own)] * 2, f"{sum(own)} devices in each client", f"{devices}, addressable {own}")
    for each in facts:
        subject.expect(each["user_args"] in ([], [_USER_ARG]), f"the user data {_USER_ARG}", str(each["user_args"]))
        subject.expect(each["freed"] == [1] * each["handed_out"], f"{each['handed_out']} values freed once", str(each))


@check("key_value_store.error", calls=_CALLS)
def _store_error(subject: Subject) -> None:
    """An error of the store is the error of PJRT_Client_Create where the client needs the store."""
    subject.call("PJRT_Client_Destroy", client=subject.new_client())
    for count, index in _OPTIONS:
        store = Store("", StatusCode.UNAVAILABLE)
        answer = _create(subject, store, **{count: 2, index: 0})
        if answer.error is None:
            subject.call("PJRT_Client_Destroy", client=answer.client)
        elif store.user_args:
            subject.expect("the store is closed" in answer.error.message, "the store is closed", str(answer.error))
    expect_sum(subject, subject.compile("add"))

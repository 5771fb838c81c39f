"""What XLA's test of its plugins for GPUs expects of clients that share a key-value store."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.layer.schema import STRUCTS
from pjrt.capi.raw.numbers import load, load_number, store
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.outcome import Unsupported
from pjrt.conformance.plugin.subject import Subject

_CREATE = "PJRT_Client_Create"
_NODES = 2
_ErrorMaker = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class MemoryStore:
    """A key-value store in the memory of this process, as the callbacks of ``PJRT_Client_Create``."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._given: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._delete = _Deleter(self._deleted)

    @property
    def callbacks(self) -> dict[str, Callable[[int], int]]:
        """The fields of ``PJRT_Client_Create_Args``."""
        return {"kv_get_callback": self._get, "kv_put_callback": self._put, "kv_try_get_callback": self._try_get}

    def _get(self, args: int) -> int:
        fields = STRUCTS["PJRT_KeyValueGetCallback_Args"].fields
        key = ctypes.string_at(load(args + fields["key"].offset), load(args + fields["key_size"].offset))
        seconds = load_number(args + fields["timeout_in_ms"].offset, 4, signed=True) / 1000
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, min(seconds, 20.0))
        return self._give(args, "PJRT_KeyValueGetCallback_Args", key, StatusCode.DEADLINE_EXCEEDED)

    def _try_get(self, args: int) -> int:
        fields = STRUCTS["PJRT_KeyValueTryGetCallback_Args"].fields
        key = ctypes.string_at(load(args + fields["key"].offset), load(args + fields["key_size"].offset))
        return self._give(args, "PJRT_KeyValueTryGetCallback_Args", key, StatusCode.NOT_FOUND)

    def _put(self, args: int) -> int:
        fields = STRUCTS["PJRT_KeyValuePutCallback_Args"].fields
        key = ctypes.string_at(load(args + fields["key"].offset), load(args + fields["key_size"].offset))
        value = ctypes.string_at(load(args + fields["value"].offset), load(args + fields["value_size"].offset))
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()
        return 0

    def _give(self, args: int, kind: str, key: bytes, missing: StatusCode) -> int:
        fields = STRUCTS[kind].fields
        value = self._values.get(key)
        if value is None:
            maker = _ErrorMaker(load(load(args + fields["callback_error"].offset)))
            message = b"no value for the key " + key
            return int(maker(int(missing), message, len(message)) or 0)
        memory = ctypes.create_string_buffer(value, len(value) + 1)
        address = ctypes.addressof(memory)
        self._given[address] = memory
        store(args + fields["value"].offset, address)
        store(args + fields["value_size"].offset, len(value))
        deleter = ctypes.cast(self._delete, ctypes.c_void_p).value or 0
        store(args + fields["value_deleter_callback"].offset, deleter)
        return 0

    def _deleted(self, value: int) -> None:
        self._given.pop(value, None)

    @property
    def num_values_out(self) -> int:
        """The number of values that were given out, and whose deleter was not called."""
        return len(self._given)


@check(
    "official.gpu.create_client_with_kv_callback",
    calls=(_CREATE, "PJRT_Client_Devices", "PJRT_Client_AddressableDevices", "PJRT_Client_Destroy"),
    rule="Two clients of one machine that share a key-value store, by the options num_nodes and node_id, know both "
    "devices, and each can use its own. A plugin may have no such options.",
)
def _two_nodes(subject: Subject) -> None:
    keys = MemoryStore()
    results: dict[int, raw.Result] = {}

    def create(node: int) -> None:
        options = {**subject.options, "num_nodes": _NODES, "node_id": node, "visible_devices": [0]}
        values = [raw.named_value(name, value) for name, value in options.items()]
        results[node] = subject.attempt(_CREATE, create_options=values, **keys.callbacks)

    threads = [threading.Thread(target=create, args=(node,)) for node in range(_NODES)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    refusals = [result.error for result in results.values() if result.error is not None]
    if refusals:
        codes = {error.code for error in refusals}
        known = codes & {int(StatusCode.DEADLINE_EXCEEDED), int(StatusCode.INTERNAL)}
        subject.expect(not known, "two clients of one job", "; ".join(map(str, refusals)))
        raise Unsupported("the options num_nodes and node_id of clients")
    for result in results.values():
        devices = subject.call("PJRT_Client_Devices", client=result.client).devices or []
        if len(devices) == len(subject.devices):
            raise Unsupported("the options num_nodes and node_id of clients")
        subject.expect(len(devices) == _NODES, f"{_NODES} devices", len(devices))
        own = subject.call("PJRT_Client_AddressableDevices", client=result.client).addressable_devices or []
        subject.expect(len(own) == 1, "1 addressable device", len(own))
    for result in results.values():
        subject.call("PJRT_Client_Destroy", client=result.client)
    subject.expect(not keys.num_values_out, "each value of the store deleted", f"{keys.num_values_out} that are not")

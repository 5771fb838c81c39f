"""Expectations of XLA's test of its plugins for GPUs: clients that share a key-value store."""

from __future__ import annotations

import threading

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.key_value_store import KeyValueStore
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject

_CREATE = "PJRT_Client_Create"
_NODES = 2


@check(
    "official.gpu.create_client_with_kv_callback",
    calls=(_CREATE, "PJRT_Client_Devices", "PJRT_Client_AddressableDevices", "PJRT_Client_Destroy"),
    rule="Two clients of one machine that share a key-value store, by the options num_nodes and node_id, know both "
    "devices, and each can use its own. A plugin may have no such options.",
)
def _two_nodes(subject: Subject) -> None:
    keys = KeyValueStore()
    results: dict[int, raw.Result] = {}

    def create(node: int) -> None:
        options = {**subject.options, "num_nodes": _NODES, "node_id": node, "visible_devices": [0]}
        values = [raw.named_value(name, value) for name, value in options.items()]
        results[node] = subject.attempt(_CREATE, create_options=values, **keys.fields())

    threads = [threading.Thread(target=create, args=(node,)) for node in range(_NODES)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    refusals = [result.error for result in results.values() if result.error is not None]
    if refusals:
        late = any(error.code == StatusCode.DEADLINE_EXCEEDED for error in refusals)  # it knows the options
        subject.expect(not late, "two clients of one job", "; ".join(map(str, refusals)))
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

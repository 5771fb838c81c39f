"""Callbacks through layers: each reaches its target with its own data, as often as it may, and leaves nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from fake_plugin import SLOT, Arguments, FakePlugin, call, chain_of, read, write

from pjrt.abi import schema
from pjrt.layers import stack

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
HOST_MEMORY_ALLOCATOR, CALLBACKS = 23, 14


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = stack.callbacks_in_use()
    yield
    assert stack.callbacks_in_use() == before


def fields(struct: str, address: int, *names: str) -> list[int]:
    """Return fields of an argument struct."""
    return [read(address, schema.STRUCTS[struct].fields[name].offset) for name in names]


class OnReady:
    """A plugin that keeps the callbacks of OnReady."""

    def __init__(self, error: int | None = None) -> None:
        self.kept: list[tuple[int, int]] = []
        self.seen: list[tuple[int | None, int | None]] = []
        self.error = error
        self.plugin = FakePlugin({"PJRT_Event_OnReady": self._on_ready})
        self.table = self.plugin.wrap()
        self.callback = self.plugin.pointer(lambda error, data: self.seen.append((error, data)), CALLBACK)  # type: ignore[arg-type, misc]

    def _on_ready(self, arguments: int) -> int | None:
        callback, data = fields("PJRT_Event_OnReady_Args", arguments, "callback", "user_arg")
        self.kept.append((callback, data))
        return self.error

    def wait(self, data: int) -> Arguments:
        return call(self.table, "PJRT_Event_OnReady", event=64, callback=self.callback, user_arg=data)

    def fire(self, index: int, error: int | None = None) -> None:
        callback, data = self.kept[index]
        CALLBACK(callback)(error, data)


def test_a_callback_gets_its_own_data_and_the_caller_keeps_its_struct() -> None:
    device = OnReady()
    arguments = device.wait(77)
    assert (arguments["callback"], arguments["user_arg"]) == (device.callback, 77)
    assert device.kept[0][0] != device.callback
    assert device.kept[0][1] != 77
    assert stack.callbacks_in_use() == 1
    device.fire(0, 5)
    assert device.seen == [(5, 77)]


def test_a_callback_that_is_called_twice_is_passed_on_once() -> None:
    device = OnReady()
    device.wait(1)
    device.fire(0)
    device.fire(0)
    device.wait(2)  # its record is used again: an old call must not reach the new callback
    device.fire(0)
    device.fire(1)
    assert device.seen == [(None, 1), (None, 2)]


def test_a_callback_of_a_call_that_failed_is_not_kept() -> None:
    device = OnReady(error=4096)
    assert device.wait(1).result == 4096
    device.fire(0)
    assert device.seen == []


def test_thousands_of_callbacks_at_once() -> None:
    device = OnReady()
    for number in range(5000):
        device.wait(number + 1)
    for index in reversed(range(5000)):
        device.fire(index)
    assert [data for _, data in device.seen] == list(range(5000, 0, -1))


def test_a_caller_without_a_callback() -> None:
    device = OnReady()
    assert call(device.table, "PJRT_Event_OnReady", event=64).result is None
    assert device.kept == [(0, 0)]


def test_a_caller_that_does_not_know_a_field() -> None:
    """Nothing behind the caller's struct_size is read or written."""
    device = OnReady()
    arguments = Arguments("PJRT_Event_OnReady_Args", event=64, callback=device.callback, user_arg=77)
    write(arguments.address, 0, 32)
    before = bytes(arguments.memory)
    SLOT(read(device.table, device_offset()))(arguments.address)
    assert bytes(arguments.memory) == before
    assert device.kept == [(device.callback, 77)], "a callback without its data is passed as it is"


def device_offset() -> int:
    from fake_plugin import OFFSETS

    return OFFSETS["PJRT_Event_OnReady"]


def test_deleters_that_a_plugin_returns() -> None:
    """Each reaches its own target, also where a plugin has more of them than functions stand ready."""
    deleted: list[tuple[int, int | None]] = []
    plugin = FakePlugin({})
    deleters = [
        plugin.pointer(lambda holder, number=number: deleted.append((number, holder)), DELETER)  # type: ignore[misc]
        for number in range(6)
    ]
    place = schema.STRUCTS["PJRT_Executable_Serialize_Args"].fields["serialized_executable_deleter"].offset
    turn = iter([*range(6), *range(6)])
    plugin.set("PJRT_Executable_Serialize", lambda arguments: write(arguments, place, deleters[next(turn)]))
    table = plugin.wrap()
    returned = [call(table, "PJRT_Executable_Serialize")["serialized_executable_deleter"] for _ in range(12)]
    assert returned[:6] == returned[6:], "the same deleter gets the same function"
    assert not set(returned[:4]) & set(deleters)
    assert returned[4:6] == deleters[4:6]
    for holder, deleter in enumerate(returned[:6], 100):
        DELETER(deleter)(holder)
    assert deleted == [(number, 100 + number) for number in range(6)]


class Store:
    """A framework's key-value store, and a plugin that uses it."""

    def __init__(self, error: int | None = None) -> None:
        self.seen: list[object] = []
        self.given: dict[str, int] = {}
        self.error = error
        self.plugin = FakePlugin({"PJRT_Client_Create": self._create, "PJRT_Client_Destroy": lambda _: None})
        self.table = self.plugin.wrap()
        self.deleter = self.plugin.pointer(lambda value: self.seen.append(("deleted", value)), DELETER)
        self.get = self.plugin.pointer(self._get)

    def _create(self, arguments: int) -> int | None:
        struct = schema.STRUCTS["PJRT_Client_Create_Args"].fields
        self.given = {name: read(arguments, struct[name].offset) for name in ("kv_get_callback", "kv_get_user_arg")}
        if self.error is None:
            write(arguments, struct["client"].offset, 640)
        return self.error

    def _get(self, arguments: int) -> None:
        (data,) = fields("PJRT_KeyValueGetCallback_Args", arguments, "user_arg")
        self.seen.append(("get", data))
        struct = schema.STRUCTS["PJRT_KeyValueGetCallback_Args"].fields
        write(arguments, struct["value"].offset, 2048)
        write(arguments, struct["value_deleter_callback"].offset, self.deleter)

    def create(self) -> Arguments:
        return call(self.table, "PJRT_Client_Create", kv_get_callback=self.get, kv_get_user_arg=77)

    def ask(self) -> Arguments:
        """Ask for a value, as the plugin."""
        arguments = Arguments("PJRT_KeyValueGetCallback_Args", user_arg=self.given["kv_get_user_arg"])
        SLOT(self.given["kv_get_callback"])(arguments.address)
        return arguments


def test_the_store_of_a_client() -> None:
    store = Store()
    assert store.create()["kv_get_user_arg"] == 77
    assert stack.callbacks_in_use() == 1
    for _ in range(2):
        answer = store.ask()
        assert (answer["value"], answer["user_arg"]) == (2048, store.given["kv_get_user_arg"])
        DELETER(answer["value_deleter_callback"])(answer["value"])
    assert store.seen == [("get", 77), ("deleted", 2048)] * 2
    assert answer["value_deleter_callback"] != store.deleter
    call(store.table, "PJRT_Client_Destroy", client=640)
    assert store.ask()["value"] == 0, "a store of a client that is gone was asked"


def test_the_store_of_a_client_that_was_not_made() -> None:
    store = Store(error=4096)
    assert store.create().result == 4096
    assert stack.callbacks_in_use() == 0


def test_the_deleter_of_memory_that_a_plugin_allocates() -> None:
    freed: list[object] = []
    plugin = FakePlugin({}, extensions=[(HOST_MEMORY_ALLOCATOR, [lambda arguments: allocate(arguments)])])
    deleter = plugin.pointer(lambda memory, data: freed.append((memory, data)), CALLBACK)  # type: ignore[arg-type, misc]
    struct = schema.STRUCTS["PJRT_HostMemoryAllocator_Allocate_Args"].fields

    def allocate(arguments: int) -> None:
        for name, value in (("ptr", 4096), ("deleter", deleter), ("deleter_arg", 77)):
            write(arguments, struct[name].offset, value)

    function = SLOT(read(chain_of(plugin.wrap())[0], 24))
    arguments = Arguments("PJRT_HostMemoryAllocator_Allocate_Args", client=640)
    function(arguments.address)
    assert (arguments["deleter"] == deleter, arguments["deleter_arg"] == 77) == (False, False)
    CALLBACK(arguments["deleter"])(arguments["ptr"], arguments["deleter_arg"])
    assert freed == [(4096, 77)]


def test_callbacks_of_failures_live_as_long_as_their_client() -> None:
    seen: list[object] = []
    kept: list[list[int]] = []
    names = ("callback", "user_arg")
    register = lambda arguments: kept.append(fields("PJRT_Callback_RegisterCallback_Args", arguments, *names))  # noqa: E731
    plugin = FakePlugin({"PJRT_Client_Destroy": lambda _: None}, extensions=[(CALLBACKS, [register, 0])])
    table = plugin.wrap()
    callback = plugin.pointer(lambda arguments, data: seen.append((arguments, data)), CALLBACK)  # type: ignore[arg-type, misc]
    arguments = Arguments("PJRT_Callback_RegisterCallback_Args", client=640, callback=callback, user_arg=77)
    SLOT(read(chain_of(table)[0], 24))(arguments.address)
    for _ in range(2):
        CALLBACK(kept[0][0])(4096, kept[0][1])
    assert seen == [(4096, 77)] * 2
    call(table, "PJRT_Client_Destroy", client=641)
    CALLBACK(kept[0][0])(4096, kept[0][1])
    assert len(seen) == 3, "the callback ended with another client"
    call(table, "PJRT_Client_Destroy", client=640)


def test_a_receiver_that_cancels() -> None:
    """The notifier is called once; the function that it is given may be called for each transfer, and stays."""
    seen: list[object] = []
    kept: list[list[int]] = []
    struct = schema.STRUCTS["PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args"].fields
    info = struct["notifier"].offset
    plugin = FakePlugin(
        {}, extensions=[(12, [lambda arguments: kept.append([read(arguments, info + 8 * i) for i in (0, 1)])])]
    )
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 7)
    notifier = plugin.pointer(lambda *parameters: seen.append(parameters), kind)  # type: ignore[arg-type, misc]
    arguments = Arguments("PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args", client=640)
    write(arguments.address, info, 77)
    write(arguments.address, info + 8, notifier)
    SLOT(read(chain_of(plugin.wrap())[0], 24))(arguments.address)
    assert [read(arguments.address, info + 8 * i) for i in (0, 1)] == [77, notifier]
    data, entry = kept[0]
    assert entry != notifier
    for _ in range(2):
        kind(entry)(None, None, None, 1, data, 4096, 99)
    assert seen == [(None, None, None, 1, 77, 4096, 99)]


class Sending:
    """A plugin that keeps the send callbacks of an execution, and a framework that gives some."""

    def __init__(self, error: int | None = None) -> None:
        self.error = error
        self.infos: list[list[int]] = []
        self.ready: list[list[int]] = []
        self.destroyed: list[int] = []
        self.seen: list[object] = []
        self.plugin = FakePlugin(
            {
                "PJRT_LoadedExecutable_Execute": self._execute,
                "PJRT_Event_OnReady": self._on_ready,
                "PJRT_Event_Destroy": lambda arguments: self.destroyed.append(read(arguments, 16)),
            }
        )
        self.table = self.plugin.wrap()
        self.kind = ctypes.CFUNCTYPE(
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_bool, ctypes.c_void_p
        )
        self.callback = self.plugin.pointer(self._send, self.kind)  # type: ignore[arg-type]

    def _send(self, _chunk: int, _make: int, total: int, done: bool, data: int) -> None:
        self.seen.append((total, done, data))

    def _on_ready(self, arguments: int) -> None:
        self.ready.append(fields("PJRT_Event_OnReady_Args", arguments, "callback", "user_arg"))

    def _execute(self, arguments: int) -> int | None:
        options, events = fields("PJRT_LoadedExecutable_Execute_Args", arguments, "options", "device_complete_events")
        (lists,) = fields("PJRT_ExecuteOptions", options, "send_callbacks")
        for device in range(2):
            self.infos.append([read(read(lists, 8 * device), 8 * word) for word in range(3)])
            if self.error is None:
                write(events, 8 * device, 128 + device)
        return self.error

    def execute(self) -> Arguments:
        self.memory = [(ctypes.c_uint64 * 3)(9, 77 + device, self.callback) for device in range(2)]
        self.lists = (ctypes.c_uint64 * 2)(*(ctypes.addressof(each) for each in self.memory))
        self.options = Arguments("PJRT_ExecuteOptions", send_callbacks=ctypes.addressof(self.lists), num_send_ops=1)
        return call(
            self.table, "PJRT_LoadedExecutable_Execute", executable=64, options=self.options.address, num_devices=2
        )

    def send(self, device: int) -> None:
        _, data, callback = self.infos[device]
        self.kind(callback)(None, None, 16, True, data)


def test_the_callbacks_of_an_execution() -> None:
    device = Sending()
    arguments = device.execute()
    assert (arguments["options"], arguments["device_complete_events"]) == (device.options.address, 0)
    assert [list(each) for each in device.memory] == [[9, 77, device.callback], [9, 78, device.callback]]
    assert [info[0] for info in device.infos] == [9, 9]
    for turn in (0, 1, 0):  # in a loop a program sends again
        device.send(turn)
    assert device.seen == [(16, True, 77), (16, True, 78), (16, True, 77)]
    assert device.destroyed == [128, 129], "the events that the layers asked for stay"
    assert stack.callbacks_in_use() == 2
    for callback, data in device.ready:
        CALLBACK(callback)(None, data)
    assert stack.callbacks_in_use() == 0
    device.send(1)  # a little late
    assert device.seen[-1] == (16, True, 78)


def test_the_callbacks_of_an_execution_that_failed() -> None:
    device = Sending(error=4096)
    assert device.execute().result == 4096
    assert (device.ready, stack.callbacks_in_use()) == ([], 0)

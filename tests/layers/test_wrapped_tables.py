"""Wrapped tables: which functions have layers, versions, extensions, and several tables at once."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_plugin import ALL_FUNCTIONS, HEAD, OFFSETS, FakePlugin, call, chain_of, read, write
from tiny.control import Control

import pjrt
from pjrt import layers
from pjrt.abi import schema
from pjrt.layers import stack

LAYOUTS = 4
PROFILER = 1


def test_every_function_goes_through_and_back() -> None:
    plugin = FakePlugin()
    for name in OFFSETS:
        plugin.set(name, lambda arguments: arguments)
    table = plugin.wrap()
    for name in OFFSETS:
        if name not in ("PJRT_Client_Destroy", "PJRT_LoadedExecutable_Execute"):
            assert read(table, OFFSETS[name]) != read(plugin.address, OFFSETS[name]), f"{name} has no layers"
            arguments = call(table, name)
            assert arguments.result == arguments.address, name


def test_the_same_table_with_the_same_layers_is_the_same() -> None:
    plugin = FakePlugin({})
    first = plugin.wrap()
    assert plugin.wrap() == first
    twice = plugin.wrap("pass", "pass")
    assert len({plugin.address, first, twice}) == 3
    assert stack.layers_of(twice) == ("pass", "pass")
    assert stack.plugin_table(twice) == plugin.address
    assert stack.layers_of(plugin.address) == ()
    assert stack.plugin_table(plugin.address) is None


def test_a_wrapped_table_can_be_wrapped() -> None:
    plugin = FakePlugin({"PJRT_Client_ProcessIndex": lambda arguments: arguments})
    outer = stack.wrap_table(plugin.wrap(), "outer", ("pass",), {})
    arguments = call(outer, "PJRT_Client_ProcessIndex")
    assert arguments.result == arguments.address


def test_layers_go_off_and_on() -> None:
    table = FakePlugin({"PJRT_Client_ProcessIndex": lambda arguments: arguments}).wrap("pass")
    assert stack.enable(table, "pass", False)
    assert not stack.enable(table, "pass", False)
    arguments = call(table, "PJRT_Client_ProcessIndex")
    assert arguments.result == arguments.address
    assert not stack.enable(table, "pass", True)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a layer of this plugin \(pass\), found 'trace'"):
        stack.enable(table, "trace", True)
    with pytest.raises(pjrt.InvalidArgumentError, match="it has none"):
        stack.enable(1, "pass", True)


def test_a_function_that_a_plugin_lacks_is_missing() -> None:
    table = FakePlugin({"PJRT_Client_ProcessIndex": lambda _: None}).wrap()
    assert read(table, OFFSETS["PJRT_Client_ProcessIndex"])
    assert read(table, OFFSETS["PJRT_Client_Devices"]) == 0


def test_an_older_table_keeps_its_size() -> None:
    plugin = FakePlugin(num_functions=90)
    table = plugin.wrap()
    assert read(table) == plugin.size == HEAD + 8 * 90
    assert call(table, "PJRT_Client_ProcessIndex").result is None


def test_functions_of_a_newer_table_pass_as_they_are() -> None:
    plugin = FakePlugin(num_functions=ALL_FUNCTIONS + 3)
    newer = plugin.pointer(lambda arguments: arguments)
    write(plugin.address, plugin.size - 8, newer)
    table = plugin.wrap()
    assert (read(table), read(table, plugin.size - 8)) == (plugin.size, newer)


@pytest.mark.parametrize("size", [0, 40, 50, 1 << 20, 1 << 62])
def test_what_has_no_size_of_a_table_is_none(size: int) -> None:
    plugin = FakePlugin({})
    write(plugin.address, 0, size)
    with pytest.raises(pjrt.InvalidArgumentError, match=rf"has a size of {size} bytes, so it is no PJRT_Api"):
        plugin.wrap()


def test_unknown_extensions_stay_in_order() -> None:
    back: Callable[[int], int] = lambda arguments: arguments  # noqa: E731
    plugin = FakePlugin({}, extensions=[(77, [5]), (LAYOUTS, [back] * 3), (10, []), (PROFILER, [0, 7]), (78, [6])])
    table = plugin.wrap()
    chain = chain_of(table)
    assert [read(one, 8) for one in chain] == [77, LAYOUTS, 10, PROFILER, 78]
    assert [read(one) for one in chain] == [ctypes.sizeof(one) for one in plugin.extensions]
    assert read(chain[0], 24) == 5
    assert chain[-1] == ctypes.addressof(plugin.extensions[-1]), "what follows the last known one is the plugin's own"
    assert read(chain[1], 24) != read(ctypes.addressof(plugin.extensions[1]), 24), "its functions have layers"
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(read(chain[1], 40))
    assert function(4096) == 4096
    assert chain_of(plugin.address) == [ctypes.addressof(one) for one in plugin.extensions], (
        "the plugin's chain changed"
    )


def test_an_extension_of_an_older_plugin_is_shorter() -> None:
    plugin = FakePlugin({}, extensions=[(LAYOUTS, [lambda arguments: arguments])])
    assert read(chain_of(plugin.wrap())[0]) == 32


def test_extensions_without_a_size_are_left_where_they_are() -> None:
    plugin = FakePlugin({}, extensions=[(LAYOUTS, [0]), (78, [6]), (LAYOUTS, [0])])
    plugin.extensions[1][0] = 3
    chain = chain_of(plugin.wrap())
    assert chain[1:] == [ctypes.addressof(one) for one in plugin.extensions[1:]]


def test_a_chain_that_is_a_ring_ends() -> None:
    plugin = FakePlugin({}, extensions=[(LAYOUTS, [0]), (78, [6])])
    plugin.extensions[1][2] = ctypes.addressof(plugin.extensions[0])
    assert [read(one, 8) for one in chain_of(plugin.wrap())[:2]] == [LAYOUTS, 78]


def test_the_functions_of_the_profiler_have_layers() -> None:
    api = (ctypes.c_uint64 * 10)()
    plugin = FakePlugin({}, extensions=[(PROFILER, [ctypes.addressof(api), 7])])
    api[0], api[1] = ctypes.sizeof(api), 99
    for index in range(2, 10):
        api[index] = plugin.pointer(lambda arguments: arguments)
    wrapped = read(chain_of(plugin.wrap())[0], 24)
    assert wrapped != ctypes.addressof(api)
    assert read(wrapped, 8) == 99
    for index in range(2, 10):
        assert read(wrapped, 8 * index) != api[index]
        assert ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(read(wrapped, 8 * index))(4096) == 4096


def test_several_tables_at_once(tiny_copy: Callable[..., Control]) -> None:
    """Each has its own plugin behind it: the calls of one reach no other."""
    copies = [tiny_copy(), tiny_copy()]
    plugins = [*(layers.wrap(copy.path, ["pass"]) for copy in copies), layers.wrap("reference", ["pass"])]
    assert len({plugin.address for plugin in plugins}) == 3
    with plugins[0].client(num_devices=1) as first, plugins[2].client() as third:
        assert (first.platform_name, third.platform_name) == ("tiny", "reference")
        assert [copy.live("client") for copy in copies] == [1, 0]


def test_an_older_plugin_with_layers(tiny_copy: Callable[..., Control]) -> None:
    plugin = layers.wrap(tiny_copy(minor=54, functions=100).path, ["pass"])
    assert plugin.api_version == (0, 54)
    with plugin.client() as client:
        assert client.buffer_from_host([1.0, 2.0]).tolist() == [1.0, 2.0]


def test_calls_of_many_threads_while_layers_go_on_and_off() -> None:
    table = FakePlugin({"PJRT_Client_ProcessIndex": lambda arguments: arguments}).wrap("pass", "pass")
    wrong: list[object] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            arguments = call(table, "PJRT_Client_ProcessIndex")
            if arguments.result != arguments.address:
                wrong.append(arguments.result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(400):
        stack.enable(table, "pass", turn % 2 == 0)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


TOO_MANY = """
import sys
sys.path.insert(0, sys.argv[1])
import pjrt
from fake_plugin import FakePlugin
for _ in range(128):
    FakePlugin({}).wrap()
try:
    FakePlugin({}).wrap()
except pjrt.InvalidArgumentError as error:
    print(error.message)
"""


def test_a_process_has_layers_before_128_tables() -> None:
    command = [sys.executable, "-c", TOO_MANY, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "128 tables have layers already, which is the most that a process can have\n"


def test_the_schema_and_the_library_are_of_one_version() -> None:
    """The trampolines are numbered as the functions of the schema."""
    assert list(schema.FUNCTIONS)[:ALL_FUNCTIONS] == list(OFFSETS)
    assert stack.layer_names()[0] == "pass"

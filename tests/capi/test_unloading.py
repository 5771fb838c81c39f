"""Plugins leave the process when nothing of them is alive, stay while something is, and come back as they are then."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import TinyProgram, build
from tiny.control import Control
from tiny.everything import SPEC, X, everything

import pjrt
from pjrt import capi

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="what a process has in memory is read from /proc")
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def library(tiny_library: Path, tmp_path: Path) -> Path:
    """A tiny plugin that nobody else has opened."""
    return Path(shutil.copy(tiny_library, tmp_path / "libtiny-to-unload.so"))


def newer(cache: Path, *extra: str) -> Path:
    """The tiny plugin in another version."""
    return build.build_tiny(cache, ['-DTINY_PLATFORM_VERSION="tiny 2.0"', *extra])


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def replace(path: Path, source: Path) -> None:
    """Puts another file in a file's place, as an installer does: who has the old one open keeps it."""
    scratch = path.with_suffix(".new")
    shutil.copy(source, scratch)
    os.replace(scratch, path)


def version(plugin: capi.LoadedPlugin) -> str:
    with plugin.client() as client:
        return client.platform_version


@linux_only
@pytest.mark.alone
def test_the_library_leaves_the_process(library: Path, adder: pjrt.Program) -> None:
    plugin = capi.load_plugin(library)
    assert is_mapped(library)
    with plugin.client(num_devices=2) as client:
        np.testing.assert_array_equal(np.asarray(client.compile(adder)(X, X)[0]), X + X)
    assert plugin.is_loaded
    assert plugin.unload()
    assert not plugin.is_loaded
    assert not is_mapped(library)


def test_what_is_left_of_an_unloaded_plugin_says_so(library: Path, adder: pjrt.Program) -> None:
    plugin = capi.load_plugin(library)
    client = plugin.client(num_devices=2)
    device, memory, loaded = client.devices[0], client.memory_spaces[0], client.compile(adder)
    buffer = client.buffer_from_host(X)
    client.close()
    del loaded, buffer
    plugin.unload()
    for use in (
        plugin.client,
        plugin.topology,
        plugin.profiler,
        plugin.unload,
        lambda: plugin.deserialize_topology(b""),
        lambda: plugin.runtime_abi_version(b""),
        lambda: plugin.compile_triton(b"", "", num_warps=1, num_ctas=1, num_stages=1),
        lambda: client.compile(adder),
        lambda: client.register_ffi_type("t"),
        lambda: device.poison_execution(1, pjrt.AbortedError("nobody")),
        lambda: device.description.debug_string and memory.debug_string and device.memory_stats(),
    ):
        with pytest.raises(pjrt.FailedPreconditionError, match="was unloaded; load it again"):
            use()
    assert (plugin.api_version, plugin.alive()) == ((0, 114), {})
    assert repr(plugin)
    assert repr(client)
    assert repr(device)


def test_loading_after_unloading_is_a_new_plugin(library: Path) -> None:
    for _ in range(3):
        plugin = capi.load_plugin(library)
        assert capi.load_plugin(library) is plugin
        assert version(plugin) == "tiny 1.0"
        plugin.unload()


ALIVE = {
    "client": "1 client",
    "topology": "1 topology",
    "own topology": "1 topology",
    "executable of a topology": "1 executable",
    "buffer": "1 buffer",
    "loaded": "1 loaded executable",
    "context": "1 execute context",
    "future": "1 future",
    "profiler": "1 profiling session",
    "reference": "1 buffer",
    "array": "1 buffer",
}


def one(plugin: capi.LoadedPlugin, adder: pjrt.Program, kind: str) -> object:
    """Something of the plugin, with what it keeps alive."""
    if kind == "own topology":
        return plugin.topology("2x2")
    if kind == "executable of a topology":
        return plugin.topology("2x2").compile(adder)
    if kind == "profiler":
        return plugin.profiler()
    if kind == "array":
        return np.from_dlpack(plugin.client().buffer_from_host(X))
    if kind == "future":
        client = plugin.client()
        with Control(plugin.path).held():
            return client.buffer_from_host(X).copy_to(client.devices[0]).ready()
    return everything(plugin, adder)[kind]


@pytest.mark.parametrize("kind", ALIVE)
def test_it_stays_while_something_is_alive(library: Path, adder: pjrt.Program, kind: str) -> None:
    plugin = capi.load_plugin(library)
    kept = one(plugin, adder, kind)
    with pytest.raises(pjrt.FailedPreconditionError, match=rf"while something of it is alive: .*\b{ALIVE[kind]}"):
        plugin.unload()
    assert plugin.is_loaded
    assert version(plugin) == "tiny 1.0"
    del kept
    gc.collect()
    plugin.unload()


def test_all_that_is_alive_is_counted(library: Path) -> None:
    plugin = capi.load_plugin(library)
    first, second = plugin.client(), plugin.client()
    buffers = [first.buffer_from_host(X) for _ in range(3)]
    assert plugin.alive() == {"client": 2, "buffer": 3}
    with pytest.raises(pjrt.FailedPreconditionError, match="alive: 3 buffers, 2 clients; close its clients and drop"):
        plugin.unload()
    first.close()
    assert plugin.alive() == {"client": 1}
    second.close()
    assert plugin.alive() == {}
    assert plugin.unload()
    assert len(buffers) == 3


def test_garbage_does_not_count(library: Path, adder: pjrt.Program) -> None:
    plugin = capi.load_plugin(library)
    things = everything(plugin, adder)
    things["itself"] = things
    del things
    plugin.unload()


def test_a_callback_that_is_owed_counts(library: Path) -> None:
    """The future is dropped, and its client closed, while the plugin still has it to tell."""
    plugin, control = capi.load_plugin(library), Control(library)
    client = plugin.client()
    told = threading.Event()
    with control.held():
        client.buffer_from_host(X).copy_to(client.devices[0]).ready().add_done_callback(lambda _: told.set())
        assert plugin.alive()["future"] >= 1
        with pytest.raises(pjrt.FailedPreconditionError, match="future"):
            plugin.unload()
    assert told.wait(60)
    client.close()
    gc.collect()
    plugin.unload()


def test_a_call_under_way_counts(library: Path) -> None:
    plugin = capi.load_plugin(library)
    client = plugin.client(num_devices=2)
    program = TinyProgram("slow")
    x = program.parameter("f32[4]")
    program.do("sleep", 300)
    slow = client.compile(pjrt.Program(program.result(program.let("neg", x)).code, format="tiny"))
    outputs = slow(X)
    closing = threading.Thread(target=client.close)  # waits inside the plugin for what is under way
    closing.start()
    refused = 0
    while closing.is_alive():
        try:
            plugin.unload()
        except pjrt.FailedPreconditionError:
            refused += 1
    closing.join(60)
    assert refused or not plugin.is_loaded
    if plugin.is_loaded:
        plugin.unload()
    assert outputs


@linux_only
@pytest.mark.alone
def test_new_code_runs_when_the_file_was_replaced(library: Path, tiny_cache: Path) -> None:
    plugin = capi.load_plugin(library)
    assert (version(plugin), plugin.has_changed) == ("tiny 1.0", False)
    replace(library, newer(tiny_cache))
    assert plugin.has_changed
    assert capi.load_plugin(library) is plugin, "it is loaded, so it is that one"
    assert plugin.unload()
    again = capi.load_plugin(library)
    assert (version(again), again.has_changed) == ("tiny 2.0", False)
    assert again.unload()
    assert not is_mapped(library)


@pytest.mark.parametrize("held_by", ["a mark in it", "somebody else"])
def test_new_code_runs_beside_old_code_that_stays(library: Path, tiny_cache: Path, held_by: str) -> None:
    if held_by == "a mark in it":
        replace(library, build.build_tiny(tiny_cache, ["-Wl,-z,nodelete"]))
    plugin = capi.load_plugin(library)
    control = Control(library) if held_by == "somebody else" else None
    assert not plugin.unload(), "it stays in memory"
    again = capi.load_plugin(library)
    assert version(again) == "tiny 1.0", "the same file gives the same code"
    assert again is not plugin
    assert not again.unload()
    replace(library, newer(tiny_cache))
    renewed = capi.load_plugin(library)
    assert (version(renewed), renewed.path) == ("tiny 2.0", str(library))
    assert list(library.parent.iterdir()) == [library], "no copy is left behind"
    renewed.unload()
    assert version(capi.load_plugin(library)) == "tiny 2.0"
    assert control is None or control.live() == {}


def test_a_resident_plugin_is_initialized_once(library: Path) -> None:
    control = Control(library)
    with control.counted():
        for _ in range(3):
            plugin = capi.load_plugin(library)
            assert not plugin.unload()
        assert control.calls("PJRT_Plugin_Initialize") == 1


@linux_only
def test_a_library_with_a_thread_inside_stays_in_memory(tiny_cache: Path, tmp_path: Path) -> None:
    sources = [build.other_source("noop"), build.other_source("lingering")]
    path = Path(shutil.copy(build.build(sources, tiny_cache, "liblingering.so"), tmp_path))
    plugin = capi.load_plugin(path)
    assert not plugin.unload()
    assert is_mapped(path)
    again = capi.load_plugin(path)
    assert again.is_loaded


@linux_only
@pytest.mark.alone
@pytest.mark.parametrize("opens", [True, False])
def test_a_library_that_opened_others_stays_in_memory(
    tiny_cache: Path, no_symbol_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    """They may call it when the process ends. What it needs in order to be opened at all is not meant."""
    other = Path(shutil.copy(no_symbol_library, tmp_path / "libopened.so"))
    if opens:
        monkeypatch.setenv("PJRT_TEST_OPENS", str(other))
    sources = [build.other_source("noop"), build.other_source("opening")]
    path = Path(shutil.copy(build.build(sources, tiny_cache, "libopening.so", ["-lm", "-lresolv"]), tmp_path))
    plugin = capi.load_plugin(path)
    assert is_mapped(other) is opens
    assert plugin.unload() is not opens
    assert is_mapped(path) is opens


@linux_only
def test_a_plugin_that_could_not_be_loaded_can_be_mended(tiny_cache: Path, tiny_library: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(build.build_other("no_symbol", tiny_cache), tmp_path / "libmended.so"))
    with pytest.raises(pjrt.FailedPreconditionError, match="no function GetPjrtApi"):
        capi.load_plugin(path)
    replace(path, tiny_library)
    assert version(capi.load_plugin(path)) == "tiny 1.0"


def test_a_plugin_of_a_capsule_is_its_owners_to_unload() -> None:
    exported = pjrt.export(lambda **options: pjrt.client("cpu", **options), name="whole")
    plugin = capi.load_capsule(exported.capsule)
    with pytest.raises(pjrt.FailedPreconditionError, match="capsule"):
        plugin.unload()
    assert plugin.is_loaded


MANY_THREADS = """
import sys, threading
sys.path[:0] = [{tests!r} + "/plugins"]
import pjrt
from pjrt import capi
counts = dict(unloaded=0, refused=0, used=0, late=0)
def use():
    for _ in range(60):
        try:
            with capi.load_plugin({library!r}).client() as client:
                client.buffer_from_host([1.0, 2.0]).to_host().result(60)
            counts["used"] += 1
        except pjrt.FailedPreconditionError as error:
            assert "was unloaded" in error.message, error
            counts["late"] += 1
def unload():
    for _ in range(60):
        try:
            counts["unloaded"] += capi.load_plugin({library!r}).unload() is not None
        except pjrt.FailedPreconditionError as error:
            assert "alive" in error.message or "was unloaded" in error.message, error
            counts["refused"] += 1
threads = [threading.Thread(target=f) for f in (use, use, use, unload, unload)]
[t.start() for t in threads]
[t.join() for t in threads]
assert counts["used"] or counts["late"] == 180, counts
# Whoever came while others used it was refused, and that may be all of them; now nobody does.
capi.load_plugin({library!r}).unload()
assert capi.load_plugin({library!r}).client().platform_name == "tiny"
"""


def test_unloading_while_other_threads_use_it(library: Path) -> None:
    script = MANY_THREADS.format(tests=str(TESTS), library=str(library))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stdout, done.stderr)


AT_EXIT = """
import sys, gc
sys.path[:0] = [{tests!r} + "/plugins"]
import numpy as np
from pjrt import capi
plugin = capi.load_plugin({library!r})
client = plugin.client()
buffer = client.buffer_from_host(np.ones(4))
{body}
"""


@pytest.mark.parametrize(
    "body",
    [
        "client.close(); plugin.unload()",
        "client.close(); plugin.unload(); kept = capi.load_plugin(plugin.path).client()",
        "sys.kept = [client, buffer, plugin, buffer.to_host()]",
    ],
)
def test_the_process_ends_well(library: Path, body: str) -> None:
    script = AT_EXIT.format(tests=str(TESTS), library=str(library), body=body)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)


def test_the_counts_survive_use_from_many_threads(library: Path) -> None:
    plugin = capi.load_plugin(library)

    def work() -> None:
        with plugin.client() as client:
            for _ in range(50):
                buffer, _ = client.create_alias_buffer(SPEC)
                client.buffer_from_host(X).to_host().result(60)
                assert re.fullmatch(r"[a-z ]+", min(plugin.alive()))
                del buffer

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    gc.collect()
    plugin.unload()


def test_copies_of_a_plugin_are_plugins_of_their_own(tiny_copy: Callable[..., Control]) -> None:
    first, second = (capi.load_plugin(tiny_copy().path) for _ in range(2))
    with second.client():
        first.unload()
        assert second.alive() == {"client": 1}
    assert second.is_loaded

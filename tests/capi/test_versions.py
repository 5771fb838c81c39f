"""Plugins older and newer than this package: what they have works, what they lack says since when it exists."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny.control import Control

import pjrt
from pjrt.abi.generated.version import API_VERSION
from pjrt.abi.schema import TABLE

OURS = ".".join(map(str, API_VERSION))
X = np.arange(4, dtype=np.float32)


def run_adder(client: pjrt.Client, adder: pjrt.Program) -> None:
    (out,) = client.compile(adder)(X, X)
    np.testing.assert_array_equal(np.asarray(out), X + X)


def functions_at(minor: int) -> int:
    """Return how many functions the table of a version has."""
    return sum(1 for each in TABLE if each.minor <= minor)


@pytest.mark.parametrize("minor", [29, 36, 48, 57, 75, 90, 105, 106, 112, 114, API_VERSION[1]])
def test_an_older_plugin_does_what_it_has(tiny_copy: Callable[..., Control], adder: pjrt.Program, minor: int) -> None:
    control = tiny_copy(minor=minor, functions=functions_at(minor), garbage_tail=1)
    plugin = pjrt.load_plugin(control.path)
    assert plugin.api_version == (0, minor)
    with plugin.client(num_devices=2) as client:
        run_adder(client, adder)
    assert control.violations == 0, control.last_violation


@pytest.mark.parametrize("claimed", [1 << 40, (1 << 64) - 8])
def test_a_table_that_claims_to_be_larger_than_its_version_is_not_read_behind_its_end(
    tiny_copy: Callable[..., Control], adder: pjrt.Program, claimed: int
) -> None:
    # The version says how far the table goes, whatever struct_size does: behind lies garbage that would be called.
    size = claimed if claimed < 1 << 63 else claimed - (1 << 64)
    plugin = pjrt.load_plugin(tiny_copy(minor=105, functions=functions_at(105), garbage_tail=1, struct_size=size).path)
    with plugin.client() as client:
        run_adder(client, adder)
        with pytest.raises(pjrt.UnimplementedError, match=r"since PJRT C API 0\.106"):
            client.devices[0].clear_memory_stats()


def test_a_missing_function_says_since_when_it_exists(tiny_copy: Callable[..., Control], adder: pjrt.Program) -> None:
    plugin = pjrt.load_plugin(tiny_copy(minor=54, functions=functions_at(54)).path)
    with plugin.client() as client:
        buffer = client.buffer_from_host(X)
        with pytest.raises(pjrt.UnimplementedError) as caught:
            buffer.copy_raw_to_host(bytearray(16))
        assert "0.54" in caught.value.message
        assert "PJRT_Buffer_CopyRawToHost exists since PJRT C API 0.57" in caught.value.message
        with pytest.raises(pjrt.UnimplementedError, match=r"since PJRT C API 0\.73"):
            client.update_global_process_info([])
        # Where an older way leads to the same, it is taken.
        assert client.devices[0].attributes == client.devices[0].description.attributes


def test_a_slot_that_had_another_meaning_is_not_called(tiny_copy: Callable[..., Control]) -> None:
    # At 0.105 a function that is gone, PJRT_Buffer_CopyRawFromHost, had the slot of ClearMemoryStats.
    with pjrt.load_plugin(tiny_copy(minor=105).path).client() as client:
        with pytest.raises(pjrt.UnimplementedError, match=r"ClearMemoryStats exists since PJRT C API 0\.106"):
            client.devices[0].clear_memory_stats()


def test_functions_are_called_from_the_version_on_that_added_them(tiny_copy: Callable[..., Control]) -> None:
    with pjrt.load_plugin(tiny_copy(minor=106, functions=136, garbage_tail=1).path).client() as client:
        client.devices[0].clear_memory_stats()
        with pytest.raises(pjrt.UnimplementedError, match=r"GetMemorySpaceKindIds exists since PJRT C API 0\.112"):
            _ = client.topology.memory_space_kind_ids
    with pjrt.load_plugin(tiny_copy(minor=112).path).client() as client:
        assert client.topology.memory_space_kind_ids


def test_a_newer_plugin_works_and_says_once_that_it_is_newer(
    tiny_copy: Callable[..., Control], adder: pjrt.Program, caplog: pytest.LogCaptureFixture
) -> None:
    control = tiny_copy(minor=130, functions=170, garbage_tail=1)
    plugin = pjrt.load_plugin(control.path)
    pjrt.load_plugin(control.path)
    (said,) = (message for message in caplog.messages if str(control.path) in message)
    assert said.startswith(f"{control.path}: the plugin speaks PJRT C API 0.130, this package {OURS}: it works")
    with plugin.client() as client:
        run_adder(client, adder)
    assert control.violations == 0


def test_errors_without_function_tables(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy(minor=110, functions=135, legacy_errors=1)
    with pjrt.load_plugin(control.path).client() as client:
        control.fault_payload("why", "because")
        control.fault("Buffer_ReadyEvent", 11, "late")
        with pytest.raises(pjrt.OutOfRangeError, match="late") as caught:
            client.buffer_from_host(X).ready()
        assert caught.value.payloads == {"why": b"because"}
        control.clear()
    assert control.live("error") == 0


@pytest.mark.parametrize(
    "function", ["Error_ForEachPayload", "Event_OnReady", "Plugin_Attributes", "Buffer_GetMemoryLayout"]
)
def test_null_slots_that_can_be_done_without(
    tiny_copy: Callable[..., Control], adder: pjrt.Program, function: str
) -> None:
    control = tiny_copy(null=f"PJRT_{function}")
    with pjrt.load_plugin(control.path).client() as client:
        run_adder(client, adder)
        buffer = client.buffer_from_host(X.reshape(2, 2))
        assert buffer.layout == pjrt.TiledLayout((1, 0))
        seen: queue.SimpleQueue[object] = queue.SimpleQueue()
        buffer.ready().add_done_callback(seen.put)
        assert buffer.ready().result() is None
        seen.get(timeout=120)
        control.fault("Buffer_Delete", 4, "slow")
        with pytest.raises(pjrt.DeadlineExceededError, match="slow"):
            buffer.delete()
        control.clear()
    assert control.live("error") == 0


def test_a_null_slot_names_the_function(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy(null="PJRT_Buffer_IsOnCpu")
    with pjrt.load_plugin(control.path).client() as client:
        buffer = client.buffer_from_host(X)
        with pytest.raises(pjrt.UnimplementedError, match="leaves PJRT_Buffer_IsOnCpu out"):
            _ = buffer.is_on_cpu


def test_a_plugin_without_extensions(tiny_copy: Callable[..., Control], adder: pjrt.Program) -> None:
    plugin = pjrt.load_plugin(tiny_copy(no_extensions=1).path)
    assert plugin.extensions == {}
    with plugin.client() as client:
        run_adder(client, adder)
        with pytest.raises(pjrt.UnimplementedError, match="no Layouts extension"):
            client.default_layout(pjrt.ElementType.F32, (2, 2))
        with pytest.raises(pjrt.UnimplementedError, match="no FFI extension"):
            client.register_ffi_type("thing")
        with pytest.raises(pjrt.UnimplementedError, match="no RawBuffer extension"):
            client.buffer_from_host(X).raw()


def test_every_struct_is_stamped_as_the_plugin_expects(tiny_copy: Callable[..., Control], adder: pjrt.Program) -> None:
    control = tiny_copy(strict=1)
    with pjrt.load_plugin(control.path).client(num_devices=2) as client:
        run_adder(client, adder)
        buffer = client.buffer_from_host(X)
        buffer.copy_to(client.devices[1]).to_host().result()
        assert client.devices[0].memory_stats().bytes_in_use >= 0
        assert client.compile(adder).memory_stats() is not None
        assert client.topology.fingerprint() is not None
    assert control.violations == 0, control.last_violation


def test_the_environment_configures_a_copy_in_a_process_of_its_own(tiny_library: Path) -> None:
    code = f"import pjrt; print(pjrt.load_plugin({str(tiny_library)!r}).api_version)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"TINY_PLUGIN_CONFIGURE": "minor=60;functions=112", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "(0, 60)\n", done.stderr

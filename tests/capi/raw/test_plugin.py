"""The C API by name: calls with structs made from keyword values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control

from pjrt.abi.generated.version import API_VERSION
from pjrt.api.errors import InvalidArgumentError, NotFoundError, StatusCode, UnimplementedError
from pjrt.capi import raw


@pytest.fixture(scope="module")
def plugin(tiny_library: Path) -> raw.Plugin:
    return raw.load(tiny_library)


@pytest.fixture
def client(plugin: raw.Plugin) -> int:
    options = [raw.named_value("num_devices", 2), raw.named_value("platform_name", "mine")]
    result = plugin.call("PJRT_Client_Create", create_options=options)
    assert result.error is None
    return int(result.client)


def test_the_plugin_states_its_version_and_extensions(plugin: raw.Plugin) -> None:
    assert plugin.api_version == API_VERSION
    assert "Layouts" in plugin.extensions
    assert plugin.has("PJRT_Client_Create")


def test_options_arrive_and_texts_come_back(plugin: raw.Plugin, client: int) -> None:
    assert plugin.call("PJRT_Client_PlatformName", client=client).platform_name == b"mine"
    assert len(plugin.call("PJRT_Client_Devices", client=client).devices) == 2


def test_an_error_is_read_and_destroyed(plugin: raw.Plugin, client: int) -> None:
    result = plugin.call("PJRT_Client_LookupDevice", client=client, id=-1)
    assert result.error is not None
    assert result.error.code == StatusCode.INVALID_ARGUMENT
    assert "-1" in result.error.message
    with pytest.raises(AttributeError, match="device"):
        _ = result.device


def test_a_program_runs_on_two_devices(plugin: raw.Plugin, client: int) -> None:
    program = TinyProgram("adder")
    x, y = program.parameter("f32[4]"), program.parameter("f32[4]")
    program.result(program.let("add", x, y))
    code = raw.Struct("PJRT_Program", code=program.code, format="tiny")
    executable = plugin.call("PJRT_Client_Compile", client=client, program=code, compile_options=b"").executable
    device = plugin.call("PJRT_Client_LookupDevice", client=client, id=0).device
    array = np.arange(4, dtype=np.float32)
    moved = plugin.call(
        "PJRT_Client_BufferFromHostBuffer", client=client, data=array, type="F32", dims=[4], device=device
    )
    done = plugin.call(
        "PJRT_LoadedExecutable_Execute",
        executable=executable,
        options=raw.Struct("PJRT_ExecuteOptions", launch_id=7),
        argument_lists=[[moved.buffer, moved.buffer]],
        output_lists=[[None]],
        device_complete_events=[None],
    )
    assert done.error is None
    host = np.zeros(4, np.float32)
    copied = plugin.call("PJRT_Buffer_ToHostBuffer", src=done.output_lists[0][0], dst=host)
    assert plugin.call("PJRT_Event_Await", event=copied.event).error is None
    np.testing.assert_array_equal(host, array + array)


def test_a_callback_is_called(plugin: raw.Plugin, client: int) -> None:
    device = plugin.call("PJRT_Client_LookupDevice", client=client, id=0).device
    array = np.zeros(4, np.float32)
    moved = plugin.call(
        "PJRT_Client_BufferFromHostBuffer", client=client, data=array, type="F32", dims=[4], device=device
    )
    calls: list[tuple[int, int]] = []
    plugin.call("PJRT_Event_Await", event=moved.done_with_host_buffer)
    kept = plugin.call(
        "PJRT_Event_OnReady",
        event=moved.done_with_host_buffer,
        callback=lambda error, user: calls.append((error, user)),
        user_arg=7,
    )
    assert kept.error is None
    assert calls == [(0, 7)]


def test_a_wrong_struct_size_is_written_as_it_is(plugin: raw.Plugin, client: int, tiny_control: Control) -> None:
    tiny_control.strict()
    result = plugin.call("PJRT_Client_PlatformName", client=client, struct_size=24)
    assert result.error is not None
    assert result.error.code == StatusCode.INVALID_ARGUMENT


def test_what_the_c_api_does_not_have_is_refused(plugin: raw.Plugin, client: int) -> None:
    with pytest.raises(InvalidArgumentError, match="PJRT_Client_Fly"):
        plugin.call("PJRT_Client_Fly")
    with pytest.raises(InvalidArgumentError, match="clint"):
        plugin.call("PJRT_Client_PlatformName", clint=client)
    with pytest.raises(InvalidArgumentError, match="expected one of INVALID, PRED"):
        plugin.call("PJRT_Client_BufferFromHostBuffer", client=client, type="F33")
    with pytest.raises(NotFoundError, match="no such file"):
        raw.load("/nowhere/libmine.so")


def test_a_function_that_the_plugin_lacks_is_unimplemented(tiny_copy) -> None:  # type: ignore[no-untyped-def]
    old = raw.load(tiny_copy(minor=54, functions=90).path)
    assert not old.has("PJRT_Client_CreateErrorBuffer")
    with pytest.raises(UnimplementedError, match="PJRT_Client_CreateErrorBuffer"):
        old.call("PJRT_Client_CreateErrorBuffer")

"""Plain getters: properties that ask one function of the C API, stated as data."""

from __future__ import annotations

import pytest
from pjrt.capi._scope import Getter
from tiny.control import Control

import pjrt
from pjrt.api.client import Client


def test_an_answer_that_never_changes_is_asked_once(client: Client, tiny_control: Control) -> None:
    description = client.devices[0].description
    attributes = description.attributes
    tiny_control.fault("DeviceDescription_Attributes", 13, "asked again")
    assert description.attributes is attributes


def test_an_answer_that_may_change_is_asked_each_time(client: Client, tiny_control: Control) -> None:
    assert client.process_index == 0
    tiny_control.fault("Client_ProcessIndex", 13, "asked again")
    with pytest.raises(pjrt.InternalError, match="asked again"):
        _ = client.process_index


def test_an_answer_that_failed_is_asked_again(client: Client, tiny_control: Control) -> None:
    tiny_control.fault("Device_DefaultMemory", 13, "not now")
    with pytest.raises(pjrt.InternalError, match="not now"):
        _ = client.devices[0].default_memory_space
    tiny_control.clear()
    assert client.devices[0].default_memory_space in client.memory_spaces


def test_names_and_numbers_are_read_after_the_client_was_closed(plugin: pjrt.Plugin) -> None:
    client = plugin.client()
    device, memory = client.devices[0], client.devices[0].default_memory_space
    before = (client.platform_name, str(device), device.id, device.description.kind, memory.kind, str(memory))
    client.close()
    after = (client.platform_name, str(device), device.id, device.description.kind, memory.kind, str(memory))
    assert after == before
    with pytest.raises(pjrt.FailedPreconditionError, match="the client was closed"):
        _ = device.local_hardware_id


def test_a_getter_reads_only_objects_of_its_class(client: Client) -> None:
    getter = vars(type(client))["process_index"]
    for other in ("no client", client.devices[0]):
        with pytest.raises(TypeError, match="process_index is no property of"):
            getter.__get__(other, type(other))


def test_a_function_that_takes_more_than_a_handle_has_no_getter() -> None:
    with pytest.raises(KeyError):
        Getter("PJRT_Client_Compile")

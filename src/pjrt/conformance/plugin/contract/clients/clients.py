"""Checks of clients: made and destroyed, their getters, their devices by number, and default device assignments."""

from __future__ import annotations

import threading

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

# Making and destroying clients.

_CREATE = "PJRT_Client_Create"
_DESTROY = "PJRT_Client_Destroy"
_ORDERS = {"first_first": (0, 1, 2), "last_first": (2, 1, 0), "middle_first": (1, 0, 2)}
_VALUES = {"string": "text", "int64": 7, "int64_list": [1, 2], "float": 0.5, "bool": True}


def _options(subject: Subject, **more: object) -> list[raw.Struct]:
    return [raw.named_value(name, value) for name, value in {**subject.options, **more}.items()]


def _is_alive(subject: Subject, client: int) -> None:
    devices = subject.call("PJRT_Client_Devices", client=client).devices
    subject.expect(devices, "a client with devices", "none")


@check("client.destroy.order", calls=(_CREATE, _DESTROY), over=_ORDERS)
def _destroy_order(subject: Subject, order: tuple[int, ...]) -> None:
    """Clients are independent: in whatever order they are destroyed, the others work on."""
    clients = [subject.new_client() for _ in order]
    subject.expect(len(set(clients)) == len(clients), "different clients", "the same one")
    left = dict(enumerate(clients))
    for number in order:
        subject.call(_DESTROY, client=left.pop(number))
        for client in left.values():
            _is_alive(subject, client)


@check("client.destroy.null", calls=(_DESTROY,))
def _destroy_null(subject: Subject) -> None:
    """A client to destroy can be a null pointer."""
    subject.call(_DESTROY, client=0)


@check("client.create.again", calls=(_CREATE, _DESTROY))
def _create_again(subject: Subject) -> None:
    """A client can be made after another was destroyed."""
    for _ in range(3):
        client = subject.new_client()
        _is_alive(subject, client)
        subject.call(_DESTROY, client=client)


@check("client.create.in_threads", calls=(_CREATE, _DESTROY))
def _create_in_threads(subject: Subject) -> None:
    """Clients can be made and destroyed in several threads at once."""
    subject.client  # noqa: B018  # one client can be made at all
    errors: list[str] = []

    def live() -> None:
        result = subject.attempt(_CREATE, create_options=_options(subject))
        if result.error is not None:
            errors.append(str(result.error))
        else:
            subject.attempt(_DESTROY, client=result.client)

    threads = [threading.Thread(target=live) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    subject.expect(not errors, "4 clients", "; ".join(errors))


@check("client.create.without_options", calls=(_CREATE,))
def _without_options(subject: Subject) -> None:
    """Options are optional: with a null pointer and 0 of them a client is made, or the error names what is missing."""
    subject.client  # noqa: B018  # one client can be made at all
    result = subject.attempt(_CREATE, create_options=0, num_options=0)
    if result.error is not None:
        subject.expect(subject.options, "a client without options", str(result.error))
        subject.expect(result.error.message, "an error with a message", "none")
    else:
        _is_alive(subject, result.client)


@check("client.create.unknown_option", calls=(_CREATE,), over=_VALUES)
def _unknown_option(subject: Subject, value: object) -> None:
    """An option that the plugin does not know is an error with a message, or is ignored."""
    subject.client  # noqa: B018  # one client can be made at all
    result = subject.attempt(_CREATE, create_options=_options(subject, no_such_option_of_any_plugin=value))
    if result.error is None:
        _is_alive(subject, result.client)
    else:
        subject.expect(result.error.message, "an error with a message", "none")


@check("client.create.options_are_copied", calls=(_CREATE,))
def _options_are_copied(subject: Subject) -> None:
    """The memory of options is the plugin's only during the call."""
    result = subject.attempt(_CREATE, create_options=_options(subject))
    if result.error is not None:
        subject.client  # noqa: B018  # the reason why none can be made
    client = result.client
    del result
    _is_alive(subject, client)
    subject.call("PJRT_Client_PlatformName", client=client)


@check(
    "client.create.without_key_value_store",
    calls=(_CREATE,),
    over=("kv_get_callback", "kv_put_callback", "kv_try_get_callback"),
)
def _without_store(subject: Subject, name: str) -> None:
    """The callbacks of the key-value store are optional, and may be null pointers one by one."""
    subject.client  # noqa: B018  # one client can be made at all
    names = ("kv_get_callback", "kv_put_callback", "kv_try_get_callback")
    stores = {each: lambda _: 0 for each in names if each != name}
    result = subject.attempt(_CREATE, create_options=_options(subject), **stores)
    if result.error is None:
        _is_alive(subject, result.client)
    else:
        subject.expect(result.error.message, "an error with a message", "none")


# The getters of a client.

_GETTERS = {
    "PlatformName": ("platform_name", "platform_name_size"),
    "PlatformVersion": ("platform_version", "platform_version_size"),
    "ProcessIndex": ("process_index",),
    "Devices": ("devices", "num_devices"),
    "AddressableDevices": ("addressable_devices", "num_addressable_devices"),
    "AddressableMemories": ("addressable_memories", "num_addressable_memories"),
    "TopologyDescription": ("topology",),
}
_NAMES = {name: f"PJRT_Client_{name}" for name in _GETTERS}


@check("client.getters.stable", calls=_NAMES.values(), over=_NAMES)
def _stable(subject: Subject, function: str) -> None:
    """What a getter returns lives as long as the client: the same pointers and numbers come each time."""
    subject.require(function)
    first = subject.call(function, client=subject.client).struct_bytes
    subject.devices  # noqa: B018  # other calls come between
    second = subject.call(function, client=subject.client).struct_bytes
    subject.expect(first == second, "the same answer as before", "another one")


@check("client.getters.of_each_client", calls=("PJRT_Client_Devices", "PJRT_Client_Create"))
def _devices_of_each_client(subject: Subject) -> None:
    """The devices of a client are owned by it: two clients have different ones."""
    other = subject.new_client()
    first = set(subject.call("PJRT_Client_Devices", client=subject.client).devices or ())
    second = set(subject.call("PJRT_Client_Devices", client=other).devices or ())
    subject.expect(not first & second, "devices that belong to one client", "devices that two clients share")


@check("client.platform_name.text", calls=("PJRT_Client_PlatformName",))
def _platform_name(subject: Subject) -> None:
    """The platform's name is a text."""
    name = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    subject.expect(name and _is_text(name), "a name in UTF-8", repr(name))
    subject.expect(b"\0" not in name, "a name without zeros", repr(name))


@check("client.platform_version.text", calls=("PJRT_Client_PlatformVersion",))
def _platform_version(subject: Subject) -> None:
    """The platform's version is human-readable text."""
    version = subject.call("PJRT_Client_PlatformVersion", client=subject.client).platform_version
    subject.expect(version is not None and _is_text(version), "a version in UTF-8", repr(version))
    subject.advise(version, "a version that is not empty", repr(version))


@check(
    "client.process_index.of_addressable_devices",
    calls=("PJRT_Client_ProcessIndex", "PJRT_DeviceDescription_ProcessIndex"),
)
def _process_index(subject: Subject) -> None:
    """The addressable devices of a client belong to its process, and no others do."""
    own = subject.call("PJRT_Client_ProcessIndex", client=subject.client).process_index
    for device in subject.call("PJRT_Client_Devices", client=subject.client).devices:
        description = subject.description(device)
        index = subject.call("PJRT_DeviceDescription_ProcessIndex", device_description=description).process_index
        addressable = subject.call("PJRT_Device_IsAddressable", device=device).is_addressable
        expected = f"the process index {own} of an addressable device, and of no other"
        subject.expect((index == own) == addressable, expected, f"{index}, addressable: {addressable}")


@check(
    "client.addressable_devices.agree_with_devices",
    calls=("PJRT_Client_Devices", "PJRT_Client_AddressableDevices", "PJRT_Device_IsAddressable"),
)
def _addressable_devices(subject: Subject) -> None:
    """The addressable devices are those of the client's devices that say so, each once."""
    every = subject.call("PJRT_Client_Devices", client=subject.client).devices
    flags = {device: subject.call("PJRT_Device_IsAddressable", device=device).is_addressable for device in every}
    expected = sorted(device for device, flag in flags.items() if flag)
    subject.expect(len(set(every)) == len(every), "each device once", "a device that comes twice")
    subject.expect(sorted(subject.devices) == expected, f"{len(expected)} devices", f"{len(subject.devices)}")


@check("client.devices.null_free", calls=("PJRT_Client_Devices", "PJRT_Device_GetDescription"))
def _null_free(subject: Subject) -> None:
    """No device and no description of a device is a null pointer."""
    for device in subject.call("PJRT_Client_Devices", client=subject.client).devices:
        subject.expect(device, "a device", "a null pointer")
        subject.expect(subject.description(device), "a description of a device", "a null pointer")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


# The functions that find a device of a client by a number.

_LOOKUP = "PJRT_Client_LookupDevice"
_LOOKUP_ADDRESSABLE = "PJRT_Client_LookupAddressableDevice"
_ABSENT = {"-1": -1, "-2**31": -(2**31), "2**31-1": 2**31 - 1, "12345": 12345}


def device_ids(subject: Subject) -> dict[int, int]:
    """Return the ids of all devices of the client, and the devices."""
    devices = subject.call("PJRT_Client_Devices", client=subject.client).devices or []
    return {
        subject.call("PJRT_DeviceDescription_Id", device_description=subject.description(device)).id: device
        for device in devices
    }


def local_hardware_ids(subject: Subject) -> dict[int, int]:
    """Return the local hardware ids of the addressable devices that have one, and the devices."""
    ids = {
        subject.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id: device
        for device in subject.devices
    }
    return {number: device for number, device in ids.items() if number != -1}


@check("client.lookup_device.each_id", calls=(_LOOKUP, "PJRT_Client_Devices", "PJRT_DeviceDescription_Id"))
def _each_id(subject: Subject) -> None:
    """The id of each device of the client finds that device."""
    for number, device in device_ids(subject).items():
        match = subject.call(_LOOKUP, client=subject.client, id=number).device
        subject.expect(match == device, f"the device with the id {number}", "another device")


@check("client.lookup_device.absent_id", calls=(_LOOKUP,), over=_ABSENT)
def _absent_id(subject: Subject, number: int) -> None:
    """An id that no device has is an error with the code INVALID_ARGUMENT."""
    if number in device_ids(subject):
        return
    subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=number)


@check("client.lookup_device.next_id", calls=(_LOOKUP,))
def _next_id(subject: Subject) -> None:
    """The number behind the greatest id of a device is an error with the code INVALID_ARGUMENT."""
    subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=max(device_ids(subject)) + 1)


@check("client.lookup_device.same_pointer", calls=(_LOOKUP,))
def _same_pointer(subject: Subject) -> None:
    """A device is owned by its client: the same id finds the same device each time."""
    number = next(iter(device_ids(subject)))
    matches = {subject.call(_LOOKUP, client=subject.client, id=number).device for _ in range(3)}
    subject.expect(len(matches) == 1, "the same device each time", f"{len(matches)} devices")


@check("client.lookup_addressable_device.each_id", calls=(_LOOKUP_ADDRESSABLE, "PJRT_Device_LocalHardwareId"))
def _each_local_id(subject: Subject) -> None:
    """The local hardware id of each addressable device finds that device."""
    for number, device in local_hardware_ids(subject).items():
        result = subject.call(_LOOKUP_ADDRESSABLE, client=subject.client, local_hardware_id=number)
        match = result.addressable_device
        subject.expect(match == device, f"the device with the local hardware id {number}", "another device")


@check("client.lookup_addressable_device.absent_id", calls=(_LOOKUP_ADDRESSABLE,), over=_ABSENT)
def _absent_local_id(subject: Subject, number: int) -> None:
    """A local hardware id that no addressable device has is an error with the code INVALID_ARGUMENT."""
    if number in local_hardware_ids(subject):
        return
    subject.fails(_LOOKUP_ADDRESSABLE, "INVALID_ARGUMENT", client=subject.client, local_hardware_id=number)


# ``PJRT_Client_DefaultDeviceAssignment``.

_ASSIGNMENT = "PJRT_Client_DefaultDeviceAssignment"
_MARK = -77
_MOST = 2**31 - 1


def _attempt(subject: Subject, replicas: int, partitions: int, size: int) -> raw.Result:
    return subject.attempt(
        _ASSIGNMENT, client=subject.client, num_replicas=replicas, num_partitions=partitions,
        default_assignment_size=size, default_assignment=[_MARK] * (size + 1),
    )  # fmt: skip


@check("client.default_device_assignment.one_device", calls=(_ASSIGNMENT,))
def _one_device(subject: Subject) -> None:
    """The default assignment of one replica and one partition is a device of the client."""
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, 1, 1, 1)
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    number = result.default_assignment[0]
    subject.expect(number in device_ids(subject), "the id of a device of the client", number)


@check("client.default_device_assignment.all_devices", calls=(_ASSIGNMENT,))
def _all_devices(subject: Subject) -> None:
    """The default assignment of as many replicas as the client has devices has each device once."""
    subject.require(_ASSIGNMENT)
    ids = sorted(device_ids(subject))
    result = _attempt(subject, len(ids), 1, len(ids))
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    numbers = sorted(result.default_assignment[: len(ids)])
    subject.expect(numbers == ids, f"the device ids {ids}", numbers)


@check("client.default_device_assignment.partitions", calls=(_ASSIGNMENT,))
def _partitions(subject: Subject) -> None:
    """The default assignment of as many partitions as the client has devices has each device once."""
    subject.require(_ASSIGNMENT)
    ids = sorted(device_ids(subject))
    result = _attempt(subject, 1, len(ids), len(ids))
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    numbers = sorted(result.default_assignment[: len(ids)])
    subject.expect(numbers == ids, f"the device ids {ids}", numbers)


@check("client.default_device_assignment.larger_buffer", calls=(_ASSIGNMENT,))
def _larger_buffer(subject: Subject) -> None:
    """The plugin writes as many numbers as there are replicas times partitions, and leaves the rest of the buffer."""
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, 1, 1, 8)
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    rest = result.default_assignment[1:]
    subject.expect(set(rest) == {_MARK}, f"{_MARK} in the rest of the buffer", rest)


@check(
    "client.default_device_assignment.too_small",
    calls=(_ASSIGNMENT,),
    over={"1x1 in 0": (1, 1, 0), "2x1 in 1": (2, 1, 1), "1x2 in 1": (1, 2, 1), "3x5 in 14": (3, 5, 14)},
)
def _too_small(subject: Subject, numbers: tuple[int, int, int]) -> None:
    """A buffer for fewer numbers than replicas times partitions is an error with the code FAILED_PRECONDITION, and is
    not written.
    """
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, *numbers)
    subject.expect(result.error, f"{_ASSIGNMENT} to fail", "that it succeeded")
    assert result.error is not None
    subject.expect_code(result.error, "FAILED_PRECONDITION", _ASSIGNMENT)


@check("client.default_device_assignment.overflow", calls=(_ASSIGNMENT,))
def _overflow(subject: Subject) -> None:
    """Replicas times partitions that do not fit into 32 bits are an error."""
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, _MOST, _MOST, 7)
    subject.expect(result.error, f"{_ASSIGNMENT} to fail", "that it succeeded")


@check(
    "client.default_device_assignment.not_positive",
    calls=(_ASSIGNMENT,),
    over={"0x1": (0, 1), "1x0": (1, 0), "-1x1": (-1, 1), "-2x-2": (-2, -2)},
)
def _not_positive(subject: Subject, numbers: tuple[int, int]) -> None:
    """Numbers of replicas or partitions below 1 write nothing behind the buffer; an error is lawful."""
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, *numbers, 4)
    if result.error is not None:
        subject.expect_code(result.error, ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), _ASSIGNMENT)
    else:
        subject.expect(result.default_assignment[4] == _MARK, f"{_MARK} behind the buffer", result.default_assignment)


# ``PJRT_Client_UpdateGlobalProcessInfo``.

_UPDATE = "PJRT_Client_UpdateGlobalProcessInfo"
_STATES = ("kUnspecified", "kUninitialized", "kDisconnected", "kConnected", "kError")


@check(
    "client.update_global_process_info.state",
    calls=(_UPDATE,),
    over={name: number for number, name in enumerate(_STATES)},
)
def _state(subject: Subject, state: int) -> None:
    """A client takes note of the states of the processes of its job."""
    subject.require(_UPDATE)
    message = "lost" if state == 4 else None
    process = raw.Struct(
        "PJRT_ProcessInfo", task_id=0, incarnation_id=1, state=state, error_code=14 if message else 0,
        error_message=message,
    )  # fmt: skip
    subject.call(_UPDATE, client=subject.client, process_infos=[process])


@check("client.update_global_process_info.none", calls=(_UPDATE,))
def _none(subject: Subject) -> None:
    """The list of processes may be empty."""
    subject.require(_UPDATE)
    subject.call(_UPDATE, client=subject.client, process_infos=0, num_process_infos=0)

"""Checks of topologies: of a client, made by name, and read from bytes."""

from __future__ import annotations

import ctypes

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.examples.handles import (
    client_topology,
    own_topology,
    read_topology,
    topology_bytes,
)
from pjrt.conformance.plugin.examples.handles import topology as some_topology
from pjrt.conformance.plugin.subject import Subject, expect_named_values

_OF_CLIENT = "PJRT_Client_TopologyDescription"
_TOPOLOGY = "PJRT_TopologyDescription_"
_CREATE = f"{_TOPOLOGY}Create"
_DESTROY = f"{_TOPOLOGY}Destroy"
_DESCRIPTIONS = f"{_TOPOLOGY}GetDeviceDescriptions"
_SERIALIZE = f"{_TOPOLOGY}Serialize"
_DESERIALIZE = f"{_TOPOLOGY}Deserialize"
_FINGERPRINT = f"{_TOPOLOGY}Fingerprint"
_KIND_IDS = f"{_TOPOLOGY}GetMemorySpaceKindIds"
_SHAPE = f"{_TOPOLOGY}MakeCanonicalShapeForMemorySpace"
_GETTERS = ("PlatformName", "PlatformVersion", "GetDeviceDescriptions", "Attributes", "Fingerprint")


def _ids(subject: Subject, topology: int) -> list[int]:
    descriptions = subject.call(_DESCRIPTIONS, topology=topology).descriptions or []
    return [subject.call("PJRT_DeviceDescription_Id", device_description=each).id for each in descriptions]


@check("topology.getters.stable", calls=[f"{_TOPOLOGY}{name}" for name in _GETTERS], over=_GETTERS)
def _stable(subject: Subject, name: str) -> None:
    """What a getter of a topology returns lives as long as the topology: the same comes each time, in the same
    order.
    """
    topology = some_topology(subject)
    function = f"{_TOPOLOGY}{name}"
    subject.require(function)
    answers = {subject.call(function, topology=topology).struct_bytes for _ in range(2)}
    subject.expect(len(answers) == 1, "the same answer as before", "another one")


@check("topology.of_client.platform", calls=(_OF_CLIENT, f"{_TOPOLOGY}PlatformName", "PJRT_Client_PlatformName"))
def _platform(subject: Subject) -> None:
    """The topology of a client has the client's platform."""
    name = subject.call(f"{_TOPOLOGY}PlatformName", topology=client_topology(subject)).platform_name
    own = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    subject.expect(name == own, f"the platform {own!r}", repr(name))


@check("topology.of_client.platform_version", calls=(_OF_CLIENT, f"{_TOPOLOGY}PlatformVersion"))
def _platform_version(subject: Subject) -> None:
    """The version of a topology's platform is text."""
    subject.require(f"{_TOPOLOGY}PlatformVersion")
    version = subject.call(f"{_TOPOLOGY}PlatformVersion", topology=some_topology(subject)).platform_version
    subject.expect(version is not None, "a text", "a null pointer")
    subject.expect(version.decode("utf-8", "replace").encode() == version, "a text in UTF-8", repr(version))


@check(
    "topology.of_client.devices",
    calls=(_OF_CLIENT, _DESCRIPTIONS, "PJRT_DeviceDescription_Id", "PJRT_DeviceDescription_Kind"),
)
def _devices(subject: Subject) -> None:
    """The topology of a client describes the client's devices: the same ids, and the same kinds."""
    topology = client_topology(subject)
    subject.require(_DESCRIPTIONS)
    described = {
        subject.call("PJRT_DeviceDescription_Id", device_description=each).id: subject.call(
            "PJRT_DeviceDescription_Kind", device_description=each
        ).device_kind
        for each in subject.call(_DESCRIPTIONS, topology=topology).descriptions or ()
    }
    devices = {}
    for device in subject.call("PJRT_Client_Devices", client=subject.client).devices:
        description = subject.description(device)
        number = subject.call("PJRT_DeviceDescription_Id", device_description=description).id
        devices[number] = subject.call("PJRT_DeviceDescription_Kind", device_description=description).device_kind
    subject.expect(described == devices, f"the devices {devices}", described)


@check("topology.of_client.descriptions", calls=(_OF_CLIENT, _DESCRIPTIONS))
def _descriptions(subject: Subject) -> None:
    """The descriptions of a topology answer all questions of device descriptions."""
    topology = some_topology(subject)
    subject.require(_DESCRIPTIONS)
    for each in subject.call(_DESCRIPTIONS, topology=topology).descriptions or ():
        for name in ("Id", "ProcessIndex", "Kind", "DebugString", "ToString"):
            subject.call(f"PJRT_DeviceDescription_{name}", device_description=each)
        expect_named_values(
            subject, subject.call("PJRT_DeviceDescription_Attributes", device_description=each), "attributes"
        )


@check("topology.of_client.same", calls=(_OF_CLIENT,))
def _same(subject: Subject) -> None:
    """The topology of a client is owned by it: the same comes each time, and the caller does not destroy it."""
    subject.expect(client_topology(subject) == client_topology(subject), "the same topology", "another one")


@check("topology.of_client.goes_with_it", calls=(_OF_CLIENT, "PJRT_Client_Destroy"))
def _goes_with_client(subject: Subject) -> None:
    """The topology of a client is freed with it: destroying the client is enough."""
    subject.require(_OF_CLIENT)
    client = subject.new_client()
    topology = subject.call(_OF_CLIENT, client=client).topology
    subject.call(f"{_TOPOLOGY}PlatformName", topology=topology)
    subject.call("PJRT_Client_Destroy", client=client)


@check("topology.attributes.types", calls=(f"{_TOPOLOGY}Attributes",))
def _attributes(subject: Subject) -> None:
    """The attributes of a topology have names of their own, known types, and values of these types."""
    topology = some_topology(subject)
    subject.require(f"{_TOPOLOGY}Attributes")
    expect_named_values(subject, subject.call(f"{_TOPOLOGY}Attributes", topology=topology), "attributes")


@check("topology.destroy.null", calls=(_DESTROY,))
def _destroy_null(subject: Subject) -> None:
    """A topology to destroy can be a null pointer."""
    subject.call(_DESTROY, topology=0)


@check("topology.create.by_name", calls=(_CREATE, _DESTROY, _DESCRIPTIONS))
def _by_name(subject: Subject) -> None:
    """A topology that the caller makes describes devices with different ids, and is the caller's to destroy."""
    topology = own_topology(subject)
    ids = _ids(subject, topology)
    subject.expect(ids, "descriptions of devices", "none")
    subject.expect(len(set(ids)) == len(ids), "different ids", ids)
    subject.call(_DESTROY, topology=topology)


@check("topology.create.several", calls=(_CREATE, _DESTROY))
def _several(subject: Subject) -> None:
    """Topologies are independent: those that are left answer when others are destroyed."""
    topologies = [own_topology(subject) for _ in range(3)]
    subject.expect(len(set(topologies)) == 3, "three topologies", "the same one")
    ids = _ids(subject, topologies[2])
    subject.call(_DESTROY, topology=topologies[0])
    subject.call(_DESTROY, topology=topologies[1])
    subject.expect(_ids(subject, topologies[2]) == ids, f"the ids {ids}", "others")
    subject.call(_DESTROY, topology=topologies[2])


@check("topology.create.without_client", calls=(_CREATE, "PJRT_Client_Destroy"))
def _without_client(subject: Subject) -> None:
    """A topology that the caller makes outlives any client."""
    client = subject.new_client()
    topology = own_topology(subject)
    ids = _ids(subject, topology)
    subject.call("PJRT_Client_Destroy", client=client)
    subject.expect(_ids(subject, topology) == ids, f"the ids {ids}", "others")
    subject.call(_DESTROY, topology=topology)


@check("topology.create.unknown_name", calls=(_CREATE,))
def _unknown_name(subject: Subject) -> None:
    """A name that is no topology is an error with a message, or is ignored by plugins with one topology."""
    subject.require(_CREATE)
    result = subject.attempt(_CREATE, topology_name="no such topology: ?!")
    if result.error is not None:
        subject.expect(result.error.message, "an error with a message", "none")
    else:
        subject.call(_DESTROY, topology=result.topology)


@check("topology.create.unknown_option", calls=(_CREATE,))
def _unknown_option(subject: Subject) -> None:
    """An option that the plugin does not know is an error with a message, or is ignored."""
    subject.require(_CREATE)
    option = raw.named_value("no_such_option_of_any_plugin", 7)
    result = subject.attempt(_CREATE, topology_name="", create_options=[option])
    if result.error is not None:
        subject.expect(result.error.message, "an error with a message", "none")
    else:
        subject.call(_DESTROY, topology=result.topology)


@check("topology.serialize.bytes", calls=(_SERIALIZE,))
def _same_bytes(subject: Subject) -> None:
    """The bytes of a topology can be keys of a cache: they are not empty, and the same each time."""
    topology = some_topology(subject)
    first, second = topology_bytes(subject, topology), topology_bytes(subject, topology)
    subject.expect(first, "bytes", "none")
    subject.expect(first == second, "the same bytes each time", "others")


@check("topology.serialize.independent", calls=(_SERIALIZE,))
def _independent_bytes(subject: Subject) -> None:
    """Each serialized topology lives until its own deleter is called."""
    topology = some_topology(subject)
    subject.require(_SERIALIZE)
    first, second = (subject.call(_SERIALIZE, topology=topology) for _ in range(2))
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    delete(first.serialized_topology_deleter)(first.serialized_topology)
    begin = int.from_bytes(second.struct_bytes[24:32], "little")
    data = ctypes.string_at(begin, second.serialized_bytes_size)
    subject.expect(data == second.serialized_bytes, "the bytes of the second one", "others")
    delete(second.serialized_topology_deleter)(second.serialized_topology)


@check("topology.deserialize.round_trip", calls=(_SERIALIZE, _DESERIALIZE, _DESTROY))
def _round_trip(subject: Subject) -> None:
    """A topology that was read from the bytes of another one describes the same devices."""
    topology = some_topology(subject)
    again = read_topology(subject, topology_bytes(subject, topology))
    ids, expected = sorted(_ids(subject, again)), sorted(_ids(subject, topology))
    subject.expect(ids == expected, f"the device ids {expected}", ids)
    name = subject.call(f"{_TOPOLOGY}PlatformName", topology=again).platform_name
    own = subject.call(f"{_TOPOLOGY}PlatformName", topology=topology).platform_name
    subject.expect(name == own, f"the platform {own!r}", repr(name))
    subject.call(_DESTROY, topology=again)


@check(
    "topology.deserialize.damaged",
    calls=(_DESERIALIZE,),
    over={"noise": b"\xff\xfe no topology \x00\x01", "cut off": b"\x0a\x50abc"},
)
def _damaged(subject: Subject, data: bytes) -> None:
    """Bytes that are no topology are an error."""
    subject.require(_DESERIALIZE)
    result = subject.attempt(_DESERIALIZE, serialized_topology=data)
    subject.expect(result.error, f"{_DESERIALIZE} to fail", "that it succeeded")


@check("topology.fingerprint.same", calls=(_FINGERPRINT, _SERIALIZE, _DESERIALIZE))
def _fingerprint(subject: Subject) -> None:
    """Equal topologies have equal fingerprints: that of a client's, and that of the one read from its bytes."""
    topology = some_topology(subject)
    subject.require(_FINGERPRINT)
    first = subject.call(_FINGERPRINT, topology=topology).fingerprint
    again = read_topology(subject, topology_bytes(subject, topology))
    second = subject.call(_FINGERPRINT, topology=again).fingerprint
    subject.expect(first == second, f"the fingerprint {first}", second)


@check("topology.memory_space_kind_ids.agree", calls=(_KIND_IDS, "PJRT_Memory_Kind_Id"))
def _kind_ids(subject: Subject) -> None:
    """The ids of kinds of memory that the topology of a client states are those of the client's memories."""
    topology = client_topology(subject)
    subject.require(_KIND_IDS, "PJRT_Memory_Kind_Id", "PJRT_Client_AddressableMemories")
    stated = sorted(subject.call(_KIND_IDS, topology=topology).memory_space_kind_ids or ())
    memories = subject.call("PJRT_Client_AddressableMemories", client=subject.client).addressable_memories or ()
    own = sorted({subject.call("PJRT_Memory_Kind_Id", memory=each).kind_id for each in memories})
    subject.expect(stated == own, f"the kind ids {own}", stated)


@check("topology.canonical_shape.each_kind", calls=(_SHAPE, _KIND_IDS))
def _canonical_shape(subject: Subject) -> None:
    """A topology has a canonical shape of an array for each kind of memory that it states."""
    topology = some_topology(subject)
    subject.require(_SHAPE, _KIND_IDS)
    for kind in subject.call(_KIND_IDS, topology=topology).memory_space_kind_ids or ():
        result = subject.call(_SHAPE, topology=topology, memory_space_kind_id=kind, dims=[2, 3], element_type="F32")
        subject.expect(result.serialized_shape, "a serialized shape", "no bytes")
        begin = int.from_bytes(_pointer(result, "serialized_shape"), "little")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.serialized_shape_deleter)(begin)


def _pointer(result: raw.Result, field: str) -> bytes:
    from pjrt.abi.schema import FUNCTIONS, STRUCTS

    offset = STRUCTS[FUNCTIONS[result.function].args].fields[field].offset
    return result.struct_bytes[offset : offset + 8]

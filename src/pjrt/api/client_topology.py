"""The topology of devices that only their client can describe and compile for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pjrt.api.attributes import Attributes
from pjrt.api.capability import Capabilities
from pjrt.api.checks import expect
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import DeviceDescription
from pjrt.api.element_type import ElementType
from pjrt.api.executable import Executable
from pjrt.api.layout import Layout
from pjrt.api.program import AnyProgram
from pjrt.api.shape_spec import Shapes
from pjrt.api.topology import TopologyDescription


class ClientTopology(TopologyDescription):
    """The devices of a client, and its compiler, where nothing is known of them without the client.

    Args:
        client: the client, whose executables have the unloaded one as ``executable``.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def platform_name(self) -> str:
        return self._client.platform_name

    @property
    def platform_version(self) -> str:
        return self._client.platform_version

    @property
    def device_descriptions(self) -> Sequence[DeviceDescription]:
        return [device.description for device in self._client.devices]

    @property
    def attributes(self) -> Attributes:
        return self._client.attributes

    @property
    def capabilities(self) -> Capabilities:
        return self._client.capabilities

    def compile(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        client: Client | None = None,
        shapes: Shapes | None = None,
    ) -> Executable:
        if client is not None:
            expect(client, Client, "a client whose devices may be used while compiling, or None")
        return self._client.compile(program, options, shapes=shapes).executable

    def serialize(self) -> bytes:
        """Return a description of the devices; it cannot be deserialized, because only the client compiles for them."""
        description = {
            "platform": self.platform_name,
            "version": self.platform_version,
            "devices": [
                {
                    "id": device.id,
                    "process": device.process_index,
                    "kind": device.kind,
                    "attributes": dict(device.attributes),
                    "memories": [space.kind for space in device.memory_space_descriptions],
                }
                for device in self.device_descriptions
            ],
        }
        return json.dumps(description, sort_keys=True).encode()

    def fingerprint(self) -> int:
        return int.from_bytes(hashlib.sha256(self.serialize()).digest()[:8], "little")

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        return self._client.default_layout(element_type, shape)

    @property
    def memory_space_kind_ids(self) -> Sequence[int]:
        return sorted({space.kind_id for space in self._client.memory_spaces})

"""The topology of a host client: the descriptions of its devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.capability import Capabilities, Effort, Support, try_compiling
from pjrt.api.checks import expect, topology_options
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Attributes
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, unimplemented
from pjrt.api.program import AnyProgram
from pjrt.api.shape_spec import Layout, Shapes, TiledLayout, expect_shape
from pjrt.api.topology import TopologyDescription
from pjrt.host.capability import describe
from pjrt.host.device import HostDeviceDescription
from pjrt.host.executable import HostExecutable

if TYPE_CHECKING:
    from pjrt.host.compiler import HostCompiler


class HostTopology(TopologyDescription):
    """Described devices of a host platform, and its compiler."""

    __slots__ = ("_compiler", "attributes", "device_descriptions")

    attributes: Attributes
    device_descriptions: Sequence[HostDeviceDescription]

    def __init__(
        self, compiler: HostCompiler, descriptions: Sequence[HostDeviceDescription], attributes: Attributes
    ) -> None:
        self._compiler = compiler
        self.device_descriptions = tuple(descriptions)
        self.attributes = dict(attributes)

    @property
    def platform_name(self) -> str:
        return self._compiler.platform_name

    @property
    def platform_version(self) -> str:
        return self._compiler.platform_version

    def compile(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        client: Client | None = None,
        shapes: Shapes | None = None,
    ) -> HostExecutable:
        if client is not None:
            expect(client, Client, "a client whose devices may be used while compiling, or None")
        return self._compiler.compile(program, options, shapes)

    @property
    def capabilities(self) -> Capabilities:
        return describe(self._compiler, self.device_descriptions, self.attributes)

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        return self._compiler.supports(
            program, options, effort, self.capabilities, lambda: try_compiling(self, program, options)
        )

    def serialize(self) -> bytes:
        description = {
            "platform": self.platform_name,
            "version": self.platform_version,
            "attributes": self.attributes,
            "devices": [
                {
                    "id": d.id,
                    "process": d.process_index,
                    "kind": d.kind,
                    "attributes": d.attributes,
                    "memories": [m.kind for m in d.memory_space_descriptions],
                }
                for d in self.device_descriptions
            ],
        }
        return json.dumps(description, sort_keys=True).encode()

    def deserialize(self, serialized: bytes) -> HostTopology:
        try:
            description = json.loads(serialized)
            platform = description["platform"]
            devices = [
                HostDeviceDescription(
                    d["id"], d["process"], d["kind"], _attributes(d["attributes"]), tuple(d["memories"])
                )
                for d in description["devices"]
            ]
            attributes = _attributes(description["attributes"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"expected a serialized topology of '{self.platform_name}': {error}") from error
        if platform != self.platform_name:
            raise InvalidArgumentError(f"the topology is of '{platform}', this is '{self.platform_name}'")
        return HostTopology(self._compiler, devices, attributes)

    def fingerprint(self) -> int:
        return int.from_bytes(hashlib.sha256(self.serialize()).digest()[:8], "little")

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        return TiledLayout.row_major(len(expect_shape(shape)))

    @property
    def memory_space_kind_ids(self) -> Sequence[int]:
        return sorted({m.kind_id for d in self.device_descriptions for m in d.memory_space_descriptions})


def _attributes(values: dict[str, Any]) -> Attributes:
    """Return attributes from JSON, which has lists instead of tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def named_topology(platform: str, make: Callable[..., Client], name: str, options: Mapping[str, Any]) -> HostTopology:
    """Return the topology of a new client, which is closed again: a topology describes devices and needs no client.

    Args:
        platform: the device's name, for messages.
        make: a function that makes a client of the options.
        name: the number of devices, such as ``8``; empty for the default number.
        options: those of the client; ``num_devices`` may stand there instead of in the name.

    Raises:
        InvalidArgumentError: the name is not a number, or the options have ``num_devices`` too.
        UnimplementedError: the clients are not host clients, or have another number of devices than the name.
    """
    with make(**topology_options(platform, name, options)) as client:
        topology = client.topology
        if not isinstance(topology, HostTopology):
            raise unimplemented(platform, "Plugin.topology")
        count = len(client.addressable_devices)
        if name and count != int(name):
            raise unimplemented(platform, f"the topology {name!r}", f"it always has {count} devices")
        return topology

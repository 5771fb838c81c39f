"""Topologies of the ``cpu`` device: a number of virtual devices of this machine's processor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.capability import Capabilities
from pjrt.api.checks import expect
from pjrt.api.client import Client
from pjrt.api.compatibility import Effort, Support, try_compiling
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.program import Program
from pjrt.api.shape_spec import expect_shape
from pjrt.api.topology import TopologyDescription
from pjrt.devices.xla.device import XlaDeviceDescription
from pjrt.devices.xla.executable import PLATFORM, XlaExecutable
from pjrt.devices.xla.memory_space import KINDS

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient


class XlaTopology(TopologyDescription):
    """A number of virtual CPU devices.

    XLA compiles for the CPU it runs on, so compiling for a topology makes, once, a client of that many devices.
    """

    __slots__ = ("_client", "_descriptions", "_lock", "_version")

    def __init__(self, num_devices: int, version: str, client: XlaClient | None = None) -> None:
        self._descriptions = tuple(XlaDeviceDescription(number) for number in range(num_devices))
        self._version = version
        self._client = client
        self._lock = threading.Lock()

    @property
    def platform_name(self) -> str:
        return PLATFORM

    @property
    def platform_version(self) -> str:
        return self._version

    @property
    def device_descriptions(self) -> Sequence[XlaDeviceDescription]:
        return self._descriptions

    @property
    def capabilities(self) -> Capabilities:
        from pjrt.devices.xla.capability import capabilities

        return capabilities(len(self._descriptions))

    def supports(
        self,
        program: Program | str | bytes,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        from pjrt.stablehlo import supports

        return supports(
            program,
            options,
            self.capabilities,
            effort=effort,
            compile=lambda: try_compiling(self, program, options),
        )

    def compile(
        self, program: Program | str | bytes, options: CompileOptions | None = None, *, client: Client | None = None
    ) -> XlaExecutable:
        from pjrt.devices.xla.compilation import compile_program
        from pjrt.stablehlo import with_partitioning

        if client is not None:
            expect(client, Client, "a client whose devices may be used while compiling, or None")
        read = Program.of(program)
        return compile_program(self._compiler(), read, with_partitioning(read, options))

    def _compiler(self) -> XlaClient:
        from pjrt.devices.xla.client import XlaClient

        with self._lock:
            if self._client is None or self._client.is_closed:
                self._client = XlaClient(len(self._descriptions))
            return self._client

    def serialize(self) -> bytes:
        import json  # here and below: start-up would feel it

        return json.dumps({"platform": PLATFORM, "num_devices": len(self._descriptions)}).encode()

    def deserialize(self, serialized: bytes) -> XlaTopology:
        import json

        try:
            read = json.loads(serialized)
            number = read["num_devices"]
            if read["platform"] != PLATFORM or not isinstance(number, int) or number < 1:
                raise ValueError("not a topology of the device 'cpu'")
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(
                f"expected a serialized topology of the device 'cpu', found {len(serialized)} bytes: {error}"
            ) from error
        return XlaTopology(number, self._version)

    def fingerprint(self) -> int:
        import hashlib

        return int.from_bytes(hashlib.sha256(self.serialize() + self._version.encode()).digest()[:8], "little")

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        return TiledLayout.row_major(len(expect_shape(shape)))

    @property
    def memory_space_kind_ids(self) -> Sequence[int]:
        return tuple(range(len(KINDS)))

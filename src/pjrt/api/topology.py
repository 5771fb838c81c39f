"""Topologies: described devices, and compiling for them (``PjRtTopologyDescription``, ``PjRtCompiler``)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.capability import Capabilities
from pjrt.api.compatibility import Effort, Support, decide, only_format, try_compiling
from pjrt.api.errors import PjrtError, unimplemented

if TYPE_CHECKING:
    from pjrt.api.attributes import Attributes
    from pjrt.api.client import Client
    from pjrt.api.compile_options import CompileOptions
    from pjrt.api.device import DeviceDescription
    from pjrt.api.element_type import ElementType
    from pjrt.api.executable import Executable
    from pjrt.api.layout import Layout
    from pjrt.api.multi_slice import MultiSliceConfig
    from pjrt.api.phase_compiler import PhaseCompiler
    from pjrt.api.program import AnyProgram
    from pjrt.api.shape_spec import Shapes
    from pjrt.api.tpu_topology import TpuTopology


class TopologyDescription(abc.ABC):
    """Described devices, which need not be present, and their connections (``PJRT_TopologyDescription``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_name(self) -> str:
        """The platform (``PJRT_TopologyDescription_PlatformName``)."""

    @property
    @abc.abstractmethod
    def platform_version(self) -> str:
        """The platform's version (``PJRT_TopologyDescription_PlatformVersion``)."""

    @property
    @abc.abstractmethod
    def device_descriptions(self) -> Sequence[DeviceDescription]:
        """The devices (``PJRT_TopologyDescription_GetDeviceDescriptions``)."""

    @property
    def library(self) -> str:
        """The path of the plugin's library; empty for a device that is not loaded from one."""
        return ""

    @property
    def attributes(self) -> Attributes:
        """The vendor's facts by name (``PJRT_TopologyDescription_Attributes``)."""
        return {}

    def compile(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        client: Client | None = None,
        shapes: Shapes | None = None,
    ) -> Executable:
        """Compile a program for these devices (``PJRT_Compile``).

        Args:
            program: the program; the format of text and bytes is detected.
            options: compile options; the defaults are for one device.
            client: a client whose devices may be used while compiling, for tuning.
            shapes: as for ``Client.compile``.

        Raises:
            InvalidArgumentError: the argument is not a program, or not one that the compiler can read.
            PjrtError: the compiler refuses the program.
        """
        raise unimplemented(self.platform_name, "TopologyDescription.compile")

    def phase_compiler(self) -> PhaseCompiler:
        """Return a compiler for these devices that stops after each phase (PhaseCompile extension)."""
        raise unimplemented(self.platform_name, "TopologyDescription.phase_compiler")

    @property
    def tpu(self) -> TpuTopology:
        """The chips, cores and processes of a TPU topology (TpuTopology extension)."""
        raise unimplemented(self.platform_name, "TopologyDescription.tpu")

    def multi_slice(self, num_slices: int) -> MultiSliceConfig:
        """Return the configuration of several TPU slices with this topology, for a program that spans them
        (Megascale extension).
        """
        raise unimplemented(self.platform_name, "TopologyDescription.multi_slice")

    @property
    def capabilities(self) -> Capabilities:
        """The declared abilities of the devices."""
        devices = self.device_descriptions
        basics = Capabilities(num_devices=len(devices), memory_kinds=_memory_kinds(devices))
        return basics.completed(Capabilities.from_attributes(self.attributes))

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        """Return whether these devices could run a program: as ``Client.supports``, without the devices."""
        static_check = only_format(program, self.capabilities)
        return decide(effort, static_check, lambda: try_compiling(self, program, options))

    def serialize(self) -> bytes:
        """Return the topology as bytes for ``deserialize`` and ``Plugin.deserialize_topology``
        (``PJRT_TopologyDescription_Serialize``).
        """
        raise unimplemented(self.platform_name, "TopologyDescription.serialize")

    def deserialize(self, serialized: bytes) -> TopologyDescription:
        """Return the topology, of the same platform, in the bytes of ``serialize``
        (``PJRT_TopologyDescription_Deserialize``).

        Raises:
            InvalidArgumentError: the bytes are not a topology, or one of another platform.
        """
        raise unimplemented(self.platform_name, "TopologyDescription.deserialize")

    def fingerprint(self) -> int:
        """Return a 64-bit number that is equal for equal topologies (``PJRT_TopologyDescription_Fingerprint``)."""
        raise unimplemented(self.platform_name, "TopologyDescription.fingerprint")

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        """Return the default layout on these devices of arrays of a type and shape (Layouts extension)."""
        raise unimplemented(self.platform_name, "TopologyDescription.default_layout")

    @property
    def memory_space_kind_ids(self) -> Sequence[int]:
        """The kinds of memory of these devices, as numbers (``PJRT_TopologyDescription_GetMemorySpaceKindIds``)."""
        raise unimplemented(self.platform_name, "TopologyDescription.memory_space_kind_ids")

    def make_canonical_shape(
        self,
        element_type: ElementType,
        shape: Sequence[int],
        layout: Layout | None = None,
        *,
        memory_space_kind_id: int,
    ) -> bytes:
        """Return the full shape, layout included, of such an array in a kind of memory, as a serialized
        ``xla.ShapeProto`` (``PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace``).
        """
        raise unimplemented(self.platform_name, "TopologyDescription.make_canonical_shape")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.platform_name}, {len(self.device_descriptions)} devices>"


def _memory_kinds(devices: Sequence[DeviceDescription]) -> tuple[str, ...] | None:
    """Return the kinds of memory of the devices; ``None`` if the devices do not describe them."""
    try:
        kinds = dict.fromkeys(space.kind for device in devices for space in device.memory_space_descriptions)
    except PjrtError:
        return None
    return tuple(kinds) or None

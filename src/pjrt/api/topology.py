"""Topologies: described devices, and compiling for them (``PjRtTopologyDescription``, ``PjRtCompiler``).

Of TPUs there are also their shapes and slices. A phase compiler leaves the parts of a program between the phases of its
compilation in the caller's hands.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.capability import Capabilities, Effort, Support, decide, only_format, try_compiling
from pjrt.api.checks import expect, expect_all, expect_bytes
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Attributes, DeviceDescription
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.executable import Executable
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec, TiledLayout


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

    def size_of(self, spec: ShapeSpec) -> int:
        """Return the bytes that an array takes in the default memory of one of these devices, with tiles and padding.

        By default they are counted from ``default_layout``, or from the elements where the devices give none.
        """
        try:
            layout = self.default_layout(spec.element_type, spec.shape)
        except PjrtError:
            return spec.size_in_bytes
        return layout.size_of(spec) if isinstance(layout, TiledLayout) else spec.size_in_bytes

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


class TpuTopology(abc.ABC):
    """The chips, cores and processes of a TPU topology; no TPU is needed.

    Chips lie on a grid of two or three dimensions and are joined by links of their own. Each process drives the chips
    of one host. A *device*, which programs run on, is one or more cores of a chip, and has the same number as in
    ``TopologyDescription.device_descriptions``. Coordinates and extents are tuples of three numbers.
    """

    __slots__ = ("__weakref__",)

    # Counts.

    @property
    @abc.abstractmethod
    def chip_count(self) -> int:
        """The number of chips (``PJRT_TpuTopology_ChipCount``)."""

    @property
    @abc.abstractmethod
    def core_count(self) -> int:
        """The number of cores (``PJRT_TpuTopology_CoreCount``)."""

    @property
    @abc.abstractmethod
    def device_count(self) -> int:
        """The number of devices (``PJRT_TpuTopology_LogiDeviceCount``)."""

    @property
    @abc.abstractmethod
    def process_count(self) -> int:
        """The number of processes (``PJRT_TpuTopology_ProcessCount``)."""

    @property
    @abc.abstractmethod
    def chips_per_process(self) -> int:
        """The number of chips of each process (``PJRT_TpuTopology_ChipsPerProcess``)."""

    @property
    @abc.abstractmethod
    def cores_per_chip(self) -> int:
        """The number of cores of each chip (``PJRT_TpuTopology_CoreCountPerChip``)."""

    @property
    @abc.abstractmethod
    def cores_per_process(self) -> int:
        """The number of cores of each process (``PJRT_TpuTopology_CoreCountPerProcess``)."""

    @property
    @abc.abstractmethod
    def devices_per_chip(self) -> int:
        """The number of devices of each chip (``PJRT_TpuTopology_LogiDeviceCountPerChip``)."""

    @property
    @abc.abstractmethod
    def devices_per_process(self) -> int:
        """The number of devices of each process (``PJRT_TpuTopology_LogiDeviceCountPerProcess``)."""

    # Positions.

    @property
    @abc.abstractmethod
    def chip_bounds(self) -> tuple[int, ...]:
        """The number of chips in each dimension (``PJRT_TpuTopology_ChipBounds``)."""

    @property
    @abc.abstractmethod
    def process_bounds(self) -> tuple[int, ...]:
        """The number of processes in each dimension (``PJRT_TpuTopology_ProcessBounds``)."""

    @property
    @abc.abstractmethod
    def chips_per_process_bounds(self) -> tuple[int, ...]:
        """The number of chips of a process in each dimension (``PJRT_TpuTopology_ChipsPerProcessBounds``)."""

    @property
    @abc.abstractmethod
    def process_ids(self) -> tuple[int, ...]:
        """The numbers of the processes (``PJRT_TpuTopology_ProcessIds``)."""

    @abc.abstractmethod
    def process_coords(self, process_id: int) -> tuple[int, ...]:
        """Return the coordinates of a process (``PJRT_TpuTopology_ProcessCoordFromId``)."""

    @abc.abstractmethod
    def devices_of_process(self, process_id: int) -> tuple[int, ...]:
        """Return the devices of a process (``PJRT_TpuTopology_LogiDeviceIdsOnProcess``)."""

    @abc.abstractmethod
    def chip_at(self, coords: Sequence[int]) -> int:
        """Return the number of the chip at coordinates (``PJRT_TpuTopology_ChipIdFromCoord``)."""

    @abc.abstractmethod
    def process_of_chip(self, chip_id: int) -> tuple[int, int]:
        """Return the process of a chip and the chip's place in it (``PJRT_TpuTopology_ProcIdAndIdxOnProcForChip``)."""

    @abc.abstractmethod
    def device_at(self, chip_coords: Sequence[int], index_on_chip: int = 0) -> int:
        """Return the device with a place on the chip at coordinates
        (``PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx``).
        """

    @abc.abstractmethod
    def place_of_device(self, device_id: int) -> tuple[tuple[int, ...], int]:
        """Return the coordinates of a device's chip and the device's place on it
        (``PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice``).
        """

    @abc.abstractmethod
    def process_of_device(self, device_id: int) -> tuple[int, int]:
        """Return the process of a device and the device's place in it
        (``PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice``).
        """

    # Links.

    @property
    @abc.abstractmethod
    def routing_strategy(self) -> str:
        """The vendor's name for the routing of data between chips (``PJRT_TpuTopology_GetRoutingStrategy``)."""

    @property
    @abc.abstractmethod
    def is_enhanced_barrier_enabled(self) -> bool:
        """Whether chips wait for each other by the enhanced barrier (``PJRT_TpuTopology_IsEnhancedBarrierEnabled``)."""

    @property
    @abc.abstractmethod
    def has_limited_ici_connectivity(self) -> bool:
        """Whether some chips cannot reach each other directly (``PJRT_TpuTopology_HasLimitedIciConnectivity``)."""

    @abc.abstractmethod
    def is_reachable_over_limited_ici(self, source_chip_id: int, destination_chip_id: int) -> bool:
        """Whether a chip can reach another one directly where connectivity is limited
        (``PJRT_TpuTopology_IsReachableOverLimitedIci``).
        """

    # Subslices.

    @property
    @abc.abstractmethod
    def is_subslice(self) -> bool:
        """Whether the topology is a part of another (``PJRT_TpuTopology_IsSubsliceTopology``)."""

    @abc.abstractmethod
    def subslice(self, chips_per_host_bounds: Sequence[int], host_bounds: Sequence[int]) -> TopologyDescription:
        """Return the topology of a part (``PJRT_TpuTopology_Subslice``).

        Args:
            chips_per_host_bounds: the number of chips of each host, in each dimension.
            host_bounds: the number of hosts, in each dimension.
        """

    @abc.abstractmethod
    def device_in_subslice(self, subslice: TopologyDescription, origin: Sequence[int], device_id: int) -> int:
        """Return the number that a device of this topology has in a part of it
        (``PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId``).

        Args:
            subslice: the part.
            origin: the coordinates of the part's first chip.
            device_id: the device's number in this topology.
        """

    @abc.abstractmethod
    def with_host_bounds(self, host_bounds: Sequence[int]) -> TopologyDescription:
        """Return the topology of another number of hosts, each with as many chips as here
        (``PJRT_TpuTopology_ReplaceHostBounds``).

        Args:
            host_bounds: the number of hosts, in each dimension.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {'×'.join(map(str, self.chip_bounds))} chips>"


class MultiSliceConfig(abc.ABC):
    """The TPU slices that a program runs on (``PJRT_MultiSlice_Config``), for ``CompileOptions.multi_slice_config``.

    The chips of a slice are joined by links of their own; slices are joined by the data center's network.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def num_slices(self) -> int:
        """The number of slices (``PJRT_MultiSlice_Config_NumSlices``)."""

    @property
    @abc.abstractmethod
    def slice_id(self) -> int:
        """The slice that this process is in (``PJRT_MultiSlice_Config_SliceId``)."""

    @property
    @abc.abstractmethod
    def num_devices_per_slice(self) -> Mapping[int, int]:
        """The number of devices of each slice, by slice (``PJRT_MultiSlice_Config_NumDevicesPerSlice``)."""

    @abc.abstractmethod
    def serialize(self) -> bytes:
        """Return the bytes for ``CompileOptions.multi_slice_config`` (``PJRT_MultiSlice_Config_Serialize``)."""

    @abc.abstractmethod
    def global_device_id(self, slice_id: int, device_id: int) -> int:
        """Return a device's number among those of all slices (``PJRT_Megascale_DeviceId_To_MegascaleId``).

        Args:
            slice_id: the slice.
            device_id: the device's number in its slice.
        """

    @abc.abstractmethod
    def slice_and_device(self, global_device_id: int) -> tuple[int, int]:
        """Return a device's slice and its number there (``PJRT_Megascale_MegascaleId_To_DeviceId``)."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.num_slices} slices>"


@dataclass(frozen=True, slots=True)
class PartialProgram:
    """A part of a program between two phases of its compilation (``xla.PjRtPartialProgramProto``).

    Attributes:
        code: the part itself, in a form that only the compiler knows.
        format: the compiler's name of the form.
        producer_phase: the phase that made the part.
        consumer_phases: the phases that read it; empty if unknown.
        version: the version of the form.
        name: the part's name.
    """

    code: bytes
    format: str = ""
    producer_phase: str = ""
    consumer_phases: tuple[str, ...] = ()
    version: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", expect_bytes(self.code, "PartialProgram.code as bytes"))
        for field in ("format", "producer_phase", "version", "name"):
            expect(getattr(self, field), str, f"PartialProgram.{field} as a str")
        phases = expect_all(self.consumer_phases, str, "PartialProgram.consumer_phases as str")
        object.__setattr__(self, "consumer_phases", tuple(phases))

    def to_proto(self) -> bytes:
        """Return the part as a serialized ``xla.PjRtPartialProgramProto``, for a file."""
        from pjrt.api.protobuf import message_class  # here and below, because it loads google.protobuf

        proto = message_class("PjRtPartialProgramProto")(
            program=self.code,
            program_format=self.format,
            producer_phase=self.producer_phase,
            consumer_phases=self.consumer_phases,
            version=self.version,
            program_name=self.name,
        )
        return bytes(proto.SerializeToString(deterministic=True))

    @staticmethod
    def from_proto(serialized: bytes) -> PartialProgram:
        """Return the part in a serialized ``xla.PjRtPartialProgramProto``.

        Raises:
            InvalidArgumentError: the bytes are not such a message.
        """
        from pjrt.api.protobuf import parse

        proto: Any = parse("PjRtPartialProgramProto", serialized)
        return PartialProgram(
            code=proto.program,
            format=proto.program_format,
            producer_phase=proto.producer_phase,
            consumer_phases=tuple(proto.consumer_phases),
            version=proto.version,
            name=proto.program_name,
        )


class PhaseCompiler(abc.ABC):
    """A compiler that stops after each phase (``PJRT_PhaseCompiler``).

    The parts that a phase makes can be kept, inspected, and passed to a later phase: in this process or another, on
        this
    machine or another with the same plugin.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def phase_names(self) -> tuple[str, ...]:
        """The phases, in the order in which a compilation runs them (``PJRT_PhaseCompile_Get_PhaseNames``).

        A compiler may list more than one way to do the last step.
        """

    @abc.abstractmethod
    def run(
        self,
        programs: Program | str | bytes | Iterable[PartialProgram],
        phases: str | Sequence[str],
        options: CompileOptions | None = None,
    ) -> tuple[PartialProgram, ...]:
        """Run phases one after the other (``PJRT_PhaseCompile_Run_Phase``).

        Args:
            programs: a whole program for the first phase, or the parts that earlier phases made for the first of these.
            phases: the name of a phase, or of several: each reads all parts that the one before it made.
            options: compile options, which must be the same in all phases. Options that are left to the program are
                read from whole programs only: state the replicas and partitions if there are several.

        Returns:
            The parts that the last of these phases made.

        Raises:
            InvalidArgumentError: no phase is named, or a part is not for the first of them.
            PjrtError: the compiler refused; the message is the vendor's reason.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.phase_names)} phases>"


def check_phases(programs: Iterable[PartialProgram], phases: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the phases to run; the first of them reads the programs.

    Raises:
        InvalidArgumentError: there is no phase, or a part is for another phase.
    """
    names = tuple(expect_all([phases] if isinstance(phases, str) else phases, str, "the name of a phase as a str"))
    if not names:
        raise InvalidArgumentError("expected the name of at least one phase, found none; see PhaseCompiler.phase_names")
    for part in programs:
        if part.consumer_phases and names[0] not in part.consumer_phases:
            raise InvalidArgumentError(
                f"the part {part.name!r} of {part.producer_phase or 'the program'} is read by "
                f"{', '.join(part.consumer_phases)}, not by {names[0]}; leave it out"
            )
    return names

"""Chips, processes, coordinates and parts of a TPU topology (the TpuTopology extension)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pjrt.api.topology import TopologyDescription


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

"""Programs that span several TPU slices (the MultiSlice and Megascale extensions)."""

from __future__ import annotations

import abc
from collections.abc import Mapping


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

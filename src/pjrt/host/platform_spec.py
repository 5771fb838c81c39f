"""Platform specs: the checked facts of a host platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pjrt.api.device import Attributes
from pjrt.api.errors import InvalidArgumentError
from pjrt.host.device import HostDeviceDescription
from pjrt.host.membership import Membership

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")
"""The default kinds of memory of a host device, its default one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSpec:
    """The facts of a platform; ``HostClient`` documents them."""

    name: str
    version: str
    num_devices: int
    device_kind: str
    device_attributes: Attributes
    attributes: Attributes
    memory_kinds: Sequence[str]
    memory_limit: int | Mapping[str, int] | None
    membership: Membership
    alignment: int

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InvalidArgumentError(f"a client has one device or more, num_devices is {self.num_devices}")
        if not self.memory_kinds:
            raise InvalidArgumentError("a device has one kind of memory or more, memory_kinds is empty")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise InvalidArgumentError(f"an alignment is a power of two, found {self.alignment}")
        for kind in self.memory_limits:
            if kind not in self.memory_kinds:
                raise InvalidArgumentError(
                    f"memory_limit names the kind {kind!r}, the devices have {', '.join(self.memory_kinds)}"
                )

    @property
    def memory_limits(self) -> Mapping[str, int]:
        """The most bytes in use by kind of memory, for the kinds that have a limit."""
        if self.memory_limit is None:
            return {}
        if isinstance(self.memory_limit, int):
            return {self.memory_kinds[0]: self.memory_limit}
        return self.memory_limit

    def describe(self) -> list[HostDeviceDescription]:
        """Return the descriptions of the devices of all processes, in the order of their ids."""
        return [
            HostDeviceDescription(first + number, process, self.device_kind, self.device_attributes, self.memory_kinds)
            for process, (first, count) in enumerate(
                zip(self.membership.first_device_ids, self.membership.device_counts, strict=True)
            )
            for number in range(count)
        ]

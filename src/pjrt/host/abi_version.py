"""ABI versions of host platforms: an executable runs only on the version that compiled it."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from pjrt.api.abi_version import ExecutableAbiVersion, RuntimeAbiVersion
from pjrt.api.errors import FailedPreconditionError


class PlatformVersion(NamedTuple):
    """A platform and its version."""

    name: str
    version: str

    @property
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "little")

    def to_proto(self) -> bytes:
        """Return both as bytes."""
        return json.dumps({"platform": self.name, "version": self.version}).encode()


class HostRuntimeAbiVersion(RuntimeAbiVersion):
    """The version of a host client."""

    __slots__ = ("_platform",)

    def __init__(self, platform: PlatformVersion) -> None:
        self._platform = platform

    @property
    def platform_id(self) -> int:
        return self._platform.platform_id

    def to_proto(self) -> bytes:
        return self._platform.to_proto()

    def check_compatible_with(self, other: RuntimeAbiVersion | ExecutableAbiVersion) -> None:
        if other.platform_id == self.platform_id and other.to_proto() == self.to_proto():
            return
        raise FailedPreconditionError(
            f"the runtime is {self.to_proto().decode()}, what is to run on it was made for "
            f"{other.to_proto().decode(errors='replace')}; compile it again"
        )


class HostExecutableAbiVersion(ExecutableAbiVersion):
    """The version of the platform that an executable was compiled for."""

    __slots__ = ("_platform",)

    def __init__(self, platform: PlatformVersion) -> None:
        self._platform = platform

    @property
    def platform_id(self) -> int:
        return self._platform.platform_id

    def to_proto(self) -> bytes:
        return self._platform.to_proto()

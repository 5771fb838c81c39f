"""ABI versions of host platforms: an executable runs only on the version that compiled it."""

from __future__ import annotations

import hashlib
import json

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.executable import ExecutableAbiVersion, RuntimeAbiVersion


class _PlatformVersion:
    def __init__(self, platform_name: str, platform_version: str) -> None:
        self._name = platform_name
        self._version = platform_version

    @property
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""
        return int.from_bytes(hashlib.sha256(self._name.encode()).digest()[:8], "little")

    def to_proto(self) -> bytes:
        """Return name and version as bytes."""
        return json.dumps({"platform": self._name, "version": self._version}).encode()


class HostRuntimeAbiVersion(_PlatformVersion, RuntimeAbiVersion):
    """The version of a host client."""

    def check_compatible_with(self, other: RuntimeAbiVersion | ExecutableAbiVersion) -> None:
        if other.platform_id == self.platform_id and other.to_proto() == self.to_proto():
            return
        raise FailedPreconditionError(
            f"the runtime is {self.to_proto().decode()}, what is to run on it was made for "
            f"{other.to_proto().decode(errors='replace')}; compile it again"
        )


class HostExecutableAbiVersion(_PlatformVersion, ExecutableAbiVersion):
    """The version of the platform that an executable was compiled for."""

"""The versions of the IFRT proxy protocol, and of the serialized IFRT objects in it."""

from __future__ import annotations

from typing import Any, NamedTuple

from pjrt.api.errors import FailedPreconditionError
from pjrt.remote.protocol.messages import wire

OLDEST_PROTOCOL = 16
"""The oldest protocol that jaxlib 0.9 to 0.12 speak."""
NEWEST_PROTOCOL = 25
"""The newest protocol that jaxlib 0.10 speaks."""
NEWEST_SERDES = 3
"""The newest format of serialized shardings, shapes and the like; older ones have the same fields, or fewer."""

LARGE_TRANSFERS_BY_FILE = 17
COST_ANALYSIS = 18
PROGRAM_TEXT = 19
MPMD_EXECUTABLES = 20
EXECUTE_RESULT = 21
"""From this version on, the end of an execution is asked for by a request of its own."""
DEVICE_PLATFORM_NAME = 22
LAYOUT_OF_NEW_ARRAY = 23


class Version(NamedTuple):
    """The versions that both ends of a session speak (``IfrtProxyVersion``).

    Attributes:
        protocol: the version of the protocol.
        serdes: the version of the format of serialized IFRT objects.
    """

    protocol: int = NEWEST_PROTOCOL
    serdes: int = NEWEST_SERDES

    @staticmethod
    def from_proto(proto: Any) -> Version:
        """Return the versions in an ``IfrtProxyVersion``."""
        return Version(proto.protocol_version, proto.ifrt_serdes_version_number)

    def to_proto(self) -> Any:
        """Return the versions as an ``IfrtProxyVersion``."""
        return wire.IfrtProxyVersion(protocol_version=self.protocol, ifrt_serdes_version_number=self.serdes)


NEWEST = Version()


def agreed(oldest: Version, newest: Version, ours: Version = NEWEST) -> Version:
    """Return the newest versions that a client and this server speak.

    Args:
        oldest: the oldest versions of the client.
        newest: the newest versions of the client.
        ours: the newest versions of this server.

    Raises:
        FailedPreconditionError: the two ends share no version.
    """
    version = Version(min(newest.protocol, ours.protocol), min(newest.serdes, ours.serdes))
    if version.protocol < max(oldest.protocol, OLDEST_PROTOCOL) or version.serdes < oldest.serdes:
        raise FailedPreconditionError(
            f"expected a client of the IFRT proxy protocol {OLDEST_PROTOCOL} to {ours.protocol} with serialization "
            f"{ours.serdes} or older, found one of the protocol {oldest.protocol} to {newest.protocol} with "
            f"serialization {oldest.serdes} to {newest.serdes}; use a jaxlib of 0.9 to 0.12"
        )
    return version

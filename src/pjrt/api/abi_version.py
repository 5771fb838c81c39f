"""ABI versions: whether an executable can run on a runtime (the AbiVersion extension)."""

from __future__ import annotations

import abc


class RuntimeAbiVersion(abc.ABC):
    """The ABI version of a client's runtime (``PJRT_RuntimeAbiVersion``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""

    @abc.abstractmethod
    def to_proto(self) -> bytes:
        """Return the vendor's serialized proto of the version."""

    @abc.abstractmethod
    def check_compatible_with(self, other: RuntimeAbiVersion | ExecutableAbiVersion) -> None:
        """Raise an error unless a runtime of this version can run what was made for the other.

        Raises:
            PjrtError: the versions are incompatible; the message is the vendor's reason.
        """


class ExecutableAbiVersion(abc.ABC):
    """The ABI version that an executable needs (``PJRT_ExecutableAbiVersion``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""

    @abc.abstractmethod
    def to_proto(self) -> bytes:
        """Return the vendor's serialized proto of the version."""

"""Plugins: they make clients, topologies and profiling sessions (the plugin side of ``PJRT_Api``)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pjrt.api.device import Attributes
from pjrt.api.errors import unimplemented

if TYPE_CHECKING:
    from pjrt.api.capability import Capabilities
    from pjrt.api.client import Client
    from pjrt.api.topology import TopologyDescription


class Plugin(abc.ABC):
    """An implementation of a device: built-in, written in Python, or a vendor's library."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The plugin's name."""

    @property
    @abc.abstractmethod
    def api_version(self) -> tuple[int, int]:
        """The major and minor version of the plugin's PJRT C API (``PJRT_Api_Version``)."""

    @property
    @abc.abstractmethod
    def attributes(self) -> Attributes:
        """The plugin's facts by name, such as ``stablehlo_current_version`` (``PJRT_Plugin_Attributes``)."""

    @property
    def extensions(self) -> Mapping[str, str]:
        """A short description of each extension of the C API that the plugin has, by name.

        An extension of a type that this package does not know is named by its number, as ``extension 25``.
        """
        return {}

    @property
    def capabilities(self) -> Capabilities:
        """The plugin's declared abilities, which need no device."""
        from pjrt.api.capability import Capabilities  # here, for a fast start

        return Capabilities.from_attributes(self.attributes)

    @abc.abstractmethod
    def client(self, /, **options: Any) -> Client:
        """Return a new client (``PJRT_Client_Create``).

        Args:
            options: the plugin's own options; each a string, an integer, a float, a boolean or a list of integers.

        Raises:
            InvalidArgumentError: an option is unknown or has a wrong value.
            PjrtError: the plugin cannot make a client, for example because its device is missing.
        """

    def topology(self, name: str = "", /, **options: Any) -> TopologyDescription:
        """Return a topology by name, such as ``v5e:2x2``, without devices (``PJRT_TopologyDescription_Create``)."""
        raise unimplemented(self.name, "Plugin.topology")

    def deserialize_topology(self, serialized: bytes) -> TopologyDescription:
        """Return the topology in the bytes of ``TopologyDescription.serialize``
        (``PJRT_TopologyDescription_Deserialize``).
        """
        raise unimplemented(self.name, "Plugin.deserialize_topology")

    def profiler(self, options: bytes = b"") -> Profiler:
        """Return a new profiling session with serialized ``tensorflow.ProfileOptions`` (Profiler extension)."""
        raise unimplemented(self.name, "Plugin.profiler")

    def compile_triton(
        self, module: bytes, arch_name: str, *, num_warps: int, num_ctas: int, num_stages: int
    ) -> tuple[bytes, int, str]:
        """Compile a Triton module (Triton extension).

        Returns:
            The assembly, the number of bytes of shared memory, and the path of the binary.
        """
        raise unimplemented(self.name, "Plugin.compile_triton")

    def register_ffi_handler(
        self, name: str, handler: Callable[..., Any] | int, *, platform: str, traits: int = 0
    ) -> None:
        """Register a function that programs of all clients of the plugin call (FFI extension).

        Args:
            name: the custom call's target name.
            handler: as ``Client.register_ffi_handler`` takes it.
            platform: the platform name of the clients.
            traits: the bits of ``XLA_FFI_Handler_Traits``.

        Raises:
            AlreadyExistsError: the name has another handler.
        """
        raise unimplemented(self.name, "Plugin.register_ffi_handler")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, API {'.'.join(map(str, self.api_version))}>"


class Profiler(abc.ABC):
    """One profiling session of a plugin; a context manager that starts and stops it."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start recording (``PLUGIN_Profiler_Start``)."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop recording (``PLUGIN_Profiler_Stop``)."""

    @abc.abstractmethod
    def collect(self) -> bytes:
        """Return the recording as a serialized ``tensorflow.profiler.XSpace`` (``PLUGIN_Profiler_CollectData``)."""

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

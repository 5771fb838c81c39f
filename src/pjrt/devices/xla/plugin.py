"""The plugin of the ``cpu`` device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pjrt import stablehlo
from pjrt.api.api_version import API_VERSION
from pjrt.api.checks import check_num_devices, check_option_names, topology_options
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.plugin import Plugin
from pjrt.devices.xla.process_options import PROCESS_OPTIONS, peers_of

if TYPE_CHECKING:
    from pjrt.api.device import Attributes
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.profiler import XlaProfiler
    from pjrt.devices.xla.topology import XlaTopology


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turn the garbage collector off for imports: what they make stays, and it would search all of it several times."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class XlaPlugin(Plugin):
    """XLA's CPU compiler and runtime.

    Its methods import the modules that they need, because the import of jaxlib takes a while and fails where jaxlib is
    not installed.
    """

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def api_version(self) -> tuple[int, int]:
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        newest, oldest = stablehlo.current_version(), stablehlo.minimum_version()
        return {
            "xla_version": 2,
            "stablehlo_current_version": (newest.major, newest.minor, newest.patch),
            "stablehlo_minimum_version": (oldest.major, oldest.minor, oldest.patch),
        }

    def client(self, /, **options: Any) -> XlaClient:
        """Return a new client.

        Args:
            options: ``num_devices``, the number of virtual devices of this process (1 by default); ``asynchronous``,
                whether executions return before they are finished (true by default); for a process of a job
                ``process_count`` (1 for a client of this process alone), ``process_index``, ``key_value_store`` (the
                store of a framework's job) and ``collectives`` (``gloo`` or ``mpi``).

        In a job, after ``pjrt.distributed.initialize``, all processes call this, and the client has the devices of all.

        Raises:
            InvalidArgumentError: an option is unknown or has a wrong value.
            FailedPreconditionError: jaxlib is missing, or its version is not supported; or several processes are asked
                for and there is no job.
            DeadlineExceededError: not all processes of the job called this in time.
            UnavailableError: a process of the job was lost.
        """
        check_option_names(self.name, options, ("num_devices", "asynchronous", *PROCESS_OPTIONS))
        asynchronous = options.get("asynchronous", True)
        if not isinstance(asynchronous, bool):
            raise InvalidArgumentError(
                f"the option asynchronous of the device 'cpu' is True or False, found {asynchronous!r}"
            )
        num_devices = check_num_devices(self.name, options)
        with _collector_off():
            from pjrt.devices.xla.client import XlaClient

        return XlaClient(num_devices, asynchronous, peers_of(options))

    def topology(self, name: str = "", /, **options: Any) -> XlaTopology:
        """Return a number of virtual devices.

        Args:
            name: the number of devices, such as ``8``; optional.
            options: ``num_devices``, the same as an option of ``client``.
        """
        check_option_names(self.name, options, ("num_devices",))
        options = topology_options(self.name, name, options)
        from pjrt.devices.xla.topology import XlaTopology

        return XlaTopology([check_num_devices(self.name, options)])

    def deserialize_topology(self, serialized: bytes) -> XlaTopology:
        from pjrt.devices.xla.topology import XlaTopology

        return XlaTopology([1]).deserialize(serialized)

    def profiler(self, options: bytes = b"") -> XlaProfiler:
        from pjrt.devices.xla.profiler import XlaProfiler

        return XlaProfiler(options)

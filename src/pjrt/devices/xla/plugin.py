"""The plugin of the ``cpu`` device."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pjrt import stablehlo
from pjrt.abi.generated.version import API_VERSION
from pjrt.api.checks import check_num_devices, check_option_names, topology_options
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.key_value_store import job_of_caller
from pjrt.api.plugin import Plugin, Profiler
from pjrt.stablehlo.encodings.jaxlib import load

if TYPE_CHECKING:
    from pjrt.api.device import Attributes
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.peers import Peers
    from pjrt.devices.xla.topology import XlaTopology
    from pjrt.distributed import Job


PROCESS_OPTIONS = ("process_index", "process_count", "key_value_store", "collectives")
"""The names of the options."""

_COLLECTIVES = ("gloo", "mpi")


def peers_of(options: Mapping[str, Any]) -> Peers | None:
    """Return the processes that make a client together; ``None`` for this process alone.

    Args:
        options: the options of the client.

    Raises:
        InvalidArgumentError: an option has a wrong value, or differs from the job of this process.
        FailedPreconditionError: several processes are asked for, and there is no job.
    """
    count, index = (_number(options, name) for name in ("process_count", "process_index"))
    collectives = options.get("collectives", "gloo")
    if collectives not in _COLLECTIVES:
        raise InvalidArgumentError(
            f"the option collectives of the device 'cpu' is one of {', '.join(_COLLECTIVES)}, found {collectives!r}"
        )
    if count == 1:
        return None
    job = _job(options.get("key_value_store"), count, index)
    if job is None:
        return None
    from pjrt.devices.xla.peers import Peers

    return Peers(job, collectives)


def _number(options: Mapping[str, Any], name: str) -> int | None:
    number = options.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise InvalidArgumentError(f"the option {name} of the device 'cpu' is a number from 0 on, found {number!r}")
    return number


def _job(store: Any, count: int | None, index: int | None) -> Job | None:
    """Return the job that the options mean: a framework's, by its store, or that of this process."""
    framework = job_of_caller()
    if store is not None:
        if count is None or index is None:
            raise InvalidArgumentError(
                "the option key_value_store of the device 'cpu' needs process_index and process_count, too"
            )
        framework = store, index, count
    if framework is not None:
        from pjrt import distributed

        return distributed.join(*framework, name="pjrt/cpu") if framework[2] > 1 else None
    # A process without a job must not pay for the import.
    job: Job | None = sys.modules["pjrt.distributed"].current() if "pjrt.distributed" in sys.modules else None
    if job is None:
        if count is not None or index:
            raise FailedPreconditionError(
                f"process_count={count} and process_index={index} of the device 'cpu' need a job: call "
                "pjrt.distributed.initialize() in each process first, or pass the key_value_store of a framework"
            )
        return None
    if count not in (None, job.process_count) or index not in (None, job.process_index):
        raise InvalidArgumentError(
            f"this process is process {job.process_index} of {job.process_count} of a job; found "
            f"process_index={index} and process_count={count} for the device 'cpu'; leave them out, or pass "
            "process_count=1 for a client of this process alone"
        )
    return job


class XlaProfiler(Profiler):
    """One session of jaxlib's profiler, which records all clients of the process.

    Args:
        options: a serialized ``tensorflow.ProfileOptions``; jaxlib's defaults if it has no version. The levels of the
            tracers and ``enable_hlo_proto`` are followed.
    """

    def __init__(self, options: bytes = b"") -> None:
        from pjrt.api.protobuf import parse  # here: a client needs no protobuf, which takes long to import

        self._options: Any = parse("ProfileOptions", options)
        self._session: Any = None
        self._collected: bytes | None = None

    def start(self) -> None:
        if self._session is not None:
            raise FailedPreconditionError("the profiling session was started already; make another one")
        profiler = load("_profiler", "profile XLA's CPU runtime")
        options = profiler.ProfileOptions()
        if self._options.version:
            for name in ("host_tracer_level", "python_tracer_level", "enable_hlo_proto"):
                setattr(options, name, getattr(self._options, name))
        self._session = profiler.ProfilerSession(options)

    def stop(self) -> None:
        if self._session is None:
            raise FailedPreconditionError("the profiling session was not started; start it first")
        if self._collected is None:
            self._collected = self._session.stop()

    def collect(self) -> bytes:
        if self._collected is None:
            raise FailedPreconditionError("the profiling session was not stopped; stop it before collecting")
        return self._collected


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
        return XlaProfiler(options)

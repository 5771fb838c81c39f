"""The devices that the tests run on."""

from __future__ import annotations

import abc
import atexit
import os
import queue
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tiny import Control
from tiny.versions import number_of_functions
from waiting import wait_until

from anydevice.programs import Absent, Programs, StableHloPrograms, TinyPrograms
from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.loaded_executable import ExecuteOptions, RecvCallback
from pjrt.api.program import Program

if TYPE_CHECKING:
    from pjrt.clusters.workers.workers import Workers
    from pjrt.native.exported import ExportedPlugin
    from pjrt.remote import Server

__all__ = ["BACKENDS", "Absent", "Backend", "TinyBackend", "make_backend"]


class Backend(abc.ABC):
    """One kind of device: how to make its clients, how to write programs, and what it lacks."""

    name: str
    programs: Programs
    uses_donated_memory = True
    has_memory_limit = False
    has_payloads = True
    element_types_left_out: frozenset[ElementType] = frozenset()

    @abc.abstractmethod
    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        """Make a new client. With a memory limit the default memory of each device holds that many bytes."""

    @contextmanager
    def held(self, client: Client) -> Iterator[None]:
        """Let no device of the client begin new work while inside."""
        raise Absent("a way to hold its work")
        yield

    def busy(self, client: Client) -> AbstractContextManager[None]:
        """Let no device of the client begin a new program while inside; other work may go on."""
        return self.held(client)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check after a test that nothing of it is left over."""
        yield


class TinyBackend(Backend):
    """The C plugin, loaded through the C ABI."""

    name = "tiny"
    programs = TinyPrograms()
    has_memory_limit = True

    def __init__(self, library: Path) -> None:
        self._library = library
        self.control = Control(library)

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt import capi

        options = {} if memory_limit is None else {"bytes_limit": memory_limit}
        return capi.load_plugin(self._library).client(num_devices=num_devices, **options)

    @contextmanager
    def held(self, client: Client) -> Iterator[None]:
        with self.control.held():
            yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        live, violations = self.control.live(), self.control.violations
        self.control.strict()
        yield
        self.control.clear()
        self.control.strict(False)  # other tests of this process use the library, too
        left = self.control.left_over(live)
        assert not left, f"objects of the plugin outlived the client: {left}"
        assert self.control.violations == violations, self.control.last_violation


def _copy(library: Path, name: str) -> Path:
    """Return a copy of a library beside it, with faults and counts of its own."""
    copy = library.with_name(name)
    if not copy.exists():
        partial = copy.with_suffix(f".{os.getpid()}")
        shutil.copy(library, partial)
        # One that another session has put there meanwhile stays: who has opened it would take ours for a newer one.
        with suppress(FileExistsError):
            os.link(partial, copy)
        partial.unlink()
    return copy


class OldTinyBackend(TinyBackend):
    """The C plugin as it would be at an older version of the ABI: a shorter table, errors without functions."""

    def __init__(self, library: Path, minor: int) -> None:
        super().__init__(_copy(library, f"libtiny-0.{minor}.so"))
        self.name = f"tiny-0.{minor}"
        self.has_payloads = minor >= 99
        self.control.configure(minor=minor, functions=number_of_functions(minor), legacy_errors=1)


class LayeredTinyBackend(TinyBackend):
    """The C plugin with a layer before it that passes everything on."""

    name = "layered-tiny"

    def __init__(self, library: Path) -> None:
        super().__init__(_copy(library, "libtiny-layered.so"))

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt import layers

        options = {} if memory_limit is None else {"bytes_limit": memory_limit}
        return layers.wrap(self._library, ["pass"]).client(num_devices=num_devices, **options)

    @contextmanager
    def watched(self) -> Iterator[None]:
        from pjrt.layers import stack

        before = stack.callbacks_in_use()
        with super().watched():
            yield
        wait_until(lambda: stack.callbacks_in_use() <= before, "the end of the callbacks")


class HostBackend(Backend):
    """The host runtime, with the tiny format."""

    name = "host"
    programs = TinyPrograms()
    has_memory_limit = True

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from anydevice.tiny_host import host_client

        return host_client(num_devices=num_devices, memory_limit=memory_limit)

    @contextmanager
    def busy(self, client: Client) -> Iterator[None]:
        with ExitStack() as stack:
            for device in client.addressable_devices:
                stack.enter_context(_waiting_program(self.programs, client, device))
            yield


class SimulatorBackend(HostBackend):
    """The host runtime over memory of a device's own, which numpy cannot see."""

    name = "simulator"

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from anydevice.simulated_memory import SimulatedClient

        return SimulatedClient(num_devices=num_devices, memory_limit=memory_limit)


@contextmanager
def _waiting_program(programs: Programs, client: Client, device: Device) -> Iterator[None]:
    """Run a program that waits for something from the host until the end."""
    options = CompileOptions(device_assignment=DeviceAssignment(((device.id,),)))
    executable = client.compile(programs.receive((1,), channel=99), options)
    asked: queue.SimpleQueue[CopyToDeviceStream] = queue.SimpleQueue()
    callbacks = ExecuteOptions(recv_callbacks=[[RecvCallback(99, asked.put)]])
    (result,) = executable.execute_sharded([], device, callbacks)
    stream = asked.get(timeout=120)
    try:
        yield
    finally:
        stream.add_chunk(bytes(4)).result(60)
        result.ready().result(60)


class XlaBackend(Backend):
    """XLA's CPU device."""

    name = "cpu"
    programs = StableHloPrograms()
    element_types_left_out = frozenset({ElementType.F6E2M3FN, ElementType.F6E3M2FN})
    """jaxlib has no numpy dtype for them."""

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.devices.xla import XlaPlugin

        return XlaPlugin().client(num_devices=num_devices)


class ReferenceBackend(Backend):
    """The interpreter of StableHLO."""

    name = "reference"
    programs = StableHloPrograms()
    uses_donated_memory = False

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.devices.reference.plugin import ReferencePlugin

        return ReferencePlugin().client(num_devices=num_devices)


class IreePrograms(StableHloPrograms):
    """Programs for IREE, whose compiled functions put all results into the default memory."""

    def to_memory(self, shape: tuple[int, ...], source: str, target: str) -> Program:
        raise Absent("a program that states its memory kinds")


class IreeBackend(Backend):
    """IREE's compiler and runtime. Compiled modules are kept for the other tests: each takes half a second."""

    name = "iree"
    programs = IreePrograms()
    uses_donated_memory = False
    has_memory_limit = True

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pjrt-iree-")

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.devices.iree.plugin import IreePlugin

        return IreePlugin().client(
            num_devices=num_devices, driver="local-sync", cache=self._folder.name, memory_limit=memory_limit
        )


class RegisteredBackend(Backend):
    """Any other device, by the name or path that `pjrt.client` takes: a vendor's plugin on a machine that has the
    hardware."""

    programs = StableHloPrograms()

    def __init__(self, name: str) -> None:
        self.name = name

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        import pjrt

        # XLA's plugin for CPUs makes as many devices as it is told.
        options = {"cpu_device_count": num_devices} if self.name.endswith("cpu_plugin.so") else {}
        client = pjrt.client(self.name, **options)
        if len(client.addressable_devices) < num_devices and num_devices > 2:
            client.close()
            raise Absent(f"{num_devices} devices")
        return client


class ExportedBackend(Backend):
    """Another device, exported as a PJRT plugin and loaded again: twice through the C ABI."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.name = f"exported-{inner.name}"
        self.programs = inner.programs
        self.uses_donated_memory = False  # arrays of the host are lent, and not every device writes to what it was lent
        self.has_memory_limit = inner.has_memory_limit
        self.has_payloads = inner.has_payloads
        self.element_types_left_out = inner.element_types_left_out

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt import capi

        return capi.load_capsule(_exported(self._inner).capsule).client(
            num_devices=num_devices, **({} if memory_limit is None else {"memory_limit": memory_limit})
        )

    def held(self, client: Client) -> AbstractContextManager[None]:
        return self._inner.held(client)

    def busy(self, client: Client) -> AbstractContextManager[None]:
        return self._inner.busy(client)

    def watched(self) -> AbstractContextManager[None]:
        return self._inner.watched()


class WorkerBackend(Backend):
    """Another device in a process of its own, behind the runtime in C."""

    uses_donated_memory = False

    def __init__(self, inner: Backend, factory: str) -> None:
        self._factory = factory
        self.name = f"worker-{inner.name}"
        self.programs = inner.programs
        self.element_types_left_out = inner.element_types_left_out

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt import capi

        return capi.load_plugin(_worker_library(self._factory)).client(num_devices=num_devices)


@cache
def _worker_library(factory: str) -> Path:
    from pjrt import native

    folder = Path(tempfile.mkdtemp(prefix="pjrt-worker-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    name = factory.rpartition(".")[2].lower()
    return native.write_library(folder / f"{name}.so", factory, driver="worker", name=name)


class RemoteBackend(Backend):
    """Another device, served by this process to a client of this process."""

    uses_donated_memory = False

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.name = "remote" if inner.name == "cpu" else f"remote-{inner.name}"
        self.programs = inner.programs
        self.element_types_left_out = inner.element_types_left_out

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.remote.client.plugin import RemotePlugin

        return RemotePlugin().client(address=_server(self._inner, num_devices).address)


class ClusterBackend(Backend):
    """XLA's CPU device on two workers, which all tests share: a device of each."""

    name = "cluster"
    programs = StableHloPrograms()
    uses_donated_memory = False
    element_types_left_out = XlaBackend.element_types_left_out

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.clusters.client.client import ClusterClient
        from pjrt.clusters.client.member import Member
        from pjrt.remote.client.plugin import RemotePlugin

        workers = _workers(num_devices)
        return ClusterClient(
            [
                Member(RemotePlugin().client(**workers.connection_options(worker)), worker.host, worker.index)
                for worker in workers.members
            ]
        )


@cache
def _workers(count: int) -> Workers:
    from pjrt.clusters.launchers.launcher import LocalLauncher
    from pjrt.clusters.settings import ClusterSettings
    from pjrt.clusters.workers.workers import Workers
    from pjrt.remote.client.plugin import RemotePlugin

    settings = ClusterSettings(options={"num_devices": 1}, logs="hide")
    workers = Workers(LocalLauncher(count, {}), settings, lambda progress: None)
    atexit.register(workers.close)
    # Workers end soon after their last client, and the clients of the tests come and go.
    _lasting_clients.extend(RemotePlugin().client(**workers.connection_options(worker)) for worker in workers.members)
    return workers


_lasting_clients: list[Client] = []


@cache
def _server(inner: Backend, num_devices: int) -> Server:
    from pjrt import remote

    return remote.serve(inner.client(num_devices=num_devices))


@cache
def _exported(inner: Backend) -> ExportedPlugin:
    import pjrt

    return pjrt.export(inner.client, name=inner.name)


DEFAULT_DEVICES = (
    "tiny,tiny-0.53,tiny-0.72,tiny-0.88,tiny-0.105,host,simulator,cpu,reference,iree,exported-host,"
    "exported-simulator,exported-cpu,layered-tiny,remote,remote-reference,cluster"
)

BACKENDS = tuple(os.environ.get("PJRT_TEST_DEVICES", DEFAULT_DEVICES).split(","))
"""The devices under test; the environment may name others, separated by commas."""


@cache
def make_backend(name: str, library: Path) -> Backend:
    """Return the backend of this name; ``library`` is the tiny plugin's."""
    if name.startswith("exported-"):
        return ExportedBackend(make_backend(name.removeprefix("exported-"), library))
    if name.startswith("remote-"):
        return RemoteBackend(make_backend(name.removeprefix("remote-"), library))
    if name.startswith("worker-"):
        inner = name.removeprefix("worker-")
        plugins = {
            "reference": "pjrt.devices.reference.plugin:ReferencePlugin",
            "cpu": "pjrt.devices.xla.plugin:XlaPlugin",
        }
        return WorkerBackend(make_backend(inner, library), plugins[inner])
    if name.startswith("tiny-0."):
        return OldTinyBackend(library, int(name.removeprefix("tiny-0.")))
    match name:
        case "tiny":
            return TinyBackend(library)
        case "layered-tiny":
            return LayeredTinyBackend(library)
        case "host":
            return HostBackend()
        case "simulator":
            return SimulatorBackend()
        case "cpu":
            return XlaBackend()
        case "reference":
            return ReferenceBackend()
        case "iree":
            return IreeBackend()
        case "cluster":
            return ClusterBackend()
        case "remote":
            return RemoteBackend(make_backend("cpu", library))
    return RegisteredBackend(name)

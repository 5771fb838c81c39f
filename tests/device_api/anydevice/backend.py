"""The devices that the tests run on."""

from __future__ import annotations

import abc
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiny import Control

from anydevice.programs import Absent, Programs, StableHloPrograms, TinyPrograms
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType

__all__ = ["BACKENDS", "Absent", "Backend", "TinyBackend", "make_backend"]


class Backend(abc.ABC):
    """One kind of device: how to make its clients, how to say programs, and what it leaves out."""

    name: str
    programs: Programs
    uses_donated_memory = True
    element_types_left_out: frozenset[ElementType] = frozenset()

    @abc.abstractmethod
    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        """A new client. With a memory limit the default memory of each device holds that many bytes."""

    @contextmanager
    def held(self, client: Client) -> Iterator[None]:
        """Let no device of the client begin new work while inside."""
        raise Absent("a way to hold its work")
        yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check after a test that nothing of it is left over."""
        yield


class TinyBackend(Backend):
    """The C plugin, loaded through the C ABI."""

    name = "tiny"
    programs = TinyPrograms()

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
        if self.control.live() != live:
            gc.collect()
        assert self.control.live() == live, "objects of the plugin outlived the client"
        assert self.control.violations == violations, self.control.last_violation


class HostBackend(Backend):
    """The host runtime, with the tiny format."""

    name = "host"
    programs = TinyPrograms()

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from anydevice.tiny_host import host_client

        return host_client(num_devices=num_devices, memory_limit=memory_limit)


class XlaBackend(Backend):
    """XLA's CPU device."""

    name = "cpu"
    programs = StableHloPrograms()
    element_types_left_out = frozenset(
        {ElementType.F6E2M3FN, ElementType.F6E3M2FN}
    )  # jaxlib has no numpy dtype for them

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.devices.xla import XlaPlugin

        if memory_limit is not None:
            raise Absent("a limit of memory")
        return XlaPlugin().client(num_devices=num_devices)


class ReferenceBackend(Backend):
    """The interpreter of StableHLO."""

    name = "reference"
    programs = StableHloPrograms()
    uses_donated_memory = False

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        from pjrt.devices.reference.plugin import ReferencePlugin

        if memory_limit is not None:
            raise Absent("a limit of memory")
        return ReferencePlugin().client(num_devices=num_devices)


class RegisteredBackend(Backend):
    """Any other device, by the name or path that `pjrt.client` takes: a vendor's plugin on a machine that has the
    hardware."""

    programs = StableHloPrograms()

    def __init__(self, name: str) -> None:
        self.name = name

    def client(self, *, num_devices: int = 2, memory_limit: int | None = None) -> Client:
        import pjrt

        if memory_limit is not None:
            raise Absent("a limit of memory")
        client = pjrt.client(self.name)
        if len(client.addressable_devices) < num_devices:
            client.close()
            raise Absent(f"{num_devices} devices")
        return client


BACKENDS = tuple(os.environ.get("PJRT_TEST_DEVICES", "tiny,host,cpu,reference").split(","))
"""The devices under test; the environment may name others, separated by commas."""


def make_backend(name: str, library: Path) -> Backend:
    """The device of a name; library is the tiny plugin's."""
    match name:
        case "tiny":
            return TinyBackend(library)
        case "host":
            return HostBackend()
        case "cpu":
            return XlaBackend()
        case "reference":
            return ReferenceBackend()
    return RegisteredBackend(name)

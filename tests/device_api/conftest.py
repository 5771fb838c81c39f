"""Fixtures of the device API tests: each test runs on every device, and is skipped where the device lacks
what the test is about.

The devices are those of `anydevice.backend.BACKENDS`. To run the tests on another, name it in the environment as
`pjrt.client` takes it: `PJRT_TEST_DEVICES=cuda pytest tests/device_api` on a machine with a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anydevice.backend import BACKENDS, Absent, Backend, make_backend
from anydevice.theirs import LIBRARY, THEIRS, VERSION

from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.errors import UnimplementedError


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that compile many programs, where compiling takes long: they are run by hand.

    Old versions of the C ABI, and paths that consist of others, are left to the full tests; versions between the oldest
    and the last one are heavy.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("backend") if callspec else None
        if name == "iree" and item.path.name == "test_properties.py":
            item.add_marker("iree")
        elif name in ("tiny-0.72", "tiny-0.88") and not item.get_closest_marker("full"):
            item.add_marker("heavy")
        elif str(name).endswith(LIBRARY) and item.originalname in THEIRS:
            reason, crashes = THEIRS[item.originalname]
            item.add_marker(pytest.mark.xfail(reason=f"{VERSION}: {reason}", run=not crashes, strict=True))
        elif name in ("cluster", "iree", "layered-tiny", "remote-reference") or str(name).startswith("tiny-0."):
            item.add_marker("full")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tiny_library: Path) -> Iterator[Backend]:
    """The device under test; what it counts is checked when the test is over."""
    made = make_backend(request.param, tiny_library)
    with made.watched():
        yield made


@pytest.fixture
def new_client(backend: Backend) -> Iterator[Callable[..., Client]]:
    """Make clients, which are closed after the test."""
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        if options.get("memory_limit") is not None and not backend.has_memory_limit:
            raise Absent("a limit of memory")
        clients.append(backend.client(**options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(new_client: Callable[..., Client]) -> Client:
    """A client with two devices, or with one where the hardware has no more."""
    return new_client()


@pytest.fixture
def second(client: Client) -> Device:
    """The second device of the client, for tests that need two."""
    if len(client.addressable_devices) < 2:
        pytest.skip("there is one device only")
    return client.addressable_devices[1]


@pytest.fixture
def host_memory(client: Client) -> None:
    """Skip a test that reads a device's memory by its address on the host, where the host cannot."""
    if not client.buffer_from_host(np.float32(0)).is_on_cpu:
        pytest.skip("the host cannot look into the memory of this device")


@pytest.fixture
def device(client: Client) -> Device:
    """The first device of the client."""
    return client.addressable_devices[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Skip a test where the device lacks a feature: it raised `Absent`, or an `UnimplementedError` that the test does
    not expect. The tiny plugin has every feature: there both are failures."""
    try:
        return (yield)
    except (Absent, UnimplementedError) as error:
        here = str(item.path).startswith(str(Path(__file__).parent))
        callspec = getattr(item, "callspec", None)
        if not here or callspec is None or callspec.params.get("backend") in ("tiny", "layered-tiny"):
            raise
        reason = str(error)
    # What keeps the error keeps the test's frame and all that it made: pytest's note for debuggers is one.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    pytest.skip(f"this device does not have it: {reason}")

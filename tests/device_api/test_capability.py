"""The capabilities that a client declares, compared with what it does.

A declared feature is used. A feature that is declared missing refuses. An unknown one may do either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from anydevice.backend import Backend

from pjrt.api.capability import Effort, Feature, Verdict
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.program import Program
from pjrt.api.shape_spec import Layout, ShapeSpec, StridedLayout, TiledLayout

F32 = ElementType.F32
_NUMBERS = itertools.count()
SPEC = ShapeSpec((2, 3), F32)


def _layout(layout: Layout) -> Callable[[Client, Any], object]:
    def probe(client: Client, programs: Any) -> object:
        buffer = client.buffer_from_host(np.arange(6, dtype=np.float32).reshape(2, 3), layout=layout)
        assert np.array_equal(np.asarray(buffer), np.arange(6, dtype=np.float32).reshape(2, 3))
        if isinstance(layout, TiledLayout):
            assert buffer.layout == layout
        return buffer

    return probe


def _serialized(client: Client, programs: Any) -> object:
    loaded = client.deserialize(client.compile(programs.double((2,))).serialize())
    return np.asarray(loaded(np.ones(2, np.float32))[0])


def _donated(client: Client, programs: Any) -> object:
    executable = client.compile(programs.double((4,), donate=True))
    buffer = client.buffer_from_host(np.ones(4, np.float32))
    (result,) = executable(buffer)
    result.ready().result(60)
    assert buffer.is_deleted
    return result


def _view(client: Client, programs: Any) -> object:
    array = np.zeros(64, np.float32)
    address = -(-array.ctypes.data // 64) * 64
    return client.create_view_of_device_buffer(address, ShapeSpec((16,), F32), on_delete=lambda: array)


def _mapped(client: Client, programs: Any) -> None:
    memory = bytearray(4096)
    client.dma_map(memory)
    client.dma_unmap(memory)


def _collective(client: Client, programs: Any) -> object:
    results = client.compile(programs.all_reduce((2,), 2), CompileOptions(num_replicas=2)).execute(
        [[client.buffer_from_host(np.ones(2, np.float32), device=device)] for device in client.addressable_devices[:2]]
    )
    return [np.asarray(row[0]) for row in results]


def _in_context(client: Client, programs: Any) -> object:
    options = ExecuteOptions(context=client.create_execute_context())
    buffer = client.buffer_from_host(np.ones(2, np.float32))
    return [np.asarray(row[0]) for row in client.compile(programs.double((2,))).execute([[buffer]], options)]


def _fails(client: Client, programs: Any) -> object:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    fulfillment.fail(InternalError("never"))
    return alias


PROBES: dict[Feature, Callable[[Client, Any], object]] = {
    Feature.COLLECTIVES: _collective,
    Feature.DONATION: _donated,
    Feature.LAYOUTS: _layout(TiledLayout((0, 1))),
    Feature.TILED_LAYOUTS: _layout(TiledLayout((1, 0), ((2, 2),))),
    Feature.STRIDED_LAYOUTS: _layout(StridedLayout((64, 8))),
    Feature.AOT_TOPOLOGIES: lambda client, programs: client.topology.compile(programs.double((2,))).name,
    Feature.SERIALIZATION: _serialized,
    Feature.ASYNC_TRANSFERS: lambda client, programs: client.create_buffers_for_async_host_to_device([SPEC]),
    Feature.CROSS_HOST_TRANSFERS: lambda client, programs: client.cross_host_send_buffers([], [], []),
    Feature.UNINITIALIZED_BUFFERS: lambda client, programs: client.create_uninitialized_buffer(SPEC),
    Feature.ERROR_BUFFERS: lambda client, programs: client.create_error_buffer(InternalError("never"), SPEC),
    Feature.ALIAS_BUFFERS: _fails,
    Feature.DEVICE_VIEWS: _view,
    Feature.DMA_MAPPING: _mapped,
    Feature.EXECUTE_CONTEXTS: _in_context,
    Feature.MEMORY_STATISTICS: lambda client, programs: client.addressable_devices[0].memory_stats(),
    Feature.HOST_CALLBACKS: lambda client, programs: client.register_ffi_handler(
        f"pjrt_test_capability_{next(_NUMBERS)}", lambda *arrays, **attributes: None
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("feature", PROBES, ids=str)
def test_a_feature_is_as_it_is_described(client: Client, backend: Backend, feature: Feature) -> None:
    has = client.capabilities.has(feature)
    if feature is Feature.COLLECTIVES and len(client.addressable_devices) < 2:
        pytest.skip("there is one device only")
    if feature is Feature.DEVICE_VIEWS and backend.name.startswith("worker-"):
        pytest.skip("the table has the function, for drivers that can use memory of the host; a worker cannot")
    if feature is Feature.LAYOUTS and backend.name == "exported-simulator":
        pytest.skip("the runtime has arrays in rows, whatever the device has")
    try:
        PROBES[feature](client, backend.programs)
        found = True
    except (UnimplementedError, InvalidArgumentError):
        found = False
    assert has in (None, found)


def test_a_program_that_runs_is_supported(client: Client, backend: Backend) -> None:
    program = backend.programs.double((2,))
    assert client.supports(program).verdict is Verdict.YES
    assert client.supports(program, effort=Effort.COMPILE).verdict is Verdict.YES
    for effort in (Effort.OPS, Effort.TYPES):
        assert client.supports(program, effort=effort).verdict is not Verdict.NO


def test_a_topology_says_the_same(client: Client, backend: Backend) -> None:
    if not client.capabilities.has(Feature.AOT_TOPOLOGIES):
        pytest.skip("it does not compile for topologies")
    assert client.topology.supports(backend.programs.double((2,))).verdict is Verdict.YES
    assert client.topology.capabilities.num_devices == len(client.devices)


def test_a_format_that_nobody_has_is_not_supported(client: Client) -> None:
    program = Program(b"something else", "a-format-that-nobody-has")
    support = client.supports(program)
    assert support.verdict is Verdict.NO
    assert support.reasons
    with pytest.raises(PjrtError):
        client.compile(program)


def test_what_is_plain_to_see_is_described(client: Client) -> None:
    capabilities = client.capabilities
    assert capabilities.num_devices == len(client.devices)
    assert capabilities.memory_kinds == tuple(dict.fromkeys(space.kind for space in client.memory_spaces))
    assert capabilities.variants["device_kind"] == client.devices[0].kind


def test_an_effort_that_there_is_not(client: Client, backend: Backend) -> None:
    with pytest.raises(InvalidArgumentError, match="very"):
        client.supports(backend.programs.double((2,)), effort="very")


def test_a_closed_client_does_not_answer(client: Client, backend: Backend) -> None:
    program = backend.programs.double((2,))
    client.close()
    with pytest.raises(FailedPreconditionError):
        client.supports(program)


def test_what_is_no_program_is_refused(client: Client) -> None:
    with pytest.raises(InvalidArgumentError, match="program"):
        client.supports(7)  # type: ignore[arg-type]

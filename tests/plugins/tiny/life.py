"""A whole life with the tiny plugin, which calls every function of PJRT_Api: for tests that want something to fail at
every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pjrt
from pjrt.api.client import Client
from pjrt.api.key_value_store import ProcessInfo, ProcessState
from tiny.program import TinyProgram

X = np.arange(4, dtype=np.float32)
SPEC = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
Step = Callable[["Life"], Any]


def _program(name: str) -> pjrt.Program:
    program = TinyProgram(name)
    x = program.parameter("f32[4]")
    match name:
        case "double":
            program.result(program.let("add", x, x))
        case "in-place":
            program.result(program.let("add", x, x), alias=x)
        case "send":
            program.do("send", 1, x)
            program.result(program.let("recv", 2, "f32[4]"))
    return pjrt.Program(program.code, "tiny")


class Life:
    """One client and what is made with it, step by step; a step that fails leaves the others to be tried.

    Args:
        plugin: the tiny plugin.
    """

    def __init__(self, plugin: pjrt.Plugin) -> None:
        self.plugin = plugin
        self.errors: list[pjrt.PjrtError] = []
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client, made when it is first asked for."""
        if self._client is None:
            self._client = self.plugin.client(num_devices=2, bytes_limit=1 << 20)
        return self._client

    def run(self) -> list[pjrt.PjrtError]:
        """Take all steps, then close the client; returns the errors that came."""
        for step in STEPS:
            try:
                step(self)
            except pjrt.PjrtError as error:
                self.errors.append(error.with_traceback(None))
                error.__context__ = error.__cause__ = None
        if self._client is not None:
            try:
                self._client.close()
            except pjrt.PjrtError as error:
                self.errors.append(error.with_traceback(None))
        return self.errors


def _plugin(life: Life) -> None:
    assert life.plugin.api_version[0] == 0
    topology = life.plugin.topology("2x2", num_processes=2)
    again = life.plugin.deserialize_topology(topology.serialize())
    assert again.fingerprint() == topology.fingerprint()
    for each in again.device_descriptions:
        assert str(each)
        assert each.debug_string
        assert dict(each.attributes)
        assert each.kind
        assert each.process_index in (0, 1)
    assert again.platform_name
    assert again.platform_version
    assert dict(again.attributes)
    again.make_canonical_shape(SPEC.element_type, SPEC.shape, memory_space_kind_id=again.memory_space_kind_ids[0])
    executable = again.compile(_program("double"))
    assert executable.num_outputs == 1
    loaded = life.client.load(executable)
    assert np.asarray(loaded(X)[0])[1] == 2


def _client(life: Life) -> None:
    client = life.client
    assert client.platform_name
    assert client.platform_version
    assert client.process_index == 0
    assert client.topology.platform_name
    assert len(client.devices) == len(client.addressable_devices) == 2
    assert len(client.memory_spaces) == 6
    client.lookup_device(1)
    client.lookup_addressable_device(1)
    client.default_device_assignment(1, 2)
    client.update_global_process_info([ProcessInfo(0, 1, ProcessState.CONNECTED)])
    memory = bytearray(64)
    client.dma_map(memory)
    client.dma_unmap(memory)


def _devices(life: Life) -> None:
    for device in life.client.devices:
        assert device.id == device.local_hardware_id
        assert device.is_addressable
        assert device.default_memory_space.kind == "device"
        assert dict(device.attributes)
        assert str(device.description)
        assert device.memory_stats().bytes_limit == 1 << 20
        device.clear_memory_stats()
        device.poison_execution(3, pjrt.AbortedError("nobody"))
        with device.create_async_tracking_event("life"):
            pass
        for space in device.memory_spaces:
            assert space.id >= 0
            assert space.kind_id >= 0
            assert str(space)
            assert space.debug_string
            assert list(space.devices) == [device]


def _buffers(life: Life) -> None:
    client = life.client
    buffer = client.buffer_from_host(X)
    assert (buffer.shape, buffer.unpadded_shape, buffer.dynamic_dimensions) == ((4,), (4,), ())
    assert buffer.element_type is SPEC.element_type
    assert buffer.layout == pjrt.TiledLayout((0,))
    assert buffer.on_device_size == 16
    assert buffer.is_on_cpu
    assert (buffer.device, buffer.memory_space) == (client.devices[0], client.memory_spaces[0])
    buffer.ready().result(60)
    assert buffer.unsafe_pointer()
    with buffer.external_reference() as reference:
        assert reference.pointer
    np.testing.assert_array_equal(buffer.to_host().result(60), X)
    buffer.copy_raw_to_host(bytearray(16)).result(60)
    buffer.copy_raw_to_host_future(pjrt.Future.completed(bytearray(16))).result(60)
    assert np.asarray(buffer.copy_to(client.devices[1]))[1] == 1
    assert np.asarray(buffer.copy_to(client.memory_spaces[1]))[1] == 1
    cast = buffer.bitcast(pjrt.ElementType.S32, (4,))
    donated = cast.donate_with_control_dependency(pjrt.Future.completed(None))
    donated.ready().result(60)
    donated.delete()
    assert donated.is_deleted


def _special_buffers(life: Life) -> None:
    client = life.client
    client.create_uninitialized_buffer(SPEC).ready().result(60)
    failed = client.create_error_buffer(pjrt.DataLossError("on purpose"), SPEC).ready().exception(60)
    assert isinstance(failed, pjrt.PjrtError)
    memory = X.copy()
    client.create_view_of_device_buffer(memory.ctypes.data, SPEC).ready().result(60)
    alias, fulfillment = client.create_alias_buffer(SPEC)
    fulfillment.fulfill(client.buffer_from_host(X))
    alias.ready().result(60)


def _transfers(life: Life) -> None:
    with life.client.create_buffers_for_async_host_to_device([SPEC] * 3) as manager:
        assert manager.buffer_count == 3
        assert manager.buffer_size(0) == 16
        assert manager.device == life.client.devices[0]
        manager.add_metadata({"a": 1})
        buffers = [manager.retrieve_buffer(index) for index in range(3)]
        manager.transfer_data(0, X).result(60)
        manager.transfer_literal(1, X).result(60)
        manager.set_buffer_error(2, pjrt.AbortedError("on purpose"))
        np.testing.assert_array_equal(buffers[0].to_host().result(60), X)
        buffers[1].ready().result(60)


def _executable(life: Life) -> None:
    client = life.client
    loaded = client.compile(_program("double"))
    executable = loaded.executable
    assert executable.name == "double"
    assert (executable.num_replicas, executable.num_partitions, executable.num_outputs) == (1, 1, 1)
    assert list(executable.output_shapes) == [(4,)]
    assert list(executable.output_element_types) == [SPEC.element_type]
    assert list(executable.output_memory_kinds) == ["device"]
    assert list(executable.parameter_memory_kinds) == ["device"]
    assert executable.size_of_generated_code
    assert executable.fingerprint()
    assert loaded.fingerprint()
    assert executable.cost_analysis()["flops"] == 4
    assert executable.memory_stats().output_size_in_bytes == 16
    assert len(executable.optimized_program())
    executable.compile_options()
    assert list(loaded.addressable_devices) == [client.devices[0]]
    assert list(loaded.addressable_device_logical_ids) == [(0, 0)]
    assert loaded.device_assignment.device_ids == ((0,),)
    again = client.deserialize(executable.serialize())
    assert np.asarray(again(X)[0])[1] == 2
    again.delete()
    assert again.is_deleted


def _execution(life: Life) -> None:
    client = life.client
    device = client.devices[0]
    in_place = client.compile(_program("in-place"))
    with client.create_execute_context() as context:
        futures: list[pjrt.Future[None]] = []
        options = pjrt.ExecuteOptions(context=context, launch_id=3)
        buffer = client.buffer_from_host(X)
        (out,) = in_place.execute_sharded([buffer], device, options, returned_futures=futures)
        futures[0].result(60)
        np.testing.assert_array_equal(out.to_host().result(60), 2 * X)


def _give(stream: pjrt.CopyToDeviceStream) -> None:
    assert stream.total_bytes == 16
    assert stream.granule_size == 4
    assert stream.current_bytes == 0
    stream.add_chunk(X).result(60)


def _callbacks(life: Life) -> None:
    client = life.client
    options = pjrt.ExecuteOptions(
        send_callbacks=[[pjrt.SendCallback(1, lambda data, total, done: None)]],
        recv_callbacks=[[pjrt.RecvCallback(2, _give)]],
    )
    executable = client.compile(_program("send"))
    (out,) = executable.execute_sharded([client.buffer_from_host(X)], client.devices[0], options)
    np.testing.assert_array_equal(out.to_host().result(60), X)


def _cross_host(life: Life) -> None:
    client = life.client
    here, there = client.devices
    receive = client.make_cross_host_receive_buffers([SPEC], there)
    (descriptor,) = receive.descriptors.result(60)
    client.buffer_from_host(X, device=here).copy_to_remote_device(pjrt.Future.completed(descriptor)).result(60)
    np.testing.assert_array_equal(receive.buffers[0].to_host().result(60), X)


def _extensions(life: Life) -> None:
    client = life.client
    buffer = client.buffer_from_host(X)
    executable = client.compile(_program("double")).executable
    assert client.default_layout(SPEC.element_type, SPEC.shape) == pjrt.TiledLayout((0,))
    assert list(executable.output_layouts) == [pjrt.TiledLayout((0,))]
    assert executable.output_shardings is None
    assert executable.metadata()
    client.runtime_abi_version().check_compatible_with(executable.abi_version())
    raw = buffer.raw()
    raw.copy_to_host(bytearray(16)).result(60)
    raw.release()
    buffer.wait_until_ready_on_stream(client.devices[1].stream_for_external_ready_events())
    with life.plugin.profiler() as profiler:
        client.compile(_program("double"))(X)[0].ready().result(60)
    assert b"executions=1" in profiler.collect()


STEPS: tuple[Step, ...] = (
    _plugin,
    _client,
    _devices,
    _buffers,
    _special_buffers,
    _transfers,
    _executable,
    _execution,
    _callbacks,
    _cross_host,
    _extensions,
)

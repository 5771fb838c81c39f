"""The extensions of the C API, each on the tiny plugin, which has them all."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control
from waiting import wait_until

import pjrt
from pjrt.api.client import Client
from pjrt.capi import LoadedPlugin

X = np.arange(4, dtype=np.float32)
SPEC = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)


def compiled(client: Client, program: TinyProgram) -> pjrt.LoadedExecutable:
    return client.compile(pjrt.Program(program.code, format="tiny"))


def test_layouts(client: Client, adder: pjrt.Program) -> None:
    assert client.default_layout(pjrt.ElementType.F32, (2, 3, 4)) == pjrt.TiledLayout((2, 1, 0))
    assert client.topology.default_layout(pjrt.ElementType.F32, (2, 3)) == pjrt.TiledLayout((1, 0))
    executable = client.compile(adder)
    assert executable.output_layouts == (pjrt.TiledLayout((0,)),)
    assert executable.parameter_layouts == (pjrt.TiledLayout((0,)), pjrt.TiledLayout((0,)))


@pytest.mark.parametrize(
    "layout", [pjrt.TiledLayout((0, 1)), pjrt.TiledLayout((1, 0)), pjrt.TiledLayout((1, 0), ((2, 2),))]
)
def test_buffers_in_a_layout_of_choice(client: Client, layout: pjrt.TiledLayout) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    try:
        buffer = client.buffer_from_host(array, layout=layout)
    except pjrt.UnimplementedError:
        assert layout.tiles
        return
    assert buffer.layout == layout
    np.testing.assert_array_equal(np.asarray(buffer), array)
    turned = buffer.to_host(layout=pjrt.TiledLayout((0, 1))).result()
    np.testing.assert_array_equal(turned, array)
    assert turned.flags.f_contiguous


def test_memory_descriptions(client: Client) -> None:
    described = client.devices[0].description.memory_space_descriptions
    assert [d.kind for d in described] == ["device", "pinned_host", "unpinned_host"]
    assert [d.kind_id for d in described] == [s.kind_id for s in client.devices[0].memory_spaces]


def test_shardings(client: Client) -> None:
    program = TinyProgram("sharded")
    x = program.parameter("f32[4]", sharding=b"\x08\x01")
    executable = compiled(client, program.result(program.let("neg", x), sharding=b"\x08\x02"))
    assert executable.parameter_shardings == (b"\x08\x01",)
    assert executable.output_shardings == (b"\x08\x02",)


def test_unsharded_programs_have_no_shardings(client: Client, adder: pjrt.Program) -> None:
    assert client.compile(adder).parameter_shardings in (None, (b"", b""))


def test_executable_metadata(client: Client, adder: pjrt.Program, tiny_control: Control) -> None:
    executable = client.compile(adder)
    assert executable.fingerprint() in executable.metadata()
    assert tiny_control.live("metadata") == 0


def test_abi_versions(plugin: LoadedPlugin, client: Client, adder: pjrt.Program, tiny_control: Control) -> None:
    runtime = client.runtime_abi_version()
    executable = client.compile(adder).abi_version()
    assert runtime.platform_id == executable.platform_id != 0
    runtime.check_compatible_with(executable)
    runtime.check_compatible_with(client.runtime_abi_version())
    again = plugin.executable_abi_version(executable.to_proto())
    runtime.check_compatible_with(again)
    plugin.runtime_abi_version(runtime.to_proto()).check_compatible_with(executable)
    older = plugin.executable_abi_version(executable.to_proto()[:-1] + b"\x01")
    with pytest.raises(pjrt.FailedPreconditionError, match="Version 1 does not fit"):
        runtime.check_compatible_with(older)
    with pytest.raises(pjrt.PjrtError):
        plugin.runtime_abi_version(b"\xff")
    with pytest.raises(pjrt.InvalidArgumentError, match="its own plugin"):
        runtime.check_compatible_with("1.0")  # type: ignore[arg-type]
    del runtime, executable, again, older
    gc.collect()
    assert tiny_control.live("abi_version") == tiny_control.live("serialized") == 0


def test_abi_versions_of_another_plugin(
    client: Client, adder: pjrt.Program, tiny_control: Control, tiny_copy: Callable[..., Control]
) -> None:
    """A plugin is not handed what another one made, but a version of its own of the same bytes."""
    runtime = client.runtime_abi_version()
    with pjrt.load_plugin(tiny_copy().path).client() as other:
        for version in (other.runtime_abi_version(), other.compile(adder).abi_version()):
            made = tiny_control.made("abi_version")
            runtime.check_compatible_with(version)
            assert tiny_control.made("abi_version") == made + 1


def test_profiling(plugin: pjrt.Plugin, client: Client, adder: pjrt.Program, tiny_control: Control) -> None:
    executable = client.compile(adder)
    profiler = plugin.profiler(b"")
    with profiler:
        for _ in range(3):
            executable(X, X)[0].ready().result()
        with pytest.raises(pjrt.FailedPreconditionError, match="runs already"):
            profiler.start()
    assert b"3" in profiler.collect()
    with pytest.raises(pjrt.FailedPreconditionError):
        profiler.stop()
    del profiler
    gc.collect()
    assert tiny_control.live("profiler") == 0
    wait_until(lambda: tiny_control.live("error") == 0, "the end of all errors")


def test_triton(plugin: pjrt.Plugin) -> None:
    assembly, shared, path = plugin.compile_triton(b"tt.func", "sm_90", num_warps=4, num_ctas=1, num_stages=3)
    assert assembly.startswith(b"// arch=sm_90 warps=4 ctas=1 stages=3")
    assert (shared, path) == (3072, "")
    with pytest.raises(pjrt.InvalidArgumentError, match="empty"):
        plugin.compile_triton(b"", "sm_90", num_warps=4, num_ctas=1, num_stages=3)


def test_streams(client: Client) -> None:
    stream = client.devices[0].stream_for_external_ready_events()
    assert isinstance(stream, int)
    client.buffer_from_host(X).wait_until_ready_on_stream(stream)


def test_raw_buffers(client: Client, tiny_control: Control) -> None:
    buffer = client.buffer_from_host(X)
    with_raw = buffer.raw()
    assert with_raw.on_device_size == 16
    assert with_raw.memory_space is buffer.memory_space
    assert with_raw.host_pointer() == buffer.unsafe_pointer()
    out = bytearray(8)
    with_raw.copy_to_host(out, 8).result()
    assert out == X[2:].tobytes()
    with_raw.copy_from_host(np.float32(9).tobytes(), 4).result()
    np.testing.assert_array_equal(np.asarray(buffer), [0, 9, 2, 3])
    with_raw.release()
    with_raw.release()
    with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
        _ = with_raw.on_device_size
    assert tiny_control.live("raw_buffer") == 0


def test_a_python_function_as_a_handler(client: Client) -> None:
    threads: set[int] = set()

    def scaled_sum(a: Any, b: Any, out: Any, *, scale: int, note: str) -> None:
        threads.add(threading.get_ident())
        assert note == "hello"
        assert not a.flags.writeable
        out[...] = scale * (a + b)

    client.register_ffi_handler("scaled_sum", scaled_sum)
    client.register_ffi_handler("scaled_sum", scaled_sum)
    program = TinyProgram("calling")
    x, y = program.parameter("f32[4]"), program.parameter("f32[4]")
    executable = compiled(client, program.result(program.call("scaled_sum", "f32[4]", x, y, scale=3, note="hello")))
    (out,) = executable(X, X + 1)
    np.testing.assert_array_equal(np.asarray(out), 3 * (2 * X + 1))
    assert threading.get_ident() not in threads


def test_a_handler_that_raises_fails_the_execution(client: Client) -> None:
    def refuse(a: Any, out: Any) -> None:
        raise pjrt.UnavailableError("not today")

    client.register_ffi_handler("refuse", refuse)
    program = TinyProgram("refused")
    executable = compiled(client, program.result(program.call("refuse", "f32[4]", program.parameter("f32[4]"))))
    with pytest.raises(pjrt.UnavailableError, match="not today"):
        executable(X)[0].ready().result()
    with pytest.raises(pjrt.InvalidArgumentError, match="a Python function"):
        client.register_ffi_handler("wrong", "address")  # type: ignore[arg-type]


def test_ffi_types_and_user_data(client: Client) -> None:
    number = client.register_ffi_type("test.thing")
    assert number > 0
    assert client.register_ffi_type("test.thing") == number
    with client.create_execute_context() as context:
        context.add_user_data(number, 0x1000)
        with pytest.raises(pjrt.AlreadyExistsError):
            context.add_user_data(number, 0x2000)


def test_a_context_that_is_closed_while_its_execution_is_under_way(
    client: Client, adder: pjrt.Program, tiny_control: Control
) -> None:
    executable = client.compile(adder)
    arguments = [client.buffer_from_host(X), client.buffer_from_host(X)]
    with tiny_control.held(), client.create_execute_context() as context:
        (out,) = executable.execute_sharded(arguments, client.devices[0], pjrt.ExecuteOptions(context=context))
        context.close()
        assert tiny_control.live("context") == 1
    out.ready().result()
    client.buffer_from_host(X).to_host().result()
    gc.collect()
    assert tiny_control.live("context") == 0


def test_transfers_between_hosts_by_key(client: Client) -> None:
    buffers = client.cross_host_receive_buffers([SPEC, SPEC], client.devices[1], [0, 0], [70, 71])
    assert [buffer.shape for buffer in buffers] == [(4,), (4,)]
    sent = client.cross_host_send_buffers([client.buffer_from_host(X), client.buffer_from_host(-X)], [1, 1], [70, 71])
    assert [future.result(60) for future in sent] == [None, None]
    np.testing.assert_array_equal(np.asarray(buffers[0]), X)
    np.testing.assert_array_equal(np.asarray(buffers[1]), -X)
    with pytest.raises(pjrt.InvalidArgumentError, match="one device and one key"):
        client.cross_host_send_buffers([client.buffer_from_host(X)], [1, 1], [1])


def test_transfers_between_hosts_by_descriptor(client: Client) -> None:
    receive = client.make_cross_host_receive_buffers([SPEC], client.devices[1])
    descriptors = receive.descriptors.result(60)
    assert len(descriptors) == len(receive.buffers) == 1
    promise: pjrt.Promise[bytes] = pjrt.Promise()
    sent = client.buffer_from_host(X).copy_to_remote_device(promise.future)
    assert not sent.done()
    promise.set_result(descriptors[0])
    sent.result(60)
    np.testing.assert_array_equal(np.asarray(receive.buffers[0]), X)


def test_a_transfer_that_is_called_off(client: Client) -> None:
    receive = client.make_cross_host_receive_buffers([SPEC], client.devices[1])
    receive.cancel(0, "changed my mind").result(60)
    with pytest.raises(pjrt.CancelledError, match="changed my mind"):
        receive.buffers[0].ready().result(60)
    with pytest.raises(pjrt.NotFoundError):
        receive.cancel(0, "again").result(60)
    with pytest.raises(pjrt.OutOfRangeError):
        receive.cancel(7, "no such buffer")


def test_a_sender_whose_descriptor_never_comes(client: Client) -> None:
    failing: pjrt.Future[bytes] = pjrt.Future.failed(pjrt.UnavailableError("no word from the receiver"))
    sent = client.buffer_from_host(X).copy_to_remote_device(failing)
    with pytest.raises(pjrt.UnavailableError, match="no word"):
        sent.result(60)

"""Arguments of a wrong Python type are an `InvalidArgumentError` on every device, where the call was made, and leave
the device as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.buffer import Buffer
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec

X = np.arange(4, dtype=np.float32)
SPEC = ShapeSpec((4,), ElementType.F32)
ERROR = InternalError("of the test")
OTHER: Any = object()
"""Objects that no function takes."""

Call = Callable[[], object]


def check(calls: dict[str, Call]) -> None:
    """Every call is refused: as one with a wrong argument, or as one that this device does not offer at all."""
    wrong = {name: reason for name, call in calls.items() if (reason := accepted(call))}
    assert not wrong


def accepted(call: Call) -> str:
    """Describe the failure of a call that should be refused; empty if it was refused."""
    try:
        found = call()
    except InvalidArgumentError as error:
        return "" if error.message else "no message"
    except UnimplementedError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {found!r}"


@pytest.fixture
def program(backend: Backend) -> Program:
    return backend.programs.add((4,))


@pytest.fixture
def executable(client: Client, program: Program) -> LoadedExecutable:
    return client.compile(program)


@pytest.fixture
def x(client: Client) -> Buffer:
    return client.buffer_from_host(X)


def test_compiling_and_loading(client: Client, program: Program, executable: LoadedExecutable) -> None:
    topology = client.topology
    calls: dict[str, Call] = {
        "compile(3)": lambda: client.compile(OTHER),
        "compile(None)": lambda: client.compile(None),  # type: ignore[arg-type]
        "compile(options=3)": lambda: client.compile(program, 3),  # type: ignore[arg-type]
        "compile(options={})": lambda: client.compile(program, {}),  # type: ignore[arg-type]
        "load(3)": lambda: client.load(OTHER),
        "load(options=3)": lambda: client.load(executable.executable, 3),  # type: ignore[arg-type]
        "deserialize(3)": lambda: client.deserialize(3),  # type: ignore[arg-type]
        "deserialize(text)": lambda: client.deserialize("text"),  # type: ignore[arg-type]
        "deserialize(options=3)": lambda: client.deserialize(executable.serialize(), 3),  # type: ignore[arg-type]
        "topology.compile(3)": lambda: topology.compile(OTHER),
        "topology.compile(options=3)": lambda: topology.compile(program, 3),  # type: ignore[arg-type]
        "topology.compile(client=3)": lambda: topology.compile(program, client=OTHER),
        "topology.default_layout": lambda: topology.default_layout(OTHER, (2,)),
        "topology.make_canonical_shape": lambda: topology.make_canonical_shape(
            ElementType.F32,
            (2,),
            memory_space_kind_id="x",  # type: ignore[arg-type]
        ),
        "register_ffi_handler(3)": lambda: client.register_ffi_handler(3, print),  # type: ignore[arg-type]
        "register_ffi_handler(1.5)": lambda: client.register_ffi_handler("x", 1.5),  # type: ignore[arg-type]
        "register_ffi_type(3)": lambda: client.register_ffi_type(3),  # type: ignore[arg-type]
    }
    check(calls)


def test_looking_things_up(client: Client) -> None:
    calls: dict[str, Call] = {
        "lookup_device(a)": lambda: client.lookup_device("a"),  # type: ignore[arg-type]
        "lookup_device(None)": lambda: client.lookup_device(None),  # type: ignore[arg-type]
        "lookup_device(1.0)": lambda: client.lookup_device(1.0),  # type: ignore[arg-type]
        "lookup_addressable_device": lambda: client.lookup_addressable_device("a"),  # type: ignore[arg-type]
        "default_device_assignment(a)": lambda: client.default_device_assignment("a", 1),  # type: ignore[arg-type]
        "default_device_assignment(1.5)": lambda: client.default_device_assignment(1, 1.5),  # type: ignore[arg-type]
        "default_layout(type)": lambda: client.default_layout(OTHER, (2,)),
        "default_layout(3)": lambda: client.default_layout(ElementType.F32, 3),  # type: ignore[arg-type]
        "default_layout(names)": lambda: client.default_layout(ElementType.F32, ("a",)),  # type: ignore[arg-type]
        "update_global_process_info(3)": lambda: client.update_global_process_info(OTHER),
        "update_global_process_info([3])": lambda: client.update_global_process_info([OTHER]),
    }
    check(calls)


def test_numbers_of_numpy_are_whole_numbers(client: Client, device: Device) -> None:
    assert client.lookup_device(np.int64(device.id)) is device  # type: ignore[arg-type]
    with pytest.raises(PjrtError, match=str(1 << 70)):
        client.lookup_device(1 << 70)


def test_buffers_from_the_host(client: Client, device: Device) -> None:
    def put(array: Any = X, **more: Any) -> Call:
        return lambda: client.buffer_from_host(array, **more)

    calls: dict[str, Call] = {
        "array=object": put(OTHER),
        "array=text": put("text"),
        "array=ragged": put([[1], [1, 2]]),
        "device=cpu": put(device="cpu"),
        "device=space": put(device=device.default_memory_space),
        "memory_space=device": put(memory_space="device"),
        "memory_space=the device": put(memory_space=device),
        "layout=3": put(layout=3),
        "semantics=3": put(semantics=3),
        "semantics=x": put(semantics="x"),
        "semantics=None": put(semantics=None),
        "on_done=3": put(on_done_with_host_buffer=3),
        "dlpack": lambda: client.buffer_from_dlpack(3),
        "dlpack to cpu": lambda: client.buffer_from_dlpack(X, device="cpu"),  # type: ignore[arg-type]
    }
    check(calls)


def test_other_new_buffers(client: Client) -> None:
    def view(pointer: Any, spec: Any = SPEC, **more: Any) -> Call:
        return lambda: client.create_view_of_device_buffer(pointer, spec, **more)

    calls: dict[str, Call] = {
        "uninitialized(3)": lambda: client.create_uninitialized_buffer(OTHER),
        "uninitialized(memory_space=3)": lambda: client.create_uninitialized_buffer(SPEC, memory_space=OTHER),
        "error(text)": lambda: client.create_error_buffer("text", SPEC),  # type: ignore[arg-type]
        "error(spec=3)": lambda: client.create_error_buffer(ERROR, OTHER),
        "alias(3)": lambda: client.create_alias_buffer(OTHER),
        "view(p)": view("p"),
        "view(spec=3)": view(64, OTHER),
        "view(device=3)": view(64, device=OTHER),
        "view(on_delete=3)": view(64, on_delete=3),
        "transfers(3)": lambda: client.create_buffers_for_async_host_to_device(OTHER),
        "transfers([3])": lambda: client.create_buffers_for_async_host_to_device([OTHER]),
        "transfers(memory_space=3)": lambda: client.create_buffers_for_async_host_to_device([SPEC], memory_space=OTHER),
        "dma_map": lambda: client.dma_map(3),
        "dma_unmap": lambda: client.dma_unmap(3),
    }
    check(calls)


def test_executing(client: Client, device: Device, executable: LoadedExecutable, x: Buffer) -> None:
    def execute(arguments: Any, options: Any = None, **more: Any) -> Call:
        return lambda: executable.execute(arguments, options, **more)

    def sharded(arguments: Any, device: Any = device, options: Any = None, **more: Any) -> Call:
        return lambda: executable.execute_sharded(arguments, device, options, **more)

    calls: dict[str, Call] = {
        "(object)": lambda: executable(OTHER, OTHER),
        "(text)": lambda: executable("x", "y"),
        "(None, x)": lambda: executable(None, x),
        "execute(5)": execute(5),
        "execute(None)": execute(None),
        "execute([5])": execute([5]),
        "execute([[5]])": execute([[5, 5]]),
        "execute([[array]])": execute([[X, X]]),
        "execute(options=3)": execute([[x, x]], 3),
        "execute(returned_futures=3)": execute([[x, x]], returned_futures=3),
        "sharded(5)": sharded(5),
        "sharded([5])": sharded([5, 5]),
        "sharded(device=3)": sharded([x, x], 3),
        "sharded(device=None)": sharded([x, x], None),
        "sharded(options=3)": sharded([x, x], options=3),
        "sharded(returned_futures=3)": sharded([x, x], returned_futures=3),
    }
    check(calls)
    (result,) = executable(x, x)
    np.testing.assert_array_equal(np.asarray(result), X + X)


def test_executing_a_portable_program(backend: Backend, client: Client, device: Device, x: Buffer) -> None:
    program = backend.programs.double((4,))
    executable = client.compile(program, CompileOptions(compile_portable_executable=True))

    def run(arguments: Any, device: Any = device, options: Any = None) -> Call:
        return lambda: executable.execute_portable(arguments, device, options)

    check({"3": run([x], 3), "None": run([x], None), "5": run(5), "[5]": run([5]), "options=3": run([x], options=3)})
    (result,) = executable.execute_portable([x], device)
    np.testing.assert_array_equal(np.asarray(result), X + X)


def test_copies_and_other_hands(x: Buffer) -> None:
    def raw(*arguments: Any) -> Call:
        return lambda: x.copy_raw_to_host(*arguments)

    calls: dict[str, Call] = {
        "copy_to(x)": lambda: x.copy_to("x"),  # type: ignore[arg-type]
        "copy_to(None)": lambda: x.copy_to(None),  # type: ignore[arg-type]
        "to_host(x)": lambda: x.to_host("x"),  # type: ignore[arg-type]
        "to_host(bytes)": lambda: x.to_host(bytes(16)),  # type: ignore[arg-type]
        "to_host(layout=3)": lambda: x.to_host(layout=3),  # type: ignore[arg-type]
        "raw(3)": raw(3),
        "raw(offset=x)": raw(bytearray(16), "x"),
        "raw(size=x)": raw(bytearray(16), 0, "x"),
        "raw future(3)": lambda: x.copy_raw_to_host_future(OTHER),
        "bitcast(3)": lambda: x.bitcast(OTHER, (4,)),
        "bitcast(shape=3)": lambda: x.bitcast(ElementType.F32, 3),  # type: ignore[arg-type]
        "bitcast(layout=3)": lambda: x.bitcast(ElementType.F32, (4,), 3),  # type: ignore[arg-type]
        "donate(3)": lambda: x.donate_with_control_dependency(OTHER),
        "stream": lambda: x.wait_until_ready_on_stream("x"),  # type: ignore[arg-type]
        "remote": lambda: x.copy_to_remote_device(OTHER),
    }
    check(calls)
    np.testing.assert_array_equal(np.asarray(x), X)


def test_transfers_in_pieces(client: Client) -> None:
    with client.create_buffers_for_async_host_to_device([SPEC]) as transfers:
        calls: dict[str, Call] = {
            "buffer_size": lambda: transfers.buffer_size("x"),  # type: ignore[arg-type]
            "retrieve_buffer": lambda: transfers.retrieve_buffer(0.5),  # type: ignore[arg-type]
            "transfer_data(3)": lambda: transfers.transfer_data(0, 3),
            "transfer_data(offset=x)": lambda: transfers.transfer_data(0, X, "x"),  # type: ignore[arg-type]
            "transfer_literal": lambda: transfers.transfer_literal(0, OTHER),
            "set_buffer_error": lambda: transfers.set_buffer_error(0, "text"),  # type: ignore[arg-type]
            "add_metadata": lambda: transfers.add_metadata(3),  # type: ignore[arg-type]
        }
        check(calls)
        buffer = transfers.retrieve_buffer(0)
        transfers.transfer_data(0, X).result(60)
        np.testing.assert_array_equal(np.asarray(buffer), X)


def test_devices(device: Device) -> None:
    calls: Iterable[tuple[str, Call]] = [
        ("poison(x)", lambda: device.poison_execution("x", ERROR)),  # type: ignore[arg-type]
        ("poison(text)", lambda: device.poison_execution(1, "text")),  # type: ignore[arg-type]
        ("track", lambda: device.create_async_tracking_event(3)),  # type: ignore[arg-type]
    ]
    check(dict(calls))

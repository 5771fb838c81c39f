"""The requests about executables, by messages and without a transport."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from protocol_client import ProtocolClient, connected

import pjrt
from pjrt import ifrt
from pjrt.api.shape_spec import TiledLayout
from pjrt.remote import serve
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_of, error_of, layout_of_xla_proto, shape_of, sharding_of
from pjrt.remote.security.credentials import ServerSecurity
from pjrt.remote.server.executables import HostCallback
from pjrt.remote.server.memory import bytes_of
from pjrt.stablehlo import serialize
from pjrt.stablehlo.ir.mlir_module import parse, write_bytecode

DOUBLE = """module @double {
  func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %x, %x : tensor<3xf32>
    return %0 : tensor<3xf32> } }"""
DONATES = """module @donates {
  func.func @main(%x: tensor<3xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %x, %y : tensor<3xf32>
    return %0 : tensor<3xf32> } }"""
SPLIT = """module @split attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  func.func @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"})
      -> (tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}, tensor<f32> {mhlo.sharding = "{replicated}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0, %sum : tensor<4xf32>, tensor<f32> } }"""
SENDS = """module @sends {
  func.func @main(%x: tensor<3xf32>) -> tensor<2xi32> {
    %t = stablehlo.create_token : !stablehlo.token
    %s = "stablehlo.send"(%x, %t) {channel_handle = #stablehlo.channel_handle<handle = 5, type = 2>,
      is_host_transfer = true} : (tensor<3xf32>, !stablehlo.token) -> !stablehlo.token
    %r:2 = "stablehlo.recv"(%s) {channel_handle = #stablehlo.channel_handle<handle = 6, type = 3>,
      is_host_transfer = true} : (!stablehlo.token) -> (tensor<2xi32>, !stablehlo.token)
    return %r#0 : tensor<2xi32> } }"""


@pytest.fixture(scope="module", params=["cpu", "reference"])
def speaker(request: pytest.FixtureRequest) -> Iterator[ProtocolClient]:
    with pjrt.client(request.param, num_devices=2) as client, connected(client) as speaker:
        yield speaker


@pytest.fixture
def reference() -> Iterator[ProtocolClient]:
    with pjrt.client("reference") as client, connected(client) as speaker:
        yield speaker


def compiling(speaker: ProtocolClient, text: str, callbacks: tuple[bytes, ...] = (), **options: Any) -> int:
    proto = wire.XlaCompileOptionsProto(compile_options=pjrt.CompileOptions(**options).to_proto())
    return speaker.send(
        "compile",
        program=wire.Serialized(type_name="xla::ifrt::XlaProgram", data=serialize(text, "1.0.0").code),
        compile_options=wire.Serialized(type_name="xla::ifrt::XlaCompileOptions", data=proto.SerializeToString()),
        host_callbacks=callbacks,
    )


def compiled(speaker: ProtocolClient, text: str, **options: Any) -> int:
    handle: int = speaker.wait(compiling(speaker, text, **options)).loaded_executable_handle
    return handle


def execute(speaker: ProtocolClient, executable: int, *arguments: int, **fields: Any) -> Any:
    return speaker.ask(
        "loaded_executable_execute", loaded_executable_handle=executable, args_handles=arguments, **fields
    )


def test_compile(speaker: ProtocolClient) -> None:
    response = speaker.wait(compiling(speaker, DOUBLE))
    again = speaker.wait(compiling(speaker, DOUBLE))
    assert response.name == "double"
    assert (response.num_devices, list(response.device_ids), list(response.addressable_device_ids)) == (1, [0], [0])
    assert response.fingerprint_value == again.fingerprint_value != b""
    assert response.loaded_executable_handle != again.loaded_executable_handle
    speaker.ask("check_future", future_handle=response.ready_future_handle)


@pytest.mark.parametrize(
    ("error", "reported"), [(pjrt.UnimplementedError("no"), None), (pjrt.InternalError("bad"), "fingerprint_error")]
)
def test_a_program_without_a_fingerprint(
    speaker: ProtocolClient, monkeypatch: pytest.MonkeyPatch, error: pjrt.PjrtError, reported: str | None
) -> None:
    """JAX goes on where a device has no fingerprints; a failure is an error there."""

    def fail(_: ifrt.LoadedExecutable) -> bytes:
        raise error

    monkeypatch.setattr(ifrt.LoadedExecutable, "fingerprint", fail)
    assert speaker.wait(compiling(speaker, DOUBLE)).WhichOneof("fingerprint") == reported


@pytest.mark.parametrize("vets", [True, False])
def test_a_damaged_program_of_a_stranger_is_an_error(vets: bool) -> None:
    """MLIR's bindings end the process at an operation's name that is not UTF-8, so a subprocess parses it first."""
    code = write_bytecode(parse(DOUBLE.encode())).replace(b"add", b"a\xffd")
    assert b"a\xffd" in code
    with pjrt.client("reference") as client, connected(client, vet_programs=vets) as speaker:
        with pytest.raises(pjrt.DataLossError, match="make the native parser crash"):
            speaker.ask(
                "compile",
                program=wire.Serialized(type_name="xla::ifrt::XlaProgram", data=code),
                compile_options=wire.Serialized(
                    type_name="xla::ifrt::XlaCompileOptions", data=wire.XlaCompileOptionsProto().SerializeToString()
                ),
            )
        assert compiled(speaker, DOUBLE)


@pytest.mark.parametrize(
    ("address", "option", "vetted"),
    [("127.0.0.1:0", None, False), ("127.0.0.1:0", True, True), ("0.0.0.0:0", None, True), ("0.0.0.0:0", False, False)],
)
def test_programs_of_other_machines_are_vetted(
    address: str, option: bool | None, vetted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerSecurity, "check", lambda self, place: place)
    programs: list[pjrt.Program] = []
    monkeypatch.setattr("pjrt.remote.server.requests.vet", programs.append)
    with pjrt.client("reference") as client, serve(client, address, vet_programs=option) as server:
        port = server.address.rpartition(":")[2]
        with pjrt.client("remote", address=f"grpc://127.0.0.1:{port}") as remote:
            remote.compile(DOUBLE)
    assert len(programs) == vetted


def test_compile_for_a_chosen_device(speaker: ProtocolClient) -> None:
    response = speaker.wait(compiling(speaker, DOUBLE, device_assignment=pjrt.DeviceAssignment(((1,),))))
    assert list(response.device_ids) == [1]


def test_an_error_of_the_compiler(speaker: ProtocolClient) -> None:
    text = DOUBLE.replace("stablehlo.add %x, %x :", "stablehlo.custom_call @no_such_target(%x) :").replace(
        ": tensor<3xf32>\n    return", ": (tensor<3xf32>) -> tensor<3xf32>\n    return"
    )
    with pytest.raises(pjrt.PjrtError, match="no_such_target"):
        speaker.wait(compiling(speaker, text))


@pytest.mark.parametrize(
    ("type_name", "reason"),
    [
        ("xla::ifrt::PluginProgram", "one vendor"),
        ("xla::ifrt::CustomCallProgram", "Python functions of the client"),
        ("xla::ifrt::IfrtIRProgram", "several meshes"),
        ("mine", "unknown"),
    ],
)
def test_programs_of_other_kinds_are_refused(speaker: ProtocolClient, type_name: str, reason: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=f"{type_name}.*{reason}"):
        speaker.ask("compile", program={"type_name": type_name, "data": b"x"})


@pytest.mark.parametrize(
    ("fields", "kind", "reason"),
    [
        ({"compile_options": {"type_name": "xla::ifrt::PluginCompileOptions"}}, pjrt.UnimplementedError, "Plugin"),
        (
            {"compile_options": {"type_name": "xla::ifrt::XlaCompileOptions", "data": b"\xff"}},
            pjrt.InvalidArgumentError,
            "other bytes",
        ),
        ({"program": {"type_name": "xla::ifrt::XlaProgram", "data": b"\xff\xfe"}}, pjrt.PjrtError, "."),
        ({"host_callbacks": [b"\xff"]}, pjrt.InvalidArgumentError, "XlaHostCallbackProto"),
        ({"host_callbacks": [b""]}, pjrt.InvalidArgumentError, "found one without"),
    ],
)
def test_damaged_requests_to_compile(
    speaker: ProtocolClient, fields: dict[str, Any], kind: type[pjrt.PjrtError], reason: str
) -> None:
    fields = {
        "program": {"type_name": "xla::ifrt::XlaProgram", "data": DOUBLE.encode()},
        "compile_options": {"type_name": "xla::ifrt::XlaCompileOptions"},
        **fields,
    }
    with pytest.raises(kind, match=reason):
        speaker.ask("compile", **fields)


def test_metadata(speaker: ProtocolClient) -> None:
    response = speaker.ask("loaded_executable_metadata", loaded_executable_handle=compiled(speaker, DONATES))
    assert not response.HasField("parameter_shardings")
    assert not response.HasField("output_shardings")
    assert list(map(layout_of_xla_proto, response.parameter_layouts_list.layouts)) == [TiledLayout((0,))] * 2
    assert list(map(layout_of_xla_proto, response.output_layouts_list.layouts)) == [TiledLayout((0,))]
    assert [list(row.memory_kinds) for row in response.output_memory_kinds.memory_kind_lists] == [["device"]]
    assert list(response.donated_input_indices.donated_input_indices) == [0]
    assert response.compiled_memory_stats.argument_size_in_bytes == 24
    assert response.size_of_generated_code_in_bytes >= 0


def test_metadata_of_a_program_of_two_partitions(speaker: ProtocolClient) -> None:
    executable = compiled(speaker, SPLIT, num_partitions=2)
    response = speaker.ask("loaded_executable_metadata", loaded_executable_handle=executable)
    cut, whole = (ifrt.HloSharding.from_proto(speaker.ifrt.devices, s) for s in response.output_shardings.shardings)
    assert (cut.shard_shape((4,)), whole.is_fully_replicated) == ((2,), True)
    assert list(response.parameter_shardings.shardings) == [response.output_shardings.shardings[0]]


def test_costs_and_text(speaker: ProtocolClient) -> None:
    executable = compiled(speaker, DOUBLE)
    costs = speaker.ask("loaded_executable_cost_analysis", loaded_executable_handle=executable)
    numbers = {entry.key: entry.value.float_value for entry in costs.attributes.attributes}
    assert numbers["flops"] == 3
    text = speaker.ask("loaded_executable_human_readable_program_text", loaded_executable_handle=executable)
    assert "add" in text.human_readable_program_text
    response = speaker.ask("optimized_program", loaded_executable_handle=executable)
    assert b"add" in response.code
    assert response.format in tuple(pjrt.ProgramFormat)


@pytest.mark.parametrize("kind", ["loaded_executable_cost_analysis", "loaded_executable_human_readable_program_text"])
def test_these_errors_are_inside_of_the_response(speaker: ProtocolClient, kind: str) -> None:
    """jaxlib's client fails with "Bad StatusOr access" otherwise."""
    error = error_of(speaker.ask(kind, loaded_executable_handle=77).status)
    assert isinstance(error, pjrt.NotFoundError)


def test_the_first_execution_describes_the_results(speaker: ProtocolClient) -> None:
    executable = compiled(speaker, SPLIT, num_partitions=2)
    value = np.float32([1, 2, 3, 4])
    response = execute(speaker, executable, speaker.put(value, ifrt.Mesh(speaker.ifrt.devices, {"x": 2}).sharding("x")))
    cut, whole = response.outputs
    assert [shape_of(output.shape) for output in response.outputs] == [(4,), ()]
    assert {element_type_of(output.dtype).name for output in response.outputs} == {"F32"}
    assert sharding_of(speaker.ifrt, cut.sharding).shard_shape((4,)) == (2,)
    assert sharding_of(speaker.ifrt, whole.sharding).is_fully_replicated
    assert speaker.get(cut.array_handle, (4,)).tolist() == [2, 4, 6, 8]
    assert speaker.get(whole.array_handle, ()) == 10


def test_later_executions_have_the_handles_of_the_client(speaker: ProtocolClient) -> None:
    executable, array, result = compiled(speaker, DOUBLE), speaker.put(np.float32([1, 2, 3])), speaker.handle()
    response = execute(speaker, executable, array, result_array_handle=[result])
    assert not response.outputs
    assert not response.status_handle
    # Nobody waits between two executions.
    further = speaker.handle()
    speaker.send(
        "loaded_executable_execute",
        loaded_executable_handle=executable,
        args_handles=[result],
        result_array_handle=[further],
    )
    assert speaker.get(further, (3,)).tolist() == [4, 8, 12]


def test_an_executable_may_be_forgotten_behind_an_execution_that_waits(speaker: ProtocolClient) -> None:
    executable, value = compiled(speaker, DOUBLE), np.float32([1, 2, 3])
    array, result = speaker.handle(), speaker.handle()
    fields = {"host_buffer_handle": array, "array_handle": array}
    speaker.send("make_array_from_host_buffer", **speaker.array_fields(value), **fields)
    speaker.send(
        "loaded_executable_execute",
        loaded_executable_handle=executable,
        args_handles=[array],
        result_array_handle=[result],
    )
    forgetting = speaker.send("loaded_executable_destruct", loaded_executable_handle=executable)
    speaker.session.host_buffers.store(array, bytes_of(value, None))
    speaker.wait(forgetting)
    assert speaker.get(result, (3,)).tolist() == [2, 4, 6]


@pytest.mark.parametrize("by_client", [False, True])
def test_the_status_of_an_execution(speaker: ProtocolClient, by_client: bool) -> None:
    executable, array = compiled(speaker, DOUBLE), speaker.put(np.float32([1, 2, 3]))
    fields = {"result_status_handle": speaker.handle(), "result_array_handle": [speaker.handle()]} if by_client else {}
    response = execute(speaker, executable, array, execute_options={"fill_status": True}, **fields)
    assert response.status_handle == fields.get("result_status_handle", response.status_handle) != 0
    speaker.ask("loaded_executable_fetch_execute_result", result_status_handle=response.status_handle)
    with pytest.raises(pjrt.NotFoundError):
        speaker.ask("loaded_executable_fetch_execute_result", result_status_handle=response.status_handle)


def test_donation(speaker: ProtocolClient) -> None:
    executable = compiled(speaker, DONATES)
    x, y = speaker.put(np.float32([1, 2, 3])), speaker.put(np.float32([1, 1, 1]))
    kept = execute(speaker, executable, x, y, execute_options={"non_donatable_input_indices": [0], "launch_id": 7})
    assert not speaker.ask("is_array_deleted", array_handle=x).deleted
    donated = execute(speaker, executable, x, y)
    assert speaker.ask("is_array_deleted", array_handle=x).deleted
    assert not speaker.ask("is_array_deleted", array_handle=y).deleted
    for response in (kept, donated):
        assert speaker.get(response.outputs[0].array_handle, (3,)).tolist() == [2, 3, 4]
    with pytest.raises(pjrt.FailedPreconditionError, match="deleted"):
        execute(speaker, executable, x, y)


@pytest.mark.parametrize("what", ["executable", "argument", "shape", "count", "device", "handles"])
def test_a_refused_execution_fails_all_that_it_would_have_made(speaker: ProtocolClient, what: str) -> None:
    executable, array = compiled(speaker, DOUBLE), speaker.put(np.float32([1, 2, 3]))
    results, status = [speaker.handle(), speaker.handle()][: 2 if what == "handles" else 1], speaker.handle()
    arguments = {"argument": [999], "shape": [speaker.put(np.float32([1]))], "count": [array, array]}.get(what, [array])
    with pytest.raises(pjrt.PjrtError) as refused:
        execute(
            speaker,
            12345 if what == "executable" else executable,
            *arguments,
            device_ids=[1] if what == "device" else [],
            execute_options={"fill_status": True},
            result_array_handle=results,
            result_status_handle=status,
        )
    for handle in results:
        with pytest.raises(type(refused.value)) as poisoned:
            speaker.ask("check_value_ready", value_handles=[handle])
        assert poisoned.value.message == refused.value.message
    with pytest.raises(type(refused.value)):
        speaker.ask("loaded_executable_fetch_execute_result", result_status_handle=status)


def test_an_execution_that_fails_gives_its_error_to_what_follows(reference: ProtocolClient) -> None:
    """Nothing receives what the program sends."""
    executable = compiled(reference, SENDS)
    response = execute(
        reference, executable, reference.put(np.float32([1, 2, 3])), execute_options={"fill_status": True}
    )
    message = "wants to send on channel 5"
    with pytest.raises(pjrt.NotFoundError, match=message):
        reference.ask("check_value_ready", value_handles=[response.outputs[0].array_handle])
    with pytest.raises(pjrt.NotFoundError, match=message):
        reference.ask("loaded_executable_fetch_execute_result", result_status_handle=response.status_handle)


def test_deletion(speaker: ProtocolClient) -> None:
    executable, array = compiled(speaker, DOUBLE), speaker.put(np.float32([1, 2, 3]))
    assert not speaker.ask("loaded_executable_is_deleted", loaded_executable_handle=executable).is_deleted
    deletion = speaker.ask("loaded_executable_delete", loaded_executable_handle=executable)
    speaker.ask("check_future", future_handle=deletion.future_handle)
    assert speaker.ask("loaded_executable_is_deleted", loaded_executable_handle=executable).is_deleted
    with pytest.raises(pjrt.PjrtError, match="deleted"):
        execute(speaker, executable, array)
    speaker.ask("loaded_executable_destruct", loaded_executable_handle=executable)
    with pytest.raises(pjrt.NotFoundError):
        execute(speaker, executable, array)


# Host callbacks. jaxlib's client makes none of these calls; the messages are those of the protocol.


def callback() -> bytes:
    def shape(element_type: int, size: int) -> Any:
        return wire.XlaShapeProto(element_type=element_type, dimensions=[size])

    proto = wire.XlaHostCallbackProto(
        operands=[{"channel_id": 5, "shape": shape(11, 3)}], results=[{"channel_id": 6, "shape": shape(4, 2)}]
    )
    serialized: bytes = proto.SerializeToString()
    return serialized


def polling(speaker: ProtocolClient, callback: int) -> tuple[int, int]:
    """Poll; return the handle of the operands, and the number of the request."""
    operands = speaker.handle()
    return operands, speaker.send(
        "loaded_host_callback_poll", loaded_host_callback_handle=callback, operand_host_buffer_handle=operands
    )


@pytest.mark.parametrize("polls_first", [True, False])
def test_a_program_calls_a_function_of_the_client(reference: ProtocolClient, polls_first: bool) -> None:
    response = reference.wait(compiling(reference, SENDS, (callback(),)))
    executable, (function,) = response.loaded_executable_handle, response.loaded_host_callback_handles
    array = reference.put(np.float32([1, 2, 3]))
    for numbers in ([4, 5], [6, 7]):
        if polls_first:
            operands, poll = polling(reference, function)
        result = execute(reference, executable, array).outputs[0].array_handle
        if not polls_first:
            operands, poll = polling(reference, function)
        call = reference.wait(poll).host_callback_execution_handle
        sent = bytes(reference.session.host_buffers.take(operands))
        assert np.frombuffer(sent, np.float32).tolist() == [1, 2, 3]
        buffer = reference.handle()
        # The answer may be on its way before its bytes are.
        returning = reference.send(
            "loaded_host_callback_return", host_callback_execution_handle=call, result_host_buffer_handle=buffer
        )
        reference.session.host_buffers.store(buffer, np.int32(numbers).tobytes())
        reference.wait(returning)
        assert reference.get(result, (2,), np.int32).tolist() == numbers
    # The polls end with the executable: a client would poll for ever after an error.
    _, poll = polling(reference, function)
    reference.ask("loaded_executable_destruct", loaded_executable_handle=executable)
    assert not reference.wait(poll).HasField("host_callback_execution_handle")
    _, poll = polling(reference, function)
    assert not reference.wait(poll).HasField("host_callback_execution_handle")


def called(speaker: ProtocolClient) -> tuple[int, int, int]:
    """Run a program that calls the client; return the executable, the result and the call."""
    response = speaker.wait(compiling(speaker, SENDS, (callback(),)))
    _, poll = polling(speaker, response.loaded_host_callback_handles[0])
    executable = response.loaded_executable_handle
    result = execute(speaker, executable, speaker.put(np.float32([1, 2, 3]))).outputs[0].array_handle
    return executable, result, speaker.wait(poll).host_callback_execution_handle


def test_a_function_of_the_client_that_fails(reference: ProtocolClient) -> None:
    executable, result, call = called(reference)
    # An execution under way keeps its callbacks.
    reference.ask("loaded_executable_destruct", loaded_executable_handle=executable)
    reference.ask(
        "loaded_host_callback_return",
        host_callback_execution_handle=call,
        error={"code": 11, "message": "the function has had enough"},
    )
    with pytest.raises(pjrt.OutOfRangeError, match="the function has had enough"):
        reference.ask("check_value_ready", value_handles=[result])
    with pytest.raises(pjrt.NotFoundError):
        reference.ask("loaded_host_callback_return", host_callback_execution_handle=call, error={"code": 11})


def test_results_of_another_size(reference: ProtocolClient) -> None:
    _, result, call = called(reference)
    buffer = reference.handle()
    reference.session.host_buffers.store(buffer, b"12345")
    reference.ask("loaded_host_callback_return", host_callback_execution_handle=call, result_host_buffer_handle=buffer)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected 8 bytes .* found 5"):
        reference.ask("check_value_ready", value_handles=[result])


@pytest.mark.parametrize("is_taken", [True, False])
def test_the_end_of_a_session_ends_programs_that_wait_for_the_client(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, call = queue.SimpleQueue[HostCallback](), HostCallback.call

    def note(callback: HostCallback, operands: bytes) -> Any:
        future = call(callback, operands)
        calls.put(callback)
        return future

    monkeypatch.setattr(HostCallback, "call", note)
    with pjrt.client("reference") as client:
        with connected(client) as speaker:
            if is_taken:
                _, handle, _ = called(speaker)
            else:
                executable = speaker.wait(compiling(speaker, SENDS, (callback(),))).loaded_executable_handle
                array = speaker.put(np.float32([1, 2, 3]))
                handle = execute(speaker, executable, array).outputs[0].array_handle
            calls.get(timeout=120)
            ready = speaker.session.arrays.get(handle).ready()
        with pytest.raises(pjrt.CancelledError, match="the session has ended"):
            ready.result(60)


def test_a_result_whose_shape_is_known_after_a_run(reference: ProtocolClient) -> None:
    text = """module @counts {
  func.func @main(%n: tensor<1xi32>) -> tensor<?xi32> {
    %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
    return %0 : tensor<?xi32> } }"""
    with pytest.raises(pjrt.UnimplementedError, match="known only after a run; give the shapes"):
        compiled(reference, text)

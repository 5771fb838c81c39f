"""Programs on several devices of a server: buffers as parts of arrays, and the messages that they cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import CancelledError, FailedPreconditionError, InvalidArgumentError

SUM = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
DONATED = SUM.replace("%x: tensor<4xf32>)", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32})")
SECONDS = 60

X = np.arange(4, dtype=np.float32)


def rows(client: Any) -> list[list[Any]]:
    """Return an argument on each device: X, and X times ten."""
    places = zip((1, 10), client.devices, strict=True)
    return [[client.buffer_from_host(X * scale, device=device)] for scale, device in places]


def test_a_loop_costs_a_message_a_step(client: Any, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = client.compile(SUM, CompileOptions(num_replicas=2))
    arguments = executable.execute(rows(client))
    arguments[0][0].ready().result(SECONDS)
    kinds: Counter[str] = Counter()
    send = client.connection.send

    def counted(request: Any, reply: Any = None) -> None:
        kinds[request.WhichOneof("request").removesuffix("_request")] += 1
        send(request, reply)

    monkeypatch.setattr(client.connection, "send", counted)
    for _ in range(50):
        arguments = executable.execute(arguments)
    value = np.asarray(arguments[0][0])
    np.testing.assert_array_equal(value, 11 * X * 2.0**50)
    del kinds["destruct_array"]  # releases, in batches: how many depends on the pace
    of_the_value = {"disassemble_into_single_device_arrays": 1, "copy_to_host_buffer": 1}
    assert kinds == {"loaded_executable_execute": 50, **of_the_value}
    del arguments
    wait_until(lambda: len(session.arrays) == 0)


def test_arguments_are_assembled_once(client: Any, session: Any) -> None:
    executable = client.compile(SUM, CompileOptions(num_replicas=2))
    arguments = rows(client)
    results = [executable.execute(arguments) for _ in range(10)]
    for (first,), (second,) in results:
        np.testing.assert_array_equal(np.asarray(first), 11 * X)
        np.testing.assert_array_equal(np.asarray(second), 11 * X)
    np.testing.assert_array_equal(np.asarray(arguments[1][0]), 10 * X)
    del results, first, second, arguments
    wait_until(lambda: len(session.arrays) == 0)


def test_a_part_may_go_before_the_others(client: Any, session: Any) -> None:
    executable = client.compile(SUM, CompileOptions(num_replicas=2))
    (first,), (second,) = executable.execute(rows(client))
    first.delete()
    wait_until(lambda: len(session.arrays) == 1)
    np.testing.assert_array_equal(np.asarray(second), 11 * X)
    with pytest.raises(FailedPreconditionError):
        first.to_host()
    with pytest.raises(FailedPreconditionError):
        executable.execute([[first], [second]])
    # The part that is left goes into a new array.
    again = executable.execute([[client.buffer_from_host(X, device=client.devices[0])], [second]])
    np.testing.assert_array_equal(np.asarray(again[1][0]), 12 * X)


def test_parts_in_another_order_are_refused_or_right(client: Any) -> None:
    executable = client.compile(SUM, CompileOptions(num_replicas=2))
    (first,), (second,) = executable.execute(rows(client))
    with pytest.raises(InvalidArgumentError, match="copy_to"):
        executable.execute([[second], [first]])
    third = client.buffer_from_host(X, device=client.devices[1])
    results = executable.execute([[first], [third]])
    np.testing.assert_array_equal(np.asarray(results[0][0]), 12 * X)


def test_donated_parts_are_used_up(client: Any, session: Any) -> None:
    executable = client.compile(DONATED, CompileOptions(num_replicas=2))
    arguments = rows(client)
    for _ in range(3):
        used, arguments = arguments, executable.execute(arguments)
        assert all(buffer.is_deleted for row in used for buffer in row)
        with pytest.raises(FailedPreconditionError):
            executable.execute(used)
    np.testing.assert_array_equal(np.asarray(arguments[1][0]), 44 * X)
    del used, arguments
    wait_until(lambda: len(session.arrays) == 0)


def test_results_of_a_launch_that_lacks_devices_can_be_waited_for(client: Any) -> None:
    executable = client.compile(SUM, CompileOptions(num_replicas=2))
    arguments = rows(client)
    (first,) = executable.execute_sharded(arguments[0], client.devices[0])
    value, ready = first.to_host(), first.ready()
    assert not value.done()
    assert not ready.done()
    with pytest.raises(FailedPreconditionError, match="execute_sharded"):
        first.copy_to(client.devices[1])
    (second,) = executable.execute_sharded(arguments[1], client.devices[1])
    np.testing.assert_array_equal(value.result(SECONDS), 11 * X)
    np.testing.assert_array_equal(np.asarray(second), 11 * X)
    ready.result(SECONDS)


def test_a_close_ends_a_launch_that_lacks_devices(client: Any) -> None:
    executable = client.compile(SUM, CompileOptions(num_replicas=2))
    futures: list[Any] = []
    (first,) = executable.execute_sharded(rows(client)[0], client.devices[0], returned_futures=futures)
    value = first.to_host()
    client.close()
    for future in (value, *futures):
        with pytest.raises(CancelledError, match="closed"):
            future.result(SECONDS)

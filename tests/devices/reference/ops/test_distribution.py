"""Collectives on several devices: every kind of group against the answer worked out by hand, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

import pjrt
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.client import ReferenceClient
from pjrt.devices.reference.core import mlir


@pytest.fixture(scope="module")
def client() -> Any:
    with pjrt.client("reference", num_devices=8, collective_timeout=100.0) as made:
        yield made


def launch(client: Any, text: str, per_device: Sequence[Sequence[Any]], replicas: int, partitions: int) -> Any:
    """The results of a program, one list a device, replica by replica."""
    options = pjrt.CompileOptions(
        num_replicas=replicas, num_partitions=partitions, use_spmd_partitioning=False if partitions > 1 else None
    )
    exe = client.compile(text, options)
    devices = client.devices[: replicas * partitions]
    rows = [
        [client.buffer_from_host(value, device=device) for value in values]
        for values, device in zip(per_device, devices, strict=True)
    ]
    return [[np.asarray(out) for out in row] for row in exe.execute(rows)]


ADD = """({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  })"""


def one_op(name: str, attributes: str, given: str = "2xf32", made: str = "2xf32", region: str = "") -> str:
    return f"""func.func @main(%x: tensor<{given}>) -> tensor<{made}> {{
      %0 = "stablehlo.{name}"(%x) {region} {{{attributes}}} : (tensor<{given}>) -> tensor<{made}>
      return %0 : tensor<{made}> }}"""


def groups(rows: Any) -> str:
    table = np.array(rows)
    return f"replica_groups = dense<{rows}> : tensor<{'x'.join(map(str, table.shape))}xi64>"


CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
GLOBAL = "use_global_device_ids"
POWERS = [[np.array([1, 10], np.float32) * 2**i] for i in range(8)]


def sums(members: Sequence[Sequence[int]]) -> list[list[float]]:
    """For each device the sum over the group that it is in."""
    found: dict[int, list[float]] = {}
    for group in members:
        total = sum(2.0**i for i in group)
        found |= {i: [total, 10 * total] for i in group}
    return [found[i] for i in sorted(found)]


# Devices are numbered replica by replica: with 4 replicas and 2 partitions device 2 r + p is (r, p).
@pytest.mark.parametrize(
    ("replicas", "partitions", "attributes", "members"),
    [
        (8, 1, groups([[0, 1, 2, 3, 4, 5, 6, 7]]), [range(8)]),
        (8, 1, groups([[0, 2, 4, 6], [1, 3, 5, 7]]), [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (4, 2, groups([[0, 1], [2, 3]]), [[0, 2], [1, 3], [4, 6], [5, 7]]),  # across replicas
        (4, 2, f"{groups([[0, 1], [2, 3]])}, {CHANNEL}", [[0, 1, 2, 3], [4, 5, 6, 7]]),  # and partitions
        (4, 2, f"{groups([[0, 7], [1, 6], [2, 5], [3, 4]])}, {CHANNEL}, {GLOBAL}", [[0, 7], [1, 6], [2, 5], [3, 4]]),
        (1, 8, f"{groups([[0, 1, 2, 3], [4, 5, 6, 7]])}, {CHANNEL}, {GLOBAL}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (3, 1, groups([[0, 1], [2, -1]]), [[0, 1], [2]]),
    ],
)
def test_all_reduce(client: Any, replicas: int, partitions: int, attributes: str, members: Any) -> None:
    text = one_op("all_reduce", attributes, region=ADD)
    found = launch(client, text, POWERS[: replicas * partitions], replicas, partitions)
    assert [row[0].tolist() for row in found] == sums(members)


def test_all_reduce_with_any_body(client: Any) -> None:
    """The difference, which needs the order of the group."""
    region = ADD.replace("stablehlo.add", "stablehlo.subtract")
    found = launch(client, one_op("all_reduce", groups([[2, 0, 1]]), region=region), POWERS[:3], 3, 1)
    assert [row[0].tolist() for row in found] == [[1, 10]] * 3


def test_all_reduce_of_several_operands(client: Any) -> None:
    text = f"""func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> (tensor<2xf32>, tensor<3xf32>) {{
      %0:2 = "stablehlo.all_reduce"(%x, %y) {ADD} {{{groups([[0, 1]])}}}
        : (tensor<2xf32>, tensor<3xf32>) -> (tensor<2xf32>, tensor<3xf32>)
      return %0#0, %0#1 : tensor<2xf32>, tensor<3xf32> }}"""
    args = [[np.full(2, i, np.float32), np.full(3, 10 * i, np.float32)] for i in (1, 2)]
    for row in launch(client, text, args, 2, 1):
        assert [r.tolist() for r in row] == [[3, 3], [30, 30, 30]]


def test_all_gather(client: Any) -> None:
    args = [[np.array([[i, i + 0.5]], np.float32)] for i in range(4)]
    rows = launch(
        client,
        one_op("all_gather", f"all_gather_dim = 0 : i64, {groups([[0, 1], [3, 2]])}", "1x2xf32", "2x2xf32"),
        args,
        4,
        1,
    )
    assert rows[0][0].tolist() == rows[1][0].tolist() == [[0, 0.5], [1, 1.5]]
    assert rows[2][0].tolist() == rows[3][0].tolist() == [[3, 3.5], [2, 2.5]]
    rows = launch(
        client,
        one_op("all_gather", f"all_gather_dim = 1 : i64, {groups([[0, 1]])}", "1x2xf32", "1x4xf32"),
        args[:2],
        2,
        1,
    )
    assert rows[0][0].tolist() == [[0, 0.5, 1, 1.5]]


def test_reduce_scatter(client: Any) -> None:
    args = [[np.arange(6, dtype=np.float32).reshape(2, 3) * 10**i] for i in range(3)]
    text = one_op("reduce_scatter", f"scatter_dimension = 1 : i64, {groups([[0, 1, 2]])}", "2x3xf32", "2x1xf32", ADD)
    rows = launch(client, text, args, 3, 1)
    assert [row[0].ravel().tolist() for row in rows] == [[0, 333], [111, 444], [222, 555]]


@pytest.mark.parametrize(("replicas", "partitions", "channel"), [(2, 1, ""), (1, 2, f", {CHANNEL}")])
def test_all_to_all(client: Any, replicas: int, partitions: int, channel: str) -> None:
    args = [[np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32) + 10 * i] for i in range(2)]
    attributes = (
        f"split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, {groups([[0, 1]])}{channel}"
    )
    rows = launch(client, one_op("all_to_all", attributes, "2x4xf32", "4x2xf32"), args, replicas, partitions)
    assert rows[0][0].tolist() == [[1, 2], [5, 6], [11, 12], [15, 16]]
    assert rows[1][0].tolist() == [[3, 4], [7, 8], [13, 14], [17, 18]]


@pytest.mark.parametrize(("replicas", "partitions", "channel"), [(4, 1, ""), (1, 4, f", {CHANNEL}")])
def test_collective_permute(client: Any, replicas: int, partitions: int, channel: str) -> None:
    attributes = f"source_target_pairs = dense<[[0, 1], [1, 2], [2, 0]]> : tensor<3x2xi64>{channel}"
    rows = launch(client, one_op("collective_permute", attributes), POWERS[:4], replicas, partitions)
    assert [row[0].tolist() for row in rows] == [[4, 40], [1, 10], [2, 20], [0, 0]]


@pytest.mark.parametrize(("replicas", "partitions", "channel"), [(4, 1, ""), (1, 4, f", {CHANNEL}")])
def test_collective_broadcast(client: Any, replicas: int, partitions: int, channel: str) -> None:
    rows = launch(
        client, one_op("collective_broadcast", f"{groups([[2, 0]])}{channel}"), POWERS[:4], replicas, partitions
    )
    assert [row[0].tolist() for row in rows] == [[4, 40], [0, 0], [4, 40], [0, 0]]


def test_ids(client: Any) -> None:
    text = """func.func @main() -> (tensor<ui32>, tensor<ui32>) {
      %r = stablehlo.replica_id : tensor<ui32>
      %p = stablehlo.partition_id : tensor<ui32>
      return %r, %p : tensor<ui32>, tensor<ui32> }"""
    rows = launch(client, text, [[]] * 6, 3, 2)
    assert [[int(v) for v in row] for row in rows] == [[r, p] for r in range(3) for p in range(2)]
    assert all(v.dtype == np.uint32 for row in rows for v in row)


def test_the_older_sum(client: Any) -> None:
    rows = launch(client, one_op("cross-replica-sum", groups([[0, 1]])), POWERS[:2], 2, 1)
    assert [row[0].tolist() for row in rows] == [[3, 30]] * 2


def test_collectives_in_a_loop(client: Any) -> None:
    """Each round is a rendezvous of its own: after three rounds of sums over four devices, 64 times the sum of all."""
    text = f"""func.func @main(%x: tensor<f32>) -> tensor<f32> {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.constant dense<3> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<f32>
        cond {{
          %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        }} do {{
          %j = stablehlo.add %i, %one : tensor<i32>
          %s = "stablehlo.all_reduce"(%v) {ADD} {{{groups([[0, 1, 2, 3]])}}} : (tensor<f32>) -> tensor<f32>
          stablehlo.return %j, %s : tensor<i32>, tensor<f32>
        }}
      return %r#1 : tensor<f32> }}"""
    rows = launch(client, text, [[np.float32(i)] for i in range(4)], 4, 1)
    assert [float(row[0]) for row in rows] == [6 * 16] * 4


def test_one_process_needs_nobody(run: Any) -> None:
    assert run(one_op("all_reduce", groups([[0]]), region=ADD), np.ones(2, np.float32))[0].tolist() == [1, 1]
    gathered = one_op("all_gather", f"all_gather_dim = 0 : i64, {groups([[0]])}")
    assert run(gathered, np.ones(2, np.float32))[0].tolist() == [1, 1]


def test_several_processes_need_a_client(run: Any) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="all_reduce needs 2 processes: run the program on a client"):
        run(one_op("all_reduce", groups([[0, 1]]), region=ADD), np.ones(2, np.float32))


def test_a_process_in_no_group_is_an_error(client: Any) -> None:
    with pytest.raises(pjrt.PjrtError, match="expected replica 2, partition 0 in one of the groups"):
        launch(client, one_op("all_reduce", groups([[0, 1]]), region=ADD), POWERS[:3], 3, 1)


def test_global_ids_need_a_channel() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="channel"):
        Evaluator(mlir.parse(one_op("all_reduce", f"{groups([[0, 1]])}, {GLOBAL}", region=ADD)))


def test_a_collective_that_can_never_complete_is_an_error() -> None:
    """Device 1 takes the branch without the collective; device 0 waits, and gives up."""
    text = f"""func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {{
      %r = "stablehlo.if"(%p) ({{
        %s = "stablehlo.all_reduce"(%x) {ADD} {{{groups([[0, 1]])}}} : (tensor<f32>) -> tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}, {{ stablehlo.return %x : tensor<f32> }}) : (tensor<i1>) -> tensor<f32>
      return %r : tensor<f32> }}"""
    with pjrt.client("reference", num_devices=2, collective_timeout=0.2) as hasty:
        assert isinstance(hasty, ReferenceClient)
        exe = hasty.compile(text, pjrt.CompileOptions(num_replicas=2))
        rows = [
            [hasty.buffer_from_host(value, device=device) for value in (np.bool_(number == 0), np.float32(1))]
            for number, device in enumerate(hasty.devices)
        ]
        outs = exe.execute(rows)
        with pytest.raises(pjrt.DeadlineExceededError, match=r"(?s)cannot complete.*stablehlo.all_reduce"):
            outs[0][0].to_host().result()


def test_one_failure_ends_all(client: Any) -> None:
    """An error on one device reaches the others instead of letting them wait."""
    text = f"""func.func @main(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {{
      stablehlo.custom_call @shape_assertion(%n) : (tensor<i32>) -> ()
      %s = "stablehlo.all_reduce"(%x) {ADD} {{{groups([[0, 1]])}}} : (tensor<f32>) -> tensor<f32>
      return %s : tensor<f32> }}"""
    with pytest.raises(pjrt.PjrtError, match="shape assertion"):
        launch(client, text, [[np.float32(1), np.int32(1)], [np.float32(1), np.int32(0)]], 2, 1)


@pytest.mark.skipif(not hasattr(stablehlo, "FutureType"), reason="this jaxlib reads no futures")
def test_futures_are_done_at_once(run: Any) -> None:
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %f = "stablehlo.async_start"(%x) ({
        ^bb0(%a: tensor<2xf32>):
          %0 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = dense<[[0]]> : tensor<1x1xi64>}
            : (tensor<2xf32>) -> tensor<2xf32>
          stablehlo.return %0 : tensor<2xf32>
      }) : (tensor<2xf32>) -> !stablehlo.future<tensor<2xf32>>
      %y = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<2xf32>>) -> tensor<2xf32>
      return %y : tensor<2xf32> }"""
    assert run(text, np.ones(2, np.float32))[0].tolist() == [1, 1]


FEED = """func.func @main() -> tensor<2xf32> {
  %t = stablehlo.create_token : !stablehlo.token
  %0:3 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<2xf32>, tensor<i32>, !stablehlo.token)
  %1 = "stablehlo.outfeed"(%0#0, %0#1, %0#2) : (tensor<2xf32>, tensor<i32>, !stablehlo.token) -> !stablehlo.token
  return %0#0 : tensor<2xf32> }"""


def test_feeds(client: Any) -> None:
    device = client.devices[0]
    device.infeed.put((np.array([1, 2], np.float32), np.int32(7)))
    (out,) = client.compile(FEED)()
    assert np.asarray(out).tolist() == [1, 2]
    numbers, count = device.outfeed.get(60)
    assert (numbers.tolist(), int(count)) == ([1, 2], 7)
    device.infeed.put(np.zeros(3, np.float32))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"from the infeed, found float32\[3\]"):
        client.compile(FEED)()[0].to_host().result()


def handle(kind: int) -> str:
    return f"channel_handle = #stablehlo.channel_handle<handle = 5, type = {kind}>"


def test_channels_to_the_host(client: Any) -> None:
    text = f"""func.func @main(%x: tensor<3xf32>) -> tensor<2xi32> {{
      %t = stablehlo.create_token : !stablehlo.token
      %s = "stablehlo.send"(%x, %t) {{{handle(2)}, is_host_transfer = true}}
        : (tensor<3xf32>, !stablehlo.token) -> !stablehlo.token
      %r:2 = "stablehlo.recv"(%s) {{{handle(3)}, is_host_transfer = true}}
        : (!stablehlo.token) -> (tensor<2xi32>, !stablehlo.token)
      return %r#0 : tensor<2xi32> }}"""
    received: list[bytes] = []
    options = pjrt.ExecuteOptions(
        send_callbacks=[[_send(received)]],
        recv_callbacks=[[_receive(np.array([4, 5], np.int32))]],
    )
    exe = client.compile(text)
    x = client.buffer_from_host(np.array([1, 2, 3], np.float32))
    ((out,),) = exe.execute([[x]], options)
    assert np.asarray(out).tolist() == [4, 5]
    assert np.frombuffer(b"".join(received), np.float32).tolist() == [1, 2, 3]


def _send(received: list[bytes]) -> Any:
    from pjrt.api.loaded_executable import SendCallback

    return SendCallback(5, lambda data, total, done: received.append(bytes(data)))


def _receive(array: Any) -> Any:
    from pjrt.api.loaded_executable import RecvCallback

    return RecvCallback(5, lambda stream: stream.add_chunk(array.tobytes()))


def test_channels_between_devices(client: Any) -> None:
    pairs = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
    text = f"""func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
      %t = stablehlo.create_token : !stablehlo.token
      %s = "stablehlo.send"(%x, %t) {{{handle(1)}, is_host_transfer = false, {pairs}}}
        : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
      %r:2 = "stablehlo.recv"(%s) {{{handle(1)}, is_host_transfer = false, {pairs}}}
        : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
      return %r#0 : tensor<2xf32> }}"""
    rows = launch(client, text, POWERS[:2], 2, 1)
    assert [row[0].tolist() for row in rows] == [[2, 20], [1, 10]]


@pytest.mark.parametrize("table", ["0x0", "0x2"])
def test_no_groups_are_one_of_all_replicas(client: Any, table: str) -> None:
    text = one_op("all_reduce", f"replica_groups = dense<> : tensor<{table}xi64>", region=f"({ADD[1:-1]})")
    results = launch(client, text, POWERS[:2], 2, 1)
    assert [row[0].tolist() for row in results] == [[3.0, 30.0]] * 2


@pytest.mark.timeout(30)
def test_a_collective_with_another_process_is_refused_when_compiled() -> None:
    """Without a store the processes cannot meet."""
    text = one_op("all_reduce", groups([[0, 1]]), region=ADD)
    with ReferenceClient(num_devices=1, process_index=0, process_count=2, collective_timeout=1e6) as here:
        assert len(here.devices) == 2
        with pytest.raises(
            pjrt.UnimplementedError, match=r"'main' needs the devices \[1\] of other processes.*do not compute"
        ):
            here.compile(text, pjrt.CompileOptions(num_replicas=2))


@pytest.mark.timeout(30)
def test_a_collective_within_a_process_is_not(client: Any) -> None:
    text = one_op("all_reduce", groups([[0, 1], [2, 3]]), region=ADD)
    with ReferenceClient(num_devices=2, process_index=1, process_count=2) as here:
        exe = here.compile(text, pjrt.CompileOptions(num_replicas=4))
        rows = [[here.buffer_from_host(POWERS[i][0], device=d)] for i, d in enumerate(here.addressable_devices)]
        assert [np.asarray(row[0]).tolist() for row in exe.execute(rows)] == [[3.0, 30.0]] * 2


@pytest.mark.timeout(30)
def test_a_send_to_a_device_of_another_process_is_refused() -> None:
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %s = "stablehlo.send"(%x, %t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
      return %x : tensor<2xf32> }"""
    with ReferenceClient(num_devices=1, process_index=0, process_count=2) as here:
        exe = here.compile(text, pjrt.CompileOptions(num_replicas=2))
        ((result,),) = exe.execute([[here.buffer_from_host(POWERS[0][0])]])
        with pytest.raises(pjrt.UnimplementedError, match=r"stablehlo.send needs the devices \[1\] of other processes"):
            np.asarray(result)


@pytest.mark.parametrize(("channel", "kind"), [("", "replicas"), (CHANNEL, "partitions")])
@pytest.mark.parametrize("pair", [[0, 2], [2, 0]])
def test_pairs_of_processes_that_there_are_not(client: Any, channel: str, kind: str, pair: list[int]) -> None:
    attributes = f"source_target_pairs = dense<[{pair}, [1, 1]]> : tensor<2x2xi64>"
    text = one_op("collective_permute", f"{attributes}, {channel}" if channel else attributes)
    counts = (2, 1) if kind == "replicas" else (1, 2)
    with pytest.raises(
        pjrt.InvalidArgumentError, match=rf"below 2, the number of {kind}, found \[{pair[0]}, {pair[1]}"
    ):
        launch(client, text, POWERS[:2], *counts)


@pytest.mark.parametrize("name", ["send", "recv"])
def test_channels_to_devices_that_there_are_not(client: Any, name: str) -> None:
    pair = [0, 3] if name == "send" else [3, 0]
    more = f"{handle(1)}, is_host_transfer = false, source_target_pairs = dense<[{pair}]> : tensor<1x2xi64>"
    operation = (
        f'"stablehlo.send"(%x, %t) {{{more}}} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token'
        if name == "send"
        else f'"stablehlo.recv"(%t) {{{more}}} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)'
    )
    text = f"""func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
      %t = stablehlo.create_token : !stablehlo.token
      %r{":2" if name == "recv" else ""} = {operation}
      return %x : tensor<2xf32> }}"""
    with pytest.raises(pjrt.InvalidArgumentError, match="below 1, the number of devices, found"):
        launch(client, text, POWERS[:1], 1, 1)

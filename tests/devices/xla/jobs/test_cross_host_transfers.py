"""Transfers of buffers between the processes of a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from job_fixtures import StartJob
from job_programs import ALL_REDUCE

from pjrt import ElementType, InvalidArgumentError, ShapeSpec
from pjrt.devices.xla.peers import CrossHostTransfers
from pjrt.stablehlo.encodings.jaxlib import version


def test_a_device_of_this_process_is_no_other() -> None:
    runtime: Any = SimpleNamespace(jaxlib_device=lambda number: SimpleNamespace(process_index=number // 2048))
    peers: Any = SimpleNamespace(process_index=1, at_loss=lambda function: None, check_serves=lambda process: None)
    transfers = CrossHostTransfers(runtime, peers)
    specs, space = [ShapeSpec((4,), ElementType.F32)] * 2, object()
    with pytest.raises(InvalidArgumentError, match="expected a device of another process, found cpu:2049 of this one"):
        transfers.receive(specs, space, [1, 2049], [1, 2])  # type: ignore[arg-type]  # not looked at


@pytest.mark.full
@pytest.mark.skipif(version() < (0, 10), reason="jaxlib before 0.10 cannot pull arrays from other processes")
def test_buffers_are_sent_and_received(start_job: StartJob) -> None:
    lines = start_job(
        2,
        ALL_REDUCE
        + """
import ml_dtypes
initialize()
client = pjrt.client("cpu", num_devices=2)
mine, spare = client.addressable_devices
other = 2048 * (1 - rank)
arrays = [np.arange(6, dtype="i4").reshape(2, 3) + rank, np.array(1.5, ml_dtypes.bfloat16), np.zeros((0, 3), "f4"),
          np.arange(1 << 20, dtype="f8") * (rank + 1)]
buffers = [client.buffer_from_host(array, device=mine) for array in arrays]
keys = [7, 8, 9, -1]
specs = [pjrt.ShapeSpec(buffer.shape, buffer.element_type) for buffer in buffers]
received = client.cross_host_receive_buffers(specs, spare, [other] * 4, keys)   # before anything is sent
futures = client.cross_host_send_buffers(buffers, [other + 1] * 4, keys)
for future, buffer in zip(futures, buffers):
    future.result()
    buffer.delete()
for buffer in received:
    say(buffer.device, buffer.dtype, buffer.shape, float(np.asarray(buffer, "f8").sum()))
double = client.compile(DOUBLE, pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((mine.id,),))))
(result,) = double(np.full(4, rank, "f4"))
client.cross_host_send_buffers([result], [other], [1])                          # a result that may not be there yet
(buffer,) = client.cross_host_receive_buffers([pjrt.ShapeSpec((4,), pjrt.ElementType.F32)], mine, [other], [1])
say(first([double(buffer)]))
column = client.buffer_from_host(np.zeros((2, 3), "f4"), layout=pjrt.TiledLayout((0, 1)))
for arguments in (([column], [other], [1]), (buffers, [other], [1]), ([result], [mine.id], [1]), ([result], [77], [1])):
    attempt(client.cross_host_send_buffers, *arguments)
distributed.shutdown()
""",
    ).succeed()
    for rank, output in enumerate(lines):
        other, mine = 1 - rank, 2048 * rank
        device = f"cpu:{mine + 1}"
        assert output[:5] == [
            f"{device} int32 (2, 3) {15 + 6 * other}.0",
            f"{device} bfloat16 () 1.5",
            f"{device} float32 (0, 3) 0.0",
            f"{device} float64 (1048576,) {(other + 1) * (1 << 20) * ((1 << 20) - 1) / 2}",
            f"[{4.0 * other}]",
        ]
        layout, counts, own, unknown = output[5:]
        assert layout.startswith("UnimplementedError UNIMPLEMENTED: 'cpu' does not") or "cross-host transfer" in layout
        assert "a device id and a transfer key for each of 4 buffers, found 1 and 1" in counts
        assert f"expected a device of another process, found cpu:{mine} of this one" in own
        assert "the client has no device with id 77: it has 4, with the ids 0, 1, 2048, 2049" in unknown


@pytest.mark.full
@pytest.mark.skipif(version() < (0, 10), reason="jaxlib before 0.10 cannot pull arrays from other processes")
def test_what_was_sent_is_received_after_the_sender_has_called_shutdown(start_job: StartJob) -> None:
    start = (
        ALL_REDUCE
        + """
import threading
from pjrt.devices.xla.peers import Peers
missed, miss = threading.Event(), Peers._miss
Peers._miss = lambda *arguments: (miss(*arguments), missed.set())
initialize()
client = pjrt.client("cpu", num_devices=1)
def filled(number):
    return client.buffer_from_host(np.full(4, number, "f4"))
def received(key):
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    (buffer,) = client.cross_host_receive_buffers([spec], client.addressable_devices[0], [0], [key])
    return np.asarray(buffer).tolist()
"""
    )
    send = "client.cross_host_send_buffers([filled(1), filled(2)], [2048] * 2, [1, 2])"
    receive = """
say(received(1))
assert missed.wait(60)  # the sender has called shutdown(), and waits for this process
say(received(2))
attempt(client.cross_host_send_buffers, [filled(3)], [0], [3])
"""
    lines = start_job([start + send, start + receive]).succeed()
    first, second, refused = lines[1]
    assert (first, second) == ("[1.0, 1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0, 2.0]")
    assert refused.startswith("UnavailableError")
    assert "has called shutdown()" in refused

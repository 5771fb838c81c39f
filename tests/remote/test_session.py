"""Sessions: order, waiting, handles, errors and the end, by messages and without a transport."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from protocol_client import REUSE_INPUT, ProtocolClient, connected
from waiting import wait_until, wait_until_freed

import pjrt
from pjrt import ifrt
from pjrt.remote.protocol.messages import wire
from pjrt.remote.server.memory import bytes_of


@pytest.fixture(scope="module")
def device_client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference", num_devices=2) as client:
        yield client


@pytest.fixture
def speaker(device_client: pjrt.Client) -> Iterator[ProtocolClient]:
    with connected(device_client) as speaker:
        yield speaker


def begin_put(speaker: ProtocolClient, value: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Ask for an array whose host buffer is still on its way; return its handle and the number of the request."""
    handle = speaker.handle()
    fields = speaker.array_fields(value)
    return handle, speaker.send("make_array_from_host_buffer", **fields, host_buffer_handle=handle, array_handle=handle)


def test_a_request_waits_for_its_host_buffer_and_others_do_not(speaker: ProtocolClient) -> None:
    other = speaker.put(np.float32([1, 2]))
    value = np.float32([3, 4])
    handle, number = begin_put(speaker, value)
    buffer = speaker.handle()
    reading = speaker.send("copy_to_host_buffer", array_handle=handle, host_buffer_handle=buffer)
    assert speaker.get(other, (2,)).tolist() == [1, 2]
    assert not {number, reading} & set(speaker.responses)
    speaker.session.host_buffers.store(handle, bytes_of(value, None))
    assert speaker.wait(number).array_handle == handle
    speaker.wait(reading)
    assert bytes(speaker.session.host_buffers.take(buffer)) == value.tobytes()


def test_requests_that_name_a_handle_keep_their_order(speaker: ProtocolClient) -> None:
    """An array is deleted behind a request that uses it, although that request has to wait."""
    array = speaker.put(np.float32([1, 2]))
    late, making = begin_put(speaker, np.float32([5]))
    waiting = speaker.send("check_value_ready", value_handles=[array, late])
    deletion = speaker.send("delete_array", array_handle=[array])
    asking = speaker.send("is_array_deleted", array_handle=array)
    assert not {making, waiting, deletion, asking} & set(speaker.responses)
    speaker.session.host_buffers.store(late, bytes_of(np.float32([5]), None))
    speaker.wait(waiting)
    speaker.ask("check_future", future_handle=speaker.wait(deletion).deletion_future_handle)
    assert speaker.wait(asking).deleted


def test_a_long_chain_of_requests_waits_for_one_host_buffer(speaker: ProtocolClient) -> None:
    value = np.float32([3, 4])
    handle, _ = begin_put(speaker, value)
    for _ in range(2000):
        copy = speaker.handle()
        speaker.send("copy_arrays", array_handles=[handle], copy_semantics=REUSE_INPUT, result_handles=[copy])
        speaker.send("destruct_array", array_handle=[handle])
        handle = copy
    speaker.session.host_buffers.store(1, bytes_of(value, None))
    assert speaker.get(handle, (2,)).tolist() == [3, 4]


def test_a_blocking_request_does_not_hold_up_the_others(
    speaker: ProtocolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, other = speaker.put(np.float32([1, 2])), speaker.put(np.float32([7]))
    may_go = threading.Event()
    reshard = ifrt.Client.reshard_arrays

    def slowly(*arguments: Any) -> Any:
        assert may_go.wait(60)
        return reshard(*arguments)

    monkeypatch.setattr(ifrt.Client, "reshard_arrays", slowly)
    moved = speaker.handle()
    target = ifrt.SingleDeviceSharding(speaker.ifrt.devices[1])
    resharding = speaker.send(
        "reshard_arrays",
        array_handles=[array],
        array_specs=[speaker.spec((2,), target)],
        copy_semantics=1,
        result_handles=[moved],
    )
    forgetting = speaker.send("destruct_array", array_handle=[array])
    assert speaker.get(other, (1,)).tolist() == [7]
    assert not {resharding, forgetting} & set(speaker.responses)
    may_go.set()
    assert list(speaker.wait(resharding).array_handles) == [moved]
    speaker.wait(forgetting)
    assert speaker.get(moved, (2,)).tolist() == [1, 2]


def test_arrays_that_could_not_be_made_give_their_error_at_each_use(speaker: ProtocolClient) -> None:
    """The client has named the arrays without waiting for the response."""
    unknown, poisoned, further = 999_999, speaker.handle(), speaker.handle()
    copying = speaker.send(
        "copy_arrays", array_handles=[unknown], copy_semantics=REUSE_INPUT, result_handles=[poisoned]
    )
    again = speaker.send("copy_arrays", array_handles=[poisoned], copy_semantics=REUSE_INPUT, result_handles=[further])
    for number in (copying, again):
        with pytest.raises(pjrt.NotFoundError, match="999999"):
            speaker.wait(number)
    for kind, fields in {
        "check_value_ready": {"value_handles": [further]},
        "copy_to_host_buffer": {"array_handle": further, "host_buffer_handle": speaker.handle()},
        "is_array_deleted": {"array_handle": further},
        "fully_replicated_shard": {"array_handle": further, "copy_semantics": 1, "result_handle": speaker.handle()},
    }.items():
        with pytest.raises(pjrt.NotFoundError, match="999999"):
            speaker.ask(kind, **fields)
    deletion = speaker.ask("delete_array", array_handle=[further])
    with pytest.raises(pjrt.NotFoundError, match="999999"):
        speaker.ask("check_future", future_handle=deletion.deletion_future_handle)
    speaker.ask("destruct_array", array_handle=[poisoned, further])


def test_an_unknown_request_is_unimplemented(speaker: ProtocolClient) -> None:
    speaker.session.receive(wire.IfrtRequest(request_metadata={"op_id": 77}))
    with pytest.raises(pjrt.UnimplementedError, match="newer version"):
        speaker.wait(77)
    with pytest.raises(pjrt.UnimplementedError, match="loaded_executable_mpmd_metadata"):
        speaker.ask("loaded_executable_mpmd_metadata", mpmd_loaded_executable_handle=1)


@pytest.mark.parametrize("handle", [0, 5, 1 << 62])
def test_an_unknown_handle_is_not_found(speaker: ProtocolClient, handle: int) -> None:
    for kind, fields in {
        "check_future": {"future_handle": handle},
        "check_value_ready": {"value_handles": [handle]},
        "is_array_deleted": {"array_handle": handle},
        "destruct_array": {"array_handle": [handle]},
        "loaded_executable_execute": {"loaded_executable_handle": handle},
        "loaded_executable_destruct": {"loaded_executable_handle": handle},
    }.items():
        with pytest.raises(pjrt.NotFoundError, match=str(handle)):
            speaker.ask(kind, **fields)


def test_a_handle_in_use_is_refused(speaker: ProtocolClient) -> None:
    handle = speaker.put(np.float32([1]))
    with pytest.raises(pjrt.InvalidArgumentError, match="in use"):
        speaker.ask("copy_arrays", array_handles=[handle], copy_semantics=1, result_handles=[handle])
    assert speaker.get(handle, (1,)).tolist() == [1]


def test_sessions_do_not_see_each_others_handles(device_client: pjrt.Client, speaker: ProtocolClient) -> None:
    with connected(device_client) as other:
        handle = speaker.put(np.float32([1]))
        assert speaker.session.id != other.session.id
        with pytest.raises(pjrt.NotFoundError):
            other.ask("is_array_deleted", array_handle=handle)
        other.put(np.float32([2]))
    assert speaker.get(handle, (1,)).tolist() == [1]


def test_the_end_of_a_session_frees_its_arrays(device_client: pjrt.Client) -> None:
    with connected(device_client) as speaker:
        handle = speaker.put(np.float32([1, 2]))
        array = speaker.session.arrays.get(handle)
        _, late = begin_put(speaker, np.float32([5]))
        speaker.session.close("the client went away")
        assert array.is_deleted
        with pytest.raises(pjrt.CancelledError, match="the client went away"):
            speaker.session.host_buffers.store(5, b"")
        with pytest.raises(pjrt.CancelledError):
            speaker.wait(late)
        number = speaker.send("is_array_deleted", array_handle=handle)
        assert number not in speaker.responses


def test_arrays_that_are_forgotten_are_freed(device_client: pjrt.Client, speaker: ProtocolClient) -> None:
    space = device_client.devices[0].default_memory_space
    gc.collect()
    before = device_client.devices[0].memory_stats().bytes_in_use
    handles = [speaker.put(np.zeros(1000, np.float32)) for _ in range(10)]
    shard = speaker.handle()
    speaker.ask("fully_replicated_shard", array_handle=handles[0], copy_semantics=REUSE_INPUT, result_handle=shard)
    speaker.ask("destruct_array", array_handle=handles)
    assert speaker.get(shard, (1000,)).sum() == 0, space
    speaker.ask("destruct_array", array_handle=[shard])
    # A thread of the session may still be at the end of the request that it has answered.
    wait_until(lambda: device_client.devices[0].memory_stats().bytes_in_use == before, "the end of the arrays")


def test_an_error_keeps_no_array(speaker: ProtocolClient) -> None:
    """It is held under the handle of what could not be made, and its traceback would hold what the request used."""
    handle, poisoned = speaker.put(np.zeros(1000, np.float32)), speaker.handle()
    array = weakref.ref(speaker.session.arrays.get(handle))
    with pytest.raises(pjrt.NotFoundError, match="moon"):
        speaker.ask(
            "copy_arrays",
            array_handles=[handle],
            memory_kind="moon",
            copy_semantics=REUSE_INPUT,
            result_handles=[poisoned],
        )
    speaker.ask("destruct_array", array_handle=[handle])
    wait_until_freed(array)


def test_responses_are_numbered_and_give_contexts_back(speaker: ProtocolClient) -> None:
    """The client of jaxlib drops what it keeps for a request when a response names its context, in order."""
    handle = speaker.put(np.float32([1]))
    fine = [speaker.send("is_array_deleted", array_handle=handle, context=n) for n in (11, 12)]
    failed = speaker.send("is_array_deleted", array_handle=12345, context=13)
    deletion = speaker.send("delete_array", array_handle=[handle])
    future = speaker.wait(deletion).deletion_future_handle
    checked = speaker.send("check_future", future_handle=future)
    speaker.ask("init")
    last = speaker.send("is_array_deleted", array_handle=handle, context=14)
    speaker.wait(last)
    metadata = {n: speaker.responses[n].response_metadata for n in (*fine, failed, deletion, checked, last)}
    first = metadata[fine[0]].seq_num
    assert [metadata[n].seq_num - first for n in (*fine, last)] == [0, 1, 2]
    assert [list(metadata[n].destroyed_user_context_ids) for n in (*fine, last)] == [[11], [12], [13, 14]]
    for number in (failed, deletion, checked):
        assert metadata[number].seq_num == (0 if number == failed else -1)
        assert not metadata[number].destroyed_user_context_ids

"""Batches of requests, and requests whose success is not answered: by messages, by sessions, and by our client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_client import ProtocolClient, connected
from waiting import wait_until

import pjrt
from pjrt import InvalidArgumentError, NotFoundError, remote
from pjrt.remote.protocol import versions
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_of, error_of

DOUBLE = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
COUNT = 300


@pytest.fixture(scope="module")
def device_client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


@pytest.fixture
def speaker(device_client: pjrt.Client) -> Iterator[ProtocolClient]:
    with connected(device_client) as speaker:
        yield speaker


def request(number: int) -> bytes:
    message = wire.IfrtRequest()
    message.request_metadata.op_id = number
    message.init_request.SetInParent()
    return message.SerializeToString()


# Messages.


@given(st.lists(st.binary(max_size=300), max_size=versions.MOST_BATCHED_REQUESTS))
def test_a_batch_has_its_requests_in_order(requests: list[bytes]) -> None:
    message = versions.batch(requests)
    assert list(versions.requests_in(message)) == (requests or [message])


def test_a_message_of_the_protocol_is_one_request() -> None:
    assert list(versions.requests_in(request(7))) == [request(7)]


def test_a_damaged_batch_is_an_error() -> None:
    message = versions.batch([request(1), request(2)])
    with pytest.raises(InvalidArgumentError, match="batch of requests"):
        versions.requests_in(message[:-1])


def test_a_batch_of_too_many_requests_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="at most 256 requests, found 257"):
        versions.requests_in(versions.batch([b"x"] * 257))


# Sessions.


def responses_to(speaker: ProtocolClient, kind: str, number: int, **fields: object) -> list[object]:
    """Return the responses to a request with a number."""
    message = wire.IfrtRequest()
    message.request_metadata.op_id = number
    body = getattr(message, f"{kind}_request")
    body.MergeFrom(type(body)(**fields))
    body.SetInParent()
    speaker.session.receive(message)
    return [speaker.responses[number]] if number in speaker.responses else []


def test_success_is_not_answered_where_the_request_asks_for_errors_only(speaker: ProtocolClient) -> None:
    speaker.session.takes_batches = True
    array = speaker.put(np.float32([1, 2]))
    number = 5 | versions.ERRORS_ONLY
    assert responses_to(speaker, "destruct_array", number, array_handle=[array]) == []
    (response,) = responses_to(speaker, "destruct_array", number, array_handle=[array])
    assert isinstance(error_of(response.response_metadata.status), NotFoundError)  # type: ignore[attr-defined]


def test_every_request_is_answered_where_the_client_knows_of_no_batches(speaker: ProtocolClient) -> None:
    array = speaker.put(np.float32([1, 2]))
    assert responses_to(speaker, "destruct_array", 5 | versions.ERRORS_ONLY, array_handle=[array])


@pytest.mark.parametrize("takes_batches", [False, True])
def test_the_server_declares_batches_to_clients_that_know_them(speaker: ProtocolClient, takes_batches: bool) -> None:
    speaker.session.takes_batches = takes_batches
    attributes = attributes_of(speaker.ask("init").client_attributes)
    assert attributes.get(versions.BATCHES, False) is takes_batches


# Our client.


@pytest.fixture
def server(device_client: pjrt.Client) -> Iterator[remote.Server]:
    with remote.serve(device_client) as server:
        yield server


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of each message that the server gets."""
    sizes: list[int] = []

    def count(message: bytes) -> Sequence[bytes]:
        requests = versions.requests_in(message)
        sizes.append(len(requests))
        return requests

    monkeypatch.setattr("pjrt.remote.server.session.requests_in", count)
    return sizes


def burst(client: pjrt.Client) -> pjrt.Buffer:
    """Enqueue programs, each on the result of the one before."""
    executable = client.compile(DOUBLE)
    buffer = client.buffer_from_host(np.ones(4, np.float32))
    for _ in range(COUNT):
        (buffer,) = executable(buffer)
        executable(buffer)
    for _ in range(COUNT // 100):
        (buffer,) = executable(buffer)
    return buffer


def test_a_burst_of_programs_takes_few_messages_and_keeps_its_order(
    server: remote.Server, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pace of this machine decides nothing: requests wait for long, unless something urgent comes.
    monkeypatch.setattr("pjrt.remote.client.connection._BATCH_SECONDS", 60)
    monkeypatch.setattr("pjrt.remote.client.connection._flushes._seconds", 0.2)
    with pjrt.client("remote", address=server.address) as client:
        np.testing.assert_array_equal(burst(client), np.full(4, np.inf, np.float32))
        assert versions.BATCHES not in client.attributes
    assert max(sizes) > 1
    assert sum(sizes) > 2 * COUNT > 2 * len(sizes)


def test_requests_that_were_held_go_without_a_later_one(server: remote.Server, sizes: list[int]) -> None:
    with pjrt.client("remote", address=server.address) as client:
        buffer = burst(client)
        session = server.session(client.connection.session.session_id)  # type: ignore[attr-defined]
        handle = buffer.handle()  # type: ignore[attr-defined]
        wait_until(lambda: handle in session.arrays)


def test_a_server_without_batches_gets_one_request_in_a_message(
    server: remote.Server, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pjrt.remote.server.requests.BATCHES", "another name")
    with pjrt.client("remote", address=server.address) as client:
        np.testing.assert_array_equal(burst(client), np.full(4, np.inf, np.float32))
    assert max(sizes) == 1

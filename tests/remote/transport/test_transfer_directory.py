"""Host buffers as files: what a server reads, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from protocol_client import ProtocolClient, connected
from remote_fixtures import RunJax, Serve

import pjrt
from pjrt import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    remote,
)
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import attributes_proto
from pjrt.remote.transport.channel import Channel
from pjrt.remote.transport.host_buffers import SUBDIRECTORY_ATTRIBUTE, TransferDirectory, file_name

VALUE = np.arange(1000, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "transfers"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def directory(folder: Path) -> TransferDirectory:
    return TransferDirectory(folder)


@pytest.fixture
def speaker() -> Iterator[ProtocolClient]:
    with pjrt.client("reference") as client, connected(client) as speaker:
        yield speaker


def test_names_are_those_of_jaxlib() -> None:
    assert [file_name(n) for n in (1, (1 << 31) - 1, 1 << 31, (1 << 32) + 5)] == [
        "lt_1",
        "lt_2147483647",
        "lt_-2147483648",
        "lt_5",
    ]


def test_a_file_is_read_and_removed(directory: TransferDirectory, folder: Path, speaker: ProtocolClient) -> None:
    (folder / "lt_7").write_bytes(VALUE.tobytes())
    (folder / "other").write_bytes(b"stays")
    assert directory.take(speaker.session, 7, 1000).tobytes() == VALUE.tobytes()
    assert os.listdir(folder) == ["other"]
    (folder / "lt_8").touch()
    assert directory.take(speaker.session, 8, 0).tobytes() == b""


def test_a_file_of_another_size_is_an_error(
    directory: TransferDirectory, folder: Path, speaker: ProtocolClient
) -> None:
    for size in (999, 1001, 0):
        (folder / "lt_7").write_bytes(VALUE.tobytes())
        with pytest.raises(DataLossError, match=f"expected a host buffer of {size} bytes in lt_7, found 1000"):
            directory.take(speaker.session, 7, size)
    with pytest.raises(NotFoundError, match="lt_7"):
        directory.take(speaker.session, 7, 1000)


def test_only_plain_files_are_read(
    directory: TransferDirectory, folder: Path, tmp_path: Path, speaker: ProtocolClient
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1000))
    (folder / "lt_1").symlink_to(secret)
    os.mkfifo(folder / "lt_2")
    (folder / "lt_3").mkdir()
    for handle in (1, 2, 3):
        with pytest.raises(NotFoundError, match=f"lt_{handle}"):
            directory.take(speaker.session, handle, 1000)
    assert secret.exists()


def test_subdirectories_stay_inside(
    directory: TransferDirectory, folder: Path, tmp_path: Path, speaker: ProtocolClient
) -> None:
    (tmp_path / "lt_1").write_bytes(VALUE.tobytes())
    (folder / "link").symlink_to(tmp_path)
    for name in ("..", "a/../..", "/tmp", ".", "", "x" * 65):
        speaker.session.transfer_subdirectory = name
        with pytest.raises((InvalidArgumentError, NotFoundError)):
            directory.take(speaker.session, 1, 1000)
    speaker.session.transfer_subdirectory = "link"
    with pytest.raises(NotFoundError):
        directory.take(speaker.session, 1, 1000)
    (folder / "mine").mkdir()
    (folder / "mine" / "lt_1").write_bytes(VALUE.tobytes())
    speaker.session.transfer_subdirectory = "mine"
    assert directory.take(speaker.session, 1, 1000).tobytes() == VALUE.tobytes()


def test_two_sessions_do_not_share_a_directory(
    directory: TransferDirectory, folder: Path, speaker: ProtocolClient
) -> None:
    with pjrt.client("reference") as client, connected(client) as other:
        for handle in (1, 2):
            (folder / f"lt_{handle}").write_bytes(VALUE.tobytes())
        directory.take(speaker.session, 1, 1000)
        with pytest.raises(FailedPreconditionError, match=SUBDIRECTORY_ATTRIBUTE):
            directory.take(other.session, 2, 1000)
    assert directory.take(speaker.session, 2, 1000).tobytes() == VALUE.tobytes()


def test_unfit_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        TransferDirectory(tmp_path / "nowhere")
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionDeniedError, match="mode 0700"):
        TransferDirectory(tmp_path)


def call(channel: Channel, session: int, handle: int, size: int) -> bytes:
    metadata = wire.GrpcHostBufferStoreMetadata(session_id=session, handle=handle, buffer_size=size)
    request = wire.GrpcHostBufferReadFromDiskRequest(metadata=metadata)
    return channel.unary("/xla.ifrt.proxy.GrpcIfrtService/HostBufferReadFromDisk", request.SerializeToString())


@pytest.mark.parametrize("subdirectory", ["", "mine"])
def test_a_server_takes_files(folder: Path, subdirectory: str) -> None:
    place = folder / subdirectory
    place.mkdir(exist_ok=True)
    responses: list[bytes] = []
    arrived = threading.Event()

    def receive(message: bytes) -> None:
        responses.append(message)
        arrived.set()

    data = {SUBDIRECTORY_ATTRIBUTE: subdirectory} if subdirectory else {}
    metadata = wire.GrpcIfrtSessionMetadata(initialization_data=attributes_proto(data))
    metadata.version.protocol_version, metadata.version.ifrt_serdes_version_number = 25, 3
    with pjrt.client("reference") as client, remote.serve(client, transfer_directory=folder) as server:
        channel = Channel(server.address.removeprefix("grpc://"))
        stream = channel.stream(
            "/xla.ifrt.proxy.GrpcIfrtService/IfrtSession",
            receive,
            lambda error: None,
            metadata=(("ifrt-proxy-grpc-ifrt-session-metadata-bin", metadata.SerializeToString()),),
        )
        request = wire.IfrtRequest()
        request.init_request.SetInParent()
        stream.send(request.SerializeToString())
        assert arrived.wait(60)
        session = wire.IfrtResponse.FromString(responses[0]).init_response.session_id
        (place / "lt_5").write_bytes(VALUE.tobytes())
        assert call(channel, session, 5, 1000) == b""
        assert server.session(session).host_buffers.lookup(5).tobytes() == VALUE.tobytes()
        with pytest.raises(NotFoundError, match="lt_6"):
            call(channel, session, 6, 1000)
        with pytest.raises(InvalidArgumentError):
            call(channel, session, 6, -1)
        with pytest.raises(NotFoundError, match="open session"):
            call(channel, session + 1, 6, 1000)
        channel.close()


def test_a_server_without_a_directory_says_so() -> None:
    with pjrt.client("reference") as client, remote.serve(client) as server:
        channel = Channel(server.address.removeprefix("grpc://"))
        with pytest.raises(FailedPreconditionError, match="--transfer-directory"):
            call(channel, 1, 1, 1)
        channel.close()


@pytest.mark.full
def test_stock_jax_sends_large_arrays_as_files(folder: Path, serving: Serve, run_jax: RunJax) -> None:
    served = serving("cpu", "--transfer-directory", str(folder))
    source = """
x = np.random.default_rng(0).random((512, 512), np.float32)
print((np.asarray(jax.device_put(x)) == x).all(), np.asarray(jnp.sum(jnp.ones(4))))
"""
    environment = {
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY": str(folder),
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES": "100000",
    }
    assert run_jax(served.address, source, environment=environment) == ["True 4.0"]
    assert os.listdir(folder) == []


@pytest.mark.full
def test_stock_jax_without_a_directory_on_the_server_gets_an_error(
    folder: Path, served_cpu: str, run_jax: RunJax
) -> None:
    environment = {
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY": str(folder),
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES": "1000",
    }
    source = """
try:
    jax.device_put(np.zeros(1000, "f4")).block_until_ready()
except Exception as error:
    print(type(error).__name__)
"""
    assert run_jax(served_cpu, source, environment=environment) == ["JaxRuntimeError"]
    assert len(os.listdir(folder)) == 1


LARGE = np.random.default_rng(0).random((1 << 18, 2), np.float32)


def test_our_client_leaves_large_arrays_in_files(folder: Path) -> None:
    with pjrt.client("reference") as client, remote.serve(client, transfer_directory=folder) as server:
        with pjrt.client("remote", address=server.address, transfer_directory=folder) as user:
            (place,) = folder.iterdir()
            for number in range(3):
                sent = threading.Event()
                buffer = user.buffer_from_host(
                    LARGE + number,
                    semantics=pjrt.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
                    on_done_with_host_buffer=sent.set,
                )
                assert np.array_equal(np.asarray(buffer), LARGE + number)
                assert sent.wait(60)  # the file is free after this
                assert len(os.listdir(place)) == 1  # one file, for all arrays of that size
            small = np.float32([1, 2])
            assert np.array_equal(np.asarray(user.buffer_from_host(small)), small)
            buffers = [user.buffer_from_host(LARGE + number) for number in range(8)]
            assert all(np.array_equal(np.asarray(b), LARGE + n) for n, b in enumerate(buffers))
        assert os.listdir(folder) == []


def test_two_of_our_clients_share_a_directory(folder: Path) -> None:
    with pjrt.client("reference") as client, remote.serve(client, transfer_directory=folder) as server:
        users = [pjrt.client("remote", address=server.address, transfer_directory=folder) for _ in range(2)]
        for number in range(3):
            buffers = [user.buffer_from_host(LARGE + 10 * n + number) for n, user in enumerate(users)]
            for n, buffer in enumerate(buffers):
                assert np.array_equal(np.asarray(buffer), LARGE + 10 * n + number)
        for user in users:
            user.close()


def test_arrays_go_over_the_connection_where_files_do_not(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pjrt.client("reference") as client, remote.serve(client) as server:
        with pjrt.client("remote", address=server.address, transfer_directory=folder) as user:
            for number in range(2):
                assert np.array_equal(np.asarray(user.buffer_from_host(LARGE + number)), LARGE + number)
            assert caplog.text.count("arrays are sent over the connection") == 1
        with pjrt.client("remote", address=server.address, transfer_directory=folder) as user:
            shutil.rmtree(folder)  # as when there is no room in it
            assert np.array_equal(np.asarray(user.buffer_from_host(LARGE)), LARGE)
        with pytest.raises(InvalidArgumentError, match="transfer_directory"):
            pjrt.client("remote", address=server.address, transfer_directory=tmp_path / "nowhere")


def test_a_client_that_cannot_connect_leaves_nothing(folder: Path) -> None:
    with pytest.raises(pjrt.UnavailableError):
        pjrt.client("remote", address="grpc://127.0.0.1:1", transfer_directory=folder, timeout=2)
    assert os.listdir(folder) == []

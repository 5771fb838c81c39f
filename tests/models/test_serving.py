"""A model over HTTP: requests in JSON and binary, batches, buckets, limits; and tritonclient as a stranger's client."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.protobuf import message_classes
from pjrt.models.serving.batches import Batching
from pjrt.models.serving.grpc_service import _MESSAGES
from pjrt.models.serving.protocol import HEADER_LENGTH
from pjrt.models.serving.server import ModelServer, ServingOptions

F32 = np.float32

ROWS = """
func.func @main(%x: tensor<?x3xf32> {jax.name = "x"} loc("x")) -> (tensor<?x3xf32> {jax.result_info = "y"}) {
  %0 = stablehlo.add %x, %x : tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}
"""
FIXED = """
func.func @main(%x: tensor<2xi32> loc("x"), %p: tensor<i1> loc("p")) -> (tensor<2xi32>, tensor<i1>) {
  return %x, %p : tensor<2xi32>, tensor<i1>
}
"""


def save_sequences(path: Path) -> None:
    """Write a model with a batch and a length, whose weights make it know padding from values."""

    def forward(params: Any, ids: Any, mask: Any) -> Any:
        values = params["table"][ids] * mask[:, :, None]
        return {"tokens": values, "sum": values.sum((1, 2))}

    table = np.arange(1, 21, dtype=F32).reshape(10, 2)
    example = (np.zeros((1, 1), np.int32), np.zeros((1, 1), F32))
    pjrt.save_model(forward, {"table": table}, example, path, shapes="b, n")


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "text.pjrt"
    save_sequences(path)
    return path


def expected_sequences(ids: Any, mask: Any) -> Any:
    values = np.arange(1, 21, dtype=F32).reshape(10, 2)[ids] * mask[:, :, None]
    return {"result['sum']": values.sum((1, 2)), "result['tokens']": values}


@pytest.fixture
def fixed() -> Iterator[ModelServer]:
    with pjrt.load_model(FIXED, "reference") as model, ModelServer(model, "fixed") as server:
        server.wait_until_ready()
        yield server


def ask(server: ModelServer, path: str, body: bytes | Any = None, **headers: str) -> tuple[int, Any]:
    """Send a request; return the status and the message."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("GET" if data is None else "POST", path, data, headers)
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if "json" in response.headers["Content-Type"] else content
    finally:
        connection.close()


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    content = {"parameters": parameters} if parameters else {"data": data}
    return {"name": name, "datatype": datatype, "shape": shape, **content}


X = tensor("x", "INT32", [2], [3, 4])
P = tensor("p", "BOOL", [], [True])


def test_a_model_of_fixed_shapes_answers_in_json(fixed: ModelServer) -> None:
    status, answer = ask(fixed, "/v2/models/fixed/infer", {"id": "7", "inputs": [P, X]})
    assert status == 200
    assert answer == {
        "model_name": "fixed",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "result_0", "datatype": "INT32", "shape": [2], "data": [3, 4]},
            {"name": "result_1", "datatype": "BOOL", "shape": [], "data": [True]},
        ],
    }
    assert ask(fixed, "/v2/models/fixed/versions/1/infer", {"inputs": [X, P]})[0] == 200
    chosen = {"inputs": [X, P], "outputs": [{"name": "result_1"}]}
    assert [each["name"] for each in ask(fixed, "/v2/models/fixed/infer", chosen)[1]["outputs"]] == ["result_1"]


def test_binary_data_follow_the_json(fixed: ModelServer) -> None:
    given = {
        "inputs": [tensor("x", "INT32", [2], binary_data_size=8), tensor("p", "BOOL", [], binary_data_size=1)],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(given).encode()
    data = np.array([5, -6], np.int32).tobytes() + b"\1"
    status, answer = ask(fixed, "/v2/models/fixed/infer", head + data, **{HEADER_LENGTH: str(len(head))})
    assert status == 200
    assert answer.endswith(data)
    assert json.loads(answer[: -len(data)])["outputs"][0]["parameters"] == {"binary_data_size": 8}


def test_pages_of_the_server(fixed: ModelServer) -> None:
    assert ask(fixed, "/v2")[1]["name"] == "pjrt"
    assert ask(fixed, "/v2/health/live") == (200, {"live": True})
    assert ask(fixed, "/v2/health/ready") == (200, {"ready": True})
    assert ask(fixed, "/v2/models/fixed/ready") == (200, {"ready": True})
    status, answer = ask(fixed, "/v2/models/fixed")
    assert (status, answer["inputs"][0]) == (200, {"name": "x", "datatype": "INT32", "shape": [2]})
    ask(fixed, "/v2/models/fixed/infer", {"inputs": [X, P]})
    ask(fixed, "/v2/models/fixed/infer", {"inputs": []})
    metrics = ask(fixed, "/metrics")[1].decode()
    assert 'pjrt_requests_total{device="reference",kind="infer",status="OK"} 1.0' in metrics
    assert 'pjrt_requests_total{device="reference",kind="infer",status="INVALID_ARGUMENT"} 1.0' in metrics
    assert "pjrt_batch_rows_count 1.0" in metrics
    assert "pjrt_waiting_requests 0.0" in metrics


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b"{", {}, "expected a request in JSON, found 1 bytes"),
        (b"[" * 100_000, {}, "expected a request in JSON"),
        ([], {}, "expected a request of the Open Inference Protocol"),
        ({"inputs": [X]}, {}, "expected inputs with the names x, p, found none for p"),
        ({"inputs": [X, X, P]}, {}, "found 'x' twice"),
        ({"inputs": [X, P, tensor("z", "BOOL", [], [1])]}, {}, "expected inputs with the names x, p, found 'z'"),
        ({"inputs": [{**X, "shape": [3]}, P]}, {}, "input x: expected the shape [2], where -1 is any size, found [3]"),
        ({"inputs": [{**X, "shape": None}, P]}, {}, "found None"),
        ({"inputs": [{**X, "datatype": "FP32"}, P]}, {}, "input x: expected the datatype INT32, found 'FP32'"),
        ({"inputs": [{**X, "data": [1]}, P]}, {}, "expected 2 numbers for the shape [2], found 1"),
        ({"inputs": [{**X, "data": [1.5, 2]}, P]}, {}, "input x: "),
        ({"inputs": [{**X, "data": ["a", "b"]}, P]}, {}, "input x: "),
        ({"inputs": [{"name": "x", "shape": [2], "datatype": "INT32"}, P]}, {}, "KeyError: 'data'"),
        ({"inputs": [X, P], "outputs": [{"name": "z"}]}, {}, "expected outputs among result_0, result_1, found 'z'"),
        (
            {"inputs": [tensor("x", "INT32", [2], binary_data_size=8), P]},
            {},
            "expected 8 bytes of binary data",
        ),
        ({"inputs": [X, P]}, {HEADER_LENGTH: "99999"}, "expected a number up to the"),
        ({"inputs": [X, P]}, {HEADER_LENGTH: "-1"}, "expected a number up to the"),
        ({"inputs": [X, P]}, {HEADER_LENGTH: "9" * 5000}, "expected a number up to the"),
        (b"no gzip", {"Content-Encoding": "gzip"}, "gzip"),
        (json.dumps({"inputs": [X, P]}).encode() + b"12", {HEADER_LENGTH: "4"}, "expected a request in JSON"),
    ],
)
def test_wrong_requests_are_explained(fixed: ModelServer, body: Any, headers: dict[str, str], expected: str) -> None:
    status, answer = ask(fixed, "/v2/models/fixed/infer", body, **headers)
    assert status == 400
    assert expected in answer["error"]
    assert ask(fixed, "/v2/models/fixed/infer", {"inputs": [X, P]})[0] == 200


def test_what_is_not_there_is_named(fixed: ModelServer) -> None:
    assert ask(fixed, "/v2/models/other") == (
        404,
        {"error": "expected the model 'fixed' of version 1, found 'other' of version '1'"},
    )
    assert ask(fixed, "/v2/models/fixed/versions/2/infer", {"inputs": []})[0] == 404
    status, answer = ask(fixed, "/v3")
    assert (status, answer["error"]) == (404, "there is no such page; those of the model are below /v2/models/fixed")
    assert ask(fixed, "/v2/models/fixed/infer")[0] == 405


def test_a_request_may_not_be_larger_than_the_limit() -> None:
    options = ServingOptions(max_request_bytes=1000)
    with pjrt.load_model(FIXED, "reference") as model, ModelServer(model, "fixed", options=options) as server:
        assert ask(server, "/v2/models/fixed/infer", {"inputs": [X, P]})[0] == 200
        status, answer = ask(server, "/v2/models/fixed/infer", b" " * 1001)
        assert status == 413
        assert answer["error"] == "expected a request of at most 1000 bytes, found a larger one"


def test_a_compressed_request_may_not_be_larger_than_the_limit_either() -> None:
    options = ServingOptions(max_request_bytes=1000)
    with pjrt.load_model(FIXED, "reference") as model, ModelServer(model, "fixed", options=options) as server:
        bomb = gzip.compress(b" " * 10_000_000)
        assert ask(server, "/v2/models/fixed/infer", bomb, **{"Content-Encoding": "gzip"})[0] == 413


def test_a_failure_of_the_device_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> Any:
        raise MemoryError("too much")

    with pjrt.load_model(FIXED, "reference") as model, ModelServer(model, "m") as server:
        with monkeypatch.context() as patch:
            patch.setattr(Batching, "run", run)
            assert ask(server, "/v2/models/m/infer", {"inputs": [X, P]}) == (500, {"error": "MemoryError: too much"})
        assert ask(server, "/v2/models/m/infer", {"inputs": [X, P]})[0] == 200


def test_results_that_json_lacks_are_returned_as_binary_data() -> None:
    program = FIXED.replace("i32", "f32")
    given = {**X, "datatype": "FP32", "data": [float("nan"), 1]}
    with pjrt.load_model(program, "reference") as model, ModelServer(model, "m") as server:
        status, answer = ask(server, "/v2/models/m/infer", {"inputs": [given, P]})
        assert (status, "ask for binary data" in answer["error"]) == (400, True)
        binary = {"inputs": [given, P], "parameters": {"binary_data_output": True}}
        assert ask(server, "/v2/models/m/infer", binary)[0] == 200


# The protocol over gRPC.

Call = Callable[..., Any]


@pytest.fixture
def over_grpc() -> Iterator[tuple[ModelServer, Call]]:
    """A server, and a function that makes a call of the service: its name, and the fields of the request."""
    grpc = pytest.importorskip("grpc")
    types = message_classes("pjrt.tests.inference", _MESSAGES)
    with pjrt.load_model(FIXED, "reference") as model:
        options = ServingOptions(max_request_bytes=10_000)
        with ModelServer(model, "fixed", options=options, grpc_address="127.0.0.1:0") as server:
            server.wait_until_ready()
            with grpc.insecure_channel(server.grpc_target) as channel:

                def call(name: str, /, **fields: Any) -> Any:
                    method = channel.unary_unary(
                        f"/inference.GRPCInferenceService/{name}",
                        request_serializer=types[f"{name}Request"].SerializeToString,
                        response_deserializer=types[f"{name}Response"].FromString,
                    )
                    return method(types[f"{name}Request"](**fields), timeout=60)

                yield server, call


X_RAW = {"name": "x", "datatype": "INT32", "shape": [2]}
P_RAW = {"name": "p", "datatype": "BOOL", "shape": []}


def test_grpc_has_the_facts_of_the_model(over_grpc: tuple[ModelServer, Call]) -> None:
    _, call = over_grpc
    assert call("ServerLive").live
    assert call("ServerReady").ready
    assert call("ServerMetadata").version == pjrt.__version__
    for version in ("", "1"):
        assert call("ModelReady", name="fixed", version=version).ready
    described = call("ModelMetadata", name="fixed")
    assert [(each.name, each.datatype, [*each.shape]) for each in described.inputs] == [
        ("x", "INT32", [2]),
        ("p", "BOOL", []),
    ]


def test_grpc_takes_bytes_and_numbers(over_grpc: tuple[ModelServer, Call]) -> None:
    server, call = over_grpc
    data = [b"\1", np.array([5, -6], np.int32).tobytes()]
    answer = call("ModelInfer", model_name="fixed", id="7", inputs=[P_RAW, X_RAW], raw_input_contents=data)
    assert (answer.id, answer.model_name, [*answer.raw_output_contents]) == ("7", "fixed", [data[1], data[0]])
    assert [(each.name, each.datatype, [*each.shape]) for each in answer.outputs] == [
        ("result_0", "INT32", [2]),
        ("result_1", "BOOL", []),
    ]
    numbers = [
        {**X_RAW, "contents": {"int_contents": [5, -6]}},
        {**P_RAW, "contents": {"bool_contents": [True]}},
    ]
    answer = call("ModelInfer", model_name="fixed", inputs=numbers, outputs=[{"name": "result_0"}])
    assert [*answer.raw_output_contents] == [data[1]]
    metrics = ask(server, "/metrics")[1].decode()
    assert 'pjrt_requests_total{device="reference",kind="ModelInfer",status="OK"} 2.0' in metrics


@pytest.mark.parametrize(
    ("code", "message", "fields"),
    [
        ("NOT_FOUND", "expected the model 'fixed' of version 1", {"model_name": "other"}),
        ("INVALID_ARGUMENT", "found none for x", {}),
        ("INVALID_ARGUMENT", "found 1", {"inputs": [X_RAW, P_RAW], "raw_input_contents": [b""]}),
        ("INVALID_ARGUMENT", "input x: expected 8 bytes", {"inputs": [X_RAW], "raw_input_contents": [b"1234"]}),
        ("INVALID_ARGUMENT", "input x: expected 2 numbers", {"inputs": [X_RAW]}),
        ("INVALID_ARGUMENT", "the datatype INT32, found 'FP32'", {"inputs": [{**X_RAW, "datatype": "FP32"}]}),
        (
            "INVALID_ARGUMENT",
            "expected outputs among result_0, result_1, found 'y'",
            {"inputs": [X_RAW, P_RAW], "raw_input_contents": [bytes(8), b"\0"], "outputs": [{"name": "y"}]},
        ),
        ("RESOURCE_EXHAUSTED", "larger than max", {"raw_input_contents": [bytes(20_000)]}),
    ],
)
def test_grpc_refuses_a_wrong_request(
    over_grpc: tuple[ModelServer, Call], code: str, message: str, fields: dict[str, Any]
) -> None:
    import grpc

    _, call = over_grpc
    with pytest.raises(grpc.RpcError) as refused:
        call("ModelInfer", **{"model_name": "fixed", **fields})
    assert refused.value.code().name == code
    assert message in refused.value.details()


def test_the_address_of_grpc_may_be_in_use(over_grpc: tuple[ModelServer, Call]) -> None:
    server, call = over_grpc
    with pjrt.load_model(FIXED, "reference") as model:
        with pytest.raises(pjrt.UnavailableError, match=f"cannot serve the model at .* and {server.grpc_target}"):
            ModelServer(model, "m", grpc_address=server.grpc_target)
        with pytest.raises(pjrt.InvalidArgumentError, match="expected HOST:PORT for the server"):
            ModelServer(model, "m", grpc_address="unix:/tmp/socket")
    assert call("ServerLive").live


# Batches and buckets, without HTTP.


@pytest.mark.full
def test_requests_of_several_lengths_run_together(sequences: Path) -> None:
    with pjrt.load_model(sequences, "reference") as model:
        batching = Batching(model, 6, {"n": [8, 4]})
        assert (batching.symbol, batching.most_rows) == ("b", 6)
        assert len(list(batching.warm_up())) == 2 * 4  # b = 1, 2, 4, 6
        compiled = len(model.compilations)
        generator = np.random.default_rng(0)
        requests = [
            [generator.integers(0, 10, (rows, length)).astype(np.int32), np.ones((rows, length), F32)]
            for rows, length in ((1, 3), (2, 4), (2, 1))
        ]
        places = [batching.place(request) for request in requests]
        assert places == [(((4,), (4,)), 1), (((4,), (4,)), 2), (((4,), (4,)), 2)]
        for request, results in zip(requests, batching.run(places[0][0], requests), strict=True):
            for result, expected in zip(results, expected_sequences(*request).values(), strict=True):
                np.testing.assert_array_equal(result, expected)
        assert len(model.compilations) == compiled


def test_what_does_not_fit_the_buckets_is_refused(sequences: Path) -> None:
    with pjrt.load_model(sequences, "reference") as model:
        batching = Batching(model, 4, {"n": [4]})

        def place(ids: tuple[int, int], mask: tuple[int, int]) -> None:
            batching.place([np.zeros(ids, np.int32), np.zeros(mask, F32)])

        with pytest.raises(pjrt.InvalidArgumentError, match="expected n up to 4, its largest bucket, found 5"):
            place((1, 5), (1, 5))
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected n = 2 in argument 1 \(mask\).*, found 3"):
            place((1, 2), (1, 3))
        for rows in (0, 5):
            with pytest.raises(pjrt.InvalidArgumentError, match=f"expected 1 to 4 rows in a request, found {rows}"):
                place((rows, 2), (rows, 2))
        with pytest.raises(pjrt.InvalidArgumentError, match=r"a bucket of a dynamic size \(b, n\), found 'z'"):
            Batching(model, 4, {"z": [1]})


@pytest.mark.full
def test_batches_of_a_model_with_constraints_have_buckets(tmp_path: Path) -> None:
    path, example = tmp_path / "m.pjrt", np.zeros((4, 2), F32)
    pjrt.save_model(lambda p, x: x + p, F32(1), example, path, shapes="b, ...", constraints=["mod(b, 2) == 0"])
    with pjrt.load_model(path, "reference") as model:
        batching = Batching(model, 16, {"b": [6, 4]})
        assert batching.most_rows == 6
        x = np.ones((3, 2), F32)
        ((result,),) = batching.run(batching.place([x])[0], [[x]])
        np.testing.assert_array_equal(result, x + 1)
        assert len(list(batching.warm_up())) == 2
        with ModelServer(model, "m", options=ServingOptions(max_batch=1)) as server:
            with pytest.raises(pjrt.InvalidArgumentError, match="mod"):
                server.wait_until_ready()
            assert ask(server, "/v2/health/ready")[0] == 503


def test_a_model_that_cannot_be_served_is_refused() -> None:
    code = "func.func @main(%x: tensor<f8E5M2>) -> tensor<f8E5M2> { return %x : tensor<f8E5M2> }"
    with pjrt.load_model(code, "reference") as model:
        with pytest.raises(pjrt.UnimplementedError, match="expected element types of the Open Inference Protocol"):
            ModelServer(model, "m")
    with pjrt.load_model(FIXED, "reference") as model:
        with pytest.raises(pjrt.InvalidArgumentError, match="a bucket of a dynamic size"):
            ModelServer(model, "m", options=ServingOptions(buckets={"n": [1]}))
        with ModelServer(model, "m") as server, pytest.raises(pjrt.UnavailableError, match="cannot serve the model at"):
            ModelServer(model, "m", server.url.removeprefix("http://"))


def test_the_server_is_not_ready_before_everything_is_compiled(
    sequences: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_compile, original = threading.Event(), pjrt.Model.compile

    def compile_(model: pjrt.Model, *shapes: Any) -> Any:
        assert may_compile.wait(60)
        return original(model, *shapes)

    monkeypatch.setattr(pjrt.Model, "compile", compile_)
    options = ServingOptions(max_batch=1, buckets={"n": [2]})
    with pjrt.load_model(sequences, "reference") as model, ModelServer(model, "m", options=options) as server:
        assert ask(server, "/v2/health/live")[0] == 200
        assert ask(server, "/v2/health/ready") == (503, {"ready": False})
        may_compile.set()
        server.wait_until_ready()
        assert ask(server, "/v2/health/ready")[0] == 200


class Held:
    """The batches that run: each waits until the test lets it go on."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.sizes: list[int] = []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Hold the batches of all servers."""
    held, original = Held(), Batching.run

    def run(batching: Batching, key: Any, requests: Any) -> Any:
        held.sizes.append(len(requests))
        held.began.set()
        assert held.may_end.wait(60)
        return original(batching, key, requests)

    monkeypatch.setattr(Batching, "run", run)
    return held


def test_too_many_requests_are_refused(held: Held) -> None:
    options = ServingOptions(max_waiting=1)
    with pjrt.load_model(FIXED, "reference") as model, ModelServer(model, "m", options=options) as server:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, server, "/v2/models/m/infer", {"inputs": [X, P]})
            assert held.began.wait(60)
            status, answer = ask(server, "/v2/models/m/infer", {"inputs": [X, P]})
            assert (status, "1 requests wait already" in answer["error"]) == (503, True)
            held.may_end.set()
            assert first.result()[0] == 200


def test_requests_that_wait_for_the_device_run_together(sequences: Path, held: Held) -> None:
    options = ServingOptions(max_batch=4, max_delay=0, buckets={"n": [2]})
    ids = tensor("ids", "INT32", [1, 2], [1, 2])
    body = {"inputs": [ids, tensor("mask", "FP32", [1, 2], [1, 1])]}
    with pjrt.load_model(sequences, "reference") as model, ModelServer(model, "m", options=options) as server:
        with ThreadPoolExecutor(6) as pool:
            first = pool.submit(ask, server, "/v2/models/m/infer", body)
            assert held.began.wait(60)
            others = [pool.submit(ask, server, "/v2/models/m/infer", body) for _ in range(5)]
            while "pjrt_waiting_requests 6.0" not in ask(server, "/metrics")[1].decode():
                assert not first.done()
            held.may_end.set()
            answers = [each.result() for each in (first, *others)]
    assert {status for status, _ in answers} == {200}
    assert all(answer["outputs"][0]["data"] == [(3 + 4) + (5 + 6)] for _, answer in answers)
    assert sorted(held.sizes) == [1, 1, 4]


def test_a_request_waits_for_others_only_where_they_came_together(sequences: Path, held: Held) -> None:
    def waiting(server: ModelServer) -> str:
        lines = ask(server, "/metrics")[1].decode().splitlines()
        return next(line for line in lines if line.startswith("pjrt_waiting_requests "))

    options = ServingOptions(max_batch=4, max_delay=1000, buckets={"n": [2]})
    body = {"inputs": [tensor("ids", "INT32", [1, 2], [1, 2]), tensor("mask", "FP32", [1, 2], [1, 1])]}
    with pjrt.load_model(sequences, "reference") as model, ModelServer(model, "m", options=options) as server:
        server.wait_until_ready()
        with ThreadPoolExecutor(3) as pool:
            one = pool.submit(ask, server, "/v2/models/m/infer", body)  # nobody else was here
            assert held.began.wait(60)
            two = pool.submit(ask, server, "/v2/models/m/infer", body)
            while waiting(server) != "pjrt_waiting_requests 2.0":
                assert not one.done()
            held.may_end.set()
            assert one.result()[0] == 200
            assert not two.done()  # it waits for one more, as two were here
            three = pool.submit(ask, server, "/v2/models/m/infer", body)
            assert [each.result()[1]["outputs"][0]["data"] for each in (two, three)] == [[18]] * 2
    assert held.sizes == [1, 2]


# A client of others.


@pytest.mark.full
@pytest.mark.parametrize("is_binary", [True, False])
def test_tritonclient_speaks_with_it(sequences: Path, is_binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http")
    options = ServingOptions(max_batch=8, buckets={"n": [4, 8]})
    with pjrt.load_model(sequences, "cpu") as model, ModelServer(model, "text", options=options) as server:
        server.wait_until_ready()
        address = server.url.removeprefix("http://")
        with triton.InferenceServerClient(address) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("text")
            assert client.get_server_metadata()["name"] == "pjrt"
            described = client.get_model_metadata("text")
            assert [each["shape"] for each in described["inputs"]] == [[-1, -1], [-1, -1]]
            with pytest.raises(triton.InferenceServerException, match="expected the model 'text' of version 1"):
                client.infer("other", [])

        def ask_often(seed: int) -> None:
            generator = np.random.default_rng(seed)
            with triton.InferenceServerClient(address) as client:
                for number in range(25):
                    shape = tuple(map(int, generator.integers(1, (4, 9))))
                    given = {"ids": generator.integers(0, 10, shape).astype(np.int32), "mask": np.ones(shape, F32)}
                    inputs = [triton.InferInput(*each) for each in (("ids", shape, "INT32"), ("mask", shape, "FP32"))]
                    for each in inputs:
                        each.set_data_from_numpy(given[each.name()], binary_data=is_binary)
                    expected = expected_sequences(given["ids"], given["mask"])
                    outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in expected]
                    compression = "gzip" if number % 2 else None
                    options = {"request_id": str(number), "request_compression_algorithm": compression}
                    answer = client.infer("text", inputs, outputs=outputs, **options)
                    assert answer.get_response()["id"] == str(number)
                    for name, array in expected.items():
                        np.testing.assert_array_equal(answer.as_numpy(name), array)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask_often, range(6)))
        assert len(model.compilations) == 2 * 4


@pytest.mark.full
def test_tritonclient_speaks_with_it_over_grpc(sequences: Path) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    options = ServingOptions(max_batch=8, buckets={"n": [4, 8]})
    with pjrt.load_model(sequences, "cpu") as model:
        with ModelServer(model, "text", options=options, grpc_address="127.0.0.1:0") as server:
            server.wait_until_ready()
            with triton.InferenceServerClient(server.grpc_target) as client:
                assert client.is_server_live()
                assert client.is_server_ready()
                assert client.is_model_ready("text")
                assert client.get_server_metadata().name == "pjrt"
                assert [[*each.shape] for each in client.get_model_metadata("text").inputs] == [[-1, -1], [-1, -1]]
                with pytest.raises(triton.InferenceServerException, match="expected the model 'text' of version 1"):
                    client.infer("other", [])

            def ask_often(seed: int) -> None:
                generator = np.random.default_rng(seed)
                with triton.InferenceServerClient(server.grpc_target) as client:
                    for number in range(25):
                        shape = tuple(map(int, generator.integers(1, (4, 9))))
                        given = {"ids": generator.integers(0, 10, shape).astype(np.int32), "mask": np.ones(shape, F32)}
                        kinds = (("ids", shape, "INT32"), ("mask", shape, "FP32"))
                        inputs = [triton.InferInput(*each) for each in kinds]
                        for each in inputs:
                            each.set_data_from_numpy(given[each.name()])
                        answer = client.infer("text", inputs, request_id=str(number))
                        assert answer.get_response().id == str(number)
                        for name, array in expected_sequences(given["ids"], given["mask"]).items():
                            np.testing.assert_array_equal(answer.as_numpy(name), array)

            with ThreadPoolExecutor(6) as pool:
                list(pool.map(ask_often, range(6)))
            assert len(model.compilations) == 2 * 4


@pytest.mark.full
def test_the_command_serves_until_it_is_ended(sequences: Path) -> None:
    command = [sys.executable, "-m", "pjrt", "serve-model", str(sequences), "-d", "reference"]
    command += ["--address", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--bucket", "n=4", "--max-batch", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = next(each for each in server.stdout if each.startswith("serving"))
            assert line.startswith("serving text on reference at http://127.0.0.1:")
            place, _, _ = line.split()[-1].removeprefix("http://").partition("/")
            assert next(server.stdout).startswith("serving text on reference over gRPC at 127.0.0.1:")
            connection = http.client.HTTPConnection(place, timeout=60)
            inputs = [tensor("ids", "INT32", [1, 1], [1]), tensor("mask", "FP32", [1, 1], [1])]
            connection.request("POST", "/v2/models/text/infer", json.dumps({"inputs": inputs}))
            answer = json.loads(connection.getresponse().read())
            assert answer["outputs"][0]["data"] == [7]
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
            connection.close()
        finally:
            server.kill()

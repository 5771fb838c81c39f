"""The Open Inference Protocol over gRPC: the same requests as over HTTP, in messages of protobuf.

The numbers are those of KServe's ``grpc_predict_v2.proto``. Results are always returned as bytes, as Triton does.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

import pjrt
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, StatusCode
from pjrt.api.protobuf import message_classes
from pjrt.models.serving import protocol
from pjrt.remote.metrics import ServerMetrics
from pjrt.stablehlo.facts.signatures import Parameter, Result

Array = np.ndarray[Any, Any]

_log = logging.getLogger("pjrt.models")

_NAMED = {"name": (1, "string"), "version": (2, "string")}
_LAST = {"parameters": (4, "[Entry]"), "contents": (5, "Contents")}
_MESSAGES: Mapping[str, Mapping[str, Any]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_NAMED, "extensions": (3, "[string]")},
    "ModelMetadataRequest": _NAMED,
    "Described": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "[int64]")},
    "ModelMetadataResponse": {
        "name": (1, "string"),
        "versions": (2, "[string]"),
        "platform": (3, "string"),
        "inputs": (4, "[Described]"),
        "outputs": (5, "[Described]"),
    },
    "Parameter": {"bool_param": (1, "bool"), "int64_param": (2, "int64"), "string_param": (3, "string")},
    "Entry": {"key": (1, "string"), "value": (2, "Parameter")},
    "Contents": {
        "bool_contents": (1, "[bool]"),
        "int_contents": (2, "[int32]"),
        "int64_contents": (3, "[int64]"),
        "uint_contents": (4, "[uint32]"),
        "uint64_contents": (5, "[uint64]"),
        "fp32_contents": (6, "[float]"),
        "fp64_contents": (7, "[double]"),
        "bytes_contents": (8, "[bytes]"),
    },
    "Tensor": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "[int64]"), **_LAST},
    "Wanted": {"name": (1, "string"), "parameters": (2, "[Entry]")},
    "ModelInferRequest": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, "[Entry]"),
        "inputs": (5, "[Tensor]"),
        "outputs": (6, "[Wanted]"),
        "raw_input_contents": (7, "[bytes]"),
    },
    "ModelInferResponse": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, "[Entry]"),
        "outputs": (5, "[Tensor]"),
        "raw_output_contents": (6, "[bytes]"),
    },
}
_LONG = 3600.0
"""The seconds that requests may take to end; the caller has limits of its own."""


@functools.cache
def _message_types() -> dict[str, Any]:
    return message_classes("pjrt.inference", _MESSAGES)


class GrpcService:
    """A model over gRPC. Its methods are to be called in one event loop.

    Args:
        name: the model's name.
        platform: that of its client.
        parameters: the parameters of the model.
        results: its results, by name.
        check_name: raises a ``NotFoundError`` for another model or version.
        is_ready: whether everything that is compiled ahead is.
        run: returns the results for the arrays of a request.
        counted: the metrics.
    """

    def __init__(
        self,
        name: str,
        platform: str,
        parameters: Sequence[Parameter],
        results: Mapping[str, Result],
        *,
        check_name: Callable[[str, str], None],
        is_ready: Callable[[], bool],
        run: Callable[[list[Array]], Awaitable[list[Array]]],
        counted: ServerMetrics,
    ) -> None:
        self._facts = protocol.metadata(name, platform, parameters, results)
        self._parameters = parameters
        self._results = results
        self._check_name = check_name
        self._is_ready = is_ready
        self._run = run
        self._counted = counted
        self._types = _message_types()
        self._methods = {
            "ServerLive": self._live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_facts,
            "ModelMetadata": self._model_facts,
            "ModelInfer": self._infer,
        }

    async def start(self, address: str, max_request_bytes: int) -> str:
        """Listen at ``HOST:PORT``, and return the address with the port.

        Raises:
            FailedPreconditionError: grpcio is not installed.
            OSError: the address cannot be used.
        """
        try:
            import grpc
        except ImportError as error:
            raise FailedPreconditionError(
                "grpcio is needed to serve a model over gRPC, and it is not installed: pip install 'pjrt[remote]'"
            ) from error
        limits = [("grpc.max_receive_message_length", max_request_bytes), ("grpc.max_send_message_length", -1)]
        self._codes = {code.value[0]: code for code in grpc.StatusCode}
        self._server = grpc.aio.server(options=[*limits, ("grpc.so_reuseport", 0)])
        handlers = {
            each: grpc.unary_unary_rpc_method_handler(
                self._handler(each),
                request_deserializer=self._types[f"{each}Request"].FromString,
                response_serializer=self._types[f"{each}Response"].SerializeToString,
            )
            for each in self._methods
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()
        return f"{address.rpartition(':')[0]}:{port}"

    async def close(self) -> None:
        """Answer the requests that are here, and end the server."""
        await self._server.stop(_LONG)

    def _handler(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(request: Any, context: Any) -> Any:
            begin, code, message = time.perf_counter(), StatusCode.OK, ""
            try:
                self._counted.received(request.ByteSize())
                response = await self._methods[name](request, self._types[f"{name}Response"])
                self._counted.sent(response.ByteSize())
                return response
            except PjrtError as error:
                code, message = error.code, error.message
            except Exception as error:  # of the model's device, or a mistake of ours: the server goes on
                _log.exception("a request failed")
                code, message = StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
            finally:
                self._counted.request_answered(name, code.name, time.perf_counter() - begin)
            return await context.abort(self._codes[int(code)], message)

        return handle

    async def _live(self, request: Any, response: Any) -> Any:
        return response(live=True)

    async def _server_ready(self, request: Any, response: Any) -> Any:
        return response(ready=self._is_ready())

    async def _model_ready(self, request: Any, response: Any) -> Any:
        self._check_name(request.name, request.version)
        return response(ready=self._is_ready())

    async def _server_facts(self, request: Any, response: Any) -> Any:
        return response(name="pjrt", version=pjrt.__version__)

    async def _model_facts(self, request: Any, response: Any) -> Any:
        self._check_name(request.name, request.version)
        return response(**self._facts)

    async def _infer(self, request: Any, response: Any) -> Any:
        self._check_name(request.model_name, request.model_version)
        raw = request.raw_input_contents
        if raw and len(raw) != len(request.inputs):
            raise InvalidArgumentError(
                f"expected raw_input_contents for all {len(request.inputs)} inputs, or for none, found {len(raw)}"
            )
        described = [self._described(each, raw[index] if raw else None) for index, each in enumerate(request.inputs)]
        known = {protocol.input_name(each): each for each in self._parameters}
        given = protocol.read_inputs(described, memoryview(raw[0] if len(raw) == 1 else b"".join(raw)), known)
        wanted = [each.name for each in request.outputs] or [*self._results]
        protocol.check_outputs(wanted, [*self._results])
        results = dict(zip(self._results, await self._run([given[name] for name in known]), strict=True))
        answer = response(model_name=self._facts["name"], model_version="1", id=request.id)
        for name in wanted:
            answer.outputs.add(name=name, datatype=protocol.datatype(results[name]), shape=results[name].shape)
            answer.raw_output_contents.append(np.ascontiguousarray(results[name]).tobytes())
        return answer

    def _described(self, tensor: Any, raw: bytes | None) -> dict[str, Any]:
        """Return an input as the protocol has it in JSON."""
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if raw is not None:
            return {**described, "parameters": {"binary_data_size": len(raw)}}
        filled = tensor.contents.ListFields()
        return {**described, "data": list(filled[0][1]) if filled else []}

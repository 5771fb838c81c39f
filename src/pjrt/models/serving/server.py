"""The server of a model over HTTP. aiohttp speaks HTTP; what is here joins requests to batches, and answers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pjrt
from pjrt.api.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
)
from pjrt.models.model import Model
from pjrt.models.serving import protocol
from pjrt.models.serving.batches import Batching, Key
from pjrt.models.serving.grpc_service import GrpcService
from pjrt.remote.transport.addresses import Address, parse_address

try:
    from aiohttp import web
    from prometheus_client import Gauge, Histogram
    from prometheus_client.exposition import choose_encoder
except ImportError as error:
    raise FailedPreconditionError(
        f"{error.name} is needed to serve a model, and it is not installed: pip install 'pjrt[http]'"
    ) from error

from pjrt.remote.metrics import Metrics

Array = np.ndarray[Any, Any]

VERSION = "1"
"""The version of a served model: there is one."""

_log = logging.getLogger("pjrt.models")

_READ_SECONDS = 60.0
"""The seconds that the bytes of a request may take to come."""

_STATUSES = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 503,
    StatusCode.UNAVAILABLE: 503,
}
_CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED"}
_CODES |= {413: "RESOURCE_EXHAUSTED"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The limits of a served model.

    Attributes:
        max_batch: the most rows that run together.
        max_delay: the seconds that a request waits for others, at the most, while the device is idle. It waits only
            where more requests came together lately.
        buckets: the sizes that a dynamic size is rounded up to, by its symbol.
        max_request_bytes: the largest request.
        max_waiting: the most requests that wait; a further one is refused.
    """

    max_batch: int = 32
    max_delay: float = 0.002
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    max_request_bytes: int = 64 << 20
    max_waiting: int = 1000


class _Batch:
    """Requests that will run together."""

    def __init__(self) -> None:
        self.requests: list[list[Array]] = []
        self.answers: list[asyncio.Future[list[Array]]] = []
        self.rows = 0
        self.is_due = asyncio.Event()


_MOST_KEYS = 1000


class Batcher:
    """Joins requests to batches, and runs one after another on a thread. To be used in one event loop.

    Args:
        batching: how requests become calls of the model.
        options: the limits.
        ran: is told the number of rows of each batch.
    """

    def __init__(self, batching: Batching, options: ServingOptions, ran: Callable[[int], None]) -> None:
        self._batching = batching
        self._options = options
        self._ran = ran
        self._open: dict[Key, _Batch] = {}
        # How many requests were here at one time lately, where it was more than one.
        self._together: dict[Key, int] = {}
        self._device = asyncio.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "pjrt model")
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches = 0  # that wait or run
        self.waiting = 0

    async def results(self, arrays: list[Array]) -> list[Array]:
        """Return the results for the arrays of a request.

        Raises:
            UnavailableError: too many requests wait.
            PjrtError: the request does not fit, or the model fails.
        """
        key, rows = self._batching.place(arrays)
        if self.waiting >= self._options.max_waiting:
            raise UnavailableError(f"{self.waiting} requests wait already, which is the limit: try again later")
        batch = self._open.get(key)
        if batch is not None and batch.rows + rows > self._batching.most_rows:
            batch = None
        if batch is None:
            for other in self._open.values():
                other.is_due.set()  # the device does not stay idle while this one waits for it
            self._batches += 1
            batch = self._open[key] = _Batch()
            task = asyncio.get_running_loop().create_task(self._run(key, batch))
            self._tasks.add(task)  # the loop itself does not hold it
            task.add_done_callback(self._tasks.discard)
        answer: asyncio.Future[list[Array]] = asyncio.get_running_loop().create_future()
        batch.requests.append(arrays)
        batch.answers.append(answer)
        batch.rows += rows
        if batch.rows == self._batching.most_rows:
            self._close(key, batch)
        if self._is_due(key, batch):
            batch.is_due.set()
        self.waiting += 1
        try:
            return await answer
        finally:
            self.waiting -= 1

    async def _run(self, key: Key, batch: _Batch) -> None:
        """Wait until the device is free, and then for as many requests as came together lately; run the batch."""
        async with self._device:
            if not self._is_due(key, batch):
                batch.is_due.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(batch.is_due.wait(), self._options.max_delay)
            self._close(key, batch)
            try:
                call = asyncio.get_running_loop().run_in_executor(self._thread, self._batching.run, key, batch.requests)
                results: list[list[Array]] | Exception = await call
            except Exception as error:
                results = error
            self._batches -= 1
            self._note_together(key, len(batch.requests))
        self._ran(batch.rows)
        for number, answer in enumerate(batch.answers):
            if answer.done():  # the client has gone
                continue
            if isinstance(results, Exception):
                answer.set_exception(results)
            else:
                answer.set_result(results[number])

    def _is_due(self, key: Key, batch: _Batch) -> bool:
        """Whether a batch need not wait: it is full, or as many are here as lately, or another one is here, too."""
        is_full = batch.rows == self._batching.most_rows
        return is_full or len(batch.requests) >= self._together.get(key, 1) or self._batches > 1

    def _note_together(self, key: Key, count: int) -> None:
        """Note how many requests of a kind are here when a batch of them has run; the number sinks by one each time."""
        if key in self._open:
            count += len(self._open[key].requests)
        together = max(count, self._together.pop(key, 1) - 1)
        if together > 1 and len(self._together) < _MOST_KEYS:
            self._together[key] = together

    def _close(self, key: Key, batch: _Batch) -> None:
        if self._open.get(key) is batch:
            del self._open[key]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class ModelServer:
    """A model over HTTP; it is up until ``close``. The model stays the caller's.

    It answers at once. Until the sizes with buckets are compiled, it is live and not ready.

    Args:
        model: the model.
        name: its name in addresses.
        address: ``HOST:PORT``; the port 0 takes a free one.
        options: the limits.
        grpc_address: ``HOST:PORT`` for the protocol over gRPC; none without it.
        device: the name of the device, for the metrics.
        note: is told each program that was compiled ahead of requests, from another thread.

    Raises:
        UnimplementedError: the protocol lacks an element type of the model, or the model has a state or replicas.
        InvalidArgumentError: an option does not fit the model, or the address is not of its form.
        UnavailableError: the address is in use, or not of this machine.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        address: str = "127.0.0.1:0",
        options: ServingOptions | None = None,
        *,
        grpc_address: str = "",
        device: str = "",
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options or ServingOptions()
        _check(model, name, self._options)
        self._model = model
        self._name = name
        self._batching = Batching(model, self._options.max_batch, self._options.buckets)
        self._results = dict(zip(model.file.signature.result_names(), model.results, strict=True))
        self._metrics = Metrics()
        self._counted = self._metrics.of_server(
            device or model.client.platform_name, model.client.pjrt_client, lambda: ()
        )
        self._rows = Histogram(
            "pjrt_batch_rows",
            "Rows of requests that ran together.",
            registry=self._metrics.registry,
            buckets=[1 << n for n in range(self._batching.most_rows.bit_length() + 1)],
        )
        self._grpc: GrpcService | None = None
        self._is_ready = self._is_closing = False
        self._note = note
        self.failure: PjrtError | None = None
        """Why the model cannot be compiled ahead of requests; None while nothing failed."""
        self._place = _place(address)
        self.grpc_target = _place(grpc_address).target if grpc_address else ""
        """The address for clients of gRPC, ``HOST:PORT``; empty without one."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pjrt http", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except PjrtError:
            self._end_loop()
            raise
        except OSError as error:
            self._end_loop()
            places = " and ".join(filter(None, (address, grpc_address)))
            raise UnavailableError(f"cannot serve the model at {places}: {error.strerror or error}") from error
        self._warming = threading.Thread(target=self._warm_up, name="pjrt warm-up", daemon=True)
        self._warming.start()

    async def _start(self) -> None:
        self._batcher = Batcher(self._batching, self._options, self._rows.observe)
        waiting = Gauge("pjrt_waiting_requests", "Requests that wait or run.", registry=self._metrics.registry)
        waiting.set_function(lambda: self._batcher.waiting)

        async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answered(request, handler)

        app = web.Application(middlewares=[web.middleware(answered)], client_max_size=self._options.max_request_bytes)
        app.router.add_get("/v2", self._get_server)
        app.router.add_get("/v2/health/live", self._get_live)
        app.router.add_get("/v2/health/ready", self._get_ready)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._get_live)
        for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_get(prefix, self._get_model)
            app.router.add_get(f"{prefix}/ready", self._get_ready)
            app.router.add_post(f"{prefix}/infer", self._infer)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._place.host, self._place.port)
        await site.start()
        self._place = self._place.with_port(self._runner.addresses[0][1])
        if self.grpc_target:
            self._grpc = GrpcService(
                self._name,
                self._model.client.platform_name,
                self._model.parameters,
                self._results,
                check_name=self._check_name,
                is_ready=lambda: self._is_ready,
                run=self._batcher.results,
                counted=self._counted,
            )
            try:
                self.grpc_target = await self._grpc.start(self.grpc_target, self._options.max_request_bytes)
            except (OSError, PjrtError):
                await self._runner.cleanup()
                raise

    def _warm_up(self) -> None:
        try:
            for line in self._batching.warm_up():
                self._note(line)
                if self._is_closing:
                    return
            self._is_ready = not self._is_closing
        except PjrtError as error:
            self.failure = error
            self._note(str(error))

    @property
    def url(self) -> str:
        """The address of the server: ``http://HOST:PORT``."""
        return f"http://{self._place.target}"

    def wait_until_ready(self) -> None:
        """Wait until everything that is compiled ahead of requests is.

        Raises:
            PjrtError: the model cannot be compiled.
        """
        self._warming.join()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Answer the requests that are here, and end the server; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._is_ready, self._is_closing = False, True
        self._warming.join()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._batcher.close()
        self._end_loop()

    async def _stop(self) -> None:
        if self._grpc is not None:
            await self._grpc.close()
        await self._runner.cleanup()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # The answers.

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or say in JSON why not; count it."""
        begin, status, code = time.perf_counter(), 200, "OK"
        try:
            response = await handler(request)
        except PjrtError as error:
            status, code = _STATUSES.get(error.code, 500), error.code.name
            response = web.json_response({"error": error.message}, status=status)
        except web.HTTPException as error:
            status, code = error.status, _CODES.get(error.status, "UNKNOWN")
            response = web.json_response({"error": self._reason(error)}, status=status)
        except TimeoutError:
            status, code = 408, _CODES[408]
            reason = f"the request did not come within {_READ_SECONDS:g} s"
            response = web.json_response({"error": reason}, status=status)
        except Exception as error:  # of the model's device, or a mistake of ours: the server goes on
            _log.exception("a request failed")
            status, code = 500, "INTERNAL"
            response = web.json_response({"error": f"{type(error).__name__}: {error}"}, status=status)
        if status == 503:
            response.headers["Retry-After"] = "1"
        route = request.match_info.route.resource
        kind = "unknown" if route is None else route.canonical.rpartition("/")[2].strip("{}")
        self._counted.request_answered(kind, code, time.perf_counter() - begin)
        return response

    def _reason(self, error: web.HTTPException) -> str:
        if error.status == 413:
            return f"expected a request of at most {self._options.max_request_bytes} bytes, found a larger one"
        if error.status == 404:
            return f"there is no such page; those of the model are below /v2/models/{self._name}"
        return str(error.reason)

    def _check_names(self, request: web.Request) -> None:
        self._check_name(request.match_info.get("model", self._name), request.match_info.get("version", VERSION))

    def _check_name(self, name: str, version: str) -> None:
        if (name, version or VERSION) != (self._name, VERSION):
            raise pjrt.NotFoundError(
                f"expected the model {self._name!r} of version {VERSION}, found {name!r} of version {version!r}"
            )

    async def _get_server(self, request: web.Request) -> web.Response:
        extensions = ["binary_tensor_data"]
        return web.json_response({"name": "pjrt", "version": pjrt.__version__, "extensions": extensions})

    async def _get_live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _get_ready(self, request: web.Request) -> web.Response:
        self._check_names(request)
        return web.json_response({"ready": self._is_ready}, status=200 if self._is_ready else 503)

    async def _get_model(self, request: web.Request) -> web.Response:
        self._check_names(request)
        platform = self._model.client.platform_name
        return web.json_response(protocol.metadata(self._name, platform, self._model.parameters, self._results))

    async def _get_metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._metrics.registry), headers={"Content-Type": content_type})

    async def _infer(self, request: web.Request) -> web.Response:
        self._check_names(request)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                body = await request.read()
        except web.RequestPayloadError as error:
            raise InvalidArgumentError(f"the request is damaged or cut off: {' '.join(str(error).split())}") from error
        self._counted.received(len(body))
        asked = protocol.read_request(
            body, request.headers.get(protocol.HEADER_LENGTH), self._model.parameters, [*self._results]
        )
        results = await self._batcher.results(asked.arrays)
        answer, size = protocol.write_response(self._name, asked, dict(zip(self._results, results, strict=True)))
        self._counted.sent(len(answer))
        if size is None:
            return web.Response(body=answer, content_type="application/json")
        headers = {"Content-Type": "application/octet-stream", protocol.HEADER_LENGTH: str(size)}
        return web.Response(body=answer, headers=headers)


def _place(address: str) -> Address:
    place = parse_address(address)
    if place.scheme or place.path:
        raise InvalidArgumentError(f"expected HOST:PORT for the server, found {address!r}")
    return place


def _check(model: Model, name: str, options: ServingOptions) -> None:
    """Check that a model can be served with these options."""
    if not name or "/" in name:
        raise InvalidArgumentError(f"expected the name of the model without a slash, found {name!r}")
    if options.max_batch < 1 or options.max_delay < 0 or options.max_request_bytes < 1 or options.max_waiting < 1:
        raise InvalidArgumentError(f"expected limits of at least 1, and a delay that is not negative, found {options}")
    protocol.check_types((*model.parameters, *model.results))
    if model.file.signature.updates:
        raise UnimplementedError(
            "expected a model without a state, as all clients would share it, found one that changes its weights or "
            "arguments: export it for inference"
        )
    if model.file.partitioning.num_replicas > 1:
        raise UnimplementedError(f"expected a model of one replica, found {model.file.partitioning.num_replicas}")

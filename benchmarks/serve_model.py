"""Load `pjrt serve-model` with requests of one client and of eight, beside the executable alone."""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pjrt
from benchmarks.side_by_side import Report, duration, main, table

WIDTHS = (784, 512, 512, 10)
CLIENTS = 8
_END = b"\r\n\r\n"

# What aiohttp alone does in a second with the same requests: it reads the body, and answers with one that is ready.
_FLOOR = """
import sys
from aiohttp import web

async def answer(request):
    await request.read()
    return web.Response(body=bytes(300), content_type="application/json")

app = web.Application()
app.router.add_post("/{rest:.*}", answer)
web.run_app(app, host="127.0.0.1", port=0, access_log=None, print=lambda text: print(text, flush=True))
"""


def write_model(path: Path) -> None:
    """Write a model of three layers whose batches may have any size."""
    generator = np.random.default_rng(0)
    params = [
        (generator.standard_normal((m, n)).astype(np.float32) / 28, np.zeros(n, np.float32))
        for m, n in itertools.pairwise(WIDTHS)
    ]

    def classify(params: Any, image: Any) -> Any:
        for weights, bias in params[:-1]:
            image = jax.nn.relu(image @ weights + bias)
        weights, bias = params[-1]
        return jax.nn.softmax(image @ weights + bias)

    pjrt.save_model(classify, params, np.zeros((1, WIDTHS[0]), np.float32), str(path), shapes="b, ...")


@contextlib.contextmanager
def server(*command: str) -> Iterator[str]:
    """Start a server in a process of its own, and return its address once it is ready."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        place = urllib.parse.urlsplit(next(word for word in line.split() if word.startswith("http://"))).netloc
        while "serving" in line and not is_ready(place):
            time.sleep(0.05)
        yield place
    finally:
        process.terminate()
        process.wait(30)


def is_ready(place: str) -> bool:
    """Tell whether a server has compiled what it compiles ahead of requests."""
    try:
        with urllib.request.urlopen(f"http://{place}/v2/health/ready"):
            return True
    except urllib.error.HTTPError:
        return False


def request(place: str, image: np.ndarray, *, binary: bool) -> bytes:
    """Return the bytes of a request for the results of a model, which are asked for in the same form."""
    given: dict[str, Any] = {"name": "image", "shape": list(image.shape), "datatype": "FP32"}
    options: dict[str, Any] = {"parameters": {"binary_data_output": True}} if binary else {}
    given |= {"parameters": {"binary_data_size": image.nbytes}} if binary else {"data": image.reshape(-1).tolist()}
    head = json.dumps({"inputs": [given], **options}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}\r\n" if binary else ""
    body = head + (image.tobytes() if binary else b"")
    first = f"POST /v2/models/model/infer HTTP/1.1\r\nHost: {place}\r\nContent-Length: {len(body)}\r\n{length}\r\n"
    return first.encode() + body


def load(place: str, message: bytes, clients: int, count: int) -> tuple[list[float], float]:
    """Send requests by clients that each wait for the answer before the next one.

    Returns:
        the seconds of each request, and the seconds of all of them.
    """
    host, _, port = place.partition(":")
    chooser = selectors.DefaultSelector()
    begun: dict[socket.socket, float] = {}
    times: list[float] = []
    received: dict[socket.socket, bytes] = {}
    left = count
    start = time.perf_counter()
    for _ in range(clients):
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chooser.register(connection, selectors.EVENT_READ)
        begun[connection], received[connection] = time.perf_counter(), b""
        connection.sendall(message)
        left -= 1
    while len(times) < count:
        for key, _ in chooser.select():
            connection = key.fileobj  # type: ignore[assignment]
            received[connection] += connection.recv(1 << 16)
            if not is_whole(received[connection]):
                continue
            now = time.perf_counter()
            times.append(now - begun[connection])
            received[connection] = b""
            if left:
                left -= 1
                begun[connection] = time.perf_counter()
                connection.sendall(message)
    seconds = time.perf_counter() - start
    for connection in begun:
        connection.close()
    return times, seconds


def is_whole(answer: bytes) -> bool:
    """Tell whether an answer is complete.

    Raises:
        RuntimeError: it is no success.
    """
    head, end, body = answer.partition(_END)
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:500].decode(errors="replace"))
    size = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return len(body) >= int(size.partition(b":")[2])


def alone(model: Path, image: np.ndarray, count: int) -> tuple[list[float], float]:
    """Run the executable in this process, from an array to an array."""
    times = []
    with pjrt.load_model(str(model), "cpu") as loaded:
        np.asarray(loaded(image))
        start = time.perf_counter()
        for _ in range(count):
            begin = time.perf_counter()
            np.asarray(loaded(image))
            times.append(time.perf_counter() - begin)
        return times, time.perf_counter() - start


def check(place: str, model: Path, image: np.ndarray) -> None:
    """Check that the server answers what the executable does."""
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port))) as connection, pjrt.load_model(str(model), "cpu") as loaded:
        connection.sendall(request(place, image, binary=False))
        answer = b""
        while not is_whole(answer):
            answer += connection.recv(1 << 16)
        (output,) = json.loads(answer.partition(_END)[2])["outputs"]
        np.testing.assert_allclose(output["data"], np.asarray(loaded(image)).reshape(-1), rtol=1e-4, atol=1e-6)


def measure(quick: bool) -> Report:
    """Compare the times of requests with those of the executable alone."""
    rounds, count = (2, 100) if quick else (11, 1600)
    image = np.random.default_rng(1).standard_normal((1, WIDTHS[0])).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = Path(folder) / "model.pjrt"
        write_model(model)
        serve = ("-m", "pjrt", "serve-model", str(model), "--device", "cpu", "--address", "127.0.0.1:0")
        place = stack.enter_context(server(*serve))
        single = stack.enter_context(server(*serve, "--max-batch", "1"))
        floor = stack.enter_context(server("-c", _FLOOR))
        check(place, model, image)
        contestants: dict[str, Any] = {"the executable alone": lambda: alone(model, image, count)}
        for clients in (1, CLIENTS):
            who = "1 client" if clients == 1 else f"{clients} clients"
            for name, at, binary in (
                ("binary", place, True),
                ("JSON", place, False),
                ("binary, batches of 1", single, True),
                ("binary, aiohttp that computes nothing", floor, True),
            ):
                message = request(at, image, binary=binary)
                contestants[f"{who}, {name}"] = lambda at=at, message=message, clients=clients: load(
                    at, message, clients, count
                )
        for call in contestants.values():
            call()  # warms up
        found: dict[str, list[tuple[list[float], float]]] = {name: [] for name in contestants}
        generator = np.random.default_rng(2)
        for _ in range(rounds):
            for name in generator.permutation(list(contestants)):
                found[name].append(contestants[name]())
    rows = [row(name, runs) for name, runs in found.items()]
    requests = sum(len(times) for name, runs in found.items() for times, _ in runs if "client" in name)
    about = (
        f"A classifier of three layers ({' × '.join(map(str, WIDTHS))}, f32), one image in a request, by `pjrt "
        f"serve-model` on `cpu` in a process of its own. {requests} requests of one thread that speaks HTTP over as "
        "many connections as there are clients. Each client waits for its answer before it asks again. Medians of "
        f"{rounds} rounds of {count} requests; the contestants take turns."
    )
    header = ["", "requests/s", "p50", "p99", "slowest"]
    return Report("Serving a model over HTTP", about, [table(header, rows)])


def row(name: str, runs: Sequence[tuple[list[float], float]]) -> tuple[str, ...]:
    """Return the medians over the rounds of the requests in a second, and of the percentiles of their times."""
    rate = statistics.median(len(times) / seconds for times, seconds in runs)
    percentiles = (statistics.median(float(np.quantile(times, part)) for times, _ in runs) for part in (0.5, 0.99, 1))
    return name, f"{rate:,.0f}", *map(duration, percentiles)


if __name__ == "__main__":
    main(measure)

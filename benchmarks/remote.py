"""Time devices of a server on this machine: as JAX uses them, as our client does, and against gRPC alone.

``python -m benchmarks.remote bare`` on this module is a server of grpcio's that sends back what it receives.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import pjrt
from benchmarks.big_models import Step as ProgramStep
from benchmarks.export import Step
from benchmarks.lowering import lower
from benchmarks.models import resnet50, transformer
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns

LOCAL, STOCK, OURS, FILES = "JAX, local", "JAX, remote", "pjrt, remote", "pjrt, by files"
SHARED = "pjrt, `--isolate no`"
BARE, TRANSPORT = "gRPC", "our transport"
CONTESTANTS = (LOCAL, STOCK, OURS, SHARED, FILES, BARE, TRANSPORT)
X = np.arange(8, dtype=np.float32)
MESSAGE = bytes(100)
"""As long as a request to run a program with one argument and one result."""
SIZE = 64 << 20
SEMANTICS = pjrt.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
PIECE = 1 << 20
BURST = 100
"""The calls in a row that are timed without waiting for their results."""

Prepared = tuple[Callable[[], Any], Callable[[Any], object]]
"""The preparation of a call, made anew each time, and the call on what it returns."""

TINY = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""

WAITING_REASON = "Two requests and their responses pass three or four threads, of which each waits for a processor."
FETCH_REASONS = {
    STOCK: "jaxlib's client fetches an array by calls of their own, beside the session.",
    OURS: "The request to read follows the one to run; both pass the process of the client's devices.",
}
TRANSFER_REASONS = {
    (STOCK, "64 MiB in"): "jaxlib's client copies the array once more than the bare stream.",
    (STOCK, "64 MiB out"): "jaxlib's client copies the array three times more than the bare stream.",
    (
        OURS,
        "64 MiB out",
    ): "The array is put into new memory, which the system zeroes first; the bare stream keeps nothing.",
}
LOAD_REASON = (
    "jaxlib's client wakes up 20,000 times a second in the other process, which takes a tenth of one of two processors."
)


@contextlib.contextmanager
def process(*command: str) -> Iterator[str]:
    """Run a server in a subprocess; the value is the address that ends its first line."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def serve_bare() -> None:
    """Be a server of grpcio's public API, and one of our transport: messages are sent back, or thrown away."""
    import grpc

    from pjrt.remote.transport.grpc_server import Bidirectional, GrpcServer

    def send(request: bytes, context: object) -> Iterator[bytes]:
        piece = bytes(PIECE)
        return (piece for _ in range(int(request) // PIECE))

    class Methods(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return {
                "/bare/Echo": grpc.stream_stream_rpc_method_handler(lambda requests, context: requests),
                "/bare/In": grpc.stream_unary_rpc_method_handler(
                    lambda requests, context: str(sum(map(len, requests))).encode()
                ),
                "/bare/Out": grpc.unary_stream_rpc_method_handler(send),
            }[details.method]

    class Echo:
        def __init__(self, context: object, send: Callable[[bytes], None]) -> None:
            self.receive = send

        def close(self, reason: str, failure: object) -> None:
            pass

    bare = grpc.server(ThreadPoolExecutor(8))
    bare.add_generic_rpc_handlers((Methods(),))
    port = bare.add_insecure_port("127.0.0.1:0")
    bare.start()
    ours = GrpcServer("127.0.0.1:0", {"/bare/Echo": Bidirectional(Echo)})
    ours.start()
    print(f"127.0.0.1:{port},{ours.address}", flush=True)
    bare.wait_for_termination()


class Bare:
    """The calls of the bare server."""

    def __init__(self, addresses: str) -> None:
        import grpc

        from pjrt.remote.transport.channel import Channel

        address, ours = addresses.split(",")
        channel = grpc.insecure_channel(address)
        requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        responses = channel.stream_stream("/bare/Echo")(iter(requests.get, None))

        def echo() -> None:
            requests.put(MESSAGE)
            next(responses)

        answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._channel = Channel(ours)
        stream = self._channel.stream("/bare/Echo", answers.put, lambda error: None)

        def echo_of_ours() -> None:
            stream.send(MESSAGE)
            answers.get()

        take, give = channel.stream_unary("/bare/In"), channel.unary_stream("/bare/Out")
        pieces = [bytes(PIECE)] * (SIZE // PIECE)
        self.echo, self.echo_of_ours = echo, echo_of_ours
        self.stream_in = lambda: take(iter(pieces))
        self.stream_out = lambda: sum(map(len, give(str(SIZE).encode())))


def tiny(devices: dict[str, Any], clients: dict[str, pjrt.Client]) -> dict[str, tuple[Call, Callable[[Any], object]]]:
    """Return for each contestant the call of a tiny program, and what waits for a result."""
    import jax

    calls: dict[str, tuple[Call, Callable[[Any], object]]] = {}
    for name, device in devices.items():
        function, x = jax.jit(lambda x: jax.numpy.tanh(x)), jax.device_put(X, device)
        np.testing.assert_allclose(function(x), np.tanh(X), rtol=1e-5)
        calls[name] = (lambda function=function, x=x: function(x), lambda result: result.block_until_ready())
    for name in (OURS, SHARED):
        executable, buffer = clients[name].compile(TINY), clients[name].buffer_from_host(X)
        np.testing.assert_allclose(executable(buffer)[0], np.tanh(X), rtol=1e-5)
        calls[name] = (
            lambda executable=executable, buffer=buffer: executable(buffer)[0],
            lambda result: result.ready().result(),
        )
    return calls


def fetched(devices: dict[str, Any], clients: dict[str, pjrt.Client]) -> dict[str, dict[str, Call]]:
    """Return the calls that fetch the result: of an array on the device, and of one of numpy."""
    import jax

    there: dict[str, Call] = {}
    both: dict[str, Call] = {}
    for name, device in devices.items():
        function, x = jax.jit(lambda x: jax.numpy.tanh(x)), jax.device_put(X, device)
        there[name] = lambda function=function, x=x: np.asarray(function(x))
        both[name] = lambda function=function, device=device: np.asarray(function(jax.device_put(X, device)))
    for name in (OURS, SHARED):
        executable, buffer = clients[name].compile(TINY), clients[name].buffer_from_host(X)
        there[name] = lambda executable=executable, buffer=buffer: np.asarray(executable(buffer)[0])
        both[name] = lambda executable=executable: np.asarray(executable(X)[0])
    return {"tiny program, fetched": there, "tiny program, numpy in and out": both}


def time_returning(calls: dict[str, tuple[Call, Callable[[Any], object]]], rounds: int) -> dict[str, Timing]:
    """Time calls that do not wait; between the contestants all results arrive, and nobody's clock runs."""
    noted: dict[str, list[float]] = {name: [] for name in calls}
    chance = random.Random(0)
    for number in range(rounds + 1):
        for name in chance.sample(list(calls), len(calls)):
            call, wait = calls[name]
            start = time.perf_counter()
            results = [call() for _ in range(BURST)]
            elapsed = time.perf_counter() - start
            wait(results[-1])
            del results
            wait(call())  # the results above are released by now
            if number:
                noted[name].append(elapsed / BURST)
    return {name: Timing(tuple(seconds)) for name, seconds in noted.items()}


def transfers(devices: dict[str, Any], clients: dict[str, pjrt.Client], bare: Bare) -> dict[str, dict[str, Prepared]]:
    """Return the calls that bring 64 MiB to each contestant's device, and those that bring them back."""
    import jax

    array = np.random.default_rng(0).random(SIZE // 4, np.float32)
    into: dict[str, Prepared] = {BARE: (lambda: None, lambda _: bare.stream_in())}
    out: dict[str, Prepared] = {BARE: (lambda: None, lambda _: bare.stream_out())}
    for name, device in devices.items():
        into[name] = (lambda: None, lambda _, device=device: jax.device_put(array, device).block_until_ready())
        # A jax.Array keeps what was read of it, so each read is of a new one.
        negate, there = jax.jit(lambda x: -x), jax.device_put(array, device)
        out[name] = (lambda negate=negate, there=there: negate(there).block_until_ready(), np.asarray)
        np.testing.assert_array_equal(np.asarray(negate(there)), -array)
    for name, user in clients.items():
        buffer = user.buffer_from_host(array)
        into[name] = (
            lambda: None,
            lambda _, user=user: user.buffer_from_host(array, semantics=SEMANTICS).ready().result(),
        )
        out[name] = (lambda: None, lambda _, buffer=buffer: buffer.to_host().result())
        np.testing.assert_array_equal(buffer.to_host().result(), array)
    del out[FILES]  # files are for the way to the server
    return {"64 MiB in": into, "64 MiB out": out}


def time_prepared(cases: dict[str, Prepared], rounds: int) -> dict[str, Timing]:
    """Time calls that need something new each time, which is prepared while no clock runs."""
    noted: dict[str, list[float]] = {name: [] for name in cases}
    chance = random.Random(0)
    for number in range(rounds + 1):
        for name in chance.sample(list(cases), len(cases)):
            prepare, call = cases[name]
            given = prepare()
            start = time.perf_counter()
            result = call(given)
            elapsed = time.perf_counter() - start
            del given, result
            if number:
                noted[name].append(elapsed)
    return {name: Timing(tuple(seconds)) for name, seconds in noted.items()}


def models(devices: dict[str, Any], client: pjrt.Client) -> dict[str, dict[str, Call]]:
    """Return the calls of whole models on each contestant's device, which wait for the result."""
    image = [resnet50.weights(), resnet50.images(1)]
    state = [transformer.state(), transformer.tokens(4)]
    cases: dict[str, dict[str, Call]] = {
        "ResNet-50, one image": {
            name: Step(resnet50.inference, image, device, donates=False) for name, device in devices.items()
        },
        "training step of a transformer": {
            name: Step(transformer.train_step, state, device, donates=True) for name, device in devices.items()
        },
    }
    programs = lower(resnet50.inference, *image), lower(transformer.train_step, *state, donate_first=True)
    for case, program in zip(cases.values(), programs, strict=True):
        arguments = [client.buffer_from_host(argument) for argument in program.arguments]
        case[OURS] = ProgramStep(
            client.compile(program.code), arguments, program.donated, lambda result: result.ready().result()
        )
    return cases


def ratio_of_shortest(timing: Timing, other: Timing) -> float:
    """Return the ratio of the shortest times: two processes take part, so other work of the machine weighs twice."""
    return min(timing.rounds) / min(other.rounds)


def row(name: str, timings: dict[str, Timing], base: str) -> list[str]:
    """Return a line of a table: the median and the shortest time of each contestant, and the ratios to one of them."""
    cells = [name]
    for contestant in CONTESTANTS:
        timing = timings.get(contestant)
        if timing is None:
            cells.append("")
        else:
            ratio = "" if contestant == base else f", {ratio_of_shortest(timing, timings[base]):.2f}×"
            cells.append(f"{duration(timing.median)} ({duration(min(timing.rounds))}{ratio})")
    return cells


def measure(quick: bool) -> Report:
    """Compare the devices of a server on this machine with local ones, and with gRPC alone."""
    import jax

    report = Report(
        "Remote devices on one machine",
        "`pjrt serve cpu` in a process of its own, used by JAX through jaxlib's client and by our client, beside JAX's "
        "own CPU device in this process. *gRPC* is the same size through grpcio's public API, without anything on top: "
        "messages of 100 bytes there and back, and 64 pieces of 1 MiB one way. *Our transport* sends such messages "
        "there and back between the two ends of this package; *by files* is our client with a directory for transfers; "
        "with `--isolate no` the devices are in the server's process, else in one of the client's own. "
        "Each cell has the median, and in brackets the shortest time and its ratio: to gRPC for the first six rows, "
        "to JAX's local device for the models. The aims are about the shortest times.",
    )
    rounds = 5 if quick else 21
    shared_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with (
        tempfile.TemporaryDirectory(dir=shared_memory) as directory,
        process("benchmarks.remote", "bare") as addresses,
        process("pjrt", "serve", "cpu", "--transfer-directory", directory) as address,
        process("pjrt", "serve", "cpu", "--isolate", "no") as shared,
    ):
        pjrt.frameworks.jax.connect(address, make_default=False)
        devices = {LOCAL: jax.devices("cpu")[0], STOCK: jax.devices("remote")[0]}
        clients = {
            OURS: pjrt.client("remote", address=address),
            SHARED: pjrt.client("remote", address=shared),
            FILES: pjrt.client("remote", address=address, transfer_directory=directory),
        }
        client, bare = clients[OURS], Bare(addresses)
        calls = tiny(devices, clients)
        rows = []

        def note(name: str, timings: dict[str, Timing], base: str = BARE) -> dict[str, Timing]:
            rows.append(row(name, timings, base))
            return timings

        waiting: dict[str, Call] = {
            name: lambda call=call, wait=wait: wait(call()) for name, (call, wait) in calls.items()
        }
        echoes = {BARE: bare.echo, TRANSPORT: bare.echo_of_ours}
        waited = note("tiny program, waiting", take_turns({**waiting, **echoes}, rounds=rounds))
        returned = time_returning(calls, rounds)
        note("tiny program, returning", {**returned, BARE: waited[BARE]})
        fetches = {
            name: note(name, take_turns({**case, BARE: bare.echo}, rounds=rounds))
            for name, case in fetched(devices, clients).items()
        }
        moved = {
            name: note(name, time_prepared(case, rounds)) for name, case in transfers(devices, clients, bare).items()
        }
        ran = {
            name: note(name, take_turns(case, rounds=3 if quick else 15, round_seconds=0.3), LOCAL)
            for name, case in models(devices, client).items()
        }
        for user in clients.values():
            user.close()
    report.tables.append(table(["", *CONTESTANTS], rows))
    for name, timings in {"tiny program, waiting": waited, **moved}.items():
        ratio = ratio_of_shortest(timings[OURS], timings[SHARED])
        report.aims.append(Aim(f"{name}: a process for the client within 1.2×", ratio, 1.2))
    for name in (STOCK, OURS):
        report.aims.append(Aim(f"{name}: returning within 150 µs", min(returned[name].rounds) * 1e6, 150))
        ratio = ratio_of_shortest(waited[name], waited[BARE])
        report.aims.append(Aim(f"{name}: waiting within 3× gRPC's round trip", ratio, 3, reason=WAITING_REASON))
        for case, timings in fetches.items():
            ratio = ratio_of_shortest(timings[name], timings[BARE])
            report.aims.append(Aim(f"{name}: {case} within 2× gRPC's round trip", ratio, 2, reason=FETCH_REASONS[name]))
        for way, timings in moved.items():
            reason = TRANSFER_REASONS.get((name, way), "")
            speed = ratio_of_shortest(timings[BARE], timings[name])
            aim = Aim(f"{name}: {way} at 0.8 of gRPC's speed", speed, 0.8, at_least=True, reason=reason)
            report.aims.append(aim)
        for model, timings in ran.items():
            ratio = ratio_of_shortest(timings[name], timings[LOCAL])
            report.aims.append(Aim(f"{name}: {model} within 5% of local", ratio, 1.05, reason=LOAD_REASON))
    return report


if __name__ == "__main__":
    if sys.argv[1:] == ["bare"]:
        serve_bare()
    else:
        main(measure)

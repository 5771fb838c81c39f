"""``pjrt serve-model``: a model over HTTP, by the Open Inference Protocol."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt.cli._console import asked_to_end, echo, ended_within
from pjrt.cli._options import client_options, complete_device
from pjrt.cli._program import STDIN, check_first, check_needs_no_infeed, program_argument, read_model_file

_EXAMPLES = """
\b
Examples:
  pjrt serve-model model.pjrt
  pjrt serve-model model.pjrt -d cuda --max-batch 64 --max-delay 0.005
  pjrt serve-model text.pjrt --bucket n=32,64,128 --address 127.0.0.1:8000
"""


def _read_buckets(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, list[int]]:
    buckets: dict[str, list[int]] = {}
    for each in given:
        symbol, equals, sizes = each.partition("=")
        texts = sizes.split(",")
        if not equals or not symbol or not all(text.isascii() and text.isdigit() and int(text) for text in texts):
            raise click.BadParameter(f"expected SYMBOL=SIZE,SIZE,… such as n=32,64, found {each!r}")
        buckets.setdefault(symbol, []).extend(map(int, texts))
    return buckets


@click.command("serve-model", epilog=_EXAMPLES)
@program_argument
@click.option("--device", "-d", metavar="NAME", shell_complete=complete_device, help="The device, as of pjrt run.")
@client_options
@click.option("--name", metavar="NAME", help="The model's name in addresses. By default that of the file.")
@click.option(
    "--address",
    metavar="HOST:PORT",
    default="127.0.0.1:8000",
    show_default=True,
    help="Where to listen; the port 0 takes a free one.",
)
@click.option(
    "--max-batch", type=click.IntRange(1), default=32, show_default=True, help="The most rows that run together."
)
@click.option(
    "--grpc",
    "grpc_address",
    default="",
    metavar="HOST:PORT",
    help="Serve the protocol over gRPC here, too; the port 0 takes a free one.",
)
@click.option(
    "--max-delay",
    type=click.FloatRange(0),
    default=0.002,
    show_default=True,
    help="Seconds that a request waits for others, at the most, while the device is idle.",
)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="SYMBOL=SIZES",
    callback=_read_buckets,
    help="Round a dynamic size up to one of these, with zeros behind the values: n=32,64,128. All are compiled first.",
)
@click.option(
    "--max-request",
    type=click.IntRange(1),
    default=64 << 20,
    show_default=True,
    metavar="BYTES",
    help="The largest request.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="The most requests that wait; a further one is refused.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds that requests have to end after SIGTERM.",
)
def serve_model(
    program: str,
    device: str | None,
    options: dict[str, Any],
    name: str | None,
    address: str,
    grpc_address: str,
    max_batch: int,
    max_delay: float,
    buckets: dict[str, list[int]],
    max_request: int,
    max_waiting: int,
    grace: float,
) -> None:
    """Serve the model in PROGRAM over HTTP, by the Open Inference Protocol of KServe and Triton.

    Requests run together, if the first sizes of all arguments and results are one symbol. Ctrl-C or SIGTERM ends the
    server.

    Every program that reaches the address may use the model. Put a proxy with TLS before it for other machines.
    """
    from pjrt.models.model import SHAPES_KEPT
    from pjrt.models.serving.server import ModelServer, ServingOptions

    chosen = pjrt.plugins.default() if device is None else device
    check_first([chosen])
    file = check_needs_no_infeed(read_model_file(program))
    named = name or ("model" if program == STDIN else Path(program).name.removesuffix(".pjrt"))
    limits = ServingOptions(max_batch, max_delay, buckets, max_request, max_waiting)
    # Each size that requests are rounded to keeps its executable.
    kept = max(SHAPES_KEPT, (max_batch.bit_length() + 1) * math.prod(map(len, buckets.values())))
    announced = threading.Event()

    def note(line: str) -> None:
        announced.wait()  # the address comes first
        echo(line)

    with asked_to_end() as stopped, pjrt.load_model(file, chosen, shapes_kept=kept, **options) as model:
        with ModelServer(model, named, address, limits, grpc_address=grpc_address, device=chosen, note=note) as server:
            echo(f"serving {named} on {chosen} at {server.url}/v2/models/{named}")
            if server.grpc_target:
                echo(f"serving {named} on {chosen} over gRPC at {server.grpc_target}")
            echo(f"metrics at {server.url}/metrics")
            announced.set()
            stopped.wait()
            with ended_within(grace, f"requests are still at work after {grace:g} s: the server ends without them"):
                server.close()

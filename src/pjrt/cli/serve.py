"""``pjrt serve``: devices for programs in other processes."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

import pjrt
from pjrt.cli._console import asked_to_end, echo, ended_within
from pjrt.cli._options import client_options, complete_device, limit_options, server_file_options
from pjrt.plugins.env_vars import split_options

if TYPE_CHECKING:
    from pjrt import remote

_EXAMPLES = """
\b
Examples:
  pjrt serve cpu -O num_devices=4
  pjrt serve cpu reference --address 127.0.0.1:8470 --address 127.0.0.1:8471
  pjrt serve ./mine.py:make_client
  pjrt serve cpu --address 0.0.0.0:8470 --token-file tokens \\
    --tls-certificate server.pem --tls-key server.key
"""


@click.command(epilog=_EXAMPLES)
@click.argument("devices", nargs=-1, required=True, shell_complete=complete_device)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Where to listen, by default 127.0.0.1:0; the port 0 takes a free one. For several devices, give it for each.",
)
@click.option(
    "--isolate",
    type=click.Choice(["yes", "no"]),
    help="Whether each client has a process of its own, with devices of its own; by default those of cpu, reference "
    "and iree, on Linux. With no, clients must trust each other; devices that only one process may open need it.",
)
@click.option(
    "--platform-name",
    default="",
    metavar="NAME",
    help="The platform's name for clients, by default its own; as cpu, any device has donation in stock JAX.",
)
@click.option(
    "--vet-programs/--trust-programs",
    default=None,
    help="Whether to parse new programs in a subprocess first, as damaged ones end it; by default for other machines, "
    "where clients share a process.",
)
@click.option(
    "--save-executables",
    is_flag=True,
    help="Let clients save executables and load saved ones. These hold machine code: only for clients that you trust.",
)
@click.option(
    "--allow-option",
    "allow_options",
    multiple=True,
    metavar="NAME",
    help="A further compile option that clients may set. By default they may set those that concern the program alone.",
)
@server_file_options
@limit_options
@click.option(
    "--metrics-address",
    metavar="HOST:PORT",
    help="Serve the metrics for Prometheus there, as http://HOST:PORT/metrics; the port 0 takes a free one.",
)
@click.option(
    "--transfer-directory",
    metavar="DIRECTORY",
    help="A directory, best in shared memory such as /dev/shm, in which clients of this machine leave large arrays.",
)
@click.option(
    "--log", "log_sessions", is_flag=True, help="Log each session that opens or ends; refused ones are always logged."
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds that the programs of clients have to end after SIGTERM, before the server ends without them.",
)
@client_options
def serve(
    devices: tuple[str, ...],
    addresses: tuple[str, ...],
    isolate: str | None,
    files: dict[str, Any],
    limits: dict[str, Any],
    metrics_address: str | None,
    log_sessions: bool,
    grace: float,
    options: dict[str, Any],
    **served: Any,
) -> None:
    """Serve DEVICES to programs in other processes, over the IFRT proxy protocol.

    A line for each device names its address when it is ready. Ctrl-C or SIGTERM ends the server.

    Every program of this machine may use the devices, unless --client-ca or --token-file is given. Addresses that other
    machines reach need TLS and one of the two.
    """
    from pjrt import remote
    from pjrt.remote.connection_log import LOGGER, log_to
    from pjrt.remote.server.isolation import DIVISIBLE
    from pjrt.remote.server.status import StatusAnswers
    from pjrt.system import keep_freed_memory, limit_xla_log, use_all_open_files
    from pjrt.system.confinement import CAN_CONFINE

    if len(addresses) > 1 and len(addresses) != len(devices):
        raise click.UsageError(f"expected an --address for each of {len(devices)} devices, found {len(addresses)}")
    places = addresses or ("127.0.0.1:0",)
    if len(places) < len(devices):
        if not places[0].endswith(":0"):
            raise click.UsageError(f"expected an --address for each of {len(devices)} devices, found one")
        places *= len(devices)
    # What XLA warns of is about the programs of clients, and quotes them. The log here is for who runs the server.
    limit_xla_log(2)
    keep_freed_memory()
    use_all_open_files()  # connections that say nothing are dropped after seconds; until then others need files, too
    notes: list[str] = []
    with asked_to_end() as stopped, contextlib.ExitStack() as end, contextlib.ExitStack() as stack:
        handler = log_to(sys.stderr, logging.INFO if log_sessions else logging.WARNING)
        stack.callback(LOGGER.removeHandler, handler)
        metrics = stack.enter_context(remote.MetricsServer(metrics_address)) if metrics_address else None
        common = remote.ServeOptions(**files, limits=remote.Limits(**limits), metrics=metrics, **served)
        servers: list[remote.Server] = []
        try:
            stack.enter_context(StatusAnswers(servers))
        except OSError as error:
            echo(f"pjrt: warning: 'pjrt top' cannot show this server: {error}", err=True)
        for name, address in zip(devices, places, strict=True):
            device, behind_name = split_options(name)
            own = {**behind_name, **options}
            is_isolated = CAN_CONFINE and device in DIVISIBLE if isolate is None else isolate == "yes"
            offered = remote.Isolated(device, own) if is_isolated else stack.enter_context(pjrt.client(device, **own))
            server = remote.serve(offered, address, common, name=name)
            stack.callback(server.stop, None)
            servers.append(server)
            count = offered.count if isinstance(offered, remote.Isolated) else len(offered.addressable_devices)
            echo(f"serving {name} with {count} device{'s' * (count != 1)} at {server.address}")
            notes.append(f"{name}: {_note(offered)}")
        if metrics is not None:
            echo(f"metrics at {metrics.url}")
        for note in notes:
            echo(note)
        gc.freeze()  # the objects so far live as long as the server: the garbage collector need not visit them
        gc.set_threshold(2_000)  # rarer is good for short commands alone: errors of sessions keep gRPC's memory
        stopped.wait()
        # XLA can stop neither a loop without an end nor a compilation, and waits for them before it closes the devices.
        message = f"programs of clients are still at work after {grace:g} s: the server ends without them"
        end.enter_context(ended_within(grace, message))


def _note(offered: remote.Isolated | pjrt.Client) -> str:
    """Return what clients can do to each other, on one line."""
    if isinstance(offered, pjrt.Client):
        return "all clients share one process, and must trust each other"
    note = "each client has a process of its own"
    return f"{note}, which may {', '.join(offered.may)}: the system cannot prevent it" if offered.may else note

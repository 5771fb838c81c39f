"""``pjrt worker``: one worker of a cluster, for programs that start workers themselves."""

from __future__ import annotations

from pathlib import Path

import click

from pjrt.cli._options import complete_file

_EXAMPLES = """
\b
Examples:
  pjrt worker --controller node0:8470 --token-file token
  srun pjrt worker --controller node0:8470 --token-file token
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="Where the controller is: its controller_address. May be given several times, for several ways to it.",
)
@click.option(
    "--token-file",
    required=True,
    metavar="FILE",
    shell_complete=complete_file,
    help="The secret of the cluster, the same as the controller's; readable by this user alone.",
)
@click.option(
    "--index", type=click.IntRange(0), metavar="N", help="The worker's number, from 0; by default any that is free."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the controller.",
)
@click.pass_context
def worker(
    context: click.Context, controllers: tuple[str, ...], token_file: str, index: int | None, timeout: float
) -> None:
    """Serve the devices of this host to the controller of a cluster, until it ends or is gone.

    The controller is a program with pjrt.cluster(launcher="external"), which chooses the device.
    """
    from pjrt.clusters.workers.handshake import Bootstrap
    from pjrt.clusters.workers.worker import serve
    from pjrt.distributed.settings import split_address
    from pjrt.remote.security.credentials import read_token

    for controller in controllers:
        split_address(controller)
    context.exit(serve(Bootstrap(controllers, read_token(Path(token_file)), index, timeout=timeout)))

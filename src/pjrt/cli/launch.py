"""``pjrt launch``: a job of several processes on this machine."""

from __future__ import annotations

import sys

import click

from pjrt import plugins
from pjrt.api.printable import printable
from pjrt.cli._options import complete_device, complete_file
from pjrt.distributed.launcher import Launcher, command_of

_EXAMPLES = """
\b
Examples:
  pjrt launch -n 4 train.py --steps 100
  pjrt launch -n 2 -m package.train -- --steps 100
  pjrt launch -n 8 --device cuda python train.py
"""

_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


@click.command(epilog=_EXAMPLES, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--processes", type=click.IntRange(1), required=True, help="How many processes.")
@click.option("-m", "--module", help="Run a module instead of a file.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    shell_complete=complete_device,
    help="Give each process its share of the devices of this plugin; can be repeated.",
)
@click.option(
    "--stdin",
    type=click.Choice(["0", "none"]),
    default="0",
    show_default=True,
    help="Which process reads the standard input.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=5,
    show_default=True,
    help="Seconds that processes have to end after SIGTERM, before they are killed.",
)
@click.argument(
    "arguments", metavar="[PROGRAM] [ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_file
)
@click.pass_context
def launch(
    context: click.Context,
    processes: int,
    module: str | None,
    devices: tuple[str, ...],
    stdin: str,
    grace: float,
    arguments: tuple[str, ...],
) -> None:
    """Start a Python PROGRAM, or a command such as 'python train.py', in several processes, which
    pjrt.distributed.initialize() makes a job.

    Each line of output has the number of its process before it. When a process fails, the others are ended, and the
    exit code is that of the first process that failed.
    """
    if module is None and not arguments:
        raise click.UsageError("expected a program, or a module with -m")
    environments: list[dict[str, str]] = [{} for _ in range(processes)]
    for name in devices:
        for rank, environment in enumerate(environments):
            environment.update(plugins.share_of_devices(name, rank, processes).environment)
    width = len(str(processes - 1))

    def show(rank: int, line: str, of_errors: bool) -> None:
        label = click.style(f"[{rank:>{width}}]", fg=_COLORS[rank % len(_COLORS)])
        click.echo(f"{label} {line}", err=of_errors)

    def report(message: str) -> None:
        click.echo(click.style(f"pjrt launch: {printable(message)}", bold=True), err=True)

    command = command_of(arguments, module)
    launcher = Launcher(command, environments, show, report, grace, 0 if stdin == "0" else None)
    sys.stdout.flush()
    context.exit(launcher.run())

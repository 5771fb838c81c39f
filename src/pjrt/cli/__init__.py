"""The ``pjrt`` command, one file for each subcommand. It only parses options and prints results."""

from __future__ import annotations

import click

import pjrt
from pjrt.cli._console import CleanGroup, echo

# The function of each subcommand and its line of help: the help of pjrt imports no subcommand.
_COMMANDS = {
    "Run programs": {
        "run": ("pjrt.cli.run:run", "Run a program on a device."),
        "inspect": ("pjrt.cli.inspect:inspect", "Show the content of a program."),
        "check": ("pjrt.cli.check:check", "Check whether devices can run a program, and why not."),
        "compare": ("pjrt.cli.compare:compare", "Compare results; find the first operation that differs."),
        "bench": ("pjrt.cli.bench:bench", "Measure a program on devices, side by side."),
        "convert": ("pjrt.cli.convert:convert", "Write a model file and its weights as one file."),
        "compile": ("pjrt.cli.compile:compile_", "Compile a program for devices that need not be here."),
    },
    "Devices and plugins": {
        "devices": ("pjrt.cli.devices:devices", "List the devices that are here."),
        "plugins": ("pjrt.cli.plugins:plugins_", "List the plugins and their states."),
        "doctor": ("pjrt.cli.doctor:doctor", "Show what works on this machine, and what to install."),
        "info": ("pjrt.cli.info:info", "Print the report to paste into a bug."),
        "capabilities": ("pjrt.cli.capabilities:capabilities", "Compare what devices can do."),
        "export": ("pjrt.cli.export:export", "Write a device as a PJRT plugin library."),
        "tensorflow": ("pjrt.cli.tensorflow:tensorflow", "Make devices for TensorFlow ahead of time."),
        "new-plugin": ("pjrt.cli.new_plugin:new_plugin", "Write a package for a device of your own."),
    },
    "Many machines": {
        "serve-model": ("pjrt.cli.serve_model:serve_model", "Serve a model over HTTP, by the Open Inference Protocol."),
        "serve": ("pjrt.cli.serve:serve", "Serve devices to programs in other processes."),
        "top": ("pjrt.cli.top:top", "Show the clients of servers on this machine."),
        "launch": ("pjrt.cli.launch:launch", "Start a job of several processes on this machine."),
        "worker": ("pjrt.cli.worker:worker", "Serve this host's devices to the controller of a cluster."),
        "tunnel": ("pjrt.cli.tunnel:tunnel", "Reach a server with TLS from programs without TLS."),
    },
    "Prove and debug": {
        "test-device": ("pjrt.cli.test_device:test_device", "Test whether a device is right."),
        "conform": ("pjrt.cli.conform:conform", "Check whether a plugin does what the C API requires."),
        "trace": ("pjrt.cli.trace:trace", "Record the calls that a program makes of plugins."),
        "replay": ("pjrt.cli.replay:replay", "Make the calls of a recording to another plugin."),
        "layer": ("pjrt.cli.layer:layer", "Write a plugin's library with layers before it."),
    },
}


def _print_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is None or context.resilient_parsing:
        return
    from click.shell_completion import get_completion_class  # here: commands need it at the tab key alone

    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(context.command, {}, "pjrt", "_PJRT_COMPLETE").source())
    context.exit()


@click.group(cls=CleanGroup, lazy_commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the script that completes commands, devices and files in a shell.",
)
@click.version_option(pjrt.__version__, prog_name="pjrt")
def main() -> None:
    """Run, compile and inspect machine learning programs on any PJRT device."""

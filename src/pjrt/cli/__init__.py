"""The ``pjrt`` command, one file for each subcommand. It only parses options and prints results."""

from __future__ import annotations

import os

import click

import pjrt
from pjrt.cli._failures import CleanGroup

_COMMANDS = {
    "bench": "pjrt.cli.bench:bench",
    "capabilities": "pjrt.cli.capabilities:capabilities",
    "check": "pjrt.cli.check:check",
    "compare": "pjrt.cli.compare:compare",
    "compile": "pjrt.cli.compile:compile_",
    "export": "pjrt.cli.export:export",
    "devices": "pjrt.cli.devices:devices",
    "info": "pjrt.cli.info:info",
    "inspect": "pjrt.cli.inspect:inspect",
    "new-plugin": "pjrt.cli.new_plugin:new_plugin",
    "plugins": "pjrt.cli.plugins:plugins_",
    "run": "pjrt.cli.run:run",
    "test-device": "pjrt.cli.test_device:test_device",
}


@click.group(cls=CleanGroup, lazy_commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pjrt.__version__, prog_name="pjrt")
def main() -> None:
    """Run, compile and inspect machine learning programs on any PJRT device."""
    # XLA logs information to the error stream, which is for errors and progress here; its warnings stay.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

"""``pjrt tensorflow``: devices for TensorFlow, made ahead of time."""

from __future__ import annotations

from typing import Any

import click

from pjrt.cli._console import print_facts
from pjrt.cli._options import client_options, complete_device, complete_file

_EXAMPLES = """
\b
Examples:
  pjrt tensorflow build
  pjrt tensorflow write reference -O num_devices=2 -o plugin
  TF_PLUGGABLE_DEVICE_LIBRARY_PATH=plugin python train.py
"""


@click.group(epilog=_EXAMPLES)
def tensorflow() -> None:
    """Make what TensorFlow needs for a device ahead of time."""


@tensorflow.command()
def build() -> None:
    """Compile the adapter for the installed TensorFlow, unless it is there.

    pjrt.frameworks.tensorflow.register does it at its first call, which takes about a minute. The command is for images
    of containers, which need no compiler then. Needs a C++ compiler.
    """
    from pjrt.frameworks import tensorflow as framework

    print_facts([("adapter", framework.build())])


@tensorflow.command()
@click.argument("device", shell_complete=complete_device)
@click.option(
    "--output", "-o", required=True, metavar="FOLDER", shell_complete=complete_file, help="The folder to write to."
)
@click.option("--name", default="", metavar="NAME", help="The device's name in TensorFlow; the default is its own.")
@client_options
def write(device: str, output: str, name: str, options: dict[str, Any]) -> None:
    """Write a folder by which TensorFlow has DEVICE, in programs that do not import pjrt.

    TensorFlow loads it when TF_PLUGGABLE_DEVICE_LIBRARY_PATH names the folder, or when the files lie in the folder
    tensorflow-plugins of site-packages. They are for the installed version of TensorFlow alone.
    """
    from pjrt.frameworks import tensorflow as framework

    written = framework.write_plugin(output, device, name=name, **options)
    print_facts([("written", written), ("device", device)])

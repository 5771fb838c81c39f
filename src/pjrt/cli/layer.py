"""``pjrt layer``: a plugin's library with layers before it."""

from __future__ import annotations

import click

from pjrt.cli._console import print_facts
from pjrt.cli._options import complete_device, complete_file

_EXAMPLES = """
\b
Examples:
  pjrt layer -l trace plugin.so -o libtraced.so
  pjrt layer -l trace --set trace=file=calls.trace cuda -o libtraced.so
"""


@click.command(epilog=_EXAMPLES)
@click.argument("plugin", shell_complete=complete_device)
@click.option(
    "--layers",
    "-l",
    required=True,
    metavar="NAMES",
    help="Layers, separated by commas; the first is nearest to the framework.",
)
@click.option(
    "--output", "-o", required=True, metavar="PATH", shell_complete=complete_file, help="The library to write."
)
@click.option(
    "--set", "settings", multiple=True, metavar="LAYER=OPTIONS", help="Options of a layer, as key=value,key=value."
)
def layer(plugin: str, layers: str, output: str, settings: tuple[str, ...]) -> None:
    """Write a library that puts layers before a plugin; needs no compiler.

    PLUGIN is the path of a plugin's library, or the name of a plugin ('pjrt plugins' lists them). A device in Python is
    exported to a library beside OUTPUT. Whoever loads the library gets the plugin's functions with the layers before
    them, without Python. Options that are not set come from the environment of that program, such as PJRT_TRACE.
    """
    from pjrt.layers.wrapping import write_library

    options = dict(_setting(text) for text in settings)
    written = write_library(output, plugin, tuple(filter(None, layers.split(","))), options)
    print_facts([("written", written.path), ("plugin", written.target), ("layers", ", ".join(written.layers))])


def _setting(text: str) -> tuple[str, str]:
    name, equals, options = text.partition("=")
    if not equals or not name or not options:
        raise click.UsageError(f"expected --set LAYER=OPTIONS, such as trace=file=calls.trace, found {text!r}")
    return name, options

"""``pjrt export``: a device written in Python as a shared library."""

from __future__ import annotations

import click

from pjrt.cli._console import print_facts

_EXAMPLES = """
\b
Examples:
  pjrt export mydevice:make_client -o libmydevice.so
  pjrt export ./mydevice.py:make_client -o libmydevice.so --name mydevice
"""


@click.command(epilog=_EXAMPLES)
@click.argument("spec")
@click.option("--output", "-o", required=True, metavar="PATH", help="The library to write.")
@click.option("--name", metavar="NAME", help="The plugin's name; the attribute's name if not said.")
def export(spec: str, output: str, name: str | None) -> None:
    """Write the device that SPEC names as a PJRT plugin library; needs no compiler.

    SPEC is MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE of a function that makes clients, or of what pjrt.export gives. The
    library runs the device in the Python of the process that loads it, and starts this Python where there is none.
    """
    from pjrt.capi.export import load_exported, write_library

    exported = load_exported(spec, name or "")
    written = write_library(output, spec, name or exported.name)
    print_facts([("written", written), ("plugin", exported.name), ("device", spec)])

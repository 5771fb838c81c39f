"""``pjrt export``: a device written in Python as a shared library."""

from __future__ import annotations

import os
import sys

import click

from pjrt.cli._console import print_facts
from pjrt.cli._options import complete_device, complete_file
from pjrt.plugins import registry
from pjrt.plugins.declaration import is_path
from pjrt.plugins.env_vars import split_options

_EXAMPLES = """
\b
Examples:
  pjrt export reference -o libreference.so
  pjrt export mydevice:make_client -o libmydevice.so
  pjrt export ./mydevice.py:make_client -o libmydevice.so --name mydevice
  pjrt export mydevice:make_client -o libmydevice.so --shared
  pjrt export ./compiler.py:compile --driver libmychip.so -o mychip.so
"""


@click.command(epilog=_EXAMPLES)
@click.argument("spec", shell_complete=complete_device)
@click.option(
    "--output", "-o", required=True, metavar="PATH", shell_complete=complete_file, help="The library to write."
)
@click.option(
    "--name", metavar="NAME", help="The platform's name that frameworks see; the default is the device's own."
)
@click.option(
    "--python",
    metavar="PATH",
    shell_complete=complete_file,
    help="The Python that runs the device; the default is this one.",
)
@click.option(
    "--driver",
    metavar="PATH",
    shell_complete=complete_file,
    help="A driver in C, or 'host' for code that runs in the memory of the host; SPEC is the function that compiles.",
)
@click.option("--shared", is_flag=True, help="One process runs the device for all processes of a user.")
def export(spec: str, output: str, name: str | None, python: str | None, driver: str | None, shared: bool) -> None:
    """Write a device as a PJRT plugin library; needs no compiler.

    SPEC is the name of a plugin ('pjrt plugins' lists them), or MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE of a function
    that makes clients, or of the result of pjrt.export. A module may be in the current folder. The library starts a
    Python process for each client, in which the device runs; with --shared, one for all clients of a user.

    With --driver the device runs in C: SPEC is a function compile(program, options) that returns pjrt.native.Code, and
    only compiling runs in a Python process.
    """
    if driver is not None:
        from pjrt import native

        written = native.write_library(output, spec, driver=driver, name=name or "", python=python or "", shared=shared)
        print_facts([("written", written), ("driver", driver), ("compiler", spec)])
        return
    from pjrt.native.exported import write_exported

    is_name = (":" not in spec and not is_path(spec)) or bool(split_options(spec)[1])  # a name has no options here
    if not is_name and not sys.flags.safe_path:
        # The last folder: what is installed is never imported from it, unlike under 'python -m'.
        sys.path.append(os.getcwd())
    place = registry.factory_place(spec) if is_name else spec
    written = write_exported(output, place, name=name or "", python=python or "", shared=shared)
    print_facts([("written", written), ("device", spec)])

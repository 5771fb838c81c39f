"""``pjrt export``: a device written in Python as a shared library."""

from __future__ import annotations

import os
import sys

import click

from pjrt.cli._console import print_facts
from pjrt.cli._options import complete_file
from pjrt.plugins import factories
from pjrt.plugins.declaration import is_path

_EXAMPLES = """
\b
Examples:
  pjrt export reference -o libreference.so
  pjrt export mydevice:make_client -o libmydevice.so
  pjrt export ./mydevice.py:make_client -o libmydevice.so --name mydevice
  pjrt export ./compiler.py:compile --driver libmychip.so -o mychip.so
"""


@click.command(epilog=_EXAMPLES)
@click.argument("spec")
@click.option(
    "--output", "-o", required=True, metavar="PATH", shell_complete=complete_file, help="The library to write."
)
@click.option("--name", metavar="NAME", help="The plugin's name; the default is that of the device's module or file.")
@click.option(
    "--driver",
    metavar="PATH",
    shell_complete=complete_file,
    help="A driver in C, or 'host' for code that runs in the memory of the host; SPEC is the function that compiles. "
    "Or 'worker': the device runs in a Python process of its own.",
)
def export(spec: str, output: str, name: str | None, driver: str | None) -> None:
    """Write a device as a PJRT plugin library; needs no compiler.

    SPEC is the name of a plugin ('pjrt plugins' lists them), or MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE of a function
    that makes clients, or of the result of pjrt.export. A module may be in the current folder. The library runs the
    device in the Python of the process that loads it, and starts this Python where there is none.

    With --driver the library runs in C, without Python in the process that loads it: SPEC is a function
    compile(program, options) that returns pjrt.native.Code, and runs in a process of its own. With --driver worker
    SPEC is a device as it is without --driver.
    """
    is_name = ":" not in spec and not is_path(spec)
    place = factories.place(spec) if is_name else spec
    if driver is not None:
        from pjrt import native

        place = place if driver == "worker" else spec
        written = native.write_library(output, place, driver=driver, name=name or (spec if is_name else ""))
        print_facts([("written", written), ("driver", driver), ("device" if driver == "worker" else "compiler", spec)])
        return
    from pjrt.capi.export import write_library
    from pjrt.native.exported import load_exported

    if not is_name and not sys.flags.safe_path:
        # The last folder: what is installed is never imported from it, unlike under 'python -m'.
        sys.path.append(os.getcwd())
    exported = load_exported(place, name or (spec if is_name else ""))
    library = write_library(output, place, name or exported.name)
    print_facts([("written", library), ("plugin", exported.name), ("device", spec)])

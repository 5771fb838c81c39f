"""``pjrt convert``: any model file as a model in one file."""

from __future__ import annotations

from pathlib import Path

import click

from pjrt.cli._console import echo, note_overwriting, progress
from pjrt.cli._options import complete_file
from pjrt.cli._program import program_argument, read_model_file
from pjrt.models.output_path import check_output_path

_EXAMPLES = """
\b
Examples:
  pjrt convert model.pt2 -o model.pjrt
  pjrt convert saved_model -o model.pjrt
"""


@click.command(epilog=_EXAMPLES)
@program_argument
@click.option("--output", "-o", required=True, metavar="PATH", shell_complete=complete_file, help="The file to write.")
def convert(program: str, output: str) -> None:
    """Write PROGRAM as one file: its program, weights, and the names and structure of arguments and results.

    The file needs neither the framework that wrote PROGRAM nor the seconds that converting it takes: a program of
    torch.export is converted once.
    """
    from pjrt.models.saving import save_file

    check_output_path(output, option="--output")
    note_overwriting(output)
    with progress("converting the program"):
        file = read_model_file(program)
        save_file(file, output)
    count, size = len(file.weights), Path(output).stat().st_size
    echo(f"wrote {output}: {size:,} bytes, with {count} weight{'s' * (count != 1)}")

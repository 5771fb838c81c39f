"""``python -m pjrt``: the command, where its script is not on the path."""

from pjrt.cli import main

main(prog_name="pjrt")

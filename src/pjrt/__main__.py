"""The command as a process: the script ``pjrt``, and ``python -m pjrt`` where the script is not on the path."""

import atexit
import gc


def run() -> None:
    """Run the command, and end the process."""
    # Imports make a hundred thousand objects that live as long as the process. The collector would search them for
    # garbage again and again at the start, and once more at the end: together a fifth of the time of a short command.
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    from pjrt.cli import main

    main(prog_name="pjrt")


if __name__ == "__main__":
    run()

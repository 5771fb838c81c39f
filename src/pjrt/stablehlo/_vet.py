"""The other process of ``vetting``: parses the program on its standard input; its exit status says how that went."""

from __future__ import annotations

import sys

from pjrt.api.errors import PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo._native import write_text
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.parsing import parse_module
from pjrt.stablehlo.vetting import EXIT_REFUSED


def main() -> int:
    """Parses the program in the format that the first argument names, and looks at all of it as this room would."""
    program = Program(sys.stdin.buffer.read(), sys.argv[1])
    try:
        module = to_module(program, trusted=True)
        parse_module(module)
        write_text(module, locations=True)
    except PjrtError as error:
        sys.stdout.write(f"{int(error.code)} {error.message}")
        sys.stdout.flush()
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())

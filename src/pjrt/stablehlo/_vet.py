"""The other process of ``vetting``: parses the program on its standard input; its exit status says how that went."""

from __future__ import annotations

import sys

from pjrt.api.errors import PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo._native import write_text
from pjrt.stablehlo.conversion import parse_here
from pjrt.stablehlo.parsing import parse_module, read_constants
from pjrt.stablehlo.vetting import EXIT_REFUSED


def main() -> int:
    """Parses the program in the format that the first argument names, of as many bytes as the second says, and looks
    at all of it as this room would.

    What is large is looked at one by one and let go of: the program, its constants, its text.
    """
    _limit_memory(int(sys.argv[2]))
    try:
        module = parse_here(Program(sys.stdin.buffer.read(int(sys.argv[2])), sys.argv[1]))
        parse_module(module, constants=False)
        read_constants(module)
        write_text(module, locations=True, constants=False)
    except PjrtError as error:
        sys.stdout.write(f"{int(error.code)} {error.message}")
        sys.stdout.flush()
        return EXIT_REFUSED
    return 0


_LEAST_MEMORY = 8 << 30
_TIMES_THE_PROGRAM = 16


def _limit_memory(size: int) -> None:
    """Has the parser fail where it would take all memory of the machine for a small program, if limits are known."""
    if sys.platform != "linux":
        return
    import resource

    limit = max(_LEAST_MEMORY, _TIMES_THE_PROGRAM * size)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    sys.exit(main())

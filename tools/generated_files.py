"""The command line of the generators: write the generated files, or check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def main(generate: Callable[[], Mapping[Path, str]], description: str | None) -> int:
    """Write the generated files, or check them with ``--check``; return the exit code.

    Args:
        generate: returns the text of each generated file.
        description: the help of the command.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args().check
    texts = generate()
    if not check:
        for path, text in texts.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path} is out of date: run python tools/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1 if stale else 0

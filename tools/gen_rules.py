"""Generate the table of the rules that the layer validate checks, in docs/layers.md.

``python tools/gen_rules.py`` writes the table; with ``--check`` it writes nothing and fails if the page is out of date.
The rules are those of the built library, which ``validate/rules.h`` states.
"""

from __future__ import annotations

from pathlib import Path

from generated_files import main

from pjrt.layers import rules

PAGE = Path(__file__).resolve().parents[1] / "docs" / "layers.md"
HEAD = "| rule | severity | what happened | what the header requires |\n|---|---|---|---|\n"


def generate() -> dict[Path, str]:
    """Return the page with the table of today's rules."""
    before, _, behind = PAGE.read_text().partition(HEAD)
    rest = behind[behind.index("\n\n") + 1 :]
    rows = (f"| `{rule.name}` | {rule.severity} | {rule.description} | {rule.requirement} |\n" for rule in rules())
    return {PAGE: before + HEAD + "".join(rows) + rest}


if __name__ == "__main__":
    raise SystemExit(main(generate, __doc__))

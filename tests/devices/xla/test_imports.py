"""The import graph of the package: no module needs itself, neither at the top nor inside a function."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt.devices import xla

PREFIX = f"{xla.__name__}."


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a module imports when the program runs, wherever the statement stands."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        pending += ast.iter_child_nodes(node)
    return {name.removeprefix(PREFIX).partition(".")[0] for name in names if name.startswith(PREFIX)}


def test_no_module_imports_itself_in_a_circle() -> None:
    files = {path.stem: path for path in Path(str(xla.__file__)).parent.glob("*.py")}
    graph = {name: imported(path) & files.keys() for name, path in files.items()}
    assert sum(map(len, graph.values())) > len(graph)  # the graph was read
    graphlib.TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


@pytest.mark.parametrize("function", ["enable", "disable"])
def test_the_first_client_leaves_the_garbage_collector_as_it_was(function: str) -> None:
    script = f"import gc; gc.{function}(); import pjrt; pjrt.client('cpu'); print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{function == 'enable'}\n"

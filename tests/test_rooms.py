"""The rules that a machine can check: rooms import only from lower floors, public names are documented and listed."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import pjrt

PACKAGE = Path(pjrt.__file__).parent

FLOORS = {
    "system": 0,
    "abi": 0,
    "api": 1,
    "host_memory": 2,
    "stablehlo": 2,
    "distributed": 3,
    "host": 3,
    "ifrt": 3,
    "devices": 4,
    "capi": 5,
    "artifacts": 7,
    "plugins": 7,
    "clusters": 8,
    "conformance": 9,
    "frameworks": 8,
    "layers": 8,
    "models": 8,
    "native": 6,
    "remote": 7,
    "cli": 10,
}

FOLDERS_OF_STABLEHLO = ("encodings", "ir", "files", "reading", "facts", "transforms", "analysis")
"""The folders of ``stablehlo``: each imports from those before it alone, also inside of functions."""


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")])


def room_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def statements_in(node: ast.AST) -> list[ast.AST]:
    """Return what may be or hold a statement right below a node: imports are in no expression."""
    return [
        child
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
    ]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node."""
    for child in statements_in(node):
        yield child
        yield from statements(child)


def imported_modules(path: Path) -> list[str]:
    """Every module named in an import statement, wherever it stands; Cython's are read line by line."""
    text = path.read_text()
    if path.suffix == ".py":
        names: list[str] = []
        for node in statements(ast.parse(text)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: relative import; write the whole name"
                names.append(node.module or "")
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        return names
    words = [line.split() for line in text.splitlines()]
    return [w[1].rstrip(",") for w in words if len(w) > 1 and w[0] in ("import", "from", "cimport")]


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in sources()} - {None}
    assert rooms <= set(FLOORS)


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards(path: Path) -> None:
    room = room_of(path)
    if room is None:
        return
    for name in imported_modules(path):
        parts = name.split(".")
        if parts[0] != "pjrt" or len(parts) < 2 or parts[1] == room:
            continue
        assert FLOORS.get(parts[1], -1) < FLOORS[room], f"{path}: {room} (floor {FLOORS[room]}) imports {name}"
        assert not any(p.startswith("_") for p in parts[2:]), f"{path}: imports the private name {name} of another room"


@pytest.mark.parametrize("folder", FOLDERS_OF_STABLEHLO)
def test_the_folders_of_stablehlo_import_from_those_before_them(folder: str) -> None:
    room = PACKAGE / "stablehlo"
    assert {path.parent.name for path in room.glob("*/__init__.py")} == set(FOLDERS_OF_STABLEHLO)
    lower = FOLDERS_OF_STABLEHLO[: FOLDERS_OF_STABLEHLO.index(folder) + 1]
    for path in sorted((room / folder).glob("*.py")):
        for name in imported_modules(path):
            if name.startswith("pjrt.stablehlo."):
                assert name.split(".")[2] in lower, f"{path}: {folder} imports {name}"


def imported_at_run_time(path: Path) -> set[str]:
    """Every module that a module imports when the program runs, wherever the statement stands."""
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
        pending += statements_in(node)
    return names


def test_no_module_imports_itself_in_a_circle() -> None:
    """Neither at the top nor inside a function. A package's own file only names what others import of it."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: imported_at_run_time(path) & (files.keys() - {name}) for name, path in files.items()}
    assert sum(map(len, graph.values())) > len(graph)  # the graph was read
    graphlib.TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


def test_every_module_has_a_room() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def public_modules() -> list[str]:
    found = (module.name for module in pkgutil.walk_packages([str(PACKAGE)], "pjrt."))
    return ["pjrt", *(name for name in found if not any(part.startswith("_") for part in name.split(".")))]


@pytest.mark.parametrize("name", public_modules())
def test_nothing_public_lacks_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for label, thing in list(vars(module).items()):  # a first use may import a submodule
        if label.startswith("_") or getattr(thing, "__module__", None) != name:
            continue
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            continue
        assert inspect.getdoc(thing), f"{name}.{label} has no docstring"
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if member.startswith("_") or not (inspect.isroutine(value) or isinstance(value, property)):
                    continue
                # getdoc also finds the docstring of the overridden method: user text lives once, on the base class.
                assert inspect.getdoc(getattr(thing, member)), f"{name}.{label}.{member} has no docstring"


def test_the_public_list_is_what_is_there() -> None:
    for name in pjrt.__all__:
        assert hasattr(pjrt, name), name
    assert sorted(pjrt.__all__) == list(pjrt.__all__)


def test_importing_the_package_is_light() -> None:
    """Neither jaxlib nor protobuf, nor the command line's libraries, are loaded by ``import pjrt``."""
    import subprocess
    import sys

    heavy = ("jaxlib", "jax", "google.protobuf", "rich", "click")
    code = f"import sys, pjrt; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


LAZY = [
    "pjrt",
    "pjrt.conformance",
    "pjrt.devices.reference",
    "pjrt.frameworks",
    "pjrt.ifrt",
    "pjrt.layers.replay",
    "pjrt.models",
    "pjrt.remote",
    "pjrt.stablehlo",
]
"""The packages whose names are imported when they are first asked for."""


@pytest.mark.parametrize("name", LAZY)
def test_dir_has_every_public_name_before_it_is_asked_for(name: str) -> None:
    import subprocess
    import sys

    code = f"import importlib; m = importlib.import_module({name!r}); print(*sorted({{*m.__all__}} - {{*dir(m)}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


def defined(statements: list[ast.stmt]) -> set[str]:
    """Return the names that statements define as functions or by assignments."""
    names = {node.name for node in statements if isinstance(node, ast.FunctionDef)}
    targets = [target for node in statements if isinstance(node, ast.Assign) for target in node.targets]
    return names | {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", [*LAZY, "pjrt.frameworks.torch_xla"])
def test_type_checkers_see_the_names_that_there_are_and_no_others(name: str) -> None:
    """A module's ``__getattr__`` would have them take any name: it stands where they do not look."""
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    assert "__getattr__" not in defined(tree.body)
    hidden = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING"]
    assert "__getattr__" in defined([node for branch in hidden for node in branch.body])
    seen = [
        branch for branch in tree.body if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
    ]
    known = {alias.asname or alias.name for branch in seen for node in branch.body for alias in node.names}  # type: ignore[attr-defined]
    assert set(getattr(module, "__all__", ())) <= known | set(vars(module)), name

"""The guide for contributors is true, and each step of it that is forgotten fails a test."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from anydevice.backend import DEFAULT_DEVICES

from pjrt import frameworks
from pjrt.cli import main
from pjrt.plugins import builtin, discovery

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pjrt"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()


def floors() -> dict[str, int]:
    """Return the floor of each room, as `test_rooms.py` states it."""
    tree = ast.parse((ROOT / "tests" / "test_rooms.py").read_text())
    (value,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLOORS"
    )
    return dict(ast.literal_eval(value))


def test_the_table_has_every_room_on_its_floor() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)/` \|", GUIDE, re.MULTILINE)
    assert {room: int(floor) for floor, room in rows} == floors()
    assert len(rows) == len(floors())
    assert [int(floor) for floor, _ in rows] == sorted((int(floor) for floor, _ in rows), reverse=True)


PLACEHOLDER = re.compile(r"NAME|NOUN|CHAPTER|SOURCE|HASH|…")


def test_every_file_of_the_guide_exists() -> None:
    roots = ("src/", "tests/", "docs/", "tools/", "benchmarks/", ".ci/", ".github/")
    names = [name for name in re.findall(r"`([\w./-]+)`", GUIDE) if name.startswith(roots)]
    assert len(names) > 30
    for name in names:
        folder = PLACEHOLDER.split(name)[0].rpartition("/")[0]
        assert (ROOT / (folder if PLACEHOLDER.search(name) else name)).exists(), name


def test_every_example_commit_is_in_the_history() -> None:
    hashes = re.findall(r"`([0-9a-f]{7})`", GUIDE)
    assert len(hashes) >= 10
    if not (ROOT / ".git").exists():
        pytest.skip("a source distribution has no history")
    for each in hashes:
        ancestor = subprocess.run(["git", "merge-base", "--is-ancestor", each, "HEAD"], cwd=ROOT, capture_output=True)
        if ancestor.returncode != 0 and _is_shallow():
            pytest.skip("this clone has only a part of the history")
        assert ancestor.returncode == 0, each


def _is_shallow() -> bool:
    answer = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    return answer.stdout.strip() == "true"


@pytest.mark.parametrize("name", builtin.DEVICES)
def test_every_builtin_device_has_a_page_and_is_under_test(name: str) -> None:
    pages = ROOT / "docs" / "devices" / f"{name}.md", ROOT / "docs" / f"{name}.md"
    assert any(f'pjrt.client("{name}"' in page.read_text() for page in pages if page.is_file())
    assert name in DEFAULT_DEVICES.split(",")


def test_every_file_of_a_subcommand_is_a_command() -> None:
    files = {path.stem for path in (PACKAGE / "cli").glob("[!_]*.py")}
    commands = main.list_commands(click.Context(main))
    assert {name.replace("-", "_") for name in commands} == files


@pytest.mark.parametrize("name", frameworks.__all__)
def test_every_framework_has_a_page(name: str) -> None:
    folder = ROOT / "docs" / "frameworks"
    pages = [page for page in (folder / f"{name}.md", folder / f"{name.partition('_')[0]}.md") if page.is_file()]
    assert any(f"pjrt.frameworks.{name}.register(" in page.read_text() for page in pages)


def test_every_key_for_a_framework_is_in_the_tutorial() -> None:
    from pjrt.frameworks import _served

    page = (ROOT / "docs" / "plugin.md").read_text()
    rows = re.findall(r"^\| (`\w+`|all) \| `(\w+)` \|", page, re.MULTILINE)
    for framework, keys in _served._SETTINGS.items():
        assert {key for name, key in rows if name in (f"`{framework}`", "all")} == set(keys)


def test_every_source_of_plugins_has_its_place_in_the_order() -> None:
    folder = Path(str(discovery.__file__)).parent
    finder = re.compile(r"^def (find\w*)\(.*\) -> Iterator\[Declaration\]:", re.MULTILINE)
    sources = [f"{path.stem}.{name}" for path in folder.glob("*.py") for name in finder.findall(path.read_text())]
    assert len(sources) > 6
    order = (folder / "precedence.py").read_text()
    for source in sources:
        assert f"{source}(" in order, f"discovery's {source} is not in precedence.py"


def test_the_faults_that_tests_must_find_fit_the_code() -> None:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    mutants = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(mutants)
    assert len({fault.path().read_text().replace(fault.old, fault.new) for fault in mutants.FAULTS}) == 40

"""The glossary explains each word once, and the glossary and the concepts name only files and names that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pjrt"
PAGE = (ROOT / "docs" / "glossary.md").read_text()

ROWS = re.findall(r"^\| ([^|`]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
WORDS = [row for row in ROWS if not row[0].startswith(("word", "-"))]
NAMES = sorted(set(re.findall(r"`([^`]+)`", "".join(where for _, _, where in WORDS))))


def find_name(dotted: str) -> object:
    """Return the object of a dotted name; its first parts may be modules that are not imported yet."""
    first, *rest = dotted.split(".")
    owner: object = importlib.import_module(first)
    path = first
    for part in rest:
        path += f".{part}"
        owner = getattr(owner, part) if hasattr(owner, part) else importlib.import_module(path)
    return owner


def test_every_row_is_read() -> None:
    assert len(WORDS) == len([line for line in PAGE.splitlines() if line.startswith("| ")]) - 2
    assert len(WORDS) > 60


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    if name.startswith("PJRT_"):
        headers = (path.read_text() for path in (PACKAGE / "abi").rglob("*.h"))
        assert any(re.search(rf"\b{name}\b", text) for text in headers)
    elif "/" in name:
        assert (PACKAGE / name).exists()
    else:
        assert name.partition(".")[0] == "pjrt", "write the whole name, such as pjrt.Client, or a path"
        assert find_name(name) is not None


def test_every_file_of_the_concepts_exists() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    names = re.findall(r"`([\w/]+(?:/|\.pyx?))`", page)
    assert len(names) > 10
    for name in names:
        assert (PACKAGE / name).exists(), name


def test_the_layers_of_the_concepts_are_the_packages() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    picture = page.partition("## The layers")[2].split("```")[1]
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"(?<![\w(])([a-z_]+)/(?= )", picture)) == packages


def test_every_word_is_explained_once_in_order() -> None:
    words = [word for word, _, _ in WORDS]
    assert len(set(words)) == len(words)
    for section in PAGE.split("\n## ")[1:]:
        listed = [word for word, _, _ in WORDS if f"\n| {word} |" in section]
        assert listed == sorted(listed, key=str.lower)


def test_every_explanation_is_one_sentence_without_its_end() -> None:
    for word, meaning, _ in WORDS:
        assert not re.search(r"\.( |$)", meaning), word

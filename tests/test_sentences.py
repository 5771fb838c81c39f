"""Sentences of the docs are short enough to be understood at first reading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

MOST_WORDS = 25
_CODE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", re.S | re.M)
_BLOCK = re.compile(r"\n\s*\n|\n(?= *(?:[-*+]|\d+\.) )|\n(?=[#|:])")
_END = re.compile(r"(?<=[.!?:;])(?:\*\*|[)\"])? (?=[\"(*A-Z`0-9])")
_WORD = re.compile(r"\w[\w'’/.×-]*")


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of the paragraphs and list items of a page; a piece of code in one is a word."""
    page = re.sub(r"<!--.*?-->", "", page, flags=re.S)
    page = re.sub(r"`[^`]*`", "Code", _CODE.sub("\n", page))
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    for block in _BLOCK.split(page):
        text = " ".join(block.split())
        if text and text[0] not in "|#<:!=":
            yield from _END.split(text)


def test_sentences_are_counted() -> None:
    page = "# A title\n\nOne two `three four`, [five](six.md). Six: seven\neight.\n\n- Nine.\n\n```\na. B\n```\n| a |\n"
    assert [len(_WORD.findall(each)) for each in sentences(page)] == [4, 3, 1]


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_sentences_are_short(page: Path) -> None:
    found = [each for each in sentences(page.read_text()) if len(_WORD.findall(each)) > MOST_WORDS]
    assert not found, f"expected sentences of at most {MOST_WORDS} words, found:\n" + "\n".join(found)

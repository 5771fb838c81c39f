"""Repetitions: the layers in a sequence of operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.models.offloading.stages import Repetition, repetition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("abc", None),
        ("xabcabcabcy", Repetition(1, 3, 3, 0)),
        ("xabcabcabz", Repetition(1, 3, 2, 2)),
        ("aaaa", Repetition(0, 1, 4, 0)),
        # The layers count, and not what repeats inside of one.
        ("xaabbaabbaabby", Repetition(1, 4, 3, 0)),
    ],
)
def test_layers(text: str, expected: Repetition | None) -> None:
    assert repetition([ord(letter) for letter in text]) == expected


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True),
    st.integers(2, 6),
    st.lists(st.integers(31, 40), max_size=4, unique=True),
    st.lists(st.integers(41, 50), max_size=4, unique=True),
)
def test_layers_of_any_length(layer: list[int], count: int, before: list[int], after: list[int]) -> None:
    assert repetition([*before, *layer * count, *after]) == Repetition(len(before), len(layer), count, 0)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt import SourceLocation
from pjrt.stablehlo import Location


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("loc(unknown)", []),
        ('loc("a.py":1:2)', [("", "a.py", 1, 2)]),
        ('loc("a.py":1:2 to 3:4)', [("", "a.py", 1, 2)]),
        ('loc("a.py":1:2 to :9)', [("", "a.py", 1, 2)]),
        ('loc("name")', [("name", "", 0, 0)]),
        ('loc("name"("a.py":1:2))', [("name", "a.py", 1, 2)]),
        ('loc("outer"("inner"("a.py":1:2)))', [("outer", "", 0, 0), ("inner", "a.py", 1, 2)]),
        ('loc(callsite("a.py":1:2 at "b.py":3:4))', [("", "a.py", 1, 2), ("", "b.py", 3, 4)]),
        (
            'loc(callsite("f"("a.py":1:2) at callsite("g"("b.py":3:4) at "c.py":5:6)))',
            [("f", "a.py", 1, 2), ("g", "b.py", 3, 4), ("", "c.py", 5, 6)],
        ),
        ('loc(fused["a.py":1:2, "name"])', [("", "a.py", 1, 2), ("name", "", 0, 0)]),
        ('loc(fused<#x.y<"a", [1]>>["a.py":1:2])', [("", "a.py", 1, 2)]),
        ('loc("with \\22quotes\\22 and \\\\")', [('with "quotes" and \\', "", 0, 0)]),
        ('loc("-":0:0)', []),
        ('loc("")', []),
        ('loc("":3:4)', []),
        ('loc(""("a.py":1:2))', [("", "a.py", 1, 2)]),
    ],
)
def test_places(text: str, places: list[tuple[str, str, int, int]]) -> None:
    assert [tuple(place) for place in Location(text).places] == places


def test_what_people_see() -> None:
    location = Location('loc("jit(f)/add"(callsite("f"("model.py":7:3) at "main.py":2:1)))')
    assert str(location) == "jit(f)/add at model.py:7:3"
    assert (location.name, location.file, location.line) == ("jit(f)/add", "model.py", 7)
    assert str(Location("loc(unknown)")) == "unknown location"
    assert not Location("loc(unknown)").is_known
    assert str(Location('loc("-":3:5)')) == "<program>:3:5"
    assert str(Location('loc("only a name")')) == "only a name"
    assert str(SourceLocation("", "a.py", 1, 2)) == "a.py:1:2"


def test_equal_texts_are_equal_locations() -> None:
    assert Location('loc("a")') == Location('loc("a")') != Location('loc("b")')
    assert len({Location('loc("a")'), Location('loc("a")')}) == 1


@given(st.text(alphabet='loc()"fused<>[],:callsite at\\0123456789é', max_size=80))
def test_any_text_gives_some_places(text: str) -> None:
    location = Location(text)
    assert all(isinstance(place, SourceLocation) for place in location.places)
    assert str(location)


def test_depth_is_limited() -> None:
    assert isinstance(Location('loc("a"(' * 10_000).places, tuple)

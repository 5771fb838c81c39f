from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt import InvalidArgumentError
from pjrt.stablehlo import Version

numbers = st.integers(0, 10**6)
versions = st.builds(Version, numbers, numbers, numbers)


@given(versions)
def test_its_spelling_is_read_back(version: Version) -> None:
    assert Version.parse(str(version)) == version
    assert Version.parse(f"StableHLO_v{version}") == version
    assert Version.of(str(version)) == version


@given(versions, versions)
def test_it_is_ordered_by_its_numbers(a: Version, b: Version) -> None:
    assert (a < b) == ((a.major, a.minor, a.patch) < (b.major, b.minor, b.patch))


def test_of_takes_what_plugins_state() -> None:
    assert Version.of((1, 17, 0)) == Version.of([1, 17]) == Version.of(Version(1, 17)) == Version(1, 17, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["", "1.2", "1.2.3.4", "one", "-1.0.0", "1.0.0-rc1", "9" * 5000 + ".0.0"])
def test_other_spellings_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected a StableHLO version such as '1\.17\.0'"):
        Version.parse(wrong)


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3, 4), (1, -2, 3), ("1", "2", "3")])
def test_other_numbers_are_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a StableHLO version as three numbers"):
        Version.of(wrong)

"""The order of precedence: who has a name that several claim, and what is one plugin found in several places."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages import install

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration, MemoryOptions, Sharing
from pjrt.plugins.discovery.precedence import Candidate, merge

pytestmark = pytest.mark.usefixtures("nothing_configured")


def library(name: str, path: str, origin: str = "here", **facts: object) -> Candidate:
    return Candidate(Declaration(name, origin, library=Path(path), **facts))  # type: ignore[arg-type]


def broken(name: str, origin: str = "here", *, named_by_user: bool = False) -> Candidate:
    return Candidate(Declaration(name, origin, problem="it is broken"), named_by_user)


class TestOneName:
    def test_the_first_has_it(self) -> None:
        (kept,) = merge([library("a", "/1", "x"), library("a", "/2", "y"), library("a", "/3", "z")])
        assert (kept.library, [(each.library, each.origin) for each in kept.shadowed]) == (
            Path("/1"),
            [(Path("/2"), "y"), (Path("/3"), "z")],
        )

    def test_what_is_broken_gives_way(self) -> None:
        (kept,) = merge([broken("a", "x"), library("a", "/2", "y")])
        assert (kept.library, [each.origin for each in kept.shadowed]) == (Path("/2"), ["x"])

    def test_but_not_if_the_user_named_it(self) -> None:
        (kept,) = merge([broken("a", "x", named_by_user=True), library("a", "/2", "y")])
        assert (kept.problem, [each.origin for each in kept.shadowed]) == ("it is broken", ["y"])

    def test_of_two_broken_ones_the_first_is_kept(self) -> None:
        (kept,) = merge([broken("a", "x"), broken("a", "y")])
        assert (kept.origin, [each.origin for each in kept.shadowed]) == ("x", ["y"])


class TestOnePlugin:
    def test_the_same_library_under_two_names(self) -> None:
        (kept,) = merge([library("a", "/1", "x"), library("b", "/1", "y"), library("b", "/1", "z")])
        assert (kept.name, kept.aliases, kept.other_origins, kept.shadowed) == ("a", ("b",), ("y", "z"), ())

    def test_the_same_name_of_the_same_package(self) -> None:
        one = Candidate(Declaration("a", "x", factory="m:f", distribution="My_Package"))
        other = Candidate(Declaration("A", "y", library=Path("/1"), distribution="my-package"))
        (kept,) = merge([one, other])
        assert (kept.factory, kept.library, kept.aliases, kept.other_origins) == ("m:f", None, ("A",), ("y",))

    def test_names_of_no_package_are_not_the_same(self) -> None:
        made = merge([library("a", "/1"), library("b", "/2"), library("A", "/3")])
        assert [each.name for each in made] == ["a", "b", "A"]

    def test_later_places_add_what_they_know(self) -> None:
        memory = MemoryOptions({}, None)
        known = {
            "distribution": "d",
            "version": "1",
            "options": {"a": 1, "b": 2},
            "environment": {"V": "later", "W": "later"},
            "hardware": ("/dev/x",),
            "priority": 5,
            "sharing": Sharing.ONE_CLIENT,
            "partition": ("P",),
            "resident": "so",
            "memory": memory,
            "frameworks": {"jax": {"priority": 1}},
        }
        first = library("a", "/1", options={"a": 0}, environment={"V": "first"})
        (kept,) = merge([first, library("a", "/1", **known)])
        assert kept == Declaration(
            "a",
            "here",
            library=Path("/1"),
            **{**known, "options": {"a": 0, "b": 2}, "environment": {"V": "first", "W": "later"}},  # type: ignore[arg-type]
        )

    def test_one_that_is_hidden_is_still_one(self) -> None:
        made = merge([library("a", "/1", "x"), library("a", "/2", "y"), library("b", "/2", "z")])
        assert [each.name for each in made] == ["a"]
        (hidden,) = made[0].shadowed
        assert (hidden.library, hidden.aliases, hidden.other_origins) == (Path("/2"), ("b",), ("z",))


FOUND = st.builds(
    lambda name, path, works, by_user: Candidate(
        Declaration(name, "x", library=Path(path)) if works else Declaration(name, "x", problem="broken"), by_user
    ),
    st.sampled_from("abc"),
    st.sampled_from(["/1", "/2", "/3", "/4"]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(FOUND))
def test_whatever_is_found_no_library_and_no_name_is_lost_or_doubled(found: list[Candidate]) -> None:
    made = merge(found)
    names = [each.name for each in made]
    assert len(set(names)) == len(names)
    everything = list(itertools.chain.from_iterable((each, *each.shadowed) for each in made))
    libraries = [each.library for each in everything if each.library is not None]
    assert sorted(libraries) == sorted({each.declaration.library for each in found if each.declaration.library})
    assert not any(each.shadowed for one in made for each in one.shadowed)
    known = {name for each in everything for name in (each.name, *each.aliases)}
    assert known == {each.declaration.name for each in found}


def source(plugin: Declaration) -> str:
    """Return the origin of a plugin, without its name there."""
    return plugin.origin.split(" of ")[0].split(" /")[0]


class TestSources:
    """The whole order, from the weakest to the strongest, with one plugin each."""

    def test_each_source_hides_those_below_it(
        self, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copies = {}
        for name in ("variable", "config", "folder"):
            copies[name] = tmp_path / f"{name}.so"
            copies[name].write_bytes(tiny_library.read_bytes())
        copies["folder"] = copies["folder"].rename(tmp_path / "pjrt-plugin-abacus.so")
        (tmp_path / "plugins.toml").write_text(f"[plugins.abacus]\nlibrary = '{copies['config']}'\n")
        site = tmp_path / "site"
        install(site, "pjrt-abacus", {"pjrt.plugins": {"abacus": "abacus_s:make"}}, {"abacus_s.py": "1 / 0"})
        files = {f"jax_plugins/abacus/{name}": b"" for name in ("__init__.py",)}
        install(site, "jax-abacus", {"jax_plugins": {"abacus": "jax_plugins.abacus"}}, files)
        (site / "jax_plugins" / "abacus" / "x.so").write_bytes(tiny_library.read_bytes())
        monkeypatch.syspath_prepend(site)
        plugins.refresh()
        steps = [
            ("entry point jax_plugins", lambda: None),
            ("entry point pjrt.plugins", lambda: None),
            ("PJRT_PLUGIN_LIBRARY_PATH", lambda: monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", str(tmp_path))),
            ("PJRT_CONFIG", lambda: monkeypatch.setenv("PJRT_CONFIG", str(tmp_path / "plugins.toml"))),
            (
                "PJRT_NAMES_AND_LIBRARY_PATHS",
                lambda: monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"abacus{os.pathsep}{copies['variable']}"),
            ),
        ]
        expected: list[str] = []
        for number, (origin, switch_on) in enumerate(steps):
            switch_on()
            expected.insert(0, origin)
            if number == 0:
                continue  # both packages are there from the start
            found = plugins.declaration("abacus")
            assert list(map(source, (found, *found.shadowed))) == expected
        plugins.register(name="abacus", factory="abacus_s:make")
        try:
            assert plugins.declaration("abacus").origin == "registered"
        finally:
            plugins.unregister("abacus")


def test_a_package_s_own_word_comes_before_what_is_known_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "libtpu.so").touch()
    install(tmp_path, "my-tpu", {"pjrt.plugins": {"tpu": "abacus_za:make"}}, {"abacus_za.py": "1 / 0"})
    monkeypatch.syspath_prepend(tmp_path)
    plugins.refresh()
    found = plugins.declaration("tpu")
    assert (found.factory, [each.origin for each in found.shadowed]) == ("abacus_za:make", ["wheel libtpu"])


def test_a_package_that_the_path_has_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("second", "1.0"), ("first", "2.0")):
        files = {"abacus_zb.py": "1 / 0"}
        install(tmp_path / folder, "abacus", {"pjrt.plugins": {"abacus": "abacus_zb:make"}}, files, version)
        monkeypatch.syspath_prepend(tmp_path / folder)
    plugins.refresh()
    found = plugins.declaration("abacus")
    assert (found.version, found.shadowed, found.other_origins) == ("2.0", (), ())


class TestTheBox:
    def test_what_is_installed_does_not_take_its_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install(tmp_path, "mine", {"pjrt.plugins": {"cpu": "abacus_t:make"}}, {"abacus_t.py": "1 / 0"})
        monkeypatch.syspath_prepend(tmp_path)
        plugins.refresh()
        with pjrt.client("cpu") as client:
            assert client.platform_name == "cpu"
        (cpu,) = [each for each in plugins.declarations() if each.name == "cpu"]
        assert [each.origin for each in cpu.shadowed] == ["entry point pjrt.plugins of mine"]

    def test_the_user_can_give_its_names_to_others(self, tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"cpu{os.pathsep}{tiny_library}")
        with pjrt.client("cpu") as client:
            assert client.platform_name == "tiny"
        (cpu,) = [each for each in plugins.declarations() if each.name == "cpu"]
        assert (cpu.library, [each.origin for each in cpu.shadowed]) == (tiny_library.resolve(), ["built-in"])

    def test_one_that_cannot_be_used_is_not_replaced_in_silence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"cpu{os.pathsep}/no/such/library.so")
        with pytest.raises(pjrt.FailedPreconditionError, match=r"'cpu' \(PJRT_NAMES.*\) cannot be used: .*no such"):
            pjrt.client("cpu")


def test_a_hidden_plugin_is_reached_by_its_other_name(
    tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.so").write_bytes(tiny_library.read_bytes())
    folder = tmp_path / "site" / "jax_plugins" / "abacus_u"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "theirs.so").write_bytes(tiny_library.read_bytes())
    (tmp_path / "pjrt-plugin-abacus.so").symlink_to(folder / "theirs.so")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"abacus{os.pathsep}{tmp_path / 'mine.so'}")
    plugins.refresh()
    assert plugins.declaration("abacus").library == tmp_path / "mine.so"
    assert plugins.declaration("abacus_u").library == folder / "theirs.so"
    assert "abacus_u" not in plugins.names()
    pjrt.client("abacus_u").close()

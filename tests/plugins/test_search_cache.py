"""The note that a search leaves for later processes, and all that makes it void."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt.plugins import builtin, registry
from pjrt.plugins.declaration import Declaration

BUILTIN = tuple(builtin.DEVICES.values())
ASK = "import sys, pjrt; print(pjrt.plugins.default(), 'pjrt.plugins.discovery' in sys.modules)"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of packages, which has not changed for a while; the user has configured nothing."""
    for name in ("PJRT_CONFIG", "PJRT_NAMES_AND_LIBRARY_PATHS", "PJRT_PLUGIN_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "site"
    folder.mkdir()
    os.utime(folder, ns=(1, 1))
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="the variables of the folders are Linux's")
class TestNote:
    def test_nothing_is_known_without_one(self, site: Path) -> None:
        assert not registry.has_only_builtin()

    def test_it_is_found(self, site: Path) -> None:
        registry.note_search(BUILTIN)
        assert registry.has_only_builtin()

    def test_it_is_not_for_others_to_change(self, site: Path, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            registry.note_search(BUILTIN)
        finally:
            os.umask(before)
        assert registry.has_only_builtin()
        made = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
        assert len(made) == 4
        assert [path.name for path in made if path.stat().st_mode & stat.S_IWOTH] == []

    def test_a_new_file_in_a_folder_makes_it_void(self, site: Path) -> None:
        registry.note_search(BUILTIN)
        (site / "package.dist-info").mkdir()
        assert not registry.has_only_builtin()

    def test_a_new_package_in_the_namespace_makes_it_void(self, site: Path) -> None:
        (site / "jax_plugins").mkdir()
        for folder in (site / "jax_plugins", site):
            os.utime(folder, ns=(1, 1))
        registry.note_search(BUILTIN)
        assert registry.has_only_builtin()
        (site / "jax_plugins" / "chip").mkdir()
        assert not registry.has_only_builtin()

    def test_another_search_path_has_none(self, site: Path, tmp_path: Path) -> None:
        registry.note_search(BUILTIN)
        sys.path.append(str(tmp_path))
        assert not registry.has_only_builtin()

    def test_hardware_that_appears_makes_it_void(self, site: Path, tmp_path: Path) -> None:
        chip = tmp_path / "dev" / "chip0"
        chip.parent.mkdir()
        registry.note_search(
            (*BUILTIN, Declaration("chip", "wheel chip", hardware=(f"{chip.parent}/chip*",), priority=1))
        )
        assert registry.has_only_builtin()
        chip.touch()
        assert not registry.has_only_builtin()

    @pytest.mark.parametrize(
        "other",
        [
            Declaration("chip", "package chip", hardware=("/nowhere/chip",)),
            Declaration("chip", "wheel chip", hardware=("/nowhere/chip",), problem="broken"),
            Declaration("chip", "wheel chip"),
        ],
        ids=["not a wheel", "broken", "without hardware"],
    )
    def test_none_is_left_with_a_plugin_that_may_change(self, site: Path, other: Declaration) -> None:
        registry.note_search((*BUILTIN, other))
        assert not registry.has_only_builtin()

    def test_none_is_left_of_a_folder_that_has_just_changed(self, site: Path) -> None:
        os.utime(site)
        registry.note_search(BUILTIN)
        assert not registry.has_only_builtin()

    @pytest.mark.parametrize("name", ["PJRT_CONFIG", "PJRT_NAMES_AND_LIBRARY_PATHS", "PJRT_PLUGIN_LIBRARY_PATH"])
    def test_it_does_not_count_where_the_user_names_plugins(
        self, site: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        registry.note_search(BUILTIN)
        monkeypatch.setenv(name, "/nowhere")
        assert not registry.has_only_builtin()

    def test_a_damaged_one_does_not_count(self, site: Path, tmp_path: Path) -> None:
        registry.note_search(BUILTIN)
        (note,) = (tmp_path / "cache" / "pjrt" / "search").iterdir()
        note.write_bytes(b"\xff\xfe")
        assert not registry.has_only_builtin()
        note.write_bytes(b"")
        assert not registry.has_only_builtin()

    def test_a_folder_for_caches_that_cannot_be_made_is_no_error(self, site: Path, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file")
        registry.note_search(BUILTIN)
        assert not registry.has_only_builtin()

    def test_old_ones_are_removed(self, site: Path, tmp_path: Path) -> None:
        folder = tmp_path / "cache" / "pjrt" / "search"
        folder.mkdir(parents=True)
        for number in range(101):
            (folder / f"{number}.txt").touch()
        registry.note_search(BUILTIN)
        assert len(list(folder.iterdir())) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the variables of the folders are Linux's")
def test_only_the_first_process_searches(site: Path) -> None:
    def ask() -> str:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, "-c", ASK], capture_output=True, text=True, check=True, env=environment, cwd="/"
        )
        return done.stdout.strip()

    first, second = ask(), ask()
    if first != "cpu True":
        pytest.skip(f"the default device of this machine is another one: {first}")
    assert second == "cpu False"
    (site / "new").mkdir()
    assert ask() == "cpu True"

"""Only safe files are loaded: whole paths, existing files, places that not everyone can write to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration

pytestmark = [
    pytest.mark.usefixtures("nothing_configured"),
    pytest.mark.skipif(os.name != "posix", reason="rights are looked at where there are modes"),
]

Say = Callable[[Path], Declaration]
"""Has a variable or the configuration file name a library; gives the plugin that comes of it."""


@pytest.fixture(params=["PJRT_NAMES_AND_LIBRARY_PATHS", "PJRT_PLUGIN_LIBRARY_PATH", "PJRT_CONFIG"])
def say(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    def name(path: Path) -> Declaration:
        values = {
            "PJRT_NAMES_AND_LIBRARY_PATHS": f"abacus{os.pathsep}{path}",
            "PJRT_PLUGIN_LIBRARY_PATH": str(path),
            "PJRT_CONFIG": str(tmp_path / "config.toml"),
        }
        (tmp_path / "config.toml").write_text(f"[plugins.abacus]\nlibrary = '{path}'\n")
        monkeypatch.setenv(request.param, values[request.param])
        return only_one()

    return name


def only_one() -> Declaration:
    """The plugin that comes from no package."""
    plugins.refresh()
    (found,) = [each for each in plugins.declarations() if not each.distribution]
    assert (found.library is None) == bool(found.problem)
    assert (found.name in plugins.names()) != bool(found.problem)
    return found


@pytest.fixture
def library(tiny_library: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    path = folder / "abacus.so"
    shutil.copy(tiny_library, path)
    path.chmod(0o755)
    return path


def test_a_safe_one_is_loaded(say: Say, library: Path) -> None:
    found = say(library)
    assert found.library == library
    pjrt.client(found.name).close()


def test_group_members_may_write(say: Say, library: Path) -> None:
    library.chmod(0o775)
    library.parent.chmod(0o775)
    assert say(library).problem == ""


def test_a_file_that_everyone_may_write_to(say: Say, library: Path) -> None:
    library.chmod(0o757)
    assert f"is not safe: everyone may write to {library}" in say(library).problem


def test_what_is_refused_is_not_loaded(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.chmod(0o757)
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"abacus{os.pathsep}{library}")
    with pytest.raises(pjrt.FailedPreconditionError, match=r"'abacus' .* is not safe: everyone may write to"):
        pjrt.client("abacus")


def test_a_folder_that_everyone_may_write_to(say: Say, library: Path) -> None:
    library.parent.chmod(0o777)
    assert f"everyone may write to {library.parent}" in say(library).problem


def test_a_folder_above_that_everyone_may_write_to(say: Say, library: Path) -> None:
    above = library.parent.parent
    above.chmod(0o777)
    assert f"everyone may write to {above}" in say(library).problem


def test_a_link_into_such_a_folder(say: Say, library: Path, tmp_path: Path) -> None:
    library.parent.chmod(0o777)
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert f"everyone may write to {library.parent}" in say(link).problem


def test_a_link_in_such_a_folder(say: Say, library: Path, tmp_path: Path) -> None:
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    (unsafe / "link.so").symlink_to(library)
    assert f"everyone may write to {unsafe}" in say(unsafe / "link.so").problem


def test_a_link_is_followed_to_the_library(say: Say, library: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert say(link).library == library


def test_a_search_folder_that_everyone_may_write_to_is_refused_whole(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = library.parent
    library.rename(folder / "pjrt-plugin-abacus.so")
    monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", str(folder))
    assert only_one().name == "abacus"
    folder.chmod(0o1777)  # as /tmp: everyone may add files
    refused = only_one()
    assert refused.name == str(folder)
    assert f"everyone may write to {folder}" in refused.problem


def test_a_manifest_that_everyone_may_write_to(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = library.parent / "pjrt-plugin-abacus.json"
    manifest.write_text('{"library": "abacus.so"}')
    monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", str(library.parent))
    assert only_one().library == library
    manifest.chmod(0o666)
    assert f"everyone may write to {manifest}" in only_one().problem


def test_a_configuration_file_that_everyone_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[plugins.cpu.options]\nnum_devices = 3\n")
    config.chmod(0o666)
    monkeypatch.setenv("PJRT_CONFIG", str(config))
    with (
        pytest.warns(UserWarning, match=r"is not safe: everyone may write to .*config.toml.*it is ignored"),
        pjrt.client("cpu") as client,
    ):
        assert len(client.devices) == 1


def test_relative_paths_are_the_caller_s_own_word(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(library.parent)
    with pjrt.client("./abacus.so") as one, pjrt.client("abacus.so") as other:
        assert one.platform_name == other.platform_name == "tiny"
    assert plugins.load_plugin("abacus.so") is plugins.load_plugin(library)


@pytest.mark.parametrize("variable", ["PJRT_NAMES_AND_LIBRARY_PATHS", "PJRT_PLUGIN_LIBRARY_PATH", "PJRT_LIBRARY_PATH"])
def test_relative_paths_in_variables_are_refused(variable: str, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(library.parent)
    prefix = f"abacus{os.pathsep}" if "NAMES" in variable else ""
    monkeypatch.setenv(variable, f"{prefix}abacus.so")
    if variable == "PJRT_LIBRARY_PATH":
        monkeypatch.setenv("PJRT_DEVICE", "LIBRARY")
        with pytest.raises(pjrt.InvalidArgumentError, match=r"'abacus.so' is a relative path"):
            pjrt.client()
    else:
        assert "'abacus.so' is a relative path" in only_one().problem


def test_pjrt_device_library(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "LIBRARY")
    monkeypatch.setenv("PJRT_LIBRARY_PATH", str(library))
    with pjrt.client() as client:
        assert client.platform_name == "tiny"


def test_a_factory_in_the_configuration_is_not_imported_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "abacus_w.py").write_text("raise RuntimeError('it was imported')\n")
    (tmp_path / "config.toml").write_text("[plugins.abacus]\nfactory = 'abacus_w:make'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PJRT_CONFIG", str(tmp_path / "config.toml"))
    assert "abacus" in plugins.names()
    with pytest.raises(pjrt.FailedPreconditionError, match=r"cannot be loaded: .*: RuntimeError: it was imported"):
        pjrt.client("abacus")


def test_links_that_lead_back_to_themselves(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "pjrt-plugin-abacus.so"
    path.symlink_to(path)
    found = say(path)
    assert str(path) in found.problem
    assert "cpu" in plugins.names()


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_a_pipe_in_a_search_folder_is_not_waited_for(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / f"pjrt-plugin-pipe{suffix}")
    monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", str(tmp_path))
    assert "expected a regular file" in only_one().problem


def test_a_pipe_as_configuration_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "config.toml")
    monkeypatch.setenv("PJRT_CONFIG", str(tmp_path / "config.toml"))
    with pytest.warns(UserWarning, match="expected a regular file"):
        assert "expected a regular file" in only_one().problem

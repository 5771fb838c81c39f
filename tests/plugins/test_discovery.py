"""Discovery: each source finds what is there, imports nothing, and lists what is broken with its reason."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packages import install

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration

pytestmark = pytest.mark.usefixtures("nothing_configured")

IMPORTED = "raise RuntimeError('it was imported')\n"
NAMES_AND_PATHS = "PJRT_NAMES_AND_LIBRARY_PATHS"
LIBRARY_PATH = "PJRT_PLUGIN_LIBRARY_PATH"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of ``sys.path`` for packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def found() -> Mapping[str, Declaration]:
    """The plugins by name; nothing of them is imported meanwhile."""
    plugins.refresh()
    before = set(sys.modules)
    made = {plugin.name: plugin for plugin in plugins.declarations()}
    new = {name for name in set(sys.modules) - before if not name.startswith(("pjrt.", "importlib"))}
    assert not [name for name in new if "abacus" in name or "jax" in name]
    return made


class TestEntryPoints:
    def test_a_factory(self, site: Path) -> None:
        install(site, "py-abacus", {"pjrt.plugins": {"abacus": "py_abacus:make"}}, {"py_abacus/__init__.py": IMPORTED})
        plugin = found()["abacus"]
        assert (plugin.factory, plugin.library, plugin.problem) == ("py_abacus:make", None, "")
        assert (plugin.distribution, plugin.version) == ("py-abacus", "1.0")
        assert plugin.origin == "entry point pjrt.plugins of py-abacus"

    def test_a_client(self, site: Path) -> None:
        code = "import pjrt\n\ndef make(**options):\n    return pjrt.client('reference', **options)\n"
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_a:make"}}, {"abacus_a.py": code})
        plugins.refresh()
        with pjrt.client("abacus", num_devices=2) as client:
            assert len(client.devices) == 2

    def test_a_plugin_class(self, site: Path) -> None:
        code = (
            "import pjrt\n"
            "class Abacus(pjrt.Plugin):\n"
            "    name, api_version, attributes = 'abacus', (0, 114), {}\n"
            "    def client(self, /, **options):\n"
            "        return pjrt.client('reference')\n"
        )
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_b:Abacus"}}, {"abacus_b.py": code})
        plugins.refresh()
        assert type(plugins.load_plugin("abacus")).__name__ == "Abacus"
        pjrt.client("abacus").close()

    def test_a_package_with_a_library(self, site: Path, tiny_library: Path) -> None:
        files = {"abacus_c/__init__.py": IMPORTED, "abacus_c/lib/plugin.so": tiny_library}
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_c"}}, files)
        assert found()["abacus"].library == tiny_library.resolve()

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("no_such_abacus:make", "names the module 'no_such_abacus', which is not there"),
            ("abacus_d.no_such:make", "names the module 'abacus_d.no_such', which is not there"),
            ("abacus_d", "names the module 'abacus_d' without an attribute"),
            ("what is this?", "is written 'what is this?'; expected module:attribute"),
        ],
    )
    def test_one_that_names_nothing_is_listed_and_hurts_nobody(self, site: Path, target: str, reason: str) -> None:
        install(site, "abacus", {"pjrt.plugins": {"abacus": target}}, {"abacus_d/__init__.py": IMPORTED})
        install(site, "good", {"pjrt.plugins": {"good": "good:make"}}, {"good.py": IMPORTED})
        plugin = found()["abacus"]
        assert reason in plugin.problem
        assert "abacus" not in plugins.names()
        assert "good" in plugins.names()
        with pytest.raises(pjrt.FailedPreconditionError, match=r"'abacus' \(entry point .* of abacus\) cannot be used"):
            pjrt.client("abacus")
        pjrt.client("reference").close()

    def test_the_same_package_for_jax_and_pytorch_is_one_plugin(self, site: Path) -> None:
        points = {
            "pjrt.plugins": {"abacus": "abacus_e:make"},
            "jax_plugins": {"abacus": "abacus_e.jax_plugin"},
            "torch_xla.plugins": {"ABACUS": "abacus_e.torch:plugin"},
        }
        install(site, "abacus", points, {"abacus_e/__init__.py": IMPORTED})
        everything = found()
        assert [name for name in everything if name.lower() == "abacus"] == ["abacus"]
        assert everything["abacus"].other_origins == (
            "entry point jax_plugins of abacus",
            "entry point torch_xla.plugins of abacus",
        )

    def test_our_own_entry_points_are_no_plugins(self, site: Path, tiny_library: Path) -> None:
        assert "pjrt" not in {plugin.name.lower() for plugin in found().values()}
        files = {"abacus_zc/__init__.py": IMPORTED, "abacus_zc/exported.so": tiny_library}
        install(site, "pjrt", {"jax_plugins": {"pjrt": "abacus_zc"}}, files)
        assert "pjrt" not in found()

    @pytest.mark.parametrize("group", ["jax_plugins", "torch_xla.plugins"])
    def test_a_framework_s_plugin_that_carries_a_library(self, group: str, site: Path, tiny_library: Path) -> None:
        files = {"abacus_f/__init__.py": IMPORTED, "abacus_f/lib/libabacus.so": tiny_library}
        install(site, "abacus", {group: {"Abacus": "abacus_f:Plugin"}}, files)
        plugin = found()["abacus" if group == "torch_xla.plugins" else "Abacus"]
        assert (plugin.library, plugin.origin) == (tiny_library.resolve(), f"entry point {group} of abacus")

    def test_a_library_elsewhere_among_the_package_s_files(self, site: Path, tiny_library: Path) -> None:
        files = {"abacus_g.py": IMPORTED, "abacus_g_libs/libabacus.so": tiny_library}
        install(site, "abacus", {"jax_plugins": {"abacus": "abacus_g"}}, files)
        assert found()["abacus"].library == tiny_library.resolve()

    def test_a_framework_s_plugin_without_a_library_is_not_ours(self, site: Path) -> None:
        files = {"abacus_h/__init__.py": IMPORTED, "abacus_h/other.so": b"no library"}
        install(site, "abacus", {"jax_plugins": {"abacus": "abacus_h"}}, files)
        assert "abacus" not in found()

    def test_a_framework_s_plugin_that_names_nothing(self, site: Path) -> None:
        install(site, "abacus", {"jax_plugins": {"abacus": "no_such_abacus"}})
        assert "names the module 'no_such_abacus', which is not there" in found()["abacus"].problem

    def test_links_in_a_package_that_lead_back_to_themselves(self, site: Path) -> None:
        manifest = '{"library": "loop.so"}'
        files = {
            "abacus_k/__init__.py": IMPORTED,
            "abacus_k/loop.so": Path("loop.so"),
            "abacus_k/pjrt-plugin-abacus.json": manifest,
        }
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_k"}}, files)
        problem = found()["abacus"].problem
        assert str(site / "abacus_k" / "loop.so") in problem
        assert problem.endswith("install the package again")
        assert "cpu" in plugins.names()

    def test_modules_for_python_are_no_plugins(self, site: Path, tiny_library: Path) -> None:
        files = {"abacus_i/__init__.py": IMPORTED, "abacus_i/_native.abi3.so": tiny_library}
        install(site, "abacus", {"jax_plugins": {"abacus": "abacus_i"}}, files)
        assert "abacus" not in found()


class TestManifest:
    def test_it_says_what_there_is_to_know(self, site: Path) -> None:
        said = {
            "options": {"beads": 10, "rows": [1, 2], "wood": "oak", "old": True, "weight": 1.5},
            "environment": {"ABACUS": "yes"},
            "hardware": ["/dev/abacus*"],
            "priority": 5,
            "sharing": "one-client",
            "memory": {"on_demand": {"grow": True}, "preallocated": {"grow": False}, "fraction": "part"},
            "frameworks": {"jax": {"priority": 7}},
        }
        files = {"abacus_j/__init__.py": IMPORTED, "abacus_j/pjrt-plugin-abacus.json": json.dumps(said)}
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_j:make"}}, files)
        assert found()["abacus"] == Declaration(
            "abacus",
            "entry point pjrt.plugins of abacus",
            factory="abacus_j:make",
            distribution="abacus",
            version="1.0",
            options={"beads": 10, "rows": (1, 2), "wood": "oak", "old": True, "weight": 1.5},
            environment={"ABACUS": "yes"},
            hardware=("/dev/abacus*",),
            priority=5,
            sharing=plugins.Sharing.ONE_CLIENT,
            memory=plugins.MemoryOptions({"grow": True}, {"grow": False}, "part"),
            frameworks={"jax": {"priority": 7}},
        )

    def test_its_library_is_found_from_its_folder_on(self, site: Path, tiny_library: Path) -> None:
        files = {
            "abacus_k/__init__.py": IMPORTED,
            "abacus_k/pjrt-plugin-abacus.json": json.dumps({"library": "lib/x.so"}),
            "abacus_k/lib/x.so": tiny_library,
        }
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_k:make"}}, files)
        assert (found()["abacus"].library, found()["abacus"].factory) == (tiny_library.resolve(), None)

    def test_of_a_package_that_is_installed_to_be_edited(
        self, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_z:make"}})
        source = tmp_path / "source" / "abacus_z"
        source.mkdir(parents=True)
        (source / "__init__.py").write_text(IMPORTED)
        (source / "pjrt-plugin-abacus.json").write_text(json.dumps({"priority": 4}))
        monkeypatch.syspath_prepend(source.parent)
        assert found()["abacus"].priority == 4

    def test_beside_a_framework_s_entry_point(self, site: Path, tiny_library: Path) -> None:
        files = {
            "jax_plugins/abacus_l/__init__.py": IMPORTED,
            "jax_plugins/abacus_l/pjrt-plugin-abacus.json": json.dumps({"library": "x.bin", "priority": 3}),
            "jax_plugins/abacus_l/x.bin": tiny_library,
        }
        install(site, "abacus", {"jax_plugins": {"abacus": "jax_plugins.abacus_l"}}, files)
        assert (found()["abacus"].library, found()["abacus"].priority) == (tiny_library.resolve(), 3)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{", "is not valid JSON"),
            ('{"colour": 1}', "unknown key 'colour': the keys are library, factory, options"),
            ('{"library": "gone.so"}', "gone.so: there is no such file"),
            ("[]", "expected a table"),
            ('{"disabled": true}', "unknown key 'disabled': only the configuration file"),
        ],
    )
    def test_a_bad_one_is_listed_with_its_reason(self, text: str, reason: str, site: Path) -> None:
        files = {"abacus_m/__init__.py": IMPORTED, "abacus_m/pjrt-plugin-abacus.json": text}
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_m:make"}}, files)
        assert reason in found()["abacus"].problem


class TestNamespacePackage:
    def test_a_module_that_carries_a_library(self, site: Path, tiny_library: Path) -> None:
        folder = site / "jax_plugins" / "abacus_n"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(IMPORTED)
        (folder / "plugin.so").symlink_to(tiny_library)
        (site / "jax_plugins" / "without").mkdir()
        (site / "jax_plugins" / "without" / "__init__.py").write_text(IMPORTED)
        plugin = found()["abacus_n"]
        assert plugin.library == tiny_library.resolve()
        assert plugin.origin == "namespace package jax_plugins.abacus_n"
        assert "without" not in found()


class TestNamesAndPaths:
    def test_libraries(self, tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(NAMES_AND_PATHS, f"abacus{os.pathsep}{tiny_library}, , sand{os.pathsep}{tiny_library}")
        plugin = found()["abacus"]
        assert (plugin.library, plugin.origin, plugin.aliases) == (tiny_library.resolve(), NAMES_AND_PATHS, ("sand",))
        with pjrt.client("abacus", num_devices=2) as client, pjrt.client("sand") as other:
            assert (len(client.devices), len(other.devices)) == (2, 1)

    def test_a_manifest_as_jax_reads_it(
        self, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = {"library_path": str(tiny_library), "create_options": {"num_devices": 3}}
        (tmp_path / "abacus.json").write_text(json.dumps(said))
        monkeypatch.setenv(NAMES_AND_PATHS, f"abacus{os.pathsep}{tmp_path / 'abacus.json'}")
        plugins.refresh()
        with pjrt.client("abacus") as client:
            assert len(client.devices) == 3

    @pytest.mark.parametrize(
        ("written", "name", "reason"),
        [
            ("abacus", "abacus", f"expected name{os.pathsep}path, found 'abacus'"),
            (f"abacus{os.pathsep}", "abacus", f"expected name{os.pathsep}path"),
            (f"abacus{os.pathsep}/a{os.pathsep}/b", "abacus", f"expected name{os.pathsep}path"),
            (f"abacus{os.pathsep}x.so", "abacus", "is a relative path"),
            (f"abacus{os.pathsep}/no/such/x.so", "abacus", "there is no such file"),
            (f"abacus{os.pathsep}/no/such/x.json", "abacus", "there is no such file"),
            (f"abacus{os.pathsep}/usr", "abacus", "expected a regular file, found a folder"),
        ],
    )
    def test_what_is_wrong_is_listed_with_its_reason(
        self, written: str, name: str, reason: str, tiny_library: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(NAMES_AND_PATHS, f"{written},good{os.pathsep}{tiny_library}")
        assert reason in found()[name].problem
        assert "good" in plugins.names()


class TestLibraryPath:
    def test_folders_and_files(self, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "plugins"
        folder.mkdir()
        for name in ("pjrt-plugin-abacus.so", "libother.so", "pjrt-plugin-.so", "pjrt-plugin-notes.txt"):
            (folder / name).write_bytes(tiny_library.read_bytes())
        alone = tmp_path / "alone.so"
        alone.write_bytes(tiny_library.read_bytes())
        monkeypatch.setenv(LIBRARY_PATH, os.pathsep.join([str(folder), "", str(alone)]))
        everything = found()
        mine = {name: each for name, each in everything.items() if each.origin.startswith(LIBRARY_PATH)}
        assert {name: each.library for name, each in mine.items()} == {
            "abacus": folder / "pjrt-plugin-abacus.so",
            "alone": alone,
        }
        with pjrt.client("abacus") as client:
            assert len(client.devices) == 1

    def test_a_manifest_speaks_for_the_library_beside_it(
        self, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pjrt-plugin-abacus.json").write_text(json.dumps({"options": {"num_devices": 2}, "priority": 4}))
        (tmp_path / "pjrt-plugin-abacus.so").symlink_to(tiny_library)
        monkeypatch.setenv(LIBRARY_PATH, str(tmp_path))
        plugin = found()["abacus"]
        assert (plugin.library, plugin.priority, plugin.problem) == (tiny_library.resolve(), 4, "")
        with pjrt.client("abacus") as client:
            assert len(client.devices) == 2

    def test_a_manifest_with_a_library(
        self, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pjrt-plugin-abacus.json").write_text(json.dumps({"library": str(tiny_library)}))
        monkeypatch.setenv(LIBRARY_PATH, str(tmp_path))
        assert found()["abacus"].library == tiny_library.resolve()

    def test_what_is_wrong_is_listed_with_its_reason(
        self, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pjrt-plugin-alone.json").write_text("{}")
        (tmp_path / "pjrt-plugin-bad.json").write_text("{")
        (tmp_path / "pjrt-plugin-cut.so").write_bytes(tiny_library.read_bytes()[:3000])
        (tmp_path / "pjrt-plugin-gone.so").symlink_to(tmp_path / "nothing")
        monkeypatch.setenv(LIBRARY_PATH, os.pathsep.join(["relative/folder", "/no/such/folder", str(tmp_path)]))
        problems = {name: each.problem for name, each in found().items()}
        assert "is a relative path" in problems["relative/folder"]
        assert "there is no such file" in problems["/no/such/folder"]
        assert "names no library, and there is no pjrt-plugin-alone.so beside it" in problems["alone"]
        assert "is not valid JSON" in problems["bad"]
        assert "is cut off: it has 3000 bytes" in problems["cut"]
        assert "there is no such file" in problems["gone"]
        assert "cpu" in plugins.names()


def test_a_new_plugin_is_seen_after_refresh(site: Path) -> None:
    assert "abacus" not in found()
    install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_o:make"}}, {"abacus_o.py": IMPORTED})
    assert "abacus" in found()


def test_a_changed_variable_is_seen_at_once(tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "abacus" not in plugins.names()
    monkeypatch.setenv(NAMES_AND_PATHS, f"abacus{os.pathsep}{tiny_library}")
    assert "abacus" in plugins.names()
    monkeypatch.delenv(NAMES_AND_PATHS)
    assert "abacus" not in plugins.names()


class TestDamagedPackages:
    def test_metadata_that_cannot_be_parsed_is_listed_and_hurts_nobody(self, site: Path) -> None:
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_p:make"}})
        install(site, "good", {"pjrt.plugins": {"good": "good_p:make"}}, {"good_p.py": IMPORTED})
        (site / "abacus-1.0.dist-info" / "entry_points.txt").write_text("[pjrt.plugins]\nabacus\n")
        problems = {name: each.problem for name, each in found().items()}
        assert "its metadata cannot be read" in problems["abacus"]
        assert problems["good"] == ""

    def test_a_package_without_a_name(self, site: Path) -> None:
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_zz:make"}}, {"abacus_zz.py": IMPORTED})
        (site / "abacus-1.0.dist-info" / "METADATA").write_text("")
        assert "metadata cannot be read" in found()["an unknown package"].problem

    def test_bytes_that_are_no_text(self, site: Path) -> None:
        install(site, "good", {"pjrt.plugins": {"good": "good_q:make"}}, {"good_q.py": IMPORTED})
        install(site, "abacus")
        (site / "abacus-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe\x00")
        assert found()["good"].problem == ""

    def test_a_list_of_files_that_cannot_be_parsed(self, site: Path) -> None:
        install(site, "abacus", {"pjrt.plugins": {"abacus": "abacus_r:make"}}, {"abacus_r.py": IMPORTED})
        (site / "abacus-1.0.dist-info" / "RECORD").write_text("\n\n")
        assert found()["abacus"].problem == ""


WRITTEN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40) | st.lists(
    st.sampled_from(["a", ":", ",", "/", "~", "..", ".so", ".json", "/usr", "/tmp", "x" * 5000, "=", ";", "\n", "cpu"]),
    max_size=8,
).map("".join)


@given(st.sampled_from([NAMES_AND_PATHS, LIBRARY_PATH]), WRITTEN)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_variable_says_the_others_are_found(variable: str, text: str) -> None:
    with mock.patch.dict(os.environ, {variable: text}):
        found = {plugin.name: plugin for plugin in plugins.declarations()}
        assert {"cpu", "reference"} <= found.keys()
        assert all(plugin.problem or plugin.library or plugin.factory for plugin in found.values())
        assert found["reference"].problem == "" or "reference" in text or "cpu" in text

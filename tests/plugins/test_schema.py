"""The keys of manifests, the configuration file and environment variables, and the errors for wrong ones."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages import install

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration, MemoryOptions, Sharing, env_vars, schema
from pjrt.plugins.declaration import ProcessOptions

pytestmark = pytest.mark.usefixtures("nothing_configured")


class TestOptionValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("true", True),
            ("false", False),
            ("True", "True"),
            ("8", 8),
            ("-8", -8),
            ("0.5", 0.5),
            ("1e3", 1000.0),
            ("1,2,3", (1, 2, 3)),
            ("1,x", "1,x"),
            ("", ""),
            ("oak wood", "oak wood"),
        ],
    )
    def test_of_a_text(self, text: str, value: object) -> None:
        found = env_vars.option_value(text)
        assert (type(found), found) == (type(value), value)

    @given(st.text())
    def test_every_text_is_one(self, text: str) -> None:
        assert isinstance(env_vars.option_value(text), (str, bool, int, float, tuple))

    @pytest.mark.parametrize(
        ("name", "variable"),
        [("cpu", "PJRT_OPTIONS_CPU"), ("my-chip.2", "PJRT_OPTIONS_MY_CHIP_2"), ("a_b", "PJRT_OPTIONS_A_B")],
    )
    def test_the_name_of_the_variable(self, name: str, variable: str) -> None:
        assert env_vars.options_variable(name) == variable


WORDS = st.text("abcxyz_0189-", min_size=1, max_size=8)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.text(max_size=8), st.booleans(), NUMBERS, st.floats(allow_nan=False), st.lists(NUMBERS, max_size=3).map(tuple)
)
OPTIONS = st.dictionaries(WORDS, VALUES, max_size=3)
DECLARATIONS = st.builds(
    Declaration,
    st.just("a"),
    st.just("a test"),
    library=st.just(Path("/somewhere/x.so")),
    options=OPTIONS,
    environment=st.dictionaries(WORDS, st.text(max_size=8), max_size=2),
    hardware=st.lists(WORDS, max_size=2).map(tuple),
    priority=st.integers(-1000, 1000),
    sharing=st.sampled_from(Sharing),
    partition=st.lists(WORDS, max_size=2).map(tuple),
    memory=st.none() | st.builds(MemoryOptions, st.none() | OPTIONS, st.none() | OPTIONS, st.just("") | WORDS),
    processes=st.none() | st.builds(ProcessOptions, st.just("") | WORDS, st.just("") | WORDS, st.just("") | WORDS),
    resident=st.just("") | WORDS,
    frameworks=st.dictionaries(st.sampled_from(["jax", "torch_xla"]), OPTIONS, max_size=2),
)


@given(DECLARATIONS)
def test_a_table_says_all_of_a_declaration_also_after_json(plugin: Declaration) -> None:
    said = schema.read_table(json.loads(json.dumps(schema.to_table(plugin))))
    read = schema.amend(Declaration("a", "a test"), said)
    assert replace(read, library=Path(said["library"])) == plugin


class TestTables:
    @pytest.mark.parametrize(
        ("table", "reason"),
        [
            ({"libary": "/x.so"}, r"unknown key 'libary': the keys are library, factory, options, environment"),
            ({"library": 3}, r"library must be a text, found 3"),
            ({"library": ""}, r"library must be a text, found ''"),
            ({"factory": "os.system"}, r"factory must be written module:attribute, found 'os.system'"),
            ({"factory": "a b:c"}, r"factory must be written module:attribute"),
            ({"factory": "a:__import__('os')"}, r"factory must be written module:attribute"),
            ({"options": [1]}, r"options must be a table, found \[1\]"),
            ({"options": {"a": None}}, r"options.a must be a text, a number, true or false, or a list of integers"),
            ({"options": {"a": [1, True]}}, r"options.a must be"),
            ({"options": {"a": {"b": 1}}}, r"options.a must be"),
            ({"environment": {"A": 1}}, r"environment.A must be a text, found 1"),
            ({"hardware": "/dev/x"}, r"hardware must be a list of file name patterns, found '/dev/x'"),
            ({"priority": "high"}, r"priority must be an integer, found 'high'"),
            ({"priority": True}, r"priority must be an integer, found True"),
            ({"sharing": "none"}, r"sharing must be one of many, one-process, one-client; found 'none'"),
            ({"memory": {"all": {}}}, r"unknown key memory.all: the keys are on_demand, preallocated, fraction"),
            ({"memory": {"fraction": 0.5}}, r"memory.fraction must be a text, found 0.5"),
            (
                {"processes": {"number": "n"}},
                r"unknown key processes.number: the keys are devices, count",
            ),
            ({"partition": "A"}, r"partition must be a list of names of environment variables, found 'A'"),
            ({"frameworks": {"jax": 1}}, r"frameworks.jax must be a table, found 1"),
            ({"disabled": "yes"}, r"disabled must be true or false, found 'yes'"),
            ("text", r"expected a table of library, factory"),
        ],
    )
    def test_what_is_wrong_is_said(self, table: Any, reason: str) -> None:
        with pytest.raises(pjrt.InvalidArgumentError, match=reason):
            schema.read_table(table)

    @given(st.dictionaries(st.sampled_from(schema.KEYS), st.from_type(object) | VALUES | OPTIONS))
    def test_nothing_else_is_raised(self, table: dict[str, Any]) -> None:
        with contextlib.suppress(pjrt.InvalidArgumentError):
            schema.read_table(table)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the configuration file."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("PJRT_CONFIG", str(path))
    return path


class TestConfigFile:
    def test_a_plugin_with_a_library(self, config: Path, tiny_library: Path) -> None:
        config.write_text(
            f"[plugins.abacus]\nlibrary = '{tiny_library}'\noptions = {{ num_devices = 3 }}\npriority = 2\n"
        )
        found = plugins.declaration("abacus")
        assert (found.library, found.origin, found.priority) == (tiny_library.resolve(), f"PJRT_CONFIG {config}", 2)
        with pjrt.client("abacus") as client, pjrt.client() as unnamed:
            assert len(client.devices) == len(unnamed.devices) == 3

    def test_a_plugin_with_a_factory(self, config: Path) -> None:
        config.write_text("[plugins.abacus]\nfactory = 'pjrt.devices.reference.plugin:ReferencePlugin'\n")
        with pjrt.client("abacus", num_devices=2) as client:
            assert len(client.devices) == 2

    def test_options_of_a_device_in_the_box(self, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config.write_text("[plugins.cpu.options]\nnum_devices = 3\n")
        with pjrt.client("cpu") as client, pjrt.client("cpu", num_devices=1) as other:
            assert (len(client.devices), len(other.devices)) == (3, 1)
        monkeypatch.setenv("PJRT_OPTIONS_CPU", "num_devices=2")
        with pjrt.client("cpu") as client:
            assert len(client.devices) == 2

    def test_it_is_read_again_when_it_changes(self, config: Path) -> None:
        config.write_text("[plugins.cpu.options]\nnum_devices = 3\n")
        assert plugins.declaration("cpu").options == {"num_devices": 3}
        config.write_text("[plugins.cpu.options]\nnum_devices = 12\n")
        assert plugins.declaration("cpu").options == {"num_devices": 12}
        config.write_text("")
        assert plugins.declaration("cpu").options == {}

    def test_it_comes_before_what_a_package_says(
        self, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = {
            "options": {"a": 1, "b": 1},
            "priority": 1,
            "frameworks": {"jax": {"a": 1, "b": 1}, "torch_xla": {"c": 1}},
        }
        files = {"abacus_v/__init__.py": "1 / 0", "abacus_v/pjrt-plugin-abacus.json": json.dumps(said)}
        install(tmp_path / "site", "abacus", {"pjrt.plugins": {"abacus": "abacus_v:make"}}, files)
        monkeypatch.syspath_prepend(tmp_path / "site")
        plugins.refresh()
        config.write_text("[plugins.abacus]\npriority = 2\noptions.b = 2\nframeworks.jax.b = 2\n")
        found = plugins.declaration("abacus")
        assert (found.options, found.priority) == ({"a": 1, "b": 2}, 2)
        assert found.frameworks == {"jax": {"a": 1, "b": 2}, "torch_xla": {"c": 1}}
        assert found.factory == "abacus_v:make"

    def test_a_plugin_that_is_turned_off(self, config: Path) -> None:
        config.write_text("[plugins.reference]\ndisabled = true\n")
        assert "reference" not in plugins.names()
        assert plugins.declaration("reference").disabled
        with pytest.raises(pjrt.FailedPreconditionError, match=rf"cannot be used: disabled in {config}"):
            pjrt.client("reference")
        pjrt.client("cpu").close()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("library = 'x.so'", "is a relative path"),
            ("library = '/no/such/x.so'", "there is no such file"),
            ("library = '/x.so'\nfactory = 'a:b'", "expected a library or a factory, found both"),
            ("colour = 1", "unknown key 'colour': the keys are library, factory"),
            ("options = 1", "options must be a table"),
            ("priority = 3", "it is configured, but no plugin of that name is installed"),
        ],
    )
    def test_a_wrong_table_hurts_its_plugin_alone(self, text: str, reason: str, config: Path) -> None:
        config.write_text(f"[plugins.abacus]\n{text}\n[plugins.cpu]\noptions.num_devices = 2\n")
        (found,) = [each for each in plugins.declarations() if each.name == "abacus"]
        assert reason in found.problem
        with pjrt.client("cpu") as client:
            assert len(client.devices) == 2

    def test_a_wrong_table_of_a_known_plugin_is_its_problem(self, config: Path) -> None:
        config.write_text("[plugins.reference]\nopions.num_devices = 2\n")
        with pytest.raises(pjrt.FailedPreconditionError, match=r"\[plugins.reference\] in .*: unknown key 'opions'"):
            pjrt.client("reference")
        pjrt.client("cpu").close()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("[plugins", "is not valid TOML"),
            ("plugins = 3", "unknown key 'plugins': expected tables"),
            ("[plugin.cpu]", "unknown key 'plugin': expected tables"),
            ("\ud800", "is not valid TOML"),
            (None, "there is no such file"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_reported_and_hurts_nobody(
        self, text: str | None, reason: str, config: Path
    ) -> None:
        if text is not None:
            config.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.warns(UserWarning, match=reason):
            pjrt.client("reference").close()
        (problem,) = [each for each in plugins.declarations() if each.name == str(config)]
        assert problem.origin == "PJRT_CONFIG"
        assert reason in problem.problem
        pjrt.client("cpu").close()

    def test_what_is_unknown_in_a_file_leaves_its_plugins(self, config: Path) -> None:
        config.write_text("[plugins.cpu.options]\nnum_devices = 3\n[other]\na = 1\n[more]\n")
        with pytest.warns(UserWarning, match="unknown key 'other', 'more': expected tables"):
            assert plugins.declaration("cpu").options == {"num_devices": 3}
        (problem,) = [each for each in plugins.declarations() if each.name == str(config)]
        assert "unknown key 'other', 'more'" in problem.problem

    @pytest.mark.parametrize(
        "wrong", ["library = '/no/such/x.so'", "colour = 1", "options = 1", "factory = 'a:b'\nlibrary = '/x'", ""]
    )
    def test_a_broken_plugin_keeps_what_is_said_of_it(self, wrong: str, config: Path) -> None:
        config.write_text(f"[plugins.nightly]\n{wrong}\npriority = 500\nsharing = 'one-process'\n")
        found = plugins.declaration("nightly")
        assert found.problem
        assert (found.priority, found.sharing.value) == (500, "one-process")
        assert plugins.default() == "cpu"

    def test_without_the_variable_it_is_in_the_user_s_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PJRT_CONFIG")
        monkeypatch.setattr("pjrt.system.config_folder", lambda: tmp_path)
        assert plugins.declaration("cpu").options == {}
        (tmp_path / "plugins.toml").write_text("[plugins.cpu.options]\nnum_devices = 3\n")
        assert plugins.declaration("cpu").options == {"num_devices": 3}
        monkeypatch.setenv("PJRT_CONFIG", os.devnull)
        assert plugins.declaration("cpu").options == {}

    def test_nobody_s_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nowhere() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("PJRT_CONFIG")
        monkeypatch.setattr("pjrt.system.config_folder", nowhere)
        pjrt.client("reference").close()
        assert "cpu" in plugins.names()

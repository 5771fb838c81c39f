"""The plugins behind the names of ``pjrt.client`` and ``pjrt.topology``: register, get, default."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration, env_vars
from pjrt.plugins.discovery import wheels

pytestmark = pytest.mark.usefixtures("nothing_configured")


@pytest.fixture
def registered() -> Iterator[Any]:
    """Registers plugins, and takes that back."""
    names: list[str] = []

    def register(*args: Any, **keywords: Any) -> Declaration:
        made = plugins.register(*args, **keywords)
        names.append(made.name)
        return made

    yield register
    for name in names:
        plugins.unregister(name)


def two_devices(**options: Any) -> pjrt.Client:
    """A client of a device under test."""
    return pjrt.client("reference", **{"num_devices": 2, **options})


def test_the_cpu_device_is_the_default_where_there_is_no_other() -> None:
    assert "cpu" in plugins.names()
    with pjrt.client("cpu") as named, pjrt.client() as unnamed:
        assert named.platform_name == unnamed.platform_name == "cpu"


def test_a_plugin_is_one_object() -> None:
    assert plugins.load_plugin("cpu") is plugins.load_plugin("cpu")


def test_options_reach_the_device() -> None:
    with pjrt.client("cpu", num_devices=3) as client:
        assert len(client.devices) == 3
    with pytest.raises(pjrt.InvalidArgumentError, match=r"no option 'colour'; it has num_devices"):
        pjrt.client("cpu", colour="red")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(pjrt.NotFoundError, match=r"no device called 'abacus': expected one of .*cpu"):
        pjrt.client("abacus")
    with pytest.raises(pjrt.NotFoundError, match=r"no device called 'abacus'"):
        pjrt.topology("abacus", "2x2")


def test_neither_a_name_nor_a_path() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a device's name or a plugin's path, found 3"):
        pjrt.client(3)  # type: ignore[arg-type]


class TestRegister:
    def test_a_factory(self, registered: Any) -> None:
        made = registered(name="abacus", factory=two_devices, options={"num_devices": 3})
        assert plugins.declaration("abacus") is made
        assert "abacus" in plugins.names()
        with pjrt.client("abacus") as client, pjrt.client("abacus", num_devices=1) as other:
            assert (len(client.devices), len(other.devices)) == (3, 1)

    def test_a_place_is_imported_when_it_is_asked_for(
        self, registered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "abacus_of_wood.py").write_text("import pjrt\ndef make():\n    return pjrt.client('reference')\n")
        monkeypatch.syspath_prepend(tmp_path)
        registered(name="wooden-abacus", factory="abacus_of_wood:make")
        assert "abacus_of_wood" not in sys.modules
        assert "wooden-abacus" not in plugins.loaded()
        pjrt.client("wooden-abacus").close()
        assert "abacus_of_wood" in sys.modules
        assert plugins.loaded()["wooden-abacus"] is plugins.load_plugin("wooden-abacus")

    def test_a_library(self, registered: Any, tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tiny_library.parent)
        made = registered(name="tiny", library=tiny_library.name, options={"num_devices": 2})
        assert made.library == tiny_library
        with pjrt.client("tiny") as client:
            assert len(client.devices) == 2

    def test_a_declaration(self, registered: Any) -> None:
        made = Declaration("abacus", "a test", factory=two_devices)
        assert registered(made) is made

    def test_a_registered_one_comes_before_a_device_in_the_box(self, registered: Any) -> None:
        registered(name="cpu", factory=two_devices)
        with pjrt.client("cpu") as client:
            assert client.platform_name == "reference"
        (kept,) = [plugin for plugin in plugins.declarations() if plugin.name == "cpu"]
        assert [hidden.origin for hidden in kept.shadowed] == ["built-in"]

    def test_unregister_gives_the_name_back(self) -> None:
        plugins.register(name="cpu", factory=two_devices)
        plugins.unregister("cpu")
        with pjrt.client("cpu") as client:
            assert client.platform_name == "cpu"
        with pytest.raises(pjrt.NotFoundError, match=r"no plugin called 'cpu' is registered"):
            plugins.unregister("cpu")

    def test_twice(self, registered: Any) -> None:
        registered(name="abacus", factory=two_devices)
        with pytest.raises(pjrt.AlreadyExistsError, match=r"'abacus' is registered already; unregister it first"):
            plugins.register(name="abacus", factory=two_devices)

    @pytest.mark.parametrize("name", ["", "a/b", "x.so"])
    def test_no_name(self, name: str) -> None:
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a name that is no path"):
            plugins.register(name=name, factory=two_devices)

    def test_neither_or_both(self, tiny_library: Path) -> None:
        with pytest.raises(pjrt.InvalidArgumentError, match=r"needs a library or a factory, and not both"):
            plugins.register(name="abacus")
        with pytest.raises(pjrt.InvalidArgumentError, match=r"needs a library or a factory, and not both"):
            plugins.register(name="abacus", factory=two_devices, library=tiny_library)

    def test_no_such_library(self, tmp_path: Path) -> None:
        with pytest.raises(pjrt.NotFoundError, match=r"there is no such file"):
            plugins.register(name="abacus", library=tmp_path / "x.so")

    def test_a_factory_that_cannot_be_imported(self, registered: Any) -> None:
        registered(name="abacus", factory="no_such_module_at_all:make")
        reason = r"'abacus' \(registered\) cannot be loaded: ModuleNotFoundError"
        with pytest.raises(pjrt.FailedPreconditionError, match=reason) as caught:
            pjrt.client("abacus")
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)

    def test_a_factory_that_is_none(self, registered: Any) -> None:
        registered(name="abacus", factory="sys:maxsize")
        with pytest.raises(
            pjrt.FailedPreconditionError, match=r"must be a function that makes clients or a .*, found int"
        ):
            pjrt.client("abacus")


def test_many_threads_load_a_plugin_once(registered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_abacus.py").write_text(
        "import pjrt\n"
        "made = []\n"
        "class Slow(pjrt.Plugin):\n"
        "    name, api_version, attributes = 'slow', (0, 114), {}\n"
        "    def __init__(self):\n"
        "        made.append(self)\n"
        "    def client(self, /, **options):\n"
        "        return pjrt.client('reference')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registered(name="abacus", factory="slow_abacus:Slow")
    start, found = threading.Barrier(8), []

    def ask() -> None:
        start.wait(timeout=120)
        found.append(plugins.load_plugin("abacus"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert len(sys.modules["slow_abacus"].made) == 1


class TestDefaultOptions:
    def test_the_environment_comes_before_the_plugin_and_after_the_caller(
        self, registered: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[dict[str, Any]] = []

        def make(**options: Any) -> pjrt.Client:
            seen.append(options)
            return pjrt.client("reference")

        registered(name="my-abacus", factory=make, options={"beads": 10, "rows": 5, "wood": "oak"})
        monkeypatch.setenv("PJRT_OPTIONS_MY_ABACUS", "rows = 6; wood=ash;shape=1,2;fast=true;weight=1.5")
        pjrt.client("my-abacus", wood="elm").close()
        assert seen == [{"beads": 10, "rows": 6, "wood": "elm", "shape": (1, 2), "fast": True, "weight": 1.5}]

    def test_of_a_device_in_the_box(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_OPTIONS_CPU", "num_devices=3")
        with pjrt.client("cpu") as client, pjrt.client("cpu", num_devices=1) as other:
            assert (len(client.devices), len(other.devices)) == (3, 1)

    @pytest.mark.parametrize("written", ["num_devices", "=3", "num_devices:3"])
    def test_written_wrongly(self, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_OPTIONS_CPU", written)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"PJRT_OPTIONS_CPU: expected key=value;key=value, found"):
            pjrt.client("cpu")


class TestDefault:
    @pytest.mark.parametrize("asked", ["reference", "REFERENCE", "PJRT_REFERENCE", " Reference "])
    def test_the_environment_says_which(self, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_DEVICE", asked)
        with pjrt.client() as client:
            assert client.platform_name == "reference"

    def test_the_name_that_a_plugin_declares_for_pytorch_xla(
        self, registered: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registered(name="abacus", factory=two_devices, frameworks={"torch_xla": {"name": "ABAX"}})
        monkeypatch.setenv("PJRT_DEVICE", "ABAX")
        assert plugins.default() == "abacus"

    @pytest.mark.parametrize(("said", "name"), [(None, "reference"), ("cpu", "cpu")])
    def test_the_device_that_this_package_shows_to_pytorch_xla(
        self, said: str | None, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "PJRT")
        if said:
            monkeypatch.setenv("PJRT_TORCH_XLA_DEVICE", said)
        assert plugins.default() == name

    def test_what_it_does_not_know_is_named_with_its_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "PJRT")
        monkeypatch.setenv("PJRT_TORCH_XLA_DEVICE", "sand")
        reason = r"PJRT_TORCH_XLA_DEVICE=sand: there is no device called 'sand': expected one of .*cpu"
        with pytest.raises(pjrt.NotFoundError, match=reason):
            pjrt.client()

    @pytest.mark.parametrize(
        ("path", "error", "reason"),
        [
            (None, pjrt.InvalidArgumentError, "PJRT_LIBRARY_PATH, which is not set: expected the library's absolute"),
            (" ", pjrt.InvalidArgumentError, "PJRT_LIBRARY_PATH, which is not set: expected the library's absolute"),
            ("plugin.so", pjrt.InvalidArgumentError, "PJRT_LIBRARY_PATH=plugin.so: 'plugin.so' is a relative path"),
            ("/no/plugin.so", pjrt.NotFoundError, "PJRT_LIBRARY_PATH=/no/plugin.so: "),
        ],
    )
    def test_the_path_of_a_library_that_is_none(
        self, path: str | None, error: type[pjrt.PjrtError], reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "LIBRARY")
        if path is not None:
            monkeypatch.setenv("PJRT_LIBRARY_PATH", path)
        with pytest.raises(error, match=reason):
            pjrt.client()

    def test_an_unknown_one_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "ABACUS")
        with pytest.raises(pjrt.NotFoundError, match=r"PJRT_DEVICE=ABACUS: there is no device called 'ABACUS'"):
            pjrt.client()

    def test_the_highest_priority_of_those_that_are_here(self, registered: Any, tmp_path: Path) -> None:
        (tmp_path / "abacus0").touch()
        registered(name="a", factory=two_devices, priority=7, hardware=(str(tmp_path / "abacus[0-9]"),))
        registered(name="b", factory=two_devices, priority=9, hardware=(str(tmp_path / "sand[0-9]"),))
        registered(name="c", factory=two_devices, priority=0)
        assert plugins.default() == "a"
        assert plugins.available()[:2] == ("a", "cpu")
        assert "b" not in plugins.available()
        assert "b" in plugins.names()

    def test_a_plugin_without_priority_does_not_take_the_place_of_cpu(self, registered: Any) -> None:
        registered(name="abacus", factory=two_devices)
        assert plugins.default() == "cpu"


def test_the_names_of_vendors_that_are_not_installed_say_what_to_install() -> None:
    for name, vendor in wheels.vendors().items():
        if name not in plugins.names():
            with pytest.raises(pjrt.NotFoundError, match=rf"'{name}'.*pip install {vendor.wheels[0].distribution}"):
                pjrt.client(name)


def test_an_unknown_device_is_told_each_name_once(registered: Any) -> None:
    registered(name="xpu", factory=two_devices)
    with pytest.raises(pjrt.NotFoundError, match=r"'pjrt plugins' for details") as caught:
        pjrt.client("sand")
    assert re.findall(r"\w+", caught.value.message).count("xpu") == 1


def test_an_empty_variable_is_one_that_is_not_set(
    tiny_library: Path, tmp_path: Path, registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = dict.fromkeys(["ABACUS_FLAGS", "ABACUS_PLACE"], "default")
    monkeypatch.setenv("ABACUS_FLAGS", "")
    monkeypatch.setenv("ABACUS_PLACE", "3")
    (tmp_path / "libabacus.so").write_bytes(tiny_library.read_bytes())
    registered(name="abacus", library=tmp_path / "libabacus.so", environment=said)
    plugins.load_plugin("abacus")
    assert {name: os.environ[name] for name in said} == {"ABACUS_FLAGS": "default", "ABACUS_PLACE": "3"}


def test_many_threads_initialize_a_library_once(tiny_library: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.so").write_bytes(tiny_library.read_bytes())
    code = f"""
import ctypes, threading, pjrt
path = {str(tmp_path / "copy.so")!r}
tiny = ctypes.CDLL(path)
tiny.tiny_plugin_count_calls(True)
tiny.tiny_plugin_calls.restype = ctypes.c_int64
pjrt.plugins.register(name="a", library=path)
pjrt.plugins.register(name="b", library=path)
assert tiny.tiny_plugin_calls(b"PJRT_Plugin_Initialize") == 0
start, found = threading.Barrier(12), []
def ask(name):
    start.wait()
    found.append(pjrt.plugins.load_plugin(name))
threads = [threading.Thread(target=ask, args=(name,)) for name in ["a", "b", path] * 4]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), len(set(map(id, found))), tiny.tiny_plugin_calls(b"PJRT_Plugin_Initialize"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["12", "1", "1"], done.stderr


def test_nothing_is_searched_for_a_device_in_the_box() -> None:
    code = (
        "import sys, pjrt; pjrt.client('reference').close(); "
        "print([m for m in ('importlib.metadata', 'tomllib', 'pjrt.plugins.discovery.packages') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


class TestTopologiesByName:
    """A number of devices, of the devices that are written in Python; no client of theirs is left open."""

    PROGRAM = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"

    def test_a_device_in_the_box(self) -> None:
        topology = pjrt.topology("reference", "2")
        assert len(topology.device_descriptions) == 2
        assert len(pjrt.topology("reference", num_devices=3).device_descriptions) == 3
        compiled = topology.compile(self.PROGRAM)
        with pjrt.client("reference") as client:
            (result,) = client.load(compiled)(np.array([1, 2], np.float32))
            assert np.asarray(result).tolist() == [1, 2]
        again = plugins.load_plugin("reference").deserialize_topology(topology.serialize())
        assert again.fingerprint() == topology.fingerprint()

    def test_one_that_makes_clients(self, registered: Any) -> None:
        made: list[pjrt.Client] = []

        def make(num_devices: int = 1) -> pjrt.Client:
            made.append(pjrt.client("reference", num_devices=num_devices))
            return made[-1]

        registered(name="abacus", factory=make)
        topology = pjrt.topology("abacus", "3")
        assert len(topology.device_descriptions) == 3
        assert topology.compile(self.PROGRAM).name == "main"
        assert len(pjrt.topology("abacus").device_descriptions) == 1
        assert all(client.is_closed for client in made)

    @pytest.mark.parametrize("name", ["2x2", "-1", "9" * 5000])
    def test_a_name_that_is_no_number(self, name: str, registered: Any) -> None:
        registered(name="abacus", factory=two_devices)
        for device in ("reference", "abacus"):
            with pytest.raises(pjrt.InvalidArgumentError, match="named by the number of its devices, such as '8'"):
                pjrt.topology(device, name)

    def test_devices_that_are_not_so_many(self, registered: Any) -> None:
        registered(name="abacus", factory=lambda **options: pjrt.client("reference", num_devices=2))
        with pytest.raises(pjrt.UnimplementedError, match="the topology '3'; it always has 2 devices"):
            pjrt.topology("abacus", "3")
        registered(name="sliderule", factory=lambda: pjrt.client("reference"))
        with pytest.raises(pjrt.UnimplementedError, match="takes no num_devices"):
            pjrt.topology("sliderule", "3")

    def test_clients_of_another_kind(self, registered: Any) -> None:
        registered(name="abacus", factory=lambda **options: pjrt.client("cpu", **options))
        with pytest.raises(pjrt.UnimplementedError, match=r"Plugin\.topology"):
            pjrt.topology("abacus", "2")


class TestOptionsBehindTheName:
    def test_they_reach_this_device_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_OPTIONS_REFERENCE", "num_devices=3;debug_nans=true")
        with pjrt.client("reference:num_devices=2") as two, pjrt.client("reference") as three:
            assert (len(two.devices), len(three.devices)) == (2, 3)
        with pjrt.client("reference:num_devices=2,debug_nans=false", num_devices=4) as four:
            assert len(four.devices) == 4

    def test_they_are_those_of_the_default_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "reference:num_devices=2")
        with pjrt.client() as two:
            assert (two.platform_name, len(two.devices)) == ("reference", 2)

    def test_a_number_of_devices_is_followed(self) -> None:
        with plugins.registry.client_with_devices("cpu:num_devices=1", 4) as one:
            assert len(one.devices) == 1
        with plugins.registry.client_with_devices("cpu:asynchronous=false", 4) as four:
            assert len(four.devices) == 4

    @pytest.mark.parametrize(
        ("name", "base", "options"),
        [
            ("remote:address=grpc://[::1]:80", "remote", {"address": "grpc://[::1]:80"}),
            (
                "cuda:visible_devices=0,1,memory_fraction=0.5",
                "cuda",
                {"visible_devices": (0, 1), "memory_fraction": 0.5},
            ),
            ("./mine.py:make", "./mine.py:make", {}),
            ("./mine.py:make:beads=2", "./mine.py:make", {"beads": 2}),
            ("worker:reference:num_devices=2", "worker:reference", {"num_devices": 2}),
        ],
    )
    def test_spellings(self, name: str, base: str, options: dict[str, Any]) -> None:
        assert env_vars.split_options(name) == (base, options)

    def test_a_file_of_such_a_name_is_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lib:a=b.so").write_bytes(b"")
        monkeypatch.chdir(tmp_path)
        assert env_vars.split_options("lib:a=b.so") == ("lib:a=b.so", {})

    def test_what_another_process_imports_has_none(self) -> None:
        with pytest.raises(pjrt.InvalidArgumentError, match=r"a device without options, found 'cpu:num_devices=2'"):
            plugins.registry.factory_place("cpu:num_devices=2")

    def test_a_wrong_one_names_the_nearest(self) -> None:
        message = "no option 'num_device'; perhaps 'num_devices' is meant; it has num_devices, "
        with pytest.raises(pjrt.InvalidArgumentError, match=message):
            pjrt.client("cpu:num_device=2")
        with pytest.raises(
            pjrt.NotFoundError, match="no device called 'cpuu'; perhaps 'cpu' is meant: expected one of"
        ):
            pjrt.client("cpuu:num_devices=2")

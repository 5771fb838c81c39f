"""``pjrt plugins``, ``pjrt devices`` and ``pjrt info`` as a user calls them, with good and bad plugins side by side."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packages import install

from pjrt.api.errors import UnimplementedError
from pjrt.cli import doctor

GOOD = """
import pjrt

class Abacus(pjrt.Plugin):
    name, api_version, extensions = "abacus", (0, 99), {"Beads": "round", "Wires": "long"}
    attributes = {"stablehlo_current_version": (1, 2, 3), "stablehlo_minimum_version": (0, 9, 0), "wood": "oak"}

    def client(self, /, **options):
        return pjrt.client("reference", **options)
"""


def pjrt(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, where packages are in a folder and nothing else is configured."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("PJRT_")}
    said = {"PYTHONPATH": str(folder), "PJRT_CONFIG": os.devnull, "COLUMNS": "200", **environment}
    return subprocess.run(
        [sys.executable, "-m", "pjrt", *arguments],
        env={**cleared, **said},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Installed packages: one that is good, one that ends its process, one that names nothing."""
    manifest = json.dumps({"options": {"num_devices": 2}, "frameworks": {"jax": {"priority": 7}}})
    files = {"abacus_y/__init__.py": GOOD, "abacus_y/pjrt-plugin-abacus.json": manifest}
    install(tmp_path, "py-abacus", {"pjrt.plugins": {"abacus": "abacus_y:Abacus"}}, files, version="3.2")
    crash = "import os\nprint('falling', flush=True)\nos.abort()\n"
    install(tmp_path, "crash", {"pjrt.plugins": {"crash": "crash_y:make"}}, {"crash_y.py": crash})
    install(tmp_path, "nothing", {"pjrt.plugins": {"nothing": "nothing_y:make"}})
    return tmp_path


def by_name(listed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in listed}


class TestList:
    @pytest.mark.full
    def test_each_with_its_state_and_what_it_says(self, site: Path) -> None:
        done = pjrt("plugins", folder=site)
        assert (done.returncode, done.stderr) == (0, "")
        lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
        for word in ("entry point pjrt.plugins of py-abacus 3.2", "0.99", "0.9.0 to 1.2.3", " 2 ", "ready"):
            assert word in lines["abacus"]
        assert "ready" in lines["cpu"]
        assert "built-in" in lines["reference"]
        assert lines["crash:"].endswith("ended without an answer: SIGABRT; it printed 'falling'")
        assert "names the module 'nothing_y', which is not there" in lines["nothing:"]

    @pytest.mark.full
    def test_as_json(self, site: Path) -> None:
        done = pjrt("plugins", "--json", folder=site)
        assert (done.returncode, done.stderr) == (0, "")
        report = json.loads(done.stdout)
        listed = by_name(report["plugins"])
        assert report["default"] in listed
        states = {name: each["state"] for name, each in listed.items()}
        assert (
            states
            | {
                "abacus": "ready",
                "cpu": "ready",
                "crash": "broken",
                "nothing": "broken",
                "reference": "ready",
            }
            == states
        )
        abacus = listed["abacus"]
        assert (abacus["api_version"], abacus["stablehlo_version"]) == ("0.99", "1.2.3")
        assert (abacus["version"], abacus["factory"]) == ("3.2", "abacus_y:Abacus")
        assert (abacus["options"], abacus["frameworks"]) == ({"num_devices": 2}, {"jax": {"priority": 7}})
        assert abacus["extensions"] == {"Beads": "round", "Wires": "long"}

    def test_without_loading(self, site: Path) -> None:
        report = json.loads(pjrt("plugins", "--no-load", "--json", folder=site).stdout)
        listed = by_name(report["plugins"])
        assert (listed["nothing"]["state"], listed["crash"]["state"]) == ("broken", "ready")
        assert {each["api_version"] for each in listed.values()} == {None}

    @pytest.mark.full
    def test_one_that_hangs(self, site: Path) -> None:
        hang = "import threading\nthreading.Event().wait()\n"
        install(site, "hang", {"pjrt.plugins": {"hang": "hang_y:make"}}, {"hang_y.py": hang})
        done = pjrt("plugins", "--time-limit", "5", folder=site)
        assert done.returncode == 0
        assert "hang: it did not answer within 5 seconds" in done.stdout
        assert "0.99" in done.stdout

    @pytest.mark.full
    def test_what_is_hidden_is_listed(self, site: Path, tiny_library: Path) -> None:
        paths = f"abacus{os.pathsep}{tiny_library}"
        done = pjrt("plugins", "--no-load", folder=site, PJRT_NAMES_AND_LIBRARY_PATHS=paths)
        assert "abacus: that of entry point pjrt.plugins of py-abacus is hidden by that of PJRT_NAMES" in done.stdout
        report = json.loads(
            pjrt("plugins", "--no-load", "--json", folder=site, PJRT_NAMES_AND_LIBRARY_PATHS=paths).stdout
        )
        assert [each["factory"] for each in by_name(report["plugins"])["abacus"]["shadowed"]] == ["abacus_y:Abacus"]

    def test_a_configuration_file_that_cannot_be_read(self, site: Path) -> None:
        (site / "bad.toml").write_text("[plugins")
        done = pjrt("plugins", "--no-load", folder=site, PJRT_CONFIG=str(site / "bad.toml"))
        assert done.returncode == 0
        assert f"{site / 'bad.toml'}: " in done.stdout
        assert "is not valid TOML" in done.stdout


class TestBusy:
    @pytest.fixture
    def busy(self, site: Path) -> Iterator[dict[str, str]]:
        """The environment of a device with a client in another process."""
        manifest = json.dumps({"factory": "busy_y:make", "sharing": "one-client"})
        (site / "busy_y.py").write_text("import pjrt\n\ndef make(**options):\n    return pjrt.client('reference')\n")
        (site / "pjrt-plugin-sandglass.json").write_text(manifest)
        (site / "locks").mkdir()
        said = {"PJRT_PLUGIN_LIBRARY_PATH": str(site), "PJRT_LOCK_FOLDER": str(site / "locks")}
        code = "import pjrt; client = pjrt.client('sandglass'); print('ready', flush=True); input()"
        holder = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **said, "PYTHONPATH": str(site)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            assert holder.stdout
            assert holder.stdout.readline() == "ready\n"
            yield {**said, "HOLDER": str(holder.pid)}
            holder.communicate("\n", timeout=120)

    @pytest.mark.full
    def test_who_has_it_is_said(self, site: Path, busy: dict[str, str]) -> None:
        reason = f"'sandglass' allows one client at a time, and process {busy['HOLDER']} ("
        done = pjrt("plugins", folder=site, **busy)
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line for line in done.stdout.splitlines() if "sandglass" in line]
        assert lines[0].split()[-1] == "busy"
        assert any(line.startswith(f"sandglass: {reason}") for line in lines[1:])
        listed = by_name(json.loads(pjrt("plugins", "--no-load", "--json", folder=site, **busy).stdout)["plugins"])
        assert (listed["sandglass"]["state"], listed["sandglass"]["problem"]) == ("busy", "")
        assert listed["sandglass"]["busy"].startswith(reason)
        assert (listed["cpu"]["state"], listed["cpu"]["busy"]) == ("ready", "")
        one = pjrt("plugins", "sandglass", folder=site, **busy)
        assert (one.returncode, one.stderr) == (0, "")
        facts = dict(line.split("  ", 1) for line in one.stdout.splitlines())
        assert facts["state"].strip() == "busy"
        assert facts["held by"].strip().startswith(reason)


class TestOne:
    def test_everything_about_it(self, site: Path) -> None:
        done = pjrt("plugins", "abacus", folder=site)
        assert (done.returncode, done.stderr) == (0, "")
        facts = dict(line.split("  ", 1) for line in done.stdout.splitlines())
        facts = {name: value.strip() for name, value in facts.items()}
        assert facts["state"] == "ready"
        assert facts["package"] == "py-abacus 3.2"
        assert facts["option num_devices"] == "2"
        assert facts["more options"] == "PJRT_OPTIONS_ABACUS"
        assert facts["for jax"] == "priority=7"
        assert facts["PJRT C API"] == "0.99"
        assert facts["StableHLO"] == "0.9.0 to 1.2.3"
        assert facts["attribute wood"] == "oak"
        assert (facts["extension Beads"], facts["extension Wires"]) == ("round", "long")

    def test_lists_are_written_alike_for_all(self, site: Path) -> None:
        for name, version in (("cpu", r"\[\d+, \d+, \d+\]"), ("abacus", r"\[1, 2, 3\]")):
            done = pjrt("plugins", name, folder=site)
            assert re.search(rf"^attribute stablehlo_current_version +{version}$", done.stdout, re.MULTILINE)

    def test_a_library_by_its_path(self, site: Path, tiny_library: Path) -> None:
        report = json.loads(pjrt("plugins", str(tiny_library), "--json", folder=site).stdout)
        assert (report["state"], report["library"]) == ("ready", str(tiny_library))
        assert report["api_version"]

    def test_info_has_its_devices_and_what_it_lacks(self, site: Path, tiny_library: Path) -> None:
        done = pjrt("info", str(tiny_library), folder=site)
        assert (done.returncode, done.stderr) == (0, "")
        facts = dict(line.split("  ", 1) for line in done.stdout.splitlines())
        facts = {name: value.strip() for name, value in facts.items()}
        assert facts["devices"] == "1 × Tiny host device"
        assert facts["memories"].split(", ")[0] == "device"
        assert "HostAllocator" in facts["lacks extensions"].split(", ")
        assert len(done.stdout.splitlines()) < 50, "a screen"
        report = json.loads(pjrt("info", str(tiny_library), "--json", folder=site).stdout)
        assert report["lacks"]["functions"] == []
        assert [each["kind"] for each in report["devices"]] == ["Tiny host device"]

    def test_info_of_a_plugin_that_makes_no_client(self, tiny_library: Path, site: Path) -> None:
        name = f"PJRT_OPTIONS_{re.sub('[^A-Z0-9]', '_', str(tiny_library).upper())}"
        done = pjrt("info", str(tiny_library), folder=site, **{name: "fail_code=5"})
        assert done.returncode == 0
        assert re.search("^devices +none: ", done.stdout, re.MULTILINE)
        assert re.search("^state +ready$", done.stdout, re.MULTILINE)

    @pytest.mark.parametrize(
        ("name", "reason"), [("crash", "ended without an answer: SIGABRT"), ("nothing", "which is not there")]
    )
    def test_a_broken_one_is_an_error(self, name: str, reason: str, site: Path) -> None:
        done = pjrt("plugins", name, folder=site)
        assert done.returncode == 2
        assert "state" in done.stdout
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith(f"pjrt: error: FAILED_PRECONDITION: {name} cannot be used: ")
        assert reason in line

    def test_one_that_is_turned_off(self, site: Path) -> None:
        (site / "config.toml").write_text("[plugins.abacus]\ndisabled = true\n")
        done = pjrt("plugins", "abacus", folder=site, PJRT_CONFIG=str(site / "config.toml"))
        assert done.returncode == 2
        assert "disabled" in done.stdout
        assert f"disabled in {site / 'config.toml'}" in done.stderr

    @pytest.mark.parametrize("limit", ["nan", "inf", "0"])
    def test_a_time_limit_that_is_none(self, limit: str, site: Path) -> None:
        done = pjrt("plugins", "cpu", "--time-limit", limit, folder=site)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is not in the range 0<x<=1000000" in done.stderr

    def test_an_unknown_one(self, site: Path) -> None:
        done = pjrt("plugins", "sand", folder=site)
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no device called 'sand': expected one of abacus, cluster, cpu, crash, " in done.stderr


class TestDevicesAndInfo:
    @pytest.mark.full
    def test_devices_of_all_that_can_be_used(self, site: Path) -> None:
        done = pjrt("devices", "--json", folder=site)
        assert (done.returncode, done.stderr) == (0, "")
        report = json.loads(done.stdout)
        assert [device["name"] for device in report["devices"]].count("abacus") == 2
        assert {device["name"] for device in report["devices"]} >= {"abacus", "cpu", "reference"}
        reasons = {each["name"]: each["reason"] for each in report["unavailable"]}
        assert "which is not there" in reasons["nothing"]
        assert "SIGABRT" in reasons["crash"]

    def test_devices_that_are_named(self, site: Path) -> None:
        done = pjrt("devices", "abacus", "-O", "num_devices=3", "--json", folder=site)
        assert [device["name"] for device in json.loads(done.stdout)["devices"]] == ["abacus"] * 3
        assert pjrt("devices", "nothing", folder=site).returncode == 2

    @pytest.mark.full
    def test_info_has_them_all(self, site: Path) -> None:
        done = pjrt("info", "--json", folder=site)
        assert done.returncode == 0
        report = json.loads(done.stdout)
        assert report["device abacus"].startswith("2 × reference")
        assert "SIGABRT" in report["device crash"]
        assert "which is not there" in report["device nothing"]


def test_the_environment_says_what_runs_without_a_name(site: Path) -> None:
    code = "import pjrt; print(len(pjrt.client().devices))"
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "PJRT_DEVICE": "ABACUS",
        "PJRT_OPTIONS_ABACUS": "num_devices=4",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "4", done.stderr


def test_a_plugin_lists_its_topologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[plugins.abacus]\nfactory = "pjrt.devices.reference.plugin:ReferencePlugin"\n'
        'topologies = { wood = "2, 4", oak = "2, 4", bone = "1" }\n'
    )
    monkeypatch.setenv("PJRT_CONFIG", str(config))
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", "plugins", "abacus", "--no-load"], capture_output=True, text=True, timeout=120
    )
    lines = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("topologies ")]
    assert lines == ["wood, oak: 2, 4", "bone: 1"]


class TestDoctor:
    @pytest.mark.full
    def test_a_crashing_plugin_is_a_line_and_not_an_end(self, site: Path) -> None:
        done = pjrt("doctor", "--json", folder=site)
        assert (done.returncode, done.stderr) == (1, "")  # what is installed is broken
        report = json.loads(done.stdout)
        assert report["ok"] is False
        devices = report["devices"]
        states = {name: devices[name]["state"] for name in ("cpu", "reference", "abacus", "crash", "nothing", "remote")}
        assert states == {
            "cpu": "ok",
            "reference": "ok",
            "abacus": "ok",
            "crash": "broken",
            "nothing": "broken",
            "remote": "not used",
        }
        assert devices["crash"]["found"] == "the process ended: SIGABRT; it printed 'falling'"
        assert devices["cpu"]["found"].startswith("1 × cpu, XLA of jaxlib ")
        assert {name: devices[name]["runs"]["jax"]["state"] for name in ("cpu", "abacus")} == dict.fromkeys(
            ("cpu", "abacus"), "ok"
        )
        assert "crash" not in [name for name, each in devices.items() if each["runs"]]
        assert {"python", "memory", "ports", "compiler", "clients of pjrt serve"} <= report["machine"].keys()
        assert report["packages"]["xla"]["found"].startswith("jaxlib ")

    @pytest.mark.full
    def test_on_one_screen(self, tmp_path: Path) -> None:
        done = pjrt("doctor", folder=tmp_path, COLUMNS="100")
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert len(lines) < 40
        assert max(map(len, lines)) <= 100
        assert re.search(r"^ cpu +ok +([\d.]+ m?s +)+1 × cpu, XLA of jaxlib", done.stdout, re.MULTILINE)

    def test_a_device_that_hangs_is_ended(self) -> None:
        assert doctor._asked(("pjrt", "cpu"), 0.01) == {"state": "broken", "found": "no answer within 0.01 seconds"}

    def test_what_is_missing_has_the_command_that_installs_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "_version", lambda name: None if name == "iree-base-compiler" else "1.0")
        packages = {extra: doctor._package_state(names) for extra, names in doctor._extras().items()}
        assert {name for name, each in packages.items() if each["state"] == "missing"} == {"iree"}
        assert list(filter(None, doctor._advice({}, packages, {}))) == ["for iree: pip install 'pjrt[iree]'"]

    @pytest.mark.parametrize(
        ("error", "state"),
        [
            (ModuleNotFoundError("no", name="no_such_package.part"), "missing"),
            (ModuleNotFoundError("no", name="pjrt.no_such_part"), "broken"),
            (UnimplementedError("no"), "not used"),
            (ValueError("no"), "broken"),
        ],
    )
    def test_what_is_missing_is_not_broken(self, error: Exception, state: str) -> None:
        wrapped = RuntimeError("it failed")
        wrapped.__cause__ = error
        assert doctor._state_of(wrapped) == state

    def test_a_machine_without_a_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        assert doctor._compiler()["state"] == "missing"
        broken = tmp_path / "cc"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        assert doctor._compiler()["state"] == "broken"

"""`pjrt capabilities`: devices side by side."""

from __future__ import annotations

import json
import subprocess

import pytest
from in_process import pjrt as command

import pjrt


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command("capabilities", *arguments)


def rows(output: str) -> dict[str, tuple[str, list[str]]]:
    """The mark and the cells of each row, by its title."""
    found = {}
    for line in output.splitlines():
        marked = line.startswith(" *")
        cells = [cell for cell in line.replace(" * ", "  ", 1).strip().split("  ") if cell.strip()]
        if cells:
            found[cells[0].strip()] = ("*" if marked else "", [cell.strip() for cell in cells[1:]])
    return found


@pytest.mark.full
def test_what_differs_is_marked() -> None:
    done = run("cpu", "reference")
    assert (done.returncode, done.stderr) == (0, "")
    found = rows(done.stdout)
    assert found["send recv"] == ("*", ["no", "yes"])
    assert found["collectives"] == ("", ["yes", "yes"])
    assert found["f32"] == ("", ["yes", "yes"])
    assert found["si1"] == ("*", ["no", "yes"])
    assert found["memory"] == ("", ["device, pinned_host, unpinned_host"] * 2)
    assert found["operations"][1][0] == "?"


@pytest.mark.full
def test_only_the_differences() -> None:
    found = rows(run("cpu", "reference", "--differences").stdout)
    assert "send recv" in found
    assert "collectives" not in found
    assert {mark for title, (mark, _) in found.items() if title not in ("cpu",) and "─" not in title} == {"*"}


@pytest.mark.full
def test_topologies_and_options() -> None:
    found = json.loads(run("cpu", "-t", "cpu:3", "--json").stdout)
    assert (found["cpu"]["num_devices"], found["cpu:3"]["num_devices"]) == (1, 3)
    assert json.loads(run("cpu", "-O", "num_devices=2", "--json").stdout)["cpu"]["num_devices"] == 2


def test_json_is_what_the_client_says() -> None:
    found = json.loads(run("reference", "--json").stdout)
    with pjrt.client("reference") as client:
        assert pjrt.Capabilities.from_dict(found["reference"]) == client.capabilities
    names = {name for _, listed in found["reference"]["operations"] for name in listed}
    assert "stablehlo.add" in names


@pytest.mark.full
def test_without_names_the_devices_that_are_here() -> None:
    assert set(json.loads(run("--json").stdout)) >= {"cpu", "reference"}


@pytest.mark.parametrize("name", ["nonesuch", "/no/such/library.so"])
def test_an_unknown_device_is_one_line_and_exit_code_2(name: str) -> None:
    done = run(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert name in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

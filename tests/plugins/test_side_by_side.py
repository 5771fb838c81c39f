"""Three packages from ``pjrt new-plugin``, side by side: found, used by this package and by JAX, swapped, and judged.

``tests/vendor/test_side_by_side.py`` has vendors' wheels beside them.
"""

from __future__ import annotations

from pathlib import Path

import new_packages
import pytest

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_packages.make(tmp_path_factory.mktemp("three"), new_packages.lay_out)


@pytest.mark.full
def test_all_are_found_and_ready(site: Path) -> None:
    listed = new_packages.ask(site, "plugins")
    states = {plugin["name"]: plugin["state"] for plugin in listed["plugins"]}
    assert {name: states[name] for name in new_packages.NAMES} == dict.fromkeys(new_packages.NAMES, "ready")


@pytest.mark.full
def test_programs_are_judged_for_each(site: Path, tmp_path: Path) -> None:
    programs = new_packages.write_programs(tmp_path)
    devices = ("abacus", "sliderule", "comptometer")
    for name, program in programs.items():
        options = [part for device in devices for part in ("--device", device)]
        said = new_packages.ask(site, "check", str(program), *options, codes=(0, 1))
        verdicts = {one["device"]: one["verdict"] for one in said["devices"]}
        assert verdicts == {device: new_packages.VERDICTS[device][name] for device in devices}, name


@pytest.mark.full
def test_both_use_all_and_one_is_swapped(tmp_path: Path) -> None:
    new_packages.use_and_swap(new_packages.make(tmp_path, new_packages.lay_out))

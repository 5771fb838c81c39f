"""Clients with as many devices as a program needs."""

from __future__ import annotations

from pathlib import Path

import pytest

import pjrt
from pjrt.plugins.registry import client_with_devices

DEVICE = """
import pjrt

def make_client({parameters}):
    return pjrt.client("reference"{options})

def broken(num_devices=1):
    if num_devices > 1:
        raise pjrt.UnavailableError("no more devices today")
    return pjrt.client("reference")
"""


@pytest.mark.parametrize(("count", "options", "made"), [(1, {}, 1), (3, {}, 3), (3, {"num_devices": 2}, 2)])
def test_devices_of_the_built_in_device(count: int, options: dict[str, int], made: int) -> None:
    with client_with_devices("reference", count, options) as client:
        assert len(client.devices) == made


def test_a_client_that_has_more_is_kept() -> None:
    with client_with_devices("reference", 2, {"num_devices": 4}) as client:
        assert len(client.devices) == 4


@pytest.mark.parametrize(
    ("parameters", "options", "made"),
    [("num_devices=1", ", num_devices=num_devices", 3), ("", "", 1), ("other=0", "", 1)],
)
def test_devices_of_a_function(tmp_path: Path, parameters: str, options: str, made: int) -> None:
    (tmp_path / "device.py").write_text(DEVICE.format(parameters=parameters, options=options))
    with client_with_devices(f"{tmp_path}/device.py:make_client", 3) as client:
        assert len(client.devices) == made


def test_other_errors_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "device.py").write_text(DEVICE.format(parameters="", options=""))
    with pytest.raises(pjrt.UnavailableError, match="no more devices today"):
        client_with_devices(f"{tmp_path}/device.py:broken", 3)

"""Programs in files: a path is compiled as the program in the file is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError, NotFoundError

ARRAY = np.array([1, 2], np.float32)


def test_a_path_is_compiled(backend: Backend, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(backend.programs.identity((2,)).code)
    if "func.func" not in path.read_text():
        pytest.skip("the device has a format of its own")
    assert client.compile(path)(ARRAY)[0].tolist() == [1, 2]
    assert client.supports(path).verdict == client.supports(backend.programs.identity((2,))).verdict
    assert client.topology.compile(path).name == client.compile(path).name


def test_a_path_without_a_program_is_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file at .*missing"):
        client.compile(tmp_path / "missing")
    with pytest.raises(InvalidArgumentError, match="expected a path"):
        client.compile(Path("a\0b"))

"""Written libraries: a plugin with layers before it, for whoever loads a plugin by its path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import build
from tiny.control import Control

import pjrt
from pjrt import capi, layers

SEARCHES = Path(__file__).parent / "loading" / "searches.c"


def layer(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pjrt", "layer", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_library_behind_which_is_a_plugin(tiny_copy: Callable[..., Control], tmp_path: Path) -> None:
    copy = tiny_copy()
    library = tmp_path / "liblayered.so"
    code, output = layer("-l", "pass,pass", str(copy.path), "-o", str(library))
    assert (code, output) == (0, f"written  {library}\nplugin   {copy.path}\nlayers   pass, pass\n")
    with capi.load_plugin(library).client(num_devices=1) as client:
        assert copy.live("client") == 1
        assert client.buffer_from_host([1.0]).tolist() == [1.0]


def test_it_needs_no_python(tiny_cache: Path, tiny_copy: Callable[..., Control], tmp_path: Path) -> None:
    program = build.build([SEARCHES], tiny_cache, "searches", ["-fPIE", "-pie", "-ldl"])
    library = layers.write_library(tmp_path / "liblayered.so", tiny_copy().path, ["pass"]).path
    done = subprocess.run([program, library], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("table yes\nagain same\n")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "libpython" not in needed


def test_a_device_in_python_is_exported_beside_it(tmp_path: Path) -> None:
    library = tmp_path / "liblayered.so"
    assert layer("-l", "pass", "reference", "-o", str(library))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["liblayered-reference.so", "liblayered.so"]
    code = f"import pjrt; c = pjrt.client({str(library)!r}, num_devices=2); print(c.platform_name, len(c.devices))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "reference 2\n"


def test_options_are_written_into_it(tiny_copy: Callable[..., Control], tmp_path: Path) -> None:
    trace = tmp_path / "calls, all.trace"
    library = layers.write_library(
        tmp_path / "liblayered.so", tiny_copy().path, ["pass", "trace"], {"trace": {"file": trace}, "pass": "a=b"}
    )
    code = f"import pjrt; pjrt.client({str(library.path)!r}).close()"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)
    assert trace.exists()


def test_a_plugin_that_is_gone(tiny_copy: Callable[..., Control], tmp_path: Path) -> None:
    plugin = Path(tiny_copy().path)
    library = layers.write_library(tmp_path / "liblayered.so", plugin, ["pass"]).path
    plugin.unlink()
    code = f"import pjrt; pjrt.client({str(library)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert f"the plugin {plugin} gets no layers, and so no table: its library cannot be loaded" in done.stderr
    assert "FailedPreconditionError" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-l", "trac", "reference"], "there is no layer 'trac'; the layers are: pass"),
        (["-l", ",", "reference"], "expected at least one layer, found none"),
        (["-l", "pass", "nothing"], "nothing"),
        (["-l", "pass", "/no/such.so"], "/no/such.so"),
        (["-l", "pass", __file__], "it is no shared library"),
        (["-l", "pass", "--set", "trace=file=a", "reference"], "found some of 'trace'"),
        (["-l", "pass", "--set", "trace", "reference"], "expected --set LAYER=OPTIONS"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, output = layer(*arguments, "-o", str(tmp_path / "lib.so"))
    assert code != 0
    assert message in output
    assert list(tmp_path.iterdir()) == []


def test_a_library_is_not_written_over_its_plugin(tiny_copy: Callable[..., Control]) -> None:
    path = tiny_copy().path
    with pytest.raises(pjrt.InvalidArgumentError, match="expected another file"):
        layers.write_library(path, path, ["pass"])

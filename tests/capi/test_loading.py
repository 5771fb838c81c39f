"""Bad luck while a plugin is loaded: each a clear error with the path and the next step, and the process lives on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import build
from tiny.control import Control

import pjrt
from pjrt.abi.generated.version import API_VERSION

OURS = ".".join(map(str, API_VERSION))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(pjrt.NotFoundError, match="no such file") as caught:
        pjrt.load_plugin(tmp_path / "libnowhere.so")
    assert str(tmp_path / "libnowhere.so") in caught.value.message


@pytest.mark.parametrize(("content", "said"), [("no library", "has something else in it"), ("", "is empty")])
def test_a_file_that_is_no_library(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "libtext.so"
    path.write_text(content)
    with pytest.raises(pjrt.FailedPreconditionError, match=rf"it is no shared library, the file {said}") as caught:
        pjrt.load_plugin(path)
    assert str(path) in caught.value.message
    assert "missing" not in caught.value.message


def test_a_library_that_is_no_plugin(no_symbol_library: Path) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="no function GetPjrtApi"):
        pjrt.load_plugin(no_symbol_library)


@pytest.mark.parametrize("part", [0.0001, 0.02, 0.3])
def test_a_library_that_is_cut_off(tiny_library: Path, tmp_path: Path, part: float) -> None:
    # The dynamic linker would end the process with a bus error.
    code = tiny_library.read_bytes()
    path = tmp_path / "libhalf.so"
    path.write_bytes(code[: int(len(code) * part)])
    with pytest.raises(pjrt.PjrtError, match=r"libhalf\.so") as caught:
        pjrt.load_plugin(path)
    assert caught.value.code in (pjrt.StatusCode.DATA_LOSS, pjrt.StatusCode.FAILED_PRECONDITION)


def test_a_library_that_needs_another_one(tmp_path: Path) -> None:
    for name, code in (
        ("other", "int other(void) { return 1; }"),
        ("needy", "int other(void); int f(void) { return other(); }"),
    ):
        (tmp_path / f"{name}.c").write_text(code)
        extra = [] if name == "other" else ["-L.", "-lother"]
        command = [*build.compiler(), "-shared", "-fPIC", f"{name}.c", "-o", f"lib{name}.so", *extra]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    (tmp_path / "libother.so").unlink()
    with pytest.raises(pjrt.FailedPreconditionError, match=r"could not be opened: libother\.so"):
        pjrt.load_plugin(tmp_path / "libneedy.so")


NOEXEC = """
import os, shutil, sys
import pjrt
from pjrt import layers
from pjrt.frameworks import torch_xla

def show(attempt):
    try:
        attempt()
    except pjrt.FailedPreconditionError as error:
        print(error.message)

def trace(plugin):
    with layers.program_environment(["pass"], plugin=plugin, options={}):
        pass

library, folder = sys.argv[1:]
show(lambda: trace("reference"))
show(lambda: torch_xla.TorchXlaDevice("reference", {}).library_path())
show(lambda: pjrt.load_plugin(shutil.copy(library, folder)))
pjrt.load_plugin(library)
trace(library)  # no library is written
os.environ["PJRT_LAYERS"] = "pass"
show(lambda: torch_xla.TorchXlaDevice(library, {}).library_path())
os.utime(library, (1, 1))
pjrt.load_plugin(library)
"""
MOUNTED = 'mount -t tmpfs -o noexec tmpfs "$TMPDIR" && exec "$@"'


def test_a_temporary_folder_that_is_mounted_noexec(tiny_library: Path, tmp_path: Path) -> None:
    """The error says so, and names TMPDIR. A copy of a library that was replaced goes to its own folder first."""
    folder, library = tmp_path / "noexec", tmp_path / "libown.so"
    folder.mkdir()
    shutil.copy(tiny_library, library)
    in_namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    if shutil.which("unshare") is None or subprocess.run([*in_namespace, "true"], env=environment).returncode:
        pytest.skip("this system lets nobody mount a file system")
    command = [*in_namespace, sys.executable, "-c", NOEXEC, str(library), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    traced, torch, loaded, layered = done.stdout.splitlines()
    for message in (traced, torch, layered):
        assert message.endswith("found one on a file system mounted noexec; name another folder in TMPDIR")
    assert "failed to map segment" in loaded
    assert "mounted noexec: move it to another; TMPDIR names that of temporary files" in loaded


def test_a_null_table(tiny_copy: Callable[..., Control]) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="GetPjrtApi returned null"):
        pjrt.load_plugin(tiny_copy(null_table=1).path)


@pytest.mark.parametrize("size", [1, 8, 39])
def test_a_table_too_small_to_be_one(tiny_copy: Callable[..., Control], size: int) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=rf"is {size} bytes long, expected at least 40"):
        pjrt.load_plugin(tiny_copy(struct_size=size).path)


def test_another_major_version(tiny_copy: Callable[..., Control]) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=rf"speaks PJRT C API 1\.3, this package {OURS}"):
        pjrt.load_plugin(tiny_copy(major=1, minor=3).path)


@pytest.mark.parametrize(("minor", "reason"), [(28, r"oldest version this package speaks is 0\.29"), (56, "order")])
def test_a_minor_version_that_cannot_be_spoken(tiny_copy: Callable[..., Control], minor: int, reason: str) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=reason):
        pjrt.load_plugin(tiny_copy(minor=minor).path)


def test_a_plugin_that_fails_to_initialize(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy(init_code=14)
    with pytest.raises(pjrt.UnavailableError, match="the plugin failed to initialize") as caught:
        pjrt.load_plugin(control.path)
    assert str(control.path) in caught.value.message
    assert control.live("error") == 0


def test_a_plugin_without_initialize_says_so(tiny_copy: Callable[..., Control]) -> None:
    with pytest.raises(pjrt.UnimplementedError, match="PJRT_Plugin_Initialize"):
        pjrt.load_plugin(tiny_copy(null="PJRT_Plugin_Initialize").path)


def test_a_client_that_cannot_be_made(plugin: pjrt.Plugin, tiny_library: Path, tiny_control: Control) -> None:
    before = tiny_control.live()
    with pytest.raises(pjrt.FailedPreconditionError, match="no client could be made") as caught:
        plugin.client(fail_code=9)
    assert str(tiny_library) in caught.value.message
    assert "fail_code" in caught.value.message
    assert tiny_control.left_over(before) == {}


@pytest.mark.parametrize(
    "function", ["Client_PlatformName", "Client_Devices", "Device_GetDescription", "DeviceDescription_Kind"]
)
def test_a_client_that_cannot_be_asked_is_given_back(plugin: pjrt.Plugin, tiny_control: Control, function: str) -> None:
    before = tiny_control.live()
    tiny_control.fault(function, 13, "broken")
    with pytest.raises(pjrt.InternalError, match="broken"):
        plugin.client()
    tiny_control.clear()
    assert tiny_control.left_over(before) == {}


def test_a_path_of_any_kind_and_the_same_plugin_again(tiny_library: Path, tmp_path: Path) -> None:
    plugin = pjrt.load_plugin(str(tiny_library))
    assert pjrt.load_plugin(tiny_library) is plugin
    link = tmp_path / "liblink.so"
    link.symlink_to(tiny_library)
    assert pjrt.load_plugin(link) is plugin
    copy = tmp_path / "libcopy.so"
    shutil.copy(tiny_library, copy)
    assert pjrt.load_plugin(copy) is not plugin


def test_what_a_plugin_says_of_itself(plugin: pjrt.Plugin) -> None:
    assert plugin.api_version == API_VERSION
    assert plugin.attributes["stablehlo_current_version"] == (1, 17, 0)
    assert plugin.attributes["tiny_greeting"] == "hello"
    spoken = {"Layouts", "MemoryDescriptions", "FFI", "Profiler", "Stream", "Shardings", "AbiVersion"}
    assert spoken <= set(plugin.extensions)
    assert OURS in repr(plugin)


def test_the_environment_does_not_change_what_is_loaded(tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_library.parent))
    assert pjrt.load_plugin(f"~/{tiny_library.name}") is pjrt.load_plugin(tiny_library)


def test_a_capsule_that_holds_no_table() -> None:
    from pjrt.capi import load_capsule

    with pytest.raises(pjrt.InvalidArgumentError, match="pjrt_c_api"):
        load_capsule(object())

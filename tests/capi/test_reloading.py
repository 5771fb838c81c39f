"""A library whose file was replaced is loaded beside the old code, which goes on for what was made with it."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny import build
from tiny.control import Control
from waiting import wait_until

import pjrt
from pjrt import capi
from pjrt.capi import library_files


@pytest.fixture
def library(tiny_library: Path, tmp_path: Path) -> Path:
    """A tiny plugin that nobody else has opened."""
    return Path(shutil.copy(tiny_library, tmp_path / "libtiny-to-replace.so"))


def replace(path: Path, source: Path) -> None:
    """Put another file in a file's place, as an installer does: who has the old one open keeps it."""
    scratch = path.with_suffix(".new")
    shutil.copy(source, scratch)
    os.replace(scratch, path)


def version(plugin: capi.LoadedPlugin) -> str:
    with plugin.client() as client:
        return client.platform_version


def test_the_same_file_is_the_same_plugin(library: Path) -> None:
    control = Control(library)
    with control.counted():
        plugins = {capi.load_plugin(library) for _ in range(3)}
        assert control.calls("PJRT_Plugin_Initialize") == 1
    assert len(plugins) == 1


@pytest.mark.full
def test_new_code_runs_beside_the_old(library: Path, tiny_cache: Path, adder: pjrt.Program) -> None:
    x = np.arange(4, dtype=np.float32)
    old = capi.load_plugin(library)
    with old.client() as client:
        executable, buffer = client.compile(adder), client.buffer_from_host(x)
        replace(library, build.build_tiny(tiny_cache, ['-DTINY_PLATFORM_VERSION="tiny 2.0"']))
        new = capi.load_plugin(library)
        assert new is not old
        assert (new.path, version(new), version(old)) == (str(library), "tiny 2.0", "tiny 1.0")
        assert capi.load_plugin(library) is new
        assert list(library.parent.iterdir()) == [library], "no copy is left behind"
        (result,) = executable(buffer, buffer)
        assert np.asarray(result).tolist() == (x + x).tolist()


@pytest.mark.skipif(os.name != "posix", reason="rights are looked at where there are modes")
def test_nobody_else_opens_the_copy_that_is_loaded(tmp_path: Path) -> None:
    """Its code is run. It is looked at while it is written, in a process that lets others do everything."""
    pipe = tmp_path / "library.so"
    os.mkfifo(pipe)
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(library_files._copy_beside, str(pipe))
            with pipe.open("r+b", buffering=0) as source:  # waits for no reader
                wait_until(lambda: copying.done() or len(list(tmp_path.iterdir())) == 2)
                modes = [path.stat().st_mode for path in tmp_path.iterdir() if path != pipe]
                source.write(b"code")
        copy = Path(copying.result())
    finally:
        os.umask(before)
    assert [stat.S_IMODE(mode) for mode in modes] == [0o700]
    assert copy.read_bytes() == b"code"


@pytest.mark.full
def test_the_file_of_before_is_the_plugin_of_before(library: Path, tiny_cache: Path) -> None:
    """A file is told by where it lies, its size and when it was written: moved away and back it is the same one."""
    old = capi.load_plugin(library)
    kept = library.rename(library.with_suffix(".kept"))
    shutil.copy(build.build_tiny(tiny_cache, ['-DTINY_PLATFORM_VERSION="tiny 2.0"']), library)
    assert version(capi.load_plugin(library)) == "tiny 2.0"
    os.replace(kept, library)
    assert capi.load_plugin(library) is old


def test_a_plugin_that_could_not_be_loaded_can_be_mended(tiny_cache: Path, tiny_library: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(build.build_other("no_symbol", tiny_cache), tmp_path / "libmended.so"))
    with pytest.raises(pjrt.FailedPreconditionError, match="no function GetPjrtApi"):
        capi.load_plugin(path)
    replace(path, tiny_library)
    assert version(capi.load_plugin(path)) == "tiny 1.0"


def test_threads_that_load_at_once_get_one_plugin(library: Path) -> None:
    found: list[capi.LoadedPlugin] = []
    threads = [threading.Thread(target=lambda: found.append(capi.load_plugin(library))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len(set(found)) == 1

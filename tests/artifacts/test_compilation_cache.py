"""The persistent compilation cache: what is the same, what becomes of bad entries, and many processes at once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control

import pjrt

ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
X = np.arange(4, dtype=np.float32)


def fill(value: float) -> pjrt.Program:
    """A tiny program of its own for each value."""
    program = TinyProgram("fill")
    return pjrt.Program(program.result(program.let("fill", "f32[4]", value)).code, format="tiny")


@pytest.fixture
def tiny(tiny_library: Path, tiny_control: Control) -> Iterator[pjrt.Client]:
    with pjrt.client(tiny_library, num_devices=2) as client:
        yield client


@pytest.fixture
def cache(tmp_path: Path) -> pjrt.CompilationCache:
    return pjrt.CompilationCache(tmp_path / "cache")


def compiled_to(value: float, executable: pjrt.LoadedExecutable) -> bool:
    (result,) = executable()
    return bool((np.asarray(result) == value).all())


def test_a_program_is_compiled_once(tiny: pjrt.Client, tiny_control: Control, cache: pjrt.CompilationCache) -> None:
    with tiny_control.counted():
        for _ in range(3):
            assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert tiny_control.calls("Client_Compile") == 1
    assert (cache.hits, cache.misses, len(cache)) == (2, 1, 1)
    assert pjrt.CompilationCache(cache.folder).size_in_bytes == cache.size_in_bytes > 0


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_devices_in_the_box(name: str, cache: pjrt.CompilationCache) -> None:
    for hits in range(2):
        with pjrt.client(name) as client:
            np.testing.assert_array_equal(np.asarray(cache.compile(client, ADD)(X)[0]), 2 * X)
        assert cache.hits == hits


def test_options_are_those_of_the_caller(cache: pjrt.CompilationCache) -> None:
    options = pjrt.CompileOptions(num_replicas=2)
    for _ in range(2):
        with pjrt.client("cpu", num_devices=2) as client:
            results = cache.compile(client, ADD, options).execute(
                [[client.buffer_from_host(X, device=d)] for d in client.devices]
            )
            assert len(results) == 2
    assert cache.hits == 1


def test_a_topology_gets_what_was_noted(tiny_library: Path, cache: pjrt.CompilationCache) -> None:
    topology = pjrt.topology(tiny_library, "2")
    compiled, found = (cache.compile(topology, fill(1)) for _ in range(2))
    assert isinstance(found, pjrt.SavedExecutable)
    assert (found.memory_stats(), found.serialize()) == (compiled.memory_stats(), compiled.serialize())


class TestKeys:
    def test_the_spelling_of_a_program_does_not_matter(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        other = "// the same\n" + ADD.replace("%0", "%sum").replace("  return", "  return").replace("\n  ", "\n      ")
        located = ADD.replace("tensor<4xf32>\n", 'tensor<4xf32> loc("a.py":1:2)\n', 1)
        assert cache.key(tiny, ADD) == cache.key(tiny, other.encode()) == cache.key(tiny, located)

    def test_everything_else_does(self, tiny: pjrt.Client, tiny_library: Path, cache: pjrt.CompilationCache) -> None:
        with pjrt.client(tiny_library, num_devices=3) as three, pjrt.client(tiny_library, platform_name="x") as other:
            keys = [
                cache.key(tiny, ADD),
                cache.key(tiny, ADD.replace("add", "multiply")),
                cache.key(tiny, pjrt.Program(ADD.encode(), format="tiny")),
                cache.key(tiny, ADD, pjrt.CompileOptions(num_replicas=2)),
                cache.key(tiny, ADD, pjrt.CompileOptions(option_overrides={"fast": True})),
                cache.key(three, ADD),
                cache.key(other, ADD),
                cache.key(tiny.topology, ADD),
            ]
        assert len(set(keys)) == len(keys)

    def test_what_a_program_states_is_not_taken_for_the_default(
        self, tiny: pjrt.Client, cache: pjrt.CompilationCache
    ) -> None:
        two = f"module attributes {{mhlo.num_replicas = 2 : i32}} {{\n{ADD}}}"
        said = [pjrt.CompileOptions(num_replicas=n, num_partitions=1, use_shardy_partitioner=False) for n in (1, 2)]
        assert cache.key(tiny, two) == cache.key(tiny, two, said[1]) != cache.key(tiny, two, said[0])

    def test_so_does_the_library(
        self, tiny: pjrt.Client, tiny_copy: Callable[..., Control], cache: pjrt.CompilationCache
    ) -> None:
        copies = [tiny_copy().path for _ in range(2)]
        os.utime(copies[1], (0, 0))
        keys = [cache.key(tiny, ADD)]
        for path in copies:
            keys += [
                cache.key(pjrt.load_plugin(path).client(num_devices=2), ADD),
                cache.key(pjrt.topology(path, "2"), ADD),
            ]
        assert len(set(keys)) == 5

    @pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
    def test_so_do_flags(
        self, tiny: pjrt.Client, cache: pjrt.CompilationCache, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = cache.key(tiny, ADD)
        monkeypatch.setenv(variable, "--fast")
        assert cache.key(tiny, ADD) != before

    def test_a_program_that_cannot_be_read_here_goes_by_its_bytes(
        self, tiny: pjrt.Client, cache: pjrt.CompilationCache
    ) -> None:
        assert cache.key(tiny, "module @x { other.op }") != cache.key(tiny, "module @x { another.op }")


class TestBadEntries:
    @pytest.mark.parametrize("damage", [b"", b"nonsense", "half", "flipped"])
    def test_are_compiled_anew_and_replaced(
        self, tiny: pjrt.Client, cache: pjrt.CompilationCache, damage: bytes | str
    ) -> None:
        cache.compile(tiny, fill(7))
        (entry,) = cache.folder.iterdir()
        whole = entry.read_bytes()
        damaged = {"half": whole[: len(whole) // 2], "flipped": whole[:-40] + b"\xff" + whole[-39:]}
        entry.write_bytes(damage if isinstance(damage, bytes) else damaged[damage])
        assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert entry.read_bytes() == whole
        assert (cache.hits, cache.misses) == (0, 2)

    def test_one_that_the_plugin_refuses(
        self, tiny: pjrt.Client, tiny_control: Control, cache: pjrt.CompilationCache
    ) -> None:
        cache.compile(tiny, fill(7))
        tiny_control.fault("Executable_DeserializeAndLoad", 13, "no luck", count=1)
        assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert (cache.hits, cache.misses) == (0, 2)

    @pytest.mark.parametrize("header", [b"", b"[]", b'{"format_version": 1}', b"[" * 10**5])
    def test_a_header_that_is_none_under_a_right_checksum(
        self, tiny: pjrt.Client, cache: pjrt.CompilationCache, header: bytes
    ) -> None:
        cache.compile(tiny, fill(7))
        (entry,) = cache.folder.iterdir()
        whole = entry.read_bytes()
        content = b"pjrt executable\n" + len(header).to_bytes(4, "little") + header
        entry.write_bytes(content + hashlib.sha256(content).digest())
        assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert entry.read_bytes() == whole

    @pytest.mark.timeout(20)
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
    def test_a_pipe(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        entry = cache.folder / f"{cache.key(tiny, fill(7))}.executable"
        os.mkfifo(entry)
        os.mkfifo(cache.folder / ".other.partial")
        assert (len(cache), cache.size_in_bytes) == (0, 0)
        assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert entry.is_file()
        assert len(cache) == 1

    def test_a_folder_is_left_alone(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        entry = cache.folder / f"{cache.key(tiny, fill(7))}.executable"
        entry.mkdir()
        partial = cache.folder / ".other.partial"
        partial.mkdir()
        os.utime(partial, (0, 0))
        with pytest.warns(UserWarning, match="the compilation cache cannot be written"):
            assert compiled_to(7, cache.compile(tiny, fill(7)))
        cache.max_bytes = 1 << 20
        assert compiled_to(8, cache.compile(tiny, fill(8)))  # no warning
        cache.clear()
        assert (len(cache), entry.is_dir(), partial.is_dir()) == (0, True, True)


@pytest.mark.skipif(os.name != "posix", reason="rights are looked at where there are modes")
class TestSafety:
    def test_a_folder_that_everyone_may_write_to_is_refused(self, tmp_path: Path) -> None:
        folder = tmp_path / "above" / "cache"
        folder.mkdir(parents=True)
        for unsafe, mode in ((folder, 0o777), (folder, 0o1777), (folder.parent, 0o777)):
            unsafe.chmod(mode)
            with pytest.raises(
                pjrt.FailedPreconditionError, match=f"not safe as a cache.*everyone may write to {unsafe}"
            ):
                pjrt.CompilationCache(folder)
            unsafe.chmod(0o775)
        assert len(pjrt.CompilationCache(folder)) == 0

    def test_what_it_makes_is_safe_whatever_the_process_lets_others_do(self, tiny: pjrt.Client, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            cache = pjrt.CompilationCache(tmp_path / "a" / "cache")
            assert all(compiled_to(7, cache.compile(tiny, fill(7))) for _ in range(2))
        finally:
            os.umask(before)
        assert cache.hits == 1

    def test_an_entry_that_everyone_may_write_to_is_compiled_anew(
        self, tiny: pjrt.Client, cache: pjrt.CompilationCache
    ) -> None:
        cache.compile(tiny, fill(7))
        (entry,) = cache.folder.iterdir()
        entry.chmod(0o666)
        assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert (cache.hits, cache.misses) == (0, 2)
        assert entry.stat().st_mode & 0o002 == 0


class TestWithoutStorage:
    def test_a_plugin_that_cannot_serialize(
        self, tiny: pjrt.Client, tiny_control: Control, cache: pjrt.CompilationCache
    ) -> None:
        tiny_control.fault("Executable_Serialize", 12, "not here")
        assert all(compiled_to(7, cache.compile(tiny, fill(7))) for _ in range(2))
        assert len(cache) == 0

    def test_a_folder_that_is_gone_is_a_warning(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        cache.folder.rmdir()
        with pytest.warns(UserWarning, match="the compilation cache cannot be written"):
            assert compiled_to(7, cache.compile(tiny, fill(7)))

    def test_a_folder_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(pjrt.InvalidArgumentError, match="cannot be a cache's folder"):
            pjrt.CompilationCache(tmp_path / "file")
        with pytest.raises(pjrt.InvalidArgumentError, match="max_bytes"):
            pjrt.CompilationCache(tmp_path / "cache", max_bytes=-1)

    def test_errors_of_the_compiler_are_the_callers(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        with pytest.raises(pjrt.InvalidArgumentError):
            cache.compile(tiny, pjrt.Program(b"nonsense", format="tiny"))
        assert len(cache) == 0


class TestLimit:
    def test_the_least_recently_used_go_first(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        for value in range(3):
            cache.compile(tiny, fill(value))
        long_ago = time.time_ns() - 10**12
        for age, value in enumerate(range(3)):
            os.utime(cache.folder / f"{cache.key(tiny, fill(value))}.executable", ns=(long_ago, long_ago + age))
        cache.compile(tiny, fill(0))  # the oldest by its writing, now the youngest by its use
        cache.max_bytes = cache.size_in_bytes
        cache.compile(tiny, fill(3))
        misses = cache.misses
        for value in (0, 2, 3):
            cache.compile(tiny, fill(value))
        assert cache.misses == misses
        cache.compile(tiny, fill(1))
        assert cache.misses == misses + 1

    def test_one_that_is_larger_than_the_limit_is_not_kept(self, tiny: pjrt.Client, tmp_path: Path) -> None:
        cache = pjrt.CompilationCache(tmp_path, max_bytes=10)
        assert compiled_to(7, cache.compile(tiny, fill(7)))
        assert len(cache) == 0

    def test_leftovers_of_writers_that_died_are_removed(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        old, young = cache.folder / ".a.partial", cache.folder / ".b.partial"
        for path in (old, young):
            path.touch()
        os.utime(old, (0, 0))
        cache.compile(tiny, fill(7))
        assert not old.exists()
        assert young.exists()

    def test_clearing(self, tiny: pjrt.Client, cache: pjrt.CompilationCache) -> None:
        cache.compile(tiny, fill(7))
        cache.clear()
        assert (len(cache), cache.size_in_bytes) == (0, 0)


WORKER = """
import json, sys
import numpy as np
import pjrt

library, folder, limit, offset = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
cache = pjrt.CompilationCache(folder, max_bytes=limit or None)
wrong = 0
sys.stdin.readline()
with pjrt.client(library) as client:
    for number in range(60):
        value = (number + offset) % 12
        text = f"tiny 1\\nname fill\\nlet x = fill f32[4] {value}\\nout x\\n"
        executable = cache.compile(client, pjrt.Program(text.encode(), format="tiny"))
        wrong += not (np.asarray(executable()[0]) == value).all()
print(json.dumps([wrong, cache.hits, cache.misses]))
"""


@pytest.mark.full
@pytest.mark.parametrize("limit", [0, 8000], ids=["unlimited", "evicting"])
def test_many_processes_at_once(tiny_library: Path, tmp_path: Path, limit: int) -> None:
    """They write, read and evict the same dozen entries; each always gets the program it asked for."""
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                WORKER,
                tiny_library,
                tmp_path / "cache",
                str(limit),
                str(3 * number),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for worker in workers:  # all are at the line that waits, or soon will be
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    reports = []
    for worker in workers:
        out, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        reports.append(json.loads(out))
    assert all(wrong == 0 and hits + misses == 60 for wrong, hits, misses in reports), reports
    cache = pjrt.CompilationCache(tmp_path / "cache")
    assert [path for path in cache.folder.iterdir() if path.name.startswith(".")] == []
    if limit:
        assert cache.size_in_bytes <= limit
    else:
        assert len(cache) == 12
        assert sum(misses for _, _, misses in reports) <= 4 * 12


ENDLESS = """
import itertools, sys
import pjrt

cache = pjrt.CompilationCache(sys.argv[2], max_bytes=8000)
with pjrt.client(sys.argv[1]) as client:
    for number in itertools.count():
        text = f"tiny 1\\nname fill\\nlet x = fill f32[4] {number}\\nout x\\n"
        cache.compile(client, pjrt.Program(text.encode(), format="tiny"))
        if number == 20:
            print("busy", flush=True)
"""


@pytest.mark.full
def test_a_process_that_is_killed_leaves_whole_entries(tiny_library: Path, tmp_path: Path) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", ENDLESS, tiny_library, tmp_path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "busy\n"
            worker.kill()
        entries = list(tmp_path.glob("*.executable"))
        assert entries
        for entry in entries:
            assert pjrt.SavedExecutable.read(entry).name == "fill"

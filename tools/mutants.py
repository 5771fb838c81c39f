"""Put one fault after the other into a copy of the code, and see which test finds it.

    python tools/mutants.py                            # all faults, with the quick tests
    python tools/mutants.py --full                     # with the long tests, too, where the quick ones find nothing
    python tools/mutants.py --room-only limits.py elf  # faults whose line has a word; their room alone

The faults are those that a developer makes: a wrong sign, a missing check, one too many. They were chosen before a look
at the tests. For each, the tests of its room run first, then all others. A test that fails without the fault, too, has
found nothing. What is copied is the working tree with its built modules; `setup.py` builds the compiled faults, which
needs Cython. The exit code is 1 if a fault is not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parents[1]
PYTEST = ("-m", "pytest", "-x", "-q", "--timeout=120", "-p", "no:cacheprovider")
TEST_OF_THIS_TABLE = ("--deselect", "tests/test_contributing.py::test_the_faults_that_tests_must_find_fit_the_code")
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*venv*", ".*_cache", ".hypothesis")


@dataclass(frozen=True)
class Fault:
    """A fault of one line.

    Attributes:
        file: the end of the file's path below ``src/pjrt``, by which it is found wherever it moves.
        old: what stands there, once in the file.
        new: what stands there with the fault.
        tests: the tests that run first: those of the room.
    """

    file: str
    old: str
    new: str
    tests: str

    def path(self, tree: Path = HERE) -> Path:
        """Return the file in a tree.

        Raises:
            LookupError: there is none, or more than one, or the line is not there once.
        """
        found = [path for path in (tree / "src" / "pjrt").rglob(Path(self.file).name) if path.match(self.file)]
        if len(found) != 1 or found[0].read_text().count(self.old) != 1:
            raise LookupError(f"expected {self.old!r} once in one file {self.file}, found {len(found)} such files")
        return found[0]

    def __str__(self) -> str:
        return f"{self.file}: {self.new.strip()}"


FAULTS = (
    Fault("api/shape_spec.py", "if shape and min(shape) < 0:", "if shape and min(shape) <= 0:", "api"),
    Fault("api/buffer.py", "            if copy is False:\n", "            if copy is True:\n", "api device_api"),
    Fault("compilation_cache.py", "if writable_by_everyone(path):", "if False:", "artifacts"),
    Fault("compilation_cache.py", "total -= size", "total += size", "artifacts"),
    Fault("raw/struct.py", 'signed=kind != "UNSIGNED"', 'signed=kind == "UNSIGNED"', "capi conformance"),
    Fault("_options.py", "base = 1024 if match[3] else 1000", "base = 1000 if match[3] else 1024", "cli"),
    Fault("_options.py", '"hit": cache.hits > hits_before', '"hit": cache.hits >= hits_before', "cli"),
    Fault("clusters/client/buffer.py", "popitem(last=False)", "popitem(last=True)", "clusters"),
    Fault("workers.py", "{len(awaited) - _MOST_NAMED} more", "{len(awaited)} more", "clusters"),
    Fault(
        "device/plan.py",
        "and not _has_one_of(\n            check",
        "and _has_one_of(\n            check",
        "conformance",
    ),
    Fault("author/code.py", "and step.runner.device != INTERPRETER", "", "devices/test_author.py devices examples"),
    Fault("collectives/engine.py", "if max(lengths) > room:", "if max(lengths) > room + 1:", "devices/collectives"),
    Fault("numerics/indexing.py", "else component * stride", "else component", "devices/reference"),
    Fault(
        "ops/windows.py", "self.reach = (window - 1) * dilation", "self.reach = window * dilation", "devices/reference"
    ),
    Fault("ops/random.py", "out[1] += np.uint64(count)", "out[0] += np.uint64(count)", "devices/reference"),
    Fault("ops/random.py", "< high.astype(wide), sample", "<= high.astype(wide), sample", "devices/reference"),
    Fault("xla/peers.py", "if device.process_index == self._peers.process_index:", "if False:", "devices/xla"),
    Fault("xla/loaded_executable.py", "        if options.context is not None:", "        if False:", "devices/xla"),
    Fault("leader.py", "awaited <= self._steps.keys()", "awaited >= self._steps.keys()", "distributed"),
    Fault("_served.py", "{**share, **self.options}", "{**self.options, **share}", "frameworks"),
    Fault("torch_xla.py", "if not isinstance(options, dict):", "if options is None:", "frameworks"),
    Fault("host_memory/array.py", "if shape[dimension] > 1 and strides", "if strides", "host_memory"),
    Fault("host_memory/difference.py", "(error > allowed) | beyond", "(error > allowed) & beyond", "host_memory"),
    Fault("remap_plan.py", "            filled.add((o, b))\n", "", "ifrt"),
    Fault("ifrt/serialization.py", "if not 1 <= message.version <= form.version:", "if message.version < 1:", "ifrt"),
    Fault("trace_views.py", "999.5 * size", "1000 * size", "layers"),
    Fault("recording.py", "return -1 - self.number()", "return -self.number()", "layers"),
    Fault("measurement.py", "self.percentile(99) * 1e9", "self.percentile(99) * 1e6", "models"),
    Fault("offloading/stages.py", "count = length // period + 1", "count = length // period", "models"),
    Fault("precedence.py", "and not rival.declaration.problem", "", "plugins"),
    Fault("device_lock.py", " or status.st_nlink != 1:", ":", "plugins"),
    Fault("server/memory.py", "            self._arriving[handle] = size\n", "", "remote"),
    Fault("transport/addresses.py", "len(path.encode()) > 107", "len(path) > 107", "remote"),
    Fault("limits.py", "more = size - sizes.get(handle, 0)", "more = size", "remote"),
    Fault(
        "memory_analysis.py",
        "if self._current + inside.nbytes > self._peak:",
        "if self._current > self._peak:",
        "stablehlo",
    ),
    Fault("hlo_proto.py", "if shift > 63:", "if shift > 70:", "stablehlo"),
    Fault("system/elf.py", "return address - part.address + part.offset", "return address - part.address", "system"),
    Fault(
        "_transfers.pyx",
        "[tensor.strides[index] for",
        "[tensor.shape[index] for",
        "capi/test_dlpack.py capi device_api",
    ),
    Fault("_pump.pyx", "count < 0 and not _again()):", "count < 0):", "distributed"),
    Fault("validate/host_memory.c", "  size -= sizeof word;", "  size = 0;", "layers/validate layers"),
)


class Copy:
    """A copy of the working tree, and a Python with the packages of this one that imports the copied package."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        shutil.copytree(HERE, self.tree, symlinks=True, ignore=NOT_COPIED)
        venv.create(folder / "venv")
        self._python = folder / "venv" / "bin" / "python"
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        (own / "copy.pth").write_text(f"{self.tree / 'src'}\n{sysconfig.get_path('purelib')}\n")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy."""
        path = f"{self._python.parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "VIRTUAL_ENV": str(self._python.parents[1])}
        return subprocess.run(
            [self._python, *command], cwd=self.tree, env=environment, capture_output=True, text=True, check=False
        )

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Put a fault into its file, and take it out at the end."""
        path = fault.path(self.tree)
        right = path.read_text()
        self._write(path, right.replace(fault.old, fault.new))
        yield
        self._write(path, right)

    def _write(self, path: Path, text: str) -> None:
        """Write a source, and build what is compiled."""
        path.write_text(text)
        if path.suffix != ".py":
            built = self.run("setup.py", "-q", "build_ext", "--inplace")
            if built.returncode:
                raise RuntimeError(f"expected a fault that can be built, found {built.stderr[-500:]}")

    def failing(self, tests: list[str], *, full: bool) -> str | None:
        """Return the first test that fails, or ``None``."""
        run = self.run(*PYTEST, *(("-m", "full") if full else ()), *tests, *TEST_OF_THIS_TABLE)
        if run.returncode in (0, 5):  # 5: no tests
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", run.stdout, re.MULTILINE)
        if failed is None:
            raise RuntimeError(f"expected the name of a test, found {(run.stdout + run.stderr)[-500:]}")
        return failed[1]

    def search(self, fault: Fault, *, room_only: bool, full: bool) -> str | None:
        """Return the test that finds a fault: of its room, of the others, or of those that take long."""
        room = [f"tests/{name}" for name in fault.tests.split()]
        others = [*(f"--ignore={folder}" for folder in room), "tests"]
        for tier in (False, True) if full else (False,):
            for tests in (room,) if room_only else (room, others):
                found = self.failing(tests, full=tier)
                if found is not None:
                    return f"{found} (full)" if tier else found
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only the faults whose line has one of these words")
    parser.add_argument("--full", action="store_true", help="run the tests that take long where no other finds a fault")
    parser.add_argument("--room-only", action="store_true", help="run the tests of a fault's room alone")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if not arguments.words or any(word in str(fault) for word in arguments.words)]
    count = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        for fault in chosen:
            begin = time.monotonic()
            with copy.with_fault(fault):
                found = copy.search(fault, room_only=arguments.room_only, full=arguments.full)
            anyway = found is not None and copy.failing([found.removesuffix(" (full)")], full=found.endswith(" (full)"))
            count += found is not None and not anyway
            verdict = found or "NOT FOUND"
            print(f"{time.monotonic() - begin:6.1f} s  {fault}\n          {verdict}", flush=True)
            if anyway:
                print("          which FAILS WITHOUT THE FAULT, too", flush=True)
    print(f"{count} of {len(chosen)} faults were found")
    return int(count < len(chosen))


if __name__ == "__main__":
    sys.exit(main())

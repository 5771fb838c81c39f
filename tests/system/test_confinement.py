"""The rights that Landlock and the filter of calls take from a process without namespaces."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pjrt.system import confinement
from pjrt.system.confinement import CALLS, CAN_CONFINE, FILES, NETWORK, PROCESSES, READING
from pjrt.system.python_process import module_environment

pytestmark = pytest.mark.skipif(not CAN_CONFINE, reason="only Linux confines processes")

CONFINED = """
import json, os, signal, socket, subprocess, sys
from pjrt.system import confinement
from pjrt.system.confinement import FILES, NETWORK, PROCESSES

folder, outside, other, readable = sys.argv[1:]
os.chdir(os.path.dirname(outside))
may = confinement.confine(
    folder, [], [NETWORK, PROCESSES, FILES], readable=json.loads(readable), open_files=100, file_bytes=1 << 20
)

def works(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True

def start():
    subprocess.run([sys.executable, "-c", "import json"], check=True)

attempts = {
    "read": lambda: open(outside).close(),
    "read own": lambda: open("own").close(),
    "write": lambda: open(outside, "a").close(),
    "remove": lambda: os.truncate(outside, 0),
    "kill": lambda: os.kill(int(other), signal.SIGKILL),
    "udp": lambda: socket.socket(type=socket.SOCK_DGRAM),
    "tcp": lambda: socket.socket(),
    "local": lambda: socket.socket(socket.AF_UNIX),
    "start": start,
    "session": lambda: subprocess.run([sys.executable, "-c", ""], start_new_session=True, check=True),
}
found = {"write own": works(lambda: open("own", "w").close())}
found |= {name: works(attempt) for name, attempt in attempts.items()}
print(json.dumps([may, found]))
"""


def confine(tmp_path: Path, readable: list[str] | None) -> tuple[list[str], dict[str, bool]]:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("secret")
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            arguments = [str(folder), str(outside), str(other.pid), json.dumps(readable)]
            printed = subprocess.run(
                [sys.executable, "-c", CONFINED, *arguments], env=module_environment(), stdout=-1, check=True
            ).stdout
            assert other.poll() is None or json.loads(printed)[1]["kill"]
        finally:
            other.kill()
    may, found = json.loads(printed)
    return may, found


def expected(may: list[str]) -> dict[str, bool]:
    return {
        **dict.fromkeys(("write own", "read own", "start", "local"), True),
        "read": READING in may,
        "session": CALLS in may,
        **dict.fromkeys(("write", "remove"), FILES in may),
        "kill": PROCESSES in may,
        **dict.fromkeys(("udp", "tcp"), NETWORK in may),
    }


def test_what_is_taken_without_namespaces(tmp_path: Path) -> None:
    may, found = confine(tmp_path, [])
    assert found == expected(may)
    version = ctypes.CDLL(None).syscall(444, None, 0, 1)  # of Landlock
    has_filters = platform.machine() in ("x86_64", "aarch64") and "Seccomp:" in Path("/proc/self/status").read_text()
    assert [READING in may, FILES in may, PROCESSES in may] == [version < 1, version < 3, version < 6]
    assert [NETWORK in may, CALLS in may] == [not has_filters] * 2


def test_a_folder_may_be_read_and_not_written(tmp_path: Path) -> None:
    may, found = confine(tmp_path, [str(tmp_path)])
    assert found == {**expected(may), "read": True}


def test_all_may_be_read(tmp_path: Path) -> None:
    may, found = confine(tmp_path, None)
    assert READING in may
    assert found == expected(may)


class OldKernel:
    """The C library on a kernel that has a version of Landlock, and perhaps the filter of calls."""

    def __init__(self, version: int, *, filters: bool) -> None:
        self.version, self.filters = version, filters
        self.rules: list[Any] = []

    def syscall(self, number: int, *arguments: Any) -> int:
        if number == 444 and arguments[0] is None:
            return self.version
        self.rules.append(arguments)
        return os.open(os.devnull, os.O_RDONLY) if number == 444 else 0

    def prctl(self, *arguments: Any) -> int:
        return 0 if self.filters else -1


@pytest.mark.parametrize(
    ("version", "refused", "length"),
    [
        (-1, set(), None),
        (1, {READING}, 8),
        (2, {READING}, 8),
        (3, {READING, FILES}, 8),
        (4, {READING, FILES}, 16),
        (6, {READING, FILES, PROCESSES}, 24),
        (9, {READING, FILES, PROCESSES}, 24),
    ],
)
def test_kernels_that_have_less(version: int, refused: set[str], length: int | None, tmp_path: Path) -> None:
    kernel = OldKernel(version, filters=False)
    assert confinement._refuse_files(kernel, str(tmp_path), ["/usr"]) == refused  # type: ignore[arg-type]
    assert (kernel.rules[0][1] if kernel.rules else None) == length
    assert confinement._refuse_calls(kernel) == set()  # type: ignore[arg-type]


def test_an_unknown_processor_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = OldKernel(0, filters=True)
    assert confinement._refuse_calls(kernel) == {NETWORK, CALLS}  # type: ignore[arg-type]
    monkeypatch.setattr(confinement.platform, "machine", lambda: "riscv64")
    assert confinement._refuse_calls(kernel) == set()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("enabled", "groups", "file", "has_share"),
    [
        ("1", "3:cpuset:/x\n1:cpu,cpuacct:/\n0::/", "", True),
        ("0", "0::/", "", False),
        ("1", "1:cpu,cpuacct:/docker/1\n0::/", "", False),
        ("1", "0::/system.slice/pjrt.service", "system.slice/cpu.weight", False),
        ("1", "0::/system.slice/pjrt.service", "", True),
        ("1", "0::/", "cpu.weight", False),
    ],
)
def test_a_share_of_the_processors_is_the_kernel_s_or_a_control_group_s(
    enabled: str, groups: str, file: str, has_share: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mount/system.slice/pjrt.service").mkdir(parents=True)
    for name, content in (("enabled", enabled), ("groups", groups), (f"mount/{file}", "100")):
        if not name.endswith("/"):
            (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(confinement, "_AUTOGROUPS", tmp_path / "enabled")
    monkeypatch.setattr(confinement, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(confinement, "_MOUNTS", (tmp_path / "mount",))
    assert confinement._has_share_of_processors() is has_share
    (tmp_path / "enabled").unlink()
    assert not confinement._has_share_of_processors()


def test_what_a_process_may_do_all_the_same_is_found_by_confining_one() -> None:
    assert set(confinement.kept_rights(60)) <= {NETWORK, PROCESSES, FILES, READING, CALLS}
    with pytest.raises(TimeoutError, match=r"not done after 0\.001 s"):
        confinement.kept_rights(0.001)

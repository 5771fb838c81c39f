"""The differences between operating systems. Names are tested for all of them; calls of the system only for the one
that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pjrt import system
from pjrt.system import hardware

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and owners are those of POSIX")


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", ("libx.so",)), ("darwin", ("libx.dylib", "libx.so")), ("win32", ("libx.dll",))],
)
def test_libraries_are_called_as_the_system_does(
    platform: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert system.library_file_names("libx") == expected


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a/x.so", True), ("x.so.1.2", True), ("x.dylib", True), ("X.DLL", True), ("x.sold", False), ("so", False)],
)
def test_a_library_is_known_by_its_name_on_every_system(name: str, is_one: bool) -> None:
    assert system.is_library_file_name(name) is is_one


def test_a_library_is_opened_and_asked() -> None:
    import _ctypes

    handle = system.open_library(_ctypes.__file__)
    assert system.library_symbol(handle, "PyInit__ctypes")
    assert system.library_symbol(handle, "no_such_symbol") is None


def test_what_cannot_be_opened_has_the_linkers_reason(tmp_path: Path) -> None:
    text = tmp_path / "x.so"
    text.write_text("no library")
    with pytest.raises(OSError, match=r"x\.so"):
        system.open_library(text)


def test_a_library_is_not_looked_for() -> None:
    with pytest.raises(OSError, match=r"absolute path of a library, found 'libc\.so\.6'"):
        system.open_library("libc.so.6")


@posix
@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "HOME/.config/pjrt"),
        ("linux", {"XDG_CONFIG_HOME": "/etc/of/me"}, "/etc/of/me/pjrt"),
        ("linux", {"XDG_CONFIG_HOME": "not/whole"}, "HOME/.config/pjrt"),
        ("darwin", {"XDG_CONFIG_HOME": "/etc/of/me"}, "HOME/Library/Application Support/pjrt"),
        ("win32", {"APPDATA": "/users/me/roaming"}, "/users/me/roaming/pjrt"),
        ("win32", {}, "HOME/AppData/Roaming/pjrt"),
    ],
)
def test_settings_lie_where_the_system_has_them(
    platform: str, variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert system.config_folder() == Path(expected.replace("HOME", str(tmp_path)))


@pytest.mark.parametrize(
    ("system_name", "environment", "expected"),
    [
        ("linux", {}, "HOME/.cache/pjrt"),
        ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/pjrt"),
        ("darwin", {}, "HOME/Library/Caches/pjrt"),
        ("win32", {}, "HOME/AppData/Local/pjrt/Cache"),
    ],
)
def test_the_folder_of_caches(
    system_name: str,
    environment: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system_name)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert system.cache_folder() == Path(expected.replace("HOME", str(tmp_path)))


@posix
def test_a_private_file_in_a_folder_for_everyone_is_safe_and_the_folder_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    file = tmp_path / "x.so"
    file.touch(mode=0o600)
    assert system.writable_by_everyone(file) == ""
    assert system.writable_by_everyone(tmp_path) == f"everyone may write to {tmp_path}"


@posix
def test_a_folder_above_that_everyone_may_change_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    (folder / "inner").mkdir(parents=True)
    file = folder / "inner" / "x.so"
    file.touch(mode=0o600)
    assert system.writable_by_everyone(file) == ""
    folder.chmod(0o777)
    assert system.writable_by_everyone(file) == f"everyone may write to {folder}"
    link = tmp_path / "link.so"
    link.symlink_to(file)
    assert system.writable_by_everyone(link) == f"everyone may write to {folder}"


@posix
def test_a_file_that_everyone_may_write_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.so"
    file.touch()
    file.chmod(0o666)
    assert system.writable_by_everyone(file) == f"everyone may write to {file}"


@posix
def test_what_is_made_is_safe_whatever_the_process_lets_others_do(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        system.make_protected_folder(folder)
        system.write_whole(folder / "x", b"data")
    finally:
        os.umask(before)
    assert system.writable_by_everyone(folder / "x") == ""
    assert [path.name for path in folder.iterdir()] == ["x"]
    assert system.read_plain_file(folder / "x") == b"data"


def test_a_temporary_folder_goes_with_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = system.TemporaryFolder("things")
    (folder.path / "file").write_text("something")
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith(f"pjrt-things-{os.getpid()}-")
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


_KILLED = """
import os, signal
from pjrt import system
(system.TemporaryFolder("things").path / "file").write_text("left")
os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
def test_the_temporary_folder_of_a_killed_process_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    in_use = system.TemporaryFolder("others")
    elsewhere = [tmp_path / name for name in ("pjrt-things", "pjrt-job-abcdefgh", "another-1-abcdefgh")]
    for each in elsewhere:
        each.mkdir()
    (tmp_path / "pjrt-things-1-abcdefgh").symlink_to(elsewhere[0])
    subprocess.run([sys.executable, "-c", _KILLED], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    assert len(list(tmp_path.glob("pjrt-things-*/file"))) == 1
    with system.TemporaryFolder("more") as folder:
        assert list(tmp_path.glob("pjrt-things-*/file")) == []
        assert {*elsewhere, in_use.path, folder} <= set(tmp_path.iterdir())
    in_use.close()


def test_nothing_at_a_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        system.writable_by_everyone(tmp_path / "nothing")


def test_the_processor_says_what_it_can_do() -> None:
    features = system.processor_features()
    assert len(features) > 1 or sys.platform == "win32"
    assert list(features) == sorted(set(features))


def test_the_features_that_macos_prints_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    intel = "machdep.cpu.features: FPU SSE4.2\nmachdep.cpu.leaf7_features: AVX2\nmachdep.cpu.family: 6\n"
    apple = "machdep.cpu.brand_string: Apple M1\nhw.optional.neon: 1\nhw.optional.arm.FEAT_BF16: 0\n"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(hardware, "program_output", lambda *command: intel)
    assert system.processor_features() == ("avx2", "fpu", "sse4.2")
    monkeypatch.setattr(hardware, "program_output", lambda *command: apple)
    assert system.processor_features() == ("neon",)


def test_hardware_is_known_by_files_of_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = ["${NOWHERE_ROOT}/System32/nvcuda.dll", f"{tmp_path}/nvidia[0-9]*", "nvidia[0-9]*"]
    monkeypatch.chdir(tmp_path)
    assert (system.any_file(patterns), system.count_files(patterns)) == (False, 0)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert not system.any_file(patterns[2:]), "a relative name says nothing of the machine"
    assert (system.any_file(patterns), system.count_files(patterns)) == (True, 2)
    (tmp_path / "System32").mkdir()
    (tmp_path / "System32" / "nvcuda.dll").touch()
    monkeypatch.setenv("NOWHERE_ROOT", str(tmp_path))
    assert system.count_files(patterns) == 1


def test_a_process_is_known_by_its_command_while_it_lives() -> None:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.readline()", "its mark"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert "its mark" in system.process_command(child.pid) or sys.platform == "win32"
        child.kill()
    assert system.process_command(child.pid) == ""


@posix
def test_a_child_made_by_fork_calls_what_was_left_for_it() -> None:
    code = """
import os
from pjrt import system
from pjrt.system import hardware
system.after_fork_in_child(lambda: os.write(1, b"in the child"))
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
    assert done.stdout == b"in the child"


@posix
def test_a_fork_of_a_process_with_idle_threads_brings_no_warning() -> None:
    code = """
import os, threading
from pjrt import system
gate = threading.Event()
threading.Thread(target=gate.wait, daemon=True).start()
child = system.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, timeout=120, check=True)
    assert not done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has forks of processes with libraries")
@pytest.mark.parametrize(
    ("function", "succeeds"),
    [("lambda: 0", True), ("lambda: 1 / 0", False), ("os.abort", False), ("sys.exit", False), ("signal.pause", False)],
)
def test_a_fork_tries_what_may_crash(function: str, succeeds: bool) -> None:
    time_limit = 0.5 if function == "signal.pause" else 120
    script = f"""
import os, signal, sys
from pjrt.system import succeeds_in_fork
open_files = os.listdir("/proc/self/fd")
print("before", succeeds_in_fork({function}, {time_limit}))
assert os.listdir("/proc/self/fd") == open_files
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"before {succeeds}\nno child is left\n", "")

"""A device that is not shared: a second client is refused with who has it, whatever becomes of the first."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

import pjrt
from pjrt import plugins, system
from pjrt.plugins import Sharing, device_lock
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.device_lock import FOLDER_VARIABLE, HOLDER_PAYLOAD

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="needs fork or kill")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the locks, also of the processes that a test starts."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def make_client(**options: Any) -> pjrt.Client:
    if options.pop("fail", False):
        raise pjrt.InternalError("the device is on fire")
    return pjrt.client("reference", **options)


@pytest.fixture
def chip() -> Iterator[Callable[..., None]]:
    """Registers ``lock-chip``."""

    def register(sharing: Sharing, **facts: Any) -> None:
        plugins.register(name="lock-chip", factory=make_client, sharing=sharing, **facts)

    yield register
    with contextlib.suppress(pjrt.NotFoundError):
        plugins.unregister("lock-chip")


CHILD = """
import os, sys, pjrt
from pjrt import plugins
def make_client(**options):
    return pjrt.client("reference", **options)
plugins.register(name="lock-chip", factory=make_client, sharing=plugins.Sharing("{sharing}"), partition=("CHIPS",))
client = None
for line in sys.stdin:
    try:
        exec(line)
        print("ok", flush=True)
    except pjrt.PjrtError as error:
        print(type(error).__name__, " ".join(error.message.split()), flush=True)
"""


class Other:
    """Another Python process, which is told what to do line by line."""

    def __init__(self, sharing: Sharing, script: Path, **environment: str) -> None:
        script.write_text(CHILD.format(sharing=sharing.value))
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __call__(self, line: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
        self.process.wait(60)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[..., Other]]:
    """Starts processes, and ends them."""
    started: list[Other] = []

    def start(sharing: Sharing = Sharing.ONE_PROCESS, **environment: str) -> Other:
        started.append(Other(sharing, tmp_path / f"other{len(started)}.py", **environment))
        return started[-1]

    yield start
    for each in started:
        each.end()


MAKE = 'client = pjrt.client("lock-chip", num_devices=2)'
CLOSE = "client.close()"


def test_who_has_it_can_be_asked_without_taking_it(
    chip: Callable[..., None], other: Callable[..., Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    chip(Sharing.ONE_PROCESS, partition=("CHIPS",))
    plugin = plugins.declaration("lock-chip")
    assert device_lock.busy(plugin) == ""
    first = other(CHIPS="1")
    assert first(MAKE) == "ok"
    for _ in range(2):
        assert f"process {first.process.pid} " in device_lock.busy(plugin)
    monkeypatch.setenv("CHIPS", "0")
    assert device_lock.busy(plugin) == ""
    assert other(CHIPS="0")(MAKE) == "ok"
    assert "lock-chip's devices 0" in device_lock.busy(plugin)
    monkeypatch.delenv("CHIPS")
    assert first(CLOSE) == "ok"
    assert "lock-chip's devices 0" in device_lock.busy(plugin)


def test_many_is_many(chip: Callable[..., None], folder: Path, other: Callable[..., Other]) -> None:
    chip(Sharing.MANY)
    with pjrt.client("lock-chip"), pjrt.client("lock-chip"):
        assert other(Sharing.MANY)(MAKE) == "ok"
    assert not list(folder.glob("*.lock"))


def test_another_process_is_told_who_has_it(chip: Callable[..., None], other: Callable[..., Other]) -> None:
    chip(Sharing.ONE_PROCESS)
    child = other()
    with pjrt.client("lock-chip", num_devices=3):
        said = child(MAKE)
        assert said.startswith("FailedPreconditionError 'lock-chip' allows clients in one process, and process ")
        assert f"process {os.getpid()} (" in said
        assert system.process_command(os.getpid())[:40] in said
        assert __file__ in said
        assert "with num_devices=3" in said
        assert "close the client there, or end that process" in said
    assert child(MAKE) == "ok"


def test_the_error_carries_the_holder(chip: Callable[..., None], other: Callable[..., Other]) -> None:
    chip(Sharing.ONE_PROCESS)
    child = other()
    assert child(MAKE) == "ok"
    with pytest.raises(pjrt.FailedPreconditionError, match=f"process {child.process.pid} ") as caught:
        pjrt.client("lock-chip")
    holder = json.loads(caught.value.payloads[HOLDER_PAYLOAD])
    assert holder["pid"] == child.process.pid
    assert holder["options"] == "num_devices=2"
    assert holder["place"].endswith("<string>:1")
    assert child(CLOSE) == "ok"
    pjrt.client("lock-chip").close()


def test_other_users_do_not_read_the_texts_of_options() -> None:
    """They may be secrets; the file of the lock is for all users."""
    declaration = Declaration("lock-chip", "test")
    options = {"token": "s3cret", "num_devices": 2, "nested": {"key": "s3cret"}, "keys": ["s3cret"], "wait": True}
    holder = device_lock._this_process(declaration, (), options)
    assert holder.options == "token=…, num_devices=2, nested=…, keys=…, wait=True"


def test_several_clients_of_one_process(chip: Callable[..., None], other: Callable[..., Other]) -> None:
    chip(Sharing.ONE_PROCESS)
    child = other()
    first, second = pjrt.client("lock-chip"), pjrt.client("lock-chip")
    first.close()
    first.close()
    assert "FailedPrecondition" in child(MAKE), "the second one still has it"
    second.close()
    assert child(MAKE) == "ok"


def test_one_client_within_a_process(chip: Callable[..., None]) -> None:
    chip(Sharing.ONE_CLIENT)
    with pjrt.client("lock-chip", num_devices=2) as client:
        line = sys._getframe().f_lineno - 1
        with pytest.raises(
            pjrt.FailedPreconditionError,
            match=rf"one client at a time, and this process has one since .*{__file__}:{line} with num_devices=2",
        ):
            pjrt.client("lock-chip")
        assert len(client.devices) == 2
    pjrt.client("lock-chip").close()


def test_one_client_on_the_machine(chip: Callable[..., None], other: Callable[..., Other]) -> None:
    chip(Sharing.ONE_CLIENT)
    child = other(Sharing.ONE_CLIENT)
    assert child(MAKE) == "ok"
    with pytest.raises(pjrt.FailedPreconditionError, match="allows one client at a time, and process"):
        pjrt.client("lock-chip")


def test_dropping_a_client_gives_the_device_back(chip: Callable[..., None]) -> None:
    chip(Sharing.ONE_CLIENT)
    client = pjrt.client("lock-chip")
    del client
    client = pjrt.client("lock-chip")
    cycle: list[object] = [client]
    cycle.append(cycle)
    del client, cycle
    pjrt.client("lock-chip").close()


def test_a_client_that_could_not_be_made_leaves_the_device(
    chip: Callable[..., None], other: Callable[..., Other]
) -> None:
    chip(Sharing.ONE_CLIENT)
    for _ in range(2):
        with pytest.raises(pjrt.InternalError, match="on fire"):
            pjrt.client("lock-chip", fail=True)
    assert other(Sharing.ONE_CLIENT)(MAKE) == "ok"


@posix_only
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "its end"])
def test_the_end_of_a_process_gives_the_device_back(
    chip: Callable[..., None], other: Callable[..., Other], how: str
) -> None:
    chip(Sharing.ONE_PROCESS)
    child = other()
    assert child(MAKE) == "ok"
    with pytest.raises(pjrt.FailedPreconditionError):
        pjrt.client("lock-chip")
    if how == "its end":
        child.end()
    else:
        os.kill(child.process.pid, signal.Signals[how])
        child.process.wait(60)
    pjrt.client("lock-chip").close()


@pytest.mark.full
@posix_only
def test_a_forked_child_has_no_part_in_it(chip: Callable[..., None], other: Callable[..., Other]) -> None:
    """It cannot give the device back, and does not keep it."""
    chip(Sharing.ONE_PROCESS)
    child, rival = other(), other()
    assert child(MAKE) == "ok"
    assert child("import gc, time") == "ok"
    forked = "pid = os.fork() or [client.close(), globals().pop('client'), gc.collect(), time.sleep(600)]"
    assert child(forked) == "ok"
    assert f"process {child.process.pid} " in rival(MAKE)
    assert child(CLOSE) == "ok"
    assert rival(MAKE) == "ok", "although the forked process lives on"
    assert rival(CLOSE) == "ok"
    assert child("os.kill(pid, 9); os.waitpid(pid, 0)") == "ok"


@posix_only
def test_a_forked_child_is_refused_like_any_other(chip: Callable[..., None]) -> None:
    chip(Sharing.ONE_PROCESS)
    with pjrt.client("lock-chip"):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                pjrt.client("lock-chip")
                said = "made"
            except pjrt.FailedPreconditionError as error:
                said = error.message
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        said = os.read(read, 4000).decode()
        os.close(read)
        os.waitpid(pid, 0)
    assert f"process {os.getpid()} " in said


@pytest.mark.full
def test_parts_of_a_device(other: Callable[..., Other]) -> None:
    """Processes that may use different chips do not keep each other out; one that may use all does, and is kept out."""
    first, second = other(CHIPS="0,1"), other(CHIPS="3, 2")
    overlapping, whole, spelled = other(CHIPS="1,4"), other(), other(CHIPS=" 1 , 0 ")
    assert [first(MAKE), second(MAKE)] == ["ok", "ok"]
    assert f"process {first.process.pid} " in overlapping(MAKE)
    assert "has lock-chip's devices 0, 1" in spelled(MAKE)
    assert f"process {first.process.pid} " in whole(MAKE)
    assert first(CLOSE) == "ok"
    assert f"process {second.process.pid} " in whole(MAKE)
    assert [second(CLOSE), whole(MAKE)] == ["ok", "ok"]
    assert f"process {whole.process.pid} " in first(MAKE)
    assert [whole(CLOSE), overlapping(MAKE)] == ["ok", "ok"]
    assert f"process {overlapping.process.pid} " in first(MAKE)


def test_where_the_hardware_is_not_there_is_nothing_to_lock(chip: Callable[..., None], folder: Path) -> None:
    chip(Sharing.ONE_CLIENT, hardware=(str(folder / "chip*"),))
    with pjrt.client("lock-chip"), pjrt.client("lock-chip"):
        pass
    (folder / "chip0").touch()
    with pjrt.client("lock-chip"), pytest.raises(pjrt.FailedPreconditionError, match="one client"):
        pjrt.client("lock-chip")


@pytest.mark.full
@pytest.mark.parametrize(
    "written",
    ["", "{", "[]", '{"pid": "x"}', '{"pid": 12, "user": [1], "colour": 3}', "\0" * 70000, '{"user": "\\u001b[2J\\n"}'],
)
def test_what_others_write_into_the_file_does_no_harm(
    chip: Callable[..., None], other: Callable[..., Other], folder: Path, written: str
) -> None:
    chip(Sharing.ONE_PROCESS)
    child = other()
    assert child(MAKE) == "ok"
    (folder / "pjrt-lock-chip.all.lock").write_text("\n" + written)
    with pytest.raises(pjrt.FailedPreconditionError, match="allows clients in one process, and ") as caught:
        pjrt.client("lock-chip")
    assert caught.value.message.isprintable()


@posix_only
@pytest.mark.parametrize("name", ["pjrt-lock-chip.lock", "pjrt-lock-chip.all.lock"])
@pytest.mark.parametrize("trap", ["symlink", "dangling", "hard link", "pipe", "folder"])
def test_no_file_of_somebody_else_is_touched(
    chip: Callable[..., None], folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str, trap: str
) -> None:
    """Every user may put anything into the folder; nothing is written through it, and nothing hangs."""
    chip(Sharing.ONE_CLIENT)
    precious = tmp_path_factory.mktemp("home") / "precious"
    if trap != "dangling":
        precious.write_text("keep")
    match trap:
        case "symlink" | "dangling":
            (folder / name).symlink_to(precious)
        case "hard link":
            os.link(precious, folder / name)
        case "pipe":
            os.mkfifo(folder / name)
        case "folder":
            (folder / name).mkdir()
    with pytest.raises(pjrt.UnavailableError, match="the lock of the device 'lock-chip' cannot be used"):
        pjrt.client("lock-chip")
    assert precious.read_text() == "keep" if trap != "dangling" else not precious.exists()


def test_a_folder_that_is_not_there(chip: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip(Sharing.ONE_CLIENT)
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "nowhere"))
    with pytest.raises(pjrt.UnavailableError, match=f"set {FOLDER_VARIABLE} to a folder"):
        pjrt.client("lock-chip")


@posix_only
def test_every_user_may_use_the_files(chip: Callable[..., None], folder: Path) -> None:
    """Other users of the machine have to be able to lock them, whatever the umask of who came first."""
    chip(Sharing.ONE_CLIENT)
    before = os.umask(0o077)
    try:
        pjrt.client("lock-chip").close()
    finally:
        os.umask(before)
    files = list(folder.glob("pjrt-lock-chip*.lock"))
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666}
    assert {file.read_text() for file in files} == {""}, "who has given it back is not named any more"


@posix_only
def test_the_usual_folder_is_one_for_all_users() -> None:
    mode = system.shared_folder().stat().st_mode
    assert mode & stat.S_IWOTH
    assert mode & stat.S_ISVTX, "there nobody can remove the files of others"


def test_a_path_is_no_way_out_of_the_folder(folder: Path) -> None:
    plugins.register(name="..chip%2f", factory=make_client, sharing=Sharing.ONE_CLIENT)
    try:
        with pjrt.client("..chip%2f"), pytest.raises(pjrt.FailedPreconditionError):
            pjrt.client("..chip%2f")
    finally:
        plugins.unregister("..chip%2f")
    assert len(list(folder.glob("*.lock"))) == 2


def test_of_many_threads_one_gets_it(chip: Callable[..., None]) -> None:
    chip(Sharing.ONE_CLIENT)
    made: list[pjrt.Client] = []
    refused: list[pjrt.PjrtError] = []
    together = threading.Barrier(8)

    def work() -> None:
        together.wait(60)
        try:
            made.append(pjrt.client("lock-chip"))
        except pjrt.FailedPreconditionError as error:
            refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(made), len(refused)) == (1, 7)
    made.pop().close()
    pjrt.client("lock-chip").close()


def test_of_many_processes_one_gets_it(other: Callable[..., Other]) -> None:
    rivals = [other(Sharing.ONE_CLIENT) for _ in range(4)]
    for rival in rivals:
        assert rival.process.stdin
        rival.process.stdin.write(MAKE + "\n")
    for rival in rivals:
        assert rival.process.stdin
        rival.process.stdin.flush()
    said = [rival.process.stdout.readline().split()[0] for rival in rivals if rival.process.stdout]
    assert sorted(said) == ["FailedPreconditionError"] * 3 + ["ok"]


def test_the_tiny_plugin_is_locked_by_its_library(tiny_library: Path, folder: Path) -> None:
    """Closing and dropping a client of a library give the device back as well."""
    plugins.register(name="tiny-chip", library=tiny_library, sharing=Sharing.ONE_CLIENT)
    try:
        client = pjrt.client("tiny-chip")
        with pytest.raises(pjrt.FailedPreconditionError, match="'tiny-chip' allows one client"):
            pjrt.client("tiny-chip")
        client.close()
        client = pjrt.client("tiny-chip")
        buffer = client.buffer_from_host([1.0])
        del client
        with pytest.raises(pjrt.FailedPreconditionError, match="one client"):
            pjrt.client("tiny-chip")
        del buffer

        def is_free() -> bool:  # the plugin's thread may still be at the end of the transfer
            gc.collect()
            return device_lock.busy(plugins.declaration("tiny-chip")) == ""

        wait_until(is_free)
        pjrt.client("tiny-chip").close()
    finally:
        plugins.unregister("tiny-chip")
    assert (folder / f"pjrt-{tiny_library.stem}%2eso.all.lock").is_file()


def test_xla_closes_for_others_too(folder: Path) -> None:
    plugins.register(name="xla-chip", factory=make_xla_client, sharing=Sharing.ONE_CLIENT)
    try:
        pjrt.client("xla-chip").close()
        with pjrt.client("xla-chip"), pytest.raises(pjrt.FailedPreconditionError):
            pjrt.client("xla-chip")
    finally:
        plugins.unregister("xla-chip")


def make_xla_client(**options: Any) -> pjrt.Client:
    return pjrt.client("cpu", **options)


def test_who_wants_to_know_when_a_client_is_closed() -> None:
    told: list[str] = []
    client = pjrt.client("reference")
    client.add_close_callback(lambda: told.append("closed"))
    client.add_close_callback(lambda: told.append("closed, too"))
    client.close()
    client.close()
    assert told == ["closed", "closed, too"]
    client = pjrt.client("reference")
    client.add_close_callback(lambda: told.append("dropped"))
    del client
    gc.collect()
    assert told[2:] == ["dropped"]


def test_the_end_of_the_process_is_not_told() -> None:
    script = textwrap.dedent("""
        import pjrt
        client = pjrt.client("reference")
        client.add_close_callback(lambda: print("told"))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("", "")

"""The life and death of worker processes, at random moments: a job by hand.

    python tests/native/random_kills.py --kills 200 --stops 3 --forks 20 --hosts 20 --clients 1000

Workers are killed while commands of every kind run, and stopped for a while. Processes that have workers are forked and
killed; clients are made and closed. No call may hang, no process may crash, and nothing may be left behind. Each part
has a process of its own. The job prints what it saw, and ends with exit status 1 where a part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import pjrt
from pjrt.api.client import Client
from pjrt.api.future import Future
from pjrt.system import TemporaryFolder, fork

PATIENCE = 60.0
"""The seconds after which something counts as hanging, also beside other work. How long it takes is printed."""
STOPPED = 5.0
"""The seconds for which a worker is stopped."""
GROWTH = 24 << 20
"""By how many bytes a part may make its process larger: of 200 arrays that stay, it is a sixteenth."""
KILLED = "signal 9 ended it"

_TYPE, _FEW = "tensor<512x1024xf32>", "tensor<4xf32>"
ADD = f"""func.func @main(%x: {_TYPE}, %y: {_TYPE}) -> {_TYPE} {{
  %0 = stablehlo.add %x, %y : {_TYPE}
  return %0 : {_TYPE}
}}"""
CALL = f"""func.func @main(%x: {_TYPE}) -> {_TYPE} {{
  %0 = stablehlo.custom_call @same(%x) {{api_version = 4 : i32}} : ({_TYPE}) -> {_TYPE}
  return %0 : {_TYPE}
}}"""
MEET = f"""func.func @main(%x: {_FEW}) -> {_FEW} {{
  %0 = "stablehlo.all_reduce"(%x) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }}) {{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}} : ({_FEW}) -> {_FEW}
  return %0 : {_FEW}
}}"""
LIGHT = """import pjrt

def make():
    return pjrt.host.HostClient("light", compile=lambda program, options: lambda x, y: x + y)
"""
X = np.ones((512, 1024), np.float32)

Futures = Sequence[Future[Any]]


def same(x: np.ndarray, result: np.ndarray) -> None:
    np.copyto(result, x)


def new_client() -> Client:
    return pjrt.client("worker:reference", num_devices=2)


def children() -> set[int]:
    """Return the processes that this one has started, and has not waited for."""
    return {int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


def processes(folder: str, command: str = "") -> list[int]:
    """Return the other processes with a temporary folder whose command has a text."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = f"TMPDIR={folder}\0".encode() in (each / "environ").read_bytes()
            if is_ours and command.encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return once a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(0.005)


def held() -> dict[str, int]:
    """Return how many threads, files, shared memories, child processes and resident bytes this process has."""
    gc.collect()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "shared memories": Path("/proc/self/maps").read_text().count("pjrt-worker"),
        "children": len(children()),
        "bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    }


def grown(before: dict[str, int]) -> str:
    """Return by how much this process has grown since; fail where something was left behind."""

    def is_left() -> list[str]:
        now = held()
        return [name for name in before if now[name] > before[name] + (GROWTH if name == "bytes" else 0)]

    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not is_left(), "the end of what is left")
    assert not is_left(), f"left behind: {before} before, {held()} after"
    return f"{(held()['bytes'] - before['bytes']) / 1e6:+.1f} MB"


KINDS = (
    "compile", "load", "serialize", "launch", "launch and wait", "copy in", "copy out", "copy to a device", "write",
    "call back", "meet", "destroy",
)  # fmt: skip


class Work:
    """A client, and what makes commands of each kind of it: functions that return what is not there yet."""

    def __init__(self) -> None:
        before = children()
        self.client = client = new_client()
        (self.worker,) = children() - before
        client.register_ffi_handler("same", same)
        add, call = client.compile(ADD), client.compile(CALL)
        meet = client.compile(MEET, pjrt.CompileOptions(num_replicas=2))
        serialized = add.executable.serialize()
        x, there = client.buffer_from_host(X), client.devices[1]
        (double,) = add(x, x)
        few = [[client.buffer_from_host(np.ones(4, np.float32), device=device)] for device in client.devices]
        np.testing.assert_array_equal(double, 2 * X)

        def launch() -> Futures:
            (y,) = add(double, x)
            return y.ready(), add(y, y)[0].ready()

        def destroy() -> Futures:
            executable = client.compile(ADD)
            (y,) = executable(x, x)
            (z,) = executable(y, y)
            executable.delete()
            y.delete()
            return (z.ready(),)

        functions: Sequence[Callable[[], Futures | None]] = (
            lambda: client.compile(ADD.replace("512x1024", f"{random.randrange(1, 1000)}")) and None,
            lambda: client.deserialize(serialized).delete(),
            lambda: client.compile(ADD).executable.serialize() and None,
            launch,
            lambda: np.testing.assert_array_equal(add(double, x)[0], 3 * X),
            lambda: (client.buffer_from_host(X, device=there).ready(),),
            lambda: (double.to_host(), double.copy_raw_to_host(np.empty(64, np.float32), 4096)),
            lambda: (double.copy_to(there).ready(),),
            lambda: (add(x, x)[0].raw().copy_from_host(np.zeros(16, np.float32), 64),),
            lambda: (call(double)[0].to_host(),),
            lambda: [y.ready() for (y,) in meet.execute(few)],
            destroy,
        )
        self.commands = dict(zip(KINDS, functions, strict=True))

    def errors(self) -> dict[str, BaseException | None]:
        """Give a command of each kind, and return its first error."""

        def error_of(command: Callable[[], Futures | None]) -> BaseException | None:
            try:
                return first_error(command())
            except pjrt.PjrtError as error:
                return error

        return {kind: error_of(command) for kind, command in self.commands.items()}


def first_error(futures: Futures | None) -> BaseException | None:
    """Return the first error of what is not there yet, once all is."""
    return next((error for each in futures or () if (error := each.exception())), None)


def check(kind: str, error: BaseException | None, *others: type[BaseException]) -> None:
    """Fail where an error is neither that of a worker that was killed, nor another that may be."""
    is_right = error is None or (isinstance(error, pjrt.UnavailableError) and KILLED in str(error))
    assert is_right or isinstance(error, others), f"{kind}: expected UNAVAILABLE with {KILLED!r}, found {error!r}"


@contextlib.contextmanager
def commands(work: Work, kinds: Sequence[str], *others: type[BaseException]) -> Iterator[None]:
    """Have a thread for each kind give commands until one fails or the block ends. It begins when all threads have.

    Fails where one ends with an error that is not that of a worker that was killed, nor one of ``others``.
    """
    ends, begun = threading.Event(), threading.Semaphore(0)

    def repeat(kind: str) -> None:
        kept, error, release = deque[Futures | None](), None, begun.release
        while error is None and not ends.is_set():
            try:
                kept.append(work.commands[kind]())
            except Exception as raised:
                error = raised
            if len(kept) > 10:
                error = error or first_error(kept.popleft())
            release()
            release = int  # once
        for each in (error, *map(first_error, kept)):
            check(kind, each, *others)

    with ThreadPoolExecutor(len(kinds)) as pool:
        threads = [pool.submit(repeat, kind) for kind in kinds]
        for _ in kinds:
            begun.acquire()
        try:
            yield
        finally:
            ends.set()
    for each in threads:
        each.result()


def kill_at_work(kind: str) -> float:
    """Kill a worker during commands of a kind, and mostly of others; return when."""
    work, others = Work(), random.sample(KINDS, random.choice((0, 1, 3)))
    closed = () if kind in KINDS else (pjrt.FailedPreconditionError,)
    with commands(work, [kind, *others] if kind in KINDS else others or KINDS[:2], *closed):
        time.sleep(random.random() ** 3 * 0.3)
        begin = time.monotonic()
        if closed:
            closing = threading.Thread(target=work.client.close)
            closing.start()
        os.kill(work.worker, signal.SIGKILL)
        if closed:
            closing.join()
    for each, error in work.errors().items():
        assert error is not None, f"{each} works, and the worker was killed"
        check(each, error, *closed)
    work.client.close()
    return begin


def kill_at_start() -> float:
    """Kill a worker while its client is made, or shortly after; return when."""
    before = children()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(new_client)
        wait_until(lambda: children() - before, "a worker's start")
        time.sleep(random.random() * 0.8)
        begin = time.monotonic()
        os.kill(*(children() - before), signal.SIGKILL)
    if made.exception() is None:
        with made.result() as client:
            try:
                client.compile(ADD)
            except pjrt.PjrtError as error:
                check("compile", error)
    check("open", made.exception())
    return begin


def kills(count: int) -> str:
    """Kill workers."""
    longest, before = 0.0, held()
    kinds = [*KINDS, "open", "close"]
    for number in range(count):
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        kind = kinds[number % len(kinds)]
        begin = kill_at_start() if kind == "open" else kill_at_work(kind)
        longest = max(longest, time.monotonic() - begin)
        if number == min(count // 4, 2 * len(kinds)):
            before = held()
    Work().client.close()
    return f"all ended within {longest:.2f} s, {grown(before)}"


def stops(count: int) -> str:
    """Stop workers for a while."""
    for _ in range(count):
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        work = Work()
        with commands(work, random.sample(KINDS, 4)):
            time.sleep(random.random() * 0.3)
            os.kill(work.worker, signal.SIGSTOP)
            time.sleep(STOPPED)
            os.kill(work.worker, signal.SIGCONT)
        assert not any(work.errors().values())
        work.client.close()
    return "nothing was lost"


def in_fork(work: Work) -> NoReturn:
    """Use what a fork has of its parent's client, make a client of its own, and end the fork."""
    signal.alarm(int(2 * PATIENCE))  # it has none of the threads of faulthandler
    try:
        for each, error in work.errors().items():
            assert isinstance(error, pjrt.FailedPreconditionError), f"{each} in a fork: {error!r}"
        Work().client.close()
        work.client.close()
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def forks(count: int) -> str:
    """Fork this process while commands run."""
    work = Work()
    for _ in range(count):
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        with commands(work, random.sample(KINDS, 3)):
            time.sleep(random.random() * 0.1)
            child = fork()
            if child == 0:
                in_fork(work)
            assert os.waitpid(child, 0)[1] == 0
    assert not any(work.errors().values())
    work.client.close()
    return "both sides went on"


def host() -> None:
    """Work until this process is killed; on request, a fork of it outlives it."""
    with commands(Work(), random.sample(KINDS, 4)):
        print("works", flush=True)
        if sys.stdin.readline() == "fork\n" and fork() == 0:
            signal.pause()
        print("goes on", flush=True)
        time.sleep(1000)


def hosts(count: int) -> str:
    """Kill processes that have workers, also while they start and where they have a fork."""
    longest, folder = 0.0, tempfile.gettempdir()
    for number in range(count):
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        command = [sys.executable, __file__, "--host"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            if number % 2:
                assert process.stdout.readline() == "works\n"
                process.stdin.write("fork\n" if number % 4 == 3 else "\n")
                process.stdin.flush()
                assert process.stdout.readline() == "goes on\n"
            time.sleep(random.random() * (0.3 if number % 2 else 3))
            process.kill()
            begin = time.monotonic()
            wait_until(lambda: not processes(folder, "native.worker"), "a worker's end")
            longest = max(longest, time.monotonic() - begin)
        for pid in processes(folder, "--host"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes(folder, "--host"), "a fork's end")

    def is_swept() -> bool:
        TemporaryFolder("swept").close()  # each new one removes those of processes that have ended by then
        return all(f"-{os.getpid()}-" in each for each in os.listdir(folder))

    wait_until(is_swept, "the end of temporary folders")
    return f"their workers ended within {longest:.2f} s"


def clients(count: int) -> str:
    """Make and close clients, eight at a time."""
    file = Path(tempfile.gettempdir(), "light.py")
    file.write_text(LIGHT)

    def live(_: int) -> None:
        with pjrt.client(f"worker:{file}:make") as client:
            np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], 2 * X)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(16)))
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)  # by a thread of its own
        before = held()
        for _ in pool.map(live, range(count)):
            faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        growth = grown(before)
    file.unlink()
    return growth


PARTS = {
    "kills": (kills, 200),
    "stops": (stops, 3),
    "forks": (forks, 20),
    "hosts": (hosts, 20),
    "clients": (clients, 1000),
}


def run(name: str, count: int, seed: int) -> bool:
    """Run a part in a process of its own; return whether it went well and left nothing behind."""
    folder = tempfile.mkdtemp(prefix="random-kills-")
    command = [sys.executable, __file__, "--part", name, f"--{name}", str(count), "--seed", str(seed)]
    begin = time.monotonic()
    done = subprocess.run(command, env={**os.environ, "TMPDIR": folder, "MALLOC_MMAP_THRESHOLD_": "65536"}, check=False)
    left = [*(f"process {pid}" for pid in processes(folder)), *os.listdir(folder)]
    is_right = done.returncode == 0 and not left
    if is_right:
        os.rmdir(folder)
    else:
        print(f"exit status {done.returncode}, left behind: {left}: {shlex.join(command)}", file=sys.stderr)
    print(f"{count} {name} in {time.monotonic() - begin:.0f} s: {'right' if is_right else 'WRONG'}", flush=True)
    return is_right


def main() -> int:
    """Run all parts, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (function, count) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=function.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    faulthandler.enable()
    if arguments.host:
        host()
    if arguments.part:
        random.seed(arguments.seed)
        print(f"{arguments.part}: {PARTS[arguments.part][0](getattr(arguments, arguments.part))}", flush=True)
        return 0
    counts = {name: getattr(arguments, name) for name in PARTS}
    results = [run(name, count, arguments.seed) for name, count in counts.items() if count]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())

"""A worker that several processes share: each has arrays, executables and functions of its own, on one device."""

from __future__ import annotations

import ast
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_until
from worker_programs import SUM_OF_TWO

import pjrt
from pjrt import native
from pjrt.api.client import Client

DEVICE = """
import os
import sys
import threading

import numpy as np

import pjrt
from pjrt.devices.reference.plugin import ReferencePlugin


def make(memory=None, **options):
    client = ReferencePlugin().client(memory_limit=memory, **options)

    def about(result):
        result[...] = os.getpid(), threading.active_count()

    def endless(x, result):
        while True:
            pass

    def say(x, result):
        print("the sum is", float(x.sum()), file=sys.stderr, flush=True)

    client.register_ffi_handler("about", about)
    client.register_ffi_handler("endless", endless)
    client.register_ffi_handler("say", say)
    return client
"""
ABOUT = """
func.func @main() -> tensor<2xi64> {
  %0 = stablehlo.custom_call @about() {api_version = 4 : i32} : () -> tensor<2xi64>
  return %0 : tensor<2xi64>
}"""
ADD = """
func.func @main(%x: tensor<1024xf32>, %y: tensor<1024xf32>) -> tensor<1024xf32> {
  %0 = stablehlo.add %x, %y : tensor<1024xf32>
  return %0 : tensor<1024xf32>
}"""
CALL = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @TARGET(%x) {api_version = 4 : i32, has_side_effect = true}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
X = np.arange(1024, dtype=np.float32)
TAKEN = 64 + 128 + (1 << 20) + 64
"""The place in the shared memory of the number of bytes of answers that the process has read."""

HOST = """
import ast, os, sys, threading, numpy as np, pjrt
plugin = pjrt.load_plugin(sys.argv[1])
for line in sys.stdin:
    name, code = ast.literal_eval(line)
    try:
        exec(code, globals())
        answer = eval(name, globals())
    except pjrt.PjrtError as error:
        answer = str(error)
    print(repr(answer), flush=True)
"""


class Host:
    """Another process that uses the device.

    Args:
        library: the library.
    """

    def __init__(self, library: Path) -> None:
        command = [sys.executable, "-c", HOST, str(library)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ask(self, code: str, name: str = "None") -> Any:
        """Return the value of an expression after some code; the message of an error of the package."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(repr((name, code)) + "\n")
        self.process.stdin.flush()
        return ast.literal_eval(self.process.stdout.readline())

    def end(self) -> str:
        """End the process by the end of its input, and return what it wrote to standard error."""
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library whose device no other test has: devices are shared by their place."""
    (tmp_path / "device.py").write_text(DEVICE)
    return native.write_library(tmp_path / "device.so", f"{tmp_path}/device.py:make", driver="worker", shared=True)


@pytest.fixture
def new_host(library: Path) -> Iterator[Callable[[], Host]]:
    """Start processes that use the device; kill those that are left."""
    hosts: list[Host] = []

    def new() -> Host:
        hosts.append(Host(library))
        return hosts[-1]

    yield new
    for host in hosts:
        host.process.kill()
        host.process.communicate()


def new_client(library: Path, **options: Any) -> Client:
    return pjrt.load_plugin(library).client(**options)


def worker_of(client: Client) -> int:
    """Return the process that computes for a client."""
    return int(np.asarray(client.compile(ABOUT)()[0])[0])


def name_of(folder: Path) -> str:
    """Return the name at which processes meet that share the device of a folder."""
    number = 14695981039346656037
    for byte in b"\0".join([sys.executable.encode(), f"{folder}/device.py:make".encode(), b"", b""]):
        number = (number ^ byte) * 1099511628211 % 2**64
    return f"pjrt-{os.geteuid()}-{number:016x}"


def test_clients_have_one_worker(library: Path) -> None:
    """It serves each as if it were alone, and ends with the last one. Each counts its own memory."""
    with new_client(library) as first:
        kept = first.buffer_from_host(X)
        with new_client(library) as second:
            worker = worker_of(first)
            assert worker == worker_of(second)
            ended = os.pidfd_open(worker)
            for client in (first, second):
                np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], X + X)
            sums = [second.compile(ADD)(X, X)[0] for _ in range(3)]

            def used() -> list[int]:
                return [client.devices[0].memory_stats().bytes_in_use for client in (first, second)]

            wait_until(lambda: used() == [X.nbytes, len(sums) * X.nbytes], "the memory of each")
        np.testing.assert_array_equal(first.compile(ADD)(kept, X)[0], X + X)
        assert not select.select([ended], [], [], 0)[0]
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
    with new_client(library) as client:
        assert worker_of(client) != worker


def test_processes_that_start_at_the_same_moment_meet(library: Path, new_host: Callable[[], Host]) -> None:
    hosts = [new_host() for _ in range(4)]
    make = f"client = plugin.client(); about = client.compile({ABOUT!r}); (pid, _) = np.asarray(about()[0]).tolist()"
    with ThreadPoolExecutor(4) as pool:
        workers = list(pool.map(lambda host: host.ask(make, "pid"), hosts))
    assert len(set(workers)) == 1
    ended = os.pidfd_open(workers[0])
    for host in hosts:
        host.end()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


def test_memory_of_a_killed_process_is_free_for_others(library: Path, new_host: Callable[[], Host]) -> None:
    """The memory of the device is one. What a process holds of it no other one gets, until it ends, however it does."""
    host = new_host()
    memory = 16 * X.nbytes
    make = f"client = plugin.client(memory={memory}); add = client.compile({ADD!r}); x = np.ones(1024, np.float32)"
    keep = "kept = [add(x, x)[0] for _ in range(12)]; kept[-1].ready().result()"
    assert host.ask(f"{make}; {keep}; count = len(kept)", "count") == 12
    with new_client(library, memory=memory) as client:
        add = client.compile(ADD)

        def has_room() -> bool:
            try:
                results = [add(X, X)[0] for _ in range(8)]
                for result in results:
                    np.testing.assert_array_equal(result, X + X)
            except pjrt.ResourceExhaustedError:
                return False
            return True

        assert not has_room()
        assert host.ask("", "np.asarray(kept[3])[:2].tolist()") == [2, 2]
        host.process.kill()
        wait_until(has_room)


def test_a_killed_worker_is_an_error_for_all(library: Path, new_host: Callable[[], Host]) -> None:
    """Only the process that started it knows how it ended. A new client of any process starts a new one."""
    host = new_host()
    host.ask(f"client = plugin.client(); add = client.compile({ADD!r}); x = np.ones(1024, np.float32)")
    with new_client(library) as client:
        add, worker = client.compile(ADD), worker_of(client)
        os.kill(worker, 9)
        with pytest.raises(pjrt.UnavailableError, match="has ended; a new client starts a new one"):
            [np.asarray(add(X, X)[0]) for _ in range(3)]
        message = host.ask("[np.asarray(add(x, x)[0]) for _ in range(3)]")
        assert "signal 9 ended it; a new client starts a new one" in message
    new = f"client = plugin.client(); (pid, _) = np.asarray(client.compile({ABOUT!r})()[0]).tolist()"
    assert host.ask(new, "pid") not in (worker, None)
    with new_client(library) as client:
        np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], X + X)


def test_each_process_has_its_functions_called(library: Path, new_host: Callable[[], Host]) -> None:
    """Handlers of one name in two processes, also of the name that a client of the device has."""
    program = CALL.replace("TARGET", "scaled")
    host = new_host()
    host.ask("def scaled(x, result):\n    result[...] = x * 2\nclient = plugin.client()")
    host.ask(f"client.register_ffi_handler('scaled', scaled); call = client.compile({program!r})")
    with new_client(library) as client:

        def scaled(x: Any, result: Any) -> None:
            result[...] = x * 3

        client.register_ffi_handler("scaled", scaled)
        call = client.compile(program)
        for _ in range(2):
            np.testing.assert_array_equal(call(np.ones(4, np.float32))[0], np.full(4, 3))
            assert host.ask("result = np.asarray(call(np.ones(4, np.float32))[0]).tolist()", "result") == [2] * 4


def test_other_options_are_refused(library: Path) -> None:
    with new_client(library, num_devices=2) as client:
        with pytest.raises(pjrt.InvalidArgumentError, match=r"another process .* \{'num_devices': 2\}, found \{\}"):
            new_client(library)
        with new_client(library, num_devices=2) as other:
            assert len(other.devices) == len(client.devices) == 2
    with new_client(library) as client:
        assert len(client.devices) == 1


def test_a_place_in_a_job_is_no_option_of_the_device(library: Path) -> None:
    """JAX gives it to every plugin; other programs that share the device do not."""
    with new_client(library) as client, new_client(library, node_id=0, num_nodes=1) as other:
        assert worker_of(client) == worker_of(other)
        with pytest.raises(pjrt.UnimplementedError, match="found a job of 2 processes"):
            new_client(library, node_id=0, num_nodes=2)


def test_programs_of_several_devices_do_not_wait_for_each_other(library: Path) -> None:
    """All devices get the executions of different clients in one order."""
    clients = [new_client(library, num_devices=2) for _ in range(3)]
    failures: list[BaseException] = []

    def run(client: Client, scale: int) -> None:
        try:
            executable = client.compile(SUM_OF_TWO, pjrt.CompileOptions(num_replicas=2))
            values = [np.full(4, n * scale, np.float32) for n in (1, 2)]
            results = []
            for _ in range(50):
                buffers = zip(values, client.devices, strict=True)
                results.append(executable.execute([[client.buffer_from_host(v, device=d)] for v, d in buffers]))
            for result in results:
                for (each,) in result:
                    np.testing.assert_array_equal(each, np.full(4, 3 * scale))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(client, n), daemon=True) for n, client in enumerate(clients, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failures
    for client in clients:
        client.close()


def test_a_process_that_writes_what_cannot_be_loses_the_device_alone(
    library: Path, new_host: Callable[[], Host]
) -> None:
    host = new_host()
    host.ask(f"client = plugin.client(); add = client.compile({ADD!r}); x = np.ones(1024, np.float32)")
    with new_client(library) as client:
        add = client.compile(ADD)
        np.testing.assert_array_equal(add(X, X)[0], X + X)
        host.ask(
            "import mmap, pathlib\n"
            "(file,) = [f for f in pathlib.Path('/proc/self/fd').iterdir() if 'pjrt-worker' in str(f.resolve())]\n"
            f"mmap.mmap(os.open(file, os.O_RDWR), {2 * TAKEN})[{TAKEN}:{TAKEN + 8}] = b'\\x10' * 8"
        )
        message = host.ask("[np.asarray(add(x, x)[0]) for _ in range(3)]")
        assert "closed the connection" in message, message
        np.testing.assert_array_equal(add(X, X)[0], X + X)


def test_a_program_that_does_not_end(library: Path, new_host: Callable[[], Host]) -> None:
    """It ends with its process; the others wait for it only as long."""
    host = new_host()
    program = CALL.replace("TARGET", "endless")
    with new_client(library) as client:
        add = client.compile(ADD)
        host.ask(f"client = plugin.client(); call = client.compile({program!r})")
        host.ask("late = call(np.ones(4, np.float32))")
        host.process.kill()
        np.testing.assert_array_equal(add(X, X)[0], X + X)


def test_the_watchdog_ends_a_program_of_one_client(library: Path) -> None:
    """The worker ends what the process gave up, and nothing of the others."""
    with new_client(library) as other, new_client(library, watchdog_seconds=1) as client:
        add = other.compile(ADD)
        endless = client.compile(CALL.replace("TARGET", "endless"))
        with pytest.raises(pjrt.DeadlineExceededError):
            np.asarray(endless(np.ones(4, np.float32))[0])
        np.testing.assert_array_equal(add(X, X)[0], X + X)
        np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], X + X)


def test_the_oldest_process_gets_what_the_worker_prints(library: Path, new_host: Callable[[], Host]) -> None:
    first, second = new_host(), new_host()
    program = CALL.replace("TARGET", "say")
    for host in (first, second):
        host.ask(f"client = plugin.client(); call = client.compile({program!r}); x = np.ones(4, np.float32)")
    second.ask("np.asarray(call(x)[0])")
    assert "[device] the sum is 4.0" in first.end()
    second.ask("np.asarray(call(2 * x)[0])")
    assert "[device] the sum is 8.0" in second.end()


def test_a_device_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("raise SystemExit(3)")
    library = native.write_library(tmp_path / "wrong.so", f"{tmp_path}/wrong.py:make", driver="worker", shared=True)
    with pytest.raises(pjrt.PjrtError, match="SystemExit"):
        new_client(library)


def test_a_python_that_is_none(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before it has answered: with its exit status, not with one attempt after the other."""
    monkeypatch.setenv("PJRT_WORKER_PYTHON", "/bin/false")
    with pytest.raises(pjrt.UnavailableError, match="it ended with exit status 1"):
        new_client(library)
    monkeypatch.setenv("PJRT_WORKER_PYTHON", "/no/python")
    with pytest.raises(pjrt.UnavailableError, match="could not be started"):
        new_client(library)


def test_a_fork_of_a_process_leaves_the_worker_alone(library: Path, new_host: Callable[[], Host]) -> None:
    host = new_host()
    host.ask(f"client = plugin.client(); add = client.compile({ADD!r}); x = np.ones(1024, np.float32)")
    host.ask(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        np.asarray(add(x, x)[0])\n"
        "    except pjrt.FailedPreconditionError:\n"
        "        os._exit(0)\n"
        "    os._exit(1)\n"
        "status = os.waitpid(child, 0)[1]",
    )
    assert host.ask("", "status") == 0
    assert host.ask("result = np.asarray(add(x, x)[0])[:2].tolist()", "result") == [2, 2]


@pytest.mark.full
def test_sessions_leave_nothing(library: Path) -> None:
    """Clients that come and go leave no thread and no open file in the worker."""
    with new_client(library) as client:

        def held() -> tuple[int, int]:
            worker, threads = np.asarray(client.compile(ABOUT)()[0]).tolist()
            return threads, len(os.listdir(f"/proc/{worker}/fd"))

        before = held()
        for _ in range(50):
            with new_client(library) as other:
                np.testing.assert_array_equal(other.compile(ADD)(X, X)[0], X + X)
        wait_until(lambda: held() == before, f"threads and files {before}")


def test_memory_that_may_shrink_is_refused(library: Path, tmp_path: Path) -> None:
    """To read behind the end of a file would end the worker."""
    with new_client(library) as client, socket.socket(socket.AF_UNIX) as connection:
        file = os.memfd_create("pjrt-test", os.MFD_ALLOW_SEALING)
        os.truncate(file, 4 << 20)
        connection.connect(f"\0{name_of(tmp_path)}")
        socket.send_fds(connection, [b"\0"], [file, connection.fileno()])
        assert connection.recv(1) == b""
        os.close(file)
        np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], X + X)


@pytest.mark.full
def test_another_user_has_the_name(library: Path, tmp_path: Path) -> None:
    """Whoever comes first gets the name of a socket: a process of another user gets no device of this one."""
    if os.geteuid() != 0:
        pytest.skip("only the administrator can be another user")
    code = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "listener = socket.socket(socket.AF_UNIX)\n"
        f"listener.bind('\\0{name_of(tmp_path)}')\n"
        "listener.listen()\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(pjrt.PermissionDeniedError, match="found one of another user"):
            new_client(library)
        other.communicate()
    with new_client(library) as client:
        np.testing.assert_array_equal(client.compile(ADD)(X, X)[0], X + X)


JAX = """
import sys, numpy as np
from pjrt.frameworks import jax as pjrt_jax
pjrt_jax.register(sys.argv[1], platform="chip", make_default=True, num_devices=2)
import jax, jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec
scale = int(sys.argv[2])
sharding = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
seen = []

@custom_partitioning
def scaled(x):
    return x * scale

scaled.def_partition(
    infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
    partition=lambda mesh, operands, result: (mesh, lambda x: x * scale, result.sharding, (result.sharding,)),
    sharding_rule="i -> i",
)

@jax.jit
def called(x):
    jax.debug.callback(lambda value: seen.append(np.asarray(value).copy()), x)
    return jax.pure_callback(lambda value: np.asarray(value) * scale, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

for step in range(4):
    x = jax.device_put(jnp.arange(8.0) + step, sharding)
    np.testing.assert_array_equal(jax.jit(lambda x: scaled(x) + step)(x), np.asarray(x) * scale + step)
    np.testing.assert_array_equal(called(x), np.asarray(x) * scale)
    np.testing.assert_array_equal(called(jnp.ones(3) + step), np.full(3, (1 + step) * scale))
jax.effects_barrier()
assert len(seen) == 8, seen
"""


@pytest.mark.full
def test_jax_in_three_processes(library: Path) -> None:
    """Callbacks, also of sharded programs, and the functions of `custom_partitioning` are those of each process."""
    hosts = [
        subprocess.Popen([sys.executable, "-c", JAX, str(library), str(n)], stderr=subprocess.PIPE, text=True)
        for n in (2, 3, 5)
    ]
    for host in hosts:
        _, errors = host.communicate(timeout=240)
        assert host.returncode == 0, errors


def test_drivers_in_c_are_not_shared(tmp_path: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="a device in Python to be shared, found the driver 'host'"):
        native.write_library(tmp_path / "host.so", "module:compile", shared=True)

"""Clients of a server at random moments, and attackers of it: a job by hand.

    python tests/remote/random_sessions.py --sessions 1000 --messages 100000 --programs 2000 --beside 10
    python tests/remote/random_sessions.py --messages 1000000 --programs 100000 --seconds 3600 --state state.json

Each part has a server of its own, a process of ``pjrt serve`` with a process for each client. Clients come and go, 64
at a time, while their processes are killed. Mutated messages and programs are sent. A client measures its steps beside
an honest client, and beside attackers. The server may not end or grow, and nothing may be left behind. The job prints
what it saw, and ends with exit status 1 where a part failed. With a state file, messages and programs go on where the
last run stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import pjrt

HERE = Path(__file__).parent
PATIENCE = 60.0
"""The seconds after which something counts as hanging."""
AT_ONCE = 64
GROWTH = {"bytes": 24 << 20, "processes": 1, "folders": 1, "files": 2}
"""By how much the server may grow after it has seen some clients: the process that is always ready may have been on its
way."""
ENDED = ("UNAVAILABLE", "CANCELLED")
"""The errors that a client gets whose process was killed."""
ADD = """func.func @main(%x: tensor<256xf32>) -> tensor<256xf32> {
  %0 = stablehlo.add %x, %x : tensor<256xf32>
  return %0 : tensor<256xf32>
}"""
LOOP = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.while(%i = %x) : tensor<f32>
    cond { %c = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %c : tensor<i1> }
    do { stablehlo.return %i : tensor<f32> }
  return %0 : tensor<f32>
}"""
X = np.arange(256, dtype=np.float32)


def wait_until_not(condition: Callable[[], object], what: Callable[[], str]) -> None:
    """Return once a condition holds no more."""
    end = time.monotonic() + PATIENCE
    while condition():
        if time.monotonic() > end:
            raise TimeoutError(what())
        time.sleep(0.05)


class Front:
    """A server in a process of its own, with a folder for all its temporary files.

    Args:
        device: the name of the device.
        arguments: further ones of ``pjrt serve``.
    """

    def __init__(self, device: str, *arguments: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="random-sessions-"))
        self.device = device
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pjrt", "serve", device, "--isolate", "yes", "--max-sessions", "200", *arguments],
            env={**os.environ, "TMPDIR": str(self.folder), "MALLOC_MMAP_THRESHOLD_": "65536"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        self.address = self._process.stdout.readline().split()[-1]

    def is_up(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[int]:
        """Return the processes that it has started, and those that they have."""
        children: dict[int, list[int]] = {}
        for each in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = each.read_text().rpartition(") ")[2].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(each.parent.name))
        found, next_ones = [], [self._process.pid]
        while next_ones:
            next_ones = [child for parent in next_ones for child in children.get(parent, ())]
            found += next_ones
        return found

    def clients(self) -> list[int]:
        """Return the processes of clients: they lead sessions of their own, as the first of all does."""
        return [pid for pid in self.processes()[1:] if self._leads(pid)]

    def _leads(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return os.getsid(pid) == pid
        return False

    def held(self) -> dict[str, int]:
        """Return how many bytes, threads, files, processes and temporary folders it has."""
        pid = self._process.pid
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return {
            "bytes": int(status["RssAnon"].split()[0]) << 10,
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "files": len(os.listdir(f"/proc/{pid}/fd")),
            "processes": len(self.processes()),
            "folders": len(list(self.folder.iterdir())),
        }

    def grown(self, before: dict[str, int]) -> str:
        """Return by how much it has grown since; fail where something was left behind."""

        def left() -> list[str]:
            now = self.held()
            return [name for name in before if now[name] > before[name] + GROWTH.get(name, 0)]

        wait_until_not(left, lambda: f"left behind: {before} before, {self.held()} after")
        return f"the server {(self.held()['bytes'] - before['bytes']) / 1e6:+.1f} MB"

    def stop(self) -> None:
        """End it in order, and see that nothing of it is left."""
        others = self.processes()
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE) == 0, f"exit status {self._process.returncode}"
        wait_until_not(
            lambda: [pid for pid in others if Path(f"/proc/{pid}").exists()],
            lambda: f"processes outlive the server: {others}",
        )
        assert not list(self.folder.iterdir()), f"files are left in {self.folder}"
        self.folder.rmdir()


@contextlib.contextmanager
def served(device: str, *arguments: str) -> Iterator[Front]:
    front = Front(device, *arguments)
    try:
        yield front
        assert front.is_up(), "the server has ended"
        front.stop()
    finally:
        if front.is_up():
            front._process.kill()


def live(front: Front, chance: random.Random) -> str:
    """Be a client that goes at some stage; return how it ended."""
    stage = chance.randrange(5)
    try:
        client = pjrt.client("remote", address=front.address, timeout=PATIENCE)
        try:
            if stage > 0:
                kept = client.buffer_from_host(X)
            if stage > 1:
                executable = client.compile(ADD)
                results = [executable(kept)[0] for _ in range(chance.randrange(1, 20))]
            if stage > 2:
                for result in results:
                    assert np.array_equal(np.asarray(result), X + X), "a wrong result"
        finally:
            client.close()
    except pjrt.PjrtError as error:
        if error.code.name not in ENDED:
            raise
        return "ended by a kill"
    return f"went at stage {stage}"


def sessions(device: str, count: int, seed: int, _: Progress) -> str:
    """Clients that come and go, 64 at a time; a fifth as many processes of clients are killed."""
    found: Counter[str] = Counter()
    with served(device) as front, ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: live(front, random.Random(f"{seed}:{number}")), range(AT_ONCE)))
        before = front.held()
        futures = [pool.submit(live, front, random.Random(f"{seed}:{AT_ONCE + number}")) for number in range(count)]
        chance, kills = random.Random(seed), 0
        while kills < count // 5:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(front.clients()), signal.SIGKILL)
                kills += 1
            while sum(future.done() for future in futures) < min(5 * kills, count):
                time.sleep(0.01)
        found.update(future.result(PATIENCE) for future in futures)
        assert found["ended by a kill"] <= kills, f"more sessions ended than processes were killed: {found}"
        growth = front.grown(before)
    return f"{kills} kills, {dict(found)}, {growth}"


class Progress:
    """The state of a part that goes on from one run to the next.

    Args:
        title: the part, with all that its numbers depend on.
        path: the file with the state of all parts; ``None`` to begin anew and keep nothing.
        seconds: how long it may take now.

    Attributes:
        number: the number of the next round.
        found: how often each thing was seen.
    """

    def __init__(self, title: str, path: Path | None = None, seconds: float = float("inf")) -> None:
        self._title, self._path = title, path
        self._end = time.monotonic() + seconds
        saved = {} if path is None or not path.exists() else json.loads(path.read_text()).get(title, {})
        self.number: int = saved.get("number", 0)
        self.found: Counter[str] = Counter(saved.get("found", {}))

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def advance(self) -> None:
        """Count one more round as done."""
        self.number += 1
        if self._path is not None:
            saved = json.loads(self._path.read_text()) if self._path.exists() else {}
            saved[self._title] = {"number": self.number, "found": dict(self.found)}
            self._path.write_text(json.dumps(saved, indent=1))


@contextlib.contextmanager
def ended_after(seconds: float, client: Any, found: Counter[str]) -> Iterator[None]:
    """Let a client go that is not done in time: a parser that does not come back keeps its process from answering."""

    def end() -> None:
        found["sessions that took too long"] += 1
        client.close()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def messages(device: str, count: int, seed: int, progress: Progress) -> str:
    """Mutated messages of recorded sessions, beside a session that keeps an array."""
    sys.path[:0] = [str(HERE.parents[1]), str(HERE / "security")]
    from benchmarks.fuzz.message_mutations import mutate_fields
    from benchmarks.fuzz.mutations import mutate_bytes
    from benchmarks.fuzz.sessions import STORE, read
    from google.protobuf.message import DecodeError
    from message_client import MessageClient

    from pjrt.remote.protocol.messages import wire

    parts, found, first = read(), progress.found, progress.number
    with served(device, "--max-process-memory", "8GiB") as front:
        honest = pjrt.client("remote", address=front.address)
        kept = honest.buffer_from_host(X)
        before: dict[str, int] = {}
        while found["messages"] < count and not progress.is_over:
            chance = random.Random(f"{seed}:{progress.number}")
            with (
                contextlib.suppress(pjrt.PjrtError),
                MessageClient(front.address) as client,
                ended_after(PATIENCE, client, found),
            ):
                for event in (event for part in chance.choices(parts, k=8) for event in part):
                    if event.kind == STORE:
                        with contextlib.suppress(pjrt.AlreadyExistsError):
                            client.store(event.handle, event.data)
                    if event.kind in (STORE, "none"):
                        continue
                    for turn in range(chance.choice((1, 2, 4))):  # the first is the recorded one
                        request = wire.IfrtRequest.FromString(event.data)
                        try:
                            if turn and chance.random() < 0.3:
                                request = wire.IfrtRequest.FromString(mutate_bytes(event.data, chance))
                            elif turn:
                                mutate_fields(request, chance, [1, 2, 3, 1 << 62, chance.randrange(1 << 64)])
                        except DecodeError:
                            if chance.random() < 0.99:  # what is no request ends a session
                                continue
                        if not turn or chance.random() < 0.9:
                            request.request_metadata.op_id = client.new_number()
                        client._stream.send(request.SerializeToString())
                        found["messages"] += bool(turn)
                # Requests are handled in order. What still waits then waits for what never comes.
                last = client.send("init")
                with client._arrived:
                    is_over = client._arrived.wait_for(
                        lambda client=client, last=last: last in client._responses or client.end is not None, 20
                    )
                    found["answered"] += len(client._responses)
                    ended = "that ended" if client.end is not None else "in order" if is_over else "that wait"
                    found[f"sessions {ended}"] += 1
                if client.end is not None:
                    print(f"round {progress.number} of seed {seed}: {client.end}", file=sys.stderr, flush=True)
            assert front.is_up(), f"round {progress.number} of seed {seed} ended the server"
            progress.advance()
            if progress.number == first + 20:
                before = front.held()
        assert np.array_equal(np.asarray(kept), X), "the array of another client has changed"
        growth = front.grown(before) if before else ""
        honest.close()
    return f"{dict(found)}, {growth}"


def programs(device: str, count: int, seed: int, progress: Progress) -> str:
    """Mutated programs, each compiled for a client, which comes again when it was ended."""
    sys.path[:0] = [str(HERE.parents[1]), str(HERE / "security")]
    from benchmarks.fuzz.mutations import Mutator
    from benchmarks.fuzz.sessions import read
    from message_client import MessageClient

    from pjrt.remote.protocol.messages import wire

    data = next(event.data for part in read() for event in part if event.kind == "compile_request")
    request = wire.IfrtRequest.FromString(data).compile_request
    mutator, found, client = Mutator(seed, 0.3), progress.found, None
    with served(device, "--max-process-memory", "8GiB") as front:
        honest = pjrt.client("remote", address=front.address)
        kept, before = honest.buffer_from_host(X), front.held()
        while progress.number < count and not progress.is_over:
            client = client or MessageClient(front.address)
            request.program.data = mutator.program(progress.number)
            sent = client.send("compile", **{field.name: value for field, value in request.ListFields()})
            try:
                if not client.has_answered(sent, PATIENCE):
                    raise pjrt.DeadlineExceededError("no answer")
                client.wait(sent)
                found["taken"] += 1
            except (pjrt.UnavailableError, pjrt.DeadlineExceededError) as error:
                took_too_long = isinstance(error, pjrt.DeadlineExceededError)
                found["took too long" if took_too_long else "ended their process"] += 1
                print(f"program {progress.number} of seed {seed}: {error.message}", file=sys.stderr, flush=True)
                client.close()
                client = None
            except pjrt.PjrtError:
                found["refused"] += 1
            assert front.is_up(), f"program {progress.number} of seed {seed} ended the server"
            progress.advance()
        if client is not None:
            client.close()
        assert np.array_equal(np.asarray(kept), X), "the array of another client has changed"
        growth = front.grown(before)
        honest.close()
    return f"{dict(found)}, {growth}"


def measure(address: str, token_file: str, seconds: float) -> None:
    """Print the median and the 99th percentile of a client's steps, in milliseconds."""
    client = pjrt.client("remote", address=address, token_file=token_file)
    executable, times = client.compile(ADD), []
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        assert np.array_equal(np.asarray(executable(client.buffer_from_host(X))[0]), X + X)
        times.append(time.perf_counter() - begin)
    client.close()
    print(*(1e3 * np.quantile(times, share) for share in (0.5, 0.99)), flush=True)


def endless(address: str, token_file: str, seconds: float) -> None:
    """Run a program that never ends."""
    client = pjrt.client("remote", address=address, token_file=token_file)
    client.compile(LOOP)(np.float32(0))
    time.sleep(seconds)
    os._exit(0)


def compiling(address: str, token_file: str, seconds: float) -> None:
    """Compile new programs without an end."""
    client, number = pjrt.client("remote", address=address, token_file=token_file), 256
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        client.compile(ADD.replace("256", str(number)))
    os._exit(0)


def silent(address: str, token_file: str, seconds: float) -> None:
    """Open connections on which nothing is said."""
    held, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1))
        del held[:-500]


def flooding(address: str, token_file: str, seconds: float) -> None:
    """Open such connections without waiting for the answer of the server's system."""
    held, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        held.append(socket.socket())
        held[-1].setblocking(False)
        held[-1].connect_ex(("127.0.0.1", int(address.rpartition(":")[2])))
        del held[:-500]


def guessing(address: str, token_file: str, seconds: float) -> None:
    """Show wrong tokens."""
    wrong = Path(token_file).with_name("wrong")
    wrong.touch(0o600)
    wrong.write_text(secrets.token_hex(16))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(pjrt.PjrtError):
            pjrt.client("remote", address=address, token_file=str(wrong))


BESIDE: dict[str, Callable[[str, str, float], None]] = {
    each.__name__: each for each in (measure, endless, compiling, silent, flooding, guessing)
}


def beside(device: str, seconds: int, seed: int, _: Progress) -> str:
    """The steps of a client for so many seconds: alone, beside an honest client, and beside attackers."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        names = ("alice", "bob")
        tokens = {name: secrets.token_hex(16) for name in names}
        for name, content in [*tokens.items(), ("tokens", "".join(f"{each} {tokens[each]}\n" for each in names))]:
            Path(folder, name).touch(0o600)
            Path(folder, name).write_text(content)
        with served(device, "--token-file", f"{folder}/tokens") as front:
            for name in ("", *BESIDE):
                command = [sys.executable, __file__, "--address", front.address]
                measured = subprocess.Popen(
                    [*command, "--be", "measure", "--token", f"{folder}/alice", "--beside", str(seconds)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert measured.stdout is not None
                assert measured.stdout.readline() == "ready\n"
                # The other one begins before the measured steps, and ends after them.
                other = [*command, "--be", name, "--token", f"{folder}/bob", "--beside", str(seconds + 8)]
                neighbor = subprocess.Popen(other, stdin=-1, stdout=subprocess.DEVNULL) if name else None
                if neighbor is not None and neighbor.stdin is not None:
                    neighbor.stdin.close()
                time.sleep(4)
                printed, _ = measured.communicate("go\n")
                median, last = map(float, printed.split())
                title = {"": "alone", "measure": "an honest client"}.get(name, name)
                found.append(f"{title}: {median:.2f} and {last:.2f} ms")
                if neighbor is not None:
                    neighbor.wait(PATIENCE)
    return "; ".join(found)


PARTS: dict[str, tuple[Callable[[str, int, int, Progress], str], int]] = {
    "sessions": (sessions, 1000),
    "messages": (messages, 100_000),
    "programs": (programs, 2000),
    "beside": (beside, 10),
}


def run(name: str, device: str, count: int, seed: int, progress: Progress) -> bool:
    """Run a part; return whether it went well and left nothing behind."""
    begin, result = time.monotonic(), "WRONG"
    try:
        result = PARTS[name][0](device, count, seed, progress)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    print(f"{name} on {device} in {time.monotonic() - begin:.0f} s: {result}", flush=True)
    return result != "WRONG"


def main() -> int:
    """Run all parts, or be one client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (function, count) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=function.__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, help="where to keep how far messages and programs are")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long each of these two may take now")
    for name in ("address", "token"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--be", choices=BESIDE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be:
        BESIDE[arguments.be](arguments.address, arguments.token, arguments.beside)
        return 0
    counts: dict[str, Any] = {name: getattr(arguments, name) for name in PARTS}
    device, seed = arguments.device, arguments.seed
    results = [
        run(name, device, count, seed, Progress(f"{name} {device} {seed}", arguments.state, arguments.seconds))
        for name, count in counts.items()
        if count
    ]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())

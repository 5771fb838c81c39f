"""A device whose programs do what a stranger's program could do after it has taken its process for itself.

A program is a module with the name of an attack. Its argument is a number for the attack; so is its result.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from toys import compiled

import pjrt
from pjrt.host import HostClient

_kept: list[Any] = []


def crash(_: int) -> int:
    """End the process as XLA does."""
    os.abort()


def leave(_: int) -> int:
    """End the process in order."""
    os._exit(0)


def spin(_: int) -> int:
    """Never end, and keep the interpreter."""
    while True:
        pass


def allocate(size: int) -> int:
    """Take memory, and return whether there was any."""
    try:
        _kept.append(bytearray(size))
    except MemoryError:
        return 0
    return 1


def connect(port: int) -> int:
    """Connect to a server of this machine, and return whether it could be reached."""
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return 0
    return 1


def connect_to_no_one(_: int) -> int:
    """Return how many kinds of sockets there are that reach further than this machine's files."""
    found = 0
    for family in (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", socket.AF_INET)):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                found += 1
            except OSError:
                continue
    return found


def call_the_kernel(_: int) -> int:
    """Return how many calls are let through that no program of a client needs."""
    library = ctypes.CDLL(None, use_errno=True)
    found = 0
    for call in (lambda: library.unshare(0x10000000), lambda: library.ptrace(0, 0, 0, 0), lambda: library.syscall(425)):
        ctypes.set_errno(0)
        found += call() != -1 or ctypes.get_errno() != errno.EPERM
    return found


def kill(process: int) -> int:
    """Kill another process, and return whether it was there."""
    try:
        os.kill(process, 9)
    except OSError:
        return 0
    return 1


def look_into(process: int) -> int:
    """Read the memory of another process, and return whether it could be read."""
    try:
        with open(f"/proc/{process}/mem", "rb"):
            return 1
    except OSError:
        return 0


def open_files(_: int) -> int:
    """Open as many files as there may be, and return their number."""
    try:
        while True:
            _kept.append(open(os.devnull))  # noqa: SIM115
    except OSError:
        count = len(_kept)
        _kept.clear()
        return count


def become_root(_: int) -> int:
    """Return whether a program that gives further rights could do so here."""
    return 0 if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text() else 1


def write(_: int) -> int:
    """Leave files, in the folders for them, and return whether all are inside of the process's own."""
    own = Path.cwd()
    caches = Path(os.environ["XDG_CACHE_HOME"])
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"x")
    (caches / "code").write_bytes(b"x")
    return int(Path(file.name).parent == own and caches == own)


def read(path: str) -> int:
    """Return the number of letters in a file; -1 if it may not be read."""
    try:
        return len(Path(path).read_text("latin-1"))
    except PermissionError:
        return -1


def overwrite(path: str) -> int:
    """Write to a file, and return whether that was possible."""
    try:
        Path(path).write_text("x")
    except OSError:
        return 0
    return 1


def stay(_: int) -> int:
    """Start a process that outlives its parent, and return 1."""
    source = "import os, signal\ntry: os.setsid()\nexcept OSError: pass\nif os.fork(): os._exit(0)\nsignal.pause()"
    subprocess.run([sys.executable, "-c", source, "pjrt-test-stays"], check=True)
    return 1


def babble(_: int) -> int:
    """Write to all sockets what no session of this package writes, and never end."""
    for file in range(3, 64):
        try:
            os.write(file, b"\xff" * 64)
        except OSError:
            continue
    return spin(0)


def stick(_: int) -> int:
    """Keep Python's lock without an end, as a parser in C does that never returns."""
    ctypes.PyDLL(None).pause()
    return 1


def hang_up(_: int) -> int:
    """Close all sockets, and never end."""
    os.closerange(3, 1024)
    return spin(0)


def log(_: int) -> int:
    """Have the server write its log full, with letters for its terminal."""
    import logging

    for number in range(1000):
        logging.getLogger("pjrt.remote").warning("\x1b[2J attack %s", number)
    return 1


def _compile(program: pjrt.Program, options: Any) -> Any:
    found = re.search(rb"attack_([a-z_]+?)(?:_([0-9a-f]{8,}))?\b", bytes(program.code))
    assert found is not None
    attack: Callable[[Any], int] = globals()[found[1].decode()]
    path = bytes.fromhex(found[2].decode()).decode() if found[2] else None
    return compiled(lambda x: np.asarray(attack(path or int(x)), np.int64), "s64[]", "s64[]")


def make_client() -> pjrt.Client:
    """Return the device."""
    return HostClient("captured", compile=_compile)

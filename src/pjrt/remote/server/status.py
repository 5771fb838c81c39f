"""The status of the servers of this user: which clients they have, and what these use; ``pjrt top`` shows it.

A process with servers answers on the loopback interface whoever shows its secret. The place and the secret are in a
file of the user's own, which the processes of clients cannot read where the system confines them to their files.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pjrt.api.errors import DataLossError
from pjrt.remote.server.server import Server
from pjrt.system import cache_folder, make_protected_folder, read_plain_file
from pjrt.system.processes import loopback_host, usage_of

_SECONDS = 5.0
"""The seconds that an answer may take."""
_SECRET_SECONDS = 1.0
"""The seconds in which the secret must be shown: another user's program may say nothing."""
_SECRET_BYTES = 16
_MOST_BYTES = 64 << 20


def status_folder() -> Path:
    """Return the folder with a file of each process with servers of this user; it need not exist."""
    return cache_folder() / "servers"


class StatusAnswers:
    """Answers of this process to those who ask for the status of its servers, until ``close``.

    Args:
        servers: the servers; more may be added.

    Raises:
        OSError: the file cannot be written, or the loopback interface is down.
    """

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers
        self._secret = secrets.token_hex(_SECRET_BYTES)
        host = loopback_host()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        folder = status_folder()
        self._file = folder / str(os.getpid())
        try:
            make_protected_folder(folder)
            self._file.unlink(missing_ok=True)  # of a process that was killed, and had this number
            place = {"host": host, "port": self._listener.getsockname()[1], "secret": self._secret}
            with open(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(place, file)
        except BaseException:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._answer_all, name="pjrt status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more. May be called again."""
        self._file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self._thread.join()

    def __enter__(self) -> StatusAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_SECRET_SECONDS)
                shown = connection.recv(2 * _SECRET_BYTES)  # that little comes whole
                connection.settimeout(_SECONDS)
                if hmac.compare_digest(shown, self._secret.encode()):
                    connection.sendall(json.dumps(self._status()).encode())

    def _status(self) -> dict[str, Any]:
        servers = [server.status() for server in self._servers]
        processes = {session["process"] for server in servers for session in server["sessions"]}
        usage = {}
        for process in processes | {os.getpid()}:
            used = usage_of(process)
            if used is not None:
                usage[str(process)] = {"cpu_seconds": round(used.seconds, 2), "resident_bytes": used.resident_bytes}
        return {"process": os.getpid(), "servers": servers, "usage": usage}


def statuses() -> list[dict[str, Any]]:
    """Return the status of each process with servers of this user on this machine, by the process's number.

    Each has the number (``process``), and the ``servers`` as ``Server.status`` describes them. ``usage`` has, by the
    number of a process, what it and those that it started use: ``cpu_seconds`` and ``resident_bytes``.
    """
    return list(_answers(status_folder().glob("[0-9]*")))


def _answers(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for file in sorted(files, key=lambda each: int(each.name) if each.name.isdigit() else 0):
        try:
            place = json.loads(read_plain_file(file))
            with socket.create_connection((place["host"], place["port"]), _SECONDS) as connection:
                connection.sendall(place["secret"].encode())
                yield _answer(connection)
        except ConnectionRefusedError:  # its process was killed, and has left the file
            file.unlink(missing_ok=True)
        except FileNotFoundError:  # it has ended meanwhile
            continue
        except (OSError, ValueError, KeyError, TypeError, DataLossError):
            continue


def _answer(connection: socket.socket) -> Any:
    answer = b""
    while data := connection.recv(1 << 16):
        answer += data
        if len(answer) > _MOST_BYTES:
            raise DataLossError("the status of a server is too long")
    return json.loads(answer)

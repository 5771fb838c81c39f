"""A network of hosts on this machine, with delays, losses, limited bandwidth and partitions, for tests."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from switch import address

_FOLDER = Path(__file__).parent
_LIMIT = 60.0


class Hosts:
    """Hosts that reach one another alone, each with a name and an address. They end with ``close``, or this process.

    Args:
        count: the number of hosts.
        wires: as for ``change``: of all wires.

    Attributes:
        names: their names: ``host0`` and so on.
        addresses: their addresses.
    """

    def __init__(self, count: int, **wires: float) -> None:
        self.names = [f"host{host}" for host in range(count)]
        self.addresses = [address(host) for host in range(count)]
        self._file = tempfile.NamedTemporaryFile("w", prefix="hosts")  # noqa: SIM115  (closed with the hosts)
        lines = [f"{ip} {name}" for ip, name in zip(self.addresses, self.names, strict=True)]
        self._file.write("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self._file.flush()
        Path(self._file.name).chmod(0o644)
        self._switch = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_FOLDER / "switch.py"), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._namespaces = json.loads(self._answer())
        self.change(**wires)

    def _answer(self) -> str:
        assert self._switch.stdout is not None
        line = self._switch.stdout.readline()
        assert line, "no network of hosts: it needs root, or user namespaces and /dev/net/tun"
        return line

    def command(self, host: int, *command: str) -> list[str]:
        """Return a command that runs another one in a host."""
        enter = str(_FOLDER / "enter_host.py")
        place = [str(self._switch.pid), str(self._namespaces[host]), self.names[host], self._file.name]
        return [sys.executable, "-S", enter, *place, *command]

    def change(self, *pairs: tuple[int, int], **wires: float) -> None:
        """Change the wires between some pairs of hosts, or all.

        Args:
            pairs: the pairs.
            wires: ``delay``, the seconds of the way in each direction; ``loss``, the part of packets that is lost;
                ``rate``, the bytes in a second, 0 for any; ``cut``, whether nothing comes through.
        """
        chosen: Iterable[tuple[int, int]] = pairs or itertools.combinations(range(len(self.names)), 2)
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps({"pairs": list(chosen), **wires}) + "\n")
        self._switch.stdin.flush()
        self._answer()

    def cut_off(self, host: int, cut: bool = True) -> None:
        """Cut one host off from all others, or join it again."""
        self.change(*((host, other) for other in range(len(self.names)) if other != host), cut=cut)

    @contextmanager
    def partition(self, host: int, seconds: float) -> Iterator[None]:
        """Cut one host off while the block runs, and for so many seconds at least."""
        self.cut_off(host)
        begin = time.monotonic()
        yield
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        self.cut_off(host, cut=False)

    def close(self) -> None:
        """End the network."""
        self._file.close()
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.close()
        self._switch.stdout.close()
        self._switch.wait(_LIMIT)

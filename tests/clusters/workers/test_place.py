"""Where a controller and the job of its workers listen: at the address that was given, and at no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pjrt.clusters.launchers.launcher import ExternalLauncher, LocalLauncher, SshLauncher
from pjrt.clusters.workers.control_server import ControlServer, Place
from pjrt.distributed.leader import Coordinator
from pjrt.system.processes import reserved_port

PROC = Path("/proc/net")

listening = pytest.mark.skipif(not PROC.is_dir(), reason="the listening sockets are read from Linux's /proc")


@pytest.fixture
def launcher(tmp_path: Path) -> ExternalLauncher:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-more-than-sixteen-letters\n")
    return ExternalLauncher(1, {"token_file": token})


def addresses_of(port: int) -> set[str]:
    """The addresses, in the kernel's hexadecimal spelling, at which something listens on a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in (PROC / name).read_text().splitlines()[1:]:
            address, number = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(number, 16) == port:
                found.add(address)
    return found


LOOPBACK = "0100007F" if sys.byteorder == "little" else "7F000001"


@listening
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_controller_listens_at_its_address_alone(tmp_path: Path, launcher: ExternalLauncher, host: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with reserved_port() as port:
        place = Place.of(launcher, f"{host}:{port}", folder)
        server = ControlServer("a-token-of-many-letters", place, lambda facts: (0, {}), lambda index, message: None)
    coordinator = Coordinator(1, place.hosts, bind_host=place.bind_host)
    try:
        settings = coordinator.settings_of(0, initialization_timeout=1, shutdown_timeout=1)
        (address,) = settings.addresses
        assert addresses_of(server.port) == {LOOPBACK}
        assert addresses_of(address[1]) == {LOOPBACK}
    finally:
        coordinator.close()
        server.close()


def test_the_address_of_another_machine_leads_here_from_all(tmp_path: Path, launcher: ExternalLauncher) -> None:
    """A router may pass the connections on, or the name may not be known here."""
    for number, host in enumerate(("192.0.2.1", "no-such-host.invalid", "0.0.0.0")):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert Place.of(launcher, f"{host}:1", folder).bind_host is None


def test_without_an_address_workers_try_all_of_this_host(tmp_path: Path) -> None:
    place = Place.of(SshLauncher(["node1"], {}), "", tmp_path)
    assert place.bind_host is None
    assert "127.0.0.1" in place.hosts


def test_workers_of_this_machine_need_the_loopback_alone(tmp_path: Path) -> None:
    assert Place.of(LocalLauncher(2, {}), "", tmp_path).bind_host == "127.0.0.1"

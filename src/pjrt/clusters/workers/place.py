"""The place of a cluster: where its controller and its workers listen, and how their connections are protected."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError
from pjrt.clusters.launchers import Launcher
from pjrt.clusters.workers.certificates import Authority, server_context
from pjrt.distributed.initialization import own_hosts
from pjrt.distributed.settings import split_address
from pjrt.system.processes import loopback_host

_CONTROLLER = "controller"


class Place:
    """The addresses of a controller and its workers, and the protection of their connections.

    On one machine, controllers listen on the loopback interface and workers on local sockets of this user alone. Across
    machines all connections have TLS with certificates of the cluster's own authority, and a controller listens at the
    address that it was given.

    Args:
        hosts: the names or addresses of this host for the workers.
        bind_host: the address on which the controller listens; ``None`` for all of this host.
        port: the controller's port; 0 for any free one.
        folder: a folder of this user alone.
        authority: the cluster's authority; ``None`` on one machine.

    Attributes:
        context: the controller's TLS context; ``None`` in the clear.
        certificate: the controller's certificate, in DER; empty in the clear.
    """

    def __init__(
        self, hosts: list[str], bind_host: str | None, port: int, folder: Path, authority: Authority | None
    ) -> None:
        self.hosts = hosts
        self.bind_host = bind_host
        self.port = port
        self._folder = folder
        self._authority = authority
        self.context: ssl.SSLContext | None = None
        self.certificate = b""
        if authority is not None:
            own = authority.issue(_CONTROLLER)
            self.context, self.certificate = server_context(own, folder)
            for name, text in (("ca", authority.certificate), ("certificate", own.certificate), ("key", own.key)):
                _write_secret(folder / name, text)

    @staticmethod
    def of(launcher: Launcher, controller_address: str, folder: Path) -> Place:
        """Return the place of a cluster.

        Args:
            launcher: starts the workers.
            controller_address: as ``ClusterSettings.controller_address``.
            folder: a folder of this user alone.

        Raises:
            InvalidArgumentError: the address is not one.
            FailedPreconditionError: a package for TLS certificates is missing.
        """
        if launcher.is_local:
            if controller_address:
                raise InvalidArgumentError(
                    "the option controller_address is for workers on other machines; found "
                    f"{controller_address!r} for workers on this one"
                )
            host = loopback_host()
            return Place([host], host, 0, folder, None)
        hosts, port, bind_host = own_hosts(), 0, None
        if controller_address:
            host, _, text = controller_address.rpartition(":")
            if text.isdecimal() and (":" not in host or host.startswith("[")):
                host, port = split_address(controller_address)
            else:
                host = controller_address
            hosts, bind_host = [host], _own_address(host)
        if not port and not launcher.starts_workers:
            raise InvalidArgumentError(
                f"the workers of the launcher {launcher.name!r} must know where the controller is: give "
                f"controller_address='HOST:PORT' with a port, found {controller_address!r}"
            )
        return Place(hosts, bind_host, port, folder, Authority())

    @property
    def is_encrypted(self) -> bool:
        """Whether connections have TLS."""
        return self._authority is not None

    def serving(self, index: int) -> dict[str, str]:
        """Return the fields of a worker's assignment about its server."""
        if self._authority is None:
            return {"address": f"unix:{self._folder}/{index}"}
        own = self._authority.issue(_worker_name(index))
        return {"certificate": own.certificate, "key": own.key, "client_ca": self._authority.certificate}

    def connecting(self, index: int) -> dict[str, str]:
        """Return the options of the device ``remote`` for a worker; empty ones replace those of the environment."""
        files = dict.fromkeys(("ca_file", "certificate_file", "key_file", "token_file"), "")
        if self._authority is None:
            return files
        own = {f"{name}_file": str(self._folder / name) for name in ("ca", "certificate", "key")}
        return {**files, **own, "server_name": _worker_name(index)}


def _own_address(host: str) -> str | None:
    """Return the one address of this machine that a host is; ``None`` if it is none, as behind a router, or several.

    Other machines may know another address by a name that this one has for its loopback interface.
    """
    if host == "localhost":
        return loopback_host()
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    if len(found) != 1:
        return None
    (address,) = found
    number = ipaddress.ip_address(address.partition("%")[0])
    if number.is_unspecified or (number.is_loopback and address != host):
        return None
    try:
        with socket.socket(socket.AF_INET6 if number.version == 6 else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    return address


def _worker_name(index: int) -> str:
    return f"worker-{index}"


def _write_secret(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)

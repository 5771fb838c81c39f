"""A tunnel in a process of its own, which ends with this process.

The client of jaxlib holds the GIL while it connects: a tunnel in a thread of the same process could not work then.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading

from pjrt.api.errors import UnavailableError
from pjrt.remote.security.client_security import ClientSecurity
from pjrt.remote.transport.addresses import parse_address
from pjrt.system.python_process import module_command, module_environment

_START_SECONDS = 60.0


class TunnelProcess:
    """A tunnel in a subprocess (``pjrt tunnel``), until ``close`` or the end of this process.

    Args:
        address: the server, such as ``grpcs://server.example:8888``.
        security: the files that the server and the client are known by.

    Raises:
        PjrtError: the address or the files cannot be used, see ``ClientSecurity.check``.
        UnavailableError: the subprocess ended.
    """

    def __init__(self, address: str, security: ClientSecurity) -> None:
        security.check(parse_address(address))
        files = {
            "--ca-file": security.ca_file,
            "--certificate-file": security.certificate_file,
            "--key-file": security.key_file,
            "--token-file": security.token_file,
            "--server-name": security.server_name,
        }
        # An empty option is no file, even if an environment variable names one.
        options = [f"{option}={value or ''}" for option, value in files.items()]
        command = module_command("pjrt", "tunnel", address, "--end-with-input", *options)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=module_environment(),
        )
        deadline = threading.Timer(_START_SECONDS, self._process.kill)
        deadline.start()
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        deadline.cancel()
        if not words:
            self._process.wait()
            errors = self.errors
            self.close()
            raise UnavailableError(f"the tunnel to {address} ended at once: {errors}")
        self._address = words[-1]

    @property
    def address(self) -> str:
        """The address for the client: ``grpc://unix:PATH``."""
        return self._address

    @property
    def errors(self) -> str:
        """The last lines of the tunnel's log."""
        self._errors.seek(0)
        return "".join(self._errors.readlines()[-5:]).strip()

    def close(self) -> None:
        """End the tunnel and its connections; a second call does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

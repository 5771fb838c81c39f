"""A tunnel from a local socket to a server with TLS, for programs that speak the protocol in the clear alone.

JAX without this package is such a program: jaxlib's client has no TLS but that of Google's own clouds. It connects to
``grpc://unix:PATH``, a socket in a folder of this user alone. The tunnel encrypts what passes, checks the server's
certificate, shows the client's certificate, and adds the access token to each call.

The token is why the tunnel reads HTTP/2 at all. Nothing else makes such a program safe: it cannot set a token itself,
and ``ssh -L`` needs an account on the server for each client, and gives the server no name to which it could give
rights and shares. A proxy such as nginx could add the token: one more daemon, which has it in its settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from pjrt.api.errors import AlreadyExistsError, InvalidArgumentError, PermissionDeniedError, UnavailableError
from pjrt.remote.connection_log import log_event
from pjrt.remote.security.credentials import ClientSecurity
from pjrt.remote.transport.addresses import Address, parse_address
from pjrt.system import TemporaryFolder
from pjrt.system.python_process import module_command, module_environment

# The token is a header field of each request of the HTTP/2 connection, which is added while the bytes pass by. Frames
# are read as far as needed (RFC 9113): the block of a request's header fields may go on in CONTINUATION frames, so one
# more such frame carries the new field. The field is never indexed (RFC 7541, section 6.2.3), so the tables of both
# ends stay what they are.

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER = 9
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS = 4
_LARGEST_FRAME = 16384  # that every receiver accepts


class MetadataInserter:
    """The connection of one client, which gets more header fields in each request.

    Args:
        metadata: the names and values of the fields; without any, all bytes pass unchanged.
    """

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._block = b"".join(_literal(name.encode("ascii"), value.encode("ascii")) for name, value in metadata)
        if len(self._block) > _LARGEST_FRAME:
            raise InvalidArgumentError(f"expected at most {_LARGEST_FRAME} bytes of metadata, found {len(self._block)}")
        self._preface = _PREFACE
        self._header = b""
        self._left = 0  # bytes of the frame's payload that have not come yet
        self._addition = b""  # the frame to add after them

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield the bytes to send for some bytes of the client.

        Raises:
            InvalidArgumentError: the client does not speak HTTP/2.
        """
        if not self._block:
            yield data
            return
        rest = memoryview(data)
        if self._preface:
            begin = bytes(rest[: len(self._preface)])
            if not self._preface.startswith(begin):
                raise InvalidArgumentError("expected a gRPC client, which speaks HTTP/2 in the clear")
            self._preface = self._preface[len(begin) :]
            yield begin
            rest = rest[len(begin) :]
        while rest:
            if self._left:
                part = rest[: self._left]
                self._left -= len(part)
                yield part
            else:
                part = rest[: _FRAME_HEADER - len(self._header)]
                self._header += bytes(part)
                if len(self._header) == _FRAME_HEADER:
                    yield self._begin_frame()
            rest = rest[len(part) :]
            if self._addition and not self._left:
                yield self._addition
                self._addition = b""

    def _begin_frame(self) -> bytes:
        """Return the header of the frame that begins; a block of header fields does not end with it any more."""
        header, self._header = self._header, b""
        self._left = int.from_bytes(header[:3], "big")
        kind, flags = header[3], header[4]
        if kind in (_HEADERS, _CONTINUATION) and flags & _END_HEADERS:
            stream = header[5:]
            size = len(self._block).to_bytes(3, "big")
            self._addition = size + bytes((_CONTINUATION, _END_HEADERS)) + stream + self._block
            header = header[:4] + bytes((flags & ~_END_HEADERS,)) + stream
        return header


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field that is never indexed, on no way to the server: the value is a secret."""
    return b"\x10" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    """Return a string of HPACK, without Huffman's code."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    size, encoded = len(text) - 127, bytearray((127,))
    while size >= 128:
        encoded.append(size & 127 | 128)
        size >>= 7
    return bytes((*encoded, size)) + text


_CHUNK = 1 << 18
_CONNECT_SECONDS = 10.0


class Tunnel:
    """A tunnel that is open until ``close``; it works on a thread of its own.

    Args:
        address: the server, such as ``grpcs://server.example:8888``.
        security: the files that the server and the client are known by.
        socket_path: the path of the local socket; the default is a new one in a new folder of this user alone.

    Raises:
        PjrtError: the address or the files cannot be used, see ``ClientSecurity.check``.
        PermissionDeniedError: other users can reach the folder of the local socket.
        AlreadyExistsError: something is at the path of the local socket.
    """

    def __init__(
        self, address: str | Address, security: ClientSecurity, *, socket_path: str | os.PathLike[str] | None = None
    ) -> None:
        server = security.check(parse_address(address) if isinstance(address, str) else address)
        if server.path or not server.port:
            raise InvalidArgumentError(f"a tunnel leads to a host and a port, found {server}")
        self._server = server
        self._security = security
        self._folder = TemporaryFolder("tunnel") if socket_path is None else None
        self._path = _free_path(
            self._folder.path / "tunnel.sock" if self._folder is not None else Path(socket_path or "")
        )
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="pjrt tunnel", daemon=True)
        self._thread.start()
        started.wait()

    @property
    def address(self) -> str:
        """The address for the client: ``grpc://unix:PATH``."""
        return str(Address("grpc", path=str(self._path)))

    @property
    def server(self) -> Address:
        """The address of the server."""
        return self._server

    def close(self) -> None:
        """End the tunnel and its connections; a second call does nothing."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._path.unlink(missing_ok=True)
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, started: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(started))
        finally:
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        server = await asyncio.start_unix_server(self._begin, self._path, limit=_CHUNK)
        self._path.chmod(0o600)
        started.set()
        await self._ended.wait()
        server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._loop.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the local client, until one of the two ends closes it."""
        remote_writer = None
        try:
            remote_reader, remote_writer = await self._open()
            inserter = MetadataInserter(self._security.metadata())
            ways = (_pump(reader, remote_writer, inserter), _pump(remote_reader, writer, MetadataInserter(())))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except Exception as error:
            reason = str(error) or type(error).__name__
            log_event(logging.WARNING, "no connection", server=str(self._server), reason=reason)
        finally:
            for end in (writer, remote_writer):
                if end is not None:
                    end.transport.abort() if end is remote_writer else end.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context: ssl.SSLContext | None = None
        name = None
        if self._server.is_encrypted:
            context, name = self._security.ssl_context(), self._security.server_name or self._server.host
        opening = asyncio.open_connection(
            self._server.host, self._server.port, ssl=context, server_hostname=name, limit=_CHUNK
        )
        try:
            reader, writer = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except TimeoutError as error:
            raise UnavailableError(f"no connection to {self._server} within {_CONNECT_SECONDS:.0f} s") from error
        _notice_a_dead_peer(writer.get_extra_info("socket"))
        return reader, writer


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inserter: MetadataInserter) -> None:
    """Pass on what comes, with further metadata, until the sender closes its end."""
    while data := await reader.read(_CHUNK):
        for part in inserter.feed(data):
            writer.write(part)
        await writer.drain()


def _notice_a_dead_peer(connection: socket.socket) -> None:
    """Have the system end a connection within about ten seconds after its other end is gone without a word.

    jaxlib's client does not ping, so it would wait for the system's own limits, in minutes to hours.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Seconds to the first probe and between probes, probes, and milliseconds for data that was sent.
    for name, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _free_path(path: Path) -> Path:
    """Return the path of a new local socket, if only this user can reach it."""
    folder = path.parent
    if not folder.is_dir():
        raise InvalidArgumentError(f"expected a folder for the local socket, found none at {folder}")
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionDeniedError(
            f"other users can reach {folder}, and with the tunnel they would use the server as you; make a folder of "
            f"your own: mkdir -m 700 FOLDER"
        )
    if path.exists() or path.is_symlink():
        raise AlreadyExistsError(f"something is already at {path}; remove it, or choose another path")
    parse_address(f"unix:{path}")  # its length
    return path


# The client of jaxlib holds the GIL while it connects: a tunnel in a thread of the same process could not work then.

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

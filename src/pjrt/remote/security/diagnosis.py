"""The reason of a failed connection, with advice: gRPC reports most failures in the same words."""

from __future__ import annotations

import contextlib
import socket
import ssl

from pjrt.api.errors import PjrtError
from pjrt.remote.security.client_security import ClientSecurity
from pjrt.remote.transport.addresses import Address

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # with empty SETTINGS
_SETTINGS = 4
_TLS_ALERT = 21
_SECONDS = 5.0


def why_unreachable(address: Address, security: ClientSecurity) -> str:
    """Return why a client gets no connection to a server; empty if it gets one now.

    It connects once, without gRPC, and waits at most five seconds for each answer.

    Args:
        address: the server, with its scheme.
        security: the client's files.
    """
    try:
        with contextlib.closing(_connect(address)) as connection:
            return _encrypted(connection, address, security) if address.is_encrypted else _clear(connection, address)
    except PjrtError as error:
        return error.message
    except TimeoutError:
        return f"{address.target} does not answer within {_SECONDS:.0f} s"
    except ConnectionRefusedError:
        return f"nothing listens at {address.target}: is the server running, and is the port right?"
    except FileNotFoundError:
        return f"there is no local socket at {address.path}: is the server running?"
    except socket.gaierror as error:
        return f"the host {address.host} is unknown: {error.strerror}"
    except OSError as error:
        return f"cannot connect to {address.target}: {error.strerror or error}"


def _connect(address: Address) -> socket.socket:
    if not address.path:
        return socket.create_connection((address.host, address.port), timeout=_SECONDS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_SECONDS)
    try:
        connection.connect(address.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _clear(connection: socket.socket, address: Address) -> str:
    try:
        connection.sendall(_PREFACE)
        answer = connection.recv(9)
    except ConnectionError:
        answer = b""
    if answer[3:4] == bytes((_SETTINGS,)) and answer[0] != _TLS_ALERT:
        return ""
    if answer[:1] == bytes((_TLS_ALERT,)) or not answer:
        encrypted = address.with_scheme(encrypted=True)
        return f"{address.target} closed the connection: if the server uses TLS, write {encrypted}"
    return f"{address.target} is no gRPC server: it answered {answer!r}"


def _encrypted(connection: socket.socket, address: Address, security: ClientSecurity) -> str:
    name = security.server_name or address.host
    try:
        with security.ssl_context().wrap_socket(connection, server_hostname=name) as encrypted:
            if encrypted.selected_alpn_protocol() != "h2":
                return f"{address.target} is no gRPC server: it speaks TLS, but not HTTP/2"
            # With TLS 1.3 a server refuses a client's certificate only after the client's handshake.
            encrypted.sendall(_PREFACE)
            return "" if encrypted.recv(9) else _refused(address, security, "it closed the connection")
    except ssl.SSLCertVerificationError as error:
        reason = f"{error.verify_message or error.reason}{_advice(error, name)}"
        return f"the certificate of {address.target} is not valid: {reason}"
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if "ALERT" in reason:
            return _refused(address, security, reason.replace("_", " ").lower())
        clear = address.with_scheme(encrypted=False)
        return f"{address.target} does not speak TLS ({reason}): if it is a server in the clear, write {clear}"
    except ConnectionError:
        return _refused(address, security, "it closed the connection during the handshake")


def _refused(address: Address, security: ClientSecurity, reason: str) -> str:
    if security.certificate_file is None:
        advice = "does it ask for a certificate? give certificate_file and key_file"
        return f"{address.target} refused the client ({reason}): {advice}"
    advice = "is it valid, and of a CA that the server trusts?"
    return f"{address.target} refused the certificate {security.certificate_file} ({reason}): {advice}"


def _advice(error: ssl.SSLCertVerificationError, name: str) -> str:
    if error.verify_code in (18, 19, 20, 21):  # self-signed, or no way to a trusted certificate
        return "; give the CA of the server's certificate as ca_file"
    if error.verify_code in (62, 64):  # the host or the number of the host
        return f"; it is not for {name}: if that is right, give the certificate's name as server_name"
    return ""

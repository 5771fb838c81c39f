"""The plugin of the ``remote`` device: makes clients of servers."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from pjrt.abi.generated.version import API_VERSION
from pjrt.api.checks import check_option_names
from pjrt.api.device import Attributes
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnauthenticatedError, UnavailableError
from pjrt.api.plugin import Plugin
from pjrt.remote.transport.addresses import DEFAULT_KEEPALIVE, checked_keepalive

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.connection import Service, TransferFiles
    from pjrt.remote.security.credentials import ClientSecurity
    from pjrt.remote.transport.addresses import Address

ADDRESS_VARIABLE = "PJRT_REMOTE_ADDRESS"
"""The environment variable with the address, for programs that cannot pass options to their device."""

_FILES = ("ca_file", "certificate_file", "key_file", "token_file", "server_name")
_OPTIONS = ("address", *_FILES, "timeout", "heartbeat_timeout", "transfer_directory")
_TIMEOUT_SECONDS = 30.0


class RemotePlugin(Plugin):
    """The plugin of devices that a server offers."""

    @property
    def name(self) -> str:
        return "remote"

    @property
    def api_version(self) -> tuple[int, int]:
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        from pjrt.devices.stablehlo_client import stablehlo_versions

        return {"xla_version": 2, **stablehlo_versions()}

    def client(self, /, **options: Any) -> RemoteClient:
        """Connect to a server.

        Args:
            options: ``address``, such as ``grpc://127.0.0.1:8470``, by default that of the environment variable
                ``PJRT_REMOTE_ADDRESS``; ``ca_file``, ``certificate_file``, ``key_file``, ``token_file`` and
                ``server_name``, as ``pjrt.remote.security.ClientSecurity`` has them; ``timeout``, how long the server
                may take to answer the first request, in seconds; ``heartbeat_timeout``, the seconds of silence after
                which the server is lost, at least 2; ``transfer_directory``, the directory of a server on
                this machine for large arrays, as ``pjrt serve`` has it.

        Raises:
            InvalidArgumentError: an option is unknown or wrong, or there is no address.
            FailedPreconditionError: the package grpcio is missing.
            UnavailableError: the server cannot be reached.
            UnauthenticatedError: the server wants a token, or another one.
        """
        check_option_names(self.name, options, _OPTIONS)
        address = options.get("address") or os.environ.get(ADDRESS_VARIABLE, "")
        if not address or not isinstance(address, str):
            raise InvalidArgumentError(
                "the device 'remote' needs the address of a server, which `pjrt serve` prints: the option "
                f"address='grpc://HOST:PORT', or the environment variable {ADDRESS_VARIABLE}; found {address!r}"
            )
        timeout = options.get("timeout", _TIMEOUT_SECONDS)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise InvalidArgumentError(f"expected a timeout in seconds, more than 0, found {timeout!r}")
        heartbeat = checked_keepalive(options.get("heartbeat_timeout", DEFAULT_KEEPALIVE))
        files = {name: options[name] for name in _FILES if name in options}
        return _connect(address, files, float(timeout), heartbeat, options.get("transfer_directory"))


def _connect(
    address: str, files: dict[str, Any], timeout: float, heartbeat_timeout: float, transfer_directory: str | None
) -> RemoteClient:
    # Here, so that the plugin can be asked for its attributes where grpcio is missing.
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.connection import Connection, TransferFiles
    from pjrt.remote.security.credentials import ClientSecurity, why_unreachable
    from pjrt.remote.transport.addresses import parse_address

    security = ClientSecurity.of(**files)
    place = security.check(parse_address(address))
    transfer_files = TransferFiles(transfer_directory) if transfer_directory else None
    service = _service(place, security, heartbeat_timeout, transfer_files)
    try:
        return RemoteClient(Connection(service, timeout=timeout))
    except UnavailableError as error:
        service.close()
        reason = why_unreachable(place, security)
        raise UnavailableError(f"{error.message}: {reason}" if reason else error.message) from error
    except BaseException:
        service.close()
        raise


def _service(
    place: Address,
    security: ClientSecurity,
    heartbeat_timeout: float,
    files: TransferFiles | None = None,
    without_token: str | None = None,
) -> Service:
    from pjrt.remote.client.connection import Service
    from pjrt.remote.transport.addresses import client_keepalive
    from pjrt.remote.transport.channel import Channel

    channel = Channel(
        place.target,
        credentials=security.credentials(place),
        metadata=security.metadata(without=without_token),
        options=(*client_keepalive(heartbeat_timeout), *security.channel_options()),
    )
    return Service(channel, str(place), files=files)


def check_token(place: Address, security: ClientSecurity, timeout: float) -> None:
    """Ask a server for its versions, which it tells no client with a wrong access token; other errors are no matter.

    A client without a token sends an empty one.

    Raises:
        UnauthenticatedError: the access token is not valid, or there is none and the server asks for one.
    """
    try:
        with contextlib.closing(_service(place, security, DEFAULT_KEEPALIVE, without_token="")) as service:
            service.agree(timeout)
    except UnauthenticatedError:
        raise
    except PjrtError:  # who connects next reports it; or grpcio is missing, which jaxlib's client does without
        return

"""``pjrt tunnel``: a server with TLS, for programs that speak the protocol in the clear alone."""

from __future__ import annotations

import sys
import threading

import click

from pjrt.cli._console import EndRequest, asked_to_end, echo
from pjrt.cli._options import client_file_options, complete_file

_EXAMPLES = """
\b
Examples:
  pjrt tunnel grpcs://server.example:8470 --token-file token
  pjrt tunnel grpcs://10.0.0.7:8470 --ca-file ca.pem \\
    --certificate-file me.pem --key-file me.key
"""


@click.command(epilog=_EXAMPLES)
@click.argument("address", metavar="ADDRESS")
@click.option(
    "--socket",
    "socket_path",
    metavar="PATH",
    shell_complete=complete_file,
    help="The local socket, in a folder of this user alone; by default in a new folder.",
)
@client_file_options
@click.option("--server-name", default="", metavar="NAME", help="The name in the server's certificate, if it differs.")
@click.option("--end-with-input", is_flag=True, help="End when the standard input ends, for programs that start this.")
def tunnel(
    address: str, socket_path: str | None, files: dict[str, str | None], server_name: str, end_with_input: bool
) -> None:
    """Connect a local socket of this user alone to the server with TLS at ADDRESS.

    Stock JAX has no TLS: it uses the address that is printed. Ctrl-C or SIGTERM ends the tunnel.
    """
    from pjrt.remote import Tunnel
    from pjrt.remote.connection_log import log_to
    from pjrt.remote.security.credentials import ClientSecurity, why_unreachable

    log_to(sys.stderr)
    security = ClientSecurity.of(**files, server_name=server_name)
    with asked_to_end() as stopped, Tunnel(address, security, socket_path=socket_path) as opened:
        if reason := why_unreachable(opened.server, security):
            echo(f"the server cannot be reached now: {reason}", err=True)
        echo(f"tunnel to {opened.server} at {opened.address}")
        if end_with_input:
            threading.Thread(target=_set_at_end, args=(stopped,), daemon=True).start()
        stopped.wait()


def _set_at_end(stopped: EndRequest) -> None:
    """Ask for the end when the standard input ends, as it does when the process at its other end ends in any way."""
    sys.stdin.read()
    stopped.set()

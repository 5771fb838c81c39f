"""The options of the subcommands for remote devices: files of security, and limits of servers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from pjrt.cli._completion import complete_file
from pjrt.cli._options import parse_bytes

_Command = Callable[..., Any]

_SERVER_FILES = {
    "tls_certificate": "The server's certificate and those of its issuers, in PEM: connections are encrypted then. "
    "Other addresses than 127.0.0.1 need it.",
    "tls_key": "The private key of --tls-certificate, readable by this user alone.",
    "client_ca": "The CA certificates whose clients may connect; others are refused.",
    "token_file": "The access tokens with which clients may connect, one on each line, after its name or alone; "
    "readable by this user alone. Read again when it changes.",
}

_CLIENT_FILES = {
    "ca_file": "The CA certificates that the server's certificate may come from; by default those of the system.",
    "certificate_file": "The client's certificate, if the server asks for one.",
    "key_file": "The private key of --certificate-file, readable by this user alone.",
    "token_file": "The access token, if the server asks for one; readable by this user alone.",
}

_SIZES = {
    "session_bytes": ("--max-session-memory", "The memory that the arrays of one client may use."),
    "host_buffer_bytes": ("--max-array-size", "The size of one array that a client sends or fetches; 16GiB."),
    "message_bytes": ("--max-message-size", "The size of one message, such as a program with its constants; 1GiB."),
}

_NUMBERS = {
    "sessions": ("--max-sessions", click.IntRange(min=1), "The clients that may be connected at one time; 64."),
    "sessions_per_client": (
        "--max-sessions-per-client",
        click.IntRange(min=1),
        "Those of one access token, or of one name in a certificate; 32.",
    ),
    "session_arrays": ("--max-session-arrays", click.IntRange(min=1), "The arrays of one client; 1000000."),
    "requests_per_second": (
        "--max-requests-per-second",
        click.FloatRange(min=0, min_open=True),
        "The requests of one client in one second; further ones wait.",
    ),
    "idle_seconds": (
        "--max-idle-seconds",
        click.FloatRange(min=0, min_open=True),
        "The seconds that a client may stay connected without a request.",
    ),
}


def server_file_options(command: _Command) -> _Command:
    """Add the options for a server's files, as the argument ``files``."""
    return _file_options(_SERVER_FILES)(command)


def client_file_options(command: _Command) -> _Command:
    """Add the options for a client's files, as the argument ``files``."""
    return _file_options(_CLIENT_FILES)(command)


def limit_options(command: _Command) -> _Command:
    """Add the options for a server's limits, as the argument ``limits``: those that were given."""

    @functools.wraps(command)
    def collect(*arguments: Any, **options: Any) -> Any:
        values = {name: options.pop(name) for name in (*_SIZES, *_NUMBERS)}
        return command(*arguments, limits={name: value for name, value in values.items() if value}, **options)

    for name, (option, text) in reversed(_SIZES.items()):
        collect = click.option(option, name, metavar="SIZE", callback=parse_bytes, help=text)(collect)
    for name, (option, kind, text) in reversed(_NUMBERS.items()):
        collect = click.option(option, name, type=kind, metavar="N", help=text)(collect)
    return collect


def _file_options(files: dict[str, str]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def collect(*arguments: Any, **options: Any) -> Any:
            return command(*arguments, files={name: options.pop(name) for name in files}, **options)

        for name, text in reversed(files.items()):
            option = f"--{name.replace('_', '-')}"
            collect = click.option(option, name, metavar="FILE", shell_complete=complete_file, help=text)(collect)
        return collect

    return decorate

"""``pjrt top``: the clients of the servers on this machine, and what they use."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pjrt.api.printable import readable_bytes
from pjrt.cli._console import echo, print_json, print_table, readable
from pjrt.cli._options import json_option

_COLUMNS = ("process", "client", "sessions", "cpu", "cpu time", "memory", "arrays", "programs", "requests", "since")
_RIGHT = tuple(name for name in _COLUMNS if name != "client")
_NOBODY = "(one session)"

_EXAMPLES = """
\b
Examples:
  pjrt top
  pjrt top --once
  pjrt top --json
"""


@click.command(epilog=_EXAMPLES)
@click.option("--once", is_flag=True, help="Look once, as where the output is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds from one look to the next."
)
@json_option
def top(once: bool, interval: float, as_json: bool) -> None:
    """Show the clients of each 'pjrt serve' of this user on this machine, and what they use.

    A client with a process of its own is one line. 'kill -KILL PROCESS' ends it and no other one; the client gets the
    status UNAVAILABLE. Where clients share the server's process, that process is in each line.
    """
    from pjrt.remote.server.status import statuses

    if as_json:
        print_json({"processes": statuses()})
        return
    if once or not sys.stdout.isatty():
        _print(statuses(), {}, 0.0)
        return
    before: dict[str, Any] = {}
    at = 0.0
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            found, now = statuses(), time.monotonic()
            click.clear()
            _print(found, before, now - at)
            before, at = {key: each for one in found for key, each in one["usage"].items()}, now
            time.sleep(interval)


def _print(found: list[dict[str, Any]], before: Mapping[str, Any], seconds: float) -> None:
    """Print a table for each server.

    Args:
        found: the processes with servers.
        before: what the processes had used at the last look, by their numbers.
        seconds: the time since then.
    """
    if not found:
        echo("no 'pjrt serve' of this user runs on this machine")
    for process in found:
        for server in process["servers"]:
            rows = [
                _row(number, client, sessions, process["usage"].get(str(number)), before.get(str(number)), seconds)
                for (number, client), sessions in _by_client(server["sessions"])
            ]
            count = len(server["sessions"])
            echo(
                f"{server['device']} at {server['address']}, process {process['process']}: {count} "
                f"session{'s' * (count != 1)}"
            )
            if rows:
                print_table(_COLUMNS, rows, right=_RIGHT)


def _by_client(sessions: list[dict[str, Any]]) -> Iterator[tuple[tuple[int, str], list[dict[str, Any]]]]:
    """Yield the sessions of each client, those with the most memory of arrays first."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for each in sessions:
        found.setdefault((each["process"], each["client"] or f"{_NOBODY} {each['peer']}"), []).append(each)
    yield from sorted(found.items(), key=lambda item: -sum(each["bytes"] for each in item[1]))


def _row(
    number: int,
    client: str,
    sessions: list[dict[str, Any]],
    usage: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    seconds: float,
) -> list[str]:
    def total(name: str) -> int:
        return sum(each[name] for each in sessions)

    share = ""
    if usage is not None and before is not None and seconds > 0:
        share = f"{max(0.0, usage['cpu_seconds'] - before['cpu_seconds']) / seconds:.0%}"
    return [
        str(number),
        client,
        str(len(sessions)),
        share,
        "" if usage is None else readable(usage["cpu_seconds"]),
        "" if usage is None else readable_bytes(usage["resident_bytes"]),
        f"{total('arrays')} ({readable_bytes(total('bytes'))})",
        str(total("executables")),
        str(total("requests")),
        readable(max(each["seconds"] for each in sessions)),
    ]

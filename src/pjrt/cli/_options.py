"""Options that several subcommands have, and their completion in the shell."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from pjrt import plugins, system
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import NamedValue
from pjrt.plugins.env_vars import option_value

if TYPE_CHECKING:
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.plugins.subprocess_support import Target


# Completion in the shell. ``docs/cli.md`` explains its installation.

_SIZE = r"\d+(?:x\d+)+"
_FILLERS = ("ones", "random:0", "zeros")


def complete_device(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of devices that begin so; where none does, the shell completes files."""
    return [CompletionItem(name) for name in plugins.names() if name.startswith(incomplete)] or _files(incomplete)


def complete_topology(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the topologies that begin so, such as ``tpu:v5e:2x2``; where none does, the shell completes files.

    Of several topologies, separated by commas, the last is completed.
    """
    before, comma, last = incomplete.rpartition(",")
    names = [name for name in _topologies() if name.startswith(last)]
    return [CompletionItem(before + comma + name) for name in names] or _files(incomplete)


def complete_input(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the values that need no file and begin so; where none does, the shell completes files."""
    return [CompletionItem(word) for word in _FILLERS if incomplete and word.startswith(incomplete)] or _files(
        incomplete
    )


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete files."""
    return _files(incomplete)


def _files(incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _topologies() -> Iterator[str]:
    for declaration in plugins.declarations():
        for kind, sizes in declaration.topologies.items():
            yield f"{declaration.name}:{kind}"
            for size in re.findall(_SIZE, sizes):
                yield f"{declaration.name}:{kind}:{size}"


# Options.


class _Seconds(click.FloatRange):
    """A finite time that the clocks of all systems can wait for."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=1_000_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        converted = super().convert(value, param, ctx)
        if math.isnan(converted):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return converted


def parse_bytes(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return a number of bytes, which may have a unit such as ``GiB`` or ``MB``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([kmgt])(i?)b?|b?)", value, re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"expected a size such as 2GiB, 500MB or 1048576, found {value!r}")
    base = 1024 if match[3] else 1000
    count = int(float(match[1]) * base ** " kmgt".index((match[2] or " ").lower()))
    if not count:
        raise click.BadParameter(f"expected at least 1 byte, found {value!r}")
    return count


memory_limit_option = click.option(
    "--memory-limit",
    metavar="SIZE",
    callback=parse_bytes,
    help="Use at most so many bytes of the device's memory, such as 2GiB: inputs wait in the host's memory and come "
    "when they are needed. For programs that are larger than the device.",
)

_SECONDS = _Seconds()
"""The type of a time limit: more than 0, and at most a million seconds."""

device_option = click.option(
    "--device",
    "-d",
    metavar="NAME",
    shell_complete=complete_device,
    help="A built-in device, a plugin's name, the path of a plugin's library, or FILE.py:FUNCTION for a function "
    "that makes clients; options of this device alone after a colon, as in remote:address=HOST:PORT. "
    "See 'pjrt devices'.",
)

devices_option = click.option(
    "--device",
    "-d",
    "devices",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_device,
    help="A device, as in 'pjrt run', such as cpu or remote:address=HOST:PORT. May be given several times.",
)


inputs_option = click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="SOURCE",
    shell_complete=complete_input,
    help="An argument: a .npy, .npz, .safetensors (with :NAME for one array of it) or .bin file, a number or a list of "
    "numbers, or random:SEED, zeros or ones for all others; after NAME= or INDEX= it is for that argument.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def _parse_options(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, NamedValue] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected KEY=VALUE, such as num_devices=8, found {value!r}")
        options[name] = _file_text(text[1:]) if text.startswith("@") else option_value(text)
    return options


def _file_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"@{path}: expected a file with text: {error}") from error


client_options = click.option(
    "--option",
    "-O",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_parse_options,
    help="An option of the client or topology, such as num_devices=8; @PATH takes the text of a file. "
    "May be given several times.",
)

Command = Callable[..., Any]


def partitioning_options(command: Command) -> Command:
    """Add the options for the number of devices.

    The command gets them as ``partitioning``: compile options that leave to the program what the user did not give.
    """

    @functools.wraps(command)
    def with_partitioning(
        *args: Any, num_replicas: int | None, num_partitions: int | None, shardy: bool | None, **others: Any
    ) -> Any:
        partitioning = CompileOptions(
            num_replicas=num_replicas, num_partitions=num_partitions, use_shardy_partitioner=shardy
        )
        return command(*args, partitioning=partitioning, **others)

    for option in reversed(_PARTITIONING):
        with_partitioning = option(with_partitioning)
    return with_partitioning


_PARTITIONING = (
    click.option("--num-replicas", type=click.IntRange(min=1), metavar="N", help="Copies of the program."),
    click.option("--num-partitions", type=click.IntRange(min=1), metavar="N", help="Pieces of each copy."),
    click.option(
        "--shardy/--gspmd",
        default=None,
        help="Partition by Shardy's or by GSPMD's annotations. By default the program decides these three.",
    ),
)


def _parse_shapes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[int, ...]] | None:
    shapes: dict[str, tuple[int, ...]] = {}
    for value in values:
        name, equals, text = value.rpartition("=")
        sizes = text.split("x")
        if not equals or not name or not all(size.isascii() and size.isdigit() for size in sizes):
            raise click.BadParameter(f"expected NAME=SIZES, such as x=8x16, 0=8x16 or b=8, found {value!r}")
        shape = tuple(map(int, sizes))
        if shapes.setdefault(name, shape) != shape:
            raise click.BadParameter(f"expected one shape for {name}, found {shapes[name]} and {shape}")
    return shapes or None


shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    callback=_parse_shapes,
    help="For a program with dynamic shapes: the shape of an argument, by name or index, such as x=8x16, or the size "
    "that a symbol of the program stands for, such as b=8. May be given several times.",
)


def call_options(command: Command) -> Command:
    """Add the options for a call of a program: those of the client, the shapes, the number of devices, the inputs."""
    return client_options(shapes_option(partitioning_options(inputs_option(command))))


topologies_option = click.option(
    "--topology",
    "-t",
    "topologies",
    multiple=True,
    metavar="PLUGIN[:NAME]",
    shell_complete=complete_topology,
    help="Devices that need not be here, such as tpu:v5e:2x2. May be given several times.",
)


def split_place(place: str) -> tuple[str, str]:
    """Return the plugin of a topology, perhaps ``FILE.py:FUNCTION``, and the topology's name."""
    plugin, _, name = place.partition(":")
    if not plugin.endswith(".py"):
        return plugin, name
    function, _, name = name.partition(":")
    return f"{plugin}:{function}", name


def targets_of(devices: Sequence[str], topologies: Sequence[str], options: dict[str, Any]) -> list[Target]:
    """Return the targets that ``--device`` and ``--topology`` name."""
    # Commands without targets need no subprocesses.
    from pjrt.plugins.subprocess_support import Target

    split = map(split_place, topologies)
    return [
        *(Target(name, options=options) for name in devices),
        *(Target(plugin, name, options) for plugin, name in split),
    ]


def time_limit_option(default: float, whose: str) -> Callable[[Any], Any]:
    """Return the option ``--time-limit`` for what runs in a subprocess."""
    return click.option(
        "--time-limit",
        type=_SECONDS,
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=f"How long {whose} take.",
    )


# The options of the subcommands for remote devices: files of security, and limits of servers.

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
    "process_bytes": ("--max-process-memory", "The memory that the process of one client may use; see --isolate."),
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
    "strangers": (
        "--max-strangers",
        click.IntRange(min=1),
        "The connections that have not shown yet who they are; 256. The oldest ones beyond it are ended.",
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


def server_file_options(command: Command) -> Command:
    """Add the options for a server's files, as the argument ``files``."""
    return _file_options(_SERVER_FILES)(command)


def client_file_options(command: Command) -> Command:
    """Add the options for a client's files, as the argument ``files``."""
    return _file_options(_CLIENT_FILES)(command)


def limit_options(command: Command) -> Command:
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


def _file_options(files: dict[str, str]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def collect(*arguments: Any, **options: Any) -> Any:
            return command(*arguments, files={name: options.pop(name) for name in files}, **options)

        for name, text in reversed(files.items()):
            option = f"--{name.replace('_', '-')}"
            collect = click.option(option, name, metavar="FILE", shell_complete=complete_file, help=text)(collect)
        return collect

    return decorate


# The compilation cache.


def _open_cache(_: click.Context, __: click.Parameter, folder: str | None) -> CompilationCache | None:
    if folder is None:
        return None
    # Most runs are without a cache.
    from pjrt.artifacts.compilation_cache import CompilationCache

    return CompilationCache(folder or system.cache_folder() / "executables")


cache_option = click.option(
    "--cache",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    callback=_open_cache,
    help="Keep compiled programs in a folder, and take them from there. DIR is a folder of yours; the default is one "
    "for this user. Without DIR, write the option after PROGRAM.",
)
"""The option, as a ``CompilationCache`` or None."""


def cache_as_dict(cache: CompilationCache, hits_before: int = 0) -> dict[str, Any]:
    """Return whether the program was in the cache, as ``--json`` prints it.

    Args:
        cache: the cache.
        hits_before: the number of its hits before the program was looked up.
    """
    return {"folder": str(cache.folder), "hit": cache.hits > hits_before}


def cache_outcome(lookup: dict[str, Any]) -> str:
    """Return the result of ``as_dict`` on one line."""
    return f"{'hit' if lookup['hit'] else 'miss'}, in {lookup['folder']}"

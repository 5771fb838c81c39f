"""``pjrt info``: the report to paste into a bug."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from pathlib import Path

import click

import pjrt
from pjrt import plugins
from pjrt.cli._console import print_facts, print_json, problem_of
from pjrt.cli._options import complete_device, json_option
from pjrt.plugins import probe

_PACKAGES = (
    "numpy",
    "ml_dtypes",
    "protobuf",
    "jaxlib",
    "jax",
    "torch",
    "torchax",
    "torch_xla",
    "libtpu",
    "safetensors",
)

_EXAMPLES = """
\b
Examples:
  pjrt info
  pjrt info --json > report.json
  pjrt info /path/to/plugin.so
  pjrt info /path/to/plugin.so --symbols
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=complete_device)
@click.option(
    "--symbols",
    is_flag=True,
    help="With NAME: print what its library exports beside GetPjrtApi, and what a framework's library exports too.",
)
@json_option
def info(name: str | None, symbols: bool, as_json: bool) -> None:
    """Print versions, the machine, and which devices answer: the report to paste into a bug.

    With NAME, a plugin's name or the path of its library, print what is to be known of the plugin: what
    'pjrt plugins NAME' prints, the devices and memories of a client, and what it lacks of the C API.
    """
    if symbols:
        _print_symbols(name, as_json)
        return
    if name is not None:
        from pjrt.cli.plugins import show

        show(plugins.declaration(name), probe.TIME_LIMIT, as_json, devices=True)
        return
    facts: dict[str, str] = {
        "pjrt": pjrt.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }
    facts |= {name: _version(name) for name in _PACKAGES}
    facts |= {f"device {plugin.name}": _state(plugin) for plugin in plugins.declarations()}
    facts |= {f"environment {name}": value for name, value in sorted(os.environ.items()) if _matters(name)}
    if as_json:
        print_json(facts)
    else:
        print_facts(list(facts.items()))


def _print_symbols(name: str | None, as_json: bool) -> None:
    from pjrt.plugins.symbols import symbol_report

    library = None if name is None else plugins.declaration(name).library
    if library is None:
        found = "no NAME" if name is None else f"{name}, which has none"
        raise click.UsageError(
            f"expected the NAME of a plugin with a library, or a path, with --symbols; found {found}"
        )
    report = symbol_report(Path(library))
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    print_facts(
        [
            ("library", library),
            ("exported symbols", report.exported),
            ("no part of the C API", len(report.needless)),
            *((f"of {each}", count) for each, count in report.groups.items()),
            *((f"also in {package}", ", ".join(names[:3])) for package, names in report.shared.items()),
        ]
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _state(plugin: plugins.Declaration) -> str:
    result = probe.probe(plugin, devices=True)
    if result.problem:
        origin = " ".join(filter(None, (plugin.origin, plugin.version)))
        return f"not available: {problem_of(plugin.name, result.problem)} ({origin})"
    first = result.devices[0]
    return ", ".join(filter(None, (f"{len(result.devices)} × {first['kind']}", first["platform_version"])))


def _matters(variable: str) -> bool:
    return variable.startswith(("PJRT_", "XLA_", "TPU_", "JAX_", "CUDA_VISIBLE"))

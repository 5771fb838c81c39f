"""``pjrt new-plugin``: a package for a device of one's own, ready to install."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import click

import pjrt

_EXAMPLES = """
\b
Examples:
  pjrt new-plugin mydevice
  pjrt new-plugin mydevice --folder ~/projects
"""

_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "device.py.txt": "src/{name}/__init__.py",
    "jax_plugin.py.txt": "src/{name}/jax_plugin.py",
    "test_device.py.txt": "tests/test_{name}.py",
}


@click.command("new-plugin", epilog=_EXAMPLES)
@click.argument("name")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("."), help="Where to make the package's folder."
)
def new_plugin(name: str, folder: Path) -> None:
    """Write a package for a device called NAME: the device, entry points for JAX and this package, tests, a README."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise pjrt.InvalidArgumentError(
            f"a device's name is small letters, digits and _, such as mydevice; found {name!r}"
        )
    target = folder / name
    if not folder.is_dir():
        raise pjrt.NotFoundError(f"there is no folder {str(folder)!r}")
    if target.exists():
        raise pjrt.AlreadyExistsError(f"{str(target)!r} exists already; choose another name or folder")
    templates = resources.files("pjrt.cli") / "template"
    for source, place in _FILES.items():
        path = target / place.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((templates / source).read_text().replace("@NAME@", name))
        click.echo(f"wrote {path}")
    click.echo(f"\nnow: cd {target} && pip install -e '.[test]' && pytest && pjrt devices {name}")

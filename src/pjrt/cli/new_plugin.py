"""``pjrt new-plugin``: a package for a new device, ready to install."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib import resources, util
from pathlib import Path

import click

import pjrt
from pjrt import native
from pjrt.cli._console import echo

_EXAMPLES = """
\b
Examples:
  pjrt new-plugin mydevice
  pjrt new-plugin mydevice --folder ~/projects
  pjrt new-plugin mychip --driver
  pjrt new-plugin mydevice --tensorflow
"""

_CI = {"ci.yml.txt": ".github/workflows/ci.yml"}
_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "device.py.txt": "src/{name}/__init__.py",
    "manifest.json.txt": "src/{name}/pjrt-plugin-{name}.json",
    "test_device.py.txt": "tests/test_{name}.py",
    **_CI,
}

_TENSORFLOW_FILES = {
    "tensorflow/setup.py.txt": "setup.py",
    "tensorflow/test_tensorflow.py.txt": "tests/test_tensorflow.py",
}
# What stands in the files of a device in Python alone.
_PLAIN = {
    "@BUILD@": "",
    "@EXTRA@": "",
    "@ROW@": "",
    "@EXTRAS@": "test",
    "@CONFORM@": "pjrt conform @NAME@",
    "@WHEEL@": "run: pip wheel --no-deps --wheel-dir wheelhouse .",
}
# What TensorFlow adds to them.
_TENSORFLOW = {
    **_PLAIN,
    "@EXTRAS@": "test,tensorflow",
    "@BUILD@": ', "pjrt[xla]", "tensorflow-cpu==2.21.*"',
    "@EXTRA@": '\ntensorflow = ["tensorflow-cpu==2.21.*"]',
    "@ROW@": '| TensorFlow | `pip install ".[tensorflow]"`, which needs a C++ compiler; then '
    '`tf.device("@UPPER@:0")` |\n',
}

_DRIVER_FILES = {
    "driver/pyproject.toml.txt": "pyproject.toml",
    "driver/setup.py.txt": "setup.py",
    "driver/README.md.txt": "README.md",
    "driver/device.py.txt": "src/{name}/__init__.py",
    "driver/compiler.py.txt": "src/{name}/compiler.py",
    "driver/driver.c.txt": "src/{name}/driver.c",
    "driver/test_device.py.txt": "tests/test_{name}.py",
    **_CI,
}
_HEADER = "pjrt_driver.h"
_DRIVER = {
    **_PLAIN,
    "@CONFORM@": "python -c \"import @NAME@; @NAME@.write_library('lib@NAME@.so')\" && "
    "pjrt conform ./lib@NAME@.so --tier official --tier contract",
    "@WHEEL@": "uses: pypa/cibuildwheel@v4.3.3",
}


@click.command("new-plugin", epilog=_EXAMPLES)
@click.argument("name")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("."), help="Where to make the package's folder."
)
@click.option(
    "--driver", is_flag=True, help="Write a device whose programs run in C: a driver in C, and a compiler in Python."
)
@click.option(
    "--tensorflow",
    is_flag=True,
    help="Have the package's wheel give the device to TensorFlow, too, which finds it without pjrt being imported.",
)
def new_plugin(name: str, folder: Path, driver: bool, tensorflow: bool) -> None:
    """Write a package for a device called NAME: the device, its entry points, tests, a README, a workflow of CI."""
    _check(name)
    if tensorflow:
        _check_for_tensorflow(name, driver)
    target = folder / name
    if not folder.is_dir():
        raise pjrt.NotFoundError(f"there is no folder {str(folder)!r}")
    if target.exists():
        raise pjrt.AlreadyExistsError(f"{str(target)!r} exists already; choose another name or folder")
    templates = resources.files("pjrt.cli") / "template"
    files = _DRIVER_FILES if driver else {**_FILES, **(_TENSORFLOW_FILES if tensorflow else {})}
    kind = _DRIVER if driver else _TENSORFLOW if tensorflow else _PLAIN
    versions = {"@OLDEST@": pjrt.__version__, "@PIN@": _supported_versions(pjrt.__version__)}
    texts = {
        place: _filled((templates / source).read_text(), name, {**kind, **versions}) for source, place in files.items()
    }
    if driver:
        texts["src/{name}/" + _HEADER] = (Path(native.get_include()) / _HEADER).read_text()
    for place, text in texts.items():
        path = target / place.format(name=name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise pjrt.PermissionDeniedError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
        echo(f"wrote {path}")
    package = "'.[test,tensorflow]'" if tensorflow else "-e '.[test]'"
    echo(f"\nnow: cd {target} && pip install {package} && pytest && pjrt devices {name}")


def _supported_versions(version: str) -> str:
    """Return the range of versions that keep what one has: before 1.0 two minor versions, later one major version."""
    major, minor = map(int, version.split(".")[:2])
    return f">={version},<{f'0.{minor + 2}' if major == 0 else major + 1}"


def _filled(template: str, name: str, added: Mapping[str, str]) -> str:
    for key, text in added.items():
        template = template.replace(key, text)
    return template.replace("@NAME@", name).replace("@UPPER@", _upper(name))


def _upper(name: str) -> str:
    return name.upper().replace("_", "")  # PyTorch/XLA reads only the part of a device's name before the first _


def _check_for_tensorflow(name: str, driver: bool) -> None:
    """Check that TensorFlow can have a device of a name.

    Raises:
        InvalidArgumentError: TensorFlow takes the name for a device of its own.
        UnimplementedError: the device has a driver in C.
    """
    if driver:
        raise pjrt.UnimplementedError(
            "packages for TensorFlow are written for devices in Python alone; give --driver or --tensorflow. "
            "pjrt tensorflow write makes TensorFlow's files for the library of a device with a driver"
        )
    from pjrt.frameworks.tensorflow import RESERVED  # whose imports other commands do without

    if any(own in _upper(name) for own in RESERVED):
        raise pjrt.InvalidArgumentError(
            f"expected a name without cpu, gpu and tpu, which TensorFlow takes for devices of its own, found {name!r}"
        )


def _check(name: str) -> None:
    """Check that a name suits a Python package and a device.

    Raises:
        InvalidArgumentError: the name has the wrong form, or is a keyword of Python.
        AlreadyExistsError: there is a package or a device of that name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise pjrt.InvalidArgumentError(
            f"expected a name of small letters, digits and _, no keyword of Python, such as mydevice; found {name!r}"
        )
    spec = util.find_spec(name)
    if spec is not None and spec.origin is not None:  # a folder in the current folder has a spec too, without origin
        raise pjrt.AlreadyExistsError(f"a package called {name!r} is here already; choose another name")
    if any(name == plugin.name for plugin in pjrt.plugins.declarations()):
        raise pjrt.AlreadyExistsError(f"a device called {name!r} is here already; choose another name")

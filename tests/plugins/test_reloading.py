"""New code of a plugin is loaded beside the old in a process that goes on: new clients give new answers, old clients
the old ones, and code that cannot be loaded leaves everything as it was.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import registry

PROGRAM = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"

DEVICE = """
from pjrt.host import HostClient
from swapped_{n}.amount import AMOUNT, TABLE

def make_client(**options):
    return HostClient("swapped", compile=lambda program, options: lambda x: x + AMOUNT + TABLE["extra"], **options)
"""

_numbers = itertools.count()


class Package:
    """An importable package with a device that adds something, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.number = next(_numbers)
        self.name = f"swapped_{self.number}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.write("amount.py", "AMOUNT = 1\nTABLE = {'extra': 0}\n")
        self.write("__init__.py", DEVICE.format(n=self.number))

    def write(self, name: str, text: str) -> Path:
        """Saves a file as many editors do: a new one takes the old one's place."""
        path, scratch = self.folder / name, self.folder / f".{name}.swp"
        scratch.write_text(text)
        os.replace(scratch, path)
        return path

    def amount(self, value: object) -> Path:
        return self.write("amount.py", f"AMOUNT = {value}\nTABLE = {{'extra': 0}}\n")

    def answer(self) -> float:
        with pjrt.client(self.name) as client:
            (result,) = client.compile(PROGRAM)(np.zeros(2, np.float32))
            return float(np.asarray(result)[0])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """A package whose device is registered by its place."""
    made = Package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # what is kept of old source must not come back
    plugins.register(name=made.name, factory=f"{made.name}:make_client")
    yield made
    plugins.unregister(made.name)
    for name in [each for each in sys.modules if each.partition(".")[0] == made.name]:
        del sys.modules[name]


def test_new_source_gives_new_answers(package: Package) -> None:
    assert package.answer() == 1
    changed = package.amount(2)
    assert package.answer() == 1, "nothing is taken in unasked"
    assert plugins.reload(package.name) == (changed,)
    assert package.answer() == 2


def test_source_of_the_same_size_in_the_same_second(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled file beside the source has the size and the second of the new source, but the old code."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    os.utime(package.folder / "amount.py", ns=(10**18, 10**18 + 1))
    assert package.answer() == 1
    for value in (2, 3, 4, 5):
        path = package.amount(value)
        os.utime(path, ns=(10**18, 10**18 + value))
        assert plugins.reload(package.name) == (path,)
        assert package.answer() == value


def test_nothing_changed_is_nothing_done(package: Package) -> None:
    assert package.answer() == 1
    module = sys.modules[package.name]
    assert plugins.reload(package.name) == ()
    assert sys.modules[package.name] is module
    assert plugins.reload(package.name, force=True) == ()
    assert sys.modules[package.name] is not module
    assert package.answer() == 1


def test_a_plugin_that_is_not_loaded_is_loaded(package: Package) -> None:
    assert plugins.reload(package.name) == ()
    assert package.name in plugins.loaded()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("AMOUNT = ", r"amount\.py:1: SyntaxError: invalid syntax"),
        ("AMOUNT = 2\nTABLE = {'extra': 0}\n1 / 0\n", r"amount\.py:3: ZeroDivisionError: division by zero"),
        ("AMOUNT = 2\n", r"__init__\.py:3: ImportError: cannot import name 'TABLE'"),
        ("import nowhere_to_be_found", r"amount\.py:1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ],
)
def test_what_cannot_be_imported_leaves_it_as_it_was(package: Package, broken: str, said: str) -> None:
    assert package.answer() == 1
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package.name}
    package.write("amount.py", broken)
    for _ in range(2):
        with pytest.raises(pjrt.FailedPreconditionError, match=rf"stays as it was: .*{said}"):
            plugins.reload(package.name)
        assert package.answer() == 1
    assert {name: sys.modules[name] for name in modules} == modules
    package.amount(7)
    plugins.reload(package.name)
    assert package.answer() == 7


def test_a_plugin_without_what_makes_its_clients(package: Package) -> None:
    assert package.answer() == 1
    package.write("__init__.py", "def make_clients(): ...")
    with pytest.raises(pjrt.FailedPreconditionError, match="has no attribute 'make_client'"):
        plugins.reload(package.name)
    assert package.answer() == 1


def test_a_plugin_that_could_never_be_imported_can_be_mended(package: Package) -> None:
    package.write("__init__.py", f"from {package.name}.amount import AMOUNT\nboom\n")
    with pytest.raises(pjrt.FailedPreconditionError, match="boom"):
        package.answer()
    package.amount(3)  # was imported, and is not to be taken for what it was
    package.write("__init__.py", DEVICE.format(n=package.number))
    plugins.reload(package.name)
    assert package.answer() == 3


def test_what_was_made_with_the_old_code_lives_on(package: Package) -> None:
    with pjrt.client(package.name, num_devices=2) as client:
        executable = client.compile(PROGRAM)
        buffer = client.buffer_from_host(np.zeros(2, np.float32))
        package.amount(2)
        plugins.reload(package.name)
        assert package.answer() == 2
        assert np.asarray(executable.execute([[buffer]])[0][0])[0] == 1
        assert np.asarray(client.compile(PROGRAM)(buffer)[0])[0] == 1


def test_a_module_that_is_new_and_one_that_is_gone(package: Package) -> None:
    assert package.answer() == 1
    package.write("more.py", "AMOUNT = 10\nTABLE = {'extra': 5}\n")
    package.write("__init__.py", DEVICE.format(n=package.number).replace(".amount", ".more"))
    (package.folder / "amount.py").unlink()
    plugins.reload(package.name)
    assert package.answer() == 15
    assert f"{package.name}.amount" not in sys.modules
    package.write("more.py", "AMOUNT = 20\nTABLE = {'extra': 5}\n")
    plugins.reload(package.name)
    assert package.answer() == 25


@pytest.mark.parametrize("name", ["__init__.py", "amount.py"])
def test_a_file_that_is_gone_is_named_and_the_old_code_goes_on(package: Package, name: str) -> None:
    assert package.answer() == 1
    path = package.folder / name
    text = path.read_text()
    path.unlink()
    with pytest.raises(pjrt.FailedPreconditionError, match=rf"stays as it was: no longer there: {path}; "):
        plugins.reload(package.name)
    assert package.answer() == 1
    path.write_text(text.replace("1", "4", 1) if name == "amount.py" else text)
    plugins.reload(package.name)
    assert package.answer() == (4 if name == "amount.py" else 1)


def test_a_module_that_is_imported_late(package: Package) -> None:
    text = DEVICE.format(n=package.number).replace(
        "return HostClient", f"import {package.name}.late as late; return HostClient"
    )
    package.write("__init__.py", text.replace("+ AMOUNT", "+ late.AMOUNT"))
    package.write("late.py", "AMOUNT = 8\n")
    assert package.answer() == 8
    changed = package.write("late.py", "AMOUNT = 9 # and longer\n")
    assert changed in plugins.reload(package.name)
    assert package.answer() == 9


def test_one_plugin_is_reloaded_and_not_its_neighbour(tmp_path: Path, package: Package) -> None:
    neighbour = Package(tmp_path)
    plugins.register(name=neighbour.name, factory=f"{neighbour.name}:make_client")
    try:
        with pjrt.client(neighbour.name) as client:
            module = sys.modules[neighbour.name]
            assert package.answer() == 1
            package.amount(2)
            neighbour.amount(3)
            assert len(plugins.reload(package.name)) == 1
            assert sys.modules[neighbour.name] is module
            assert not client.is_closed
        assert (package.answer(), neighbour.answer()) == (2, 1)
    finally:
        plugins.unregister(neighbour.name)


def test_a_function_that_was_registered_itself(package: Package) -> None:
    """It has a place, so it is found there again."""
    import importlib

    module = importlib.import_module(package.name)
    plugins.register(name=f"{package.name}-itself", factory=module.make_client)
    try:
        pjrt.client(f"{package.name}-itself").close()
        package.amount(4)
        plugins.reload(f"{package.name}-itself")
        with pjrt.client(f"{package.name}-itself") as client:
            assert np.asarray(client.compile(PROGRAM)(np.zeros(2, np.float32))[0])[0] == 4
    finally:
        plugins.unregister(f"{package.name}-itself")


def test_what_has_no_source_to_look_at() -> None:
    plugins.register(name="nameless", factory=lambda **options: pjrt.client("reference", **options))
    try:
        pjrt.client("nameless").close()
        with pytest.raises(pjrt.FailedPreconditionError, match="register it by its place, such as factory='mydevice:m"):
            plugins.reload("nameless")
    finally:
        plugins.unregister("nameless")
    pjrt.client("reference").close()
    with pytest.raises(pjrt.FailedPreconditionError, match="'reference' is built-in"):
        plugins.reload("reference")
    with pytest.raises(pjrt.NotFoundError):
        plugins.reload("nowhere")


def test_a_device_in_a_file(tmp_path: Path) -> None:
    """It has no package; what it imports from its folder goes with it."""
    file = tmp_path / "device_in_a_file.py"
    file.write_text(
        "from beside_it import AMOUNT\nfrom pjrt.host import HostClient\n"
        "def make_client(): return HostClient('f', compile=lambda program, options: lambda x: x + AMOUNT)\n"
    )
    beside = tmp_path / "beside_it.py"
    beside.write_text("AMOUNT = 1")
    place = f"{file}:make_client"
    sys.path.insert(0, str(tmp_path))
    try:
        with pjrt.client(place) as client:
            assert np.asarray(client.compile(PROGRAM)(np.zeros(2, np.float32))[0])[0] == 1
        beside.write_text("AMOUNT = 2 # two")
        assert plugins.reload(place) == (beside,)
        with pjrt.client(place) as client:
            assert np.asarray(client.compile(PROGRAM)(np.zeros(2, np.float32))[0])[0] == 2
        assert registry.files(place) == {file, beside}
    finally:
        sys.path.remove(str(tmp_path))
    with pytest.raises(pjrt.NotFoundError, match=r"expected FILE\.py:ATTRIBUTE"):
        pjrt.client(f"{tmp_path}/nothing.py:make_client")
    with pytest.raises(pjrt.NotFoundError, match="has no 'nothing'"):
        pjrt.client(f"{file}:nothing")


def test_files_are_those_of_the_package_imported_or_not(package: Package) -> None:
    expected = {package.folder / "__init__.py", package.folder / "amount.py"}
    assert registry.files(package.name) == expected
    assert package.name not in sys.modules
    assert package.answer() == 1
    assert registry.files(package.name) == expected
    assert registry.files("reference") == frozenset()


# Libraries.


@pytest.fixture
def library(tiny_library: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_library, tmp_path / "libswapped.so"))


def version(path: Path) -> str:
    with pjrt.client(path) as client:
        return client.platform_version


def test_a_library_that_was_replaced(library: Path) -> None:
    assert version(library) == "tiny 1.0"
    assert plugins.reload(library) == ()
    newer = shutil.copy(library, library.with_suffix(".new"))
    newer.write_bytes(newer.read_bytes().replace(b"tiny 1.0\0", b"tiny 2.0\0"))
    os.replace(newer, library)
    assert version(library) == "tiny 1.0", "nothing is taken in unasked"
    with pjrt.client(library) as client:
        kept = client.buffer_from_host(np.ones(2, np.float32))
        assert plugins.reload(library) == (library,)
        assert version(library) == "tiny 2.0"
        assert (client.platform_version, np.asarray(kept).tolist()) == ("tiny 1.0", [1, 1])
    assert registry.files(library) == {library}
    os.unlink(library)
    with pytest.raises(pjrt.NotFoundError):
        plugins.reload(library)
    assert version(library) == "tiny 2.0"


def test_a_library_that_cannot_be_there_twice(library: Path) -> None:
    """It is known of vendors' plugins; here it is declared."""
    plugins.register(name="staying", library=library, resident="it has threads that nothing stops")
    try:
        assert plugins.reload("staying") == ()
        with pytest.raises(
            pjrt.FailedPreconditionError,
            match="cannot be loaded twice in a process, for it has threads that nothing stops; start a new process",
        ):
            plugins.reload("staying", force=True)
        pjrt.client("staying").close()
    finally:
        plugins.unregister("staying")


# Frameworks.


JAX = """
import sys
import jax, jax.numpy as jnp, numpy as np
import pjrt
from pjrt import plugins
sys.path.insert(0, {folder!r})
def write(value):
    open({folder!r} + "/jaxchip.py", "w").write(f'''
import numpy as np, pjrt
OPERATIONS = {{{{"stablehlo.add": lambda op, x, y: np.add(x, y) + np.float32({{value}})}}}}
def compile(program, options):
    def call(*arrays):
        function = program.entry
        values = dict(zip(function.arguments, arrays))
        for step in function.body.operations[:-1]:
            values[step.results[0]] = OPERATIONS[step.name](step, *[values[v] for v in step.operands])
        return [values[v] for v in function.body.outputs]
    return call
def make_client(**options):
    return pjrt.StableHloClient("jaxchip", compile=compile, operations=OPERATIONS, **options)
''')
write(0)
plugins.register(name="jaxchip", factory="jaxchip:make_client")
platform = pjrt.frameworks.jax.register("jaxchip", worker=False)
add = jax.jit(lambda x, y: x + y)
def answer():
    x = jax.device_put(np.ones(2, np.float32), jax.devices(platform)[0])
    return float(np.asarray(add(x, x))[0])
assert answer() == 2
write(100)
assert len(plugins.reload("jaxchip")) == 1
assert answer() == 2, "JAX has its client of before"
jax.extend.backend.clear_backends()
assert answer() == 102, answer()
jax.extend.backend.clear_backends()
write("1 +")
try:
    plugins.reload("jaxchip")
    raise SystemExit("it cannot be imported")
except pjrt.FailedPreconditionError as error:
    assert "SyntaxError" in error.message, error
assert answer() == 102
print("fine")
"""


@pytest.mark.full
def test_jax_on_a_device_that_is_reloaded(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    script = tmp_path / "on_jax.py"
    script.write_text("import jax.extend\n" + textwrap.dedent(JAX.format(folder=str(tmp_path))))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr[-3000:]

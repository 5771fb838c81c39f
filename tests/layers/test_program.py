"""Programs that know nothing of layers, run with layers before their plugins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import build
from tiny.control import Control

import pjrt
from pjrt import layers
from pjrt.capi.environment import library_path
from pjrt.layers.trace import read_trace

PROGRAMS = Path(__file__).parent / "loading"
SEARCHES = "table yes\nagain same\neverywhere yes\nnext yes\nmissing no\nreason yes\n"
JAX = """
import sys
import jax, jax.numpy as jnp
x = jax.device_put(jnp.arange(4.0), jax.devices()[0])
print(jax.devices()[0].client.platform, jax.jit(lambda x: jnp.sin(x) * 2)(x).tolist()[0], file=open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def searches(tiny_cache: Path) -> Path:
    """A program in C that searches for symbols in every way."""
    return build.build([PROGRAMS / "searches.c"], tiny_cache, "searches", ["-fPIE", "-pie", "-ldl"])


@pytest.fixture(scope="module")
def hanging(tiny_cache: Path) -> Path:
    return build.build([PROGRAMS / "hangs.c"], tiny_cache, "libhangs.so")


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    with layers.program_environment(["pass"], options={}, **options) as environment:  # type: ignore[arg-type]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )


def test_a_program_without_python(searches: Path, tiny_copy: Callable[..., Control]) -> None:
    """The search for the table is answered; every other is the dynamic linker's, which knows who searches."""
    done = run([str(searches), str(tiny_copy().path)])
    assert (done.stdout, done.stderr, done.returncode) == (SEARCHES, "", 0)


def test_the_driver_of_the_tiny_plugin(tiny_library: Path, tiny_cache: Path) -> None:
    """It goes through every function of the plugin, in C; a layer changes nothing."""
    source = build.HERE / "driver" / "driver.c"
    driver = build.build([source], tiny_cache, "driver-for-layers", ["-fPIE", "-pie", "-ldl"])
    done = run([str(driver), str(tiny_library)])
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


def test_layers_of_the_environment_that_do_not_exist(searches: Path, tiny_copy: Callable[..., Control]) -> None:
    path = tiny_copy().path
    environment = {**os.environ, "LD_PRELOAD": str(library_path()), "PJRT_LAYERS": "trac"}
    done = subprocess.run([searches, path], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("table no\n")
    assert done.stderr.startswith(f"pjrt: the plugin {path} gets no layers, and so no table: there is no layer 'trac'")


@pytest.mark.full
@pytest.mark.parametrize("plugin", ["reference", "cpu"])
def test_jax_on_a_device_in_python(plugin: str, tmp_path: Path) -> None:
    """JAX runs on the device, through a table that has layers."""
    script, result = tmp_path / "script.py", tmp_path / "result"
    script.write_text(JAX)
    assert layers.run_program([sys.executable, str(script), str(result)], ["pass"], plugin=plugin) == 0
    assert result.read_text() == f"{plugin} 0.0\n"


def test_a_plugin_by_its_path_is_named_to_jax(
    tiny_copy: Callable[..., Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first, so JAX's default. The program may use what JAX has else, if it may so without layers."""
    path = tiny_copy().path
    shown = "import os; print(os.environ['PJRT_NAMES_AND_LIBRARY_PATHS'], os.environ.get('JAX_PLATFORMS'))"
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert run([sys.executable, "-c", shown], plugin=path).stdout == f"layered_tiny1:{path} None\n"
    monkeypatch.setenv("JAX_PLATFORMS", "mine,cpu")
    assert run([sys.executable, "-c", shown], plugin=path).stdout == f"layered_tiny1:{path} layered_tiny1,mine,cpu\n"


@pytest.mark.full
@pytest.mark.parametrize("plugin", ["reference", "cpu"])
@pytest.mark.parametrize("platforms", [None, "{name},cpu"])
def test_a_program_that_registers_the_device_itself(
    plugin: str, platforms: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, trace = tmp_path / "script.py", tmp_path / "trace"
    script.write_text(f"""
import jax, pjrt
platform = pjrt.frameworks.jax.register({plugin!r})
x = jax.device_put(1.0, jax.devices(platform)[0])
(y,) = jax.jit(lambda x: (x + 1,))(x)
assert y.devices() == {{jax.devices(platform)[0]}} and float(y) == 2
""")
    if platforms is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", platforms.format(name="pjrt_cpu" if plugin == "cpu" else plugin))
    options = {"trace": {"file": trace}}
    assert layers.run_program([sys.executable, str(script)], ["trace"], plugin=plugin, options=options) == 0
    assert "PJRT_LoadedExecutable_Execute" in {call.function.name for call in read_trace(trace).calls}


def test_the_device_of_pytorch_xla(tiny_copy: Callable[..., Control], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the entry point that makes this device; a plugin's own entry point comes first."""
    names = ("PJRT_DYNAMIC_PLUGINS", "PJRT_DEVICE", "PJRT_TORCH_XLA_DEVICE")
    shown = f"import os; print(*map(os.environ.get, {names}))"
    for name in names:
        monkeypatch.setenv(name, "another")
    path = tiny_copy().path
    pjrt.plugins.register(name="named", library=path, frameworks={"torch_xla": {"name": "NAMED"}})
    try:
        for plugin, entry_point in (("reference", "PJRT"), (path, "PJRT"), ("named", "NAMED")):
            assert run([sys.executable, "-c", shown], plugin=plugin).stdout == f"1 {entry_point} {plugin}\n"
    finally:
        pjrt.plugins.unregister("named")


def test_what_the_environment_names_already_stays(
    tiny_copy: Callable[..., Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is named already keeps its name: no second client is made of it."""
    path = tiny_copy().path
    shown = "import os; print(os.environ['PJRT_NAMES_AND_LIBRARY_PATHS'])"
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", "other:/a.so,tiny1:/old.so")
    assert run([sys.executable, "-c", shown], plugin=path).stdout == f"layered_tiny1:{path},other:/a.so,tiny1:/old.so\n"
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"other:/a.so,mine:{path}")
    assert run([sys.executable, "-c", shown], plugin=path).stdout == f"mine:{path},other:/a.so\n"


def test_options_reach_the_layer() -> None:
    with layers.program_environment(["trace"], options={"trace": {"file": "a,b", "sample": 2}}) as environment:
        assert (environment["PJRT_LAYERS"], environment["PJRT_TRACE"]) == ("trace", "file=a\\,b,sample=2")


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_status_is_the_programs(code: str, status: int) -> None:
    assert layers.run_program([sys.executable, "-c", code], ["pass"]) == status


def test_an_interrupt_is_the_programs_own() -> None:
    """The program ends by the interrupt; this process goes on, with the signal handler that it had."""
    before = signal.getsignal(signal.SIGINT)
    code = "import os, signal; os.kill(os.getppid(), signal.SIGINT); raise SystemExit(5)"
    assert layers.run_program([sys.executable, "-c", code], ["pass"]) == 5
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("command", "names", "plugin", "error", "message"),
    [
        ([], ["pass"], None, pjrt.InvalidArgumentError, "expected a program to run, found none"),
        (["/no/such/program"], ["pass"], None, pjrt.NotFoundError, "there is no program '/no/such/program'"),
        (["/"], ["pass"], None, pjrt.FailedPreconditionError, "cannot run '/'"),
        (["true"], ["trac"], None, pjrt.InvalidArgumentError, "there is no layer 'trac'"),
        (["true"], ["pass"], "nothing", pjrt.NotFoundError, "nothing"),
    ],
)
def test_what_is_refused(
    command: list[str], names: list[str], plugin: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        layers.run_program(command, names, plugin=plugin)


def test_a_library_that_is_no_plugin(no_symbol_library: Path) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="no function GetPjrtApi"):
        layers.run_program(["true"], ["pass"], plugin=no_symbol_library)


@pytest.mark.full
def test_a_library_that_never_finishes_loading(hanging: Path) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=r"libhangs.so: it did not answer within 3 seconds"):
        layers.run_program(["true"], ["pass"], plugin=hanging, time_limit=3)


def test_temporary_libraries_are_removed() -> None:
    shown = "import os; print(os.environ['PJRT_NAMES_AND_LIBRARY_PATHS'])"
    name, _, path = run([sys.executable, "-c", shown], plugin="reference").stdout.strip().partition(":")
    assert name == "layered_reference"
    assert path.endswith("libreference.so")
    assert not Path(path).parent.exists()


def test_where_no_library_comes_first_jax_is_given_one_with_layers(
    tiny_copy: Callable[..., Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pjrt.layers.program.with_preloaded", lambda *_: None)
    path = tiny_copy().path
    options = {"pass": {"a": 1}}
    with layers.program_environment(["pass"], plugin=path, options=options, environment={}) as environment:
        name, _, library = environment["PJRT_NAMES_AND_LIBRARY_PATHS"].partition(":")
        assert (name, "PJRT_LAYERS" in environment, "LD_PRELOAD" in environment) == ("layered_tiny1", False, False)
        content = Path(library).read_bytes()
        assert f"target={path}\nlayers=pass\noptions=pass=a=1\n".encode() in content
    with pytest.raises(pjrt.UnimplementedError, match="give the plugin by its path, or a device in Python"):
        layers.run_program(["true"], ["pass"])

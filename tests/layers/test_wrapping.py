"""``pjrt.layers.wrap``, and ``PJRT_LAYERS``: what gets layers, once, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import build
from tiny.control import Control

import pjrt
from pjrt import capi, layers
from pjrt.capi import environment
from pjrt.layers import stack
from pjrt.layers.replay.replay_process import replay
from pjrt.layers.trace.trace_file import read_trace
from pjrt.layers.trace.trace_views import summarize


def make_client(**options: object) -> pjrt.Client:
    return pjrt.client("reference", **options)


def test_the_layers_have_names() -> None:
    assert {"pass", "trace", "validate", "record"} <= set(layers.layer_names())


@pytest.mark.parametrize("kind", ["name", "path", "loaded", "exported", "built-in"])
def test_whatever_is_a_plugin(kind: str, tiny_copy: Callable[..., Control]) -> None:
    path = tiny_copy().path
    plugin = {
        "name": lambda: "reference",
        "path": lambda: path,
        "loaded": lambda: capi.load_plugin(path),
        "exported": lambda: pjrt.export(make_client, name="exported"),
        "built-in": lambda: pjrt.load_plugin("reference"),
    }[kind]()
    wrapped = layers.wrap(plugin, ["pass"])
    assert stack.layers_of(wrapped.address) == ("pass",)
    with wrapped.client() as client:
        assert client.buffer_from_host(np.arange(3.0)).tolist() == [0, 1, 2]


def test_a_plugin_with_nothing_of_our_runtime(noop_library: Path, tmp_path: Path) -> None:
    """All layers, before a plugin whose every event and every buffer is the same handle, unlike any of our runtime."""
    names = ["trace", "validate", "inject", "record"]
    trace, recording = tmp_path / "noop.trace", tmp_path / "noop.rec"
    path = shutil.copy(noop_library, tmp_path)
    plugin = layers.wrap(path, names, trace={"file": trace}, validate="limit=1000", record={"file": recording})
    client = plugin.client()
    executable = client.compile(pjrt.Program(b"nothing", format="nothing"))
    for _ in range(3):
        ((result,),) = executable.execute([[]])
        assert result.to_host().result() == 0
        result.delete()
        del result
    layers.inject(plugin, "call=PJRT_Buffer_ToHostBuffer,nth=2,error=DATA_LOSS")
    buffer = client.buffer_from_host(np.float32(3))
    with pytest.raises(pjrt.PjrtError, match="injected into call 2 of PJRT_Buffer_ToHostBuffer"):
        buffer.to_host().result(), buffer.to_host().result()
    layers.inject(plugin, "")
    assert layers.findings(plugin) == []
    second = client.buffer_from_host(np.float32(3))
    (finding,) = layers.findings(plugin)
    assert finding.rule == "returned-twice"
    del second, buffer, executable
    client.close()
    assert replay(recording, path, time_limit=120.0).agrees
    stack.flush()
    calls = {row.name: row for row in summarize(read_trace(trace)).functions}
    assert calls["PJRT_LoadedExecutable_Execute"].calls == 3
    assert (calls["PJRT_Buffer_ToHostBuffer"].calls, calls["PJRT_Buffer_ToHostBuffer"].errors) == (5, 1)


def test_the_same_plugin_again_is_the_same(tiny_copy: Callable[..., Control]) -> None:
    path = tiny_copy().path
    wrapped = layers.wrap(path, ["pass"])
    assert layers.wrap(path, ["pass"]) is wrapped
    assert layers.wrap(path, "pass") is wrapped
    plain = capi.load_plugin(path)
    assert plain is not wrapped
    assert layers.wrap(plain, ["pass"]) is wrapped
    assert layers.wrap(pjrt.load_plugin("reference"), ["pass"]) is layers.wrap("reference", ["pass"])


def test_layers_off_and_on(tiny_copy: Callable[..., Control]) -> None:
    wrapped = layers.wrap(tiny_copy().path, ["pass"])
    with wrapped.client() as client:
        assert layers.disable(wrapped, "pass")
        buffer = client.buffer_from_host([1.0])
        assert not layers.enable(wrapped, "pass")
        assert buffer.tolist() == [1.0]


@pytest.mark.parametrize(
    ("plugin", "names", "options", "error", "message"),
    [
        ("reference", ["trac"], {}, pjrt.InvalidArgumentError, "there is no layer 'trac'; the layers are: pass"),
        ("reference", [], {}, pjrt.InvalidArgumentError, "expected at least one layer, found none"),
        (
            "reference",
            ["pass"],
            {"trace": {}},
            pjrt.InvalidArgumentError,
            "options of the layers pass, found some of 'trace'",
        ),
        ("reference", ["pass"] * 9, {}, pjrt.InvalidArgumentError, "expected at most 8 layers, found more"),
        ("reference", ["pass"], {"pass": {"a": "1\n2"}}, pjrt.InvalidArgumentError, "must not contain line breaks"),
        ("nothing", ["pass"], {}, pjrt.NotFoundError, "nothing"),
        ("/no/such/plugin.so", ["pass"], {}, pjrt.NotFoundError, "/no/such/plugin.so"),
        (5, ["pass"], {}, pjrt.InvalidArgumentError, "found int"),
    ],
)
def test_what_is_refused(
    plugin: str, names: list[str], options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        layers.wrap(plugin, names, **options)  # type: ignore[arg-type]


def test_a_library_that_is_no_plugin(no_symbol_library: Path) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match="no function GetPjrtApi"):
        layers.wrap(no_symbol_library, ["pass"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 0;", "GetPjrtApi returned null"),
        ("static unsigned long table[] = {8}; return table;", "PJRT_Api is 8 bytes long, expected at least 40"),
        ("return (void *)8;", "the address 0x8, which cannot be read"),
        ("static unsigned long table[5] = {8ul << 40}; return table;", "the plugin speaks PJRT C API 0.0"),
    ],
)
def test_a_plugin_without_a_table(body: str, message: str, tiny_cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    declaration = '__attribute__((visibility("default"))) void *GetPjrtApi(void);'
    source.write_text(f"{declaration}\nvoid *GetPjrtApi(void) {{ {body} }}\n")
    library = build.build([source], tiny_cache, "libbroken.so")
    with pytest.raises(pjrt.FailedPreconditionError, match=message):
        layers.wrap(library, ["pass"])


def test_a_folder_is_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "plugin.so").mkdir()
    with pytest.raises(pjrt.FailedPreconditionError, match="found a folder"):
        layers.wrap(tmp_path / "plugin.so", ["pass"])


def run(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a Python of its own and return what it prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + (done.stderr.strip().splitlines()[-1] if done.returncode else "")


WHAT_HAS_LAYERS = """
import sys
import pjrt
from pjrt import capi
from pjrt.layers import stack

def make_client(**options):
    return pjrt.client("reference", **options)

def shown(plugin):
    return ",".join(stack.layers_of(plugin.address)), ",".join(stack.layers_of(stack.plugin_table(plugin.address) or 0))

print(*shown(capi.load_plugin(sys.argv[1])))
exported = pjrt.export(make_client, name="exported")
print(*shown(exported), *shown(capi.load_capsule(exported.capsule)))
print(*shown(capi.load_plugin(sys.argv[2])))
client = pjrt.client("reference")
print(type(client).__name__, pjrt.client("reference").platform_name)
inner = capi.load_capsule(exported.capsule).client()
print(inner.buffer_from_host([1.0]).tolist())
"""


def test_the_environment(tiny_copy: Callable[..., Control], tmp_path: Path) -> None:
    """Each table gets the layers once: also one of an exported library, which asks for them itself."""
    library = tmp_path / "libreference.so"
    subprocess.run([sys.executable, "-m", "pjrt", "export", "reference", "-o", str(library)], check=True, timeout=120)
    printed = run(WHAT_HAS_LAYERS, str(tiny_copy().path), str(library), PJRT_LAYERS="pass,pass")
    assert printed.splitlines() == [
        "pass,pass ",
        "pass,pass  pass,pass ",
        "pass,pass ",
        "PluginClient reference",
        "[1.0]",
    ]


def test_an_environment_with_a_wrong_name(tiny_copy: Callable[..., Control]) -> None:
    load = "import sys, pjrt; pjrt.client(sys.argv[1])"
    expected = "pjrt.api.errors.InvalidArgumentError: INVALID_ARGUMENT: there is no layer 'trac'; the layers are: pass"
    assert run(load, str(tiny_copy().path), PJRT_LAYERS="pass,trac").startswith(expected)
    assert run(load, "reference", PJRT_LAYERS="trac").startswith(expected)
    assert run(load, "reference", PJRT_LAYERS="") == ""


FRAMEWORKS = """
import sys
import pjrt
from pjrt.frameworks.torch_xla import TorchXlaDevice

device = sys.argv[1]
platform = pjrt.frameworks.jax.register(device, platform="layered")
import jax, jax.numpy as jnp
from jax._src import xla_bridge
print(jax.device_put(jnp.arange(3.0), jax.devices(platform)[0]).tolist())
written = TorchXlaDevice(device).library_path()
with pjrt.load_plugin(written).client() as client:
    print(written != device, client.platform_name)
"""


@pytest.mark.full
def test_libraries_that_frameworks_load_themselves(tmp_path: Path) -> None:
    """JAX is given the table with layers, PyTorch/XLA a library with them."""
    library, file = tmp_path / "libreference.so", tmp_path / "calls.log"
    subprocess.run([sys.executable, "-m", "pjrt", "export", "reference", "-o", str(library)], check=True, timeout=120)
    traced = {"PJRT_LAYERS": "trace", "PJRT_TRACE": f"file={file}"}
    assert run(FRAMEWORKS, str(library), **traced).splitlines() == ["[0.0, 1.0, 2.0]", "True reference"]
    assert file.exists()
    assert run(FRAMEWORKS, str(library)).splitlines() == ["[0.0, 1.0, 2.0]", "False reference"]


def test_every_layer_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layers.md").read_text()
    for name in layers.layer_names():
        assert f"\n| `{name}` |" in page, f"docs/layers.md does not list {name}"


def test_a_system_without_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(pjrt.UnimplementedError, match="layers need Linux on x86-64 or AArch64, found Linux on riscv64"):
        environment.library_path()

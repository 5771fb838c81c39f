"""``pjrt export``: what can be exported, and what the plugin is called."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import pjrt
from pjrt.native import write_library
from pjrt.plugins import factories, registry
from pjrt.plugins.declaration import Declaration

DEVICE = "import pjrt\n\n\ndef make_client(**options):\n    return pjrt.client('reference', **options)\n"


def export(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pjrt", "export", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_plugin_by_its_name(name: str, tmp_path: Path) -> None:
    library = tmp_path / f"lib{name}.so"
    code, output = export(name, "-o", str(library))
    assert (code, "device   " + name in output) == (0, True), output
    asked = f"import pjrt; c = pjrt.client({str(library)!r}, num_devices=2); print(c.platform_name, len(c.devices))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"{name} 2\n"


@pytest.mark.full
@pytest.mark.parametrize("module", ["gadget", "gadgets.chip"])
def test_a_module_of_the_current_folder(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sees it however it was started, and so does who loads the library. ``-P`` keeps it out."""
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(DEVICE)
    (tmp_path / "json.py").write_text("raise RuntimeError('planted')\n")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    script = Path(sysconfig.get_path("scripts")) / "pjrt"
    command = [script, "export", f"{module}:make_client", "-o", "libgadget.so"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    asked = f"import pjrt; print(pjrt.client({str(tmp_path / 'libgadget.so')!r}).platform_name)"
    (tmp_path / "json.py").unlink()
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "reference\n"
    command = [sys.executable, "-P", script, *command[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert f"there is no module '{module}' here" in done.stderr


@pytest.mark.full
def test_one_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gadget.py").write_text(DEVICE)
    (tmp_path / "config.toml").write_text("[plugins.gizmo]\nfactory = 'gadget:make_client'\n")
    monkeypatch.setenv("PJRT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    library = tmp_path / "libgizmo.so"
    code, output = export("gizmo", "-o", str(library))
    assert (code, "device   gizmo" in output) == (0, True), output
    asked = f"import pjrt; print(pjrt.client({str(library)!r}).platform_name)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "reference\n"


@pytest.mark.full
def test_the_library_may_be_given_the_name_of_its_device(tmp_path: Path) -> None:
    library = tmp_path / "libreference.so"
    export("reference", "-o", str(library))
    asked = "import pjrt; client = pjrt.client('reference'); print(type(client).__module__, client.platform_name)"
    environment = {**os.environ, "PJRT_NAMES_AND_LIBRARY_PATHS": f"reference:{library}"}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "pjrt.capi._client reference\n", done.stderr


def test_a_library_that_exports_only_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factories.registry, "declaration", lambda name: Declaration(name, "a test", library=library))
    library = tmp_path / "libgizmo.so"
    write_library(library, "pjrt.plugins.factories:gizmo", driver="worker")
    with pytest.raises(pjrt.FailedPreconditionError, match="itself the only plugin of that"):
        factories.factory("gizmo")


@pytest.mark.full
def test_frameworks_see_the_name_that_is_given_or_its_own(tmp_path: Path) -> None:
    (tmp_path / "gadget.py").write_text(
        f"{DEVICE}\nexported = pjrt.export(make_client, name='other', platform_name='other', attributes={{'a': 1}})\n"
    )
    output = tmp_path / "lib.so"
    for attribute, name, expected in [
        ("make_client", (), "reference"),
        ("exported", (), "other"),
        ("make_client", ("--name", "gadget"), "gadget"),
    ]:
        code, printed = export(f"{tmp_path / 'gadget.py'}:{attribute}", "-o", str(output), *name)
        assert code == 0, printed
        asked = (
            f"import pjrt; plugin = pjrt.load_plugin({str(output)!r})\n"
            "print(plugin.client().platform_name, plugin.attributes.get('a'), plugin.attributes['xla_version'])"
        )
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout == f"{expected} {1 if attribute == 'exported' else None} 2\n"


@pytest.mark.parametrize("spec", ["nonesuch", "./mydevice.py", "__name__", "registry"])
def test_what_is_none_is_refused(spec: str, tmp_path: Path) -> None:
    code, output = export(spec, "-o", str(tmp_path / "lib.so"))
    assert code == 2
    assert ("no device called" in output) or ("expected MODULE:ATTRIBUTE" in output), output
    with pytest.raises((pjrt.NotFoundError, pjrt.InvalidArgumentError)):
        registry.factory_place(spec)


@pytest.mark.full
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_its_topologies_have_the_names_that_the_device_gives_them(name: str, tmp_path: Path) -> None:
    library = tmp_path / f"lib{name}.so"
    write_library(library, registry.factory_place(name), driver="worker")
    asked = (
        f"import pjrt; topology = pjrt.topology({str(library)!r}, '3')\n"
        "print(len(topology.device_descriptions), topology.platform_name)\n"
        "code = 'func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }'\n"
        "print(topology.compile(code).num_outputs)\n"
        f"try: pjrt.topology({str(library)!r}, 'v5e:2x2')\n"
        "except pjrt.InvalidArgumentError as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith(f"3 {name}\n1\na topology of the device '{name}' is named by the number"), done

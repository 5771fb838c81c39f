"""A start stays light: what only some programs need is imported when they need it."""

import subprocess
import sys
from pathlib import Path

import pytest

SLOW_TO_IMPORT = {"asyncio", "click", "google.protobuf", "importlib.metadata", "jaxlib", "numpy", "rich", "tomllib"}

FIRST_CLIENT = "import pjrt; client = pjrt.client('cpu')"
FIRST_COMPILATION = f"""{FIRST_CLIENT}
client.compile("func.func @main(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }}")"""

MOST_MODULES = 56
"""The modules of pjrt that a client of the cpu device may need; each costs about 0.2 ms."""

MOST_MODULES_TO_COMPILE = 72

OTHER_DIALECTS = {f"jaxlib.mlir.dialects.{name}" for name in ("chlo", "mhlo", "mpmd", "sdy")}
"""A class for each operation of dialects that a plain program does not name."""

FOR_SOME_PROGRAMS = {
    "pjrt.api.capability",
    "pjrt.api.topology",
    "pjrt.devices.xla.ffi_handler",
    "pjrt.devices.xla.special_buffers",
    "pjrt.devices.xla.topology",
    "pjrt.plugins.discovery",
    "pjrt.stablehlo.ir.attributes",
    "pjrt.stablehlo.facts.compatibility",
    "pjrt.stablehlo.facts.inspection",
    "pjrt.stablehlo.reading.parser",
}


FOR_SOME_COMMANDS = {
    "concurrent.futures.thread",
    "email",
    "hashlib",
    "importlib.metadata",
    "pjrt.api.capability",
    "pjrt.artifacts.saved_executable",
    "pjrt.host_memory.difference",
    "pjrt.ifrt.remap_plan",
    "pjrt.ifrt.serialization",
    "pjrt.models.measurement",
    "pjrt.models.comparison.comparison",
    "pjrt.models.offloading.offloaded_model",
    "pjrt.plugins.discovery",
    "pjrt.stablehlo.reading._hlo_conversion",
    "pjrt.stablehlo.facts.inspection",
    "pjrt.stablehlo.ir.attributes",
    "pjrt.stablehlo.files._jax_export_schema",
    "pjrt.stablehlo.files.jax_export",
    "pjrt.system.python_process",
    "rich",
}
"""Modules that a plain ``pjrt run`` of a portable artifact does not import."""

MOST_MODULES_TO_RUN = 112


def modules_after(code: str) -> set[str]:
    """Return the names of the modules that are loaded after some code, in a new process."""
    code += "\nimport sys; print('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.partition("modules:")[2].split())


def of_pjrt(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "pjrt"}


def test_importing_pjrt_imports_next_to_nothing() -> None:
    modules = modules_after("import pjrt")
    assert SLOW_TO_IMPORT.isdisjoint(modules)
    assert of_pjrt(modules) == {"pjrt", "pjrt.api", "pjrt.api.lazy_names"}


@pytest.mark.full
def test_each_public_name_is_found() -> None:
    assert "pjrt.api.client" in modules_after("import pjrt\nfor name in pjrt.__all__: getattr(pjrt, name)")


def test_the_help_imports_no_subcommand() -> None:
    modules = modules_after("import pjrt.cli\npjrt.cli.main(['--help'], standalone_mode=False)")
    assert (SLOW_TO_IMPORT - {"click"}).isdisjoint(modules)
    assert len(of_pjrt(modules)) < 10


def test_a_client_imports_what_all_programs_need() -> None:
    modules = modules_after(FIRST_CLIENT)
    assert (SLOW_TO_IMPORT - {"jaxlib", "numpy"}).isdisjoint(modules)
    assert FOR_SOME_PROGRAMS.isdisjoint(modules)
    assert len(of_pjrt(modules)) <= MOST_MODULES, sorted(of_pjrt(modules))


def test_a_compilation_imports_what_all_programs_need() -> None:
    modules = modules_after(FIRST_COMPILATION)
    assert FOR_SOME_PROGRAMS.isdisjoint(modules)
    assert OTHER_DIALECTS.isdisjoint(modules)
    assert len(of_pjrt(modules)) <= MOST_MODULES_TO_COMPILE, sorted(of_pjrt(modules))


def test_a_plain_run_imports_what_all_runs_need() -> None:
    folder = Path(__file__).parents[2] / "examples" / "digits"
    arguments = ["run", str(folder / "digits.stablehlo"), "--device", "cpu"]
    arguments += ["--input", str(folder / "weights.npz"), "--input", str(folder / "images.npy")]
    modules = modules_after(f"import pjrt.cli\npjrt.cli.main({arguments}, standalone_mode=False)")
    assert OTHER_DIALECTS.isdisjoint(modules)
    assert FOR_SOME_COMMANDS.isdisjoint(modules), sorted(FOR_SOME_COMMANDS & modules)
    assert len(of_pjrt(modules)) <= MOST_MODULES_TO_RUN, sorted(of_pjrt(modules))


@pytest.mark.full
@pytest.mark.parametrize("arguments", [["run", "--help"], ["devices", "--help"]])
def test_the_help_of_a_command_loads_no_jaxlib(arguments: list[str]) -> None:
    assert "jaxlib" not in modules_after(f"import pjrt.cli\npjrt.cli.main({arguments}, standalone_mode=False)")

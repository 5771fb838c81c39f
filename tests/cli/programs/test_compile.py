"""``pjrt compile``: several topologies at once, the largest arrays, and numbers that are counted from the program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from in_process import pjrt

from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.plugins import registry

WHOLE = """
module @MODULE
  func.func @main(
    %a: tensor<64x128xf32> FIRST loc("activations"),
    %b: tensor<128x64xf32> SECOND loc("weights['w']")
  ) -> (tensor<64x64xf32> RESULT) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32> loc("product"("model.py":3:1))
    return %0 : tensor<64x64xf32>
  }
}
"""
SHARDINGS = {
    "MODULE": 'sharded attributes {mhlo.num_partitions = 2 : i32} { sdy.mesh @mesh = <["x"=2]>',
    "FIRST": '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}',
    "SECOND": '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}',
    "RESULT": "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}",
}


def program(words: dict[str, str]) -> str:
    text = WHOLE
    for name in SHARDINGS:
        text = text.replace(name, words.get(name, ""))
    return text


DEVICES = """
import pjrt


def small(**options):
    limit = {"device_memory_bytes_limit": 60_000}
    return pjrt.StableHloClient("small", compile=compile, device_attributes=limit, **options)


def large(**options):
    limit = {"device_memory_bytes_limit": 1 << 30}
    return pjrt.StableHloClient("large", compile=compile, device_attributes=limit, **options)


def compile(program, options):
    return lambda *arguments: (arguments[0],)


def bare(**options):
    return pjrt.host.HostClient("bare", compile=compile_bare, **options)


def compile_bare(program, options):
    types = pjrt.stablehlo.parse(program).entry.type
    specs = [[pjrt.ShapeSpec(each.shape, each.element) for each in side] for side in (types.arguments, types.results)]
    return pjrt.host.Compiled(run=compile(program, options), parameters=specs[0], outputs=specs[1])


class Refusing(pjrt.TopologyDescription):
    platform_name = "refusing"
    platform_version = "1"

    @property
    def device_descriptions(self):
        return pjrt.topology("reference", "1").device_descriptions

    def compile(self, program, options=None, *, client=None, shapes=None):
        raise pjrt.ResourceExhaustedError(
            "E1000: Ran out of memory on HBM, the total memory required (74.50G) exceeds available HBM (15.75G)."
        )


class RefusingPlugin(pjrt.Plugin):
    name, api_version, attributes = "refusing", (0, 99), {}

    def client(self, **options):
        raise pjrt.UnavailableError("there is none")

    def topology(self, name="", /, **options):
        return Refusing()
"""

CONFIG = """
[plugins.small]
factory = "three_devices:small"
[plugins.large]
factory = "three_devices:large"
[plugins.bare]
factory = "three_devices:bare"
[plugins.refusing]
factory = "three_devices:RefusingPlugin"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sharded.mlir").write_text(program(SHARDINGS))
    (tmp_path / "whole.mlir").write_text(program({"MODULE": "whole {"}))
    (tmp_path / "three_devices.py").write_text(DEVICES)
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PJRT_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path


def compile_(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return pjrt("compile", *arguments, folder=folder)


def row(output: str, beginning: str) -> list[str]:
    """The cells of the row of a table that begins so."""
    (line,) = (line for line in output.splitlines() if line.strip().startswith(f"{beginning} "))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_table_of_topologies(folder: Path) -> None:
    done = compile_(folder, "whole.mlir", "-t", "cpu:1,large:2", "-t", "reference:3")
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "cpu:1")[:6] == ["cpu:1", "1", "64.0 KiB", "16.0 KiB", "0 B", "80.0 KiB"]
    large = row(done.stdout, "large:2")
    assert [*large[5:7], large[-1]] == ["80.0 KiB", "1.0 GiB", "yes"]
    assert row(done.stdout, "reference:3")[-1] == "unknown"
    assert "largest arrays" not in done.stdout


def test_what_does_not_fit_is_told_from_what_is_wrong(folder: Path) -> None:
    done = compile_(folder, "whole.mlir", "-t", "small:1,large:1")
    assert done.returncode == 1
    small = row(done.stdout, "small:1")
    assert [*small[5:7], small[-1]] == ["80.0 KiB", "58.6 KiB", "no"]
    assert "small:1: RESOURCE_EXHAUSTED: a run needs 81920 bytes of memory" in done.stdout
    assert row(done.stdout, "32.0 KiB   40.0%   weights['w']")[3:] == ["argument", "tensor<128x64xf32>"]
    done = compile_(folder, "whole.mlir", "-t", "small:1,nowhere:1,large:1")
    assert done.returncode == 2
    assert row(done.stdout, "nowhere:1") == ["nowhere:1", "error"]
    assert any(line.startswith("nowhere:1: ") and "'nowhere'" in line for line in done.stdout.splitlines())
    assert row(done.stdout, "large:1")[-1] == "yes"


def test_a_compiler_that_refuses_what_does_not_fit(folder: Path) -> None:
    """The numbers are the compiler's own, as libtpu has them in its message."""
    done = compile_(folder, "whole.mlir", "-t", "refusing:1,large:1")
    assert done.returncode == 1
    assert row(done.stdout, "refusing:1") == ["refusing:1", "1", "74.5 GiB", "15.8 GiB", "no"]
    alone = compile_(folder, "whole.mlir", "-t", "refusing:1")
    assert alone.returncode == 2
    assert "weights['w']" in alone.stdout
    assert "RESOURCE_EXHAUSTED: whole.mlir: E1000" in alone.stderr


def in_json(folder: Path, *arguments: str) -> dict[str, Any]:
    done = compile_(folder, *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_several_in_json(folder: Path) -> None:
    report = in_json(folder, "whole.mlir", "-t", "small:1,large:1,refusing:1")
    small, large, refusing = report["topologies"]
    assert [each["fits"] for each in (small, large, refusing)] == [False, True, False]
    assert [each["topology"] for each in (small, large, refusing)] == ["small:1", "large:1", "refusing:1"]
    assert (small["memory_needed_in_bytes"], small["error"]["code"]) == (81920, "RESOURCE_EXHAUSTED")
    assert refusing["memory_needed_in_bytes"] == round(74.5 * 2**30)
    assert refusing["memory_limit_in_bytes"] == round(15.75 * 2**30)
    weights, activations, product = sorted(report["counted"]["arrays"], key=lambda each: -len(each["name"]))[0:3]
    assert {weights["role"], activations["role"], product["role"]} == {"argument", "result"}


def test_the_largest_arrays_of_one_device(folder: Path) -> None:
    done = compile_(folder, "sharded.mlir", "-t", "cpu:2", "--largest", "2")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "tensor<" in line]
    assert len(lines) == 2
    counted = in_json(folder, "sharded.mlir", "-t", "cpu:2", "--largest", "2")["counted"]
    arrays = {each["name"]: each for each in counted["arrays"]}
    assert arrays["weights['w']"]["shape"] == [64, 64]
    assert arrays["activations"]["shape"] == [64, 64]
    assert arrays["stablehlo.dot_general"]["at"] == "product at model.py:3:1"
    assert counted["peak_memory_in_bytes"] == 3 * 64 * 64 * 4


def test_arrays_take_what_the_device_says(folder: Path) -> None:
    """An example's memory has tiles of 8 x 128; the program is for one of two partitions."""
    device = Path(__file__).parents[3] / "examples" / "tiled_chip" / "device.py"
    counted = in_json(folder, "sharded.mlir", "-t", f"{device}:make_client:2", "--largest", "2")["counted"]
    assert [each["bytes"] for each in counted["arrays"]] == [64 * 128 * 4] * 3
    assert counted["peak_memory_in_bytes"] == 3 * 64 * 128 * 4


def test_the_bytes_of_collectives(folder: Path) -> None:
    done = compile_(folder, "sharded.mlir", "-t", "cpu:2")
    assert done.returncode == 0, done.stderr
    assert "sent by 1 × all_reduce among 2 devices   16.0 KiB" in done.stdout
    (total,) = in_json(folder, "sharded.mlir", "-t", "cpu:2")["counted"]["collectives"]
    assert total == {"kind": "all_reduce", "group_size": 2, "times": 1, "operand_bytes": 16384, "sent_bytes": 16384}


def test_work_is_counted_where_the_compiler_reports_none(folder: Path) -> None:
    done = compile_(folder, "whole.mlir", "-t", "bare:1")
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "FLOPs") == ["FLOPs", "1.05 M"]
    assert "The numbers are counted from the program before it is optimized." in done.stdout
    report = in_json(folder, "whole.mlir", "-t", "bare:1")
    assert report["cost"] is None
    assert report["counted"]["cost"]["flops"] == 2 * 64 * 128 * 64
    assert "counted" not in in_json(folder, "whole.mlir", "-t", "cpu:1")


def test_a_program_for_some_of_the_devices(folder: Path) -> None:
    report = in_json(folder, "sharded.mlir", "-t", "cpu:8", "-o", "sharded.bin")
    assert (report["num_devices"], report["num_partitions"]) == (8, 2)
    saved = SavedExecutable.read(folder / "sharded.bin")
    assert [each.name for each in saved.signature.parameters] == ["activations", "weights['w']"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-t", "cpu:1,large:1", "-o", "out.bin"), "expected one --topology, found 2"),
        (("-t", ","), "expected PLUGIN[:NAME], found nothing"),
        (("-t", "cpu", "--largest", "0"), "--largest"),
    ],
)
def test_wrong_options(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = compile_(folder, "whole.mlir", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_without_the_vendors_compiler_the_program_is_counted(folder: Path) -> None:
    missing = next((name for name in ("xpu", "rocm") if name not in registry.names()), None)
    if missing is None:
        pytest.skip("all vendors' plugins are installed")
    done = compile_(folder, "whole.mlir", "-t", f"{missing}:a")
    assert done.returncode == 2
    assert done.stderr.startswith(f"pjrt: error: the plugin of '{missing}' is not installed")
    assert "weights['w']" in done.stdout
    assert "Counted from the program: 80.0 KiB" in done.stdout
    counted = json.loads(compile_(folder, "whole.mlir", "-t", f"{missing}:a", "--json").stdout)
    assert counted["error"]["code"] == "NOT_FOUND"
    assert counted["counted"]["cost"]["flops"] == 2 * 64 * 64 * 128
    assert compile_(folder, "whole.mlir", "-t", "cdua:a").stdout == ""

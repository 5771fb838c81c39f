"""The topologies of GPUs by the name of a GPU: facts as data, and the options that they become."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pjrt
from pjrt.plugins.discovery import wheels
from pjrt.plugins.discovery.wheels import cuda_options, rocm_options

FOLDER = wheels.VENDORS
GPUS = {name: json.loads((FOLDER / "gpus" / f"{name}.json").read_text())["gpus"] for name in ("cuda", "rocm")}


@pytest.mark.parametrize("platform", GPUS)
def test_the_manifest_lists_the_gpus_that_have_facts(platform: str) -> None:
    facts = wheels.vendors()[platform].facts
    assert list(facts["topologies"]) == list(GPUS[platform])
    assert facts["topology_options"].endswith(f"wheels:{platform}_options")


@pytest.mark.parametrize("platform", GPUS)
def test_the_page_lists_the_gpus(platform: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "vendor.md").read_text()
    (row,) = re.findall(rf"^\| `{platform}` \| (.*) \|$", page, re.MULTILINE)
    assert re.findall(r"`([^`]+)`", row) == list(GPUS[platform])


@pytest.mark.parametrize(("platform", "gpu"), [(platform, gpu) for platform in GPUS for gpu in GPUS[platform]])
def test_the_facts_of_each_gpu_are_plausible(platform: str, gpu: str) -> None:
    facts = GPUS[platform][gpu]
    assert facts.keys() == GPUS["cuda"]["h100"].keys()
    assert 2**30 < facts["l2_cache_bytes"] * 1000 < facts["memory_bytes"] * 1000
    assert 10 * 2**30 < facts["memory_bytes"] < 500 * 2**30
    assert 2e11 < facts["memory_bytes_per_second"] < 1e13
    assert facts["shared_memory_bytes_per_block"] <= facts["shared_memory_bytes_per_core"]
    assert 0.5 < facts["clock_ghz"] < 4


def test_the_text_of_a_target() -> None:
    options = cuda_options("H100:1x1x4")
    assert options is not None
    text = options["target_config"]
    assert options["topology"] == "1x1x4"
    assert text.count("{") == text.count("}")
    for line in (
        "core_count: 132",
        "device_memory_size: 84942979072",
        "shared_memory_per_block: 49152",
        "shared_memory_per_block_optin: 232448",
        "cuda_compute_capability { major: 9 minor: 0 }",
        'platform_name: "CUDA"',
        'device_description_str: "NVIDIA H100 80GB HBM3"',
    ):
        assert re.search(rf"^\s*{re.escape(line)}$", text, re.MULTILINE), line
    amd = rocm_options("mi300x")
    assert amd is not None
    assert 'rocm_compute_capability { gcn_arch_name: "gfx942:sramecc+:xnack-" }' in amd["target_config"]


@pytest.mark.parametrize(
    ("name", "shape"), [("a100", "1x1x1"), ("a100:8", "1x1x8"), ("a100:2x8", "1x2x8"), ("a100:4x2x8", "4x2x8")]
)
def test_sizes(name: str, shape: str) -> None:
    options = cuda_options(name)
    assert options is not None
    assert options["topology"] == shape


@pytest.mark.parametrize("size", ["", "0", "1x0", "1x1x1x1", "two", "-1", "1x", "x"])
def test_wrong_sizes(size: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=rf"expected the size of a100 as .*, found '{size}'"):
        cuda_options(f"a100:{size}")


def test_an_unknown_gpu_is_left_to_the_plugin() -> None:
    assert cuda_options("cuda") is None
    assert cuda_options("mi300x") is None


PLUGIN = """
import pjrt
from pjrt.devices.reference.plugin import ReferencePlugin


class Abacus(ReferencePlugin):
    def topology(self, name="", /, **options):
        if not options:
            raise pjrt.FailedPreconditionError("there is no abacus on this table")
        return super().topology(**options)


def described(name):
    return {"num_devices": 3} if name == "wood" else None
"""


def test_a_plugin_describes_its_topologies_by_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "abacus_for_topologies.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(
        '[plugins.abacus]\nfactory = "abacus_for_topologies:Abacus"\nhardware = ["/no/such/*"]\n'
        'topologies = { wood = "", bone = "" }\ntopology_options = "abacus_for_topologies:described"\n'
    )
    monkeypatch.setenv("PJRT_CONFIG", str(config))
    assert len(pjrt.topology("abacus", "wood").device_descriptions) == 3
    assert len(pjrt.topology("abacus", "wood", num_devices=2).device_descriptions) == 2, "options of the call win"
    assert len(pjrt.topology("abacus", "other", num_devices=5).device_descriptions) == 5
    with pytest.raises(
        pjrt.InvalidArgumentError, match=r"found 'stone'\. The generations and their sizes are wood, bone"
    ):
        pjrt.topology("abacus", "stone")

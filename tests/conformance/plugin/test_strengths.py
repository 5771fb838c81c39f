"""How much a failed check of a plugin matters."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from pjrt import layers
from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.check import Tier, all_checks
from pjrt.conformance.plugin.strengths import EXPECTED, HARDENING, Strength, strength_of

NAMES = {name for check in all_checks() for name in (check, check.partition("[")[0])}


@pytest.mark.parametrize("pattern", [*HARDENING, *EXPECTED])
def test_each_pattern_names_a_check_of_the_header(pattern: str) -> None:
    named = [name for name in NAMES if fnmatchcase(name, pattern)]
    assert named
    tiers = {check.tier for check in all_checks().values() if check.name.partition("[")[0] in named}
    assert tiers <= {Tier.CONTRACT}, "what XLA's tests expect and what frameworks need is required"


@pytest.mark.parametrize(
    ("check", "strength"),
    [
        ("official.lookup_device_negative_id_fails", "required"),
        ("jax.jit", "required"),
        ("buffer_from_host.shape[scalar]", "required"),
        ("buffer_from_host.element_type[f32]", "required"),
        ("buffer_from_host.element_type[s1]", "hardening"),
        ("buffer_from_host.wrong_argument[null_data]", "hardening"),
        ("alias_buffer.value[rank_1]", "expected"),
        ("alias_buffer.null_handle", "hardening"),
        ("error_value.later", "expected"),
    ],
)
def test_the_strength_follows_from_the_name(check: str, strength: str) -> None:
    assert strength_of(check) == Strength(strength)


def test_a_check_that_gives_wrong_input_is_not_required() -> None:
    """By their names, and but for those whose error a comment of the header or XLA's own tests name."""
    wrong = re.compile(r"wrong|damaged|negative_dim|unknown|outside|overflow")
    stated = {"ffi.handler.unknown"}
    required = {
        check.name.partition("[")[0]
        for check in all_checks().values()
        if check.tier is Tier.CONTRACT and check.strength is Strength.REQUIRED
    }
    assert {name for name in required if wrong.search(name.rpartition(".")[2])} - stated == {
        "error.names_what_was_wrong"
    }


@pytest.mark.parametrize(("message", "supported"), [("No compiler registered for platform cpu", False), ("no", True)])
def test_a_plugin_that_was_built_without_a_compiler_lacks_it(message: str, supported: bool, tmp_path: Path) -> None:
    rules = [
        {"call": call, "error": "NOT_FOUND", "message": message} for call in ("Compile", "TopologyDescription_D*e")
    ]
    path = layers.write_library(tmp_path / "libwithout.so", "reference", ["inject"], {"inject": rules}).path
    report = check_plugin(str(path), filters=["compile_for_topology.loads", "topology.deserialize.round_trip"])
    assert {str(each.verdict) for each in report.outcomes} == {"failed" if supported else "unsupported"}
